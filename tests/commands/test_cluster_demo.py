"""The comparison of losses that the cluster's demo prints."""

import pytest

from decoupled.commands import cluster_demo
from decoupled.core.errors import UserError
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
