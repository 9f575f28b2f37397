"""From finished jobs to a study: its facts, numbers and evidence."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from decoupled.core import files
from decoupled.reports.page import mean
from decoupled.reports.results import read_row
from decoupled.reproduction import claims
from decoupled.reproduction.items import ResultReader
from decoupled.reproduction.measures import (
    plateau,
    read_curves,
    read_measures,
    read_numbers,
    read_runs,
    unigram_entropy,
)
from decoupled.reproduction.statistics import NATS
from decoupled.reproduction.study import Study, Training
from decoupled.reproduction.verdicts import TrainedRun, gather, untrained
from decoupled.runs.curve import CROSSED_BELOW, Curve, smoothed
from decoupled.sweeps.jobs import RECORD, Job, Row, complete_jobs, describe_row, seed_of

Curves = Mapping[tuple[str, int], Curve]
Runs = Mapping[str, Mapping[int, TrainedRun]]


def read_study(
    jobs: Sequence[Job],
    rows: Sequence[Row],
    tasks: Mapping[str, str],
    work_dir: str,
    facts: Mapping[str, Any],
) -> tuple[Study, Curves]:
    """Reads all complete jobs; returns the study and its training curves.

    Args:
      tasks: task -> the parent of its folder. work_dir: folders are named below it.
      facts: those that jobs do not have, among them "steps" and the "seconds" of the
        data.

    Raises:
      UserError: a file is damaged, or the analyses of two seeds have different items.
    """
    complete = complete_jobs(jobs)
    reader = ResultReader(complete, tasks)
    curves, measures = read_curves(reader), read_measures(reader)
    runs = read_runs(reader, curves, measures.get(claims.LOSS))
    common, later = _since_crossing(curves, runs)
    trained = {row: untrained(row, runs[row], facts["steps"]) for row in runs}
    seconds = sum(
        files.read_json(os.path.join(job.folder, RECORD)).get("seconds", 0.0)
        for job in complete
    )
    facts = {
        **facts,
        "languages": list(unigram_entropy(reader)),
        "seeds": list(dict.fromkeys(seed_of(job.name) for job in jobs)),
        "complete": len(complete),
        "jobs": len(jobs),
        "seconds": facts["seconds"] + seconds,
        "unigram_entropy": plateau(reader) + CROSSED_BELOW if runs else None,
        "common_steps": common,
        "only_speed": list(_only_speed(curves, common, later)),
    }
    training = {
        row: Training(
            mean(_known({s: run.crossed for s, run in by_seed.items()}), digits=0),
            mean({s: smoothed(curves[row, s])[-1] for s in by_seed}, digits=2),
            mean(later.get(row, {}), digits=2),
            trained[row],
        )
        for row, by_seed in runs.items()
    }
    numbers = [
        # The path of the work folder itself says nothing to others.
        number._replace(folder=os.path.relpath(number.folder, work_dir))
        for number in read_numbers(reader)
    ]
    counted = {row.name: read_row(describe_row(row)) for row in rows}
    return Study(facts, counted, training, numbers, gather(measures, trained)), curves


def _known(values):
    return {seed: value for seed, value in values.items() if value is not None}


def _since_crossing(curves: Curves, runs: Runs):
    """The steps that every run has after crossing; row -> seed -> loss after these."""
    crossed = {
        (row, seed): run.crossed
        for row, by_seed in runs.items()
        for seed, run in by_seed.items()
        if run.crossed is not None
    }
    left = [int(curves[run].steps[-1]) - step for run, step in crossed.items()]
    common, later = min(left, default=0), {}
    for (row, seed), step in crossed.items():
        curve = curves[row, seed]
        loss = float(np.interp(step + common, curve.steps, smoothed(curve)))
        later.setdefault(row, {})[seed] = loss
    return common, later


def _only_speed(curves, common, later):
    """Differences of losses that change sign after equally many steps since crossing.

    Differences within the margin are left out.
    """
    pairs = dict.fromkeys(
        tuple(part.weights) for claim in claims.CLAIMS for part in claim.parts
    )
    for first, second in pairs:
        if not {first, second} <= later.keys():
            continue
        seeds = later[first].keys() & later[second].keys()
        ends, then = (
            [[value(row, seed) for seed in seeds] for row in (first, second)]
            for value in (
                lambda row, seed: smoothed(curves[row, seed])[-1],
                lambda row, seed: later[row][seed],
            )
        )
        end, since = (np.mean(np.subtract(*losses)) for losses in (ends, then))
        if abs(end) > claims.MARGINS[NATS] and end * since < 0:
            yield (
                f"**Speed only**: the training loss of {first} minus that of {second} "
                f"is {end:+.2f} nats at the end, but {since:+.2f} after {common:,} "
                "steps since each crossing."
            )
