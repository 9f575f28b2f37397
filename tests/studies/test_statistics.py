"""Crossed seeds and items: by hand, against scipy, and by simulated coverage."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from decoupled.core.errors import UserError
from decoupled.studies.statistics import (
    POINTS,
    Estimate,
    Measured,
    Sums,
    average,
    clearly_above,
    estimate,
    holm,
    logits,
    ratios,
    spearman_items,
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
    result = estimate(of_differences(values), DIFFERENCE)
    seed, item, rest = 3 * 4.5, 2 * 3.25, 2 * (0.25 + 2.25 + 1) / 2
    assert result.value == 3.5 and (result.seeds, result.items) == (2, 3)
    variance = (seed + item - rest) / 6
    assert result.error == pytest.approx(math.sqrt(variance))
    squares = (seed**2 / 1 + item**2 / 2 + rest**2 / 2) / 36
    assert result.freedom == pytest.approx(variance**2 / squares)


def test_one_item_is_the_paired_test_of_scipy():
    first, second = [61.2, 60.1, 63.9, 62.0], [60.0, 60.3, 61.1, 61.9]
    one = measured({"a": np.c_[first], "b": np.c_[second]})
    result = estimate(one, DIFFERENCE)
    expected = stats.ttest_rel(first, second)
    assert result.freedom == 3
    assert result.p_differs(0.0) == pytest.approx(expected.pvalue)
    bounds = expected.confidence_interval(0.95)
    assert result.interval() == pytest.approx((bounds.low, bounds.high))
    above = stats.ttest_rel(first, second, alternative="greater").pvalue
    assert result.p_above(0.0) == pytest.approx(above)
    assert result.p_below(0.0) == pytest.approx(1 - above)


def test_items_that_matter_less_than_the_rest_add_nothing():
    # The items' means are all 1, so their mean square is 0.
    result = estimate(of_differences([[0.0, 1.0, 2.0], [3.0, 2.0, 1.0]]), DIFFERENCE)
    assert result.value == 1.5 and result.freedom == 1
    assert result.error == pytest.approx(0.5)


def test_an_average_of_measures_is_weighted_in_its_error_too():
    generator = np.random.default_rng(2)
    parts = [crossed(generator, 5, 30, 0.2, 1.0) for _ in range(3)]
    two, one = of_differences(*parts[:2]), of_differences(parts[2])
    both = average(
        "S", [dataclasses.replace(m, name=n) for m, n in ((two, "two"), (one, "one"))]
    )
    # The same with the items of all three measured in one place.
    same = of_differences(0.75 * parts[0], 0.75 * parts[1], 1.5 * parts[2])
    assert estimate(both, DIFFERENCE) == pytest.approx(estimate(same, DIFFERENCE))
    weighted = sum(w * p.mean() for w, p in zip((0.25, 0.25, 0.5), parts, strict=True))
    assert estimate(both, DIFFERENCE).value == pytest.approx(weighted)


def test_equivalence_is_two_one_sided_tests():
    result = Estimate(0.3, 0.2, 4.0, 5, 100)
    assert result.p_within(1.0) == pytest.approx(stats.t.sf(0.7 / 0.2, 4))
    assert Estimate(-0.3, 0.2, 4.0, 5, 100).p_within(1.0) == result.p_within(1.0)
    # At 5% it agrees with the 90% interval.
    edge = 0.3 + 0.2 * stats.t.isf(0.05, 4)
    assert result.p_within(edge) == pytest.approx(0.05)


def test_values_without_any_variation_decide_nothing():
    """All seeds the same to the last digit: copies of one run, or a constant."""
    generator = np.random.default_rng(5)
    items = np.tile(generator.random(30), (5, 1))
    for values in (np.full((5, 30), 2.0), np.zeros((5, 30)), 1 + items):
        result = estimate(of_differences(values), DIFFERENCE)
        assert result.error == math.inf
        assert result.p_differs(0.0) == 1.0 and result.p_within(1.0) == 0.5
        assert result.interval() == (-math.inf, math.inf)
        assert result.smallest_effect(0.05) == math.inf


def test_holm():
    result = holm({1: 0.01, 2: 0.04, 3: 0.03, 4: 0.005})
    assert result == pytest.approx({4: 0.02, 1: 0.03, 3: 0.06, 2: 0.06})
    assert list(result) == [1, 2, 3, 4]
    assert holm({1: 0.9, 2: 0.8}) == {1: 1.0, 2: 1.0} and holm({}) == {}


@pytest.mark.parametrize("freedom", [2.0, 4.0, 9.3, 60.0, 5000.0])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 7])
def test_the_smallest_effect_is_seen_with_80_percent_power(freedom, alpha):
    effect = Estimate(0.0, 1.0, freedom, 5, 100).smallest_effect(alpha)
    critical = stats.t.isf(alpha / 2, freedom)
    power = stats.nct.sf(critical, freedom, effect)
    assert power == pytest.approx(0.8, abs=1e-3)


def test_a_gain_over_the_control_survives_an_outlier():
    # Every trained model above every control, though one control collapsed.
    assert clearly_above([69, 70, 68, 69, 70], [55, 10, 54, 53, 52])
    # Every seed gains, by much more than the gains differ.
    assert clearly_above([1.0, 2.0, 3.0], [0.0, 1.1, 1.9])
    # Every seed gains, and the gains differ as much as they are large.
    assert not clearly_above([1.0, 5.0, 3.0], [0.9, 3.0, 2.0])
    # Most gain.
    assert not clearly_above([2.0, 2.0, 2.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0, 1.1])


SEEDS, ITEMS = 5, 200
# Standard deviations of seeds and of items beside a rest of 1.
REGIMES = {"items": (0.0, 0.56), "both": (0.05, 0.56), "seeds": (0.3, 0.0)}


def share_held(trials, sample):
    """Share of trials whose 95% interval holds the true value, 0; `sample` draws the
    differences of each component."""
    held = 0
    for _ in range(trials):
        low, high = estimate(of_differences(*sample()), DIFFERENCE).interval()
        held += low <= 0.0 <= high
    return held / trials


@pytest.mark.parametrize("regime", REGIMES)
def test_intervals_hold_the_true_value(regime):
    generator = np.random.default_rng(9)

    def sample():
        return [crossed(generator, SEEDS, ITEMS, *REGIMES[regime])]

    # 3 standard errors of 1,000 trials are 2 percent.
    assert share_held(1000, sample) == pytest.approx(0.95, abs=0.025)


@pytest.mark.slow
@pytest.mark.parametrize("regime", REGIMES)
def test_coverage_of_a_composite(regime):
    generator = np.random.default_rng(10)
    of_seed, of_item = REGIMES[regime]

    def sample():
        shared = of_seed * generator.standard_normal((SEEDS, 1))
        yield shared + crossed(generator, SEEDS, 300, 0.0, of_item)
        yield shared + crossed(generator, SEEDS, 60, 0.0, of_item)
        # And a measure that keeps no items.
        yield shared + crossed(generator, SEEDS, 1, 0.0, 0.0, 0.05)

    assert share_held(4000, sample) == pytest.approx(0.95, abs=0.02)


def rows_of(values, name="tags", baseline=None, unit=POINTS, seeds=(0, 1)):
    return Measured(name, unit, seeds, values, baseline, 1)


def test_an_average_gives_each_measure_the_same_weight():
    tags = rows_of(
        {
            "a": {"en": np.full((2, 4), 10.0), "de": np.full((2, 6), 20.0)},
            "b": {"en": np.zeros((2, 4)), "de": np.zeros((2, 6))},
        },
        baseline=4.0,
    )
    verses = rows_of(
        {"a": {"all pairs": np.array([[5.0, 7, 9], [6, 6, 6], [1, 2, 3]])}},
        name="retrieval",
        baseline=0.0,
        seeds=(1, 0, 7),
    )
    result = average("S", [tags, verses])
    # Row b and seed 7 are not in both; seed 0 is the second one of retrieval.
    assert result.seeds == [0, 1] and list(result.values) == ["a"]
    assert result.by_seed("a") == pytest.approx([(15 + 6) / 2, (15 + 7) / 2])
    assert result.baseline == pytest.approx(2.0)
    shapes = {name: one.shape for name, one in result.values["a"].items()}
    assert shapes == {
        "tags: en": (2, 4),
        "tags: de": (2, 6),
        "retrieval: all pairs": (2, 3),
    }


def test_an_average_has_a_baseline_only_if_all_have_one():
    one = rows_of({"a": {"en": np.zeros((2, 1))}}, baseline=1.0)
    other = rows_of({"a": {"en": np.zeros((2, 1))}}, name="other")
    assert average("S", [one, other]).baseline is None


def test_ratios_are_those_of_sums():
    got = np.array([[1, 2, 0], [3, 2, 0]])
    values = ratios(Sums(got, np.array([3, 2, 0])))
    assert values.mean(axis=1) == pytest.approx([3 / 5, 1.0])
    # 0.6 + (1 - 0.6 * 3) / (5 / 3), and a sentence without a token changes nothing.
    assert values[0] == pytest.approx([0.12, 1.08, 0.6])


def test_the_spread_of_ratios_is_that_of_a_resampled_ratio():
    generator = np.random.default_rng(3)
    counts = generator.integers(5, 40, size=300)
    correct = generator.binomial(counts, generator.uniform(0.4, 0.9, size=300))
    drawn = generator.integers(300, size=(4000, 300))
    resampled = correct[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    values = ratios(Sums(correct, counts))
    assert values.std() / math.sqrt(300) == pytest.approx(resampled.std(), rel=0.05)


def test_pairs_of_a_correlation_are_those_of_the_jackknife():
    generator = np.random.default_rng(5)
    first = generator.integers(0, 12, 40).astype(float)
    second = first + generator.integers(0, 9, 40)
    rho = stats.spearmanr(first, second).statistic
    without = [
        stats.spearmanr(np.delete(first, i), np.delete(second, i)).statistic
        for i in range(40)
    ]
    expected = 40 * rho - 39 * np.array(without)
    assert spearman_items(first, second) == pytest.approx(expected)
    # The spread of the mean is the known one of ranks without correlation.
    noise = generator.random((2, 600))
    error = spearman_items(*noise).std(ddof=1) / math.sqrt(600)
    assert error == pytest.approx(1 / math.sqrt(599), rel=0.1)


def test_logits_of_shares():
    result = logits(Sums(np.array([[1, 0, 0, 0], [1, 1, 1, 0]]), np.ones(4)))
    assert result.mean(axis=1) == pytest.approx([math.log(1 / 3), math.log(3)])
    assert result[0, 0] == pytest.approx(math.log(1 / 3) + 0.75 / (0.25 * 0.75))
    # Those of 0 and 1 are those of half an item.
    result = logits(Sums(np.array([[0.0] * 10, [1.0] * 10]), np.ones(10)))
    expected = math.log(0.95 / 0.05)
    assert result == pytest.approx(np.array([[-expected] * 10, [expected] * 10]))


def test_values_are_checked():
    bad = np.ones((2, 3))
    bad[1, 0] = np.nan
    tags = rows_of(
        {
            "a": {"en": np.ones((2, 3))},
            "other items": {"en": np.ones((2, 2))},
            "nan": {"en": bad},
        }
    )
    for row, reason in {
        "other items": "not those of the other rows",
        "nan": "seed 1, en: a value is not a finite number",
    }.items():
        with pytest.raises(UserError, match=f"tags, row {row}.*{reason}"):
            estimate(tags, {"a": 1, row: -1})
