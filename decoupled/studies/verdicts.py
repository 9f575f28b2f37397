"""Judges claims: first whether the numbers may decide, then what they decide.

A claim gets the first of these verdicts that applies:
  not run         one of its rows was not run;
  not measured    none of its measures was taken; a claim of which a part was measured
                  is judged by that part;
  too few seeds   fewer than 5: the rules are fixed for 5 or more;
  void            one of its rows did not train (`untrained`);
  not testable    a measure does not show an effect of pre-training (`Check`), or not
                  the effect without which it could not show the claim's
                  (`StudyConfig.sensitivity`);
  supported, contradicted, no effect above the margin, or undecided: see `judge`.
The first five say nothing about the paper.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from decoupled.studies.claims import (
    ABOVE,
    BELOW,
    CHECKED_BY,
    CLAIMS,
    MARGINS,
    NOT_BELOW,
    SCORE,
    WITHIN,
    Contrast,
)
from decoupled.studies.statistics import (
    CONTROL,
    Estimate,
    Measured,
    clearly_above,
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
NOT_RUN = "not run"
TOO_FEW = "too few seeds"
MIN_SEEDS = 5
# The family-wise error of all claims.
ALPHA = 0.05
# Every seed of a row must end at least this far below the unigram entropy, in nats, and
# must cross the level within this share of its steps.
ENDS_BELOW, CROSSED_BY = 1.5, 0.6
# How a gain over the control has to be clear: by its 95% interval, as in the first
# study, which one collapsed control of five widens beyond 0; or by `clearly_above`.
BY_INTERVAL, BY_SEEDS = "interval", "seeds"


class Check(NamedTuple):
    """A measure of one row, compared with its control and its baseline.

    gain: the row minus its control, None if one of them was not measured. clear: see
    `clearly_above`. over_baseline: the row minus the trivial baseline, None without a
    baseline. Both are positive if the row is better.
    """

    row: str
    gain: Estimate | None
    clear: bool
    over_baseline: Estimate | None

    def passed(self, how: str) -> bool:
        """Whether the row clearly beats its control, and the baseline's interval."""
        if self.gain is None:
            return False
        is_gain = self.clear if how == BY_SEEDS else self.gain.interval()[0] > 0
        over_baseline = self.over_baseline
        return is_gain and (over_baseline is None or over_baseline.interval()[0] > 0)


class Measure(NamedTuple):
    """What is known of a measure without its items; see `Measured`.

    checks: None for a measure that another one is checked by.
    """

    name: str
    unit: str
    seeds: Sequence[int]
    baseline: float | None
    checks: Sequence[Check] | None


class Evidence(NamedTuple):
    """All that verdicts depend on.

    trained: row -> why contrasts with it are void, or "", for all rows that were run.
    measures: by the names in `claims`, with the score. estimates: `Contrast.key` -> its
    estimate, for all contrasts whose rows were measured. claims: number or question ->
    contrasts that decide it. sensitivity: claim -> the contrast that must be positive.
    papers: row -> the paper's row. control: how gains have to be clear.
    """

    trained: Mapping[str, str]
    measures: Mapping[str, Measure]
    estimates: Mapping[str, Estimate]
    claims: Mapping[str, Sequence[str]]
    sensitivity: Mapping[str, str]
    papers: Mapping[str, str]
    control: str = BY_SEEDS


class Part(NamedTuple):
    """A contrast with what its rule makes of its numbers.

    name: of the measure. state: one of the first five verdicts if the contrast decides
    nothing, else "". p_value: of the contrast's own rule, or two-sided against 0 for a
    secondary contrast; not corrected. margin: a smaller difference counts as no effect.
    smallest: the distance from the rule's bound that is detected with 80% power at
    Holm's first step; for a rule of equivalence, the smallest margin that is shown with
    that power if there is no difference.
    """

    contrast: Contrast
    name: str
    unit: str
    state: str = ""
    reason: str = ""
    estimate: Estimate | None = None
    margin: float = 0.0
    p_value: float | None = None
    smallest: float | None = None
    paper: float | None = None

    @property
    def title(self) -> str:
        """The measure and the rows."""
        return f"{self.name}, {self.contrast.rows}"

    def is_supported(self) -> bool:
        """Whether the estimate is on the claim's side of the rule."""
        value, rule = self.estimate.value, self.contrast.rule
        if rule == WITHIN:
            return abs(value) < self.margin
        return value < 0 if rule == BELOW else value > self._bound()

    def is_small(self) -> bool:
        """Whether the interval lies within the margin, of a rule without a margin."""
        low, high = self.estimate.interval()
        is_one_sided = self.contrast.rule in (ABOVE, BELOW)
        return is_one_sided and max(-low, high) < self.margin

    def _bound(self):
        return -self.margin if self.contrast.rule == NOT_BELOW else 0.0

    def with_p_value(self, alpha: float) -> "Part":
        """The part with its p, in the estimate's direction, and its smallest effect."""
        estimate, margin = self.estimate, self.margin
        if self.contrast.rule == WITHIN:
            p_outside = min(estimate.p_above(margin), estimate.p_below(-margin))
            p_value = min(estimate.p_within(margin), p_outside)
            return self._replace(
                p_value=p_value, smallest=estimate.smallest_margin(alpha)
            )
        p_value = estimate.p_differs(self._bound())
        return self._replace(p_value=p_value, smallest=estimate.smallest_effect(alpha))


class ClaimVerdict(NamedTuple):
    """A claim with its verdict.

    claim: number or question. corrected_p: the largest p of its parts, by Holm's method
    over the claims that were run; None where nothing was tested. reasons: why a part
    decides nothing.
    """

    claim: str
    verdict: str
    corrected_p: float | None
    parts: Sequence[Part]
    reasons: Sequence[str]

    def title(self) -> list[str]:
        """The number of a claim of the paper, and the claim; or "" and the question."""
        is_paper = self.claim in CLAIMS
        return [self.claim, CLAIMS[self.claim]] if is_paper else ["", self.claim]

    def missing(self) -> list[str]:
        """The measures that were not taken, where others of the claim were."""
        missing = [part.name for part in self.parts if part.state == NOT_MEASURED]
        return missing if len(missing) < len(self.parts) else []


class TrainedRun(NamedTuple):
    """The progress of training of a run.

    gap: the unigram entropy minus the final held-out loss, in nats, in the language
    where this is least. crossing: the first step from which the smoothed training loss
    stays below the level that ends the plateau, or None.
    """

    gap: float
    crossing: int | None


def untrained(row: str, runs: Mapping[int, TrainedRun], steps: int) -> str:
    """Why contrasts with a row are void, as a sentence; "" if it trained.

    If one row has not left the plateau, a contrast shows when models learn, not what
    they learn.
    """
    for seed, run in runs.items():
        where = f"Row {row}, seed {seed},"
        # Written with `not`, so that NaN fails too.
        if not run.gap >= ENDS_BELOW:
            return (
                f"{where} ends {run.gap:.2f} nats below the unigram entropy, not "
                f"{ENDS_BELOW:g}."
            )
        if run.crossing is None:
            return f"{where} never leaves the plateau."
        if run.crossing > CROSSED_BY * steps:
            return (
                f"{where} leaves the plateau at step {run.crossing:,}, not within "
                f"{CROSSED_BY:.0%} of its {steps:,} steps."
            )
    return "" if runs else f"Row {row} has no curve of its training."


def check(
    measured: Measured, trained: Mapping[str, str], rows: Iterable[str]
) -> list[Check]:
    """Compares rows with their controls and with the baseline.

    Rows that were not run or did not train are left out: they cannot show whether the
    measure works. With fewer than two seeds nothing can be estimated.
    """
    checks, sign = [], measured.better
    for row in rows:
        if trained.get(row, "not run") or len(measured.seeds) < 2:
            continue
        gain, clear, excess = None, False, None
        if {row, CONTROL + row} <= measured.values.keys():
            gain = estimate(measured, {row: sign, CONTROL + row: -sign})
            values = [sign * measured.by_seed(name) for name in (row, CONTROL + row)]
            clear = clearly_above(*values)
            if measured.baseline is not None:
                excess = estimate(measured, {row: sign})
                excess = excess._replace(value=excess.value - sign * measured.baseline)
        checks.append(Check(row, gain, clear, excess))
    return checks


def judge(evidence: Evidence) -> list[ClaimVerdict]:
    """All claims with their verdicts.

    The p of a part tests its rule in the direction of the estimate. A claim takes the
    largest p of its parts, corrected by Holm's method over all claims that were run;
    those that are void, not measured or not testable enter with a p of 1. If the
    corrected p is at most 5%, a claim is supported if every part is on its side, and
    contradicted otherwise. If it is larger, there is no effect above the margin if the
    95% interval of every part is within its margin and no rule has a margin, which
    would test this itself. All other claims are undecided.
    """
    contrasts = {
        claim: [Contrast.read(text) for text in texts]
        for claim, texts in evidence.claims.items()
    }
    run_claims = [
        claim
        for claim, parts in contrasts.items()
        if all(row in evidence.trained for part in parts for row in part.weights)
    ]
    alpha = ALPHA / max(1, len(run_claims))
    parts = {
        claim: [part_of(contrast, evidence, alpha, claim) for contrast in group]
        for claim, group in contrasts.items()
    }
    corrected_p = holm({claim: _largest(parts[claim]) for claim in run_claims})
    verdicts = []
    for claim, claim_parts in parts.items():
        verdict = _verdict(claim_parts, corrected_p.get(claim))
        reasons = list(dict.fromkeys(p.reason for p in claim_parts if p.reason))
        is_silent = verdict in {p.state for p in claim_parts}
        p_value = None if is_silent else corrected_p[claim]
        verdicts.append(ClaimVerdict(claim, verdict, p_value, claim_parts, reasons))
    return verdicts


def part_of(
    contrast: Contrast, evidence: Evidence, alpha: float = ALPHA, claim: str = ""
) -> Part:
    """A contrast with its numbers, as far as there are any."""
    measure = evidence.measures.get(contrast.measure)
    state, reason = _state(contrast, evidence, claim)
    part = Part(
        contrast,
        measure.name if measure else contrast.measure.replace("_", " "),
        measure.unit if measure else "",
        state,
        reason,
        paper=contrast.paper(evidence.papers),
    )
    if contrast.key in evidence.estimates and state not in (NOT_RUN, VOID):
        estimate = evidence.estimates[contrast.key]
        part = part._replace(estimate=estimate, margin=MARGINS[part.unit])
        if not state:
            part = part.with_p_value(alpha)
    return part


def _state(contrast, evidence, claim):
    """Why a contrast decides nothing: a verdict and a sentence, or "" and ""."""
    missing = [row for row in contrast.weights if row not in evidence.trained]
    if missing:
        return NOT_RUN, f"Rows that were not run: {', '.join(missing)}."
    measure = evidence.measures.get(contrast.measure)
    if measure is None:
        return NOT_MEASURED, f"Not measured: {contrast.measure.replace('_', ' ')}."
    if len(measure.seeds) < MIN_SEEDS:
        return TOO_FEW, (
            f"{measure.name} has {len(measure.seeds)} seeds in all rows; a verdict "
            f"takes {MIN_SEEDS}."
        )
    if contrast.key not in evidence.estimates:
        return NOT_TESTABLE, f"{measure.name} was not measured for every row."
    for row in contrast.weights:
        if evidence.trained[row]:
            return VOID, evidence.trained[row]
    for key in CHECKED_BY.get(contrast.measure, (contrast.measure,)):
        # S does not include measures whose data are not available.
        if contrast.measure == SCORE and key not in evidence.measures:
            continue
        if reason := _failed_check(key, evidence):
            return NOT_TESTABLE, reason
    if text := evidence.sensitivity.get(claim):
        condition = Contrast.read(text)
        effect = evidence.estimates.get(condition.key)
        if not effect or effect.interval()[0] <= 0:
            return NOT_TESTABLE, f"{condition.key}: its interval does not lie above 0."
    return "", ""


def _failed_check(key, evidence):
    """Why a measure decides nothing, as a sentence; "" if it passed."""
    if key not in evidence.measures:
        return f"Not measured: {key}."
    measure = evidence.measures[key]
    for row_check in measure.checks:
        if not row_check.passed(evidence.control):
            return (
                f"{measure.name}: {row_check.row} is not clearly above its control and "
                "baseline."
            )
    return "" if measure.checks else f"{measure.name} has no control."


def _measured_parts(parts):
    return [part for part in parts if part.state != NOT_MEASURED]


def _largest(parts):
    p_values = [part.p_value for part in _measured_parts(parts)]
    return max(p_values) if p_values and None not in p_values else 1.0


def _verdict(parts, corrected_p):
    measured = _measured_parts(parts)
    if not measured:
        return NOT_MEASURED
    states = [part.state for part in measured]
    for state in (NOT_RUN, TOO_FEW, VOID, NOT_TESTABLE):
        if state in states:
            return state
    if corrected_p <= ALPHA:
        supported = all(part.is_supported() for part in measured)
        return SUPPORTED if supported else CONTRADICTED
    are_small = all(part.is_small() for part in measured)
    return NO_EFFECT if are_small else UNDECIDED
