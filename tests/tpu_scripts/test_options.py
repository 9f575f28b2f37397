"""Options, refusals, --help and --dry-run of every script."""

import re
import subprocess

import pytest

from tests.tpu_scripts.cloud import (
    DATA,
    NO_QUOTA,
    NO_ROOM,
    SCRIPTS,
    TASK,
    ZONE,
    dry_run,
)

SLICE = ("--name=n", ZONE)
TYPED = (*SLICE, "--type=v3-8")
COMMANDS = sorted(
    path.name
    for path in SCRIPTS.glob("*.sh")
    if path.stat().st_mode & 0o100 and not path.name.startswith("host_")
)
RUN = "--model_dir=gs://b/run"
JOB = ("--", "pretrain", RUN, *DATA)
TUNED = ("--", "finetune", RUN, *TASK, "--init_checkpoint=gs://b/r")


def call(script, *options):
    return subprocess.run([SCRIPTS / script, *options], capture_output=True, text=True)


def arguments(script, *options):
    """Of the one command that a dry run shows, without `gcloud compute tpus`."""
    [shown] = dry_run(script, *options)
    assert shown[:3] == ["gcloud", "compute", "tpus"]
    return shown[3:]


def test_a_slice_is_requested_through_the_queue():
    shown = arguments("create.sh", *SLICE, "--type=v3-8", "--valid-until=6h")
    assert shown[:3] == ["queued-resources", "create", "n"]
    assert {
        "--node-id=n",
        "--runtime-version=tpu-vm-tf-2.15.1-se",
        "--accelerator-type=v3-8",
        "--valid-until-duration=6h",
        ZONE,
    } <= set(shown)
    assert "--spot" not in shown
    [labels] = [word for word in shown if word.startswith("--labels=")]
    assert re.fullmatch(r"--labels=project=decoupled,owner=[a-z0-9_-]+", labels)


def test_a_node_can_be_requested_at_once():
    shown = arguments(
        "create.sh",
        *SLICE,
        "--plain",
        "--type=v3-32",
        "--spot",
        "--project=p",
        "--service_account=a@p",
        "--create_arg=--network=x",
        "--create_arg=--reserved",
        "--internal_ip",
    )
    assert shown[:3] == ["tpu-vm", "create", "n"]
    # Several hosts have another image.
    assert {
        "--version=tpu-vm-tf-2.15.1-pod-se",
        "--spot",
        "--project=p",
        "--service-account=a@p",
        "--network=x",
        "--reserved",
        "--internal-ips",
    } <= set(shown)


IMAGES = {
    "v2-8": "tpu-vm-tf-2.15.1-se",
    "v4-16": "tpu-vm-tf-2.15.1-pod-se",
    "v5litepod-16": "v2-alpha-tpuv5-lite",
    "v5p-8": "v2-alpha-tpuv5",
    "v6e-8": "v2-alpha-tpuv6e",
}


@pytest.mark.parametrize("kind, image", IMAGES.items())
def test_each_generation_has_its_image(kind, image):
    shown = arguments("create.sh", *SLICE, f"--type={kind}")
    assert {f"--runtime-version={image}", f"--accelerator-type={kind}"} <= set(shown)


BASE = "--version=tpu-ubuntu2204-base"


@pytest.mark.parametrize(
    "options, worker, install",
    [
        (["--type=v3-32"], "0", ""),
        # Chips of a host, and hosts.
        (["--type=v3-32", BASE], "all", " 4 4"),
        (["--type=v3-8", BASE], "0", " 4 1"),
        (["--type=v5p-16"], "all", " 4 2"),
        (["--type=v5litepod-8"], "0", " 8 1"),
        (["--type=v6e-1"], "0", " 1 1"),
        (["--type=v6e-256"], "all", " 4 64"),
    ],
)
def test_the_package_is_installed_where_it_runs(options, worker, install):
    describe, archive, copy, installation = dry_run("install.sh", *SLICE, *options)
    assert "networkEndpoints.len()" in describe[-2]
    assert archive[3:5] == ["archive", "--format=tar.gz"]
    assert copy[4] == "scp"
    assert copy[-4:] == ["n:", f"--worker={worker}", ZONE, "--quiet"]
    command = f"--command=bash host_install.sh decoupled.tar.gz{install}"
    assert command in installation


def test_uploads_go_to_the_bucket_or_to_a_host(tmp_path):
    (tmp_path / "records").mkdir()
    (tmp_path / "pieces.model").touch()
    sources = (str(tmp_path / "records"), str(tmp_path / "pieces.model"))
    assert dry_run("upload.sh", "--to=gs://b/data/", *sources) == [
        [
            "gcloud",
            "storage",
            "rsync",
            "--recursive",
            sources[0],
            "gs://b/data/records",
        ],
        ["gcloud", "storage", "cp", sources[1], "gs://b/data/pieces.model"],
    ]
    made, copied = dry_run("upload.sh", *SLICE, "--to=my data", *sources)
    assert "--command=mkdir -p 'my data'" in made
    assert copied[5:9] == ["--recurse", *sources, "n:my data"]


def test_uploads_have_the_names_of_what_is_copied(tmp_path, monkeypatch):
    here = tmp_path / "corpus" / "tasks"
    here.mkdir(parents=True)
    (here / "link").symlink_to(tmp_path)
    monkeypatch.chdir(here)
    commands = dry_run("upload.sh", "--to=gs://b", ".", "..", "link/")
    names = ["tasks", "corpus", "link"]
    assert [c[-1] for c in commands] == [f"gs://b/{name}" for name in names]
    [_, copied] = dry_run("upload.sh", *SLICE, "--to=data", ".")
    assert copied[6:8] == [str(here), "n:data"]


def test_fetching_can_leave_checkpoints_behind():
    assert dry_run("fetch.sh", "--from=gs://b/run/", "--to=here") == [
        ["mkdir", "-p", "here"],
        ["gcloud", "storage", "rsync", "--recursive", "gs://b/run", "here"],
    ]
    [_, command] = dry_run(
        "fetch.sh", "--from=gs://b/run", "--to=here", "--no-checkpoints"
    )
    pattern = command[-1].removeprefix("--exclude=")
    assert re.match(pattern, "model.ckpt-100.index")
    assert re.match(pattern, "eval/model.ckpt-100.index")
    assert not re.match(pattern, "config.json")


@pytest.mark.parametrize(
    "script, options, message",
    [
        ("create.sh", ["--name=n"], "--zone must be given"),
        ("create.sh", ["--name=A b", ZONE], "small letters"),
        ("create.sh", ["--nme=n", ZONE], "unknown option --nme=n"),
        ("create.sh", [*SLICE, "--spot=yes"], "--spot takes no value"),
        ("create.sh", [*SLICE, "--type"], "--type wants a value: --type=v6e-8"),
        ("create.sh", [*SLICE], "--type must be given, e.g. --type=v6e-8"),
        ("create.sh", [*SLICE, "--type=v5e-8"], "gcloud's name is v5litepod-8"),
        (
            "create.sh",
            [*SLICE, "--type=tpu7x-8"],
            "cannot create TPU7x; create it with",
        ),
        ("create.sh", [*SLICE, "--type=v7-8"], "none of v2, v3, v4, v5litepod, v5p"),
        (
            "create.sh",
            [*SLICE, "--type=v6e-8", "--version=tpu-vm-tf-2.15.1-se"],
            "needs TensorFlow 2.15 on v2, v3 or v4; leave --version out",
        ),
        ("create.sh", [*SLICE, "--type=v3"], "not of the form v3-8"),
        ("create.sh", [*SLICE, "--type=v5litepod-0"], "not of the form v3-8"),
        ("create.sh", [*SLICE, "--type=v5litepod-08"], "not of the form v3-8"),
        ("create.sh", [*TYPED, "--version=tpu-vm-tf-2.15.0-pjrt"], "finds no TPU"),
        ("create.sh", [*TYPED, "--version=tpu-vm-tf-2.15.0"], "end in -se"),
        (
            "create.sh",
            [*SLICE, "--type=v3-32", "--version=tpu-vm-tf-2.15.0-se"],
            "whose image ends in -pod-se",
        ),
        ("upload.sh", ["--to=gs://b"], "nothing to copy"),
        (
            "upload.sh",
            ["--to=gs://b", "u/one/vocabulary", "u/two/vocabulary/"],
            "u/one/vocabulary and u/two/vocabulary/ would both become gs://b/vocab",
        ),
        (
            "upload.sh",
            [*SLICE, "--to=data", "--with_package", "u/decoupled.tar.gz"],
            "the package and u/decoupled.tar.gz would both become data/decoupled.tar",
        ),
        ("fetch.sh", ["--from=runs", "--to=x"], "--from=runs: not on gs://"),
        ("run.sh", [*TYPED], "no job"),
        ("run.sh", [*TYPED, "--", "rm -rf", RUN], "a job starts with a command"),
        (
            "run.sh",
            [*TYPED, "--", "export", RUN, "--export_dir=gs://b/e"],
            "export: trains nothing on a TPU, as pretrain and finetune do (--force",
        ),
        ("run.sh", [*TYPED, "--", "pretrain"], "--model_dir=gs://... must be"),
        ("run.sh", [*TYPED, "--max_hours=2.5", *JOB], "whole number"),
        ("run.sh", [*TYPED, "--stall_minutes=0", *JOB], "minutes=0: at least one"),
        ("run.sh", [*TYPED, "--max_attempts=0", *JOB], "attempts=0: at least one"),
        ("run.sh", [*TYPED, "--env=A B", *JOB], "not NAME=VALUE"),
        ("run.sh", [*TYPED, "--jobs=no/file"], "cannot be read"),
        ("run.sh", [*TYPED, *JOB, "--dry-run"], "stand before --"),
        (
            "run.sh",
            [*TYPED, "--", "pretrain", RUN],
            "pretrain to gs://b/run: --records_dir=... must be among its flags",
        ),
        *(
            ("run.sh", [*TYPED, *job, flag], f"{flag}: must be on gs://")
            for job, flag in [
                (JOB, "--vocabulary=data/pieces.model"),
                (JOB, "--init_checkpoint=runs/local"),
                (JOB, "--branch_from=runs/trunk"),
                (TUNED, "--feature_dir=features"),
            ]
        ),
        (
            "run.sh",
            [*TYPED, *JOB, "--gin_file=/home/me/my.gin"],
            "--gin_file=/home/me/my.gin: neither in gin/ nor on gs:// (--force tries",
        ),
        ("sweep.sh", [*SLICE], "--jobs must be given"),
        ("sweep.sh", [*SLICE, "--jobs=no", "--slices=08"], "--jobs=no: cannot be read"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(script, options, message):
    finished = call(script, "--dry-run", *options)
    assert finished.returncode == 2
    assert finished.stdout == ""
    last = finished.stderr.splitlines()[-1]
    assert message in last
    assert last.startswith(f"{script}: error: ")


@pytest.mark.parametrize(
    "options, path",
    [
        ([], "models/rembert.gin"),
        ([], "gs://b/my.gin"),
        # Copied to the host.
        (["--force"], "my.gin"),
    ],
)
def test_gin_files_may_be_of_the_package_or_on_the_bucket(options, path):
    assert dry_run("run.sh", *TYPED, *options, *JOB, f"--gin_file={path}")


def test_help_explains_each_script_and_only_its_options():
    for script in COMMANDS:
        finished = call(script, "--help")
        assert finished.returncode == 0
        head, _, options = finished.stdout.partition("\nOptions:\n")
        assert f"tpu_scripts/{script}" in head
        assert "--dry-run" in options
        assert "shellcheck" not in head
        assert script != "fetch.sh" or "--spot" not in options


def test_what_a_message_of_gcloud_is_about():
    cases = {
        NO_QUOTA: "quota",
        "RESOURCE_EXHAUSTED: Quota exceeded for TPUs": "quota",
        "Quota exceeded for metric 'Reads' and limit 'Reads per minute'": "passing",
        NO_ROOM: "capacity",
        "Insufficient reserved capacity. Contact customer support": "capacity",
        "NOT_FOUND: Resource 'projects/p/x' was not found": "absent",
        "NOT_FOUND: Resource 'x' was not found. This command is authenticated as a@b "
        "which is the active account specified by the [core/account] property.": (
            "absent"
        ),
        "HTTPError 404: Not Found": "absent",
        "UNAVAILABLE: The service is currently unavailable.": "passing",
        "PERMISSION_DENIED: Permission 'tpu.nodes.get' denied": "refused",
        "PERMISSION_DENIED: Permission denied on 'queuedResources/seed-404'": "refused",
        "PERMISSION_DENIED: TPU API has not been used in project 8404": "refused",
        "INVALID_ARGUMENT: node seed-404 has no network": "refused",
        "You do not currently have an active account selected.": "refused",
        "INVALID_ARGUMENT: no such runtime": "refused",
    }
    program = (
        f"source {SCRIPTS}/common.sh; source {SCRIPTS}/slice.sh;"
        'for text in "$@"; do trouble_of "$text"; done'
    )
    finished = subprocess.run(
        ["bash", "-c", program, "-", *cases], capture_output=True, text=True
    )
    assert finished.stdout.split() == list(cases.values())
