"""Alpha-smoothed sampling of languages."""

import collections

import pytest

from decoupled.corpora.sampling import (
    language_probabilities,
    sample_sizes,
    smoothed_sample,
)

COUNTS = {"en": 90, "sw": 10}


def test_alpha_one_keeps_the_shares():
    probabilities = language_probabilities(COUNTS, 1.0)
    assert probabilities == pytest.approx({"en": 0.9, "sw": 0.1})


def test_alpha_zero_makes_languages_equal_and_leaves_out_empty_ones():
    probabilities = language_probabilities({**COUNTS, "xx": 0}, 0.0)
    assert probabilities == {"en": 0.5, "sw": 0.5, "xx": 0.0}


def test_alpha_half_takes_roots():
    # sqrt(.9) = .948683, sqrt(.1) = .316228
    probabilities = language_probabilities(COUNTS, 0.5)
    assert probabilities == pytest.approx({"en": 0.75, "sw": 0.25}, abs=1e-6)


@pytest.mark.parametrize("counts", [{}, {"en": 0}, {"en": 3, "sw": -1}])
def test_nothing_to_sample(counts):
    with pytest.raises(ValueError, match="no sentences"):
        language_probabilities(counts, 0.5)


def test_sizes():
    assert sample_sizes(COUNTS, 0.5, 1000) == {"en": 75, "sw": 25}
    assert sample_sizes(COUNTS, 0.5, 40) == {"en": 30, "sw": 10}
    assert sample_sizes({"en": 10**6, "sw": 1, "xx": 0}, 1.0, 10) == {
        "en": 10,
        "sw": 1,
        "xx": 0,
    }


def sentences(language):
    return (f"{language} {i}" for i in range(COUNTS[language]))


def test_sample_repeats_small_languages_and_thins_large_ones():
    sample = list(smoothed_sample(COUNTS, sentences, 0.5, 1000, seed=1))
    repeats = collections.Counter(sample)
    english = [sentence for sentence in repeats if sentence.startswith("en")]
    assert len(english) == 75 and {repeats[s] for s in english} == {1}
    swahili = sorted(repeats[s] for s in repeats if s.startswith("sw"))
    assert swahili == [2] * 5 + [3] * 5
    assert english == sorted(english, key=lambda s: int(s.split()[1]))


def test_sample_is_a_function_of_the_seed():
    one, again, other = (
        list(smoothed_sample(COUNTS, sentences, 0.5, 1000, seed)) for seed in (1, 1, 2)
    )
    assert one == again != other
    assert len(one) == len(other) == 100
