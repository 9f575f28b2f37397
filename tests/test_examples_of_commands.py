"""Commands of README, docs, help and gin files can be given as written.

A shell runs every block of commands of the documents with stand-ins that note their
arguments. The package's commands take the flags, and the scripts run with --dry-run.
The slow test runs the commands that need only what README's tour has made, with less
training.
"""

import importlib
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from absl import flags
from absl.testing import flagsaver

from decoupled.__main__ import COMMANDS, NEEDS_PYTHON_ALONE
from decoupled.commands import pretrain
from tests.test_examples_of_settings import PLACEHOLDER, SOURCES, refusal, texts_of
from tests.tpu_scripts.cloud import PRETRAIN, SCRIPTS, dry_run

ROOT = SCRIPTS.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAMS = ("decoupled", "python", "pip", "tensorboard", "make", "saved_model_cli")
PROGRAMS += ("apt-get", "dpkg-deb")
# Of a block of commands, unlike one of output or of a file.
BEGINNING = re.compile(
    rf"(?:#.*\n|\s)*(?:(?:{'|'.join(PROGRAMS)}|for|export|tpu_scripts/\w+\.sh)\b|\w+=)"
)
# A command in a help text or in a gin file, and one in the prose of a document.
LINE = re.compile(r"^(?:[\w ]*[#$])? *decoupled ([a-z_]+)( .*--.*)$", re.MULTILINE)
INLINE = re.compile(
    r"`decoupled ([a-z_]+)( [^`]+)`|^\w+\$ decoupled ([a-z_]+)( .+)$", re.MULTILINE
)
# The name of the program and its arguments, each followed by a null byte, and a line.
NOTES = """#!/bin/sh
printf '%s\\0' "${0##*/}" "$@" >>"$NOTES"
printf '\\n\\0' >>"$NOTES"
"""
NAMES = [name for names in COMMANDS.values() for name in names]
# What a command reads, and what it writes.
READ = {"records_dir", "vocabulary", "corpus_dir", "init_checkpoint", "data_dir"}
READ |= {"checkpoint", "branch_from", "prediction_folder", "label_folder", "input"}
READ |= {"pairs", "finetuned_dir", "sentences"}
WRITTEN = {"output_dir", "export_dir", "new_model_dir", "output", "work_dir"}
# The flags that are read or written, by what the command does.
WRITES_MODEL = {"pretrain", "finetune", "from_tf", "from_hf", "average"}
# Settings of training in a hundredth of the time, or nearly.
SHORT = {
    "pretrain": {
        "ScheduleConfig.train_steps": "12",
        "ScheduleConfig.warmup_steps": "1",
        "TrainingConfig.save_checkpoints_steps": "5",
        "TrainingConfig.eval_sequences": "8",
    },
    "finetune": {"FinetuningConfig.num_epochs": "1"},
    "sweep": {
        "SweepConfig.seeds": "(0,)",
        "SweepConfig.pretraining": "('ScheduleConfig.train_steps = 12', "
        "'ScheduleConfig.warmup_steps = 1', 'TrainingConfig.eval_sequences = 8', "
        "'TrainingConfig.batch_size = 8', 'MaskingConfig.sequence_length = 16', "
        "'MaskingConfig.max_predictions = 2')",
        "SweepConfig.finetuning": "('FinetuningConfig.num_epochs = 1', "
        "'FinetuningConfig.max_sequence_length = 32')",
    },
}
STEPS = re.compile(r"(steps = |model\.ckpt-)(\d+)00\b")


def noted(folder, text):
    """The commands of a document, as lists of words."""
    blocks = [
        block
        for language, block in BLOCK.findall(text)
        if not language and BEGINNING.match(block)
    ]
    if not blocks:
        return []
    programs = [folder / "bin" / name for name in PROGRAMS]
    # docs/scaling.md makes environments of these names.
    programs += [folder / name / "bin" / "pip" for name in ("compiler", "cuda")]
    programs += [folder / "tpu_scripts" / path.name for path in SCRIPTS.glob("*.sh")]
    for program in programs:
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(NOTES)
        program.chmod(0o755)
    notes = folder / "notes"
    # Only the stand-ins are found; what the shell does not have itself fails.
    environment = {"PATH": str(folder / "bin"), "NOTES": str(notes)}
    shell = ["/bin/bash", "-euc", "\n".join(blocks)]
    subprocess.run(shell, cwd=folder, env=environment, check=True)
    ends = notes.read_text().removesuffix("\0\n\0").split("\0\n\0")
    return [command.split("\0") for command in ends]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Document -> its commands."""
    return {
        path.stem: noted(tmp_path_factory.mktemp(path.stem), path.read_text("utf-8"))
        for path in DOCUMENTS
    }


def of_the_package(given):
    """Command -> the words of each use of it; also of a command behind --."""
    found = {}
    for program, *words in (words for name in given for words in given[name]):
        if program != "decoupled":
            continue
        for part in _parts(words):
            found.setdefault(part[0], []).append(part[1:])
    return found


def _parts(words):
    if "--" not in words:
        return [words]
    end = words.index("--")
    assert words[end + 1] == "decoupled"
    return [words[:end], words[end + 2 :]]


def elsewhere():
    """(Path, command, words) of commands in help, gin files and prose."""
    for path in SOURCES:
        if path.suffix == ".md":
            pattern = INLINE
        elif path.suffix == ".gin" or path.parent.name == "commands":
            pattern = LINE
        else:
            continue
        for text in texts_of(path):
            for found in pattern.findall(text):
                name, words = filter(None, found)
                yield path.name, name, shlex.split(words)


def mistake_in(name, words):
    """Why a command does not take the words, "" if it does.

    Words with dots, and the pieces of commands that prose has, lack flags that are
    required.
    """
    if name not in NAMES:
        return "there is no such command"
    if name == NEEDS_PYTHON_ALONE:
        return ""
    command = importlib.import_module(f"decoupled.commands.{name}")
    takes_words = getattr(command, "TAKES_WORDS", False)
    if subcommands := getattr(command, "SUBCOMMANDS", None):
        first, *words = words
        if first.isupper():
            return ""
        if first not in subcommands:
            return f"{name} has no {first!r}"
        command = subcommands[first]
    saved = flagsaver.save_flag_values()
    try:
        command.define_flags()
        for word in words[: words.index("--") if "--" in words else None]:
            flag, is_given, value = word.removeprefix("--").partition("=")
            if flag in ("help", "...") or word.startswith("$"):
                continue
            known = flags.FLAGS[flag if is_given else flag.removeprefix("no")]
            if is_given and value != "..." and not PLACEHOLDER.fullmatch(value):
                known.parser.parse(value)
    except (flags.Error, ValueError, KeyError) as error:
        return "" if takes_words and not word.startswith("--") else f"{word}: {error}"
    finally:
        flagsaver.restore_flag_values(saved)
    return ""


def mistakes_in(commands):
    return [
        f"{where}: decoupled {name} {shlex.join(words)}: {mistake}"
        for where, name, words in commands
        if (mistake := mistake_in(name, words))
    ]


def test_scripts_take_their_options(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("data/records", "data/vocabulary", "data/corpus/tasks"):
        pathlib.Path(folder).mkdir(parents=True)
    pathlib.Path("rows.txt").write_text(f"{PRETRAIN} --model_dir=gs://b/run\n")
    scripts = [w for words in given.values() for w in words if w[0].endswith(".sh")]
    assert {"create.sh", "run.sh", "sweep.sh"} <= {script for script, *_ in scripts}
    for script, *options in scripts:
        assert dry_run(script, *options)


def test_commands_take_their_flags(given):
    used = of_the_package(given)
    assert {"pretrain", "finetune", "convert", "score", "analyze"} <= used.keys()
    commands = [("docs", name, words) for name in used for words in used[name]]
    commands += elsewhere()
    assert len(commands) > 120
    assert mistakes_in(commands) == []


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        ("pretrain --model_dir=a --mode_dir=b ...", "--mode_dir=b: 'mode_dir'"),
        ("convert to_hugging --model_dir=a", "convert has no 'to_hugging'"),
        ("guess --model_dir=a", "there is no such command"),
        ("retrieve --task=xnli", "--task=xnli: value should be one of"),
        ("finetune DIR --task=own", "DIR: "),
        ("reproduce --size=large", "--size=large: "),
    ],
)
def test_words_that_a_command_does_not_take_are_seen(words, mistake):
    name, *rest = words.split()
    assert mistake in mistake_in(name, rest)


def test_required_flags_are_in_complete_commands(given):
    """Those of README, which has no command with dots."""
    for name, uses in of_the_package({"README": given["README"]}).items():
        command = importlib.import_module(f"decoupled.commands.{name}")
        saved = flagsaver.save_flag_values()
        try:
            command.define_flags()
            for words in uses:
                assert flags.FLAGS(["command", *words]) == ["command"]
        finally:
            flagsaver.restore_flag_values(saved)


def test_settings_of_pretraining_fit_each_other(given):
    """What a class checks when it is made is checked here, as by the command."""
    launches = [w for words in given.values() for w in words if w[0] == "run.sh"]
    jobs = [words[words.index("--") + 1 :] for words in launches]
    scripts = [flags for command, *flags in jobs if command == "pretrain"]
    here = of_the_package(given)["pretrain"]
    assert len(scripts) >= 2 and len(here) >= 9
    for words in [*scripts, *here]:
        defaults = [pretrain.TPU_DEFAULTS] if words in scripts else []
        with_dots = "..." in words or "--gin_file=models/MODEL.gin" in words
        assert with_dots or refusal(words, *defaults) == "", words


def paths_of(words):
    """The paths that a command reads, and those that it writes."""
    read, written = [], []
    for word in words:
        flag, _, value = word.removeprefix("--").partition("=")
        writes = WRITTEN | ({"hf_dir"} if "to_hf" in words else set())
        writes |= {"model_dir"} if WRITES_MODEL & set(words[:2]) else set()
        writes |= {"sweep_dir"} if words[0] == "sweep" else set()
        if flag in writes:
            written.append(value)
        elif flag in READ | {"model_dir", "hf_dir", "sweep_dir", "export_dir"}:
            read.append(value)
    return read, written


def short(words):
    """The command with less training."""
    words = [STEPS.sub(r"\1\2", word) for word in words]
    params = [f"--gin_param={k} = {v}" for k, v in SHORT.get(words[0], {}).items()]
    # The command's own settings win.
    return [words[0], *params, *words[1:]]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_commands_that_need_only_the_demos_folder_run(given, tmp_path):
    """README's tour makes what the demo has; then the commands of the other pages."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = []

    def run(words):
        done = subprocess.run(
            [sys.executable, "-m", "decoupled", *short(words)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stderr[-3000:]}"
        print(shlex.join(words))
        ran.append(" ".join(words[:2] if words[0] == "convert" else words[:1]))

    for _, *words in [words for words in given["README"] if words[0] == "decoupled"]:
        run(words)
    for page in given.keys() - {"README", "accelerators"}:
        # What a command would have written that needs more than the demo's folder.
        absent = set()
        for program, *words in given[page]:
            if program != "decoupled" or "..." in words or "--" in words:
                continue
            read, written = paths_of([STEPS.sub(r"\1\2", word) for word in words])
            there = all(
                path not in absent
                and (tmp_path / path).exists()
                or (tmp_path / f"{path}.index").exists()
                for path in read
            )
            if read and there:
                run(words)
            else:
                absent |= set(written)
    expected = {"convert to_hf", "export", "fill_mask", "sweep"}
    assert expected | {"report", "pretrain", "finetune"} <= set(ran), ran
