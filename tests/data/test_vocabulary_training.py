"""Training a vocabulary: whole and reproducible, quiet, limits in one line."""

import os
import subprocess
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupled.configs import VocabularyConfig
from decoupled.core.errors import UserError
from decoupled.data import vocabulary_training
from decoupled.data.vocabulary import valid_text
from decoupled.data.vocabulary_training import (
    TrainingLines,
    check_memory,
    cut_text,
    expected_rounds,
    fitting_text,
    train_vocabulary,
    training_memory,
    training_seconds,
)
from tests.refusals import refusal


def lines_of(*sentences, max_line=2000):
    return [line.decode() for line in TrainingLines(sentences, max_line)]


def test_white_space_is_one_space_and_empty_sentences_are_left_out():
    made = TrainingLines([" one\ttwo\r\nthree\u2028four ", "", " \n\0"])
    assert list(made) == [b"one two three four"]
    assert (made.lines, made.cut) == (1, 0)


def test_reserved_characters_are_spaces():
    made = TrainingLines(["one\0two▅three", "▅"])
    assert list(made) == [b"one two three"]
    assert made.reserved == 2


def test_half_a_surrogate_pair_is_a_replacement_character():
    assert lines_of("a\ud800b") == ["a\ufffdb"]
    assert valid_text("\udfff") == "\ufffd"


def test_lengths_are_counted():
    made = TrainingLines(["añb", "漢字 " * 5], max_line=8)
    assert [line.decode() for line in made] == ["añb", "漢字 漢字 漢字", "漢字 漢字"]
    assert (made.lines, made.characters, made.bytes, made.cut) == (3, 16, 37, 1)


@pytest.mark.parametrize(
    "text, first",
    [
        # A sentence ends; the full stop in a number ends none.
        ("One two. Three four 3.14 five", "One two."),
        ("我們去看看。他們也去，因為他們", "我們去看看。"),
        # No sentence ends in the second half: a word does.
        ("a. b c d e f g h i j k l m n", "a. b c d e"),
        # Neither: a clause ends.
        ("abcde、fghijklmnopq", "abcde、"),
        ("abcdefghijklmno", "abcdefghij"),
        # Never between a letter and its accent, or within a joined emoji.
        ("abcdefghie\u0301xyz", "abcdefghi"),
        ("abcdefgh👩\u200d👧xyz", "abcdefgh"),
        ("a" + "\u0301" * 20, "a" + "\u0301" * 9),
    ],
)
def test_where_a_long_line_is_cut(text, first):
    assert next(cut_text(text, 10)) == first


@given(st.text(st.sampled_from("ab .。,\u0301\u200d👩漢 "), max_size=60))
def test_only_spaces_are_lost(text):
    text = " ".join(text.split())
    parts = list(cut_text(text, 7))
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")
    assert all(0 < len(part) <= 7 for part in parts)
    assert all(part == part.strip(" ") for part in parts)


def test_devanagari_clusters_stay_whole():
    # KA + virama + SSA is one cluster, the vowel sign belongs to it.
    text = "क्षि" * 10
    for part in cut_text(text, 6):
        assert unicodedata.category(part[0]) == "Lo"
        assert unicodedata.combining(part[-1]) != 9


def config(vocab_size, byte_fallback=False, coverage=0.9999, threads=16):
    return VocabularyConfig(vocab_size, coverage, byte_fallback, 10**6, 10**9, threads)


@pytest.fixture(scope="module")
def some(sentences):
    """A third of them: enough for 2500 pieces."""
    return sentences[::3]


@pytest.fixture(scope="module")
def trained(some, tmp_path_factory):
    """(vocabulary, its lines, the progress that was shown)."""
    shown, lines = [], TrainingLines(some)

    def track(items, description, total):
        shown.extend((description, total) for _ in items)
        return iter(())

    path = str(tmp_path_factory.mktemp("trained") / "m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decoupled.core.console.track", track)
        return train_vocabulary(lines, path, config(2500)), lines, shown


def test_progress_is_reported_by_rounds(some, trained):
    _, lines, shown = trained
    assert lines.lines == len(some)
    # 1,000,000 pieces become 2,750 in 21 prunings by a quarter, two rounds before each
    # and two at the end; so little text begins with fewer.
    assert shown[0] == ("training pieces, rounds", 44)
    assert 4 <= len(shown) <= 44


def test_the_number_of_threads_is_part_of_the_settings(some, trained, tmp_path):
    # The sums of the EM algorithm are those of so many parts of the text.
    one = train_vocabulary(some, str(tmp_path / "m"), config(2500, threads=1))
    assert one.fingerprint != trained[0].fingerprint


def test_the_number_of_cores_changes_nothing(some, trained, tmp_path):
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        one = train_vocabulary(iter(some), str(tmp_path / "m"), config(2500))
    finally:
        os.sched_setaffinity(0, cores)
    assert one.content == trained[0].content
    assert one.fingerprint == trained[0].fingerprint


def test_long_lines_are_split_not_skipped(tmp_path):
    # 9,000 words in one line; SentencePiece skips lines of more than 4,192 bytes.
    line = "alpha beta gamma " * 3000
    spaceless = "漢字" * 5000
    made = train_vocabulary([line, spaceless], str(tmp_path / "m"), config(21))
    assert made.unk_id not in made.encode("alpha beta gamma 漢字")


def test_reserved_characters_do_not_hide_a_line(tmp_path):
    # Of a line with U+2585, the trainer itself would see nothing.
    lines = ["one\ttwo\0three\nfour ▅ \ud800"] * 3
    made = train_vocabulary(lines, str(tmp_path / "m"), config(18))
    assert made.unk_id not in made.encode("onetwothreefour")


def test_too_large_a_vocabulary_states_the_largest(sentences, tmp_path):
    path = tmp_path / "model"
    few = sentences[:300]
    message = refusal(train_vocabulary, few, str(path), config(50000))
    assert "vocab_size 50000 is more than " in message
    assert not list(tmp_path.iterdir())
    largest = int(message.split(" at most")[0].split()[-1])
    assert train_vocabulary(few, str(path), config(largest)).size == largest


def test_too_small_a_vocabulary_states_the_smallest(sentences, tmp_path):
    path = str(tmp_path / "model")
    message = refusal(train_vocabulary, sentences, path, config(50))
    assert "vocab_size 50 is too small" in message
    assert message.endswith("character_coverage (0.98 at least)")
    assert not list(tmp_path.iterdir())
    assert int(message.split("need ")[1].split(";")[0]) > 1000


@pytest.mark.parametrize("nothing", [[], ["", " \n"]])
def test_no_text(tmp_path, nothing):
    with pytest.raises(UserError, match="no text to train a vocabulary on"):
        train_vocabulary(nothing, str(tmp_path / "model"), config(50))


def test_an_error_of_the_source_comes_through(tmp_path):
    def source():
        yield "some text"
        raise UserError("a.txt: changed")

    with pytest.raises(UserError, match="^a.txt: changed$"):
        train_vocabulary(source(), str(tmp_path / "model"), config(50))
    assert not list(tmp_path.iterdir())


WORKER_THAT_DIES = "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), {})"


@pytest.mark.parametrize(
    "signal, message",
    [(9, "killed, most likely for lack of memory"), (6, "ended with code -6")],
)
def test_a_trainer_that_dies_leaves_nothing(tmp_path, monkeypatch, signal, message):
    start = subprocess.Popen

    def start_another(command, **options):
        code = WORKER_THAT_DIES.format(signal)
        return start([sys.executable, "-c", code], **options)

    monkeypatch.setattr(vocabulary_training.subprocess, "Popen", start_another)
    with pytest.raises(UserError, match=message):
        train_vocabulary(["some text"] * 100_000, str(tmp_path / "m"), config(50))
    assert not list(tmp_path.iterdir())


def test_a_worker_whose_parent_is_gone_makes_no_vocabulary():
    command = [sys.executable, "-m", "decoupled.data.vocabulary_worker"]
    options = b'{"vocab_size": 20, "hard_vocab_limit": false, "minloglevel": 2}\n'
    ended = subprocess.run(
        command, input=options + b"some text\n" * 50, capture_output=True
    )
    assert (ended.returncode, ended.stdout) == (3, b"")


GIB = 1 << 30


def test_memory_is_that_of_the_measured_runs():
    # Measured: bytes of text, peak in MiB.
    for size, peak in ((20_130_131, 379), (60_440_732, 1101), (201_611_140, 3599)):
        assert training_memory(size) / 2**20 == pytest.approx(peak, rel=0.03)
    # Beyond one part, it grows with the text alone.
    assert training_memory(2e9) - training_memory(1e9) == pytest.approx(2.9e9)
    assert training_memory(0) < 0.1 * GIB


@pytest.mark.parametrize(
    "size, pieces, seconds",
    [
        # Measured: bytes of text, pieces, seconds on two cores.
        (60_440_732, 50_000, 46.2),
        (60_440_732, 250_000, 27.9),
        (201_611_140, 250_000, 95.3),
    ],
)
def test_time_is_that_of_the_measured_runs(size, pieces, seconds):
    assert training_seconds(size, pieces) == pytest.approx(seconds, rel=0.1)


def test_rounds_from_the_seed_pieces():
    # A million to 275,000 takes 5 quarters: .75 ** 4 is more than .275, .75 ** 5 less.
    assert expected_rounds(250_000) == 12
    assert expected_rounds(2_000_000) == 2


@pytest.mark.parametrize("size", [1e6, 3e8, 5e8, 2e9])
def test_what_fits_is_the_inverse_of_the_estimate(size):
    assert fitting_text(training_memory(size)) == pytest.approx(size)
    assert fitting_text(0) == 0


@pytest.mark.parametrize("size, free", [(1e15, None), (2e9, 16 * GIB)])
def test_unknown_or_enough_memory_needs_no_word(size, free):
    assert check_memory(size, 10, free) is None


def test_little_room_is_a_warning():
    warning = check_memory(2e9, 10_000_000, 13 * GIB)
    assert warning.startswith("training on 10,000,000 sentences takes some 12.0 GiB of")
    assert "13.0 GiB are free" in warning


def test_too_little_memory_is_refused_with_a_number_that_fits():
    message = refusal(check_memory, 2e9, 10_000_000, 8 * GIB)
    assert message.startswith("VocabularyConfig.max_sentences: ")
    fitting = int(message.split("; ")[1].split()[0].replace(",", ""))
    assert check_memory(200 * fitting, fitting, 8 * GIB) is None
    # The answer is no smaller than it must be.
    assert check_memory(200 * fitting * 1.01, fitting, 8 * GIB) is not None
