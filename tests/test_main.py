"""`decoupled` shows the way to the commands."""

import os
import pathlib
import subprocess
import sys

import pytest

from decoupled import __main__ as listed
from decoupled.commands import doctor
from tests.command_line import mistake


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "decoupled", *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_every_command_is_listed_once():
    names = [name for names in listed.COMMANDS.values() for name in names]
    there = sorted(path.stem for path in (doctor.PACKAGE / "commands").glob("[!_]*.py"))
    assert sorted(names) == there


def test_commands_come_in_the_order_of_their_needs():
    lines = listed.listing().splitlines()
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    path = ["doctor", "build_corpus", "build_vocabulary", "build_records", "pretrain"]
    path += ["finetune", "score", "export", "sweep", "report", "supervise"]
    assert [name for name in names if name in path] == path


def test_each_has_one_line_which_begins_its_own_help():
    lines = [line for line in listed.listing().splitlines() if line.startswith("  ")]
    for line in lines:
        name, _, sentence = line.strip().partition(" ")
        source = (doctor.PACKAGE / "commands" / f"{name}.py").read_text(
            encoding="utf-8"
        )
        assert source.startswith(f'"""{sentence.strip()}')
        assert sentence.endswith("."), name


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_list_needs_no_tensorflow_and_no_command(arguments):
    done = run(*arguments)
    assert done.returncode == 0
    assert done.stdout == listed.listing() + "\n"
    assert "tensorflow" not in done.stderr
    assert "decoupled.commands.pretrain" not in done.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_closes_early_is_no_defect(unbuffered):
    """As `decoupled | head -1`."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "decoupled"],
        stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    "word, advice",
    [
        ("pretrian", "; did you mean pretrain or retrieve?"),
        ("build-corpus", "; did you mean build_corpus or build_records?"),
        ("--model_dir=x", "; Known: doctor, demo, build_corpus, "),
    ],
)
def test_an_unknown_command_is_told_what_is_close_to_it(word, advice):
    message = mistake(word, "--help")
    assert message.startswith(f"decoupled: error: no command {word!r}{advice}")


@pytest.mark.parametrize("command", ["doctor", "plan"])
def test_a_folder_that_is_gone_is_said(tmp_path, command):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = (
        f'cd "{gone}" && rmdir "{gone}" && "{sys.executable}" -m decoupled {command}'
    )
    done = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (
        2,
        "decoupled: error: the current folder is gone; change to another one\n",
    )


def test_the_console_script_is_the_same_program():
    script = pathlib.Path(sys.executable).parent / "decoupled"
    done = subprocess.run(
        [script, "analyze", "masked_lm", "--model_dri=x"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "decoupled analyze masked_lm: error: Unknown command line flag 'model_dri'. "
        "Did you mean: model_dir ?; --help lists the flags\n"
    )
