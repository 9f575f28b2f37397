"""The jobs of a reproduction: one folder and one command each, seed by seed.

  RUNS/models/ROW/seed_S             pre-training
  RUNS/control/models/ROW/seed_S     the same for a single step

`Job` tells how a job is known to be complete: by its arguments.
"""

import dataclasses
import os
import re
from collections.abc import Sequence

from decoupled.configs import ReproductionRoot, SweepConfig
from decoupled.core.errors import UserError
from decoupled.reproduction.data import Folders
from decoupled.sweeps.jobs import PRETRAINING, Job
from decoupled.sweeps.rows import Row, model_bindings, read_model

CONTROL = "control"
# All rows are run from this size on.
ALL_ROWS = 4
_STEPS = re.compile(r"(ScheduleConfig\.(?:train|warmup)_steps) = (\d+)")
# The last of equal settings wins.
_ONE_STEP = ("ScheduleConfig.train_steps = 1", "ScheduleConfig.warmup_steps = 0")


def times_steps(size: float) -> float:
    """What the steps of pre-training are multiplied by.

    Raises:
      UserError: `size` is not above 0.
    """
    if size <= 0:
        raise UserError(f"--size: {size} must be above 0")
    return size / ALL_ROWS if size >= ALL_ROWS else size


def sized(root: ReproductionRoot, size: float) -> ReproductionRoot:
    """The settings with the rows and the steps of a size.

    Below 4 there are the first rows only, trained for `size` times the steps; from 4 on
    all rows, trained for `size` / 4 times the steps.

    Raises:
      UserError: `size` is not above 0, or the steps are not in the settings.
    """
    sweep, times = root.sweep, times_steps(size)
    if size < ALL_ROWS:
        rows = tuple(row for row in sweep.rows if row in root.study.first_rows)
        keep = {row: kept for row, kept in sweep.keep_layers.items() if row in rows}
        sweep = dataclasses.replace(sweep, rows=rows, keep_layers=keep)
    if times != 1:
        if sum(bool(_STEPS.fullmatch(param)) for param in sweep.pretraining) < 2:
            raise UserError(
                "--size: the settings have no ScheduleConfig.train_steps and "
                "warmup_steps that could be multiplied"
            )
        params = tuple(_multiplied(param, times) for param in sweep.pretraining)
        sweep = dataclasses.replace(sweep, pretraining=params)
    return root._replace(sweep=sweep)


def _multiplied(param, times):
    found = _STEPS.fullmatch(param)
    if not found:
        return param
    return f"{found[1]} = {max(1, round(int(found[2]) * times))}"


def read_rows(names: Sequence[str], sweep: SweepConfig, pieces: int) -> list[Row]:
    """The models by the names of their rows, from models/mini_ROW.gin.

    Args:
      sweep: says how many layers fine-tuning keeps. pieces: of the vocabulary.

    Raises:
      UserError: a row has no gin file.
    """
    return [
        Row(
            name,
            dataclasses.replace(read_model(f"mini_{name}"), vocab_size=pieces),
            sweep.keep_layers.get(name, 0),
        )
        for name in names
    ]


class JobMaker:
    """Makes the jobs of one seed.

    Args:
      root: the settings. folders: of the data and of the jobs. pieces: of the
        vocabulary. activation_dtype: of pre-training, as `MeshConfig` has it.
    """

    def __init__(
        self, root: ReproductionRoot, folders: Folders, pieces: int, dtype: str
    ):
        self._sweep, self._study = root
        self._folders, self._dtype = folders, dtype
        self.rows = read_rows(self._sweep.rows, self._sweep, pieces)
        controls = self._study.control_rows
        self.control_rows = [row for row in self.rows if row.name in controls]

    def pretraining(self, row: Row, seed: int, control: bool = False) -> Job:
        """Pre-training of a row, or of its control: for a single step."""
        name = f"{CONTROL}/" * control + f"models/{row.name}/seed_{seed}"
        folder = os.path.join(self._folders.runs, name)
        params = [
            *model_bindings(row.model),
            *self._sweep.pretraining,
            *(_ONE_STEP if control else ()),
            f"OptimizerConfig.learning_rate = {self._study.learning_rates[row.name]!r}",
            f"MeshConfig.activation_dtype = {self._dtype!r}",
            f"TrainingConfig.seed = {seed}",
        ]
        arguments = (
            f"--gin_file=models/mini_{row.name}.gin",
            *(f"--gin_param={param}" for param in params),
            f"--records_dir={self._folders.records}",
            f"--vocabulary={self._folders.vocabulary}",
            f"--model_dir={folder}",
        )
        return Job(PRETRAINING, name, folder, arguments, ())


def make_jobs(maker: JobMaker, seeds: Sequence[int]) -> list[Job]:
    """All jobs, every one after those that it needs, all of the first seed first."""
    jobs = []
    for seed in seeds:
        jobs += [maker.pretraining(row, seed) for row in maker.rows]
        jobs += [maker.pretraining(row, seed, True) for row in maker.control_rows]
    return jobs
