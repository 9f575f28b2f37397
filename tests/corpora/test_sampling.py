"""Which language is drawn how often: smoothing, weights, samples."""

import collections

import pytest

from decoupled.configs import SamplingConfig
from decoupled.core.errors import UserError
from decoupled.corpora.sampling import (
    as_json,
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


def sampling(alpha=0.5, weights=None):
    return SamplingConfig(alpha, weights)


def shares(config, counts=THREE):
    return language_shares(counts, config)


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
    ],
)
def test_weights_replace_shares_and_the_rest_is_divided(config, expected):
    assert shares(config) == pytest.approx(expected)


def test_languages_without_text_need_no_weight():
    result = shares(sampling(weights={"en": 3, "sw": 1}), {"en": 5, "sw": 5, "xx": 0})
    assert result == {"en": 0.75, "sw": 0.25, "xx": 0.0}


@pytest.mark.parametrize(
    "config, message",
    [
        (sampling(weights={"xx": 0.1}), "weights: no language 'xx' in the data"),
        (sampling(weights={"*": 0.1}), "weights: no language '*' in the data"),
        (sampling(weights={"no": 0.1}), "weights: 'no' has no text to draw"),
        (sampling(weights=dict.fromkeys(THREE, 0)), "weights: all are 0"),
        (sampling(weights={"en": 1.0}), "leave nothing to 'sw', the first of 2"),
    ],
)
def test_contradictions_are_refused_in_one_line(config, message):
    with pytest.raises(UserError) as caught:
        shares(config, {**THREE, "no": 0})
    assert str(caught.value).startswith("SamplingConfig.")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sizes():
    assert sample_sizes(COUNTS, sampling(), 1000) == {"en": 75, "sw": 25}
    assert sample_sizes(COUNTS, sampling(), 40) == {"en": 30, "sw": 10}
    large = {"en": 10**6, "sw": 1, "xx": 0}
    assert sample_sizes(large, sampling(1.0), 10) == {"en": 10, "sw": 1, "xx": 0}


def test_sizes_follow_weights():
    out = sampling(weights={"sw": 0.0})
    assert sample_sizes(COUNTS, out, 1000) == {"en": 100, "sw": 0}


def test_sizes_stay_below_a_number_of_bytes():
    lengths = {"en": 10.0, "sw": 30.0}
    # 100 sentences would be 75 * 10 + 25 * 30 = 1500 bytes.
    assert sample_sizes(COUNTS, sampling(), 1000, lengths, 1500) == {"en": 75, "sw": 25}
    assert sample_sizes(COUNTS, sampling(), 1000, lengths, 600) == {"en": 30, "sw": 10}
    # A language that is drawn gets a sentence.
    assert sample_sizes(COUNTS, sampling(1.0), 1000, lengths, 6) == {"en": 1, "sw": 1}


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
    shares = language_shares(counts, config)
    return language_rows(counts, shares, counts, total)


def test_rows_largest_first():
    result = rows(SamplingConfig(0.0, {"en": 0.3}))
    assert [tuple(row)[:2] for row in result] == [
        ("en", 900),
        ("tr", 90),
        ("sw", 10),
        ("no", 0),
    ]
    assert [row.share for row in result] == pytest.approx([0.9, 0.09, 0.01, 0])
    drawn = [0.3, 0.35, 0.35, 0]
    assert [row.drawn for row in result] == pytest.approx(drawn)
    epochs = [300 / 900, 350 / 90, 350 / 10, 0]
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
