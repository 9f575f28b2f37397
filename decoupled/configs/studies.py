"""Settings of sweeps, reproductions, plans, parameter counts and conversions."""

import dataclasses
import re
from collections.abc import Mapping
from typing import ClassVar

from decoupled.configs.checks import (
    Settings,
    bound,
    check_choice,
    check_not_negative,
    check_positive,
    check_rates,
    configurable,
)
from decoupled.configs.model import ModelConfig
from decoupled.configs.training import OptimizerConfig, PretrainConfig
from decoupled.core.errors import UserError

# The types of the values in the tuples and dicts of a sweep.
_KINDS = {
    "rows": str,
    "keep_layers": int,
    "tasks": str,
    "seeds": int,
    "task_files": str,
    "pretraining": str,
    "finetuning": str,
}
# Rows and tasks name files and folders.
_FOLDER = re.compile(r"\w[\w.-]*")
# Settings of single runs -> what decides them.
_OWNERS = {
    "ModelConfig": "SweepConfig.models",
    "FinetuningConfig.keep_layers": "SweepConfig.keep_layers",
    "TrainingConfig.seed": "SweepConfig.seeds",
}
_STUDY_OWNERS = _OWNERS | {
    "OptimizerConfig.learning_rate": "StudyConfig.learning_rates",
    "MeshConfig.activation_dtype": "reproduction.json of --work_dir",
}


def _check_owners(place, params, owners):
    """Refuses settings that would be overridden, or that tables would not know."""
    for param in params:
        name = param.partition("=")[0].strip().rpartition("/")[2]
        for setting, owner in owners.items():
            if f"{name}.".startswith(f"{setting}.") and owner != place:
                raise UserError(f"{place}: {param!r} belongs in {owner}")


@configurable()
@dataclasses.dataclass(frozen=True)
class ScaleConfig(Settings):
    """Divisors of the sizes of the paper's models; 1 leaves a size unchanged.

    width_divisor: of E_in, E_out, R, H and the feed-forward width.
    head_size_divisor: of the size of a head; the number of heads follows.
    depth_divisor: of the number of layers; the result is rounded to the nearest.
    """

    width_divisor: int = 1
    head_size_divisor: int = 1
    depth_divisor: int = 1

    def _check(self):
        check_positive(self, "width_divisor head_size_divisor depth_divisor")


@configurable()
@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepConfig(Settings):
    """A grid of runs: every model, with every seed, on every task.

    title: of the table. rows: names of files in gin/models, in the table's order.
    models: row -> (name of a file in gin/models, *settings), for rows that have no file
      of their name. The settings are those of the model and of its pre-training.
    keep_layers: row -> number of layers that fine-tuning keeps, for rows that drop
      layers. It counts layers of the paper's model, before the model is scaled; 0 keeps
      all.
    tasks: names of tasks, as for `finetune`. seeds: of pre-training, one run each.
    finetuning_runs: number of fine-tuning seeds for each pre-trained model.
    task_files: task -> its gin file ("" for none); "*" stands for the tasks that are
      not named, and {task} for the name of the task.
    pretraining, finetuning: bindings for every run, each a string of one line.
    """

    title: str
    rows: tuple
    models: dict = dataclasses.field(default_factory=dict)
    keep_layers: dict = dataclasses.field(default_factory=dict)
    tasks: tuple
    seeds: tuple
    finetuning_runs: int
    task_files: dict
    pretraining: tuple
    finetuning: tuple

    def _check(self):
        check_positive(self, "finetuning_runs")
        for name, kind in _KINDS.items():
            values = getattr(self, name)
            items = values.values() if isinstance(values, dict) else values
            if any(type(item) is not kind for item in items):
                raise UserError(
                    f"SweepConfig.{name}: {values!r} must hold {kind.__name__} only"
                )
            if kind is int and min(items, default=0) < 0:
                raise UserError(f"SweepConfig.{name}: {values!r} has a negative number")
            if name in ("rows", "tasks", "seeds") and len(set(values)) < len(values):
                raise UserError(f"SweepConfig.{name}: {values!r} names one twice")
        self._check_strings()
        if not self.rows or not self.seeds:
            raise UserError("SweepConfig.rows, SweepConfig.seeds: name at least one")
        rows = sorted(set(self.keep_layers) - set(self.rows))
        if rows:
            raise UserError(
                f"SweepConfig.keep_layers: {', '.join(rows)} are not among the rows"
            )

    def _check_strings(self):
        """Refuses values that could name a folder outside the sweep, or add a job."""
        for row, parts in self.models.items():
            are_texts = isinstance(parts, tuple) and all(type(x) is str for x in parts)
            if not are_texts or not parts or not _FOLDER.fullmatch(parts[0]):
                raise UserError(
                    f"SweepConfig.models: {row!r}: {parts!r} is not the name of a file "
                    "in models/ and settings: ('coupled', 'ModelConfig.num_layers = 6')"
                )
        for name in ("rows", "tasks"):
            for value in getattr(self, name):
                if not _FOLDER.fullmatch(value):
                    raise UserError(
                        f"SweepConfig.{name}: {value!r} cannot name a folder; use "
                        "letters, digits, '_', '-' and '.', and begin with a letter, "
                        "a digit or '_'"
                    )
        for name in ("pretraining", "finetuning"):
            for value in getattr(self, name):
                if value.splitlines() not in ([value], []):
                    raise UserError(
                        f"SweepConfig.{name}: {value!r} has more than one line; write "
                        "each setting as a separate string on one line"
                    )
        self.check_owners(_OWNERS)
        _check_owners("SweepConfig.finetuning", self.finetuning, _OWNERS)

    def check_owners(self, owners: Mapping[str, str]) -> None:
        """Refuses settings of pre-training that every run gets from elsewhere."""
        _check_owners("SweepConfig.pretraining", self.pretraining, owners)
        for _, *params in self.models.values():
            _check_owners("SweepConfig.models", params, owners)


@configurable("sweep")
@dataclasses.dataclass(frozen=True)
class SweepRoot(Settings):
    """A grid of runs, and the scale of its models."""

    DEFAULTS: ClassVar = {
        "SweepConfig.models": {},
        "SweepConfig.keep_layers": {},
        "SweepConfig.task_files": {
            "*": "tasks/table_10.gin",
            "catalogs": "",
            "sib200": "",
        },
    }

    sweep: SweepConfig = bound(SweepConfig)
    scale: ScaleConfig = bound(ScaleConfig)


@configurable()
@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyConfig(Settings):
    """What a reproduction adds to the grid of its runs.

    first_rows: the rows that run with --size below 4, with the first seeds, as many as
      first_seeds; 0: all.
    learning_rates: row -> peak learning rate of pre-training.
    settings: row -> bindings of its pre-training, beside those of every run.
    continued: row -> (row, *changes of `decoupled convert embeddings`): the run of the
      other row and the same seed goes on as this row, after the changes.
    tried_rates: learning rates that --rates trains every row with, and `tried_rows`,
      which are no rows of the study; with the seed `tried_seed`, which decides nothing,
      and a share `tried_steps` of the steps.
    dose_rows: rows that differ in E_out alone, for the figure of E_out.
    control_rows: rows that are also measured after a single step of pre-training.
    control: how a gain over these has to be clear ("seeds" or "interval";
      `decoupled.studies.verdicts`).
    dropped_rows: rows that are also fine-tuned without their last 1, 2, ...,
      most_dropped layers.
    claims: number of a claim of the paper, or a question -> the contrasts that decide
      it, "MEASURE: ROW - ROW RULE".
    sensitivity: claim -> the contrast that has to be above 0 before it is judged.
    secondary: contrasts that decide nothing.
    papers: row -> the paper's row.
    pieces: of the vocabulary; 0: as many as the gin file of the text says.
    text: files of text below --data_dir, LANGUAGE=GLOB; empty for parallel text.
    """

    first_rows: tuple
    first_seeds: int = 0
    learning_rates: dict
    settings: dict = dataclasses.field(default_factory=dict)
    continued: dict = dataclasses.field(default_factory=dict)
    tried_rates: tuple = ()
    tried_rows: tuple = ()
    tried_seed: int = 100
    tried_steps: float = 0.5
    dose_rows: tuple = ()
    control_rows: tuple
    control: str = "seeds"
    dropped_rows: tuple
    most_dropped: int
    claims: dict = dataclasses.field(default_factory=dict)
    sensitivity: dict = dataclasses.field(default_factory=dict)
    secondary: tuple = ()
    papers: dict = dataclasses.field(default_factory=dict)
    pieces: int = 0
    text: tuple = ()

    def _check(self):
        check_not_negative(self, "first_seeds most_dropped pieces tried_seed")
        check_positive(self, "tried_steps")
        check_choice(self, "control", ("seeds", "interval"))
        for row, rate in self.learning_rates.items():
            if type(rate) not in (int, float) or rate <= 0:
                raise UserError(
                    f"StudyConfig.learning_rates: {rate!r} for {row!r} is no number "
                    "above 0"
                )
        for name in ("settings", "continued", "claims"):
            for key, values in getattr(self, name).items():
                if type(values) is not tuple or not all(type(v) is str for v in values):
                    raise UserError(
                        f"StudyConfig.{name}: {values!r} of {key!r} is no tuple of "
                        "strings"
                    )
        for row, values in self.continued.items():
            if not values:
                raise UserError(
                    f"StudyConfig.continued: {row!r} names no row that it goes on from"
                )
        for text in (*self.sensitivity.values(), *self.secondary):
            if type(text) is not str:
                raise UserError(
                    f"StudyConfig.sensitivity, StudyConfig.secondary: {text!r} is no "
                    "string"
                )


@configurable("reproduce")
@dataclasses.dataclass(frozen=True)
class ReproductionRoot(Settings):
    """A grid of runs, and what is measured in addition."""

    sweep: SweepConfig = bound(SweepConfig)
    study: StudyConfig = bound(StudyConfig)

    def known_rows(self) -> set[str]:
        """The rows of the sweep, and all others whose models are known."""
        return {*self.sweep.rows, *self.sweep.models}

    def check(self) -> None:
        self.sweep.check_owners(_STUDY_OWNERS)
        for params in self.study.settings.values():
            _check_owners("StudyConfig.settings", params, _STUDY_OWNERS)
        rows, known_rows = set(self.sweep.rows), self.known_rows()
        for name, names, where in (
            *((n, rows, "rows") for n in ("first_rows", "control_rows")),
            *((n, rows, "rows") for n in ("dropped_rows", "continued")),
            *((n, known_rows, "models") for n in ("settings", "tried_rows")),
            ("dose_rows", known_rows, "models"),
        ):
            unknown_names = sorted(set(map(str, getattr(self.study, name))) - names)
            if unknown_names:
                raise UserError(
                    f"StudyConfig.{name}: {', '.join(unknown_names)} are not among "
                    f"SweepConfig.{where}"
                )
        missing_rows = sorted(rows - set(self.study.learning_rates))
        if missing_rows:
            raise UserError(
                f"StudyConfig.learning_rates: has none for {', '.join(missing_rows)}"
            )
        for row, (source, *_) in self.study.continued.items():
            earlier_rows = self.sweep.rows[: self.sweep.rows.index(row)]
            if source not in earlier_rows:
                raise UserError(
                    f"StudyConfig.continued: {row} needs {source} before it in "
                    "SweepConfig.rows"
                )
            first_rows = self.study.first_rows
            if row in first_rows and source not in first_rows:
                raise UserError(
                    f"StudyConfig.first_rows: {row} goes on from {source}, which is "
                    "not among them"
                )


@configurable()
@dataclasses.dataclass(frozen=True)
class PlanConfig(Settings):
    """What the plan of a TPU run assumes.

    efficiency: share of the peak that matrix products reach, including the time of what
      runs between them.
    memory_share: share of a core's memory that a step may use. The rest is left for the
      compiler and for what it does not fuse.
    """

    # An assumption: replace it with what your first steps show.
    efficiency: float = 0.4
    memory_share: float = 0.95

    def _check(self):
        check_positive(self, "efficiency memory_share")
        check_rates(self, "efficiency memory_share", closed=True)


@configurable("plan")
@dataclasses.dataclass(frozen=True)
class PlanSettings(Settings):
    """The planned run, and the assumptions of the prediction."""

    run: PretrainConfig = bound(PretrainConfig)
    config: PlanConfig = bound(PlanConfig)


@configurable("parameters")
@dataclasses.dataclass(frozen=True)
class ParametersConfig(Settings):
    """The model, and the number of layers that fine-tuning keeps.

    optimizer: for the learning rates of single variables.
    keep_layers: 0 keeps as many as the paper, or all if the model is not the paper's.
    """

    model: ModelConfig = bound(ModelConfig)
    optimizer: OptimizerConfig = bound(OptimizerConfig)
    keep_layers: int = 0
