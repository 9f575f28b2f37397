"""What training a vocabulary will take, and whether this machine has it.

The numbers were measured with SentencePiece 0.2.3 on two cores; docs/vocabulary.md has
the runs. The trainer holds the text, normalised, all the time. Memory peaks while it
counts substrings, in parts of 512 MiB, whatever the number of pieces; time is mostly
that of the EM algorithm, and grows with the text.
"""

import math
from typing import NamedTuple

from decoupled.core.errors import UserError
from decoupled.core.memory import readable_bytes

_BYTES_BEFORE_TEXT = 20 << 20
# Of memory per byte of text: sentences and what they are normalised to.
_HELD = 2.9
# Of memory per byte of the part whose substrings are counted: suffix array, common
# prefixes, candidates. A part holds the text with spaces as "\u2581", of three bytes.
_COUNTED = 13.2
_WITH_SPACES = 1.2
_LARGEST_PART = 512 << 20
# On two cores, per megabyte of text: reading and counting, and each round of EM.
_SECONDS, _SECONDS_PER_ROUND = 0.16, 0.025
# The trainer's own defaults. It begins with so many pieces, or all that the text has,
# and keeps three quarters of them again and again; the last time 10% more than wanted.
SEED_PIECES = 1_000_000
SHRINKING = 0.75
ROUNDS_PER_SHRINKING = 2
_SURPLUS = 1.1
# Beyond this share of what is free, others on the machine may be in the way.
_COMFORTABLE = 0.8


class Cost(NamedTuple):
    """What training takes: memory in bytes, time in seconds (on two cores)."""

    memory: float
    seconds: float


def expected_rounds(vocab_size: int) -> int:
    """How many rounds of EM it takes from the seed pieces to a vocabulary, at most."""
    shrinkings = math.log(SEED_PIECES / (_SURPLUS * vocab_size)) / -math.log(SHRINKING)
    return ROUNDS_PER_SHRINKING * (1 + max(0, math.ceil(shrinkings)))


def estimate(text_bytes: float, vocab_size: int) -> Cost:
    """The cost of training so many pieces on so many bytes of UTF-8."""
    rounds = expected_rounds(vocab_size)
    return Cost(
        _memory(text_bytes),
        (_SECONDS + _SECONDS_PER_ROUND * rounds) * text_bytes / 1e6,
    )


def _memory(text_bytes: float) -> float:
    part = min(_WITH_SPACES * text_bytes, _LARGEST_PART)
    return _BYTES_BEFORE_TEXT + _HELD * text_bytes + _COUNTED * part


def fitting_text(memory: float) -> float:
    """The bytes of UTF-8 that can be trained on in so much memory; not below 0."""
    left = max(0.0, memory - _BYTES_BEFORE_TEXT)
    one_part = left / (_HELD + _COUNTED * _WITH_SPACES)
    many_parts = (left - _COUNTED * _LARGEST_PART) / _HELD
    return max(one_part, many_parts)


def check_memory(
    text_bytes: float, sentences: int, available: int | None
) -> str | None:
    """A warning where memory is short; None where it is not, or where nobody knows.

    Args:
      text_bytes, sentences: of the sample.

    Raises:
      UserError: there is less memory than training takes.
    """
    needed = _memory(text_bytes)
    if available is None or needed <= _COMFORTABLE * available:
        return None
    fitting = math.floor(
        sentences * fitting_text(_COMFORTABLE * available) / text_bytes
    )
    numbers = (
        f"training on {sentences:,} sentences takes some {readable_bytes(needed, 1)} "
        f"of memory, {readable_bytes(available, 1)} are free; {fitting:,} sentences "
        "would fit"
    )
    if needed <= available:
        return f"{numbers} comfortably"
    raise UserError(
        f"VocabularyConfig.max_sentences: {numbers}: lower it, or max_bytes, or use a "
        "larger machine"
    )
