"""The runner of all suites, the interpreters of the peers, and the document."""

import argparse
import pathlib
import runpy
import sys

import pytest

from benchmarks import __main__ as runner
from benchmarks import peers, results
from benchmarks.interleave import Worker
from benchmarks.results import Plan
from benchmarks.sizes import QUICK, QUICK_BATCH, pretraining_case
from benchmarks.tables import Suite
from tests.benchmarks.toys import comparison, measured
from tests.corpora import dumps


@pytest.fixture
def done(monkeypatch):
    """(Title, rounds, steps) of what a suite of two comparisons measures."""
    measured = []

    def measure(path, planned, rounds, steps):
        measured.append((planned.title, rounds, steps))

    def planned(arguments, folder):
        assert isinstance(arguments, argparse.Namespace) and folder.is_dir()
        yield Plan("float32: toys", list)
        yield Plan("bfloat16: toys", list)

    suite = Suite(planned, lambda comparisons: [], 5, 3)
    monkeypatch.setattr(runner, "measure", measure)
    monkeypatch.setattr(runner, "load", lambda name: suite)
    return measured


@pytest.mark.parametrize("name", runner.SUITES)
def test_a_suite_also_runs_as_a_module(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--rounds=0"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    assert "--rounds: 0 is less than 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, expected",
    [
        ([], [("float32: toys", 5, 3), ("bfloat16: toys", 5, 3)]),
        (["--quick"], [("float32: toys", 2, 2), ("bfloat16: toys", 2, 2)]),
        (["--rounds=7", "--only=float32"], [("float32: toys", 7, 3)]),
        (["--only=bfloat16", "--only=bf"], [("bfloat16: toys", 5, 3)]),
    ],
)
def test_what_is_measured(done, tmp_path, words, expected):
    runner.main(["corpus", f"--results_dir={tmp_path}", *words])
    assert done == expected


def test_only_names_comparisons(done, tmp_path, capsys):
    words = ["--only=bfloat16", "--only=flaot32"]
    with pytest.raises(SystemExit, match="2"):
        runner.main(["corpus", f"--results_dir={tmp_path}", *words])
    titles = "float32: toys, bfloat16: toys"
    assert f"error: --only=flaot32: in none of {titles}\n" in capsys.readouterr().err
    assert not done


@pytest.mark.parametrize("name", runner.SUITES)
def test_every_suite_plans_comparisons_of_its_own(name, tmp_path):
    suite = runner.load(name)
    dump = dumps.dump_xml([dumps.page("A", dumps.prose(1))])
    path = dumps.write(tmp_path / "a.xml.bz2", dump)
    arguments = argparse.Namespace(
        quick=True, dtypes=suite.dtypes, rounds=2, steps=2, dump=path
    )
    titles = [planned.title for planned in suite.comparisons(arguments, tmp_path)]
    assert titles and len(set(titles)) == len(titles)


@pytest.mark.parametrize(
    "words, message",
    [
        (["--write"], "--write: needs --programs=FOLDER"),
        (["--offline"], "--offline: needs --compiler=PYTHON; see docs/scaling.md"),
        (["--offline", "--compiler=/nothing"], "--compiler: /nothing: No such file"),
    ],
)
def test_mistakes_of_what_needs_no_device(capsys, words, message):
    with pytest.raises(SystemExit) as caught:
        runner.main(["accelerators", *words])
    assert caught.value.code == 2
    assert f"benchmarks: error: {message}" in capsys.readouterr().err


def test_interpreters_of_the_peers(monkeypatch, capsys):
    monkeypatch.setenv("DECOUPLED_MESH_BERT_PYTHON", sys.executable)
    assert peers.python("mesh_bert") == sys.executable
    assert peers.python("decoupled") == sys.executable
    monkeypatch.setenv("DECOUPLED_INTEROP_PYTHON", "/nowhere/python")
    monkeypatch.setattr(runner, "run", lambda _: Worker("peer", "torch", "none", {}))
    with pytest.raises(SystemExit) as caught:
        runner.main(["retrieval"])
    assert caught.value.code == 2
    problem = "benchmarks: error: /nowhere/python: no interpreter there"
    assert capsys.readouterr().err.startswith(problem)


def test_a_report_puts_the_tables_of_results_into_the_document(tmp_path, capsys):
    words = ["report", f"--results_dir={tmp_path}"]
    document = tmp_path / "performance.md"
    for missing in ("no results; run `make bench` first", "does not exist"):
        with pytest.raises(SystemExit):
            runner.main([*words, f"--document={document}"])
        assert missing in capsys.readouterr().err
        case = pretraining_case(QUICK, QUICK_BATCH, "float32")
        ours = measured("decoupled", [[0.5]], case)
        stock = measured("mesh_tensorflow.bert", [[1.0]], case)
        found = [comparison("float32: mesh_tensorflow.bert", [stock, ours])]
        results.write(tmp_path / "pretraining.json", found)
    document.write_text("<!-- table:pretraining -->\n<!-- end -->\n")
    runner.main([*words, f"--document={document}"])
    assert "| 2.00x (2.00-2.00) |" in document.read_text()
    assert "no place for table matmul" in capsys.readouterr().out


def test_the_results_of_all_suites_are_in_docs():
    names = {path.stem for path in runner.RESULTS.glob("*.json")}
    assert names == set(runner.SUITES)
    text = pathlib.Path(runner.DOCUMENT).read_text(encoding="utf-8")
    tables = [
        table
        for name in runner.SUITES
        for table in runner.load(name).tables(
            results.read(runner.RESULTS / f"{name}.json")
        )
    ]
    assert runner.fill(text, tables) == text
