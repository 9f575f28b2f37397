"""What a study found, in two files: scores.csv and study.json.

scores.csv has every mean by row, measure, component and seed, with the folder of its
run. study.json has the facts of the study, the sizes of the rows, and for each contrast
the estimate over seeds and items. The page is written from these two alone.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.reports.results import (
    ModelRow,
    Number,
    numbers_as_csv,
    read_numbers,
    read_row,
)
from decoupled.reproduction.statistics import Estimate
from decoupled.reproduction.verdicts import Checked, Compared, Evidence, Measure
from decoupled.sweeps.jobs import describe_row

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
