"""Averages the weights of several checkpoints; writes a folder like that of a run.

All checkpoints have equal weights, or older ones have smaller weights: an exponential
moving average over the saved checkpoints, with a half-life in steps.

The checkpoints may be of one run, such as its last ones (Vaswani et al. 2017, section
6.1), or of runs that began from the same weights (Wortsman et al. 2022, "Model soups").
The mean over runs with different initial weights is meaningless; this is not detected.

One variable of one checkpoint is in memory at a time, beside its float64 sum and, with
a half-life, the float64 product that is added.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from decoupled.core.errors import UserError
from decoupled.core.files import check_target
from decoupled.exports.interop.conversion import Contents, write_converted_folder
from decoupled.model.variables import OUTPUT_BIAS
from decoupled.runs import run_folder
from decoupled.runs.saved_run import open_model
from decoupled.training.checkpoint_files import aligned_empty


def average(
    checkpoints: Sequence[str], model_dir: str, half_life: float = math.inf
) -> dict[str, Any]:
    """Writes a folder with the mean of the weights, without slots.

    Args:
      checkpoints: prefixes, or folders of runs, whose selected checkpoint is used.
      model_dir: new or empty. Its step is the highest of the checkpoints.
      half_life: a checkpoint that is so many steps older than the newest has half its
        weight; infinity gives equal weights.

    Returns:
      The content of conversion.json.

    Raises:
      UserError: there is one checkpoint, one is given twice or unreadable, or two
        differ in sizes, vocabulary, task or variables; the half-life is not above 0;
        nothing is written.
    """
    if not half_life > 0:
        raise UserError(f"--half_life: {half_life:g} steps is not above 0")
    check_target(model_dir)
    models = [open_model(path) for path in checkpoints]
    files = [model.weights for model in models]
    prefixes = [os.path.abspath(file.path) for file in files]
    if len(models) < 2:
        raise UserError("give --checkpoint twice or more, once for each to average")
    for prefix in prefixes:
        if prefixes.count(prefix) > 1:
            raise UserError(f"--checkpoint: {prefix} is given twice")
    first, *others = models
    for model in others:
        same = first.description._replace(
            command=model.description.command, data=model.description.data
        )
        if differing := run_folder.differences_in_words(model.folder, same):
            raise UserError(
                f"{model.weights.path}: another model than {files[0].path}: "
                f"{'; '.join(differing)}; average checkpoints of one model"
            )
    shapes = {name: files[0].shapes[name] for name in files[0]}
    for file in files[1:]:
        for name in sorted(set(shapes) | set(file)):
            this_shape = file.shapes[name] if name in file else None
            if this_shape != shapes.get(name):
                raise UserError(
                    f"{file.path}: {name} is {_shape(this_shape)}, in {files[0].path} "
                    f"{_shape(shapes.get(name))}; average checkpoints of one model"
                )

    steps = np.array([file.global_step or 0 for file in files])
    shares = 0.5 ** ((steps.max() - steps) / half_life)

    def value_of(name: str) -> np.ndarray:
        total = np.zeros(shapes[name], np.float64)
        for file, share in zip(files, shares, strict=True):
            # Equal weights need no product, which copies the table as float64.
            total += (
                file[name]
                if share == 1
                else np.multiply(file[name], share, dtype=np.float64)
            )
        mean = aligned_empty(shapes[name])
        np.divide(total, shares.sum(), out=mean, casting="same_kind")
        return mean

    task = first.description.task
    weighted = f", half-life {half_life:g} steps" if math.isfinite(half_life) else ""
    return write_converted_folder(
        model_dir,
        Contents(
            source=", ".join(prefixes),
            kind=f"mean of {len(files)} checkpoints{weighted}",
            model=first.config,
            vocabulary=first.vocabulary,
            task=task,
            shapes=shapes,
            value_of=value_of,
            step=int(steps.max()),
            about={"encoder_only": task is None and OUTPUT_BIAS not in shapes},
            classifier_dropout=run_folder.classifier_dropout(first.folder),
        ),
    )


def _shape(shape) -> str:
    return "missing" if shape is None else f"of shape {list(shape)}"
