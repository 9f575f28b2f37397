"""Units are done once each, whoever does them; what fails is reported in one line."""

import logging
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from apache_beam.runners.portability import local_job_service

from decoupled.configs.corpora import CorpusSettings
from decoupled.core.errors import UserError
from decoupled.corpora.build import build
from decoupled.corpora.runners import Runner, run_units
from decoupled.data.records_build import build_records
from tests.corpora.builds import tree
from tests.corpora.long_dump import family
from tests.corpora.toy_job import ToyJob, ToyUnit
from tests.data import small_corpus
from tests.processes import wait_until

ALONE, DIRECT = Runner(workers=1), Runner("DirectRunner")
RUNNERS = pytest.mark.parametrize(
    "runner", [ALONE, Runner(workers=2), DIRECT], ids=["1", "2", "beam"]
)
NAMES = ["a", "bb", "ccc", "dddd"]
ROOT = pathlib.Path(__file__).parent.parent.parent


def units(**fails):
    return [ToyUnit(name, fails.get(name, "")) for name in NAMES]


def run(folder, toys, runner=ALONE, version=1, small=0):
    job = ToyJob(str(folder), version)
    return job, run_units(job, toys, runner, "toys", small)


@pytest.mark.parametrize("workers", [1, 2])
def test_each_unit_is_done_once_and_results_keep_their_order(tmp_path, workers):
    job, results = run(tmp_path, units(), Runner(workers=workers))
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun_units() == NAMES
    assert (os.getpid() in job.processes()) == (workers == 1)
    assert len(job.processes()) <= workers


def test_a_corpus_and_its_records_are_the_same_on_beam(tmp_path):
    documents = ["\n".join(sentences) for sentences in small_corpus.documents("en", 40)]
    # With equal documents, which further units leave out.
    (tmp_path / "a.txt").write_text("\n\n".join(documents))
    (tmp_path / "b.txt").write_text("\n\n".join(documents[:20]))
    vocabulary = small_corpus.make_vocabulary(tmp_path / "vocabulary.model").path
    settings = CorpusSettings(eval_share=0.2, min_characters=5, part_bytes=500)
    for name, runner in (("alone", ALONE), ("beam", DIRECT)):
        corpus = str(tmp_path / name / "corpus")
        build(None, [f"en={tmp_path}/*.txt"], corpus, settings, runner=runner)
        build_records(corpus, vocabulary, str(tmp_path / name / "records"), 300, runner)
    assert len(tree(tmp_path / "alone")) > 5
    assert tree(tmp_path / "alone") == tree(tmp_path / "beam")


def test_small_jobs_are_done_in_this_process(tmp_path):
    assert run(tmp_path, units(), Runner(), small=5)[0].processes() == {os.getpid()}


def test_the_largest_unit_is_begun_first(tmp_path):
    weighed = [ToyUnit(name, weight=number) for number, name in enumerate(NAMES)]
    job, results = run(tmp_path, weighed)
    assert [name for name, _ in job.log()] == NAMES[::-1]
    assert [result["letters"] for result in results] == [1, 2, 3, 4]


def test_what_is_done_is_not_done_again(tmp_path, capsys):
    run(tmp_path, units()[:2])
    job, results = run(tmp_path, units())
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun_units() == NAMES
    assert "toys: 2 done before" in capsys.readouterr().out


def test_other_inputs_are_done_anew(tmp_path):
    run(tmp_path, units())
    job, _ = run(tmp_path, units(), version=2)
    assert job.begun_units() == sorted(NAMES * 2)


def test_what_was_lost_is_done_anew(tmp_path):
    run(tmp_path, units())
    for path in tmp_path.glob("*.txt"):
        path.unlink()
    job, _ = run(tmp_path, units())
    assert job.begun_units() == sorted(NAMES * 2)


@RUNNERS
def test_a_bad_input_is_reported_and_the_others_are_done(tmp_path, capfd, runner):
    with pytest.raises(UserError) as caught:
        run(tmp_path, units(bb="input"), runner)
    assert str(caught.value) == (
        "bb.bz2: truncated at byte 7; what else was done is kept"
    )
    printed = capfd.readouterr()
    # In this process and its own ones at once, while the others go on. Beam's own log
    # stays away from the terminal.
    assert "bb.bz2: truncated at byte 7\n" in printed.out
    assert printed.err == ""
    job, results = run(tmp_path, units())
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun_units() == ["a", "bb", "bb", "ccc", "dddd"]


def test_several_bad_inputs_are_counted(tmp_path):
    with pytest.raises(UserError, match=r"\.bz2: .* \(1 more failed\); what else"):
        run(tmp_path, units(a="input", ccc="input"))


def test_a_full_disk_is_reported(tmp_path):
    with pytest.raises(UserError) as caught:
        run(tmp_path, units(bb="disk"))
    assert str(caught.value).startswith(
        f"{tmp_path}: cannot write (No space left on device); make room"
    )


@pytest.mark.parametrize("runner", [ALONE, DIRECT], ids=["1", "beam"])
def test_a_disk_without_room_for_a_note_is_reported(tmp_path, monkeypatch, runner):
    # No note can be written where a folder has its name.
    for note in ("bb.done.json", "bb.failed.json"):
        (tmp_path / note / "file").mkdir(parents=True)
    monkeypatch.setattr("decoupled.corpora.runners.forget", lambda *_: None)
    monkeypatch.setattr("decoupled.corpora.runners.result_of", lambda *_: None)
    with pytest.raises(UserError) as caught:
        run(tmp_path, units(), runner)
    assert str(caught.value).startswith(
        f"{tmp_path}: cannot write (Is a directory); make room"
    )
    # Beam stops at a unit that leaves no note at all.
    assert runner == DIRECT or ToyJob(str(tmp_path)).begun_units() == NAMES


@RUNNERS
def test_a_defect_of_ours_keeps_its_traceback(tmp_path, runner):
    with pytest.raises(Exception, match="a defect of ours") as caught:
        run(tmp_path, units(bb="defect"), runner)
    assert not isinstance(caught.value, UserError)
    if runner.workers:
        own = caught.value.__cause__ if runner.workers > 1 else caught.getrepr()
        assert "toy_job.py" in str(own)


def test_a_killed_process_is_reported_and_what_was_done_is_kept(tmp_path):
    # The one that is killed waits for the others.
    toys = units(dddd="killed last")
    with pytest.raises(UserError) as caught:
        run(tmp_path, toys, Runner(workers=2))
    assert str(caught.value) == (
        f"{tmp_path}: a worker process was killed, most likely for lack of memory; run "
        "the same command again with fewer --workers"
    )
    job, results = run(tmp_path, units())
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun_units() == [*NAMES, "dddd"]


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_their_parent(tmp_path, ended_by):
    """Ctrl-C reaches the whole group of processes, the others the parent alone."""
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.corpora.toy_job", str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    workers = wait_until(
        lambda: began(tmp_path) == 2 and family(parent.pid) - {parent.pid}
    )
    assert len(workers & ToyJob(str(tmp_path)).processes()) == 2
    send = os.killpg if ended_by == signal.SIGINT else os.kill
    send(parent.pid, ended_by)
    message = parent.communicate(timeout=30)[1].decode()
    assert wait_until(lambda: not any(map(is_running, workers)))
    if ended_by == signal.SIGINT:
        # Of the parent alone.
        assert message.count("Traceback") == 1 and message.endswith(
            "KeyboardInterrupt\n"
        )


def began(folder):
    return len(ToyJob(str(folder)).log()) if (folder / "log").exists() else 0


def is_running(process):
    try:
        status = pathlib.Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"options": ("region=here",)},
            "--beam_option=region=here: has no effect with --runner=local; give a Beam "
            "runner",
        ),
        (
            {"name": "FlinkRunner", "workers": 2},
            "--workers=2: has no effect with --runner=FlinkRunner, whose workers are "
            "set by its own --beam_option",
        ),
    ],
)
def test_arguments_that_would_be_ignored_are_refused(arguments, message):
    with pytest.raises(UserError) as caught:
        Runner(**arguments)
    assert str(caught.value) == message


def test_without_beam_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(UserError) as caught:
        Runner("DirectRunner")
    assert str(caught.value) == (
        "apache_beam is not installed (needed for --runner other than local); run "
        "pip install 'decoupled[beam]', or in a checkout pip install '.[beam]'"
    )
    Runner()


def test_a_cluster_of_beam_gets_the_same_units(tmp_path):
    """Through Beam's job protocol, by which Flink and Spark get their work too."""
    service = local_job_service.LocalJobServicer()
    port = service.start_grpc_server()
    options = (f"job_endpoint=localhost:{port}", "environment_type=LOOPBACK")
    runner = Runner("PortableRunner", 0, options)
    before = logging.root.manager.disable
    try:
        with pytest.raises(UserError, match="^e.bz2: truncated at byte 7; what else"):
            run(tmp_path, [*units(), ToyUnit("e", "input")], runner)
    finally:
        service.stop()
    # Nothing is done again here.
    job, results = run(tmp_path, units())
    assert [result["letters"] for result in results] == [1, 2, 3, 4]
    assert job.begun_units() == [*NAMES, "e"]
    assert logging.root.manager.disable == before


@pytest.mark.parametrize(
    "runner, message",
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
def test_an_unknown_beam_runner_or_option_is_refused(tmp_path, capfd, runner, message):
    with pytest.raises(UserError, match=f"^{message}") as caught:
        run(tmp_path, units(), runner)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""
    assert not (tmp_path / "log").exists()
