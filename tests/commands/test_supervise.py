"""The commands around a cluster: what they refuse, and what they pass on."""

import os
import subprocess
import sys

import pytest

from tests.command_line import mistake


def run(*words, **environment):
    return run_python("-m", *words, **environment)


def run_code(code, *words):
    return run_python("-c", code, *words)


def run_python(*words, **environment):
    return subprocess.run(
        [sys.executable, *words],
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
        (["--workers=a:1,b:2", "--index=2"], "no worker 2 among 2"),
        (["--workers=a:1,b", "--index=1"], "--workers: 'b' is no address"),
        (["--processes=1", "--devices=0", "--", "true"], "--devices must be 1 or more"),
        (["--proceses=2", "--", "true"], "proceses"),
    ],
)
def test_mistakes_end_in_one_line(words, problem):
    assert problem in mistake("supervise", *words)


def test_gpus_that_are_too_few_end_in_one_line(tmp_path):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA T4'\n")
    tool.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    words = ["decoupled", "supervise", "--processes=2", "--accept_open_ports", "--"]
    without = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    done = subprocess.run(
        [sys.executable, "-m", *words, sys.executable, "-c", "print('ran')"],
        capture_output=True, text=True, timeout=120, env={**without, "PATH": path},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and "this host has 1 GPUs" in done.stderr


# The command on a host whose interface eth0 is up: no other part is replaced.
ON_A_HOST = """
import sys
from decoupled.commands import supervise
from decoupled.core import endings, ports
from decoupled.launch import start
ports.outside_interfaces = lambda: ["eth0"]
ports.can_bind_to_loopback = lambda: {binds}
sys.argv.insert(1, "supervise")
endings.end(lambda: start.run(supervise))
"""
DRIVER = ["--", sys.executable, "-c", "import os; print(os.environ['TF_CONFIG'])"]


@pytest.mark.parametrize(
    "binds, words, address",
    [
        (True, ["--workers=h:2222,b:2222", "--index=0", *DRIVER], "h:2222"),
        (True, ["--workers=h:2222,b:2222", "--index=1"], "b:2222"),
        (False, ["--processes=2", *DRIVER], "localhost:0"),
    ],
)
def test_ports_that_strangers_reach_are_refused_in_one_line(binds, words, address):
    done = run_code(ON_A_HOST.format(binds=binds), *words)
    assert done.returncode == 2 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert f"{address}: TensorFlow listens on every interface (eth0)" in line
    assert "iptables -A INPUT" in line
    assert line.endswith("and then accept it with --accept_open_ports")


@pytest.mark.parametrize("accepted", [False, True])
def test_the_driver_is_told_what_the_user_accepted(accepted):
    flag = ["--accept_open_ports"] if accepted else []
    code = ON_A_HOST.format(binds=not accepted)
    done = run_code(code, "--processes=1", *flag, *DRIVER)
    assert done.returncode == 0, done.stderr
    assert ('"accept_open_ports": true' in done.stdout) is accepted


def test_the_driver_gets_its_own_flags_and_its_place_in_the_cluster():
    code = "import os, sys; print(sys.argv[1:], os.environ['TF_CONFIG'])"
    done = run(
        *["decoupled", "supervise", "--processes=1", "--"],
        *[sys.executable, "-c", code, "--help", "--x=1"],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['--help', '--x=1'] ")
    assert '"task": {"type": "worker", "index": 0}' in done.stdout


def test_the_driver_s_code_is_passed_on():
    done = run(
        *["decoupled", "supervise", "--processes=1", "--"],
        *["decoupled", "pretrain", "--model_dir=x"],
    )
    assert done.returncode == 2
    assert done.stderr == (
        "decoupled pretrain: error: --records_dir, --vocabulary must be given; --help "
        "lists the flags\n"
    )


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
def test_a_worker_s_mistakes_end_in_one_line(words, problem, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "")
    told = mistake("worker", *words)
    assert told.startswith("decoupled worker: error: ") and problem in told


def test_a_worker_s_mistakes_are_told_before_tensorflow_is_imported():
    done = run_python("-X", "importtime", "-m", "decoupled", "worker", TF_CONFIG="")
    assert done.returncode == 2
    *imported, last = done.stderr.splitlines()
    assert last.startswith("decoupled worker: error: ")
    assert all(line.startswith("import time:") for line in imported)
    assert "tensorflow" not in [line.split()[-1] for line in imported]
