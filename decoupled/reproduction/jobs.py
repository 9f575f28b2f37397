"""The jobs of a reproduction, seed by seed; each has one folder and one command.

  RUNS/models/ROW/seed_S                  pre-training
  RUNS/control/models/ROW/seed_S          the same for a single step
  RUNS/tasks/TASK/ROW/seed_S              fine-tuning, and in control/ that of controls
  RUNS/layer_drop/TASK/ROW/keep_K/seed_S  fine-tuning of the first K layers alone
  RUNS/analyses/NAME/seed_S               an analysis of all models of a seed
  RUNS/features                           tokenised task files, which runs share

`Job` explains how a complete job is recognised: by its arguments.
"""

import dataclasses
import os
import re
from collections.abc import Sequence

from decoupled.configs import ReproductionRoot, SweepConfig
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary
from decoupled.reproduction.data import ENOUGH_PIECES, Folders
from decoupled.reproduction.measured import CONTROL as CONTROL_ROW
from decoupled.sweeps.jobs import (
    FINETUNING,
    PRETRAINING,
    Job,
    Row,
    model_bindings,
    read_model,
)

CONTROL, LAYER_DROP, ANALYSES = "control", "layer_drop", "analyses"
# The task of fine-tuning without the last layers.
DROPPED_TASK = "udpos"
# Flags of analyses that name what they read, besides models.
_PATH = re.compile(r"--(sentences|records_dir|corpus_dir|data_dir)=")
# From this size on all rows are run.
ALL_ROWS = 4
_STEPS = re.compile(r"(ScheduleConfig\.(?:train|warmup)_steps) = (\d+)")
# These override earlier settings of the same names.
_ONE_STEP = ("ScheduleConfig.train_steps = 1", "ScheduleConfig.warmup_steps = 0")


def times_steps(size: float) -> float:
    """The factor for the steps of pre-training.

    Raises:
      UserError: `size` is not above 0.
    """
    if size <= 0:
        raise UserError(f"--size: {size} must be above 0")
    return size / ALL_ROWS if size >= ALL_ROWS else size


def sized(root: ReproductionRoot, size: float) -> ReproductionRoot:
    """The settings with the rows and the steps of a size.

    Below 4 only the first rows are run, with `size` times the steps. From 4 on all rows
    are run, with `size` / 4 times the steps.

    Raises:
      UserError: `size` is not above 0, or the settings do not have the steps.
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
    return dataclasses.replace(root, sweep=sweep)


def _multiplied(param, times):
    found = _STEPS.fullmatch(param)
    if not found:
        return param
    return f"{found[1]} = {max(1, round(int(found[2]) * times))}"


def train_steps(sweep: SweepConfig) -> int:
    """Steps of pre-training."""
    found = (_STEPS.fullmatch(param) for param in sweep.pretraining)
    return next(int(one[2]) for one in found if one and "train" in one[1])


def read_rows(names: Sequence[str], sweep: SweepConfig, pieces: int) -> list[Row]:
    """The models by the names of their rows, from models/mini_ROW.gin.

    Args:
      sweep: has the number of layers that fine-tuning keeps. pieces: of the vocabulary.

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
      root: the settings. folders: of the data, which must exist, and of the jobs.
      activation_dtype: of pre-training, as in `MeshConfig`.
    """

    def __init__(self, root: ReproductionRoot, folders: Folders, activation_dtype: str):
        self._sweep, self._study = root.sweep, root.study
        self._folders, self._dtype = folders, activation_dtype
        self.pieces = Vocabulary(folders.vocabulary).size
        self.rows = read_rows(self._sweep.rows, self._sweep, self.pieces)
        controls = self._study.control_rows
        self.control_rows = [row for row in self.rows if row.name in controls]
        self.tasks = {
            task: folder
            for task, folder in folders.tasks().items()
            if task in self._sweep.tasks
        }
        self._analyses = analyses(folders, self.pieces)

    def pretraining(self, row: Row, seed: int, control: bool = False) -> Job:
        """Pre-training of a row, or of its control, which trains for a single step."""
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
        reads = (self._folders.records, self._folders.vocabulary)
        return Job(PRETRAINING, name, folder, arguments, (), reads)

    def finetuning(self, model: Job, row: Row, task: str, keep: int = 0) -> Job:
        """Fine-tuning of a pre-trained model.

        Args:
          keep: the number of layers, for the study of dropped layers; 0 for the row's.
        """
        *control, _, name, seed = model.name.split("/")
        kept = [f"keep_{keep}"] if keep else []
        kind = LAYER_DROP if keep else "tasks"
        name = "/".join([*control, kind, task, name, *kept, seed])
        folder = os.path.join(self._folders.runs, name)
        params = [
            *self._sweep.finetuning,
            f"FinetuningConfig.keep_layers = {keep or row.keep_layers}",
            f"TrainingConfig.seed = {seed.removeprefix('seed_')}",
        ]
        gin_file = self._sweep.task_files.get(task, self._sweep.task_files.get("*", ""))
        secondary = keep or task in self._study.secondary_tasks
        arguments = (
            f"--task={task}",
            *([f"--gin_file={gin_file}"] if gin_file else []),
            *(f"--gin_param={param}" for param in params),
            f"--data_dir={self.tasks[task]}",
            f"--init_checkpoint={model.folder}",
            f"--model_dir={folder}",
            f"--feature_dir={os.path.join(self._folders.runs, 'features')}",
            f"--num_runs={1 if secondary else self._sweep.finetuning_runs}",
        )
        reads = (model.folder,)
        return Job(FINETUNING, name, folder, arguments, (model.name,), reads)

    def layer_drops(self, model: Job, row: Row) -> list[Job]:
        """Fine-tuning without the last layers, for the rows of that study."""
        layers = row.model.num_layers
        if DROPPED_TASK not in self.tasks or row.name not in self._study.dropped_rows:
            return []
        fewest = max(1, layers - self._study.most_dropped)
        return [
            self.finetuning(model, row, DROPPED_TASK, keep)
            for keep in range(fewest, layers)
        ]

    def analyses(self, models: Sequence[Job], seed: int) -> list[Job]:
        """Each analysis of all models of a seed, including the controls."""
        jobs = []
        for analysis, (command, *arguments) in self._analyses.items():
            name = f"{ANALYSES}/{analysis}/seed_{seed}"
            folder = os.path.join(self._folders.runs, name)
            given = (
                command,
                *(f"--model_dir={model.folder}" for model in models),
                *arguments,
                f"--output_dir={folder}",
            )
            needs = tuple(model.name for model in models)
            paths = [one.partition("=")[2] for one in arguments if _PATH.match(one)]
            reads = (*(model.folder for model in models), *paths)
            jobs.append(Job("analyze", name, folder, given, needs, reads))
        return jobs

    def of_seed(self, seed: int) -> list[Job]:
        """All jobs of a seed; each comes after the jobs that it needs."""
        trained = [(row, self.pretraining(row, seed)) for row in self.rows]
        controls = [
            (row, self.pretraining(row, seed, True)) for row in self.control_rows
        ]
        models = [model for _, model in trained + controls]
        jobs = list(models)
        for row, model in trained + controls:
            jobs += [self.finetuning(model, row, task) for task in self.tasks]
        for row, model in trained:
            jobs += self.layer_drops(model, row)
        return jobs + self.analyses(models, seed)


def seed_of(name: str) -> int:
    """The seed in the name of a job, which ends in seed_S."""
    return int(name.rpartition("seed_")[2])


def row_of_model(name: str) -> str:
    """ROW or "control:ROW" from the name of a pre-training; "" for other jobs."""
    *control, kind, row, _ = name.split("/")
    if kind != "models":
        return ""
    return CONTROL_ROW * (control == [CONTROL]) + row


def analyses(folders: Folders, pieces: int) -> dict[str, tuple[str, ...]]:
    """Name of the folder -> the analysis and its flags, if its data exist.

    Args:
      pieces: of the vocabulary.
    """
    masking = "--gin_file=runs/reproduce_masking.gin"
    pairs = {
        "neighbours_dev": (
            "neighbours",
            "--gin_file=runs/reproduce_neighbours_dev.gin",
            f"--sentences={folders.sentences('dev')}",
        ),
        "neighbours": (
            "neighbours",
            "--gin_file=runs/reproduce_neighbours.gin",
            f"--sentences={folders.sentences('test')}",
        ),
    }
    found = dict(pairs if folders.has_pairs else {})
    found["masked_lm"] = ("masked_lm", masking, f"--records_dir={folders.records}")
    if folders.is_parallel and folders.has_pairs:
        found["word_translation"] = (
            "word_translation",
            f"--corpus_dir={folders.corpus}",
        )
    if folders.treebank():
        found["probing"] = (
            "probing",
            "--gin_file=runs/reproduce_probing.gin",
            "--variants=mix",
            f"--data_dir={folders.made('edges')}",
        )
    found["geometry"] = ("geometry", masking, f"--corpus_dir={folders.corpus}")
    words = folders.given("word_similarity")
    # With fewer pieces most words would be means of fragments.
    if words and pieces >= ENOUGH_PIECES:
        found["word_similarity"] = ("word_similarity", f"--data_dir={words}")
    return found
