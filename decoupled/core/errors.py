"""The exceptions that a user is meant to read, and how they tell of unknown names."""

import contextlib
import difflib
from collections.abc import Iterator, Sequence

# More names than this are listed only where none of them is close to what was written.
_MOST_NAMES = 20


class UserError(Exception):
    """Something the user can mend: the message says what, where, and what to do.

    Commands print it in one line, without a traceback, and exit with code 2
    (`decoupled.launch`). Everything else that is raised is a defect of ours and keeps
    its traceback.
    """


class Mistakes:
    """Collects mistakes of the user, so that all of them are told at once."""

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
        """Raises what was noted.

        Raises:
          UserError: there was a mistake; of several each has a number.
        """
        if len(self._found) > 1:
            numbered = [f"({n}) {text}" for n, text in enumerate(self._found, start=1)]
            raise UserError(f"{len(numbered)} mistakes: {'; '.join(numbered)}")
        if self._found:
            raise UserError(self._found[0])


class Terminated(Exception):
    """SIGTERM came; the run has saved a checkpoint, and the same command goes on.

    Commands print the message in one line and exit with code 143 (`decoupled.launch`).
    """


class Interrupted(Exception):
    """Ctrl-C came; the run has saved a checkpoint, and the same command goes on.

    Commands print the message and the command in one line and exit with code 130
    (`decoupled.launch`).
    """


# Of the driver whose worker died; a supervisor starts both again.
WORKER_LOST_CODE = 75


class WorkerLost(Exception):
    """A process that a mesh spans is gone; the run can go on from its checkpoint.

    Commands print the message in one line and exit with code 75 (`decoupled.launch`).
    """


def close_names(name: str, known: Sequence[str]) -> str:
    """The end of a message about an unknown name: those close to it, or all."""
    near = difflib.get_close_matches(name, known, n=3)
    guess = f"; did you mean {' or '.join(near)}?" if near else ""
    if near and len(known) > _MOST_NAMES:
        return guess
    return f"{guess or ';'} Known: {', '.join(known)}"
