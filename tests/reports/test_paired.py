"""Student's intervals against scipy and by hand; what verdicts follow from them."""

import math

import pytest
from scipy import stats

from decoupled.reports.paired import (
    NOT_SUPPORTED,
    SUPPORTED,
    UNDECIDED,
    Paired,
    above,
    below,
    combined,
    paired,
    student_quantile,
    within,
)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 101])
@pytest.mark.parametrize("probability", [0.01, 0.4, 0.5, 0.9, 0.975, 0.9995])
def test_quantiles_are_those_of_scipy(probability, freedom):
    expected = stats.t.ppf(probability, freedom)
    found = student_quantile(probability, freedom)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_quantiles_with_closed_forms():
    # One degree is Cauchy's distribution; two: t = (2p - 1) / sqrt(2 p (1 - p)).
    assert student_quantile(0.75, 1) == pytest.approx(1.0)
    assert student_quantile(0.975, 2) == pytest.approx(0.95 / math.sqrt(2 * 0.024375))


@pytest.mark.parametrize("probability,freedom", [(0, 2), (1, 2), (0.5, 0)])
def test_what_has_no_quantile(probability, freedom):
    with pytest.raises(ValueError, match="no quantile"):
        student_quantile(probability, freedom)


def test_differences_are_those_of_shared_seeds():
    found = paired({0: 3.0, 1: 5.0, 2: 9.0, 7: 99.0}, {2: 6.0, 0: 2.0, 1: 3.0})
    # 1, 2 and 3: a standard deviation of 1, an error of 1 / sqrt(3).
    assert (found.mean, found.count) == (2.0, 3)
    assert found.high - 2.0 == pytest.approx(4.302652729911275 / math.sqrt(3))
    assert found.low + found.high == pytest.approx(4.0)


def test_interval_is_that_of_the_paired_test_of_scipy():
    first, second = [61.2, 60.1, 63.9, 62.0], [60.0, 60.3, 61.1, 61.9]
    found = paired(dict(enumerate(first)), dict(enumerate(second)))
    expected = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_one_seed_has_no_interval_and_none_no_difference():
    assert paired({0: 2.0}, {0: 1.5}) == Paired(0.5, None, None, 1)
    assert paired({0: 2.0}, {1: 1.5}) is None
    for verdict in (above, lambda found: below(found, 1), lambda f: within(f, 1)):
        assert verdict(Paired(0.5, None, None, 1)) == UNDECIDED
        assert verdict(None) == UNDECIDED


@pytest.mark.parametrize(
    "low,high,expected",
    [
        (0.1, 2.0, SUPPORTED),
        (0.0, 2.0, UNDECIDED),
        (-1.0, 2.0, UNDECIDED),
        (-2.0, -0.1, NOT_SUPPORTED),
    ],
)
def test_the_interval_decides(low, high, expected):
    found = Paired((low + high) / 2, low, high, 3)
    assert above(found) == expected
    mirrored = Paired(-found.mean, -high, -low, 3)
    assert below(mirrored, 0.0) == expected


@pytest.mark.parametrize(
    "low,high,expected",
    [
        (-0.9, 0.9, SUPPORTED),
        (0.2, 0.8, SUPPORTED),
        (-0.9, 1.1, UNDECIDED),
        (-3.0, 3.0, UNDECIDED),
        (1.1, 1.5, NOT_SUPPORTED),
        (-1.5, -1.1, NOT_SUPPORTED),
    ],
)
def test_little_difference_is_an_interval_within_the_margin(low, high, expected):
    assert within(Paired((low + high) / 2, low, high, 3), 1.0) == expected


def test_a_claim_needs_all_of_its_parts():
    assert combined([SUPPORTED, SUPPORTED]) == SUPPORTED
    assert combined([SUPPORTED, UNDECIDED]) == UNDECIDED
    assert combined([UNDECIDED, NOT_SUPPORTED, SUPPORTED]) == NOT_SUPPORTED
    assert combined([]) == UNDECIDED
