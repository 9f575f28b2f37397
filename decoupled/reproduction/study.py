"""What a study found, read from finished jobs and kept in two files.

scores.csv has every mean by row, measure, component and seed, with the folder of its
run. study.json has the facts of the study, the sizes of the rows, and for each contrast
the estimate over seeds and items. The page is written from these two alone.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.reports.page import mean
from decoupled.reports.results import (
    ModelRow,
    Number,
    numbers_as_csv,
    read_numbers,
    read_row,
)
from decoupled.reproduction import claims
from decoupled.reproduction.items import ResultReader
from decoupled.reproduction.measures import (
    numbers_of,
    plateau,
    read_curves,
    read_measures,
    read_runs,
    unigram_entropy,
)
from decoupled.reproduction.statistics import NATS, Estimate
from decoupled.reproduction.verdicts import (
    Checked,
    Compared,
    Evidence,
    Measure,
    TrainedRun,
    gather,
    untrained,
)
from decoupled.runs.curve import CROSSED_BELOW, Curve, smoothed
from decoupled.sweeps.jobs import RECORD, Job, Row, complete_jobs, describe_row, seed_of

SCORES, STUDY = "scores.csv", "study.json"


class Training(NamedTuple):
    """How a row trained, as the page shows it: means and spreads over seeds.

    crosses: the step of its crossing. loss: at the end. later: the loss after the steps
    that every run has after its crossing. void: why contrasts with it are void, or "".
    """

    crosses: str
    loss: str
    later: str
    void: str


class Study(NamedTuple):
    """What a study found.

    facts: sentences and numbers for the page: "command", "text", "machine" and so on.
    """

    facts: Mapping[str, Any]
    rows: Mapping[str, ModelRow]
    training: Mapping[str, Training]
    numbers: Sequence[Number]
    evidence: Evidence

    def is_english(self) -> bool:
        """Whether the models know English alone, unlike most of the paper's."""
        return list(self.facts["languages"]) == ["en"]


def save(study: Study, folder: str) -> None:
    """Writes both files to a folder that exists."""
    evidence = study.evidence
    content = {
        "facts": dict(study.facts),
        "rows": [describe_row(row) for row in study.rows.values()],
        "training": {row: value._asdict() for row, value in study.training.items()},
        "trained": dict(evidence.trained),
        "measures": {
            key: measure._asdict()
            | {"checks": measure.checks and list(map(_check, measure.checks))}
            for key, measure in evidence.measures.items()
        },
        "contrasts": {
            key: _estimate(value.estimate) | {"bootstrap": list(value.resampled)}
            for key, value in evidence.compared.items()
        },
    }
    files.write_json(os.path.join(folder, STUDY), content)
    files.write_text(os.path.join(folder, SCORES), numbers_as_csv(study.numbers))


def load(folder: str) -> Study:
    """The study of a folder.

    Raises:
      UserError: a file is missing or damaged.
    """
    path = os.path.join(folder, STUDY)
    content = files.read_json(path)
    try:
        evidence = Evidence(
            content["trained"],
            {key: _read_measure(saved) for key, saved in content["measures"].items()},
            {
                key: Compared(_read_estimate(saved), tuple(saved["bootstrap"]))
                for key, saved in content["contrasts"].items()
            },
        )
        return Study(
            content["facts"],
            {entry["name"]: read_row(entry) for entry in content["rows"]},
            {row: Training(**saved) for row, saved in content["training"].items()},
            read_numbers(os.path.join(folder, SCORES)),
            evidence,
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not what a study found ({files.reason(error)})"
        ) from error


def _check(check):
    return {
        "row": check.row,
        "gain": check.gain and _estimate(check.gain),
        "over_baseline": check.over_baseline and _estimate(check.over_baseline),
    }


def _read_measure(entry):
    checks = entry["checks"]
    if checks is not None:
        checks = [
            Checked(
                saved_check["row"],
                saved_check["gain"] and _read_estimate(saved_check["gain"]),
                saved_check["over_baseline"]
                and _read_estimate(saved_check["over_baseline"]),
            )
            for saved_check in checks
        ]
    return Measure(**entry | {"checks": checks})


def _estimate(estimate):
    """JSON has no infinity, the error of what is the same for all seeds."""
    error = None if math.isinf(estimate.error) else estimate.error
    return estimate._asdict() | {"error": error}


def _read_estimate(entry):
    fields = {name: entry[name] for name in Estimate._fields}
    if fields["error"] is None:
        fields["error"] = math.inf
    return Estimate(**fields)


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
        for number in numbers_of(reader)
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
