"""The file of a suite: written after each comparison, resumed, never half written."""

import json

import pytest

from benchmarks import results
from benchmarks.interleave import Skip
from benchmarks.results import Plan, measure
from decoupled.core.errors import UserError
from tests.benchmarks.toys import comparison, measured, toy


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "toys.json"


@pytest.fixture(autouse=True)
def commit(monkeypatch):
    """The commit of the checkout, as a list of one."""
    current = ["0123456789"]
    monkeypatch.setattr(results, "commit", lambda: current[0])
    return current


def test_everything_is_read_back(path):
    workers = [measured("a", [[1.0, 2.0], [1.5]], {"dtype": "x"}, {"parameters": 3})]
    written = [comparison("one", workers), comparison("two", skipped="too large")]
    results.write(path, written)
    assert results.read(path) == written
    assert [file.name for file in path.parent.iterdir()] == ["toys.json"]
    content = json.loads(path.read_text())
    assert content["name"] == "toys"
    raw = content["comparisons"][0]["workers"][0]["rounds"][0]["seconds"]
    assert raw == [1.0, 2.0]


def test_a_comparison_is_written_as_soon_as_it_is_measured(path):
    # The steps of the comparison come before those of its suite.
    measure(path, Plan("one", lambda: [toy("a")], steps=1), rounds=2, steps=3)
    (read,) = results.read(path)
    assert read.title == "one"
    assert [len(chunk.seconds) for chunk in read.worker("a").rounds] == [1, 1]
    assert read.commit == "0123456789"
    assert read.machine["cores"] >= 1
    assert read.command.startswith("python -m benchmarks")
    with pytest.raises(UserError):
        measure(path, Plan("two", lambda: [toy("a", fail="step")]), 1, 1)
    assert [c.title for c in results.read(path)] == ["one"]


def test_what_is_measured_again_takes_the_place_of_the_earlier(path):
    results.write(path, [comparison("one"), comparison("two")])
    measure(path, Plan("one", lambda: [toy("a")]), 1, 1)
    first, second = results.read(path)
    assert first.worker("a").name == "a"
    assert second == comparison("two")


def test_what_cannot_be_measured_here_is_skipped_with_its_reason(path, capsys):
    def make_workers():
        raise Skip("needs 32 GB")

    measure(path, Plan("one", make_workers), 1, 1)
    measure(path, Plan("two", lambda: [toy("a", fail="killed")]), 1, 1)
    first, second = results.read(path)
    assert (first.workers, first.skipped) == ([], "needs 32 GB")
    assert second.skipped == "a: worker ended, most likely for lack of memory"
    assert "toys: one: skipped, needs 32 GB" in capsys.readouterr().out
