"""All that a document of the reproduction is written from, read from finished jobs.

A job that is missing or not complete leaves a gap.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import files
from decoupled.model.parameters import finetuning_counts, pretraining_counts
from decoupled.reports.results import Number, Row
from decoupled.reproduction.measured import CONTROL, Measured
from decoupled.reproduction.measures import Reader, seed_of
from decoupled.runs.curve import Curve, read_curve
from decoupled.sweeps.jobs import RECORD, Job


class Findings(NamedTuple):
    """All that a document tells of.

    folder: of the jobs. rows: by name, with sizes and parameters, in their order; those
    that were run. seeds: that were to be run. controls: rows that were also measured
    after one step.
    measured: name as in `reproduction.claims` -> values; a seed that is missing in one
    row is left out of all.
    numbers: every mean by row, measure (`task`), detail (`metric`) and seed, each with
    the folder that it was read from and its settings. Rows of controls are called
    "control:ROW".
    layers: row -> percent of translations found, dev sentences not among them, float64
    [seeds, layers + 1], mean over directions; the seeds are those of
    measured["retrieval"].
    curves: (row, seed) -> loss of pre-training by step.
    unigram_entropy: language -> nats a token of held-out text. shares: language -> its
    share of the training sequences.
    results: name of an analysis -> seed -> its JSON, for what has no items (geometry,
    spectrum) and for details.
    text: sentences on the text that was trained on. steps: of pre-training.
    activation_dtype: of it. machine: cores, processor, Python. seconds: of all complete
    jobs, added. complete, jobs: how many. command: that makes the document.
    left_out: sentences on what is missing or other than in the paper.
    """

    folder: str
    rows: Mapping[str, Row]
    seeds: Sequence[int]
    controls: Sequence[str]
    measured: Mapping[str, Measured]
    numbers: Sequence[Number]
    layers: Mapping[str, np.ndarray]
    curves: Mapping[tuple[str, int], Curve]
    unigram_entropy: Mapping[str, float]
    shares: Mapping[str, float]
    results: Mapping[str, Mapping[int, Mapping[str, Any]]]
    text: Sequence[str]
    steps: int
    activation_dtype: str
    machine: str
    seconds: float
    complete: int
    jobs: int
    command: str
    left_out: Sequence[str]


class Told(NamedTuple):
    """What a document tells beside the measures; see `Findings`."""

    text: Sequence[str]
    steps: int
    activation_dtype: str
    machine: str
    seconds: float
    command: str
    left_out: Sequence[str]


def read_findings(
    jobs: Sequence[Job],
    rows: Sequence[Any],
    folder: str,
    tasks: Mapping[str, str],
    told: Told,
) -> Findings:
    """Reads all that is complete.

    Args:
      jobs: of all seeds. rows: the models, `decoupled.sweeps.rows.Row`. folder: of the
        jobs. tasks: task -> the folder that its own folder lies in. told: the rest;
        its seconds are those of the steps that made the data.

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
    controls = [job.name.split("/") for job in jobs]
    return Findings(
        folder=folder,
        rows={row.name: _counted(row) for row in rows},
        seeds=tuple(dict.fromkeys(seed_of(job.name) for job in jobs)),
        controls=tuple(
            dict.fromkeys(name[2] for name in controls if name[1] == "models")
        ),
        measured=reader.measures(),
        numbers=reader.numbers(),
        layers=_layers(reader),
        curves=curves,
        unigram_entropy=_entropy(reader),
        shares=_shares(reader),
        results=reader.results(),
        complete=len(complete),
        jobs=len(jobs),
        **told._replace(seconds=seconds)._asdict(),
    )


def _counted(row):
    pretraining = sum(pretraining_counts(row.model).values())
    finetuning = sum(finetuning_counts(row.model, row.keep_layers).values())
    return Row(row.name, row.model, row.keep_layers, pretraining, finetuning)


def _entropy(reader):
    """Language -> nats a token; empty before the first analysis."""
    for result in reader.results().get("masked_lm", {}).values():
        return dict(result["unigram_entropy"])
    return {}


def _shares(reader):
    """Language -> its share of the training sequences."""
    for _, _, job in reader.models():
        drawn = files.read_json(os.path.join(job.folder, "sampling.json"))
        return {language: one["drawn"] for language, one in drawn.items()}
    return {}


def _layers(reader):
    """Row -> percent of translations found, float64 [seeds, layers + 1]."""
    found = [reader.arrays("neighbours", seed, "hits") for seed in reader.seeds]
    found = [hits for hits in found if hits]
    rows = [row for row in (found or [{}])[0] if all(row in hits for hits in found)]
    return {
        row: 100 * np.array([hits[row].mean(axis=(1, 2)) for hits in found])
        for row in rows
    }
