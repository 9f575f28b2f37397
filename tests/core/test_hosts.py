"""Two processes that write files: the first does it, the other waits."""

import concurrent.futures
import threading

import pytest

from decoupled.core import console, files, gfile, hosts
from decoupled.core.errors import Terminated, UserError, WorkerLost
from decoupled.core.hosts import Group
from decoupled.core.release import tf


class Table:
    """The table of a service, for threads of one process."""

    def __init__(self):
        self.values, self._changed = {}, threading.Condition()

    def set(self, key, value):
        with self._changed:
            self.values[key] = value
            self._changed.notify_all()

    def get(self, key, seconds):
        with self._changed:
            if not self._changed.wait_for(lambda: key in self.values, seconds):
                raise TimeoutError
            return self.values[key]

    def delete(self, folder):
        with self._changed:
            for key in [key for key in self.values if key.startswith(f"{folder}/")]:
                del self.values[key]


def both(work, seconds=20.0):
    """What `work(group)` returns, or raises, in each of two processes."""
    table = Table()
    groups = [Group(index, ["a", "b"], table, seconds) for index in range(2)]

    def one(group):
        try:
            return work(group)
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(one, groups)), table


def test_values_meet_in_order_and_leave_nothing():
    def work(group):
        return [group.meet("x", [n, group.index], lambda v: v) for n in range(9)]

    results, table = both(work)
    assert results[0] == results[1] == [[[n, 0], [n, 1]] for n in range(9)]
    assert len(table.values) == 2


@pytest.mark.parametrize("error", [UserError("no"), OSError(28, "full", "a.txt")])
def test_all_raise_what_the_first_raises(error):
    def refuse(values):
        raise error

    (first, other), _ = both(lambda group: group.meet("x", None, refuse))
    assert first is error
    assert type(other) is type(error) and str(other) == str(error)


@pytest.mark.parametrize(
    "error, kind, message",
    [
        (tf.errors.ResourceExhaustedError(None, None, "a: full"), OSError, "a: full"),
        (tf.errors.NotFoundError(None, None, "a: none"), OSError, "a: none"),
        (ValueError("no folder"), ValueError, "no folder"),
        (KeyError("x"), RuntimeError, "'x'"),
    ],
)
def test_no_one_waits_for_a_first_process_that_failed(error, kind, message):
    def refuse(values):
        raise error

    def work(group):
        with pytest.raises(type(error) if group.index == 0 else kind, match=message):
            group.meet("x", None, refuse)
        return group.meet("y", group.index, lambda values: values)

    (first, other), _ = both(work, seconds=5.0)
    assert first == other == [0, 1]


def test_a_signal_is_no_error_of_the_others():
    """The watch of `training.xla.hosts` ends them."""

    def end(values):
        raise Terminated("SIGTERM")

    (first, other), _ = both(lambda group: group.meet("x", None, end), seconds=0.1)
    assert isinstance(first, Terminated) and isinstance(other, WorkerLost)


def test_too_little_memory_is_one_line_for_all():
    def fill(values):
        raise MemoryError("9 GiB")

    (first, other), _ = both(lambda group: group.meet("x", None, fill))
    assert isinstance(first, MemoryError) and isinstance(other, UserError)
    assert str(other) == "the first process has not enough memory (9 GiB)"


def test_who_does_not_come_is_named():
    (first, _), _ = both(
        lambda group: group.index or group.meet("save", None, len), seconds=0.1
    )
    assert isinstance(first, WorkerLost)
    assert str(first).startswith("b: did not come to save within")


def test_processes_that_do_different_things_are_a_defect():
    (first, _), _ = both(
        lambda group: group.meet(f"x{group.index}", None, len), seconds=0.5
    )
    assert isinstance(first, RuntimeError) and str(first) == "b is at x1, a at x0"


@pytest.fixture
def other():
    """The functions of this package in the second process, whose first has written."""
    table = Table()
    with hosts.member(Group(1, ["a", "b"], table, 0.1)):
        yield table


def test_the_other_writes_and_says_nothing(other, tmp_path, capsys):
    for number in range(1, 3):
        other.set(f"meet/{number}/0", '["", null]')
    (tmp_path / "old").write_text("kept")
    files.write_json(str(tmp_path / "a.json"), {})
    gfile.remove(str(tmp_path / "old"))
    console.say("a line")
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert capsys.readouterr().out == ""
    with pytest.raises(WorkerLost, match="a: did not come to rename"):
        files.write_text(str(tmp_path / "b"), "")


def test_scratch_is_each_process_s_own(other):
    with files.scratch_folder() as folder:
        assert files.is_empty_folder(folder)
    assert not files.exists(folder)
