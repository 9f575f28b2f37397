"""The doctor explains good and bad installations, with Python's own library alone."""

import json
import re
import runpy
import signal
import subprocess
import sys
import types

import pytest

from decoupled.commands import doctor
from decoupled.core.compat import tf
from decoupled.core.installed import CHECKOUT, requirements
from decoupled.core.machine import usable_cores
from tests.command_line import decoupled, in_process_of_its_own


def package(name, installed="1.0", extras=(), fits=True):
    return types.SimpleNamespace(
        name=name, limits=">=1", extras=extras, installed=installed, fits=fits
    )


def test_report_marks_what_is_missing_or_of_another_version(capsys):
    doctor.report_packages(
        [
            package("a"),
            package("b", None, ("data", "demo")),
            package("c", "0.5", fits=False),
        ]
    )
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[2:] == [
        "a 1.0 (>=1)",
        "b [data,demo] - (>=1) <- missing",
        "c 0.5 (>=1) <- another version is required",
    ]


@pytest.mark.parametrize("text, cure", [("2.20.1", True), ("2.21.1", False)])
def test_tensorflow_text_of_another_release_is_told(capsys, text, cure):
    doctor.report_packages(
        [package("tensorflow", "2.21.0"), package("tensorflow-text", text)]
    )
    printed = capsys.readouterr().out
    assert ("pip install 'tensorflow-text==2.21.*'" in printed) == cure
    assert ("cannot be loaded" in printed) == cure


@pytest.mark.parametrize(
    "version, said",
    [
        ((3, 9), "<- not supported: use Python 3.10 to 3.13"),
        ((3, 10), ""),
        ((3, 13), ""),
        ((3, 14), "<- not supported: use Python 3.10 to 3.13"),
    ],
)
def test_supported_versions_of_python(monkeypatch, capsys, version, said):
    monkeypatch.setattr(sys, "version_info", version)
    doctor.report_python()
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.endswith(said) and ("not supported" in line) == bool(said)


def test_the_machine_is_described(capsys):
    doctor.report_machine()
    out = capsys.readouterr().out
    assert f"{usable_cores()} cores usable" in out
    assert re.search(r"memory +[\d.,]+ [KMGT]iB, [\d.,]+ [KMGT]iB available", out)
    assert re.search(r"disk, here +[\d.,]+ [KMGT]iB free in ", out)


def test_a_machine_that_does_not_say_what_it_has_is_described(
    monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(doctor, "available_memory", lambda: None)
    monkeypatch.setenv("TMPDIR", f"{tmp_path}/none")
    doctor.report_machine()
    out = capsys.readouterr().out
    assert re.search("memory +unknown\n", out)
    told = "cannot be used (No such file or directory):"
    assert f"{told} {tmp_path}/none" in out


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


# What a probe finds. TensorFlow's own takes seconds; what it asks is asked below, too.
FOUND = """print('{"devices": ["device:CPU:0"], "cuda": null}')"""


@pytest.mark.parametrize(
    "probe",
    [FOUND, pytest.param(doctor.PROBE, marks=pytest.mark.slow)],
    ids=["found", "tensorflow"],
)
def test_the_whole_report_ends_with_0_where_the_core_works(monkeypatch, probe):
    monkeypatch.setattr(doctor, "PROBE", probe)
    before = signal.getsignal(signal.SIGPIPE)
    done = decoupled("doctor")
    assert signal.getsignal(signal.SIGPIPE) is before
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert "device:CPU:0" in done.stdout


def test_a_tensorflow_that_fails_ends_the_whole_report_with_1(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('libcuda is broken')")
    done = in_process_of_its_own("doctor", PYTHONPATH=f"{CHECKOUT}:{tmp_path}")
    assert done.returncode == 1
    assert "do not work: ImportError: libcuda is broken" in done.stdout
    assert "all but doctor need TensorFlow and Mesh-TensorFlow to work" in done.stdout
    assert done.stderr == ""


def test_a_release_of_tensorflow_that_is_not_known_is_explained(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.22.0'")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert doctor.report_core() is False
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("  do not work: TensorFlow 2.22.0 is installed, which ")


def test_nothing_but_python_is_needed_for_the_report():
    # -I -S: without site-packages and without the environment's paths.
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop()); sys.argv.append('doctor'); "
        "from decoupled.__main__ import main; "
        "from decoupled.commands import doctor; "
        "doctor.PROBE = 'raise ImportError'; main()"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(CHECKOUT)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert "<- missing" in done.stdout


@pytest.fixture
def commands(monkeypatch, capsys):
    """Prints what commands lack where some packages are missing; returns the lines."""

    def report(*absent, works=True):
        packages = [
            package(name, None if name in absent else "1.0", extras)
            for name, _, extras in requirements()
        ]
        doctor.report_commands(packages, works)
        return capsys.readouterr().out.splitlines()[2:]

    return report


def test_a_complete_installation_can_run_everything(commands):
    first, *extras = commands()
    assert first == "  all can run, some of them with an extra:"
    assert len(extras) == 9
    assert all(line.endswith(": installed") for line in extras)


def test_the_commands_of_an_extra_name_what_they_lack(commands):
    first, *extras = commands("matplotlib", "cloud-tpu-client")
    assert first == "  all can run, some of them with an extra:"
    lacks = {line.split()[0]: line for line in extras if "make install" in line}
    assert set(lacks) == {"[demo]", "[plots]", "[reproduce]", "[tpu]"}
    assert lacks["[plots]"].endswith(": needs matplotlib: make install")
    assert "tpu_health: needs cloud-tpu-client: make install" in lacks["[tpu]"]


def test_every_command_needs_the_core(commands):
    assert commands("rich")[0] == "  all but doctor need rich: make install"
    assert "TensorFlow" in commands(works=False)[0]


def test_without_a_checkout_pip_is_the_cure(commands, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "CHECKOUT", tmp_path)
    assert commands("rich")[0].endswith(": pip install 'decoupled'")
    lacks = [line for line in commands("cloud-tpu-client") if "needs" in line]
    assert [line.rpartition(": ")[2] for line in lacks] == [
        "pip install 'decoupled[tpu]'"
    ]


def test_a_function_is_compiled_and_run_on_each_gpu(monkeypatch, capsys, tmp_path):
    """The CPU stands for a GPU."""
    cpu = tf.config.list_logical_devices("CPU")[0]
    found = {"GPU": [cpu, cpu]}
    monkeypatch.setattr(tf.config, "list_logical_devices", found.get)
    compiled = []
    function = tf.function

    def compile_and_run(body, jit_compile):
        made = function(body, jit_compile=jit_compile)

        def run(x):
            result = made(x)
            compiled.append((jit_compile, result.device, result.numpy().tolist()))
            return result

        return run

    monkeypatch.setattr(tf, "function", compile_and_run)
    (tmp_path / "probe.py").write_text(doctor.PROBE)
    runpy.run_path(tmp_path / "probe.py")
    assert "devices" in json.loads(capsys.readouterr().out)
    product = [[3.0, 3.0], [3.0, 3.0]]
    here = "/job:localhost/replica:0/task:0/device:CPU:0"
    assert compiled == [(True, here, product)] * 2


@pytest.mark.parametrize(
    "gpus, devices, visible, said",
    [
        (
            2,
            ["/physical_device:CPU:0"],
            None,
            "2 of NVIDIA here, but TensorFlow sees none",
        ),
        (2, ["/physical_device:CPU:0"], "", ""),
        (2, ["/physical_device:GPU:0"], None, ""),
        (0, ["/physical_device:CPU:0"], None, ""),
    ],
)
def test_gpus_that_tensorflow_does_not_see(
    gpus, devices, visible, said, monkeypatch, capsys
):
    monkeypatch.setattr(doctor, "nvidia_gpus", lambda: gpus)
    found = {"devices": devices, "cuda": "12"}
    monkeypatch.setattr(doctor, "probe_tensorflow", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert doctor.report_core()
    shown = capsys.readouterr().out
    assert ("TensorFlow sees none" in shown) == bool(said) and said in shown
