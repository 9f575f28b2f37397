"""Options of all suites, interpreters of the peers, and the default dump."""

import sys

import pytest

from benchmarks import command, results
from decoupled.core.errors import UserError
from tests.benchmarks.toys import comparison


def parse(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["suite", *arguments])
    return command.parse(command.parser("toys", "Measures toys.", rounds=5, steps=3))


def test_defaults(monkeypatch):
    arguments = parse(monkeypatch)
    assert (arguments.rounds, arguments.steps) == (5, 3)
    assert arguments.dtypes == ["float32", "bfloat16"]
    assert arguments.results_dir == command.RESULTS
    assert not arguments.resume


def test_quick_results_are_kept_apart(monkeypatch):
    arguments = parse(monkeypatch, "--quick")
    assert (arguments.rounds, arguments.steps) == (2, 2)
    assert arguments.results_dir == command.RESULTS / "quick"


def measured_titles(monkeypatch, tmp_path, *arguments):
    """(Title, rounds, steps, together) of what a suite measures; titles of what it
    shows."""
    done, shown = [], []

    def measure(results, title, make_workers, rounds, steps, together):
        done.append((title, rounds, steps, together))

    def tables(comparisons):
        shown.extend(comparison.title for comparison in comparisons)
        return []

    monkeypatch.setattr(results.Results, "measure", measure)
    options = parse(monkeypatch, f"--results_dir={tmp_path}", *arguments)
    planned = [
        command.Planned("float32: toys", list),
        command.Planned("bfloat16: toys", list, rounds=20, steps=1, together=False),
    ]
    command.measure(options, "toys", planned, tables)
    return done, shown


@pytest.mark.parametrize(
    "only,chosen",
    [
        ([], ["float32: toys", "bfloat16: toys"]),
        (["--only=float32"], ["float32: toys"]),
        (["--only=float16"], ["bfloat16: toys"]),
        (["--only=nothing"], []),
        (["--only=bfloat16", "--only=toys"], ["float32: toys", "bfloat16: toys"]),
    ],
)
def test_only(monkeypatch, tmp_path, only, chosen):
    done, _ = measured_titles(monkeypatch, tmp_path, *only)
    assert [title for title, *_ in done] == chosen


def test_a_comparison_may_have_rounds_and_steps_of_its_own(monkeypatch, tmp_path):
    done, _ = measured_titles(monkeypatch, tmp_path, "--rounds=7")
    assert done == [("float32: toys", 7, 3, True), ("bfloat16: toys", 20, 1, False)]


def test_earlier_results_are_in_the_tables_too(monkeypatch, tmp_path):
    results.write(tmp_path / "toys.json", "toys", [comparison("earlier")])
    _, shown = measured_titles(monkeypatch, tmp_path, "--only=nothing")
    assert shown == ["earlier"]


def test_rates_of_matrix_products_use_the_frameworks_own_interpreters(monkeypatch):
    monkeypatch.setenv("DECOUPLED_INTEROP_PYTHON", "/bin/sh")
    workers = command.matmul_workers("float32", True, ("tensorflow", "torch"))
    assert [worker.name for worker in workers] == ["matmul tensorflow", "matmul torch"]
    assert [worker.case["size"] for worker in workers] == [64, 64]
    (alone,) = command.matmul_workers("float32", False)
    assert alone.case["size"] == 2048


@pytest.mark.parametrize("argument", ["--rounds=0", "--dtypes=float16", "--nothing"])
def test_mistakes_on_the_command_line(monkeypatch, capsys, argument):
    with pytest.raises(SystemExit) as caught:
        parse(monkeypatch, argument)
    assert caught.value.code == 2
    assert "python -m benchmarks.toys: error:" in capsys.readouterr().err


def test_interpreter_of_a_variable(monkeypatch):
    monkeypatch.setenv("DECOUPLED_MESH_BERT_PYTHON", sys.executable)
    assert command.python("mesh_bert") == sys.executable
    assert command.python("decoupled") == sys.executable


def test_a_peer_that_is_not_installed(monkeypatch, capsys):
    monkeypatch.setenv("DECOUPLED_INTEROP_PYTHON", "/nowhere/python")
    with pytest.raises(UserError, match="^/nowhere/python: no interpreter there"):
        command.python("torch")
    with pytest.raises(SystemExit) as caught:
        command.run("toys", lambda: command.python("torch"))
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("benchmarks.toys: error: /nowhere/python")


def test_a_dump_of_the_data_folder_comes_first(monkeypatch):
    monkeypatch.setenv("DECOUPLED_DATA_DIR", "/data")
    assert command.default_dump() == f"/data/{command.BUNDLED}"


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment of peers whose interpreter does nothing."""
    monkeypatch.delenv("DECOUPLED_DATA_DIR", raising=False)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.touch(mode=0o755)
    monkeypatch.setenv(command.PEERS["corpus"][0], str(python))
    return tmp_path


def test_else_the_dump_that_gensim_brings(environment):
    name = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
    folder = environment / "lib/python3.11/site-packages/gensim/test/test_data"
    folder.mkdir(parents=True)
    (folder / name).touch()
    assert command.default_dump() == str(folder / name)


def test_no_dump_at_all_says_what_to_do(environment):
    with pytest.raises(UserError, match="give --dump=FILE"):
        command.default_dump()
