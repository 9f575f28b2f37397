"""Commands of the documents on settings, TPUs and GPUs can be given as written.

A shell runs every block of commands with stand-ins that note their arguments. Then the
scripts are run with --dry-run, and the package's commands take the flags.
"""

import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import tensorflow as tf

from decoupled.commands import pretrain
from tests.test_examples_of_settings import refusal
from tests.tpu_scripts.cloud import SCRIPTS, dry_run

DOCS = SCRIPTS.parent / "docs"
FUNCTION = re.compile(r"`tf\.([\w.]+)\(")
BLOCK = re.compile(r"^```\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# The name of the program and its arguments, each followed by a null byte, and a line.
NOTES = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" >>"$NOTES"
printf '\\n\\0' >>"$NOTES"
"""
# In an interpreter of its own, as a flag can be defined once.
TAKE_FLAGS = """
import importlib, json, sys
from absl import flags
importlib.import_module(sys.argv[1]).define_flags()
for words in json.load(sys.stdin):
    flags.FLAGS.unparse_flags()
    left = flags.FLAGS(["command", *words])
    assert left == ["command"], left
"""


def noted(folder, text):
    """The commands of a document, as lists of words."""
    programs = [
        folder / "bin" / name for name in ("decoupled", "python", "pip", "tensorboard")
    ]
    programs += [folder / "tpu_scripts" / path.name for path in SCRIPTS.glob("*.sh")]
    for program in programs:
        program.parent.mkdir(exist_ok=True)
        program.write_text(NOTES)
        program.chmod(0o755)
    notes = folder / "notes"
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    shell = ["bash", "-euc", "\n".join(BLOCK.findall(text))]
    environment = {**os.environ, "PATH": path, "NOTES": str(notes)}
    subprocess.run(shell, cwd=folder, env=environment, check=True)
    ends = notes.read_text().removesuffix("\0\n\0").split("\0\n\0")
    return [command.split("\0") for command in ends]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Document -> its commands."""
    return {
        name: noted(
            tmp_path_factory.mktemp(name), (DOCS / f"{name}.md").read_text("utf-8")
        )
        for name in ("configuration", "tpu", "gpu")
    }


def of_the_package(given):
    """Command -> the flags of each use of it; also of a command behind --."""
    found = {}
    for program, *words in (words for name in given for words in given[name]):
        if program != "decoupled":
            continue
        for part in _parts(words):
            # With dots it is the reader's to complete.
            if "..." not in part:
                found.setdefault(part[0], []).append(part[1:])
    return found


def _parts(words):
    if "--" not in words:
        return [words]
    end = words.index("--")
    assert words[end + 1] == "decoupled"
    return [words[:end], words[end + 2 :]]


def test_scripts_take_their_options(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("data/records", "data/vocabulary", "data/corpus/tasks"):
        pathlib.Path(folder).mkdir(parents=True)
    pathlib.Path("rows.txt").write_text("pretrain --model_dir=gs://b/run\n")
    scripts = [words for words in given["tpu"] if words[0].endswith(".sh")]
    assert {"create.sh", "pretrain.sh", "finetune.sh", "sweep.sh"} <= {
        script for script, *_ in scripts
    }
    for script, *options in scripts:
        assert dry_run(script, *options)


@pytest.mark.parametrize("name", ["plan", "pretrain", "supervise", "sweep"])
def test_commands_take_their_flags(given, name):
    done = subprocess.run(
        [sys.executable, "-c", TAKE_FLAGS, f"decoupled.commands.{name}"],
        input=json.dumps(of_the_package(given)[name]),
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_settings_of_pretraining_fit_each_other(given):
    """What a class checks when it is made is checked here, as by the command."""
    scripts = [words for words in given["tpu"] if words[0] == "pretrain.sh"]
    here = of_the_package(given)["pretrain"]
    assert len(scripts) >= 5 and len(here) >= 9
    for words in [*scripts, *here]:
        defaults = pretrain.TPU_DEFAULTS if words in scripts else pretrain.DEFAULTS
        assert refusal(words, defaults) == "", words


def test_functions_of_tensorflow_exist(given):
    """The switches of exactness and of the MLIR bridge, in Python."""
    found = {
        name
        for document in given
        for name in FUNCTION.findall((DOCS / f"{document}.md").read_text("utf-8"))
    }
    assert len(found) >= 3
    for name in found:
        assert callable(functools.reduce(getattr, name.split("."), tf)), name
