"""Units are done once each, whoever does them; what fails is told in one line."""

import logging
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from apache_beam.runners.portability import local_job_service

from decoupled.corpora.beam import Runner, run_units
from decoupled.errors import UserError
from tests.corpora.toy_job import ToyJob, ToyUnit

# Starting others takes seconds: one test does it always.
IN_PROCESSES = [1, pytest.param(2, marks=pytest.mark.slow)]
NAMES = ["a", "bb", "ccc", "dddd"]
ROOT = pathlib.Path(__file__).parent.parent.parent


def units(**fails):
    return [ToyUnit(name, fails.get(name, "")) for name in NAMES]


def run(folder, wanted, workers=1, version=1):
    job = ToyJob(str(folder), version)
    return job, run_units(job, wanted, Runner(workers=workers), "toys", 0)


def test_each_unit_is_done_once_and_results_keep_their_order(tmp_path):
    job, results = run(tmp_path, units())
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun() == NAMES


def test_what_is_done_is_not_done_again(tmp_path, capsys):
    run(tmp_path, units()[:3])
    job, results = run(tmp_path, units())
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun() == NAMES
    assert "toys: 3 done before" in capsys.readouterr().out


def test_other_inputs_are_done_anew(tmp_path):
    run(tmp_path, units())
    job, _ = run(tmp_path, units(), version=2)
    assert job.begun() == sorted(NAMES * 2)


def test_what_was_lost_is_done_anew(tmp_path):
    run(tmp_path, units())
    for path in tmp_path.glob("*.txt"):
        path.unlink()
    job, _ = run(tmp_path, units())
    assert job.begun() == sorted(NAMES * 2)


@pytest.mark.parametrize("workers", IN_PROCESSES)
def test_a_bad_input_is_told_and_the_others_are_done(tmp_path, capfd, workers):
    with pytest.raises(UserError) as caught:
        run(tmp_path, units(bb="input"), workers)
    assert str(caught.value) == (
        "bb.bz2: truncated at byte 7; what else was done is kept"
    )
    printed = capfd.readouterr()
    # Also at once, while the others go on.
    assert "bb.bz2: truncated at byte 7" in printed.out
    # Beam's own log stays away from the terminal.
    assert printed.err == ""
    job, results = run(tmp_path, units())
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun() == ["a", "bb", "bb", "ccc", "dddd"]


def test_several_bad_inputs_are_counted(tmp_path):
    with pytest.raises(UserError, match=r"a\.bz2: .* \(1 more failed\); what else"):
        run(tmp_path, units(a="input", ccc="input"))


def test_a_full_disk_is_told(tmp_path):
    with pytest.raises(UserError) as caught:
        run(tmp_path, units(bb="disk"))
    assert str(caught.value).startswith(
        f"{tmp_path}: cannot write (No space left on device); make room"
    )


@pytest.mark.parametrize("workers", IN_PROCESSES)
def test_a_disk_without_room_for_a_note_is_told(tmp_path, monkeypatch, workers):
    # No note can be written where a folder has its name.
    (tmp_path / "bb.failed.json").mkdir()
    (tmp_path / "bb.failed.json" / "file").write_text("")
    monkeypatch.setattr("decoupled.corpora.units.forget", lambda *_: None)
    monkeypatch.setattr("decoupled.corpora.units.ended", lambda *_: {})
    with pytest.raises(UserError) as caught:
        run(tmp_path, units(bb="input"), workers)
    assert str(caught.value) == "bb.bz2: truncated at byte 7"


@pytest.mark.parametrize("workers", IN_PROCESSES)
def test_a_defect_of_ours_keeps_its_traceback(tmp_path, workers):
    with pytest.raises(Exception, match="a defect of ours") as caught:
        run(tmp_path, units(bb="defect"), workers)
    assert not isinstance(caught.value, UserError)


@pytest.mark.slow
def test_a_killed_process_is_told_and_not_waited_for(tmp_path):
    program = (
        "import tests.corpora.test_beam as t, sys\n"
        "t.run(sys.argv[1], t.units(bb='killed'), workers=2)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.stderr.strip().splitlines()[-1] == (
        f"decoupled.errors.UserError: {tmp_path}: a worker process was killed, most "
        "likely for lack of memory; run the same command again with fewer --workers"
    )


def processes_with(text):
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text in path.read_bytes().decode(errors="replace"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_processes_end_with_their_parent(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.corpora.toy_job", str(tmp_path)], cwd=ROOT
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "log").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        workers = processes_with(f"beam_worker\0{parent.pid}")
        assert len(workers) == 2
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 20
    while processes_with(f"beam_worker\0{parent.pid}"):
        assert time.monotonic() < deadline, "a worker outlives its parent"
        time.sleep(0.1)


def test_logging_is_as_it_was(tmp_path):
    before = logging.root.manager.disable
    run(tmp_path, units())
    assert logging.root.manager.disable == before
    assert os.listdir(tmp_path).count("a.done.json") == 1


def test_a_cluster_gets_the_same_units(tmp_path):
    """Through Beam's job protocol, by which Flink and Spark get their work too."""
    service = local_job_service.LocalJobServicer()
    port = service.start_grpc_server()
    options = (f"job_endpoint=localhost:{port}", "environment_type=LOOPBACK")
    try:
        job = ToyJob(str(tmp_path))
        runner = Runner("PortableRunner", 0, options)
        results = run_units(job, units(), runner, "toys", 0)
        with pytest.raises(UserError, match="^e.bz2: truncated at byte 7; what else"):
            run_units(job, [ToyUnit("e", "input")], runner, "toys", 0)
    finally:
        service.stop()
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun() == [*NAMES, "e"]


@pytest.mark.parametrize(
    "runner, told",
    [
        (
            Runner("NoRunner"),
            "Beam with NoRunner: Unexpected pipeline runner: NoRunner",
        ),
        (
            Runner("FlinkRunner", 0, ("flink_mastre=localhost",)),
            "Beam with FlinkRunner: no option flink_mastre",
        ),
        (
            Runner(options=("streaming=perhaps",)),
            "Beam with DirectRunner: .*streaming",
        ),
    ],
)
def test_an_unknown_runner_or_option_is_refused(tmp_path, capfd, runner, told):
    with pytest.raises(UserError, match=f"^{told}") as caught:
        run_units(ToyJob(str(tmp_path)), units(), runner, "toys", 0)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "log").exists()
