"""Units on Beam: the same files and messages as on this machine alone."""

import logging

import pytest
from apache_beam.runners.portability import local_job_service

from decoupled.core.errors import UserError
from decoupled.corpora.runners import Runner, run_units
from tests.corpora.toy_job import ToyJob, ToyUnit

NAMES = ["a", "bb", "ccc", "dddd"]
DIRECT = Runner("DirectRunner")


def units(**fails):
    return [ToyUnit(name, fails.get(name, "")) for name in NAMES]


def run(folder, wanted, runner=DIRECT):
    job = ToyJob(str(folder))
    return job, run_units(job, wanted, runner, "toys", 0)


def test_each_unit_is_done_once_and_results_keep_their_order(tmp_path):
    before = logging.root.manager.disable
    job, results = run(tmp_path, units())
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun() == NAMES
    assert logging.root.manager.disable == before


def test_a_bad_input_is_told_and_the_others_are_done(tmp_path, capfd):
    with pytest.raises(UserError) as caught:
        run(tmp_path, units(bb="input"))
    assert str(caught.value) == (
        "bb.bz2: truncated at byte 7; what else was done is kept"
    )
    printed = capfd.readouterr()
    assert "bb.bz2: truncated at byte 7" in printed.out
    # Beam's own log stays away from the terminal.
    assert printed.err == ""
    job, results = run(tmp_path, units())
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun() == ["a", "bb", "bb", "ccc", "dddd"]


def test_a_disk_without_room_for_a_note_is_told(tmp_path, monkeypatch):
    # No note can be written where a folder has its name.
    (tmp_path / "bb.failed.json").mkdir()
    (tmp_path / "bb.failed.json" / "file").write_text("")
    monkeypatch.setattr("decoupled.corpora.units.forget", lambda *_: None)
    monkeypatch.setattr("decoupled.corpora.units.ended", lambda *_: {})
    with pytest.raises(UserError) as caught:
        run(tmp_path, units(bb="input"))
    assert str(caught.value) == "bb.bz2: truncated at byte 7"


def test_a_defect_of_ours_keeps_its_traceback(tmp_path):
    with pytest.raises(Exception, match="a defect of ours") as caught:
        run(tmp_path, units(bb="defect"))
    assert not isinstance(caught.value, UserError)


def test_a_cluster_gets_the_same_units(tmp_path):
    """Through Beam's job protocol, by which Flink and Spark get their work too."""
    service = local_job_service.LocalJobServicer()
    port = service.start_grpc_server()
    options = (f"job_endpoint=localhost:{port}", "environment_type=LOOPBACK")
    runner = Runner("PortableRunner", 0, options)
    try:
        job, results = run(tmp_path, units(), runner)
        with pytest.raises(UserError, match="^e.bz2: truncated at byte 7; what else"):
            run(tmp_path, [ToyUnit("e", "input")], runner)
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
            Runner("DirectRunner", 0, ("streaming=perhaps",)),
            "Beam with DirectRunner: .*streaming",
        ),
    ],
)
def test_an_unknown_runner_or_option_is_refused(tmp_path, capfd, runner, told):
    with pytest.raises(UserError, match=f"^{told}") as caught:
        run(tmp_path, units(), runner)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "log").exists()
