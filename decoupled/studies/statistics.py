"""Measures by seed and item, and differences of models estimated over both.

An item is the unit of sampling of the text: a verse in all languages, a sentence, or a
word. All rows have the same seeds and the same items, and both are samples: another
training would have other seeds, and another text other items. So the variance of a
difference of two rows has a component for seeds, one for items, and a residual (Searle,
Casella and McCulloch 1992, Variance Components, chapter 4). A paired test over seeds
alone treats the items as fixed: with 5 seeds its 95% interval covers only 84% if items
matter.
"""

import dataclasses
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy import integrate, optimize, special, stats

from decoupled.core.errors import UserError

POINTS, NATS, LOGITS, RANKS = "points", "nats", "logits", "MRR x 100"
# Prefix of a row's name for its control: the row after one step of pre-training.
CONTROL = "control:"
CONFIDENCE = 0.95
POWER = 0.8
# A gain over the control counts if it is above this many median absolute deviations.
_DEVIATIONS = 3.0
# A spread over seeds that is rounding error, relative to the values.
_ROUNDING = 1e-12
# Points of an integral over errors, and the share of each tail that it leaves out.
_INTEGRAL_POINTS, _TAIL = 100, 1e-12

# Component -> values of its items.
Components = Mapping[str, np.ndarray]


class Sums(NamedTuple):
    """What one model got on the items of a component, before any division.

    got: [items], or [layers, items]: right answers, or the sum of losses. of: [items],
    of how many.
    """

    got: np.ndarray
    of: np.ndarray


def ratios(sums: Sums) -> np.ndarray:
    """Pseudo-values of a ratio of sums, such as an accuracy over tokens of sentences.

    Their mean over the items, the last axis, is p = sum(got) / sum(of), and their
    spread that of p (the delta method: Cochran 1977, Sampling Techniques, section 6.3).
    """
    got, of = (np.asarray(values, np.float64) for values in sums)
    share = got.sum(axis=-1, keepdims=True) / of.sum(axis=-1, keepdims=True)
    return share + (got - share * of) / of.mean(axis=-1, keepdims=True)


def logits(sums: Sums) -> np.ndarray:
    """Pseudo-values of the logit of a mean share, by the delta method."""
    # A share of 0 or 1 has no logit, so p stays half an item away from both.
    values = ratios(sums)
    mean, bound = values.mean(axis=-1, keepdims=True), 0.5 / values.shape[-1]
    share = np.clip(mean, bound, 1 - bound)
    return np.log(share / (1 - share)) + (values - mean) / (share * (1 - share))


def spearman_items(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Jackknife pseudo-values of Spearman's correlation, one for each pair of values.

    Their mean is about the correlation, and their spread that of it.
    """
    rank_tables = np.ones([2, len(first), len(first)])
    for ranks, values in zip(rank_tables, (first, second), strict=True):
        signs = np.sign(values[None, :] - values[:, None])
        # Row i has the ranks of the others where i is left out.
        ranks[:] = stats.rankdata(values) - (signs + 1) / 2
    is_other = ~np.eye(len(first), dtype=bool)
    counts = is_other.sum(axis=1, keepdims=True)
    left, right = (
        ranks - (ranks * is_other).sum(axis=1, keepdims=True) / counts
        for ranks in rank_tables
    )
    sums = [(a * b * is_other).sum(axis=1) for a, b in
            ((left, right), (left, left), (right, right))]  # fmt: skip
    rho = stats.spearmanr(first, second).statistic
    return len(first) * rho - (len(first) - 1) * sums[0] / np.sqrt(sums[1] * sums[2])


def last_layer(values: np.ndarray) -> np.ndarray:
    """The last layer minus the mean of those below it, of [layers, items]."""
    return values[-1] - values[:-1].mean(axis=0)


# How the values of a measure come from its sums.
TRANSFORMS = {
    "share": ratios,
    "percent": lambda sums: 100.0 * ratios(sums),
    "last layer, points": lambda sums: last_layer(100.0 * ratios(sums)),
    "last layer, logits": lambda sums: last_layer(logits(sums)),
}


@dataclasses.dataclass(frozen=True)
class Measured:
    """One measure of all models.

    The value of a model is the mean over its components of the mean over items.

    name: on the page. unit: POINTS (accuracies x 100), NATS, LOGITS or RANKS.
    seeds: of all rows; a seed that is missing in one row is left out of all.
    values: row -> component -> float64 [seeds, items]. Each component has its own
    items, the same in every row. Rows that begin with `CONTROL` are controls.
    baseline: the value of a trivial baseline (word lookup, majority class, unigram
    entropy), or None. better: +1 if higher is better, -1 for losses.
    """

    name: str
    unit: str
    seeds: Sequence[int]
    values: Mapping[str, Components]
    baseline: float | None = None
    better: int = 1

    def by_seed(self, row: str) -> np.ndarray:
        """The value of a row for each seed, float64 [seeds]."""
        return np.mean(
            [component.mean(axis=1) for component in self.values[row].values()], axis=0
        )

    def combined(self, weights: Mapping[str, float]) -> dict[str, np.ndarray]:
        """A linear combination of rows: component -> float64 [seeds, items]."""
        rows = [self.values[row] for row in weights]
        shapes = {name: values.shape for name, values in rows[0].items()}
        for row, components in zip(weights, rows, strict=True):
            where = f"{self.name}, row {row}"
            row_shapes = {name: values.shape for name, values in components.items()}
            if row_shapes != shapes:
                raise UserError(
                    f"{where}: its components and items {row_shapes} are not those of "
                    f"the other rows, {shapes}; run the analysis again for all rows"
                )
            for name, values in components.items():
                if not (is_finite := np.isfinite(values).all(axis=1)).all():
                    seed = self.seeds[int(np.argmin(is_finite))]
                    raise UserError(
                        f"{where}, seed {seed}, {name}: a value is not a finite "
                        "number; look at that run and train it again"
                    )
        return {
            name: sum(w * r[name] for w, r in zip(weights.values(), rows, strict=True))
            for name in shapes
        }


def average(name: str, measures: Iterable[Measured]) -> Measured:
    """The mean of several measures, each with the same weight.

    The mean has the seeds and the rows that all measures have, and a baseline if all
    have one. Components keep their own items. They are scaled so that the plain mean
    over components gives each measure the same weight.
    """
    measures = list(measures)
    seeds = [s for s in measures[0].seeds if all(s in m.seeds for m in measures)]
    rows = [r for r in measures[0].values if all(r in m.values for m in measures)]
    values: dict[str, Components] = {}
    for row in rows:
        total = sum(len(measure.values[row]) for measure in measures)
        values[row] = {
            f"{measure.name}: {component}": items[list(map(measure.seeds.index, seeds))]
            * (total / (len(measures) * len(measure.values[row])))
            for measure in measures
            for component, items in measure.values[row].items()
        }
    baselines = [measure.baseline for measure in measures]
    baseline = None if None in baselines else float(np.mean(baselines))
    first = measures[0]
    return Measured(name, first.unit, seeds, values, baseline, first.better)


class Estimate(NamedTuple):
    """A difference, or any linear combination of rows.

    error: standard error of the value. It is infinite if the value is exactly the same
    for all seeds: then the runs are copies of each other, or the measure is constant,
    and nothing can be inferred. freedom: degrees of freedom of Student's t. items: of
    all components together.
    """

    value: float
    error: float
    freedom: float
    seeds: int
    items: int

    def interval(self) -> tuple[float, float]:
        """The two-sided confidence interval."""
        width = float(stats.t.ppf((1 + CONFIDENCE) / 2, self.freedom)) * self.error
        return self.value - width, self.value + width

    def p_above(self, bound: float) -> float:
        """One-sided p: small if the value is above `bound`."""
        return float(stats.t.sf((self.value - bound) / self.error, self.freedom))

    def p_below(self, bound: float) -> float:
        """One-sided p: small if the value is below `bound`."""
        return float(stats.t.sf((bound - self.value) / self.error, self.freedom))

    def p_differs(self, bound: float) -> float:
        """Two-sided p: small if the value differs from `bound`."""
        return 2 * min(self.p_above(bound), self.p_below(bound))

    def p_within(self, margin: float) -> float:
        """p of equivalence within `margin` of 0: the larger of two one-sided tests."""
        # Schuirmann 1987. At level a it agrees with the interval of confidence 1 - 2 a.
        return max(self.p_above(-margin), self.p_below(margin))

    def smallest_effect(self, alpha: float) -> float:
        """The distance from the bound that a two-sided test detects with `POWER`."""
        critical = stats.t.ppf(1 - alpha / 2, self.freedom)
        return self.error * _distance_with_power(
            lambda distance: stats.nct.sf(critical, self.freedom, distance)
        )

    def smallest_margin(self, alpha: float) -> float:
        """The smallest margin for which a true 0 passes `p_within` with `POWER`."""
        critical = stats.t.ppf(1 - alpha, self.freedom)
        error = stats.chi(self.freedom, scale=1 / math.sqrt(self.freedom))
        low, high = error.ppf(_TAIL), error.isf(_TAIL)

        def passes(distance):
            def density(s):
                return error.pdf(s) * (2 * special.ndtr(distance - critical * s) - 1)

            # With a larger error no value lies within the margin.
            end = min(high, distance / critical)
            return integrate.fixed_quad(density, low, end, n=_INTEGRAL_POINTS)[0]

        return self.error * _distance_with_power(passes)


def _distance_with_power(power_at):
    """The distance at which a power that rises to 1 is `POWER`."""
    high = 4.0
    while power_at(high) < POWER:
        high *= 2
    return float(optimize.brentq(lambda place: power_at(place) - POWER, 0.0, high))


def estimate(measured: Measured, weights: Mapping[str, float]) -> Estimate:
    """A linear combination of rows with its standard error; {"a": 1, "b": -1} is a - b.

    For one component with S seeds and I items the variance of the mean is
    (MS_seed + MS_item - MS_rest) / (S I). Several components share seeds but not items.
    Then the term of the seeds is the variance over seeds of the mean of the components
    / S, and each component with weight w adds w^2 (MS_item - MS_rest) / (S I). Degrees
    of freedom are Satterthwaite's (1946) over the mean squares.

    A negative term of a component is set to 0. So the variance is too large on average
    if items do not matter, by at most 0.4 sqrt(2 S / ((S - 1) I)) of MS_rest. This is
    2% with 5 seeds and 1,000 items, and intervals are slightly too wide. A component
    with one item (a measure without items) has no such term, which leaves the paired t
    test over seeds.

    Raises:
      UserError: see `Measured.combined`.
    """
    differences = measured.combined(weights)
    seeds, share = len(measured.seeds), 1 / len(differences)
    by_seed = share * sum(values.mean(axis=1) for values in differences.values())
    items = sum(values.shape[1] for values in differences.values())
    value = float(by_seed.mean())
    scale = max(
        np.abs(component).max()
        for row in weights
        for component in measured.values[row].values()
    )
    if np.ptp(by_seed) <= _ROUNDING * scale:
        return Estimate(value, math.inf, seeds - 1.0, seeds, items)
    variance = float(by_seed.var(ddof=1)) / seeds
    squares = variance**2 / (seeds - 1)
    for values in differences.values():
        item_square, rest_square = _mean_squares(values)
        if item_square > rest_square:
            factor, freedom = share**2 / values.size, values.shape[1] - 1
            variance += factor * (item_square - rest_square)
            squares += (factor * item_square) ** 2 / freedom
            squares += (factor * rest_square) ** 2 / (freedom * (seeds - 1))
    return Estimate(value, math.sqrt(variance), variance**2 / squares, seeds, items)


def _mean_squares(values):
    """Mean squares of items and of the rest, of [seeds, items]."""
    seeds, items = values.shape
    if items == 1:
        return 0.0, 0.0
    by_item = values.mean(axis=0)
    rest = values - by_item - values.mean(axis=1, keepdims=True) + values.mean()
    rest_square = float(np.sum(rest**2)) / ((seeds - 1) * (items - 1))
    return seeds * float(by_item.var(ddof=1)), rest_square


def clearly_above(values: Sequence[float], control: Sequence[float]) -> bool:
    """Whether trained models, by seed, beat their controls, whatever an outlier does.

    Either the least trained one is above the best control; or every seed gains, and the
    median gain is above 3 median absolute deviations (scaled to a normal's standard
    deviation) of the gains.
    """
    gains = np.subtract(values, control)
    spread = stats.median_abs_deviation(gains, scale="normal")
    all_gain = gains.min() > 0 and np.median(gains) > _DEVIATIONS * spread
    return bool(min(values) > max(control) or all_gain)


def holm(p_values: Mapping[Hashable, float]) -> dict[Hashable, float]:
    """p values corrected for multiple tests, by Holm's method (1979).

    A corrected value of at most alpha is significant with a family-wise error of alpha,
    for any dependence between the tests.
    """
    corrected_values, largest = {}, 0.0
    sorted_pairs = sorted(p_values.items(), key=lambda pair: pair[1])
    for place, (name, p_value) in enumerate(sorted_pairs):
        largest = max(largest, min(1.0, (len(sorted_pairs) - place) * p_value))
        corrected_values[name] = largest
    return {name: corrected_values[name] for name in p_values}
