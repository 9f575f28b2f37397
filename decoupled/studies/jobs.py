"""The models of a sweep and its jobs: one folder and one command each.

  SWEEP_DIR/models/ROW/seed_S          pre-training
  SWEEP_DIR/tasks/TASK/ROW/seed_S      fine-tuning, needs the model of its row and seed
  SWEEP_DIR/features                   tokenised task files, which runs share
and of a reproduction, which is a sweep with controls and analyses:
  control/models, control/tasks        the same after a single step of pre-training
  rates/RATE/models/ROW/seed_S         pre-training with another learning rate
  converted/CHANGES/ROW/seed_S         a model with changed embeddings, in model/
  layer_drop/TASK/ROW/keep_K/seed_S    fine-tuning of the first K layers alone
  analyses/NAME/seed_S                 an analysis of all models of a seed

job.json in a folder records the command that succeeded there and the contents of the
files that it read; job.log has its output. A job is complete if both are as before and
the file of its results is there.
SWEEP_DIR/sweep.json describes the whole sweep. A job comes after the jobs that it
needs.

Small models are made from the paper's models by one rule: a scale divides the widths by
one number and the depths by another, the same for all models.
"""

import dataclasses
import itertools
import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from decoupled import configs
from decoupled.configs import (
    FinetuneConfig,
    ModelConfig,
    PretrainConfig,
    ScaleConfig,
    SweepConfig,
    saved_model,
)
from decoupled.configs.removed import REMOVED, had_effect
from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.core.made_from import MADE_FROM, RESULTS, changes, hash_files
from decoupled.launch import gin_files
from decoupled.runs import run_folder
from decoupled.tasks.presets import SPLITS, TASKS

# H = heads * head size, so the product of their divisors is the divisor of widths.
_WIDTHS = (
    "input_embedding_size",
    "output_embedding_size",
    "hidden_size",
    "intermediate_size",
)
DESCRIPTION = "sweep.json"
RECORD = "job.json"
LOG = "job.log"
PRETRAINING = "pretrain"
FINETUNING = "finetune"
CONVERT = "convert"
# The classes of their settings; `convert` has none, and analyses have their own.
_ROOTS = {PRETRAINING: PretrainConfig, FINETUNING: FinetuneConfig}
# Rooms of a reproduction's jobs.
CONTROL, LAYER_DROP, ANALYSES = "control", "layer_drop", "analyses"
RATES, CONVERTED = "rates", "converted"
# `convert` writes a new folder, beside the job's log.
_MODEL = "model"
# The file that a job leaves in its folder; that of an analysis has the analysis's name.
RESULT_FILES = {
    PRETRAINING: "eval.json",
    FINETUNING: RESULTS,
    CONVERT: f"{_MODEL}/conversion.json",
}
# Flags of analyses that name what they read, besides models.
_PATH = re.compile(r"--(sentences|records_dir|corpus_dir|data_dir)=")
_MODEL_PREFIX = "ModelConfig."
_STEPS = "ScheduleConfig.train_steps"
_SEED = "TrainingConfig.seed"
# How a step is computed. A sweep may go on on other devices.
_LAYOUT = {
    "MeshConfig.mesh_shape",
    "MeshConfig.layout_rules",
    "MeshConfig.stack_mib",
    "MeshConfig.deterministic",
    "TrainingConfig.gradient_accumulation",
    "TrainingConfig.recompute_layers",
}


class Row(NamedTuple):
    """A model of a sweep.

    name: of its gin file. model: sizes. keep_layers: in fine-tuning; 0 means all.
    """

    name: str
    model: ModelConfig
    keep_layers: int

    @property
    def pretraining(self) -> int:
        """Parameters in pre-training, as counted in the graph."""
        from decoupled.model.parameters import pretraining_counts

        return sum(pretraining_counts(self.model).values())

    @property
    def finetuning(self) -> int:
        """Parameters in fine-tuning, as counted in the graph."""
        from decoupled.model.parameters import finetuning_counts

        return sum(finetuning_counts(self.model, self.keep_layers).values())


def make_rows(
    sweep: SweepConfig, names: Sequence[str], scale: ScaleConfig, pieces: int
) -> list[Row]:
    """The models of these names with their sizes at this scale.

    Raises:
      UserError: a row has no gin file, keeps more layers than it has, or has sizes that
        the scale cannot divide.
    """
    rows = []
    for name in names:
        layers = sweep.keep_layers.get(name, 0)
        paper = read_model(sweep, name)
        if layers > paper.num_layers:
            raise UserError(
                f"SweepConfig.keep_layers: {layers} of {name!r}, which has "
                f"{paper.num_layers} layers"
            )
        model = scaled_model(paper, scale, pieces)
        rows.append(Row(name, model, scaled_layers(layers, scale) if layers else 0))
    return rows


def read_model(sweep: SweepConfig, row: str) -> ModelConfig:
    """The paper's sizes of a row, from a gin file in models/ and settings."""
    settings = [s for s in _settings_of_row(sweep, row) if s.startswith(_MODEL_PREFIX)]
    return gin_files.configure(ModelConfig, [_model_file(sweep, row)], settings)


def training_of_row(sweep: SweepConfig, row: str) -> list[str]:
    """The settings of a row that are not of its model."""
    settings = _settings_of_row(sweep, row)
    return [each for each in settings if not each.startswith(_MODEL_PREFIX)]


def _model_file(sweep, row):
    return f"models/{sweep.models.get(row, [row])[0]}.gin"


def _settings_of_row(sweep, row):
    return sweep.models.get(row, [row])[1:]


def scaled_model(
    model: ModelConfig, scale: ScaleConfig, vocab_size: int
) -> ModelConfig:
    """The paper's model with divided sizes and the given number of pieces.

    Raises:
      UserError: a width is not divisible.
    """
    widths = {
        name: _divided(name, getattr(model, name), scale.width_divisor)
        for name in _WIDTHS
    }
    head_size = _divided("head_size", model.head_size, scale.head_size_divisor)
    return dataclasses.replace(
        model,
        **widths,
        vocab_size=vocab_size,
        head_size=head_size,
        num_heads=widths["hidden_size"] // head_size,
        num_layers=scaled_layers(model.num_layers, scale),
        # Sums over fewer inputs need larger terms to have the same variance.
        initializer_range=model.initializer_range * math.sqrt(scale.width_divisor),
    )


def scaled_layers(layers: int, scale: ScaleConfig) -> int:
    """The divided number of layers, rounded to the nearest (half up), at least 1."""
    return max(1, int(layers / scale.depth_divisor + 0.5))


def _divided(name, size, divisor):
    if size % divisor:
        raise UserError(
            f"ScaleConfig: {name} = {size} cannot be divided by {divisor}; choose "
            "divisors of every model's widths"
        )
    return size // divisor


def model_bindings(model: ModelConfig) -> list[str]:
    """Every field as a gin binding, e.g. "ModelConfig.hidden_size = 96"."""
    return [f"ModelConfig.{name} = {value!r}" for name, value in vars(model).items()]


_OFF_ARGUMENTS = {
    f"--gin_param={binding}"
    for binding, value in zip(
        model_bindings(ModelConfig()), vars(ModelConfig()).values(), strict=True
    )
    if not value
} | {
    f"--gin_param={owner}.{name} = {value!r}"
    for (owner, name), setting in REMOVED.items()
    for value in setting.without_effect
    if f"{owner}." == _MODEL_PREFIX
}


class Job(NamedTuple):
    """A run of a command.

    kind: the command. name: unique in the sweep. folder: that it writes. needs: names
    of the jobs before it. reads: files and folders, see `made_from.hash_files`.
    """

    kind: str
    name: str
    folder: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...]
    reads: tuple[str, ...] = ()

    @property
    def model_dir(self) -> str:
        """The folder of the model that the job leaves."""
        return (
            os.path.join(self.folder, _MODEL) if self.kind == CONVERT else self.folder
        )

    @property
    def result(self) -> str:
        """The file that the job leaves."""
        name = RESULT_FILES.get(self.kind) or f"{self.arguments[0]}.json"
        return os.path.join(self.folder, name)

    def is_complete(self, seen: dict[str, str] | None = None) -> bool:
        """Whether exactly this command succeeded in its folder, with these files."""
        words = self._saved_arguments()
        return (
            words is not None
            and _active_words(words) == _active_words(self.arguments)
            and not self.changes(seen)
        )

    def changes(self, seen: dict[str, str] | None = None) -> list[str]:
        """How the files differ from those that the recorded job read and left."""
        record = read_record(self.folder)
        saved_entry = (record or {}).get(MADE_FROM)
        # An earlier version did not record the files.
        differences = changes(saved_entry, self.made_from(seen)) if saved_entry else []
        if record is not None and not files.exists(self.result):
            differences.append(f"{self.result} is gone")
        return differences + self._changes_of_task(seen)

    def read_other_files(self, need: "Job", made_from: Mapping[str, Any]) -> bool:
        """Whether the recorded job read other files in the folder of `need` than those
        of `made_from`. Where that folder was moved, nobody can tell."""
        entry = (read_record(self.folder) or {}).get(MADE_FROM)
        saved_files = entry.get("files") if isinstance(entry, dict) else None
        if not isinstance(saved_files, dict):
            return False
        folder = f"{need.folder}/"
        old_hashes, new_hashes = (
            {name: of for name, of in hashes.items() if name.startswith(folder)}
            for hashes in (saved_files, made_from["files"])
        )
        return bool(old_hashes) and old_hashes != new_hashes

    def _changes_of_task(self, seen):
        if self.kind != FINETUNING or not files.exists(self.result):
            return []
        results = files.read_json(self.result)
        entry = results.get(MADE_FROM) if isinstance(results, dict) else {}
        if entry is None:
            return []
        if not isinstance(entry, dict) or not isinstance(entry.get("files"), dict):
            return changes(entry, {})
        data_dir = self.values("data_dir")[0]
        paths = [
            files.path_below(data_dir, name, self.result) for name in entry["files"]
        ]
        new_entry = {"files": hash_files(paths, data_dir, seen)}
        return changes({"files": entry["files"]}, new_entry)

    def values(self, flag: str) -> list[str]:
        """The values of a flag in the arguments."""
        start = f"--{flag}="
        words = [word for word in self.arguments if word.startswith(start)]
        return [word.removeprefix(start) for word in words]

    def made_from(self, seen: dict[str, str] | None = None) -> dict[str, Any]:
        """The contents of the files that the job reads, gin files among them.

        The package's gin files have names below its folder, wherever that is installed.
        Of the files of a task only the names: `_changes_of_task` compares the contents.
        """
        paths = gin_files.with_includes(self.values("gin_file"))
        hashes = hash_files(paths, gin_files.packaged_folder(), seen)
        hashes |= hash_files(self.reads, seen=seen)
        for parent, task in zip(
            self.values("data_dir"), self.values("task"), strict=False
        ):
            lines = sorted(
                f"{split} {language} {path}"
                for split in SPLITS
                for language, path in TASKS[task].find_files(parent, split).items()
            )
            text = "\n".join(lines)
            hashes[f"the list of {task} files in {parent}"] = files.fingerprint(text)
        return {"files": hashes}

    def conflicts(self) -> list[str]:
        """Settings of training that differ from those of the folder's checkpoints.

        The commands would go on with them: they do not bind a folder to settings that
        may change at a resume, such as the learning rate of pre-training. More steps
        continue a run here, too.
        """
        if self.kind not in _ROOTS:
            return []
        folders, names = [self.folder], run_folder.RESUMABLE
        if self.kind == FINETUNING:
            # A grid has several runs, each with a seed of its own.
            pattern = run_folder.RUN.format("*", "*")
            folders += gfile.glob(f"{self.folder}/", pattern)
            names = ("training", "mesh")
        entries = [
            entry
            for folder in folders
            for entry in run_folder.trained_settings(folder, _saved_step(folder))
        ]
        if not entries:
            return []
        settings = run_folder.resumable_settings(self.config(), names)
        if self.kind == FINETUNING:
            del settings[_SEED]
        optimizer = configs.OptimizerConfig.gin_name
        return list(
            dict.fromkeys(
                f"{name} = {value!r}"
                for entry in entries
                for name, value in entry["settings"].items()
                if (
                    name in settings.keys() - _LAYOUT
                    and value != settings[name]
                    and not (name == _STEPS and value < settings[name])
                )
                # An optimizer that is gone.
                or had_effect(optimizer, name.removeprefix(f"{optimizer}."), value)
            )
        )

    def changes_result(self) -> bool:
        """Whether the job, if it runs, leaves another result than is in its folder."""
        if self.kind != PRETRAINING:
            return not self.has_settings()
        return _saved_step(self.folder) < self.config().schedule.train_steps

    def config(self) -> Any:
        """The settings of its command; None if these are flags alone."""
        root = _ROOTS.get(self.kind) or configs.ANALYSES.get(self.arguments[0])
        if root is None:
            return None
        task, tasks = None, ()
        if self.kind == FINETUNING:
            [task], tasks = self.values("task"), TASKS
        return gin_files.configure(
            root,
            self.values("gin_file"),
            self.values("gin_param"),
            task=task,
            tasks=tasks,
        )

    def has_settings(self) -> bool:
        """Whether a command with these settings succeeded here, with any paths."""
        words = self._saved_arguments()
        return words is not None and _settings(words) == _settings(self.arguments)

    def move_outdated(self) -> str | None:
        """Renames the folder, if any, to FOLDER.replaced.N; returns the new name."""
        if not files.exists(self.folder):
            return None
        numbers = itertools.count(1)
        names = (f"{self.folder}.replaced.{number}" for number in numbers)
        new_name = next(name for name in names if not files.exists(name))
        gfile.rename(self.folder, new_name)
        return new_name

    def _saved_arguments(self):
        """None if no job is recorded here."""
        record = read_record(self.folder)
        if record is None:
            return None
        arguments = record.get("arguments")
        return arguments if isinstance(arguments, list) else []

    def record(self, seconds: float | None, made_from: dict[str, Any]) -> None:
        """Marks the job as complete; `made_from` is what it had when it began, and
        `seconds` None if nobody knows how long it took."""
        content = {
            "name": self.name,
            "command": self.kind,
            "arguments": list(self.arguments),
            "seconds": seconds and round(seconds, 1),
            "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            MADE_FROM: made_from,
        }
        files.write_json(os.path.join(self.folder, RECORD), content)


def _saved_step(folder):
    """The step of the newest checkpoint in a folder; 0 if there is none."""
    if not files.exists(folder):
        return 0
    # Loads TensorFlow.
    from decoupled.training.checkpoints import checkpoint_step, latest_complete

    return checkpoint_step(latest_complete(folder))


def check_jobs(jobs: Sequence[Job]) -> None:
    """Checks the settings of all jobs before the first one begins."""
    by_name, first_jobs = {job.name: job for job in jobs}, {}
    for job in jobs:
        # The other seeds have the same settings.
        first_jobs.setdefault(job.name.rpartition("/")[0], job)
    for job in first_jobs.values():
        try:
            config = job.config()
            if job.values("branch_from"):
                trunk = by_name[job.needs[0]]
                while trunk.kind == CONVERT:
                    trunk = by_name[trunk.needs[0]]
                steps = trunk.config().schedule.train_steps
                if steps > config.schedule.decay_begins:
                    raise UserError(
                        f"it goes on from step {steps} of {trunk.name}, but its decay "
                        f"would begin at step {config.schedule.decay_begins}; give "
                        "more train_steps or fewer ScheduleConfig.decay_steps"
                    )
        except UserError as error:
            # The user has written the setting in a gin file, and not this flag.
            problem = str(error).removeprefix("--gin_param=")
            raise UserError(f"{job.name}: {problem}") from error


def complete_jobs(jobs: Sequence[Job]) -> list[Job]:
    """The complete ones of some jobs, which come after those that they need.

    A file that several of them read is read once.
    """
    seen: dict[str, str] = {}
    incomplete: set[str] = set()
    for job in jobs:
        if incomplete.intersection(job.needs) or not job.is_complete(seen):
            incomplete.add(job.name)
    return [job for job in jobs if job.name not in incomplete]


def record_fingerprint(folder: str) -> str | None:
    """Of job.json, which has the moment when the job ended; None if there is none."""
    record = read_record(folder)
    if record is None:
        return None
    return files.fingerprint(json.dumps(record, sort_keys=True))


def read_record(folder: str) -> dict[str, Any] | None:
    """What is recorded of the job that succeeded in a folder; None if none did, {} if
    the record is damaged."""
    path = os.path.join(folder, RECORD)
    if not files.exists(path):
        return None
    content = files.read_json(path)
    return content if isinstance(content, dict) else {}


def _settings(arguments):
    return {word for word in _active_words(arguments) if word.startswith("--gin_")}


def _active_words(arguments):
    """The arguments but sizes that are off, which another version may not know."""
    return [word for word in arguments if word not in _OFF_ARGUMENTS]


class Inputs(NamedTuple):
    """Folders and files that jobs read; data_dirs: task -> the parent of its folder."""

    records_dir: str
    vocabulary: str
    data_dirs: Mapping[str, str]


class JobMaker:
    """Makes the jobs of a sweep or a reproduction: folders and argument lists."""

    def __init__(self, sweep: SweepConfig, inputs: Inputs, folder: str):
        self._sweep, self._inputs, self._folder = sweep, inputs, folder

    def pretraining(
        self,
        row: Row,
        seed: int,
        params: Sequence[str] = (),
        room: str = "",
        source: Job | None = None,
    ) -> Job:
        """Pre-training of a row; `params` override the settings of the sweep.

        room: CONTROL, or RATES with the rate. source: the job whose run goes on here.
        """
        name = os.path.join(room, f"models/{row.name}/seed_{seed}")
        folder = os.path.join(self._folder, name)
        inputs = self._inputs
        params = (
            *model_bindings(row.model),
            *self._sweep.pretraining,
            *training_of_row(self._sweep, row.name),
            *params,
            f"TrainingConfig.seed = {seed}",
        )
        arguments = (
            f"--gin_file={_model_file(self._sweep, row.name)}",
            *(f"--gin_param={param}" for param in params),
            f"--records_dir={inputs.records_dir}",
            f"--vocabulary={inputs.vocabulary}",
            f"--model_dir={folder}",
            *([f"--branch_from={source.model_dir}"] if source else []),
        )
        reads = (inputs.records_dir, inputs.vocabulary)
        if not source:
            return Job(PRETRAINING, name, folder, arguments, (), reads)
        reads = (*reads, source.model_dir)
        return Job(PRETRAINING, name, folder, arguments, (source.name,), reads)

    def conversion(self, model: Job, change: str) -> Job:
        """A model whose embeddings are changed by `decoupled convert embeddings`."""
        *_, room, row, seed = model.name.split("/")
        changes = [room, change] if model.kind == CONVERT else [change]
        name = f"{CONVERTED}/{'_'.join(changes)}/{row}/{seed}"
        folder = os.path.join(self._folder, name)
        arguments = (
            "embeddings",
            f"--change={change}",
            f"--model_dir={model.model_dir}",
            f"--new_model_dir={os.path.join(folder, _MODEL)}",
        )
        reads = (model.model_dir,)
        return Job(CONVERT, name, folder, arguments, (model.name,), reads)

    def finetuning(
        self, model: Job, row: Row, task: str, runs: int = 0, layers: int = 0
    ) -> Job:
        """Fine-tuning of a pre-trained model, or of its first `layers` layers alone.

        `runs` and `layers` are 0 for the sweep's and the row's.
        """
        *control, _, _, seed = model.name.split("/")
        parts = [f"keep_{layers}"] if layers else []
        room = LAYER_DROP if layers else "tasks"
        name = "/".join([*control, room, task, row.name, *parts, seed])
        folder = os.path.join(self._folder, name)
        params = (
            *self._sweep.finetuning,
            f"FinetuningConfig.keep_layers = {layers or row.keep_layers}",
            f"TrainingConfig.seed = {seed_of(model.name)}",
        )
        gin_file = _gin_file(self._sweep, task)
        arguments = (
            f"--task={task}",
            *([f"--gin_file={gin_file}"] if gin_file else []),
            *(f"--gin_param={param}" for param in params),
            f"--data_dir={self._inputs.data_dirs[task]}",
            f"--init_checkpoint={model.folder}",
            f"--model_dir={folder}",
            f"--feature_dir={os.path.join(self._folder, 'features')}",
            f"--num_runs={runs or self._sweep.finetuning_runs}",
        )
        return Job(FINETUNING, name, folder, arguments, (model.name,), (model.folder,))

    def analysis(
        self, name: str, words: Sequence[str], models: Sequence[Job], seed: int
    ) -> Job:
        """An analysis of all models of a seed; `words` are its name and its flags."""
        name = f"{ANALYSES}/{name}/seed_{seed}"
        folder = os.path.join(self._folder, name)
        analysis, *flags = words
        arguments = (
            analysis,
            *(f"--model_dir={model.folder}" for model in models),
            *flags,
            f"--output_dir={folder}",
        )
        needs = tuple(model.name for model in models)
        paths = [flag.partition("=")[2] for flag in flags if _PATH.match(flag)]
        reads = (*(model.folder for model in models), *paths)
        return Job("analyze", name, folder, arguments, needs, reads)


def seed_of(name: str) -> int:
    """The seed in the name of a job, which ends in seed_S."""
    return int(name.rpartition("seed_")[2])


def make_jobs(
    sweep: SweepConfig, rows: Sequence[Row], inputs: Inputs, sweep_dir: str
) -> list[Job]:
    """All jobs, each after the jobs that it needs."""
    # The first seed of all rows comes first, so that an interrupted sweep has results.
    maker, jobs = JobMaker(sweep, inputs, sweep_dir), []
    for seed in sweep.seeds:
        for row in rows:
            model = maker.pretraining(row, seed)
            jobs.append(model)
            jobs += [maker.finetuning(model, row, task) for task in sweep.tasks]
    return jobs


def _gin_file(sweep, task):
    pattern = sweep.task_files.get(task, sweep.task_files.get("*", ""))
    return pattern.replace("{task}", task)


def describe_row(row: Row) -> dict[str, Any]:
    """A row for JSON; `read_row` reads it."""
    return row._asdict() | {"model": vars(row.model)}


def read_row(entry: Mapping[str, Any]) -> Row:
    """A row of sweep.json or study.json; KeyError or TypeError if it is none."""
    if type(entry["keep_layers"]) is not int:
        raise TypeError(f"keep_layers of {entry['name']} is no number")
    return Row(entry["name"], saved_model(entry["model"]), entry["keep_layers"])


def finetuning_settings(sweep: SweepConfig) -> list[str]:
    """What the fine-tunings of a sweep have in common."""
    runs = f"SweepConfig.finetuning_runs = {sweep.finetuning_runs}"
    return [*sweep.finetuning, runs]


def describe(
    folder: str,
    sweep: SweepConfig,
    scale: ScaleConfig,
    scale_name: str,
    rows: Sequence[Row],
    outdated: Sequence[Job],
) -> None:
    """Writes sweep.json, the facts about the sweep that tables need, to its folder.

    outdated: jobs that are not complete. What their folders have now is no result of
    this sweep, whatever becomes of them.
    """
    content = {
        "title": sweep.title,
        "scale": scale_name,
        "divisors": vars(scale),
        "tasks": list(sweep.tasks),
        "seeds": list(sweep.seeds),
        "rows": [describe_row(row) for row in rows],
        "settings": {
            "pretraining": list(sweep.pretraining),
            "finetuning": finetuning_settings(sweep),
            **{
                f"pretraining of {row.name}": training_of_row(sweep, row.name)
                for row in rows
            },
            **{f"finetuning on {task}": _gin_file(sweep, task) for task in sweep.tasks},
        },
        "outdated": {
            job.name: fingerprint
            for job in outdated
            if (fingerprint := record_fingerprint(job.folder))
        },
    }
    files.write_json(os.path.join(files.make_folder(folder), DESCRIPTION), content)
