"""The demo: its commands, and the table and plot that it makes of their results."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from decoupled.commands import demo
from decoupled.core import files, plots
from decoupled.core.errors import UserError
from decoupled.training.events import write_scalars
from tests.helpers import tiny_model


@pytest.fixture
def work_dir(tmp_path):
    """What the steps leave behind, written by hand."""
    for index, model in enumerate(demo.MODELS):
        config = tiny_model(coupled=index == 0, output_embedding_size=8 + 16 * index)
        folder = str(tmp_path / model)
        description = {
            "format": "decoupled-model-1",
            "command": "pretrain",
            "model": vars(config),
            "vocabulary": {"fingerprint": "abc", "vocab_size": 48},
            "task": None,
            "data": {},
        }
        files.make_folder(folder)
        files.write_json(f"{folder}/config.json", description)
        accuracy = {"masked_lm_accuracy": 0.25 + index / 10}
        files.write_json(f"{folder}/eval.json", {"all": accuracy})
        for step in (1, 2, 3):
            write_scalars(folder, step, {"masked_lm_accuracy": 0.1 * step})
        tested = {
            "en": {"accuracy": 80.0, "trivial_accuracy": 40.0},
            "de": {"accuracy": 50.0 + 10 * index, "trivial_accuracy": 30.0},
            "fr": {"accuracy": 60.0, "trivial_accuracy": 50.0},
        }
        files.make_folder(f"{folder}_catalogs")
        files.write_json(f"{folder}_catalogs/results.json", {"test": tested})
    seconds = {
        f"{step}_{m}": 12.5 for step in ("pretrain", "finetune") for m in demo.MODELS
    }
    files.write_json(str(tmp_path / "seconds.json"), seconds)
    return tmp_path


def test_table_and_plot(work_dir, capsys):
    demo.report(str(work_dir))
    table = (work_dir / "results.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    cells = {row[0]: row[1:] for row in rows}
    # English, which the task was trained on, is not part of the mean.
    assert cells["accuracy, mean of 2 unseen languages"] == ["55.0%", "60.0%", "40.0%"]
    assert cells["masked-LM accuracy"][:2] == ["25.0%", "35.0%"]
    assert cells["accuracy, de"] == ["50.0%", "60.0%", "30.0%"]
    assert cells["seconds of pre-training"][:2] == ["12.5", "12.5"]
    results = json.loads((work_dir / "results.json").read_text())
    coupled, decoupled = (results[model] for model in demo.MODELS)
    # A decoupled output table of its own: V * E_out, and a wider MLM head.
    grown = decoupled["pt_parameters"] - coupled["pt_parameters"]
    assert grown == 48 * 24 + (16 + 1 + 2) * (24 - 8)
    assert decoupled["ft_parameters"] == coupled["ft_parameters"]
    assert (work_dir / "results.png").read_bytes().startswith(b"\x89PNG")
    assert "results.png" in capsys.readouterr().out


def test_the_plot_has_the_table_s_accuracies_in_the_colours_of_all_plots(work_dir):
    demo.report(str(work_dir))
    drawn = (work_dir / "results.svg").read_text()
    for words in ("coupled, training batches", "decoupled, held-out text", "majority"):
        assert words in drawn
    assert plots.BLUE.lower() in drawn and plots.ORANGE.lower() in drawn


def test_a_run_without_a_whole_event_is_reported(work_dir):
    for path in work_dir.glob("*/events.out.tfevents.*"):
        path.write_bytes(b"")
    demo.report(str(work_dir))
    assert (work_dir / "results.png").exists()


def test_curve_is_the_mean_of_the_last_values(work_dir):
    steps, values = demo._curve(str(work_dir / "coupled"), window=2)
    assert steps == [1, 2, 3]
    assert values == pytest.approx([0.1, 0.15, 0.25])


def test_every_step_is_a_command_that_exists(tmp_path):
    steps = demo.make_steps(str(tmp_path))
    assert [step.name for step in steps] == [
        "corpus",
        "vocabulary",
        "records",
        "pretrain_coupled",
        "pretrain_decoupled",
        "finetune_coupled",
        "finetune_decoupled",
        "export",
        "serve",
    ]
    for step in steps[:-1]:
        assert step.command[0] == "decoupled"
        __import__(f"decoupled.commands.{step.command[1]}")


def test_ctrl_c_lets_the_step_end_and_prints_the_command_that_goes_on(tmp_path):
    """As from a terminal: all processes of the group get it."""
    ready = tmp_path / "ready"
    slow = [sys.executable, "-c", SLOW_STEP, str(ready), str(tmp_path / "saved")]
    code = RUN_STEP.format(step=demo.Step("slow", "slow", slow))
    process = subprocess.Popen(
        [sys.executable, "-c", code, f"--work_dir={tmp_path}/run"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (tmp_path / "saved").exists()
    told = errors.splitlines()[-1]
    assert "Ctrl-C: ended in step slow; go on with: decoupled demo" in told
    assert told.endswith(f"demo --work_dir={tmp_path}/run")


SLOW_STEP = """
import pathlib, sys, time
try:
    pathlib.Path(sys.argv[1]).touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    pathlib.Path(sys.argv[2]).touch()
    sys.exit(130)
"""
RUN_STEP = """
from decoupled.commands import demo
from decoupled.launch import start
from decoupled.commands.demo import Step
demo.make_steps = lambda _: [{step!r}]
import sys
sys.argv.insert(1, "demo")
start.run(demo)
"""


@pytest.mark.parametrize("code, shown", [(0, ""), (3, "a line\n")])
def test_a_quiet_step_prints_its_errors_where_it_fails(tmp_path, capfd, code, shown):
    write = f"import sys; sys.stderr.write('a line\\n'); sys.exit({code})"
    step = demo.Step("speaks", "quiet", [sys.executable, "-c", write], quiet=True)
    with contextlib.suppress(UserError):
        demo._run(str(tmp_path), step)
    assert capfd.readouterr().err == shown


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_whole_demo_and_once_more(tmp_path):
    command = [sys.executable, "-m", "decoupled", "demo", f"--work_dir={tmp_path}/run"]
    subprocess.run(command, check=True)
    results = files.read_json(f"{tmp_path}/run/results.json")
    for model in demo.MODELS:
        languages = results[model]["languages"]
        assert len(languages) == 12
        majority = demo._average(languages, "trivial_accuracy")
        assert demo._average(languages, "accuracy") > majority + 2
        assert languages["en"]["accuracy"] > 50
    again = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert again.count("complete already, reused") == 3
    assert again.count("nothing to train") == 4
    assert files.read_json(f"{tmp_path}/run/results.json") == results


def test_help():
    command = [sys.executable, "-m", "decoupled", "demo", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "--work_dir" in shown and "No download" in shown


def test_what_is_missing_is_told_before_the_first_step(monkeypatch):
    """Not after minutes, when the plot is drawn."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"matplotlib .*'decoupled\[plots\]'"):
        demo.main()
