"""What training takes, and whether the machine has it."""

import pytest

from decoupled.core.errors import UserError
from decoupled.data.vocabulary_costs import (
    check_memory,
    estimate,
    expected_rounds,
    fitting_text,
)

GIB = 1 << 30


def test_memory_is_that_of_the_measured_runs():
    # docs/vocabulary.md: bytes of text, peak in MiB.
    for size, peak in ((20_130_131, 379), (60_440_732, 1101), (201_611_140, 3599)):
        assert estimate(size, 50_000).memory / 2**20 == pytest.approx(peak, rel=0.03)


def test_beyond_one_part_memory_grows_with_the_text_alone():
    one, two = (estimate(size, 250_000) for size in (1e9, 2e9))
    assert two.memory - one.memory == pytest.approx(2.9e9)
    assert two.seconds == pytest.approx(2 * one.seconds)
    assert estimate(0, 8000).memory < 0.1 * GIB


def test_time_is_that_of_the_measured_runs():
    # docs/vocabulary.md: bytes of text, pieces, seconds on two cores.
    for size, pieces, seconds in (
        (60_440_732, 50_000, 46.2),
        (60_440_732, 250_000, 27.9),
        (201_611_140, 250_000, 95.3),
    ):
        assert estimate(size, pieces).seconds == pytest.approx(seconds, rel=0.1)


def test_rounds_from_the_seed_pieces():
    # A million to 275,000 takes 5 quarters: .75 ** 4 is more than .275, .75 ** 5 less.
    assert expected_rounds(250_000) == 12
    assert expected_rounds(2_000_000) == 2


@pytest.mark.parametrize("size", [1e6, 3e8, 5e8, 2e9])
def test_what_fits_is_the_inverse_of_the_estimate(size):
    assert fitting_text(estimate(size, 8000).memory) == pytest.approx(size)
    assert fitting_text(0) == 0


def test_memory_that_nobody_knows_is_enough():
    assert check_memory(1e15, 10, None) is None


def test_enough_memory_needs_no_word():
    assert check_memory(2e9, 10, 16 * GIB) is None


def test_little_room_is_a_warning():
    warning = check_memory(2e9, 10_000_000, 13 * GIB)
    assert warning.startswith("training on 10,000,000 sentences takes some 12.0 GiB of")
    assert "13.0 GiB are free" in warning


def test_too_little_memory_is_refused_with_a_number_that_fits():
    with pytest.raises(UserError, match=r"^VocabularyConfig\.max_sentences: ") as error:
        check_memory(2e9, 10_000_000, 8 * GIB)
    fitting = int(str(error.value).split("; ")[1].split()[0].replace(",", ""))
    assert check_memory(200 * fitting, fitting, 8 * GIB) is None
    # The answer is no smaller than it must be.
    assert check_memory(200 * fitting * 1.01, fitting, 8 * GIB) is not None
