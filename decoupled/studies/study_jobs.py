"""The jobs of a reproduction: those of a sweep, with controls and analyses.

`decoupled.studies.jobs` lists their folders.
"""

import dataclasses
import math
import re
from collections.abc import Collection, Sequence

from decoupled.configs import (
    ReproductionRoot,
    ScaleConfig,
    ScheduleConfig,
)
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import open_vocabulary
from decoupled.studies.data import ENOUGH_PIECES, Folders
from decoupled.studies.jobs import (
    CONTROL,
    RATES,
    Inputs,
    Job,
    JobMaker,
    make_rows,
    training_of_row,
)
from decoupled.studies.statistics import CONTROL as CONTROL_ROW

# The task of fine-tuning without the last layers.
DROPPED_TASK = "udpos"
# From this size on all rows are run.
ALL_ROWS = 4
_STEPS = re.compile(r"\s*(ScheduleConfig\.(?:train|warmup|decay)_steps)\s*=\s*(\d+)\s*")
# These override earlier settings of the same names.
_ONE_STEP = ("ScheduleConfig.train_steps = 1", "ScheduleConfig.warmup_steps = 0")


def step_factor(size: float) -> float:
    """The factor for the steps of pre-training."""
    if not 0 < size < math.inf:
        raise UserError(f"--size: {size} is no finite number above 0")
    return size / ALL_ROWS if size >= ALL_ROWS else size


def sized(root: ReproductionRoot, size: float) -> ReproductionRoot:
    """The settings with the rows and the steps of a size.

    Below 4 only the first rows and seeds are run, with `size` times the steps. From 4
    on all are run, with `size` / 4 times the steps.
    """
    sweep, factor = root.sweep, step_factor(size)
    if size < ALL_ROWS:
        rows = tuple(row for row in sweep.rows if row in root.study.first_rows)
        layers = {row: n for row, n in sweep.keep_layers.items() if row in rows}
        seeds = sweep.seeds[: root.study.first_seeds or None]
        sweep = dataclasses.replace(sweep, rows=rows, keep_layers=layers, seeds=seeds)
    if factor != 1:
        if sum(bool(_STEPS.fullmatch(param)) for param in sweep.pretraining) < 2:
            raise UserError(
                "--size: the settings have no ScheduleConfig.train_steps and "
                "warmup_steps that could be multiplied"
            )
        params = tuple(_multiplied(param, factor) for param in sweep.pretraining)
        models = {
            row: (name, *(_multiplied(param, factor) for param in of_row))
            for row, (name, *of_row) in sweep.models.items()
        }
        sweep = dataclasses.replace(sweep, pretraining=params, models=models)
        settings = {
            row: tuple(_multiplied(param, factor) for param in of_row)
            for row, of_row in root.study.settings.items()
        }
        root = dataclasses.replace(
            root, study=dataclasses.replace(root.study, settings=settings)
        )
    return dataclasses.replace(root, sweep=sweep)


def _multiplied(param, factor):
    match = _STEPS.fullmatch(param)
    if not match or match[2] == "0":
        return param
    return f"{match[1]} = {max(1, round(int(match[2]) * factor))}"


def train_steps(params: Sequence[str]) -> int:
    """Steps of pre-training with these settings, of which the last wins."""
    matches = filter(None, map(_STEPS.fullmatch, params))
    steps = [int(match[2]) for match in matches if "train" in match[1]]
    return steps[-1] if steps else ScheduleConfig().train_steps


class StudyJobs:
    """Makes the jobs of a reproduction.

    Args:
      measured_rows: rows that need no jobs, because an earlier study has them.

    Attributes:
      rows: of the study. tried_rows: further rows, which only --rates trains. tasks:
        task -> the parent of its folder. pieces: of the vocabulary.

    Raises:
      UserError: as `make_rows`, or a row goes on from one that has no job.
    """

    def __init__(
        self,
        root: ReproductionRoot,
        folders: Folders,
        activation_dtype: str,
        measured_rows: Collection[str] = (),
    ):
        self.sweep, self.study = root.sweep, root.study
        self.folders, self.activation_dtype = folders, activation_dtype
        self.pieces = open_vocabulary(folders.vocabulary).size
        self.rows, self.tried_rows = (
            make_rows(self.sweep, names, ScaleConfig(), self.pieces)
            for names in (self.sweep.rows, self.study.tried_rows)
        )
        self._trained_rows = [row for row in self.rows if row.name not in measured_rows]
        for row in self._trained_rows:
            source, *_ = self.study.continued.get(row.name, [""])
            if source in measured_rows:
                raise UserError(
                    f"--measured: {row.name} goes on from the checkpoint of {source}, "
                    "which has to be trained here"
                )
        self.tasks = {
            task: folder
            for task, folder in folders.tasks().items()
            if task in self.sweep.tasks
        }
        inputs = Inputs(folders.records, folders.vocabulary, self.tasks)
        self._maker = JobMaker(self.sweep, inputs, folders.runs)
        self._analyses = analyses(folders, self.pieces)

    def all(self) -> list[Job]:
        """All jobs, seed by seed."""
        return [job for seed in self.sweep.seeds for job in self.of_seed(seed)]

    def of_seed(self, seed: int) -> list[Job]:
        """All jobs of a seed; each comes after the jobs that it needs."""
        jobs, models = [], {}
        for row in self._trained_rows:
            rate = self.study.learning_rates[row.name]
            source = None
            if row.name in self.study.continued:
                name, *changes = self.study.continued[row.name]
                source = models[name]
                for change in changes:
                    source = self._maker.conversion(source, change)
                    if source not in jobs:
                        jobs.append(source)
            models[row.name] = self._pretraining(row, seed, rate, source=source)
            jobs.append(models[row.name])
        pairs = [(row, models[row.name]) for row in self._trained_rows]
        for row in self._trained_rows:
            if row.name in self.study.control_rows:
                rate = self.study.learning_rates[row.name]
                control = self._pretraining(row, seed, rate, _ONE_STEP, CONTROL)
                pairs.append((row, control))
                jobs.append(control)
        for row, model in pairs:
            for task in self.tasks:
                jobs.append(self._maker.finetuning(model, row, task))
        for row, model in pairs[: len(self._trained_rows)]:
            if row.name in self.study.dropped_rows and DROPPED_TASK in self.tasks:
                layers = row.model.num_layers
                for count in range(max(1, layers - self.study.most_dropped), layers):
                    job = self._maker.finetuning(model, row, DROPPED_TASK, 1, count)
                    jobs.append(job)
        for name, words in self._analyses.items() if pairs else ():
            job = self._maker.analysis(name, words, [m for _, m in pairs], seed)
            jobs.append(job)
        return jobs

    def rates(self) -> list[Job]:
        """Every row that begins anew with each rate that is tried, and fewer steps."""
        factor = self.study.tried_steps
        params = [_multiplied(p, factor) for p in self.sweep.pretraining]
        steps = [param for param in params if _STEPS.fullmatch(param)]
        return [
            self._pretraining(
                row, self.study.tried_seed, rate, steps, f"{RATES}/{rate:g}"
            )
            for rate in self.study.tried_rates
            for row in [*self.rows, *self.tried_rows]
            if row.name not in self.study.continued
        ]

    def training(self) -> dict[str, list[str]]:
        """The settings of each row's pre-training, but for its sizes and its seed."""
        return {
            row.name: [
                *self.sweep.pretraining,
                *training_of_row(self.sweep, row.name),
                *self._settings(row, rate),
            ]
            for row in self.rows
            for rate in [self.study.learning_rates[row.name]]
        }

    def _settings(self, row, rate, overrides=()):
        return (
            *self.study.settings.get(row.name, ()),
            *overrides,
            f"OptimizerConfig.learning_rate = {rate!r}",
            f"MeshConfig.activation_dtype = {self.activation_dtype!r}",
        )

    def _pretraining(self, row, seed, rate, overrides=(), room="", source=None):
        """A job of pre-training; `overrides` come after all other settings."""
        params = self._settings(row, rate, overrides)
        return self._maker.pretraining(row, seed, params, room, source)


def row_of_model(name: str) -> str:
    """ROW or "control:ROW" from the name of a pre-training; "" for other jobs."""
    *room, kind, row, _ = name.split("/")
    if kind != "models" or room not in ([], [CONTROL]):
        return ""
    return CONTROL_ROW * bool(room) + row


def analyses(folders: Folders, pieces: int) -> dict[str, Sequence[str]]:
    """Name of the folder -> the analysis and its flags, if its data exist."""
    masking = "--gin_file=runs/reproduce_masking.gin"
    commands = {}
    if folders.has_pairs:
        for name, gin_file, split in (
            ("neighbours_dev", "reproduce_neighbours_dev", "dev"),
            ("neighbours", "reproduce_neighbours", "test"),
        ):
            commands[name] = (
                "neighbours",
                f"--gin_file=runs/{gin_file}.gin",
                f"--sentences={folders.sentences(split)}",
            )
    commands["masked_lm"] = ("masked_lm", masking, f"--records_dir={folders.records}")
    if folders.treebank():
        commands["probing"] = (
            "probing",
            "--gin_file=runs/reproduce_probing.gin",
            "--variants=mix",
            f"--data_dir={folders.data_path('edges')}",
        )
    words = folders.user_folder("word_similarity")
    # With fewer pieces most words would be means of fragments.
    if words and pieces >= ENOUGH_PIECES:
        data = f"--data_dir={words}"
        commands["word_similarity"] = ("word_similarity", data, "--whole_words")
    return commands
