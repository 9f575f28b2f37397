"""Numbers that finished runs measured, by model, task, metric and seed."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from decoupled.configs import ModelConfig
from decoupled.xtreme import official

# A task of numbers beside those of fine-tuning, and its metric.
PRETRAINING, MLM = "pretrain", "MLM acc"

# Seed -> value.
Values = Mapping[int, float]


class Row(NamedTuple):
    """A model of a sweep.

    name: of its gin file. model: sizes. keep_layers: in fine-tuning, 0: all.
    pretraining, finetuning: parameters, as counted in the graphs.
    """

    name: str
    model: ModelConfig
    keep_layers: int
    pretraining: int
    finetuning: int


class Number(NamedTuple):
    """A single number.

    row: name of the model. task: or PRETRAINING. metric: what it is.
    value: as tables show it, scores in percent. folder: it was read from. settings: the
    gin file of what it was measured with.
    """

    row: str
    task: str
    metric: str
    seed: int
    value: float
    folder: str = ""
    settings: str = ""


class Results(NamedTuple):
    """Every value of sweeps, or of the paper.

    rows: by name. tasks: of fine-tuning that have scores. numbers: in the order in
    which they are listed. folder: of all runs, where it is one.
    """

    rows: Mapping[str, Row]
    tasks: Sequence[str]
    numbers: Sequence[Number]
    folder: str = ""

    def of(self, names: Iterable[str]) -> "Results":
        """Only these models, in this order."""
        rows = {name: self.rows[name] for name in names}
        numbers = [n for name in rows for n in self.numbers if n.row == name]
        return self._replace(rows=rows, numbers=numbers)

    def values(self, row: str, task: str, metric: str) -> dict[int, float]:
        """One number of a model by seed; empty where it was not measured."""
        key = row, task, metric
        return {n.seed: n.value for n in self.numbers if n[:3] == key}

    def score(self, row: str, task: str) -> dict[int, float]:
        """The mean of a task's metrics; exact match and F1 count half each."""
        return over_seeds(self.values(row, task, name) for name in headline(task))

    def averages(self, row: str) -> dict[int, float]:
        """The mean of all tasks' scores."""
        return over_seeds(self.score(row, task) for task in self.tasks)

    def masked_lm(self, row: str) -> dict[int, float]:
        """Masked-LM accuracy on held-out text."""
        return self.values(row, PRETRAINING, MLM)


def over_seeds(values: Iterable[Values]) -> dict[int, float]:
    """The mean of several numbers, for the seeds that have all of them."""
    found = list(values)
    if not found:
        return {}
    seeds = set.intersection(*(set(each) for each in found))
    return {
        seed: statistics.fmean(each[seed] for each in found) for seed in sorted(seeds)
    }


class Spread(NamedTuple):
    """A mean, the sample standard deviation (0 for one value), and how many."""

    mean: float
    deviation: float
    count: int


def spread(values: Values) -> Spread | None:
    """Over the seeds; None where there are none."""
    if not values:
        return None
    numbers = list(values.values())
    deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
    return Spread(statistics.fmean(numbers), deviation, len(numbers))


def headline(task: str) -> tuple[str, ...]:
    """The metrics whose mean is the task's score."""
    return official.TASKS[task].headline if task in official.TASKS else ("accuracy",)
