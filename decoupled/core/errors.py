"""The exceptions that a user is meant to read."""

import contextlib
from collections.abc import Iterator


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
