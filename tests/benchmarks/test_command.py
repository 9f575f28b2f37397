"""Options of all suites, and interpreters of the peers."""

import sys

import pytest

from benchmarks import command
from decoupled.core.errors import UserError


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


@pytest.mark.parametrize(
    "only,chosen",
    [
        ([], True),
        (["--only=float32"], True),
        (["--only=bfloat16"], False),
        (["--only=bfloat16", "--only=toys"], True),
    ],
)
def test_only(monkeypatch, only, chosen):
    assert command.is_chosen(parse(monkeypatch, *only), "float32: toys") is chosen


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
