"""The commands around a cluster: what they refuse, and what they pass on."""

import os
import subprocess
import sys

import pytest


def run(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    "words, problem",
    [
        (["--processes=2"], "no command: write it after --"),
        (["--processes=2", "--"], "no command: write it after --"),
        (["--processes=0", "--", "true"], "--processes: must be 1 or more"),
        (["--", "true"], "--processes, or --workers and --index, must be given"),
        (["--processes=2", "--index=1", "--", "true"], "leave --workers, --index out"),
        (["--workers=a:1,b:2", "--index=2"], "no worker 2 among --workers"),
        (["--processes=1", "--devices=0", "--", "true"], "--devices must be 1 or more"),
        (["--proceses=2", "--", "true"], "proceses"),
    ],
)
def test_mistakes_end_in_one_line(words, problem):
    done = run("decoupled.supervise", *words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and problem in done.stderr


def test_the_driver_gets_its_own_flags_and_its_place_in_the_cluster():
    code = "import os, sys; print(sys.argv[1:], os.environ['TF_CONFIG'])"
    done = run(
        *["decoupled.supervise", "--processes=1", "--"],
        *[sys.executable, "-c", code, "--help", "--x=1"],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['--help', '--x=1'] ")
    assert '"task": {"type": "worker", "index": 0}' in done.stdout


def test_the_driver_s_code_is_passed_on():
    done = run(
        *["decoupled.supervise", "--processes=1", "--"],
        *["decoupled.pretrain", "--model_dir=x"],
    )
    assert done.returncode == 2
    assert done.stderr == (
        "decoupled.pretrain: error: --records_dir, --vocabulary must be given; --help "
        "lists the flags\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "words, problem",
    [
        ([], "--workers and --index must be given, or TF_CONFIG set"),
        (["--workers=a:1,b:2"], "go together"),
        (["--workers=a:1,b:2", "--index=0"], "worker 0 is the driver itself"),
        (["--workers=a:1,b", "--index=1"], "'b' is no address"),
        (["--workers=a:1,b:2", "--index=1", "--devices=0"], "--devices: must be 1"),
    ],
)
def test_a_worker_s_mistakes_end_in_one_line(words, problem):
    done = run("decoupled.worker", *words, TF_CONFIG="")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and problem in done.stderr
