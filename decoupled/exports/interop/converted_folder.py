"""Writes a folder as a training run leaves it, from weights that come one by one.

    OUT/config.json, sentencepiece.model    what every later command reads
    OUT/model.ckpt-N.*, checkpoint          the weights
    OUT/model.gin                           the sizes, for --gin_file
    OUT/conversion.json                     where it came from, written last

OUT appears by one rename when everything in it is complete.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core import console, files
from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.interop.checkpoint_files import CheckpointWriter
from decoupled.exports.new_folder import new_folder
from decoupled.model.variables import (
    GLOBAL_STEP,
    ONES,
    ZEROS,
    Variable,
    initial_seed,
)
from decoupled.runs import run_folder as model_dirs
from decoupled.training.checkpoints import write_list

CONVERSION = "conversion.json"
FORMAT = "decoupled-conversion-1"
MODEL_GIN = "model.gin"


class Contents(NamedTuple):
    """What the folder will hold.

    model, vocabulary, task: as in config.json.
    variables: names in the order in which they are read.
    value_of: name -> float32 array or tensor.
    step: the global step.
    report: what conversion.json says beside that; must be JSON.
    """

    model: ModelConfig
    vocabulary: Vocabulary
    task: dict[str, Any] | None
    variables: list[str]
    value_of: Callable[[str], np.ndarray | tf.Tensor]
    step: int
    report: dict[str, Any]


def write_model_folder(folder: str, contents: Contents) -> None:
    """Writes everything, or nothing.

    Raises:
      UserError: a weight cannot be read or is refused, or the folder exists or cannot
        be written.
    """
    with new_folder(folder) as temporary:
        _write(temporary, contents)


def model_gin(model: ModelConfig, source: str) -> str:
    """The sizes as a gin file, literal values only."""
    lines = [f"# The sizes of {source}, complete.", ""]
    for name, value in dataclasses.asdict(model).items():
        lines.append(f"ModelConfig.{name} = {value!r}")
    return "\n".join(lines) + "\n"


def initial_value(variable: Variable, model: ModelConfig) -> np.ndarray:
    """What a variable starts training from with seed 0, float32 (`model.layers`)."""
    if variable.initializer == ONES:
        return np.ones(variable.shape, np.float32)
    if variable.initializer == ZEROS:
        return np.zeros(variable.shape, np.float32)
    return tf.random.stateless_truncated_normal(
        variable.shape,
        initial_seed(variable.name, seed=0),
        stddev=model.initializer_range,
    ).numpy()


def _write(folder, contents):
    description = model_dirs.ModelDir(
        command="convert",
        model=contents.model,
        vocabulary_fingerprint=contents.vocabulary.fingerprint,
        task=contents.task,
        data={"source": contents.report["source"]},
    )
    model_dirs.claim(folder, description, contents.vocabulary.path)
    name = f"model.ckpt-{contents.step}"
    with CheckpointWriter(os.path.join(folder, name)) as writer:
        for variable, value in _values(contents):
            writer.add(variable, value)
            # Not kept while the next one is read.
            del value
        writer.add(GLOBAL_STEP, np.int64(contents.step))
    write_list(folder, [name])
    gin_text = model_gin(contents.model, contents.report["source"])
    files.write_text(os.path.join(folder, MODEL_GIN), gin_text)
    report = {"format": FORMAT, **contents.report}
    files.write_json(os.path.join(folder, CONVERSION), report)


def _values(contents) -> Iterable[tuple[str, np.ndarray | tf.Tensor]]:
    names = contents.variables
    for name in console.track(names, "converting variables", len(names)):
        yield name, contents.value_of(name)
