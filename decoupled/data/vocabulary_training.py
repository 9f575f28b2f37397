"""Trains a SentencePiece unigram vocabulary in another process; estimates the cost.

It writes `sentencepiece.model`, atomically. The same text and settings give the same
bytes on any machine: the trainer's sums depend on the number of threads, which is a
setting, but not on the machine.

The trainer (0.2.3) silently skips lines with more bytes than its limit, and lines with
"▅" (U+2585), its own sign for an unknown character. `TrainingLines` brings sentences
into a form of which it skips nothing.
"""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import IO, Any

from decoupled.configs import VocabularyConfig
from decoupled.configs.corpora import NORMALIZATION
from decoupled.configs.data import MIN_COVERAGE
from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.core.machine import readable_bytes
from decoupled.corpora.text_lines import divides_character
from decoupled.data.sentencepiece_file import PAD, SPECIAL, UNKNOWN
from decoupled.data.vocabulary import Vocabulary, open_vocabulary, valid_text

# Longer lines are cut. This is long enough for any sentence, and short enough for the
# trainer's memory, which grows with the length of a line.
MAX_LINE_CHARACTERS = 2000
# No character takes more than 4 bytes.
MAX_LINE_BYTES = 4 * MAX_LINE_CHARACTERS
RESERVED = "\u2585"

# Ends of sentences and of clauses, also in scripts without spaces.
_SENTENCE_ENDS = re.compile(r"[.!?…。！？｡।॥۔؟։።၊။។༎]")
_CLAUSE_ENDS = re.compile(r"[,;:，、；：،؛·–—)\]}」』]")

_LOG_EVERYTHING = 0
_MESSAGE = re.compile(r"^[A-Z]\d+ [\d:.]+ +\d+ [\w.]+:\d+\] (.*)")

# The cost of training was measured with SentencePiece 0.2.3 on two cores;
# docs/vocabulary.md lists the runs. The trainer always holds the normalised text.
# Memory peaks while it counts substrings, in parts of 512 MiB, and does not depend on
# the number of pieces. Most of the time is that of the EM algorithm, and grows with the
# text.
_BYTES_BEFORE_TEXT = 20 << 20
# Bytes of memory per byte of text: sentences and their normalised form.
_TEXT_FACTOR = 2.9
# Bytes of memory per byte of the part whose substrings are counted: suffix array,
# common prefixes, candidates. In a part, spaces are "\u2581", which has three bytes.
_PART_FACTOR = 13.2
_SPACE_FACTOR = 1.2
_LARGEST_PART = 512 << 20
# Seconds on two cores per megabyte of text: reading and counting, and each EM round.
_SECONDS, _SECONDS_PER_ROUND = 0.16, 0.025
# The trainer's own defaults. It begins with SEED_PIECES, or fewer for a short text, and
# keeps three quarters of them in each round. Before the last round it has 10% more
# pieces than wanted.
SEED_PIECES = 1_000_000
SHRINKING = 0.75
ROUNDS_PER_SHRINKING = 2
_SURPLUS = 1.1
# Above this share of the free memory, other processes may need some of it.
_COMFORTABLE_SHARE = 0.8


class TrainingLines:
    """One pass over sentences, as lines of UTF-8 that the trainer does not skip.

    Reserved characters (NUL, "▅") become white space, and white space becomes one
    space. Long lines are cut at the end of a sentence, a word or a clause, else between
    two characters, but not within what a reader sees as one character.

    The counts are complete after the pass:
      lines, characters, bytes: of the yielded lines.
      cut: sentences that were cut. reserved: sentences that contained "▅".
    """

    def __init__(self, sentences: Iterable[str], max_line: int = MAX_LINE_CHARACTERS):
        self._sentences = sentences
        self._max_line = max_line
        self.lines = self.characters = self.bytes = 0
        self.cut = self.reserved = 0

    def __iter__(self) -> Iterator[bytes]:
        for sentence in self._sentences:
            self.reserved += RESERVED in sentence
            text = valid_text(sentence).replace("\0", " ").replace(RESERVED, " ")
            text = " ".join(text.split())
            self.cut += len(text) > self._max_line
            for part in cut_text(text, self._max_line):
                line = part.encode("utf-8")
                self.lines += 1
                self.characters += len(part)
                self.bytes += len(line)
                yield line


def cut_text(text: str, max_line: int) -> Iterator[str]:
    """Cuts a text into parts of at most `max_line` characters; loses only spaces."""
    while len(text) > max_line:
        place = _place_to_cut(text, max_line)
        yield text[:place].rstrip()
        text = text[place:].lstrip()
    if text:
        yield text


def _place_to_cut(text: str, max_line: int) -> int:
    half = max_line // 2
    places = (
        _last_end(_SENTENCE_ENDS, text, half, max_line),
        text.rfind(" ", half, max_line + 1),
        _last_end(_CLAUSE_ENDS, text, half, max_line),
        *range(max_line, half, -1),
    )
    for place in places:
        if place > 0 and not divides_character(text, place):
            return place
    return max_line


def _last_end(pattern: re.Pattern, text: str, start: int, stop: int) -> int:
    """The end of the last match in text[start:stop]; -1 if there is none."""
    # The search includes one more character; a match must not end after `stop`.
    ends = [match.end() for match in pattern.finditer(text, start, stop + 1)]
    return max((end for end in ends if end <= stop), default=-1)


def train_vocabulary(
    sentences: Iterable[str] | TrainingLines, path: str, config: VocabularyConfig
) -> Vocabulary:
    """Trains a unigram vocabulary and writes it to `path` (atomically).

    Ids: <pad> 0, </s> 1, <unk> 2, [CLS], [SEP], [MASK], then 256 bytes if asked for.
    """
    is_counted = isinstance(sentences, TrainingLines)
    lines = sentences if is_counted else TrainingLines(sentences)
    error, model = _run_worker(lines, path, config)
    if error is not None:
        raise UserError(f"{path}: {_training_error(error, config)}")
    with files.atomic_write(path, "wb") as handle:
        handle.write(model)
    return open_vocabulary(path)


def _options(config: VocabularyConfig) -> dict[str, Any]:
    return {
        "model_type": "unigram",
        "vocab_size": config.vocab_size,
        "character_coverage": config.character_coverage,
        "byte_fallback": config.byte_fallback,
        "normalization_rule_name": NORMALIZATION,
        "pad_id": 0,
        "eos_id": 1,
        "unk_id": 2,
        "bos_id": -1,
        "pad_piece": PAD[0],
        "unk_piece": UNKNOWN[0],
        "control_symbols": list(SPECIAL),
        "num_threads": config.num_threads,
        "seed_sentencepiece_size": SEED_PIECES,
        "shrinking_factor": SHRINKING,
        "num_sub_iterations": ROUNDS_PER_SHRINKING,
        "max_sentence_length": MAX_LINE_BYTES,
        "minloglevel": _LOG_EVERYTHING,
    }


def _run_worker(
    lines: Iterable[bytes], path: str, config: VocabularyConfig
) -> tuple[str | None, bytes]:
    """Runs the worker to its end: the error of the trainer or None, and the model."""
    process = subprocess.Popen(
        [sys.executable, "-m", "decoupled.data.vocabulary_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    last_message = ""

    def rounds():
        # The worker's log has a message for each round of the EM algorithm.
        nonlocal last_message
        for line in process.stderr:
            if match := _MESSAGE.match(line.decode("utf-8", errors="replace")):
                last_message = match[1].rstrip()
                if last_message.startswith("EM sub_iter"):
                    yield last_message

    try:
        _feed(process.stdin, _options(config), lines)
        count = expected_rounds(config.vocab_size)
        for _ in console.track(rounds(), "training pieces, rounds", count):
            pass
        header, model = process.stdout.readline(), process.stdout.read()
        code = process.wait()
    finally:
        process.kill()
        # Closing its pipes fails if it ended before it read everything.
        with contextlib.suppress(BrokenPipeError), process:
            pass
    if code or not header:
        raise UserError(f"{path}: {_ending(code, last_message)}")
    return json.loads(header), model


def _feed(stream: IO[bytes], options: dict[str, Any], lines: Iterable[bytes]) -> None:
    """Sends options and text; stops silently if the worker has ended."""
    with contextlib.suppress(BrokenPipeError):
        stream.write(json.dumps(options).encode() + b"\n")
        for line in lines:
            stream.write(line + b"\n")
        stream.write(b"\n")
        stream.flush()


def _ending(code: int, last_message: str) -> str:
    if code == -signal.SIGKILL:
        return (
            "the trainer was killed, most likely for lack of memory, after "
            f'"{last_message}"; lower VocabularyConfig.max_sentences or max_bytes'
        )
    return f'SentencePiece ended with code {code} after "{last_message}"'


def _training_error(message: str, config: VocabularyConfig) -> str:
    if "!sentences_.empty()" in message:
        return "no text to train a vocabulary on; the corpus is empty"
    size = f"vocab_size {config.vocab_size}"
    if match := re.search(r"too high \(\d+\)\. .* <= (\d+)", message):
        return (
            f"{size} is more than this text can give: {match[1]} at most; lower "
            "VocabularyConfig.vocab_size or add text"
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
        return (
            f"{size} is too small: special pieces and characters alone need "
            f"{match[1]}; raise VocabularyConfig.vocab_size or lower "
            f"character_coverage ({MIN_COVERAGE} at least)"
        )
    return f"SentencePiece cannot train a vocabulary ({message.strip()})"


def expected_rounds(vocab_size: int) -> int:
    """The most rounds of EM that the trainer needs for a vocabulary of this size."""
    shrinkings = math.log(SEED_PIECES / (_SURPLUS * vocab_size)) / -math.log(SHRINKING)
    return ROUNDS_PER_SHRINKING * (1 + max(0, math.ceil(shrinkings)))


def training_seconds(text_bytes: float, vocab_size: int) -> float:
    """How long training on `text_bytes` of UTF-8 takes on two cores."""
    rounds = expected_rounds(vocab_size)
    return (_SECONDS + _SECONDS_PER_ROUND * rounds) * text_bytes / 1e6


def training_memory(text_bytes: float) -> float:
    """The bytes of memory that training on `text_bytes` of UTF-8 takes."""
    part = min(_SPACE_FACTOR * text_bytes, _LARGEST_PART)
    return _BYTES_BEFORE_TEXT + _TEXT_FACTOR * text_bytes + _PART_FACTOR * part


def fitting_text(memory: float) -> float:
    """The bytes of UTF-8 whose training needs so much memory; at least 0."""
    text_memory = max(0.0, memory - _BYTES_BEFORE_TEXT)
    one_part = text_memory / (_TEXT_FACTOR + _PART_FACTOR * _SPACE_FACTOR)
    many_parts = (text_memory - _PART_FACTOR * _LARGEST_PART) / _TEXT_FACTOR
    return max(one_part, many_parts)


def check_memory(
    text_bytes: float, sentences: int, free_memory: int | None
) -> str | None:
    """A warning if memory for a sample is short; None if it is not, or is unknown."""
    needed_memory = training_memory(text_bytes)
    if free_memory is None or needed_memory <= _COMFORTABLE_SHARE * free_memory:
        return None
    count = math.floor(
        sentences * fitting_text(_COMFORTABLE_SHARE * free_memory) / text_bytes
    )
    numbers = (
        f"training on {sentences:,} sentences takes some "
        f"{readable_bytes(needed_memory, 1)} of memory, "
        f"{readable_bytes(free_memory, 1)} are free; {count:,} sentences would fit"
    )
    if needed_memory <= free_memory:
        return f"{numbers} comfortably"
    raise UserError(
        f"VocabularyConfig.max_sentences: {numbers}: lower it, or max_bytes, or use a "
        "larger machine"
    )
