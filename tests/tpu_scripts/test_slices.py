"""Creating, watching, listing and deleting slices, and the jobs of a sweep."""

import re
import shlex
import signal

import pytest

from tests.processes import wait_until
from tests.tpu_scripts.cloud import ACCOUNT, DATA, FINETUNE, PRETRAIN, ZONE

SLICE = ("--name=n", ZONE)
OURS = {"queued": True, "labels": {"project": "decoupled"}, "states": ["ACTIVE"]}


def test_creation_waits_until_the_slice_is_ready(make_cloud):
    states = ["CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"]
    cloud = make_cloud(lives=[{"states": states}])
    finished = cloud.run("create.sh", *SLICE, "--type=v6e-8", "--wait")
    assert finished.returncode == 0, finished.stderr
    said = [line.split(": ", 1)[1] for line in finished.stdout.splitlines()]
    assert said[:-1] == states[:-1]
    assert said[-1].startswith("READY: it costs money until delete.sh --name=n")
    [words] = cloud.calls("create")
    assert "--labels=project=decoupled,owner=ada" in words


def test_an_interrupted_wait_says_how_to_delete_the_request(make_cloud):
    cloud = make_cloud(lives=[{"states": ["WAITING_FOR_RESOURCES"]}])
    waiting = cloud.start("create.sh", *SLICE, "--type=v6e-8", "--wait")
    wait_until(lambda: cloud.calls("describe"))
    waiting.send_signal(signal.SIGINT)
    _, errors = waiting.communicate(timeout=20)
    assert waiting.returncode == 130
    assert errors.endswith(f"until delete.sh --name=n {ZONE}\n")
    assert list(cloud.state()["slices"]) == ["n"]


def test_a_request_that_something_else_deletes_is_not_waited_for(make_cloud):
    states = ["WAITING_FOR_RESOURCES", "WAITING_FOR_RESOURCES", "DELETED"]
    cloud = make_cloud(lives=[{"states": states}])
    finished = cloud.run("create.sh", *SLICE, "--type=v6e-8", "--wait")
    assert finished.returncode == 4
    assert "the request is gone" in finished.stderr


@pytest.mark.parametrize("life", ["lost_answer", "error"])
def test_a_request_without_an_answer_may_have_been_made(make_cloud, life):
    cloud = make_cloud(lives=[{life: "Connection reset by peer"}])
    finished = cloud.run("create.sh", *SLICE, "--type=v6e-8")
    if life == "lost_answer":
        assert finished.returncode == 0, finished.stderr
        assert finished.stdout.endswith("it was requested all the same\n")
        return
    assert finished.returncode == 2
    [_, message] = finished.stderr.splitlines()
    assert "n may exist and cost money: status.sh shows it" in message
    assert message.endswith(f"delete.sh --name=n {ZONE} deletes it")


def test_deletion_takes_ours_and_leaves_others(make_cloud):
    other = {**OURS, "labels": {"project": "other"}}
    node = {**OURS, "queued": False, "states": ["PREEMPTED"]}
    cloud = make_cloud(slices={"n": OURS, "m": other, "k": node})
    assert cloud.run("delete.sh", *SLICE).returncode == 0
    assert cloud.run("delete.sh", "--name=k", ZONE).returncode == 0
    finished = cloud.run("delete.sh", "--name=m", ZONE)
    assert finished.returncode == 2
    assert "m has no label project=decoupled" in finished.stderr
    assert list(cloud.state()["slices"]) == ["m"]
    finished = cloud.run("delete.sh", "--name=x", ZONE)
    assert finished.returncode == 2
    assert "nothing of that name" in finished.stderr


def test_a_deletion_that_is_refused_leaves_the_slice_and_says_so(make_cloud):
    message = "PERMISSION_DENIED: Permission denied on 'queuedResources/seed-404'"
    cloud = make_cloud(slices={"seed-404": OURS}, delete_error=message)
    finished = cloud.run("delete.sh", "--name=seed-404", ZONE)
    assert finished.returncode == 1
    assert "NOT DELETED, and it may cost money: gcloud compute" in finished.stderr
    assert finished.stdout == ""


def test_lists_ask_for_our_label_in_every_zone(make_cloud):
    cloud = make_cloud(slices={"n": OURS})
    assert cloud.run("list.sh", "--zones=a,b").returncode == 0
    calls = cloud.calls("list")
    groups = ["queued-resources", "tpu-vm"] * 2
    assert [words[2] for words in calls] == groups
    zones = [word for words in calls for word in words if word.startswith("--zone")]
    assert zones == ["--zone=a", "--zone=a", "--zone=b", "--zone=b"]
    filters = {word for words in calls for word in words if "--filter" in word}
    assert filters == {
        "--filter=tpu.nodeSpec[0].node.labels.project=decoupled",
        "--filter=labels.project=decoupled",
    }


def test_status_shows_slice_job_checkpoint_and_log(make_cloud):
    cloud = make_cloud(slices={"n": OURS})
    folder = cloud.folder / "hosts" / "n" / "decoupled_job"
    folder.mkdir(parents=True)
    (folder / "driver.log").write_text("step 1\nstep 2\nstep 3\n")
    run = cloud.file("gs://bucket/run")
    (run / "tpu_job").mkdir(parents=True)
    (run / "tpu_job" / "status").write_text(
        "id=1 state=RUNNING code=- quiet=4 time=5\n"
    )
    (run / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-120"\n')
    options = ("--model_dir=gs://bucket/run", "--log=2")
    finished = cloud.run("status.sh", *SLICE, *options)
    assert finished.stdout == (
        "slice       READY (READY, HEALTHY)\n"
        "cost        from READY until delete.sh\n"
        "job         id=1 state=RUNNING code=- quiet=4 time=5\n"
        "checkpoint  step 120\n"
        "step 2\nstep 3\n"
    )


def sweep(cloud, text, *options):
    jobs = cloud.folder / "rows.txt"
    jobs.write_text(text)
    package = cloud.folder / "package.whl"
    package.touch()
    given = ("--type=v3-8", f"--jobs={jobs}", f"--package={package}")
    return cloud.run("sweep.sh", *SLICE, ACCOUNT, *given, *options)


def test_a_sweep_divides_its_jobs_over_slices(make_cloud):
    cloud = make_cloud()
    # Two folders, whose names differ after a blank.
    rows = (
        "\ufeff# rows\n"
        f"{PRETRAIN} '--model_dir=gs://bucket/run a'\n"
        f"{PRETRAIN} '--model_dir=gs://bucket/run b'\n"
        # Must not start before `run b` is complete.
        f"{FINETUNE} '--init_checkpoint=gs://bucket/run b/' --model_dir=gs://bucket/c\n"
    )
    finished = sweep(cloud, rows, "--slices=2")
    assert finished.returncode == 0, finished.stderr
    assert sorted(words[4] for words in cloud.calls("create")) == ["n-0", "n-1"]
    assert cloud.state()["slices"] == {}
    assert "n-0: job: pretrain to gs://bucket/run a" in finished.stdout
    assert "n-1: job: pretrain to gs://bucket/run b" in finished.stdout
    lines = [line for line in finished.stdout.splitlines() if "n-1: job:" in line]
    assert lines[2].endswith("finetune to gs://bucket/c from step 0")


def test_a_job_of_a_sweep_runs_behind_the_one_it_starts_from(make_cloud):
    sources = (
        "--init_checkpoint=gs://b/m/model.ckpt-100",
        "--branch_from=gs://b/m/",
        "--branch_from=gs://b/m/model.ckpt-100",
    )
    rows = (
        f"{PRETRAIN} --model_dir=gs://b/m\n"
        f"{PRETRAIN} --model_dir=gs://b/other\n"
        f"{PRETRAIN} --model_dir=gs://b/m_2\n"
    )
    for number, source in enumerate(sources):
        rows += f"{PRETRAIN} --model_dir=gs://b/n{number} {source}\n"
    # Of a folder that no job writes.
    rows += f"{PRETRAIN} --model_dir=gs://b/k --init_checkpoint=gs://b/old/m\n"
    finished = sweep(make_cloud(), rows, "--slices=2", "--dry-run")
    assert finished.returncode == 0, finished.stderr
    said = re.findall(r"(n-\d): job: pretrain to gs://b/(\w+) from", finished.stdout)
    first = [folder for slice_, folder in said if slice_ == "n-0"]
    assert first == ["m", "m_2", "n0", "n1", "n2"]
    assert [folder for slice_, folder in said if slice_ == "n-1"] == ["other", "k"]


def test_a_backslash_outside_of_double_quotes_is_taken_as_in_a_shell(make_cloud):
    word = r"""--gin_param='A.b = "c\\n"'\"" d"\ e"""
    rows = f"{PRETRAIN} --model_dir=gs://b/a {word}\n"
    finished = sweep(make_cloud(), rows, "--dry-run")
    assert finished.returncode == 0, finished.stderr
    [line] = [x for x in finished.stdout.splitlines() if "host_job.sh start" in x]
    [start] = [x for x in shlex.split(line) if x.startswith("--command=")]
    assert shlex.split(word)[0] in shlex.split(start)


def test_a_sweep_checks_its_jobs_before_it_creates_anything(make_cloud):
    cloud = make_cloud()
    first = f"{PRETRAIN} --model_dir=gs://b/a\n"
    reader = f"{FINETUNE} --init_checkpoint=gs://b/a/best --model_dir=gs://b/f"
    same = f"{FINETUNE} --init_checkpoint=gs://b/r --model_dir=gs://b/a"
    for text, message in [
        (first + same, "two jobs with --model_dir=gs://b/a"),
        (
            f'{first}{PRETRAIN} "--model_dir=gs://b/a"\n',
            "two jobs with --model_dir=gs://b",
        ),
        (
            f"{first}{PRETRAIN} '--model_dir=gs://b/a/'\n",
            "two jobs with --model_dir=gs://",
        ),
        (f"{first}{PRETRAIN}\n", f"{PRETRAIN}: --model_dir=gs://... must be among"),
        (
            f"{first}pretrain --model_dir=gs://b/c {DATA[0]}\n",
            "pretrain to gs://b/c: --vocabulary=... must be among its flags",
        ),
        (f"{first}{same} --feature_dir=f\n", "--feature_dir=f: must be on gs://"),
        ("# none\n", "no job in it"),
        ("pretrain --model_dir=gs://b/a --x='\n", "quotes do not match"),
        (
            f'{PRETRAIN} --model_dir=gs://b/a --x=\'"\' --y="A.b = \\"c d\\""\n',
            f"a backslash within double quotes; use single quotes: {PRETRAIN}",
        ),
        ("pretrain --model_dir=gs://b/a # seed 1\n", "unexpected argument '#'"),
        (f"{reader}\n{first}", f"behind that: {reader}"),
        (
            f"{first}{PRETRAIN} --model_dir=gs://b/c\n{PRETRAIN} --model_dir=gs://b/d "
            "--init_checkpoint=gs://b/a --branch_from=gs://b/c\n",
            "a job starts from jobs of two slices; use --slices=1: pretrain",
        ),
        ("pretrain --model_dir=gs://b/a --mode train\n", "unexpected argument 'train'"),
    ]:
        finished = sweep(cloud, text, "--slices=2")
        assert finished.returncode == 2
        assert message in finished.stderr
    assert cloud.calls("create") == []
