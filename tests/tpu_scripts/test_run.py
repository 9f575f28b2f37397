"""The launcher: a job to its end, through preemption, crashes, quotas and signals."""

import os
import pty
import re
import shlex
import shutil
import signal

import pytest

from tests.processes import wait_until
from tests.tpu_scripts.cloud import (
    ACCOUNT,
    DATA,
    FINETUNE,
    NO_QUOTA,
    NO_ROOM,
    PRETRAIN,
    TASK,
    ZONE,
    dry_run,
)

RUN = "gs://bucket/run"
FLAGS = (f"--model_dir={RUN}", *DATA)
JOB = ("--", "pretrain", *FLAGS)
SLICE = ("--name=n", ZONE, "--type=v3-8", "--spot", ACCOUNT)


def command(cloud, *options, job=JOB):
    """A launcher's command line; its package is an empty file."""
    package = cloud.folder / "package.whl"
    package.touch()
    return ("run.sh", *SLICE, f"--package={package}", *options, *job)


def run(cloud, *options, job=JOB, **environment):
    return cloud.run(*command(cloud, *options, job=job), **environment)


def test_a_job_runs_word_for_word_and_leaves_nothing_behind(make_cloud):
    cloud = make_cloud(lives=[{"states": ["WAITING_FOR_RESOURCES", "ACTIVE"]}])
    setting = '--gin_param=A.b = "it\'s $HOME; `ls`\n\\ *"'
    job = ("--", "pretrain", setting, *FLAGS)
    finished = run(cloud, "--env=A=b c", job=job)
    assert finished.returncode == 0, finished.stderr
    [words] = cloud.calls("decoupled", "pretrain", program="python3")
    flags = [setting, *FLAGS, "--tpu=local"]
    assert words == ["-m", "decoupled", "pretrain", *flags]
    assert "slice: WAITING (WAITING_FOR_RESOURCES)" in finished.stdout
    assert "complete at step 10" in finished.stdout
    assert cloud.state()["slices"] == {}
    assert len(cloud.calls("create")) == 1
    assert len(cloud.calls("delete", "n", "--force")) == 1
    assert cloud.file(f"{RUN}/tpu_job/status").read_text().startswith("id=")


def test_a_folder_may_be_named_like_an_error(make_cloud):
    cloud = make_cloud()
    job = ("--", "pretrain", "--model_dir=gs://denied/error 403", *DATA)
    finished = run(cloud, job=job)
    assert finished.returncode == 0, finished.stderr
    assert "complete at step 10" in finished.stdout


def test_finetuning_on_several_hosts_of_an_estimator_s_image_is_refused(make_cloud):
    job = ("--", "finetune", *TASK, "--init_checkpoint=gs://b/r", FLAGS[0])
    cloud = make_cloud()
    refused = run(cloud, "--type=v3-32", job=job)
    assert refused.returncode == 2
    assert "finetune: TPUEstimator fine-tunes on one host, v3-32 has several" in (
        refused.stderr
    )
    assert not cloud.calls("create")


def test_a_dry_run_shows_the_way_from_creation_to_deletion():
    shown = dry_run("run.sh", *SLICE, "--type=v3-32", "--project=p", *JOB)
    verbs = [c[4] for c in shown if c[:3] == ["gcloud", "compute", "tpus"]]
    assert verbs == (
        "describe create describe describe describe scp ssh ssh delete".split()
    )
    words = started(shown)
    driver = words.index("python3")
    # The coordinator must not take the cores of its own host for itself.
    assert words[driver - 2 : driver] == ["env", "TPU_LOAD_LIBRARY=0"]
    flags = [*FLAGS, "--tpu=n", "--tpu_zone=us-central1-a"]
    assert words[driver + 1 :] == [
        "-m", "decoupled", "pretrain", *flags, "--gcp_project=p"
    ]  # fmt: skip


def started(shown):
    """The words of the command that starts a job on the host."""
    [start] = [c[6] for c in shown if "ssh" in c and "host_job.sh start" in c[6]]
    return shlex.split(start.removeprefix("--command="))


def test_every_host_of_a_later_generation_runs_the_job(make_cloud):
    # The end of the first host is that of the others, which may be later.
    runs = [["save 10", "await 3", "exit 75"], ["save 20", "await 6"]]
    cloud = make_cloud(runs=runs)
    finished = run(cloud, "--type=v5litepod-16")
    assert finished.returncode == 0, finished.stderr
    assert "complete at step 20" in finished.stdout
    started = cloud.calls("decoupled", "pretrain", program="python3")
    flags = [*FLAGS, "--accelerator=tpu"]
    # Four hosts, two starts. No health is asked of the TPU API.
    assert started == [["-m", "decoupled", "pretrain", *flags]] * 8
    assert cloud.calls("tpu_health", program="python3") == []
    logs = {path.name[-10:] for path in cloud.file(f"{RUN}/tpu_job").glob("log-*")}
    assert {"host-1.txt", "host-2.txt", "host-3.txt"} < logs
    assert len(cloud.calls("create")) == 1


def test_several_hosts_need_a_key_in_an_agent(make_cloud):
    cloud = make_cloud()
    cloud.program("ssh-add", "exit 2")
    finished = run(cloud, "--type=v6e-256")
    assert finished.returncode == 2
    assert "no key in an ssh agent, with which gcloud reaches 64 hosts" in (
        finished.stderr
    )
    assert cloud.calls("create") == []


@pytest.mark.parametrize(
    "lives, devices, said",
    [
        ([{"hosts": 3}], 4, "n has 3 of the 4 hosts of a v5litepod-16: delete it"),
        ([{}], 3, "has 3 of 4 TPU chips: delete the slice and create it again"),
        ([{}], 0, "has 0 of 4 TPU chips: delete the slice and create it again"),
    ],
)
def test_a_slice_that_lacks_hosts_or_chips_is_replaced(
    make_cloud, lives, devices, said
):
    cloud = make_cloud(lives=lives)
    cloud.devices(devices)
    finished = run(cloud, "--type=v5litepod-16", "--max_attempts=2")
    assert finished.returncode == 4
    assert said in finished.stderr
    assert len(cloud.calls("create")) == 2
    assert not list(cloud.folder.glob("hosts/*/decoupled_uv.log"))


@pytest.mark.parametrize(
    "options, end",
    [
        ((), "SUSPENDED"),
        pytest.param(("--plain",), "PREEMPTED", marks=pytest.mark.slow),
    ],
)
def test_a_slice_that_is_taken_away_is_replaced(make_cloud, options, end):
    cloud = make_cloud(
        lives=[{"lost": [10, end]}, {}], runs=[["save 10", "hang"], ["save 20"]]
    )
    finished = run(cloud, *options)
    assert finished.returncode == 0, finished.stderr
    assert f"slice lost: {end}" in finished.stdout
    assert "complete at step 20" in finished.stdout
    assert cloud.log(RUN) == "starts at step 10\n"
    assert len(cloud.calls("create")) == 2
    assert len(cloud.calls("delete")) == 2
    # Each has an empty disk at first.
    assert len(cloud.calls("scp")) == 2


def test_a_stopped_job_goes_on_upon_the_same_slice(make_cloud):
    cloud = make_cloud(runs=[["save 10", "exit 143"], ["save 20", "exit 75"], []])
    finished = run(cloud)
    assert finished.returncode == 0, finished.stderr
    assert cloud.log(RUN).count("starts at step") == 3
    assert len(cloud.calls("create")) == len(cloud.calls("scp")) == 1


def test_an_unhealthy_tpu_is_replaced_and_not_blamed_on_the_job(make_cloud):
    cloud = make_cloud(runs=[["save 10", "exit 1"], ["save 20"]])
    cloud.health(4)
    finished = run(cloud)
    assert finished.returncode == 0, finished.stderr
    assert "its TPU is not healthy" in finished.stdout
    assert len(cloud.calls("create")) == 2


LOST = {"lost": [0, "SUSPENDED"]}
# How a launch ends without its job: the service, options, exit code, words, creations.
ENDS = {
    "a crash twice at one step": (
        {"runs": [["save 10", "exit 1"], ["save 20", "exit 134"], ["exit 1"]]},
        (), 4, ["ended with code 1, twice at step 20", "ends with 134"], 1,
    ),
    "a host that is lost twice at one step": (
        {"runs": [["save 10", "exit 75"], ["exit 75"]]},
        ("--type=v6e-16",), 4, ["ended with code 75, twice at step 10"], 1,
    ),
    "an error that would come again": (
        {"runs": [["exit 1"]]},
        ("--type=v6e-4",), 4, ["code 1, which another try would not change"], 1,
    ),
    "an early end without an error": (
        {"runs": [["save 10", "of 20", "exit 0"], ["of 20", "exit 0"]]},
        (), 4, ["ended with code 0, twice at step 10"], 1,
    ),
    "a mistake": (
        {"runs": [["exit 2"]]},
        (), 2, ["ends with 2", "a mistake in its settings or data"], 1,
    ),
    "no quota": (
        {"lives": [{"error": NO_QUOTA}]},
        (), 3,
        ["quota for preemptible v3-8 in us-central1-a", "google.com/iam-admin/quotas"],
        1,
    ),
    "no quota in the queue": (
        {"lives": [{"states": ["CREATING", "FAILED"], "message": NO_QUOTA}]},
        (), 3, ["quota for preemptible v3-8"], 1,
    ),
    "no capacity": (
        {"lives": [{"error": NO_ROOM}]},
        ("--plain", "--max_attempts=3"), 4, ["3 starts in a row left no new"], 3,
    ),
    "a wrong request": (
        {"lives": [{"error": "INVALID_ARGUMENT: no such runtime version"}]},
        (), 2, ["no such runtime version"], 1,
    ),
    # One in vain, one that saved, and then two in vain again.
    "losses without progress": (
        {
            "lives": [LOST, {"lost": [10, "SUSPENDED"]}, LOST],
            "runs": [["save 10", "hang"]],
        },
        ("--max_attempts=2",), 4, ["2 starts in a row"], 4,
    ),
    "no time": ({}, ("--max_hours=0",), 4, ["--max_hours=0"], 0),
    "no access": (
        {"read_error": "HTTPError 403: no storage.objects.get access"},
        (), 2, ["gs://bucket/run: cannot be read (ERROR: (gcloud) HTTPError 403"], 0,
    ),
    "no bucket": (
        {"read_error": "gs://bucket not found: 404."},
        (), 2, ["gs://bucket/run: cannot be read (ERROR: (gcloud) gs://bucket not"], 0,
    ),
    "no login": (
        {"describe_error": "You do not have an active account selected"},
        (), 2, ["active account"], 0,
    ),
    "a host that cannot report": (
        {"write_error": "HTTPError 403"},
        (), 2, ["needs roles/storage.objectAdmin"], 1,
    ),
}  # fmt: skip


# Each has a quicker one beside it.
SLOW = (
    "a host that is lost twice at one step",
    "an early end without an error",
    "no quota in the queue",
    "no capacity",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in ENDS],
)
def test_what_cannot_be_trained_costs_no_more_than_needed(make_cloud, name):
    state, options, code, words, creations = ENDS[name]
    cloud = make_cloud(**state)
    finished = run(cloud, *options)
    assert finished.returncode == code
    for word in words:
        assert word in finished.stderr
    assert len(cloud.calls("create")) == creations
    assert cloud.state()["slices"] == {}


def test_a_run_whose_last_step_has_results_is_complete_whatever_its_code(make_cloud):
    """A process may fail when it leaves the others."""
    cloud = make_cloud(runs=[["save 20", "of 20", "evaluate", "exit 134"]])
    for said in ("complete at step 20", "gs://bucket/run is complete; --again runs it"):
        finished = run(cloud)
        assert finished.returncode == 0, finished.stderr
        assert said in finished.stdout
    assert len(cloud.calls("decoupled", "pretrain", program="python3")) == 1


def test_the_checkpoints_of_several_rates_are_progress(make_cloud):
    """A crash, or a slice that is taken away, counts from the last of them."""
    one, two = (f"learning_rate_{rate}/seed_0" for rate in ("1e-05", "2e-05"))
    runs = [[f"save 10 {one}", "exit 75"], [f"save 5 {two}", "exit 75"], ["exit 0"]]
    cloud = make_cloud(runs=runs)
    job = ("--", "finetune", *TASK, "--init_checkpoint=gs://b/r", FLAGS[0])
    finished = run(cloud, job=job)
    assert finished.returncode == 0, finished.stderr
    assert "job: crashed at step 15; start 3 follows" in finished.stdout


def test_another_job_of_a_folder_is_not_complete_with_the_last_one(make_cloud):
    cloud = make_cloud()
    train, evaluate = ((*JOB, f"--mode={mode}") for mode in ("train", "eval"))
    for job, starts in [(train, 1), (evaluate, 2), (evaluate, 2), (train, 3)]:
        finished = run(cloud, job=job)
        assert finished.returncode == 0, finished.stderr
        calls = cloud.calls("decoupled", "pretrain", program="python3")
        assert len(calls) == starts
    # Earlier versions did not report which job it was.
    report = cloud.file(f"{RUN}/tpu_job/status")
    report.write_text(re.sub(r"^(id=\w+-\d+-\d+)-\d+", r"\1", report.read_text()))
    finished = run(cloud, job=evaluate)
    assert f"{RUN} is complete; --again runs it anyway" in finished.stdout


def test_a_package_that_is_not_there_costs_no_slice(make_cloud):
    cloud = make_cloud()
    for package, problem in (
        ("dist/decoupled.whl", "no such file"),
        ("gs://b/decoupled.whl", "cannot be read (ERROR: (gcloud) The following URLs"),
    ):
        finished = run(cloud, f"--package={package}")
        assert finished.returncode == 2
        assert f"--package={package}: {problem}" in finished.stderr
    assert cloud.calls("create") == []


def test_two_jobs_of_one_folder_are_refused(make_cloud):
    cloud = make_cloud()
    jobs = cloud.folder / "jobs.txt"
    line = f"{PRETRAIN} --model_dir={RUN}"
    jobs.write_text(f"{line}\n{line}/ --mode=eval\n")
    finished = run(cloud, f"--jobs={jobs}", job=())
    assert finished.returncode == 2
    assert f"two jobs with --model_dir={RUN}" in finished.stderr
    assert cloud.calls("create") == []


def test_the_job_has_time_to_save_before_its_slice_is_deleted(make_cloud):
    shown = dry_run("run.sh", *SLICE, "--max_hours=2", *JOB)
    words = started(shown)
    seconds = int(words[words.index("start") + 3])
    # Ten minutes less than the launcher has, and less what has passed.
    assert 2 * 3600 - 600 - 300 < seconds <= 2 * 3600 - 600
    # A job that would have no time at all is not started.
    cloud = make_cloud()
    finished = run(cloud, "--max_hours=1", DECOUPLED_TPU_SAVE="3600")
    assert finished.returncode == 4
    assert "not complete after --max_hours=1" in finished.stderr
    assert cloud.state()["slices"] == {}
    assert cloud.calls("decoupled", "pretrain", program="python3") == []


@pytest.mark.slow
def test_a_silent_host_is_taken_for_dead(make_cloud):
    cloud = make_cloud(runs=[["save 10", "hang"], ["save 20"]])
    # The first report is the last.
    finished = run(cloud, DECOUPLED_TPU_HEARTBEAT="30", DECOUPLED_TPU_SILENT="0")
    assert "no report for 0 s" in finished.stdout
    assert len(cloud.calls("create")) >= 2


@pytest.mark.slow
def test_a_job_that_prints_nothing_is_taken_for_hanging(make_cloud):
    cloud = make_cloud(runs=[["save 10", "hang"], ["save 20"]])
    finished = run(cloud, DECOUPLED_TPU_STALL="0", DECOUPLED_TPU_HEARTBEAT="1.1")
    assert finished.returncode == 0, finished.stderr
    assert "the job hangs: it printed nothing for" in finished.stdout
    assert len(cloud.calls("create")) == 2


def hanging_job(make_cloud):
    """A cloud, and a launcher that pauses while its job runs on from step 10."""
    cloud = make_cloud(runs=[["save 10", "hang"]])
    pauses = cloud.folder / "pauses"
    sleep = shutil.which("sleep")
    cloud.program("sleep", f'[ "$1" != 9 ] || touch {pauses}\nexec {sleep} "$1"')
    launcher = cloud.start(*command(cloud), DECOUPLED_TPU_POLL="9")
    wait_until(lambda: pauses.exists() and cloud.file(f"{RUN}/checkpoint").exists())
    return cloud, launcher


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)]
)
def test_a_signal_deletes_the_slice(make_cloud, number):
    cloud, launcher = hanging_job(make_cloud)
    launcher.send_signal(number)
    output, _ = launcher.communicate(timeout=20)
    assert launcher.returncode == 128 + number
    assert output.endswith("deleted\n")
    assert cloud.state()["slices"] == {}


def test_a_reader_that_is_gone_does_not_keep_the_slice(make_cloud):
    """As in run.sh | tee, where Ctrl-C ends tee too."""
    cloud, launcher = hanging_job(make_cloud)
    launcher.stdout.close()
    launcher.stderr.close()
    launcher.terminate()
    launcher.wait(timeout=20)
    assert cloud.state()["slices"] == {}


def test_two_signals_at_once_do_not_keep_the_slice(make_cloud):
    """The second may come before the first line of what the first one starts."""
    cloud = make_cloud(runs=[["save 10", "hang"]])
    launcher = cloud.start(*command(cloud))
    wait_until(cloud.file(f"{RUN}/checkpoint").exists)
    launcher.send_signal(signal.SIGSTOP)
    launcher.send_signal(signal.SIGPIPE)
    launcher.send_signal(signal.SIGTERM)
    launcher.send_signal(signal.SIGCONT)
    launcher.communicate(timeout=20)
    assert cloud.state()["slices"] == {}


def test_a_terminal_that_is_closed_does_not_keep_the_slice(make_cloud):
    cloud = make_cloud(runs=[["save 10", "hang"]])
    terminal, end = pty.openpty()
    launcher = cloud.start(*command(cloud), output=end)
    os.close(end)
    wait_until(cloud.file(f"{RUN}/checkpoint").exists)
    # What was printed is read, so that nothing waits for that.
    os.read(terminal, 1 << 16)
    os.close(terminal)
    launcher.send_signal(signal.SIGHUP)
    launcher.wait(timeout=20)
    assert cloud.state()["slices"] == {}


def test_a_launcher_that_was_killed_finds_its_job_again(make_cloud):
    cloud, launcher = hanging_job(make_cloud)
    launcher.kill()
    launcher.communicate(timeout=20)
    # One of another job leaves the slice alone.
    for flag in ("--model_dir=gs://bucket/other", "--mode=eval"):
        finished = run(cloud, job=(*JOB, flag))
        assert finished.returncode == 2
        assert f"runs another job, which reports to {RUN}/tpu_job" in finished.stderr
    complete = cloud.file("gs://bucket/complete/tpu_job/status")
    complete.parent.mkdir(parents=True)
    complete.write_text("id=1 state=FINISHED code=0\n")
    finished = run(cloud, job=(*JOB, "--model_dir=gs://bucket/complete"))
    assert finished.returncode == 0
    # A host may not answer at once.
    cloud.change(silent=2)
    again = cloud.start(*command(cloud))
    line = ""
    while "following job" not in line:
        line = again.stdout.readline()
        assert line, again.stderr.read()
    assert len(cloud.calls("delete")) == 0
    again.terminate()
    again.communicate(timeout=20)
    assert len(cloud.calls("decoupled", "pretrain", program="python3")) == 1
    assert len(cloud.calls("create")) == 1
    assert cloud.state()["slices"] == {}


def test_what_a_launcher_that_was_killed_left_idle_is_deleted(make_cloud):
    cloud = make_cloud()
    launcher = cloud.start(*command(cloud), DECOUPLED_TPU_POLL="30")
    report = cloud.file(f"{RUN}/tpu_job/status")
    wait_until(lambda: report.exists() and "FINISHED" in report.read_text())
    launcher.kill()
    launcher.communicate(timeout=20)
    assert run(cloud, "--keep").returncode == 0
    assert list(cloud.state()["slices"]) == ["n"]
    finished = run(cloud)
    assert finished.returncode == 0, finished.stderr
    assert f"{RUN} is complete" in finished.stdout
    assert finished.stdout.endswith("deleted\n")
    assert cloud.state()["slices"] == {}


def test_a_host_that_never_answers_is_replaced(make_cloud):
    ours = {"queued": True, "labels": {"project": "decoupled"}, "states": ["ACTIVE"]}
    cloud = make_cloud(slices={"n": ours}, silent=99)
    finished = run(cloud)
    assert finished.returncode == 0, finished.stderr
    assert "slice lost: its host does not answer" in finished.stdout
    assert len(cloud.calls("create")) == 1


def test_what_is_not_ours_is_left_alone(make_cloud):
    other = {"queued": True, "labels": {"project": "x"}, "states": ["ACTIVE"]}
    cloud = make_cloud(slices={"n": other})
    finished = run(cloud)
    assert finished.returncode == 2
    assert "without the label project=decoupled" in finished.stderr
    assert list(cloud.state()["slices"]) == ["n"]


def test_a_slice_whose_launcher_is_gone_deletes_itself_after_its_job(make_cloud):
    cloud = make_cloud(runs=[["save 10", "exit 143"]])
    launcher = cloud.start(
        *command(cloud), DECOUPLED_TPU_GRACE="0.3", DECOUPLED_TPU_POLL="30"
    )
    wait_until(cloud.file(f"{RUN}/checkpoint").exists)
    launcher.kill()
    launcher.communicate(timeout=20)
    wait_until(lambda: cloud.state()["slices"] == {})
    [words] = cloud.calls("delete")
    assert words[:5] == ["compute", "tpus", "queued-resources", "delete", "n"]
    assert "--async" in words


def test_a_deletion_that_fails_is_said_aloud(make_cloud):
    cloud = make_cloud(delete_error="UNAVAILABLE: try again")
    finished = run(cloud)
    assert finished.returncode == 5
    assert len(cloud.calls("delete")) == 3
    assert "NOT DELETED, and it may cost money: gcloud compute" in finished.stderr


def test_keep_leaves_the_slice_and_says_so(make_cloud):
    cloud = make_cloud()
    finished = run(cloud, "--keep")
    assert finished.returncode == 0
    assert "costs money until delete.sh --name=n" in finished.stderr
    assert list(cloud.state()["slices"]) == ["n"]


def test_a_slice_that_was_refused_is_not_kept(make_cloud):
    cloud = make_cloud(lives=[{"error": NO_QUOTA}])
    finished = run(cloud, "--keep")
    assert finished.returncode == 3
    assert "is kept and costs money" not in finished.stderr


@pytest.mark.slow
def test_gcloud_may_fail_to_answer_after_a_refusal(make_cloud):
    cloud = make_cloud(lives=[{"error": NO_ROOM}, {}])
    launcher = cloud.start(*command(cloud), DECOUPLED_TPU_BACKOFF="1")
    wait_until(lambda: cloud.calls("create"))
    cloud.change(describe_error="UNAVAILABLE: try again")
    questions = len(cloud.calls("describe"))
    wait_until(lambda: len(cloud.calls("describe")) > questions)
    cloud.change(describe_error="")
    _, errors = launcher.communicate(timeout=20)
    assert launcher.returncode == 0, errors


def test_several_jobs_share_a_slice_and_complete_ones_are_passed_over(make_cloud):
    cloud = make_cloud(runs=[["save 10"]])
    jobs = cloud.folder / "jobs.txt"
    jobs.write_text(
        "\ufeff# two rows\n\r\n"
        f"{PRETRAIN} --model_dir=gs://bucket/a\r\n"
        f"{FINETUNE} --gin_param='A.b = \"c d\"' --model_dir=gs://bucket/b "
        "--init_checkpoint=gs://bucket/a\n"
    )
    finished = run(cloud, f"--jobs={jobs}", job=())
    assert finished.returncode == 0, finished.stderr
    assert len(cloud.calls("create")) == len(cloud.calls("scp")) == 1
    [words] = cloud.calls("decoupled", "finetune", program="python3")
    assert words[5] == '--gin_param=A.b = "c d"'
    finished = run(cloud, f"--jobs={jobs}", job=())
    assert finished.returncode == 0, finished.stderr
    assert "gs://bucket/b is complete; --again runs it anyway" in finished.stdout
    assert len(cloud.calls("create")) == 1
