"""Judges the claims: first whether the numbers may decide, then what they decide.

A claim gets the first of these verdicts that applies:
  not run at this size  if one of its rows was not run;
  not measured          if none of its measures was taken; a claim of which a part was
                        measured is judged by that part, and says so;
  too few seeds         with fewer than 5: the rule is fixed for 5 or more;
  void                  if one of its rows did not train;
  not testable          if one of its measures does not show an effect of pre-training,
                        see `check`;
  supported, contradicted, no effect above the margin, or undecided: see `judge`.
The first five say nothing about the paper.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from decoupled.reproduction.claims import (
    ABOVE,
    CHECKED_BY,
    CLAIMS,
    CONTROLLED,
    CROSSED_BY,
    ENDS_BELOW,
    MARGINS,
    MIN_SEEDS,
    NOT_BELOW,
    SCORE,
    SCORE_PARTS,
    WITHIN,
    Claim,
    Contrast,
)
from decoupled.reproduction.statistics import (
    ALPHA,
    CONTROL,
    Estimate,
    Measured,
    average,
    bootstrap,
    estimate,
    holm,
)

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
NO_EFFECT = "no effect above the margin"
UNDECIDED = "undecided"
NOT_TESTABLE = "not testable"
NOT_MEASURED = "not measured"
VOID = "void"
NOT_RUN = "not run at this size"
TOO_FEW = "too few seeds"
# They say nothing about the paper.
SILENT = (NOT_MEASURED, NOT_RUN, TOO_FEW, VOID, NOT_TESTABLE)


class Checked(NamedTuple):
    """A measure of one row, compared with its control and its baseline.

    gain: the row minus its control, None if one of them was not measured.
    over_baseline: the row minus the trivial baseline, None without a baseline. Both are
    positive if the row is better.
    """

    row: str
    gain: Estimate | None
    over_baseline: Estimate | None

    def passed(self) -> bool:
        """Whether the 95% intervals of both differences are above 0."""
        gains = [gain for gain in (self.gain, self.over_baseline) if gain]
        return bool(self.gain) and all(gain.interval()[0] > 0 for gain in gains)


class Measure(NamedTuple):
    """What is known of a measure without its items.

    seeds: of all rows. baseline: see `Measured`. checks: None for a measure that
    another one is checked by.
    """

    name: str
    unit: str
    seeds: Sequence[int]
    baseline: float | None
    checks: Sequence[Checked] | None


class Compared(NamedTuple):
    """A contrast with its numbers; resampled: the 95% interval of the bootstrap."""

    estimate: Estimate
    resampled: tuple[float, float]


class Evidence(NamedTuple):
    """All that verdicts depend on.

    trained: row -> why contrasts with it are void, or "", for all rows that were run.
    measures: by the names in `claims`, with the score. compared: `Contrast.key()` ->
    its numbers, for all contrasts of claims whose rows were measured.
    """

    trained: Mapping[str, str]
    measures: Mapping[str, Measure]
    compared: Mapping[str, Compared]


class Part(NamedTuple):
    """A contrast with what its rule makes of its numbers.

    name: of the measure. state: one of the first five verdicts if the contrast decides
    nothing, else "". p_value: of the contrast's own rule, or two-sided against 0 for a
    secondary contrast; not corrected. margin: a smaller difference counts as no effect.
    smallest, smallest_corrected: the distance from the rule's bound that is detected
    with 80% power, without correction and at Holm's first step; for a rule of
    equivalence, the smallest margin that is shown with that power if there is no
    difference.
    """

    contrast: Contrast
    name: str
    unit: str
    state: str
    reason: str
    estimate: Estimate | None = None
    resampled: tuple[float, float] | None = None
    p_value: float | None = None
    margin: float | None = None
    smallest: float | None = None
    smallest_corrected: float | None = None
    paper: float | None = None

    def title(self) -> str:
        """The measure and the rows."""
        return f"{self.name}, {self.contrast.rows()}"


class Judged(NamedTuple):
    """A claim with its verdict.

    verdict: of the parts that were measured. corrected: the largest p of its parts, by
    Holm's method over the claims that were run; None for a verdict of `SILENT`.
    secondary: contrasts that decide nothing, without those that were not measured.
    sentences: the reasons for the verdict.
    """

    claim: Claim
    verdict: str
    corrected: float | None
    parts: list[Part]
    secondary: list[Part]
    sentences: list[str]

    def missing(self) -> list[str]:
        """The measures that were not taken, where others of the claim were."""
        missing = [part.name for part in self.parts if part.state == NOT_MEASURED]
        return missing if len(missing) < len(self.parts) else []


def gather(
    measures: Mapping[str, Measured],
    trained: Mapping[str, str],
    claims: Sequence[Claim] = CLAIMS,
) -> Evidence:
    """The evidence of measures by seed and item, without the score.

    Raises:
      UserError: see `statistics.checked`.
    """
    measures = with_score(measures)
    described = {
        key: Measure(
            measure.name,
            measure.unit,
            measure.seeds,
            measure.baseline,
            None if key in CHECKED_BY else check(measure, trained),
        )
        for key, measure in measures.items()
    }
    compared = {}
    for claim in claims:
        for contrast in (*claim.parts, *claim.secondary):
            measured = measures.get(contrast.measure)
            if (
                measured is not None
                and len(measured.seeds) > 1
                and contrast.weights.keys() <= measured.values.keys()
            ):
                compared[contrast.key()] = Compared(
                    estimate(measured, contrast.weights),
                    bootstrap(measured, contrast.weights),
                )
    return Evidence(trained, described, compared)


def with_score(measures: Mapping[str, Measured]) -> dict[str, Measured]:
    """The measures and the score S, the mean of its parts that were measured."""
    all_measures = dict(measures)
    if parts := [measures[part] for part in SCORE_PARTS if part in measures]:
        all_measures[SCORE] = average(SCORE, parts)
    return all_measures


class TrainedRun(NamedTuple):
    """The progress of training of a run.

    below: the unigram entropy minus the final held-out loss, in nats, in the language
    where this is least. crossed: the first step from which the smoothed training loss
    stays below the level that ends the plateau, or None.
    """

    below: float
    crossed: int | None


def untrained(row: str, runs: Mapping[int, TrainedRun], steps: int) -> str:
    """Why contrasts with a row are void, as a sentence; "" if it trained.

    Every seed must end at least `ENDS_BELOW` nats below the unigram entropy and must
    cross within `CROSSED_BY` of the steps. If one row has not left the plateau, a
    contrast shows when models learn, not what they learn.
    """
    for seed, run in runs.items():
        where = f"Row {row}, seed {seed},"
        # Written with `not`, so that NaN fails too.
        if not run.below >= ENDS_BELOW:
            return (
                f"{where} ends {run.below:.2f} nats below the unigram entropy, not "
                f"{ENDS_BELOW:g}."
            )
        if run.crossed is None:
            return f"{where} never leaves the plateau."
        if run.crossed > CROSSED_BY * steps:
            return (
                f"{where} leaves the plateau at step {run.crossed:,}, not within "
                f"{CROSSED_BY:.0%} of its {steps:,} steps."
            )
    return "" if runs else f"Row {row} has no curve of its training."


def check(measured: Measured, trained: Mapping[str, str]) -> list[Checked]:
    """Compares the rows that have controls with them and with the baseline.

    Rows that were not run or did not train are left out: they cannot show whether the
    measure works. With fewer than two seeds nothing can be estimated.

    Raises:
      UserError: see `statistics.checked`.
    """
    checks, sign = [], measured.better
    for row in CONTROLLED:
        if trained.get(row, "not run") or len(measured.seeds) < 2:
            continue
        gain, over = None, None
        if {row, CONTROL + row} <= measured.values.keys():
            gain = estimate(measured, {row: sign, CONTROL + row: -sign})
            if measured.baseline is not None:
                over = estimate(measured, {row: sign})
                over = over._replace(value=over.value - sign * measured.baseline)
        checks.append(Checked(row, gain, over))
    return checks


def judge(evidence: Evidence) -> list[Judged]:
    """All claims with their verdicts, in their order.

    The p of a part tests its rule in the direction of the estimate. A claim takes the
    largest p of its parts, corrected by Holm's method over all claims that were run;
    those that are void, not measured or not testable enter with a p of 1. If the
    corrected p is at most 5%, a claim is supported if every part is on the paper's
    side, and contradicted otherwise. If it is larger, there is no effect above the
    margin if the 95% interval of every part is within its margin and no rule has a
    margin, which would test this itself. All other claims are undecided.
    """
    run = [
        claim.number
        for claim in CLAIMS
        if all(row in evidence.trained for part in claim.parts for row in part.weights)
    ]
    first_step = ALPHA / max(1, len(run))
    parts = {
        c.number: [_part(p, evidence, first_step) for p in c.parts] for c in CLAIMS
    }
    corrected = holm({number: _largest(parts[number]) for number in run})
    judged = []
    for claim in CLAIMS:
        of_claim, p_value = parts[claim.number], corrected.get(claim.number)
        verdict = _verdict(of_claim, p_value)
        secondary = [
            _part(contrast, evidence, first_step)
            for contrast in claim.secondary
            if contrast.key() in evidence.compared
        ]
        if verdict in SILENT:
            p_value = None
        sentences = _sentences(of_claim, verdict, p_value)
        sentences += filter(None, [claim.note])
        judged.append(Judged(claim, verdict, p_value, of_claim, secondary, sentences))
    return judged


def _part(contrast, evidence, first_step):
    state, reason = _state(contrast, evidence)
    measure = evidence.measures.get(contrast.measure)
    name = measure.name if measure else contrast.measure.replace("_", " ")
    unit = measure.unit if measure else ""
    part = Part(contrast, name, unit, state, reason, paper=contrast.paper())
    if state not in ("", TOO_FEW, NOT_TESTABLE):
        return part
    if contrast.key() not in evidence.compared:
        return part
    compared = evidence.compared[contrast.key()]
    part = part._replace(**compared._asdict(), margin=MARGINS[unit])
    if state:
        return part
    is_margin = contrast.rule == WITHIN
    smallest = (
        compared.estimate.smallest_margin
        if is_margin
        else compared.estimate.smallest_effect
    )
    return part._replace(
        p_value=_p_value(part),
        smallest=smallest(),
        smallest_corrected=smallest(first_step),
    )


def _state(contrast, evidence):
    """Why a contrast decides nothing: a verdict and a sentence, or "" and ""."""
    lacking = [row for row in contrast.weights if row not in evidence.trained]
    if lacking:
        return NOT_RUN, f"Rows that were not run: {', '.join(lacking)}."
    measure = evidence.measures.get(contrast.measure)
    if measure is None:
        names = SCORE_PARTS if contrast.measure == SCORE else (contrast.measure,)
        names = ", ".join(name.replace("_", " ") for name in names)
        return NOT_MEASURED, f"Not measured: {names}."
    if len(measure.seeds) < MIN_SEEDS:
        return TOO_FEW, (
            f"{measure.name} has {len(measure.seeds)} seeds in all rows; a verdict "
            f"takes {MIN_SEEDS}."
        )
    if contrast.key() not in evidence.compared:
        return NOT_TESTABLE, f"{measure.name} was not measured for every row."
    for row in contrast.weights:
        if evidence.trained[row]:
            return VOID, evidence.trained[row]
    for key in CHECKED_BY.get(contrast.measure, (contrast.measure,)):
        # S does not include measures whose data are not available.
        if contrast.measure == SCORE and key not in evidence.measures:
            continue
        if reason := _unchecked(key, evidence.measures):
            return NOT_TESTABLE, reason
    return "", ""


def _unchecked(key, measures):
    """Why a measure decides nothing, as a sentence; "" if it passed."""
    if key not in measures:
        return f"Not measured: {key}."
    name, checks = measures[key].name, measures[key].checks
    for checked in checks:
        if checked.gain is None:
            return f"{name} has no control for {checked.row}."
        if not checked.passed():
            over = f"{_signed(checked.gain)} over its control"
            if checked.over_baseline:
                over += f" and {_signed(checked.over_baseline)} over the baseline"
            return (
                f"{name} does not show what pre-training brings: {checked.row} is "
                f"{over}; intervals have to lie above 0."
            )
    return "" if checks else f"{name} has no control."


def _p_value(part):
    """p of the part's rule, in the direction that the estimate has."""
    estimate, margin = part.estimate, part.margin
    if part.contrast.rule == WITHIN:
        outside = min(estimate.p_above(margin), estimate.p_below(-margin))
        return min(estimate.p_within(margin), outside)
    return estimate.p_differs(-margin if part.contrast.rule == NOT_BELOW else 0.0)


def _as_claimed(part):
    """Whether the estimate is on the paper's side of the rule."""
    if part.contrast.rule == WITHIN:
        return abs(part.estimate.value) < part.margin
    return part.estimate.value > (
        -part.margin if part.contrast.rule == NOT_BELOW else 0
    )


def _measured(parts: Iterable[Part]) -> list[Part]:
    return [part for part in parts if part.state != NOT_MEASURED]


def _largest(parts):
    p_values = [part.p_value for part in _measured(parts)]
    return max(p_values) if p_values and None not in p_values else 1.0


def _verdict(parts, corrected):
    measured = _measured(parts)
    if not measured:
        return NOT_MEASURED
    states = [part.state for part in measured]
    for state in (NOT_RUN, TOO_FEW, VOID, NOT_TESTABLE):
        if state in states:
            return state
    if corrected <= ALPHA:
        return SUPPORTED if all(map(_as_claimed, measured)) else CONTRADICTED
    without_margin = all(part.contrast.rule == ABOVE for part in measured)
    small = all(
        max(map(abs, part.estimate.interval())) < part.margin for part in measured
    )
    return NO_EFFECT if without_margin and small else UNDECIDED


def _sentences(parts, verdict, corrected):
    reasons = dict.fromkeys(part.reason for part in parts if part.reason)
    if verdict in SILENT:
        return list(reasons)
    sentences, measured = list(reasons), _measured(parts)
    for part in measured:
        rule, margin = part.contrast.rule, f"{part.margin:g} {part.unit}"
        side = "on the paper's side" if _as_claimed(part) else "against the paper"
        sentences.append(
            f"{part.title()}: {_signed(part.estimate)} {part.unit}, {side} (rule: "
            f"{rule}{'' if rule == ABOVE else f', {margin}'})."
        )
        if math.isinf(part.estimate.error):
            sentences.append(
                "It is exactly the same for all seeds, so nothing follows."
            )
        if rule == NOT_BELOW and part.estimate.interval()[0] > 0:
            sentences.append(
                "Its interval lies above 0 too, which is more than the claim."
            )
    how = "The p" if len(measured) == 1 else "The larger p of the parts"
    sentences.append(f"{how} is {p_text(corrected)} after Holm's correction.")
    if verdict == NO_EFFECT:
        sentences.append("Every interval lies within the margin to both sides of 0.")
    if verdict == UNDECIDED:
        sentences += map(could_have_been_seen, measured)
    return sentences


def could_have_been_seen(part: Part) -> str:
    """The smallest effect that a contrast could have shown, as a sentence."""
    size = f"{part.smallest_corrected:.2g} {part.unit} on {part.name}"
    what = {
        WITHIN: "Had there been no difference, a margin of {} would have been shown",
        NOT_BELOW: "An effect of {} above the lower margin would have been seen",
        ABOVE: "An effect of {} would have been seen",
    }[part.contrast.rule]
    return (
        f"{what.format(size)} with 80% power at Holm's first step "
        f"({part.smallest:.2g} without correction)."
    )


def _signed(estimate):
    low, high = estimate.interval()
    return f"{estimate.value:+.2f} ({low:+.2f} to {high:+.2f})"


def p_text(p_value: float) -> str:
    """A p value with three digits."""
    return f"{p_value:.3f}" if p_value >= 0.001 else "below 0.001"
