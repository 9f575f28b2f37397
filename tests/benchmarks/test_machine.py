"""Facts about this machine, and shares of its rate of matrix products."""

import subprocess

import pytest

from benchmarks import machine
from tests.benchmarks.toys import measured


def test_facts():
    facts = machine.facts()
    assert facts["processor"]
    assert facts["cores"] >= 1
    assert facts["memory"] > 10**9
    assert set(facts) == {
        "processor", "features", "cores", "memory", "system", "python",
    }  # fmt: skip


def test_rate():
    # 2 * 1000^3 FLOPs in half a second and in a quarter.
    worker = measured("matmul x", [[0.5], [0.25]], {"size": 1000})
    assert machine.matmul_rates(worker) == (6e9, 4e9, 8e9)


def test_share_is_taken_within_rounds():
    matmul = measured("matmul x", [[0.5], [1.0], [0.5]], {"size": 1000})
    # 6 * 10^9 FLOPs; the rate is 4, 2 and 4 * 10^9 a second.
    step = measured("ours", [[2.0], [4.0], [3.0]])
    assert machine.share(6e9, step, matmul) == pytest.approx((0.75, 0.5, 0.75))


def test_one_worker_per_framework():
    tensorflow, torch = machine.matmul_workers(
        {"tensorflow": "python-a", "torch": "python-b"}, "bfloat16", 64
    )
    assert (tensorflow.name, torch.name) == ("matmul tensorflow", "matmul torch")
    assert torch.case == {"size": 64, "dtype": "bfloat16"}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A repository of one file, in place of this one."""
    monkeypatch.setattr(machine, "ROOT", tmp_path)

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    git("init")
    (tmp_path / "code.py").write_text("")
    git("add", ".")
    git("commit", "-m", "first")
    return tmp_path


def test_commit_of_a_clean_checkout(checkout):
    commit = machine.commit()
    assert len(commit) == 10
    assert set(commit) <= set("0123456789abcdef")


def test_results_do_not_change_the_commit(checkout):
    before = machine.commit()
    for name in ("benchmarks/results/a.json", "docs/performance.md"):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text("")
    assert machine.commit() == before
    (checkout / "code.py").write_text("changed")
    assert machine.commit() == before + "+"


def test_no_repository(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.commit() is None
