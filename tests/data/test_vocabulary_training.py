"""Training a vocabulary: reproducible, quiet, nothing skipped, limits in one line."""

import os
import subprocess
import sys

import pytest

from decoupled.configs import VocabularyConfig
from decoupled.core.errors import UserError
from decoupled.data import vocabulary_training
from decoupled.data.training_lines import TrainingLines
from decoupled.data.vocabulary_training import train_from_lines, train_vocabulary


def config(vocab_size, byte_fallback=False, coverage=0.9999, threads=16):
    return VocabularyConfig(vocab_size, coverage, byte_fallback, 10**6, 10**9, threads)


def test_the_same_text_gives_the_same_bytes(sentences, tmp_path):
    first = train_vocabulary(sentences, str(tmp_path / "first"), config(4000))
    again = train_vocabulary(iter(sentences), str(tmp_path / "again"), config(4000))
    assert again.model_bytes == first.model_bytes
    assert again.fingerprint == first.fingerprint
    other = train_vocabulary(sentences[:-1], str(tmp_path / "other"), config(4000))
    assert other.fingerprint != first.fingerprint


def test_the_number_of_threads_is_part_of_the_settings(sentences, tmp_path):
    # The sums of the EM algorithm are those of so many parts of the text.
    parts = [
        train_vocabulary(sentences, str(tmp_path / "m"), config(4000, threads=threads))
        for threads in (1, 16)
    ]
    assert parts[0].fingerprint != parts[1].fingerprint


def test_the_number_of_cores_changes_nothing(sentences, tmp_path):
    every = train_vocabulary(sentences, str(tmp_path / "m"), config(4000))
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        one = train_vocabulary(sentences, str(tmp_path / "m"), config(4000))
    finally:
        os.sched_setaffinity(0, cores)
    assert one.fingerprint == every.fingerprint


def test_training_is_quiet(sentences, tmp_path, capfd):
    train_vocabulary(sentences[:2000], str(tmp_path / "model"), config(2000))
    assert capfd.readouterr() == ("", "")


def test_long_lines_are_split_not_skipped(tmp_path):
    # 9,000 words in one line; SentencePiece skips lines of more than 4,192 bytes.
    line = "alpha beta gamma " * 3000
    spaceless = "漢字" * 5000
    made = train_vocabulary([line, spaceless], str(tmp_path / "m"), config(21))
    assert made.unk_id not in made.encode("alpha beta gamma 漢字")


def test_reserved_characters_do_not_hide_a_line(tmp_path):
    lines = ["one\ttwo\0three\nfour \ud800"] * 3
    made = train_vocabulary(lines, str(tmp_path / "m"), config(18))
    assert made.unk_id not in made.encode("onetwothreefour")


def test_too_large_a_vocabulary_states_the_largest(sentences, tmp_path):
    path = tmp_path / "model"
    few = sentences[:300]
    with pytest.raises(
        UserError, match=r"vocab_size 50000 is more than .* at most"
    ) as e:
        train_vocabulary(few, str(path), config(50000))
    assert not list(tmp_path.iterdir())
    largest = int(str(e.value).split(" at most")[0].split()[-1])
    assert train_vocabulary(few, str(path), config(largest)).size == largest


def test_too_small_a_vocabulary_states_the_smallest(sentences, tmp_path):
    with pytest.raises(UserError, match=r"vocab_size 50 is too small.*need \d+") as e:
        train_vocabulary(sentences, str(tmp_path / "model"), config(50))
    assert not list(tmp_path.iterdir())
    assert int(str(e.value).split("need ")[1].split(";")[0]) > 1000


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


def test_a_sign_that_the_trainer_reserves_hides_no_line(tmp_path):
    # Of a line with U+2585, the trainer itself would see nothing.
    made = train_vocabulary(["alpha ▅ beta"] * 3, str(tmp_path / "m"), config(14))
    assert made.unk_id not in made.encode("alpha beta")
    assert made.unk_id in made.encode("▅")


def test_the_memory_of_the_trainer_is_told(sentences, tmp_path):
    lines = TrainingLines(sentences)
    trained = train_from_lines(lines, str(tmp_path / "m"), config(4000))
    assert 10 << 20 < trained.peak_bytes < 1 << 30
    assert lines.lines == len(sentences)


def test_progress_is_told_by_rounds(sentences, tmp_path, monkeypatch):
    told = []

    def track(items, description, total):
        told.extend((description, total) for _ in items)
        return iter(())

    monkeypatch.setattr("decoupled.core.console.track", track)
    train_vocabulary(sentences, str(tmp_path / "m"), config(4000))
    # 1,000,000 pieces become 4,400 in 19 prunings by a quarter, two rounds before each
    # and two at the end; so little text begins with fewer.
    assert told[0] == ("training pieces, rounds", 40)
    assert 4 <= len(told) <= 40


WORKER_THAT_DIES = "import os, sys; sys.stdin.readline(); os.kill(os.getpid(), {})"


@pytest.mark.parametrize(
    "signal, message",
    [(9, "killed, most likely for want of memory"), (6, "ended with code -6")],
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
