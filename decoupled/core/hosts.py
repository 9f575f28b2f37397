"""Several processes that run the same command: which one this is, and who writes.

Every process runs the same code with the same settings, and so reaches the same calls
in the same order. The first process alone writes the files of a run: the others wait in
a function that is decorated with `by_first`, and get what it returned or raised there.
It begins when all have come to it, so that nobody still reads what it replaces. A
function that writes a cache is decorated with `only_first`, where nobody waits.

A process alone is the first of one, and waits for nobody.
`decoupled.training.xla.hosts` joins processes.
"""

import contextlib
import errno
import functools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar

from decoupled.core.errors import (
    Interrupted,
    Terminated,
    UserError,
    WorkerLost,
    quoted,
)

P = ParamSpec("P")
T = TypeVar("T")

# Whether this thread works for itself alone at the moment.
_thread = threading.local()


class Store(Protocol):
    """A table of texts that all processes share."""

    def set(self, key: str, value: str) -> None:
        """Writes a value, once for each key."""

    def get(self, key: str, seconds: float) -> str:
        """Waits for a value; raises TimeoutError."""

    def delete(self, folder: str) -> None:
        """Removes all keys below `folder`."""


class Group:
    """The processes, of which this one is `names[index]`.

    Args:
      seconds: a process that others await for longer is taken for lost.
    """

    def __init__(self, index: int, names: Sequence[str], store: Store, seconds: float):
        self.index, self.names = index, list(names)
        self._store, self._seconds = store, seconds
        self._number = 0

    @property
    def is_first_of_host(self) -> bool:
        """Whether no process before this one runs on the same host."""
        hosts = [name.partition("(")[2] for name in self.names]
        return hosts.index(hosts[self.index]) == self.index

    def meet(self, what: str, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """What the first process makes of all values, each of them JSON.

        Raises:
          UserError, ValueError, OSError: the same that `combine` raised in the first
            process; an error of TensorFlow about a file is an OSError in the others.
          RuntimeError: `combine` raised another error there.
          WorkerLost: a process did not come.
        """
        self._number += 1
        folder = f"meet/{self._number}"
        if self.index:
            self._store.set(f"{folder}/{self.index}", json.dumps([what, value]))
            kind, result = json.loads(self._get(folder, 0, what))
            if kind:
                raise _ERRORS[kind](*result)
            return result
        values = [value]
        for index in range(1, len(self.names)):
            other_call, other_value = json.loads(self._get(folder, index, what))
            if other_call != what:
                raise RuntimeError(
                    f"{self.names[index]} is at {other_call}, {self.names[0]} at {what}"
                )
            values.append(other_value)
        # All processes have read the result of the meeting before this one.
        if self._number > 1:
            self._store.delete(f"meet/{self._number - 1}")
        try:
            result = combine(values)
        except (Interrupted, Terminated, WorkerLost):
            # The watch in `training.xla.hosts` ends the other processes.
            raise
        except Exception as error:
            self._store.set(f"{folder}/0", json.dumps(_name_and_arguments(error)))
            raise
        self._store.set(f"{folder}/0", json.dumps(["", result]))
        return result

    def _get(self, folder, index, what):
        try:
            return self._store.get(f"{folder}/{index}", self._seconds)
        except TimeoutError:
            raise WorkerLost(
                f"{self.names[index]}: did not come to {what} within "
                f"{self._seconds:.0f} s; run again, what is saved is kept"
            ) from None


# The types of the errors that the first process sends to the others, by their names.
_ERRORS = {kind.__name__: kind for kind in (UserError, OSError, ValueError)}
_ERRORS["RuntimeError"] = RuntimeError


def _name_and_arguments(error):
    """The name of an error in `_ERRORS`, and its arguments."""
    # Imported here: gfile imports this module.
    from decoupled.core import files, gfile

    if isinstance(error, gfile.OpError):
        number = getattr(error, "errno", None) or errno.EIO
        return "OSError", [
            number,
            files.reason(error),
            getattr(error, "filename", None),
        ]
    for kind in (UserError, ValueError):
        if isinstance(error, kind):
            return kind.__name__, [str(error)]
    if isinstance(error, MemoryError):
        return "UserError", [f"the first process has not enough memory ({error})"]
    return "RuntimeError", [f"{type(error).__name__}: {error}"]


_group_of_one = Group(0, ["this process"], None, 0.0)
_group = _group_of_one


@contextlib.contextmanager
def member(group: Group) -> Iterator[None]:
    """Makes this process one of a group while the block runs."""
    global _group
    _group = group
    try:
        yield
    finally:
        _group = _group_of_one


def are_joined() -> bool:
    """Whether a service joins the processes; one may be joined with itself."""
    return _group is not _group_of_one


def count() -> int:
    """How many processes there are."""
    return len(_group.names)


def index() -> int:
    """The number of this process, from 0."""
    return _group.index


def name() -> str:
    """This process in words."""
    return _group.names[_group.index]


def is_first_of_host() -> bool:
    """Whether this process writes what the processes of a host share."""
    return _group.is_first_of_host


def is_first() -> bool:
    """Whether this process speaks for all."""
    return _group.index == 0


def writes() -> bool:
    """Whether this process writes files."""
    return is_first() or _is_private()


def gather(what: str, value: Any) -> list[Any]:
    """The values of all processes, each of them JSON, in their order."""
    if count() == 1:
        return [value]
    return _group.meet(what, value, lambda values: values)


def agree(what: str, facts: Mapping[str, str]) -> None:
    """Raises a UserError on all processes if one has other facts than the rest."""
    if count() > 1:
        _group.meet(what, facts, lambda values: check_equal(_group.names, values))


def check_equal(names: Sequence[str], facts: Sequence[Mapping[str, str]]) -> None:
    """Raises a UserError that names who differs from the others, and in what."""
    for what in {name: None for each in facts for name in each}:
        values = [each.get(what, "missing") for each in facts]
        # The first wins a tie.
        usual_value = Counter(values).most_common(1)[0][0]
        for name, value in zip(names, values, strict=True):
            if value != usual_value:
                usual_name = names[values.index(usual_value)]
                difference = _difference(value, usual_value)
                raise UserError(
                    f"{name} differs from {usual_name}: {what} is {difference}; "
                    "all processes need the same command, settings, files and packages"
                )


def _difference(value, usual_value):
    value_lines, usual_lines = value.splitlines(), usual_value.splitlines()
    differences = [
        (part, usual_part)
        for part, usual_part in zip(value_lines, usual_lines, strict=False)
        if part != usual_part
    ]
    part, usual_part = differences[0] if differences else (value, usual_value)
    return f"{quoted(part)}, not {quoted(usual_part)}"


@contextlib.contextmanager
def private() -> Iterator[None]:
    """Lets this process write files of its own while the block runs."""
    was_private, _thread.private = _is_private(), True
    try:
        yield
    finally:
        _thread.private = was_private


def _is_private():
    return getattr(_thread, "private", False)


def by_first(work: Callable[P, T]) -> Callable[P, T]:
    """Lets the first process do the work for all; its result is JSON."""

    @functools.wraps(work)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if count() == 1 or _is_private():
            return work(*args, **kwargs)

        def work_here(_):
            with private():
                return work(*args, **kwargs)

        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"{work.__name__}: others wait in the main thread only")
        result = _group.meet(work.__name__, None, work_here)
        if not is_first():
            for path in (*args, *kwargs.values()):
                _look_again(path)
        return result

    return wrapper


def only_first(work: Callable[P, None]) -> Callable[P, None]:
    """Lets the first process do the work; the others neither do it nor wait."""

    @functools.wraps(work)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        if writes():
            with private():
                work(*args, **kwargs)

    return wrapper


def _look_again(path: Any) -> None:
    """A folder of a network is read anew when it is opened, not when a file is."""
    if isinstance(path, str) and "/" in path and "://" not in path:
        for folder in (path, os.path.dirname(path)):
            with contextlib.suppress(OSError):
                os.listdir(folder)
