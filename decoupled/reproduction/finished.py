"""All that a document of the reproduction is written from, read from finished jobs.

A job that is missing or not complete leaves a gap.
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
    """What a document tells of the study, beside what jobs measured.

    text: sentences on the text that was trained on. steps: of pre-training.
    activation_dtype: of it. machine: cores, processor, Python. seconds: of the steps
    that made the data. command: that makes the document. left_out: sentences on what is
    missing or other than in the paper.
    """

    text: Sequence[str]
    steps: int
    activation_dtype: str
    machine: str
    seconds: float
    command: str
    left_out: Sequence[str]


class Findings(NamedTuple):
    """All that a document tells of.

    told: see there. folder: of the jobs. rows: by name, with sizes and parameters, in
    their order; those that were run. seeds: that were to be run.
    measured: name as in `reproduction.claims` -> values; a seed that is missing in one
    row is left out of all.
    numbers: every mean by row, measure (`task`), detail (`metric`) and seed, each with
    the folder that it was read from and its settings. Rows of controls are called
    "control:ROW".
    curves: (row, seed) -> loss of pre-training by step.
    unigram_entropy: language -> nats a token of held-out text. shares: language -> its
    share of the training sequences.
    results: name of an analysis -> seed -> its JSON, for what has no items (geometry,
    spectrum) and for details.
    seconds: of the data and of all complete jobs, added. complete, jobs: how many.
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
    """Reads all that is complete.

    Args:
      jobs: of all seeds. rows: the models, `decoupled.sweeps.jobs.Row`. folder: of the
        jobs. tasks: task -> the folder that its own folder lies in. told: the rest.

    Raises:
      UserError: a file is damaged, or analyses of two seeds have other items.
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
