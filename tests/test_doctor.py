"""The doctor explains good and bad installations, with Python's own library alone."""

import os
import re
import subprocess
import sys

import pytest

from decoupled import doctor
from decoupled.doctor import Package
from decoupled.processor import usable_cores


def package(name, installed="1.0", extra="", fits=True):
    return Package(name, ">=1", extra, installed, fits)


def test_requirements_have_names_limits_and_extras():
    entries = doctor.requirements()
    assert ("mesh-tensorflow", "==0.1.21", "") in entries
    assert {"", "beam", "demo", "data", "dev", "interop", "xtreme"} == {
        extra for *_, extra in entries
    }


def test_requirements_of_a_checkout_are_those_of_the_installed_package(monkeypatch):
    def as_sets(entries):
        return {(name, frozenset(limits.split(",")), e) for name, limits, e in entries}

    def not_installed(name):
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    installed = as_sets(doctor.requirements())
    monkeypatch.setattr(doctor.importlib.metadata, "requires", not_installed)
    assert as_sets(doctor.requirements()) == installed


def test_versions_are_compared_with_their_limits():
    assert doctor.check_package("pytest", ">=1", "dev").fits
    assert not doctor.check_package("pytest", "<1", "dev").fits
    absent = doctor.check_package("no-such-package", ">=1", "")
    assert absent == Package("no-such-package", ">=1", "", None, False)


def test_report_marks_what_is_missing_or_of_another_version(capsys):
    doctor.report_packages(
        [package("a"), package("b", None, "demo"), package("c", "0.5", fits=False)]
    )
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[2:] == [
        "a 1.0 (>=1)",
        "b [demo] - (>=1) <- missing",
        "c 0.5 (>=1) <- another version is required",
    ]


def test_commands_are_the_modules_that_can_be_run():
    found = doctor.commands()
    assert {"doctor", "pretrain", "finetune"} <= set(found)
    assert not {"launch", "configs", "compat"} & set(found)


def test_a_command_says_what_it_lacks():
    packages = [package("Django"), package("polib", None, "demo")]
    assert doctor.missing("pretrain", packages, True) == ""
    assert doctor.missing("build_corpus", packages, True) == "polib: make install"
    assert "TensorFlow" in doctor.missing("pretrain", packages, False)
    assert doctor.missing("doctor", packages, False) == ""


def test_the_interpreter_for_comparisons_is_looked_for(monkeypatch, tmp_path):
    absent = str(tmp_path / "python")
    monkeypatch.setenv("DECOUPLED_INTEROP_PYTHON", absent)
    assert doctor.missing("make test-interop", [], True).startswith(absent)


def test_the_machine_is_described(capsys):
    doctor.report_machine()
    out = capsys.readouterr().out
    assert f"{usable_cores()} cores usable" in out
    assert re.search(r"memory +[\d.,]+ [KMGT]iB, [\d.,]+ [KMGT]iB available", out)
    assert re.search(r"disk, here +[\d.,]+ [KMGT]iB free in ", out)


@pytest.mark.parametrize(
    "probe,message",
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import os; os.kill(os.getpid(), 4)", "ended by signal 4; this TensorFlow"),
        ("import sys; sys.exit(3)", "exit code 3"),
    ],
)
def test_a_broken_tensorflow_is_explained(monkeypatch, capsys, probe, message):
    monkeypatch.setattr(doctor, "PROBE", probe)
    assert doctor.report_core() is False
    assert message in capsys.readouterr().out


def test_the_whole_report_ends_with_0_where_the_core_works():
    done = subprocess.run(
        [sys.executable, "-m", "decoupled.doctor"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert "device:CPU:0" in done.stdout


def test_a_tensorflow_that_fails_ends_the_whole_report_with_1(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('libcuda is broken')")
    done = subprocess.run(
        [sys.executable, "-m", "decoupled.doctor"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{doctor.CHECKOUT}:{tmp_path}"},
    )
    assert done.returncode == 1
    assert "do not work: ImportError: libcuda is broken" in done.stdout
    assert "decoupled.pretrain             needs TensorFlow" in done.stdout
    assert done.stderr == ""


def test_nothing_but_python_is_needed_for_the_report():
    # -I -S: without site-packages and without the environment's paths.
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop()); from decoupled import doctor; "
        "doctor.PROBE = 'raise ImportError'; sys.exit(doctor.main())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(doctor.CHECKOUT)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert "<- missing" in done.stdout
