"""The scripts that create, fill, list and delete TPU VMs, with a gcloud of our own."""

import os
import pathlib
import shlex
import subprocess

import pytest

SCRIPTS = pathlib.Path(__file__).parent.parent / "tpu_scripts"
ZONE = "--zone=us-central1-a"


def run(script, *options, path=None):
    environment = (
        dict(os.environ, PATH=f"{path}:{os.environ['PATH']}") if path else None
    )
    return subprocess.run(
        [SCRIPTS / script, *options], capture_output=True, text=True, env=environment
    )


def commands(script, *options):
    """What a dry run prints, as argument lists."""
    finished = run(script, *options, "--dry-run")
    assert finished.returncode == 0, finished.stderr
    # A quoted command may span lines.
    return [shlex.split(line) for line in finished.stdout.split("gcloud ")[1:]]


def test_create():
    [arguments] = commands("create.sh", "--name=n", ZONE, "--type=v3-8")
    assert arguments[:5] == ["compute", "tpus", "tpu-vm", "create", "n"]
    assert "--version=tpu-vm-tf-2.15.0" in arguments
    assert "--labels=project=decoupled" in arguments
    assert ZONE in arguments
    assert "--spot" not in arguments


def test_a_slice_of_several_hosts_has_an_image_of_its_own():
    [arguments] = commands(
        "create.sh", "--name=n", ZONE, "--type=v3-32", "--spot", "--project=p"
    )
    assert "--version=tpu-vm-tf-2.15.0-pod" in arguments
    assert {"--spot", "--project=p"} <= set(arguments)


def test_delete_and_list():
    [arguments] = commands("delete.sh", "--name=n", ZONE)
    assert arguments[3:6] == ["delete", "n", "--quiet"]
    [arguments] = commands("list.sh", ZONE)
    assert "--filter=labels.project=decoupled" in arguments


def test_gcloud_gets_arguments_and_its_exit_code_counts(tmp_path):
    fake = tmp_path / "gcloud"
    fake.write_text('#!/bin/sh\nprintf "%s|" "$@"\nexit 7\n')
    fake.chmod(0o755)
    finished = run("delete.sh", "--name=a b;c", ZONE, path=tmp_path)
    assert finished.returncode == 7
    assert "|a b;c|--quiet|" in finished.stdout


@pytest.mark.parametrize(
    "options, message",
    [
        (["--name=n"], "--zone must be given"),
        ([ZONE], "--name must be given"),
        (["--name=n", ZONE, "--type=v5litepod-8"], "v2, v3 and v4 only"),
        (["--name=n", ZONE, "--version=tpu-vm-tf-2.15.0-pjrt"], "PJRT"),
        (["--nme=n", ZONE], "unknown option --nme=n"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(options, message):
    finished = run("create.sh", *options, "--dry-run")
    assert finished.returncode == 2
    assert finished.stdout == ""
    assert message in finished.stderr
    assert finished.stderr.count("\n") == 1


def test_help_shows_what_the_script_does():
    shown = run("create.sh", "--help").stdout
    assert shown.startswith("Creates a TPU VM")
    assert "--dry-run" in shown
