"""What a study found, read from finished jobs and kept in three files.

scores.csv has every mean by row, measure, component and seed, with the folder of its
run. study.json has the facts of the study, the sizes of the rows, the contrasts that
decide, and the estimate of each contrast. items.npz has what every model got on every
item of the measures that decide. The page is written from the first two; docs'
recompute.py makes the estimates anew from the last two.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import StudyConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.tables import GAP
from decoupled.runs.curve import (
    CROSSED_BELOW,
    Curve,
    crossing,
    crossing_level,
    read_curve,
    smoothed,
)
from decoupled.studies.claims import (
    BESIDE,
    CHECKED_BY,
    LOSS,
    SCORE,
    SCORE_PARTS,
    Contrast,
)
from decoupled.studies.jobs import (
    RATES,
    Row,
    complete_jobs,
    describe_row,
    read_record,
    read_row,
    seed_of,
)
from decoupled.studies.measures import (
    SOURCES,
    ResultReader,
    Rows,
    numbers_of,
    read_measures,
    tried_rates,
    unigram_entropy,
)
from decoupled.studies.page import mean
from decoupled.studies.results import Number, numbers_as_csv, read_numbers
from decoupled.studies.statistics import (
    CONTROL,
    Estimate,
    Measured,
    Sums,
    average,
    estimate,
)
from decoupled.studies.study_jobs import StudyJobs
from decoupled.studies.verdicts import (
    Check,
    Evidence,
    Measure,
    TrainedRun,
    check,
    untrained,
)

SCORES, STUDY, ITEMS = "scores.csv", "study.json", "items.npz"
# The smallest of these that has a number exactly is its type in the file.
_TYPES = (np.uint8, np.float16, np.float32, np.float64)

Curves = Mapping[tuple[str, int], Curve]


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

    facts: for the page: "command", "text", "machine" and so on. secondary: contrasts
    that decide nothing.
    """

    facts: Mapping[str, Any]
    rows: Mapping[str, Row]
    training: Mapping[str, Training]
    numbers: Sequence[Number]
    secondary: Sequence[str]
    evidence: Evidence


class EarlierStudy(NamedTuple):
    """An earlier study. items: measure -> seed -> what the rows that decide got."""

    name: str
    study: Study
    items: Mapping[str, Mapping[int, Rows]]


_NO_EVIDENCE = Evidence({}, {}, {}, {}, {}, {})
# An earlier study that has nothing.
_NO_STUDY = EarlierStudy("", Study({}, {}, {}, (), (), _NO_EVIDENCE), {})


def save(study: Study, item_sums: Mapping[str, Rows], folder: str) -> None:
    """Writes the three files to a folder that exists.

    `item_sums`: measure -> what its models got on their items.
    """
    evidence = study.evidence
    content = {
        "facts": dict(study.facts),
        "rows": [describe_row(row) for row in study.rows.values()],
        "training": {row: value._asdict() for row, value in study.training.items()},
        "trained": evidence.trained,
        "control": evidence.control,
        "papers": evidence.papers,
        "claims": evidence.claims,
        "sensitivity": evidence.sensitivity,
        "secondary": study.secondary,
        "measures": {
            key: measure._asdict()
            | {"transform": SOURCES[key].transform if key in SOURCES else "mean"}
            | {"checks": measure.checks and list(map(_check, measure.checks))}
            for key, measure in evidence.measures.items()
        },
        "contrasts": {
            key: _estimate(value) for key, value in evidence.estimates.items()
        },
    }
    files.write_json(os.path.join(folder, STUDY), content)
    files.write_text(os.path.join(folder, SCORES), numbers_as_csv(study.numbers))
    files.write_arrays(os.path.join(folder, ITEMS), dict(_items(evidence, item_sums)))


def load(folder: str) -> Study:
    """The study of a folder, from its first two files."""
    path = os.path.join(folder, STUDY)
    content = files.read_json(path)
    try:
        evidence = Evidence(
            content["trained"],
            {key: _read_measure(saved) for key, saved in content["measures"].items()},
            {key: _read_estimate(value) for key, value in content["contrasts"].items()},
            content["claims"],
            content["sensitivity"],
            content["papers"],
            content["control"],
        )
        return Study(
            content["facts"],
            {entry["name"]: read_row(entry) for entry in content["rows"]},
            {row: Training(**saved) for row, saved in content["training"].items()},
            read_numbers(os.path.join(folder, SCORES)),
            content["secondary"],
            evidence,
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not what a study found ({files.reason(error)})"
        ) from error


def read_published(folder: str, rows: Mapping[str, Row]) -> EarlierStudy:
    """The study of a folder, as far as it has these rows.

    Raises:
      UserError: it has none of them, or one with other sizes.
    """
    study = load(folder)
    common_rows = {name: row for name, row in study.rows.items() if name in rows}
    if not common_rows:
        raise UserError(f"--measured: {folder} has no row of {', '.join(rows)}")
    for name, row in common_rows.items():
        if row != rows[name]:
            raise UserError(f"--measured: {folder}: {name} has other sizes than here")
    path = os.path.join(folder, ITEMS)
    arrays = files.read_arrays(path)
    items: dict[str, dict[int, dict[str, dict[str, Sums]]]] = {}
    for place, got in arrays.items():
        key, row, name = (*place.split("/", 2), "")[:3]
        if not name or row not in common_rows or key not in study.evidence.measures:
            continue
        of, seeds = arrays.get(f"{key}/{name}"), study.evidence.measures[key].seeds
        if of is None or got.shape[:1] + got.shape[-1:] != (len(seeds), *of.shape):
            raise UserError(f"{path}: {place} does not fit {STUDY}; make both anew")
        for seed, values in zip(seeds, got.astype(np.float64), strict=True):
            by_row = items.setdefault(key, {}).setdefault(seed, {})
            by_row.setdefault(row, {})[name] = Sums(values, of.astype(np.float64))
    # A path says nothing to others.
    name = os.path.basename(os.path.normpath(folder))
    numbers = [
        number._replace(folder=f"{name}/{number.folder}")
        for number in study.numbers
        if number.row.removeprefix(CONTROL) in common_rows or number.task == RATES
    ]
    training = {row: of for row, of in study.training.items() if row in common_rows}
    study = study._replace(rows=common_rows, numbers=numbers, training=training)
    return EarlierStudy(name, study, items)


def check_published(earlier_study: EarlierStudy, facts: Mapping[str, Any]) -> None:
    """Raises UserError if an earlier study has another text, or trained with other
    settings."""
    old_facts = earlier_study.study.facts
    pairs = [("its text", old_facts.get("text", []), facts["text"])]
    for row in earlier_study.study.rows:
        old = old_facts.get("training", {}).get(row, [])
        pairs.append((f"the training of {row}", old, facts["training"][row]))
    # Earlier versions did not keep these.
    old = old_facts.get("finetuning", facts["finetuning"])
    pairs.append(("the fine-tuning", old, facts["finetuning"]))
    for title, old, new in pairs:
        if old != new:
            old, new = (
                ", ".join(v for v in values if v not in others) or "nothing else"
                for values, others in ((old, new), (new, old))
            )
            raise UserError(
                f"--measured: {earlier_study.name}: {title} has {old}, and here {new}"
            )


def _check(row_check):
    return row_check._asdict() | {
        "gain": row_check.gain and _estimate(row_check.gain),
        "over_baseline": row_check.over_baseline and _estimate(row_check.over_baseline),
    }


def _read_measure(entry):
    fields = {name: entry[name] for name in Measure._fields}
    if fields["checks"] is not None:
        fields["checks"] = [
            Check(
                values["row"],
                values["gain"] and _read_estimate(values["gain"]),
                values["clear"],
                values["over_baseline"] and _read_estimate(values["over_baseline"]),
            )
            for values in fields["checks"]
        ]
    return Measure(**fields)


def _estimate(value):
    """JSON has no infinity, the error of what is the same for all seeds."""
    error = None if math.isinf(value.error) else value.error
    return value._asdict() | {"error": error}


def _read_estimate(entry):
    error = math.inf if entry["error"] is None else entry["error"]
    return Estimate(**entry | {"error": error})


def _items(evidence, item_sums):
    """Yields name and array of what the rows that decide got on the items.

    MEASURE/ROW/COMPONENT has the sums by seed, MEASURE/COMPONENT of how many.
    """
    texts = [text for texts in evidence.claims.values() for text in texts]
    places = set()
    for contrast in map(Contrast.read, [*texts, *evidence.sensitivity.values()]):
        is_score = contrast.measure == SCORE
        for key in SCORE_PARTS if is_score else (contrast.measure,):
            for row in contrast.weights:
                for name, (got, of) in item_sums.get(key, {}).get(row, {}).items():
                    for place, array in (
                        (f"{key}/{row}/{name}", got),
                        (f"{key}/{name}", of),
                    ):
                        if place not in places:
                            places.add(place)
                            yield place, _smallest(array)


def _smallest(array):
    with np.errstate(all="ignore"):
        arrays = (array.astype(kind) for kind in _TYPES)
        return next(each for each in arrays if np.array_equal(each, array))


def read_study(
    maker: StudyJobs, facts: Mapping[str, Any], earlier: EarlierStudy | None = None
) -> tuple[Study, Mapping[str, Rows], Curves]:
    """Reads all complete jobs: the study, what its models got on items, its curves.

    Args:
      facts: those that jobs do not have, among them "steps" and the "seconds" of the
        data.
      earlier: an earlier study, which has the other rows.

    Raises:
      UserError: a file is damaged, or the analyses of two seeds have different items.
    """
    earlier = earlier or _NO_STUDY
    old_study, config, jobs = earlier.study, maker.study, maker.all()
    complete = complete_jobs(jobs)
    reader = ResultReader(complete, maker.tasks)
    measures, item_sums = read_measures(reader, earlier.items)
    curves = {
        (row, seed): read_curve(job.folder)
        for row, seed, job in reader.models()
        if not row.startswith(CONTROL)
    }
    curves = whole_curves(curves, config.continued)
    level = _plateau(reader)
    runs = _read_runs(reader, curves, measures.get(LOSS), level)
    common, later = _since_crossing(curves, runs)
    unigram = level + CROSSED_BELOW
    seeds = list(dict.fromkeys(seed_of(job.name) for job in jobs))
    if not runs:
        unigram = old_study.facts.get("unigram_entropy")
        common = old_study.facts.get("common_steps", 0)
        seeds = seeds or old_study.facts.get("seeds", [])
    trained = {
        row: untrained(row, of_row, int(curves[row, min(of_row)].steps[-1]))
        for row, of_row in runs.items()
    }
    seconds = (read_record(job.folder).get("seconds") for job in complete)
    facts = {
        **facts,
        "languages": list(unigram_entropy(reader)),
        "seeds": seeds,
        "complete": len(complete),
        "jobs": len(jobs),
        "seconds": sum(filter(None, seconds), facts["seconds"]),
        "unigram_entropy": unigram,
        "common_steps": common,
        "doses": {
            row.name: row.model.output_embedding_size
            for row in [*maker.rows, *maker.tried_rows]
            if row.name in config.dose_rows
        },
    }
    training = dict(old_study.training)
    if old_study.facts.get("common_steps") != common:
        training = {row: of._replace(later=GAP) for row, of in training.items()}
    training |= {
        row: Training(
            mean(_numbers({s: run.crossing for s, run in by_seed.items()}), digits=0),
            mean({s: smoothed(curves[row, s])[-1] for s in by_seed}, digits=2),
            mean(later.get(row, {}), digits=2),
            trained[row],
        )
        for row, by_seed in runs.items()
    }
    numbers = list(old_study.numbers)
    numbers += [
        # The path of the work folder itself says nothing to others.
        number._replace(folder=os.path.relpath(number.folder, maker.folders.work_dir))
        for number in (
            *numbers_of(reader, measures),
            *tried_rates(complete_jobs(maker.rates())),
        )
    ]
    rows = {row.name: row for row in maker.rows}
    secondary = secondary_of(config)
    trained = {
        row: old_study.evidence.trained.get(row, trained.get(row))
        for row in rows
        if row in old_study.rows or row in trained
    }
    if earlier.name:
        facts["measured"] = {earlier.name: list(old_study.rows)}
    evidence = gather(measures, trained, config, secondary, old_study.evidence)
    study = Study(facts, rows, training, numbers, secondary, evidence)
    return study, item_sums, curves


def whole_curves(curves: Curves, continued: Mapping[str, Sequence[str]]) -> Curves:
    """The curves, with those of rows that go on beginning where the other row does."""
    joined_curves = dict(curves)
    for (row, seed), curve in curves.items():
        start = joined_curves.get((continued.get(row, [""])[0], seed))
        if start is not None:
            count = int(np.searchsorted(start.steps, curve.steps[0]))
            pairs = zip(start, curve, strict=True)
            joined_curves[row, seed] = Curve(*(np.r_[a[:count], b] for a, b in pairs))
    return joined_curves


def secondary_of(config: StudyConfig) -> list[str]:
    """The rows of every deciding contrast on other measures, and those of settings."""
    deciding_contrasts = [
        Contrast.read(text) for texts in config.claims.values() for text in texts
    ]
    deciding_keys = {contrast.key for contrast in deciding_contrasts}
    other_contrasts = (
        Contrast(measure, contrast.weights)
        for contrast in deciding_contrasts
        for measure in BESIDE
    )
    texts = [
        f"{c.measure}: {c.rows}" for c in other_contrasts if c.key not in deciding_keys
    ]
    return list(dict.fromkeys([*texts, *config.secondary]))


def gather(
    measures: Mapping[str, Measured],
    trained: Mapping[str, str],
    config: StudyConfig,
    secondary: Sequence[str],
    earlier: Evidence = _NO_EVIDENCE,
) -> Evidence:
    """The evidence of measures by seed and item, without the score.

    What an earlier study knows of its rows stays as it is where their items are not
    published: comparisons with controls, and contrasts that did not decide there.

    Raises:
      UserError: see `Measured.combined`.
    """
    if parts := [measures[part] for part in SCORE_PARTS if part in measures]:
        measures = {**measures, SCORE: average(SCORE, parts)}
    known_measures = {
        key: measure for key, measure in earlier.measures.items() if key not in measures
    }
    for key, measure in measures.items():
        checks = None
        if key not in CHECKED_BY:
            checks = check(measure, trained, config.control_rows)
            old_measure = earlier.measures.get(key)
            old_checks = {c.row: c for c in (old_measure and old_measure.checks) or ()}
            checks = [old_checks.get(c.row, c) for c in checks]
        known_measures[key] = Measure(
            measure.name, measure.unit, measure.seeds, measure.baseline, checks
        )
    deciding = [text for texts in config.claims.values() for text in texts]
    texts = [*deciding, *config.sensitivity.values(), *secondary]
    estimates = {}
    for contrast in map(Contrast.read, texts):
        measured = measures.get(contrast.measure)
        if (
            measured is not None
            and len(measured.seeds) > 1
            and contrast.weights.keys() <= measured.values.keys()
        ):
            estimates[contrast.key] = estimate(measured, contrast.weights)
        elif contrast.key in earlier.estimates:
            estimates[contrast.key] = earlier.estimates[contrast.key]
    return Evidence(
        trained,
        known_measures,
        estimates,
        config.claims,
        config.sensitivity,
        config.papers,
        config.control,
    )


def _plateau(reader):
    """The training loss below which a run has left the plateau; see `curve`."""
    for _, _, job in reader.models() if unigram_entropy(reader) else ():
        entries = files.read_json(os.path.join(job.folder, "sampling.json"))
        shares = {language: entry["drawn"] for language, entry in entries.items()}
        return crossing_level(unigram_entropy(reader), shares)
    return math.nan


def _read_runs(reader, curves, loss, level) -> dict[str, dict[int, TrainedRun]]:
    """Row -> seed -> the progress of training.

    A run without a measured held-out loss has NaN there and counts as untrained.
    """
    entropy = unigram_entropy(reader)
    if not entropy:
        return {}
    final_gaps: dict[tuple[str, int], float] = {}
    for row, languages in loss.values.items() if loss else ():
        gaps = [
            entropy[name] - losses.mean(axis=1) for name, losses in languages.items()
        ]
        for seed, gap in zip(loss.seeds, np.min(gaps, axis=0).tolist(), strict=True):
            final_gaps[row, seed] = gap
    runs: dict[str, dict[int, TrainedRun]] = {}
    for (row, seed), curve in curves.items():
        run = TrainedRun(final_gaps.get((row, seed), math.nan), crossing(curve, level))
        runs.setdefault(row, {})[seed] = run
    return runs


def _numbers(values):
    return {seed: value for seed, value in values.items() if value is not None}


def _since_crossing(curves, runs):
    """The steps that every run has after crossing; row -> seed -> loss after these."""
    crossings = {
        (row, seed): run.crossing
        for row, by_seed in runs.items()
        for seed, run in by_seed.items()
        if run.crossing is not None
    }
    lengths = [int(curves[run].steps[-1]) - step for run, step in crossings.items()]
    common, later = min(lengths, default=0), {}
    for (row, seed), step in crossings.items():
        curve = curves[row, seed]
        loss = float(np.interp(step + common, curve.steps, smoothed(curve)))
        later.setdefault(row, {})[seed] = loss
    return common, later
