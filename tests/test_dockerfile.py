"""The Dockerfile has the steps of the Makefile, and all files that they need."""

import fnmatch
import json
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parent.parent
LINES = (ROOT / "Dockerfile").read_text().splitlines()
INSTRUCTIONS = [line.split(maxsplit=1) for line in LINES if not line.startswith("#")]


def arguments(instruction):
    return [text for name, text in INSTRUCTIONS if name == instruction]


def test_its_python_is_the_newest_that_the_makefile_takes():
    supported = re.search(r"^SUPPORTED := (\S+)", (ROOT / "Makefile").read_text(), re.M)
    assert arguments("FROM") == [f"python:{supported[1]}-slim"]


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """What `COPY . .` copies: .dockerignore leaves out some."""
    folder = tmp_path_factory.mktemp("context")
    assert arguments("COPY") == [". ."]
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        top = name.partition("/")[0]
        kept = True
        for rule in rules:
            if fnmatch.fnmatch(top, rule.lstrip("!")):
                kept = rule.startswith("!")
        if kept and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def steps():
    """The make targets that building and running the image come to."""
    (command,) = arguments("CMD")
    lines = [*arguments("RUN"), " ".join(json.loads(command))]
    return [line.split() for line in lines if line.startswith("make")]


def test_it_installs_and_runs_the_demo():
    assert steps() == [["make", "install"], ["make", "demo"]]


@pytest.mark.parametrize("step", steps(), ids=" ".join)
def test_make_finds_all_that_a_step_needs(step, context):
    """Missing sources of a target end even a dry run; its scripts are looked for."""
    done = subprocess.run(
        [*step, "--dry-run"], cwd=context, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    scripts = re.findall(r"^\./(\S+)", done.stdout, re.M)
    assert scripts and all((context / name).exists() for name in scripts)


def test_the_package_is_complete_there(context):
    """The installation reads these folders, and the demo their files."""
    for folder, suffix in (("decoupled", "*.py"), ("gin", "*.gin")):
        names = {path.relative_to(ROOT) for path in (ROOT / folder).rglob(suffix)}
        copied = {
            path.relative_to(context) for path in (context / folder).rglob(suffix)
        }
        assert copied and copied == names
    assert not (context / "tests").exists()


def test_programs_that_the_image_lacks_are_installed():
    """python:3.13-slim has bash, and neither make nor a compiler."""
    assert arguments("RUN")[0].endswith("install --yes --no-install-recommends make")
