"""The models of a sweep at its scale, and what its folder says about it."""

import os
from collections.abc import Callable, Sequence

from decoupled.configs import ModelConfig, ScaleConfig, SweepConfig, sweep_row
from decoupled.core import files
from decoupled.launch import gin_files
from decoupled.sweeps.jobs import Job, Row
from decoupled.sweeps.scale import scaled_layers, scaled_model

DESCRIPTION = "sweep.json"


def make_rows(
    sweep: SweepConfig,
    scale: ScaleConfig,
    pieces: int,
    read_model: Callable[[str], ModelConfig],
) -> list[Row]:
    """The models with their sizes at this scale.

    Args:
      sweep: names the models. scale: divisors. pieces: of the vocabulary.
      read_model: name of a row -> the paper's sizes.

    Raises:
      UserError: a row has no gin file, or sizes that the scale cannot divide.
    """
    rows = []
    for name in sweep.rows:
        model = scaled_model(read_model(name), scale, pieces)
        keep = sweep.keep_layers.get(name, 0)
        rows.append(Row(name, model, scaled_layers(keep, scale) if keep else 0))
    return rows


def read_model(name: str) -> ModelConfig:
    """The paper's sizes of a row, from its gin file in models/.

    Raises:
      UserError: there is no such file.
    """
    names = ["runs/sweep_row.gin", f"models/{name}.gin"]
    return gin_files.configure(sweep_row, names, [])


def describe(
    folder: str,
    sweep: SweepConfig,
    scale: ScaleConfig,
    scale_name: str,
    rows: Sequence[Row],
    jobs: Sequence[Job],
) -> None:
    """Keeps in the sweep's folder what tables need to know of it: sweep.json."""
    content = {
        "title": sweep.title,
        "scale": scale_name,
        "divisors": vars(scale),
        "tasks": list(sweep.tasks),
        "seeds": list(sweep.seeds),
        "rows": [
            {
                "name": row.name,
                "model": vars(row.model),
                "keep_layers": row.keep_layers,
            }
            for row in rows
        ],
        "jobs": [job.name for job in jobs],
    }
    files.write_json(os.path.join(files.make_folder(folder), DESCRIPTION), content)
