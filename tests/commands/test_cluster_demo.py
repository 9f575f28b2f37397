"""The comparison of losses that the cluster's demo prints."""

import json
import os
import sys
from types import SimpleNamespace

import pytest

from decoupled.commands import cluster_demo
from decoupled.core.errors import UserError
from decoupled.launch import supervision
from decoupled.training.events import write_scalars


@pytest.fixture
def work_dir(tmp_path):
    """Two steps of each run; four processes differ by 1e-4 in the second."""
    for processes in cluster_demo.PROCESSES:
        folder = str(tmp_path / "cluster" / str(processes))
        last = 1.5 + (1e-4 if processes == 4 else 0.0)
        for step, loss in ((1, 2.0), (2, last)):
            write_scalars(folder, step, {"loss": loss, "global_step/sec": 10.0})
    return str(tmp_path)


def test_the_largest_difference_is_found_and_shown(work_dir, capsys):
    assert cluster_demo._report(work_dir, 2) == pytest.approx(1e-4, rel=1e-2)
    lines = capsys.readouterr().out.splitlines()
    [row] = [line.split() for line in lines if line.split()[:1] == ["4"]]
    assert row == ["4", "2.000000", "1.500100", "1.0e-04", "100.0", "ms"]


def test_a_run_whose_events_were_cut_off_is_named(work_dir):
    with pytest.raises(UserError, match="cluster/1: its event files lack 1 of 3 steps"):
        cluster_demo._report(work_dir, 3)


def test_its_runs_are_timed(work_dir, tmp_path, monkeypatch):
    seen = tmp_path / "seen"

    def command_line(*words):
        code = f"open({str(seen)!r}, 'a').write({' '.join(words)!r} + '\\n')"
        return [sys.executable, "-c", code]

    monkeypatch.setattr(supervision, "command_line", command_line)
    monkeypatch.setattr(cluster_demo.installed, "need", lambda *_, **__: None)
    options = SimpleNamespace(work_dir=work_dir, steps=2)
    monkeypatch.setattr(cluster_demo.flags, "FLAGS", options)
    os.mkdir(tmp_path / "records")
    (tmp_path / "records/manifest.json").write_text("{}")

    monkeypatch.setattr(sys, "argv", ["decoupled", "cluster_demo"])
    with pytest.raises(SystemExit) as ended:
        cluster_demo.main()

    # The losses in `work_dir` differ by 1e-4.
    assert ended.value.code == 1
    first, *others = seen.read_text().splitlines()
    assert first.startswith("decoupled pretrain --accelerator=cpu ")
    starts = [line.partition(" -- ")[0] for line in others]
    assert starts == [f"decoupled supervise --processes={n}" for n in (2, 4)]
    took = json.loads((tmp_path / "cluster/seconds.json").read_text())
    assert sorted(took) == ["1_process", "2_processes", "4_processes"]
    assert "decoupled cluster_demo" in (tmp_path / "command.1").read_text()
