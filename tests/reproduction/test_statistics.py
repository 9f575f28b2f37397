"""Crossed seeds and items: by hand, against scipy, and by simulated coverage."""

import math

import numpy as np
import pytest
from scipy import stats

from decoupled.core.errors import UserError
from decoupled.reproduction.measured import POINTS, Measured, average
from decoupled.reproduction.statistics import (
    Estimate,
    bootstrap,
    estimate,
    holm,
)

DIFFERENCE = {"a": 1.0, "b": -1.0}


def measured(values, name="measure"):
    """Of row -> component -> values, or row -> values."""
    values = {
        row: one if isinstance(one, dict) else {"all": np.asarray(one, float)}
        for row, one in values.items()
    }
    count = len(next(iter(values[min(values)].values())))
    return Measured(name, POINTS, tuple(range(count)), values, None, 1)


def of_differences(*components):
    """A measure in which a - b has these values in each component."""
    both = {str(number): np.asarray(one) for number, one in enumerate(components)}
    zero = {name: np.zeros_like(one) for name, one in both.items()}
    return measured({"a": both, "b": zero})


def crossed(generator, seeds, items, of_seed, of_item, rest=1.0):
    """Random values [seeds, items] with these standard deviations."""
    return (
        of_seed * generator.standard_normal((seeds, 1))
        + of_item * generator.standard_normal((1, items))
        + rest * generator.standard_normal((seeds, items))
    )


def test_crossed_variance_by_hand():
    # Means of seeds 2, 5, of items 2, 3, 5.5; rest -0.5, 1.5, -1 and the opposite.
    values = [[0.0, 3.0, 3.0], [4.0, 3.0, 8.0]]
    found = estimate(of_differences(values), DIFFERENCE)
    seed, item, rest = 3 * 4.5, 2 * 3.25, 2 * (0.25 + 2.25 + 1) / 2
    assert found.value == 3.5 and (found.seeds, found.items) == (2, 3)
    variance = (seed + item - rest) / 6
    assert found.error == pytest.approx(math.sqrt(variance))
    squares = (seed**2 / 1 + item**2 / 2 + rest**2 / 2) / 36
    assert found.freedom == pytest.approx(variance**2 / squares)


def test_one_item_is_the_paired_test_of_scipy():
    first, second = [61.2, 60.1, 63.9, 62.0], [60.0, 60.3, 61.1, 61.9]
    one = measured({"a": np.c_[first], "b": np.c_[second]})
    found = estimate(one, DIFFERENCE)
    expected = stats.ttest_rel(first, second)
    assert found.freedom == 3
    assert found.p_differs() == pytest.approx(expected.pvalue)
    bounds = expected.confidence_interval(0.95)
    assert found.interval() == pytest.approx((bounds.low, bounds.high))
    above = stats.ttest_rel(first, second, alternative="greater").pvalue
    assert found.p_above() == pytest.approx(above)
    assert found.p_below() == pytest.approx(1 - above)


def test_items_that_matter_less_than_the_rest_add_nothing():
    # The items' means are all 1, so their mean square is 0.
    found = estimate(of_differences([[0.0, 1.0, 2.0], [3.0, 2.0, 1.0]]), DIFFERENCE)
    assert found.value == 1.5 and found.freedom == 1
    assert found.error == pytest.approx(0.5)


def test_components_have_items_of_their_own():
    generator = np.random.default_rng(1)
    first = crossed(generator, 5, 40, 0.3, 2.0)
    second = crossed(generator, 5, 7, 0.3, 2.0)
    found = estimate(of_differences(first, second), DIFFERENCE)
    by_seed = (first.mean(axis=1) + second.mean(axis=1)) / 2
    variance = by_seed.var(ddof=1) / 5
    squares = variance**2 / 4
    for one in (first, second):
        count = one.shape[1]
        item = 5 * one.mean(axis=0).var(ddof=1)
        seed = count * one.mean(axis=1).var(ddof=1)
        total = 5 * count * one.mean() ** 2
        rest = np.sum(one**2) - total - 4 * seed - (count - 1) * item
        rest /= 4 * (count - 1)
        assert item > rest
        factor = 0.25 / (5 * count)
        variance += factor * (item - rest)
        squares += (factor * item) ** 2 / (count - 1)
        squares += (factor * rest) ** 2 / (4 * (count - 1))
    assert found.value == pytest.approx(by_seed.mean())
    assert found.error == pytest.approx(math.sqrt(variance))
    assert found.freedom == pytest.approx(variance**2 / squares)
    assert found.items == 47


def test_an_average_of_measures_is_weighted_in_its_error_too():
    generator = np.random.default_rng(2)
    parts = [crossed(generator, 5, 30, 0.2, 1.0) for _ in range(3)]
    two, one = of_differences(*parts[:2]), of_differences(parts[2])
    both = average("S", [two._replace(name="two"), one._replace(name="one")])
    # The same with the items of all three measured in one place.
    same = of_differences(0.75 * parts[0], 0.75 * parts[1], 1.5 * parts[2])
    assert estimate(both, DIFFERENCE) == pytest.approx(estimate(same, DIFFERENCE))
    weighted = sum(w * p.mean() for w, p in zip((0.25, 0.25, 0.5), parts, strict=True))
    assert estimate(both, DIFFERENCE).value == pytest.approx(weighted)


def test_linear_combinations_of_rows():
    generator = np.random.default_rng(4)
    rows = {name: crossed(generator, 5, 20, 1, 1) for name in "abcd"}
    interaction = {"a": 1, "b": -1, "c": -1, "d": 1}
    found = estimate(measured(rows), interaction)
    values = sum(weight * rows[name] for name, weight in interaction.items())
    assert found == pytest.approx(estimate(of_differences(values), DIFFERENCE))


def test_equivalence_is_two_one_sided_tests():
    found = Estimate(0.3, 0.2, 4.0, 5, 100)
    assert found.p_within(1.0) == pytest.approx(stats.t.sf(0.7 / 0.2, 4))
    assert Estimate(-0.3, 0.2, 4.0, 5, 100).p_within(1.0) == found.p_within(1.0)
    # At 5% it agrees with the 90% interval.
    edge = found.interval(0.9)[1]
    assert found.p_within(edge) == pytest.approx(0.05)


def test_values_without_any_variation_decide_nothing():
    """All seeds the same to the last digit: copies of one run, or a constant."""
    generator = np.random.default_rng(5)
    items = np.tile(generator.random(30), (5, 1))
    for values in (np.full((5, 30), 2.0), np.zeros((5, 30)), 1 + items):
        found = estimate(of_differences(values), DIFFERENCE)
        assert found.error == math.inf
        assert found.p_differs() == 1.0 and found.p_within(1.0) == 0.5
        assert found.interval() == (-math.inf, math.inf)
        assert found.smallest_effect() == math.inf


def test_one_seed_and_damaged_values_are_refused():
    with pytest.raises(ValueError, match="1 seeds give no standard error"):
        estimate(of_differences(np.ones((1, 4))), DIFFERENCE)
    with pytest.raises(UserError, match="leave seeds out of all rows"):
        estimate(measured({"a": np.ones((3, 4)), "b": np.ones((2, 4))}), DIFFERENCE)
    with pytest.raises(UserError, match="not a finite number"):
        bootstrap(of_differences(np.full((3, 4), np.nan)), DIFFERENCE)


def test_holm():
    found = holm({1: 0.01, 2: 0.04, 3: 0.03, 4: 0.005})
    assert found == pytest.approx({4: 0.02, 1: 0.03, 3: 0.06, 2: 0.06})
    assert list(found) == [1, 2, 3, 4]
    assert holm({1: 0.9, 2: 0.8}) == {1: 1.0, 2: 1.0} and holm({}) == {}


@pytest.mark.parametrize("freedom", [2.0, 4.0, 9.3, 60.0, 5000.0])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 7])
def test_the_smallest_effect_is_seen_with_80_percent_power(freedom, alpha):
    effect = Estimate(0.0, 1.0, freedom, 5, 100).smallest_effect(alpha)
    critical = stats.t.isf(alpha / 2, freedom)
    power = stats.nct.sf(critical, freedom, effect)
    assert power == pytest.approx(0.8, abs=1e-3)


def test_the_smallest_margin_is_shown_with_80_percent_power():
    margin = Estimate(0.0, 1.0, 4.0, 5, 100).smallest_margin()
    generator = np.random.default_rng(6)
    values = generator.standard_normal(40_000)
    errors = np.sqrt(generator.chisquare(4, 40_000) / 4)
    shown = np.abs(values) + stats.t.isf(0.05, 4) * errors < margin
    assert shown.mean() == pytest.approx(0.8, abs=0.01)


def test_the_bootstrap_takes_seeds_and_items():
    generator = np.random.default_rng(7)
    one = of_differences(crossed(generator, 40, 500, 1.0, 4.0, 0.1))
    low, high = bootstrap(one, DIFFERENCE)
    # Of many seeds and items it is the interval of the normal distribution.
    spread = math.hypot(1.0 / math.sqrt(40), 4.0 / math.sqrt(500))
    assert high - low == pytest.approx(2 * 1.96 * spread, rel=0.15)
    assert low < estimate(one, DIFFERENCE).value < high
    assert bootstrap(one, DIFFERENCE) == (low, high)


def test_the_bootstrap_draws_the_same_seeds_for_all_components():
    generator = np.random.default_rng(8)
    seeds = generator.standard_normal((40, 1))
    opposite = of_differences(seeds + np.zeros((40, 3)), np.zeros((40, 2)) - seeds)
    assert bootstrap(opposite, DIFFERENCE) == pytest.approx((0.0, 0.0), abs=1e-12)


SEEDS, ITEMS = 5, 200
# Standard deviations of seeds and of items beside a rest of 1.
REGIMES = {"items": (0.0, 0.56), "both": (0.05, 0.56), "seeds": (0.3, 0.0)}


def coverage(regime, trials, interval, sample=crossed):
    """Share of trials whose 95% interval holds the true value, 0."""
    generator = np.random.default_rng(9)
    held = 0
    for _ in range(trials):
        values = sample(generator, SEEDS, ITEMS, *REGIMES[regime])
        low, high = interval(of_differences(values), DIFFERENCE)
        held += low <= 0.0 <= high
    return held / trials


def by_formula(one, weights):
    return estimate(one, weights).interval()


def over_seeds(one, weights):
    """The paired t test over seeds, which takes items for fixed."""
    means = measured({row: np.c_[one.by_seed(row)] for row in weights})
    return estimate(means, weights).interval()


@pytest.mark.parametrize("regime", REGIMES)
def test_intervals_hold_the_true_value(regime):
    # 3 standard errors of 1,000 trials are 2 percent.
    assert coverage(regime, 1000, by_formula) == pytest.approx(0.95, abs=0.025)


@pytest.mark.slow
@pytest.mark.parametrize(
    "interval,expected",
    [
        (by_formula, {"items": 0.95, "both": 0.94, "seeds": 0.95}),
        (over_seeds, {"items": 0.84, "both": 0.87, "seeds": 0.95}),
    ],
)
@pytest.mark.parametrize("regime", REGIMES)
def test_coverage(regime, interval, expected):
    assert coverage(regime, 8000, interval) == pytest.approx(
        expected[regime], abs=0.012
    )


@pytest.mark.slow
@pytest.mark.parametrize("regime,expected", [("items", 0.99), ("seeds", 0.91)])
def test_coverage_of_the_bootstrap(regime, expected):
    def interval(one, weights):
        return bootstrap(one, weights, replicates=500)

    assert coverage(regime, 1500, interval) == pytest.approx(expected, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
def test_coverage_of_a_composite(regime):
    generator = np.random.default_rng(10)
    of_seed, of_item = REGIMES[regime]
    held = 0
    for _ in range(4000):
        shared = of_seed * generator.standard_normal((SEEDS, 1))
        parts = [
            shared + crossed(generator, SEEDS, items, 0.0, of_item)
            for items in (300, 60)
        ]
        # And a measure that keeps no items.
        parts.append(shared + crossed(generator, SEEDS, 1, 0.0, 0.0, 0.05))
        low, high = by_formula(of_differences(*parts), DIFFERENCE)
        held += low <= 0.0 <= high
    assert held / 4000 == pytest.approx(0.95, abs=0.02)
