"""Judges the claims: first whether the numbers may decide, then what they decide.

A claim gets the first of these verdicts that applies:
  not run at this size  if one of its rows was not run;
  too few seeds         with fewer than 5: the rule is fixed for 5 or more;
  void                  if one of its rows did not train, see `untrained`;
  not testable          if one of its measures was not taken, or does not show an
                        effect of pre-training, see `check`;
  supported, contradicted, no effect above the margin, or undecided: see `judge`.
The first four say nothing about the paper.
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
from decoupled.reproduction.measured import CONTROL, Measured, average
from decoupled.reproduction.statistics import (
    ALPHA,
    Estimate,
    bootstrap,
    estimate,
    holm,
)

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
NO_EFFECT = "no effect above the margin"
UNDECIDED = "undecided"
NOT_TESTABLE = "not testable"
VOID = "void"
NOT_RUN = "not run at this size"
TOO_FEW = "too few seeds"


class Trained(NamedTuple):
    """The progress of training of a run.

    below: the unigram entropy minus the final held-out loss, in nats, in the language
    where this is least. crossed: the first step from which the smoothed training loss
    stays below the level that ends the plateau, or None.
    steps: of the run.
    """

    below: float
    crossed: int | None
    steps: int


Training = Mapping[str, Mapping[int, Trained]]


class Checked(NamedTuple):
    """A measure of one row, compared with its control and its baseline.

    name: of the measure. row: see `claims.CONTROLLED`. gain: the row minus its control,
    None if one of them was not measured. over_baseline: the row minus the trivial
    baseline, None without a baseline. Both are positive if the row is better.
    """

    name: str
    row: str
    gain: Estimate | None
    over_baseline: Estimate | None

    def passed(self) -> bool:
        """Whether the 95% intervals of both differences are above 0."""
        found = [one for one in (self.gain, self.over_baseline) if one]
        return bool(self.gain) and all(one.interval()[0] > 0 for one in found)


class Part(NamedTuple):
    """A contrast with its numbers.

    name: of the measure. unit: of all numbers. state: one of the first four verdicts
    if the contrast decides nothing, else "". reason: the same as a sentence.
    found: the estimate with its degrees of freedom, seeds and items; None if nothing
    could be computed. interval, resampled: 95% intervals of the formula and of the
    bootstrap. p_value: of the contrast's own rule, or two-sided against 0 for a
    secondary contrast; not corrected. margin: a smaller difference counts as no effect.
    smallest, smallest_corrected: the distance from the rule's bound that is detected
    with 80% power, without correction and at Holm's first step; for a rule of
    equivalence, the smallest margin for which equivalence is shown with that power if
    there is no difference. paper: the paper's number.
    """

    contrast: Contrast
    name: str
    unit: str
    state: str
    reason: str
    found: Estimate | None = None
    interval: tuple[float, float] | None = None
    resampled: tuple[float, float] | None = None
    p_value: float | None = None
    margin: float | None = None
    smallest: float | None = None
    smallest_corrected: float | None = None
    paper: float | None = None


class Judged(NamedTuple):
    """A claim with its verdict.

    p_value: the largest of its parts. corrected: by Holm's method over the claims that
    were run. Both are None if nothing is tested. parts, secondary: its contrasts.
    Secondary ones are exploratory; those whose measure was not taken are left out.
    sentences: the reasons for the verdict.
    """

    claim: Claim
    verdict: str
    p_value: float | None
    corrected: float | None
    parts: list[Part]
    secondary: list[Part]
    sentences: list[str]


def with_score(measures: Mapping[str, Measured]) -> dict[str, Measured]:
    """The measures and the score S, the mean of its parts that were measured."""
    found = dict(measures)
    if parts := [found[part] for part in SCORE_PARTS if part in found]:
        found[SCORE] = average(SCORE, parts)
    return found


def untrained(row: str, training: Training, seeds: Iterable[int]) -> str:
    """Why contrasts with a row are void, as a sentence; "" if it trained.

    Every seed must end at least `ENDS_BELOW` nats below the unigram entropy and must
    cross within `CROSSED_BY` of its steps. If one row has not left the plateau, a
    contrast shows when models learn, not what they learn.
    """
    for seed in seeds:
        run = training[row].get(seed)
        where = f"Row {row}, seed {seed},"
        if run is None:
            return f"{where} has no curve of its training."
        # Written with `not`, so that NaN fails too.
        if not run.below >= ENDS_BELOW:
            return (
                f"{where} ends {run.below:.2f} nats below the unigram entropy, not "
                f"{ENDS_BELOW:g}."
            )
        if run.crossed is None:
            return f"{where} never leaves the plateau."
        if run.crossed > CROSSED_BY * run.steps:
            return (
                f"{where} leaves the plateau at step {run.crossed:,}, not within "
                f"{CROSSED_BY:.0%} of its {run.steps:,} steps."
            )
    return ""


def check(measured: Measured, training: Training) -> list[Checked]:
    """Compares the rows that have controls with them and with the baseline.

    Rows that were not run are left out. Rows that did not train are left out as well:
    contrasts with them are void, and they cannot show whether the measure works. With
    fewer than two seeds nothing can be estimated.

    Raises:
      UserError: see `measured.checked`.
    """
    found = []
    for row in CONTROLLED:
        usable = row in training and len(measured.seeds) > 1
        if not usable or untrained(row, training, measured.seeds):
            continue
        gain, over = None, None
        if {row, CONTROL + row} <= measured.values.keys():
            sign = measured.better
            gain = estimate(measured, {row: sign, CONTROL + row: -sign})
            if measured.baseline is not None:
                over = estimate(measured, {row: sign})
                over = over._replace(value=over.value - sign * measured.baseline)
        found.append(Checked(measured.name, row, gain, over))
    return found


def judge(
    measures: Mapping[str, Measured],
    training: Training,
    claims: Sequence[Claim] = CLAIMS,
) -> list[Judged]:
    """All claims with their verdicts, in their order.

    The p of a part tests its rule in the direction of the estimate. It is two-sided
    against 0, or against minus the margin. For equivalence it is the larger of two
    one-sided tests or, if the estimate is outside the margin, the one-sided p of being
    outside. A claim of several parts takes the largest p. The p of claims are corrected
    by Holm's method over all claims that were run; claims that are void or not testable
    enter with a p of 1. If the corrected p is at most 5%, a claim is supported if every
    part is on the paper's side, and contradicted otherwise. If the corrected p is
    larger, there is no effect above the margin if the 95% interval of every part is
    within its margin. (This holds for rules that compare with 0; a rule with a margin
    tests this itself.) All other claims are undecided.

    Args:
      measures: by the names in `decoupled.reproduction.claims`, without the score.
      training: row -> seed -> its progress, for all rows that were run.

    Raises:
      UserError: see `measured.checked`.
    """
    measures = with_score(measures)
    rows = {c.number: {r for one in c.parts for r in one.weights} for c in claims}
    run = [number for number in rows if rows[number] <= training.keys()]
    judging = _Judging(measures, training, len(run))
    parts = {claim.number: [*map(judging.part, claim.parts)] for claim in claims}
    p_values = {number: _largest(parts[number]) for number in run}
    corrected = holm({n: 1.0 if p is None else p for n, p in p_values.items()})
    judged = []
    for claim in claims:
        own, p_value = parts[claim.number], p_values.get(claim.number)
        holms = None if p_value is None else corrected[claim.number]
        verdict = _verdict(own, holms)
        secondary = [*map(judging.part, filter(judging.measured, claim.secondary))]
        sentences = [*_sentences(own, verdict, holms), *filter(None, [claim.note])]
        judged.append(Judged(claim, verdict, p_value, holms, own, secondary, sentences))
    return judged


class _Judging:
    """Makes parts of contrasts; family: the number of claims in Holm's correction."""

    def __init__(self, measures, training, family):
        self._measures, self._training = measures, training
        self._first_step = ALPHA / max(1, family)
        # Measure -> the reason why it decides nothing.
        self._unchecked = {}

    def measured(self, contrast):
        """Whether all rows of a contrast have its measure."""
        found = self._measures.get(contrast.measure)
        return found is not None and contrast.weights.keys() <= found.values.keys()

    def part(self, contrast):
        state, reason = self._state(contrast)
        measured = self._measures.get(contrast.measure)
        name = measured.name if measured else contrast.measure
        unit = measured.unit if measured else ""
        part = Part(contrast, name, unit, state, reason, paper=contrast.paper())
        shown = state in ("", TOO_FEW, NOT_TESTABLE) and self.measured(contrast)
        if not shown or len(measured.seeds) < 2:
            return part
        found = estimate(measured, contrast.weights)
        part = part._replace(
            found=found,
            interval=found.interval(),
            resampled=bootstrap(measured, contrast.weights),
            margin=MARGINS[unit],
        )
        if state:
            return part
        smallest = (
            found.smallest_margin if contrast.rule == WITHIN else found.smallest_effect
        )
        return part._replace(
            p_value=_p_value(part),
            smallest=smallest(),
            smallest_corrected=smallest(self._first_step),
        )

    def _state(self, contrast):
        """Why a contrast decides nothing: a verdict and a sentence, or "" and ""."""
        lacking = [row for row in contrast.weights if row not in self._training]
        if lacking:
            return NOT_RUN, f"Rows that were not run: {', '.join(lacking)}."
        measured = self._measures.get(contrast.measure)
        if measured is None:
            of_score = contrast.measure == SCORE
            names = SCORE_PARTS if of_score else (contrast.measure,)
            return NOT_TESTABLE, f"Not measured: {', '.join(names)}."
        if not self.measured(contrast):
            return NOT_TESTABLE, f"{measured.name} was not measured for every row."
        if len(measured.seeds) < MIN_SEEDS:
            return TOO_FEW, (
                f"{measured.name} has {len(measured.seeds)} seeds in all rows; a "
                f"verdict takes {MIN_SEEDS}."
            )
        for row in contrast.weights:
            if reason := untrained(row, self._training, measured.seeds):
                return VOID, reason
        for key in CHECKED_BY.get(contrast.measure, (contrast.measure,)):
            # S does not include measures whose data are not available.
            if contrast.measure == SCORE and key not in self._measures:
                continue
            if key not in self._unchecked:
                self._unchecked[key] = self._check(key)
            if self._unchecked[key]:
                return NOT_TESTABLE, self._unchecked[key]
        return "", ""

    def _check(self, key):
        """Why a measure decides nothing, as a sentence; "" if it passed."""
        if key not in self._measures:
            return f"Not measured: {key}."
        name = self._measures[key].name
        checks = check(self._measures[key], self._training)
        for one in checks:
            if one.gain is None:
                return f"{name} has no control for {one.row}."
            if not one.passed():
                over = f"{_signed(one.gain)} over its control"
                if one.over_baseline:
                    over += f" and {_signed(one.over_baseline)} over the baseline"
                return (
                    f"{name} does not show what pre-training brings: {one.row} is "
                    f"{over}; intervals have to lie above 0."
                )
        return "" if checks else f"{name} has no control."


def _p_value(part):
    """p of the part's rule, in the direction that the estimate has."""
    found, margin = part.found, part.margin
    if part.contrast.rule == WITHIN:
        outside = min(found.p_above(margin), found.p_below(-margin))
        return min(found.p_within(margin), outside)
    return found.p_differs(-margin if part.contrast.rule == NOT_BELOW else 0.0)


def _as_claimed(part):
    """Whether the estimate is on the paper's side of the rule."""
    if part.contrast.rule == WITHIN:
        return abs(part.found.value) < part.margin
    return part.found.value > (-part.margin if part.contrast.rule == NOT_BELOW else 0)


def _largest(parts):
    found = [part.p_value for part in parts]
    return None if None in found else max(found)


def _verdict(parts, corrected):
    states = [part.state for part in parts]
    for state in (NOT_RUN, TOO_FEW, VOID, NOT_TESTABLE):
        if state in states:
            return state
    if corrected <= ALPHA:
        return SUPPORTED if all(map(_as_claimed, parts)) else CONTRADICTED
    without_margin = all(part.contrast.rule == ABOVE for part in parts)
    small = all(
        -part.margin < part.interval[0] and part.interval[1] < part.margin
        for part in parts
    )
    return NO_EFFECT if without_margin and small else UNDECIDED


def _sentences(parts, verdict, corrected):
    """Why a claim has its verdict."""
    reasons = list(dict.fromkeys(part.reason for part in parts if part.reason))
    if reasons:
        return reasons
    found = []
    for part in parts:
        rule, margin = part.contrast.rule, f"{part.margin:g} {part.unit}"
        side = "on the paper's side" if _as_claimed(part) else "against the paper"
        found.append(
            f"{part.name}, {part.contrast.rows()}: {_signed(part.found)} {part.unit}, "
            f"{side} (rule: {rule}{'' if rule == ABOVE else f', {margin}'})."
        )
        if math.isinf(part.found.error):
            found.append("It is exactly the same for all seeds, so nothing follows.")
        if rule == NOT_BELOW and part.interval[0] > 0:
            found.append("Its interval lies above 0 too, which is more than the claim.")
    how = "The p" if len(parts) == 1 else "The larger p of the parts"
    found.append(f"{how} is {_p(corrected)} after Holm's correction.")
    if verdict == NO_EFFECT:
        found.append("Every interval lies within the margin to both sides of 0.")
    if verdict == UNDECIDED:
        found += map(could_have_been_seen, parts)
    return found


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


def _signed(found):
    low, high = found.interval()
    return f"{found.value:+.2f} ({low:+.2f} to {high:+.2f})"


def _p(p_value):
    return f"{p_value:.3f}" if p_value >= 0.001 else "below 0.001"
