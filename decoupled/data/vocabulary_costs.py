"""What training a vocabulary will take, and whether this machine has it.

The numbers were measured with SentencePiece 0.2.3 on two cores; docs/vocabulary.md has
the runs. The trainer holds the text, normalised, all the time. Memory peaks while it
counts substrings, in parts of 512 MiB, whatever the number of pieces; time is mostly
that of the EM algorithm, and grows with the text.
"""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from decoupled.errors import UserError

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
_GIB = 1 << 30
# Beyond this share of what is free, others on the machine may be in the way.
_COMFORTABLE = 0.8
MEMINFO = "/proc/meminfo"
# The limit of a container, by version of control groups; each may be missing.
CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


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


def available_memory(
    meminfo: str = MEMINFO, limits: Sequence[str] = CGROUP_LIMITS
) -> int | None:
    """Bytes that a new process can have, swap included; None where Linux is not asked.

    Args:
      meminfo, limits: files of the system.
    """
    numbers = dict(re.findall(r"^(\w+): +(\d+) kB", _content(meminfo), re.MULTILINE))
    if "MemAvailable" not in numbers:
        return None
    free = 1024 * (int(numbers["MemAvailable"]) + int(numbers.get("SwapFree", 0)))
    # "max" stands for no limit.
    found = (_content(path).strip() for path in limits)
    return min([free, *(int(limit) for limit in found if limit.isdigit())])


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
        f"training on {sentences:,} sentences takes some {needed / _GIB:.1f} GiB of "
        f"memory, {available / _GIB:.1f} GiB are free; {fitting:,} sentences would fit"
    )
    if needed <= available:
        return f"{numbers} comfortably"
    raise UserError(
        f"VocabularyConfig.max_sentences: {numbers}: lower it, or max_bytes, or use a "
        "larger machine"
    )


def _content(path: str) -> str:
    """The text of a file of the system; "" where there is none."""
    try:
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except OSError:
        return ""
