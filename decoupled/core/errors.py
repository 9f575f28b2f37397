"""The exceptions for users, and the form of their messages on a terminal."""

import contextlib
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

# All known names are listed if there are at most this many, or if none is similar.
_MOST_NAMES = 20
# Characters of a file's text that a message repeats.
_MOST_CHARACTERS = 60
# Characters that do something to a terminal instead of standing for a letter: control
# characters, line ends other than \n, controls of the writing direction, and halves of
# characters. Marks and joiners that words need are none of them.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
# Characters of one word and of a whole message; more is left out in the middle.
_LONGEST_WORD, _LONGEST_MESSAGE = 400, 2000


class UserError(Exception):
    """A mistake that the user can fix: the message says what, where, and what to do.

    Commands print it in one line, without a traceback, and exit with code 2
    (`endings`). Any other exception is a defect of this package and keeps its
    traceback.
    """


class Mistakes:
    """Collects mistakes of the user, so that all of them are reported at once."""

    def __init__(self):
        self._texts: list[str] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes a UserError that is raised inside, instead of raising it."""
        try:
            yield
        except UserError as error:
            self._texts.append(str(error))

    def raise_all(self) -> None:
        """Raises the collected mistakes as one error."""
        if len(self._texts) > 1:
            numbered = [f"({n}) {text}" for n, text in enumerate(self._texts, start=1)]
            raise UserError(f"{len(numbered)} mistakes: {'; '.join(numbered)}")
        if self._texts:
            raise UserError(self._texts[0])


class Terminated(Exception):
    """SIGTERM arrived; the run has saved a checkpoint, and the same command resumes it.

    Commands print the message in one line and exit with code 143 (`endings`).
    """


class Interrupted(Exception):
    """Ctrl-C was pressed; the run has a checkpoint, and the same command resumes it.

    Commands print the message and the command in one line and exit with code 130
    (`endings`).
    """


# Exit code of a process that has lost another of its run; a supervisor restarts it.
WORKER_LOST_CODE = 75


class WorkerLost(Exception):
    """A process of the mesh has died; the run can resume from its checkpoint.

    Commands print the message in one line and exit with code 75 (`endings`).
    """


def quoted(value: Any) -> str:
    """The start of a value of a file, as Python writes it: no control characters."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}..."
    return repr(text) if isinstance(value, str) else text


def close_names(name: str, known_names: Sequence[str]) -> str:
    """The end of a message about an unknown name: the similar names, or all."""
    similar_names = difflib.get_close_matches(name, known_names, n=3)
    guess = f"; did you mean {' or '.join(similar_names)}?" if similar_names else ""
    if similar_names and len(known_names) > _MOST_NAMES:
        return guess
    return f"{guess or ';'} Known: {', '.join(known_names)}"


def printable(text: str) -> str:
    r"""A text of unknown origin for a terminal: "\x1b" stands for the character ESC."""
    return _CONTROLS.sub(lambda sign: sign[0].encode("unicode_escape").decode(), text)


def in_one_line(message: str) -> str:
    r"""A message for a terminal: printable, in one line, and no longer than a page.

    An indented line continues the line before it. Any other line end is part of a name
    or a value and is shown as "\n".
    """
    text = re.sub(r"\n[ \t]+", " ", message.strip(" \t\n"))
    text = printable(text).replace("\n", r"\n").replace("\t", r"\t")
    words = re.compile(rf"\S{{{_LONGEST_WORD},}}")
    text = words.sub(lambda word: _shortened(word[0], _LONGEST_WORD), text)
    return _shortened(text, _LONGEST_MESSAGE)


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    tail = limit // 4
    head = limit - tail
    cut_count = len(text) - head - tail
    return f"{text[:head]} [... {cut_count:,} characters ...] {text[-tail:]}"
