"""Reads everything that a document of the reproduction needs from finished jobs.

A job that is missing or incomplete leaves a gap.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from decoupled.core import files
from decoupled.model.parameters import finetuning_counts, pretraining_counts
from decoupled.reports.results import Number, Row
from decoupled.reproduction.jobs import seed_of
from decoupled.reproduction.measured import CONTROL, Measured
from decoupled.reproduction.measures import read_measures, read_numbers
from decoupled.reproduction.reader import Reader
from decoupled.runs.curve import Curve, read_curve
from decoupled.sweeps.jobs import RECORD, Job


class Told(NamedTuple):
    """Facts about the study that are not measured by jobs.

    text: sentences on the training text. steps: of pre-training.
    activation_dtype: of pre-training. machine: cores, processor, Python. seconds: of
    the steps that made the data. command: the command that makes the document.
    left_out: sentences on what is missing or differs from the paper.
    """

    text: Sequence[str]
    steps: int
    activation_dtype: str
    machine: str
    seconds: float
    command: str
    left_out: Sequence[str]


class Findings(NamedTuple):
    """The contents of a document.

    told: see `Told`. folder: of the jobs. rows: the rows that were run, by name, in
    order, with sizes and parameters. seeds: the planned seeds.
    measured: name as in `reproduction.claims` -> values; a seed that is missing in one
    row is left out of all.
    numbers: every mean by row, measure (`task`), detail (`metric`) and seed, each with
    the folder that it was read from and its settings. Rows of controls are called
    "control:ROW".
    curves: (row, seed) -> loss of pre-training by step.
    unigram_entropy: language -> nats per token of held-out text. shares: language ->
    its share of the training sequences.
    results: name of an analysis -> seed -> its JSON, for analyses without items
    (geometry, spectrum) and for details.
    seconds: the sum over the data and all complete jobs. complete, jobs: the numbers of
    complete jobs and of all jobs.
    """

    told: Told
    folder: str
    rows: Mapping[str, Row]
    seeds: Sequence[int]
    measured: Mapping[str, Measured]
    numbers: Sequence[Number]
    curves: Mapping[tuple[str, int], Curve]
    unigram_entropy: Mapping[str, float]
    shares: Mapping[str, float]
    results: Mapping[str, Mapping[int, Mapping[str, Any]]]
    seconds: float
    complete: int
    jobs: int


def read_findings(
    jobs: Sequence[Job],
    rows: Sequence[Any],
    folder: str,
    tasks: Mapping[str, str],
    told: Told,
) -> Findings:
    """Reads all complete jobs.

    Args:
      jobs: of all seeds. rows: the models, `decoupled.sweeps.jobs.Row`. folder: of the
        jobs. tasks: task -> the parent of its folder. told: the facts about the study.

    Raises:
      UserError: a file is damaged, or the analyses of two seeds have different items.
    """
    complete = [job for job in jobs if job.is_complete()]
    reader = Reader(complete, tasks)
    curves = {
        (row, seed): read_curve(job.folder)
        for row, seed, job in reader.models()
        if not row.startswith(CONTROL)
    }
    seconds = told.seconds + sum(
        files.read_json(os.path.join(job.folder, RECORD)).get("seconds", 0.0)
        for job in complete
    )
    entropy = (reader.any_result("masked_lm") or {}).get("unigram_entropy", {})
    return Findings(
        told=told,
        folder=folder,
        rows={row.name: _counted(row) for row in rows},
        seeds=tuple(dict.fromkeys(seed_of(job.name) for job in jobs)),
        measured=read_measures(reader),
        numbers=read_numbers(reader),
        curves=curves,
        unigram_entropy=entropy,
        shares=_shares(reader),
        results=reader.results(),
        seconds=seconds,
        complete=len(complete),
        jobs=len(jobs),
    )


def _counted(row):
    pretraining = sum(pretraining_counts(row.model).values())
    finetuning = sum(finetuning_counts(row.model, row.keep_layers).values())
    return Row(row.name, row.model, row.keep_layers, pretraining, finetuning)


def _shares(reader):
    """Language -> its share of the training sequences."""
    for _, _, job in reader.models():
        drawn = files.read_json(os.path.join(job.folder, "sampling.json"))
        return {language: one["drawn"] for language, one in drawn.items()}
    return {}
