"""What a conversion takes over, and the folder that it writes.

`match` maps the variables of one model to those of another. Nothing is dropped or
initialised silently: unmatched names on either side are an error unless the user allows
them. `write_converted_folder` writes a folder like that of a training run, from weights
that are read one by one:

    OUT/config.json, the vocabulary         what every later command reads
    OUT/model.ckpt-N.*, checkpoint          the weights
    OUT/model.gin                           the sizes, for --gin_file
    OUT/conversion.json                     where it came from, written last

OUT appears by one rename when everything in it is complete.
"""

import dataclasses
import fnmatch
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.core.files import new_folder
from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary
from decoupled.model.variables import (
    GLOBAL_STEP,
    IDENTITY,
    ONES,
    ZEROS,
    Shape,
    Variable,
    initial_seed,
)
from decoupled.runs import run_folder
from decoupled.runs.saved_run import Model
from decoupled.training.checkpoint_files import CheckpointWriter
from decoupled.training.checkpoints import write_list

CONVERSION = "conversion.json"
FORMAT = "decoupled-conversion-1"
MODEL_GIN = "model.gin"

# An error lists no more names than this.
_MOST_NAMES = 8


class Matching(NamedTuple):
    """sources: our variable -> the name that its values come from.
    unused: names of the source that no variable uses.
    unset: our variables for which the source has no values.
    """

    sources: dict[str, str]
    unused: list[str]
    unset: list[str]


def match(
    where: str,
    targets: Mapping[str, tuple[str, Shape]],
    sources: Mapping[str, tuple[str, Shape]],
    config: str,
    patterns: Sequence[str],
) -> Matching:
    """Matches by name; refuses other shapes and unmatched names.

    targets: our variable -> the name and shape that it should have in the source, by
      the sizes in `config`. sources: name in the source -> name in its file, and shape.
    patterns: like a shell's, of names that may be left over.
    """
    matches = {}
    for name, (source_name, expected_shape) in targets.items():
        if source_name in sources:
            matches[name], shape = sources[source_name]
            if shape != expected_shape:
                raise UserError(
                    f"{where}: {matches[name]} has shape {list(shape)}, {config} makes "
                    f"it {list(expected_shape)}"
                )
    unused = {name for name, _ in sources.values()}.difference(matches.values())
    unset = set(targets).difference(matches)
    matching = Matching(matches, sorted(unused), sorted(unset))
    for pattern in patterns:
        if not fnmatch.filter([*unused, *unset], pattern):
            raise UserError(
                f"--allow_partial: {pattern!r} is no variable without use or value in "
                f"{where}; take it away or correct it"
            )
    for names, lack in (
        (matching.unset, "no values for"),
        (matching.unused, "no use for"),
    ):
        strays = [
            name
            for name in names
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
        ]
        if strays:
            raise UserError(
                f"{where}: {lack} {_name_list(strays)}; to convert a part of a model, "
                f"give --allow_partial='{strays[0]}' and so on (patterns as a shell's)"
            )
    return matching


class Contents(NamedTuple):
    """The content of the folder.

    source, kind: where it comes from and what it is, in words.
    model, vocabulary, task: as in config.json.
    shapes: of the variables, in the order in which `value_of` reads them.
    about: what else conversion.json says; must be JSON.
    data: what config.json says of training, without what is None.
    slots: further variables, of the optimizer.
    run: the folder of the run whose weights these are, if there is one.
    description: of the run if it can go on; it has its own data.
    """

    source: str
    kind: str
    model: ModelConfig
    vocabulary: Vocabulary
    task: dict[str, Any] | None
    shapes: Mapping[str, Shape]
    value_of: Callable[[str], np.ndarray | tf.Tensor]
    step: int
    about: dict[str, Any]
    data: Mapping[str, Any] = {}
    slots: Sequence[str] = ()
    run: str | None = None
    description: run_folder.ModelDir | None = None


def write_converted_folder(folder: str, contents: Contents) -> dict[str, Any]:
    """Writes the whole folder or nothing; prints and returns conversion.json."""
    files.check_checkpoint_path(folder)
    report = {
        "source": contents.source,
        "kind": contents.kind,
        "variables": len(contents.shapes),
        "parameters": sum(map(math.prod, contents.shapes.values())),
        "renamed": {},
        "unused": [],
        "unset": [],
        "encoder_only": False,
        **contents.about,
    }
    with new_folder(folder) as temporary:
        _write(temporary, contents, report)
    _say_converted(report, folder)
    return report


def kept_data(model: Model) -> dict[str, Any]:
    """What stays true of a trained model in another form, for `Contents.data`."""
    return {
        "classifier_dropout": run_folder.classifier_dropout(model.folder),
        # Columns of the task's files, and lengths of its inputs.
        **{name: model.description.data.get(name) for name in ("features", "masking")},
    }


def model_gin(model: ModelConfig, source: str) -> str:
    """The sizes as a gin file, literal values only."""
    lines = [f"# The sizes of {source}, complete.", ""]
    for name, value in dataclasses.asdict(model).items():
        lines.append(f"ModelConfig.{name} = {value!r}")
    return "\n".join(lines) + "\n"


def initial_value(variable: Variable, model: ModelConfig) -> np.ndarray:
    """The initial value of a variable with seed 0, float32; see `model.layers`."""
    if variable.initializer == ONES:
        return np.ones(variable.shape, np.float32)
    if variable.initializer == ZEROS:
        return np.zeros(variable.shape, np.float32)
    if variable.initializer == IDENTITY:
        return np.eye(*variable.shape, dtype=np.float32)
    return tf.random.stateless_truncated_normal(
        variable.shape,
        initial_seed(variable.name, seed=0),
        stddev=model.initializer_range * variable.scale,
    ).numpy()


def _write(folder: str, contents: Contents, report: dict[str, Any]) -> None:
    run, parent = contents.run, contents.description
    data = {name: x for name, x in contents.data.items() if x is not None}
    description = run_folder.ModelDir(
        command=parent.command if parent else "convert",
        model=contents.model,
        vocabulary_fingerprint=contents.vocabulary.fingerprint,
        vocabulary_kind=contents.vocabulary.kind,
        task=contents.task,
        data=parent.data if parent else {"source": contents.source, **data},
    )
    run_folder.claim(folder, description, contents.vocabulary)
    for name in (run_folder.ANSWERS, *([run_folder.SETTINGS] if parent else [])):
        if run and files.exists(path := os.path.join(run, name)):
            files.write_text(os.path.join(folder, name), files.read_text(path))
    name = f"model.ckpt-{contents.step}"
    with CheckpointWriter(os.path.join(folder, name)) as writer:
        names = [*contents.shapes, *contents.slots]
        for variable in console.track(names, "converting variables"):
            writer.add(variable, contents.value_of(variable))
        writer.add(GLOBAL_STEP, np.int64(contents.step))
    write_list(folder, [name])
    gin_text = model_gin(contents.model, contents.source)
    files.write_text(os.path.join(folder, MODEL_GIN), gin_text)
    files.write_json(os.path.join(folder, CONVERSION), {"format": FORMAT, **report})


def _say_converted(report: dict[str, Any], folder: str) -> None:
    for old_name, name in report["renamed"].items():
        console.say(f"  by its shape, {old_name} is {name}")
    for name in report["unused"]:
        console.say(f"  not used: {name}")
    for name in report["unset"]:
        console.say(f"  drawn anew: {name}")
    if report["encoder_only"]:
        console.say("  no MLM head and no output embedding: an encoder to fine-tune")
    for note in report.get("notes", ()):
        console.say(f"  {note}")
    for name, count in (report.get("vocabulary") or {}).items():
        console.say(f"  pieces, {name.replace('_', ' ')}: {count:,}")
    slots = report.get("optimizer_slots", 0)
    slots_note = f" and {slots} optimizer slots" if slots else ""
    console.say(
        f"{folder}: {report['kind']}, {report['variables']} variables, "
        f"{report['parameters']:,} parameters{slots_note}"
    )


def _name_list(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more"
