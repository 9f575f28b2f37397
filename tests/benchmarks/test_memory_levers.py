"""Settings that save memory, tried on a tiny model: what is measured, and of what."""

import dataclasses
import json
import subprocess

import pytest

from benchmarks import memory_levers
from decoupled.configs import MeshConfig
from tests.helpers import tiny_model

TINY = tiny_model(num_layers=1, max_positions=memory_levers.LENGTH)


@pytest.fixture
def commands(monkeypatch):
    """Processes that say they took 1, 2, ... GB; and the commands that started them."""
    started = []

    def run(command, **settings):
        started.append(command)
        found = {"peak": len(started) * 1e9, "step": 0.5}
        return subprocess.CompletedProcess(command, 0, f"noise\n{json.dumps(found)}\n")

    monkeypatch.setattr(memory_levers.subprocess, "run", run)
    return started


def test_every_setting_has_a_process_of_its_own(commands, capsys):
    memory_levers.main(["--steps", "2"])
    names = [command[command.index("--lever") + 1] for command in commands]
    assert names == list(memory_levers.LEVERS)
    assert all(command[-2:] == ["--steps", "2"] for command in commands)
    shown = capsys.readouterr().out
    assert "1000 MB" in shown and f"{len(names)}000 MB" in shown


def test_settings_differ_from_each_other_and_are_those_of_a_mesh():
    levers = list(memory_levers.LEVERS.values())
    assert all(lever not in levers[:place] for place, lever in enumerate(levers))
    fields = {field.name for field in dataclasses.fields(MeshConfig)}
    assert all(set(lever.mesh) <= fields for lever in levers)


@pytest.mark.parametrize("name", ["bfloat16 activations and slices"])
def test_a_step_is_timed_and_the_peak_is_of_this_process(name):
    found = memory_levers.measure(name, steps=1, model=TINY)
    # Bytes: the libraries alone take more than 100 MB, and no test 1 TB.
    assert 1e8 < found["peak"] < 1e12
    assert 0 < found["step"] < 1e3
