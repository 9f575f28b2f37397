"""The exceptions for users, and the form of messages about unknown names."""

import contextlib
import difflib
from collections.abc import Iterator, Sequence
from typing import Any

# All known names are listed if there are at most this many, or if none is similar.
_MOST_NAMES = 20
# Characters of a file's text that a message repeats.
_MOST_CHARACTERS = 60


class UserError(Exception):
    """A mistake that the user can fix: the message says what, where, and what to do.

    Commands print it in one line, without a traceback, and exit with code 2
    (`decoupled.launch`). Any other exception is a defect of this package and keeps its
    traceback.
    """


class Mistakes:
    """Collects mistakes of the user, so that all of them are reported at once."""

    def __init__(self):
        self._found: list[str] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes a UserError that is raised inside, instead of raising it."""
        try:
            yield
        except UserError as error:
            self._found.append(str(error))

    def raise_all(self) -> None:
        """Raises the collected mistakes as one error.

        Raises:
          UserError: there was a mistake; several mistakes are numbered.
        """
        if len(self._found) > 1:
            numbered = [f"({n}) {text}" for n, text in enumerate(self._found, start=1)]
            raise UserError(f"{len(numbered)} mistakes: {'; '.join(numbered)}")
        if self._found:
            raise UserError(self._found[0])


class Terminated(Exception):
    """SIGTERM arrived; the run has saved a checkpoint, and the same command resumes it.

    Commands print the message in one line and exit with code 143 (`decoupled.launch`).
    """


class Interrupted(Exception):
    """Ctrl-C was pressed; the run has a checkpoint, and the same command resumes it.

    Commands print the message and the command in one line and exit with code 130
    (`decoupled.launch`).
    """


# Exit code of a driver whose worker died; a supervisor restarts both.
WORKER_LOST_CODE = 75


class WorkerLost(Exception):
    """A process of the mesh has died; the run can resume from its checkpoint.

    Commands print the message in one line and exit with code 75 (`decoupled.launch`).
    """


def quoted(value: Any) -> str:
    """The start of a value of a file, as Python writes it: no control characters."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:_MOST_CHARACTERS]}..."
    return repr(text) if isinstance(value, str) else text


def close_names(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: the similar names, or all."""
    near = difflib.get_close_matches(name, known, n=3)
    guess = f"; did you mean {' or '.join(near)}?" if near else ""
    if near and len(known) > _MOST_NAMES:
        return guess
    return f"{guess or ';'} Known: {', '.join(known)}"
