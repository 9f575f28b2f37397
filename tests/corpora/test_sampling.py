"""Which language is drawn how often: smoothing, weights, limits, samples."""

import collections
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decoupled.configs import SamplingConfig
from decoupled.core.errors import UserError
from decoupled.corpora.sampling import (
    as_json,
    bounded_shares,
    draw_sample,
    language_probabilities,
    language_rows,
    language_shares,
    print_rows,
    sample_sizes,
)

COUNTS = {"en": 90, "sw": 10}
THREE = {"en": 900, "sw": 10, "tr": 90}
FOUR = {"en": 900, "no": 0, "sw": 10, "tr": 90}


def sampling(alpha=0.5, weights=None, min_epochs=None, max_epochs=None):
    return SamplingConfig(alpha, weights, min_epochs, max_epochs)


def shares(config, counts=THREE, total=1000):
    return language_shares(counts, config, counts, total, "sequences")


@pytest.mark.parametrize(
    "alpha, expected",
    [
        (1.0, {"en": 0.9, "sw": 0.1, "xx": 0.0}),
        # sqrt(.9) = .948683, sqrt(.1) = .316228
        (0.5, {"en": 0.75, "sw": 0.25, "xx": 0.0}),
        (0.0, {"en": 0.5, "sw": 0.5, "xx": 0.0}),
    ],
)
def test_alpha_half_takes_roots(alpha, expected):
    """1 keeps the shares, and 0 makes languages equal. No text is drawn never."""
    probabilities = language_probabilities({**COUNTS, "xx": 0}, alpha)
    assert probabilities == pytest.approx(expected, abs=1e-6)


def test_alpha_alone_is_plain_smoothing_to_the_last_bit():
    assert shares(sampling(0.3)) == language_probabilities(THREE, 0.3)
    # Also with limits that hold nobody back.
    wide = sampling(0.3, min_epochs=0.0, max_epochs=1e6)
    assert shares(wide) == language_probabilities(THREE, 0.3)


@pytest.mark.parametrize(
    "config, expected",
    [
        # The rest, .4, goes to sw and tr as 1 : 3, the roots of 10 and 90.
        (sampling(weights={"en": 0.6}), {"en": 0.6, "sw": 0.1, "tr": 0.3}),
        # Of all languages weights are ratios.
        (
            sampling(weights={"en": 3, "sw": 1, "tr": 0}),
            {"en": 0.75, "sw": 0.25, "tr": 0.0},
        ),
        (sampling(1.0, weights={"en": 0.0}), {"en": 0.0, "sw": 0.1, "tr": 0.9}),
        # At alpha 0 each gets a third; sw would see its 10 sentences 33 times. At most
        # 4 leaves 960 draws, 480 for each of the others.
        (sampling(0.0, max_epochs={"sw": 4}), {"en": 0.48, "sw": 0.04, "tr": 0.48}),
        # At most 5 for all: 50 for sw, 450 for tr, what is left for en.
        (sampling(0.0, max_epochs=5), {"en": 0.5, "sw": 0.05, "tr": 0.45}),
        # A number for all others stands under a star.
        (
            sampling(0.0, max_epochs={"*": 5, "sw": 2}),
            {"en": 0.53, "sw": 0.02, "tr": 0.45},
        ),
        # en and tr pay for the minimum of sw as 10 : 1.
        (
            sampling(1.0, min_epochs={"sw": 10}),
            {"en": 9 / 11, "sw": 0.1, "tr": 0.9 / 11},
        ),
        # Limits hold weights too; the rest is shared as sqrt(900) : sqrt(90).
        (
            sampling(weights={"sw": 0.5}, max_epochs={"sw": 3}),
            {"en": 0.97 / (1 + 10**-0.5), "sw": 0.03, "tr": 0.97 / (1 + 10**0.5)},
        ),
    ],
)
def test_maximum_of_epochs_is_kept_and_the_rest_shared(config, expected):
    assert shares(config) == pytest.approx(expected)


def test_languages_without_text_need_no_weight():
    result = shares(sampling(weights={"en": 3, "sw": 1}), {"en": 5, "sw": 5, "xx": 0})
    assert result == {"en": 0.75, "sw": 0.25, "xx": 0.0}


@pytest.mark.parametrize(
    "config, message",
    [
        (sampling(weights={"xx": 0.1}), "weights: no language 'xx' in the data"),
        (sampling(min_epochs={"xx": 1}), "min_epochs: no language 'xx' in the data"),
        (sampling(max_epochs={"xx": 1}), "max_epochs: no language 'xx' in the data"),
        (sampling(min_epochs={"no": 1}), "min_epochs: 'no' has no text to draw"),
        (sampling(weights={"no": 0.1}), "weights: 'no' has no text to draw"),
        (sampling(weights=dict.fromkeys(THREE, 0)), "weights: all are 0"),
        (sampling(weights={"en": 1.0}), "leave nothing to 'sw', the first of 2"),
        (
            sampling(min_epochs=2),
            "min_epochs: the minima need 2,000 sequences and there are 1,000 to draw",
        ),
        (
            sampling(max_epochs=0.5),
            "max_epochs: the maxima allow 500 sequences and there are 1,000 to draw",
        ),
    ],
)
def test_contradictions_are_refused_in_one_line(config, message):
    with pytest.raises(UserError) as caught:
        shares(config, {**THREE, "no": 0})
    assert str(caught.value).startswith("SamplingConfig.")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# Of each language: weight, weight of a solution that the bounds allow, and how far
# below and above that solution the bounds are.
LANGUAGES = st.lists(
    st.tuples(
        st.just(0.0) | st.floats(1e-6, 1),
        st.floats(1e-6, 1),
        st.floats(0, 1),
        st.floats(1, 10) | st.just(math.inf),
    ),
    min_size=1,
    max_size=8,
).filter(lambda rows: any(row[0] for row in rows))
quickly = settings(max_examples=60)


def problem(rows):
    """(shares, lower, upper); a share of 0 is that of a language left out."""
    drawn = [row for row in rows if row[0]]
    sums = [sum(row[i] for row in drawn) for i in (0, 1)]
    plain, lower, upper = {}, {}, {}
    for i, (weight, other, below, above) in enumerate(rows):
        solution = other / sums[1] if weight else 0.0
        plain[f"l{i}"] = weight / sums[0]
        lower[f"l{i}"] = solution * below
        upper[f"l{i}"] = solution * above if weight else 0.0
    return plain, lower, upper


@quickly
@given(LANGUAGES)
def test_shares_within_their_bounds_sum_to_one_and_free_ones_keep_their_ratios(rows):
    plain, lower, upper = problem(rows)
    result = bounded_shares(plain, lower, upper)
    assert sum(result.values()) == pytest.approx(1, abs=1e-9)
    assert all(lower[name] <= result[name] <= upper[name] for name in plain)
    free = [n for n in plain if plain[n] and lower[n] < result[n] < upper[n]]
    scales = [result[name] / plain[name] for name in free]
    assert scales == pytest.approx(scales[:1] * len(scales))
    # And a bound holds nobody on the wrong side of that scale.
    for name in plain if scales else ():
        scaled = scales[0] * plain[name]
        if result[name] == upper[name] > lower[name]:
            assert scaled >= upper[name] * (1 - 1e-9)
        if result[name] == lower[name] < upper[name]:
            assert scaled <= lower[name] * (1 + 1e-9)


@quickly
@given(LANGUAGES)
def test_bounds_that_hold_nobody_change_nothing(rows):
    plain, lower, upper = problem([(row[0], row[0], *row[2:]) for row in rows])
    assert bounded_shares(plain, lower, upper) == plain


@quickly
@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=8),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(1, 100),
)
def test_the_same_limits_for_all_keep_the_order(sizes, alpha, least, most):
    counts = {f"l{i}": size for i, size in enumerate(sizes)}
    total = sum(sizes)
    config = sampling(alpha, None, least, most)
    result = language_shares(counts, config, counts, total, "sequences")
    order = sorted(counts, key=counts.get)
    ordered = [result[name] for name in order]
    assert all(a <= b * (1 + 1e-9) for a, b in zip(ordered, ordered[1:], strict=False))
    epochs = [result[name] * total / counts[name] for name in counts]
    assert min(epochs) >= least * (1 - 1e-9) and max(epochs) <= most * (1 + 1e-9)


def test_bounds_that_leave_one_solution():
    plain = {"en": 0.9, "sw": 0.1}
    half = dict.fromkeys(plain, 0.5)
    assert bounded_shares(plain, half, half) == half
    assert bounded_shares(plain, dict.fromkeys(plain, 0.0), half) == half


def test_sizes():
    assert sample_sizes(COUNTS, sampling(), 1000) == {"en": 75, "sw": 25}
    assert sample_sizes(COUNTS, sampling(), 40) == {"en": 30, "sw": 10}
    large = {"en": 10**6, "sw": 1, "xx": 0}
    assert sample_sizes(large, sampling(1.0), 10) == {"en": 10, "sw": 1, "xx": 0}


def test_sizes_follow_weights_and_limits():
    out = sampling(weights={"sw": 0.0})
    assert sample_sizes(COUNTS, out, 1000) == {"en": 100, "sw": 0}
    once = sampling(max_epochs=1)
    assert sample_sizes(COUNTS, once, 1000) == {"en": 90, "sw": 10}
    # Half of the text is all that half an epoch allows.
    assert sample_sizes(COUNTS, sampling(max_epochs=0.5), 1000) == {"en": 45, "sw": 5}


def test_sizes_stay_below_a_number_of_bytes():
    lengths = {"en": 10.0, "sw": 30.0}
    # 100 sentences would be 75 * 10 + 25 * 30 = 1500 bytes.
    assert sample_sizes(COUNTS, sampling(), 1000, lengths, 1500) == {"en": 75, "sw": 25}
    assert sample_sizes(COUNTS, sampling(), 1000, lengths, 600) == {"en": 30, "sw": 10}
    once = sampling(1.0, max_epochs=0.1)
    assert sample_sizes(COUNTS, once, 1000, lengths, 60) == {"en": 4, "sw": 1}


def test_a_sample_too_small_for_its_minima_is_refused():
    with pytest.raises(UserError, match="minima need 100 sentences and there are 40"):
        sample_sizes(COUNTS, sampling(min_epochs=1), 40)


def sentences(language):
    return (f"{language} {i}" for i in range(COUNTS[language]))


def sample(seed):
    sizes = sample_sizes(COUNTS, sampling(), 1000)
    return list(draw_sample(COUNTS, sentences, sizes, seed))


def test_sample_repeats_small_languages_and_thins_large_ones():
    repeats = collections.Counter(sample(1))
    english = [sentence for sentence in repeats if sentence.startswith("en")]
    assert len(english) == 75 and {repeats[s] for s in english} == {1}
    swahili = sorted(repeats[s] for s in repeats if s.startswith("sw"))
    assert swahili == [2] * 5 + [3] * 5
    assert english == sorted(english, key=lambda s: int(s.split()[1]))


def test_sample_is_a_function_of_the_seed():
    one, again, other = (sample(seed) for seed in (1, 1, 2))
    assert one == again != other
    assert len(one) == len(other) == 100


# The table that a run begins with: readable for one language and for a hundred.


def rows(config, counts=FOUR, total=1000):
    shares = language_shares(counts, config, counts, total, "sentences")
    return language_rows(counts, shares, counts, total)


def test_rows_largest_first():
    result = rows(SamplingConfig(0.0, {"en": 0.3}, None, {"sw": 20}))
    # sw is at 20 epochs of 10 sentences, .2 of 1000 draws; tr and en share the rest as
    # .35 to .3.
    assert [tuple(row)[:2] for row in result] == [
        ("en", 900),
        ("tr", 90),
        ("sw", 10),
        ("no", 0),
    ]
    assert [row.share for row in result] == pytest.approx([0.9, 0.09, 0.01, 0])
    drawn = [0.8 * 0.3 / 0.65, 0.8 * 0.35 / 0.65, 0.2, 0]
    assert [row.drawn for row in result] == pytest.approx(drawn)
    epochs = [1000 * drawn[0] / 900, 1000 * drawn[1] / 90, 20, 0]
    assert [row.epochs for row in result] == pytest.approx(epochs)


def test_json_has_every_language():
    result = as_json(rows(SamplingConfig(1.0)))
    assert list(result) == ["en", "tr", "sw", "no"]
    assert result["tr"] == {
        "sentences": 90,
        "share": 0.09,
        "drawn": 0.09,
        "epochs": 1.0,
    }


def test_few_languages_are_all_shown(capsys):
    print_rows("languages", rows(SamplingConfig(1.0)))
    printed = capsys.readouterr().out
    assert printed.startswith("languages")
    lines = [line.split() for line in printed.splitlines()]
    assert ["tr", "90", "9%", "9%", "1"] in lines


def test_many_languages_are_summarised(capsys):
    counts = {f"l{index:03d}": 10 * (104 - index) for index in range(104)}
    config = SamplingConfig()
    print_rows("languages", rows(config, counts, sum(counts.values())))
    printed = capsys.readouterr().out
    shown = [line.split()[0] for line in printed.splitlines() if line.startswith("  l")]
    largest, smallest = range(8), range(100, 104)
    expected = [f"l{index:03d}" for index in (*largest, *smallest)]
    assert [name for name in shown if name != "language"] == expected
    (summary,) = [line for line in printed.splitlines() if "92 more" in line]
    assert f"{sum(10 * (104 - i) for i in range(8, 100)):,}" in summary
    assert " to " in summary
