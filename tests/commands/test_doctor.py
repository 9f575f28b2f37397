"""The doctor explains good and bad installations, with Python's own library alone."""

import re
import signal
import subprocess
import sys
import types

import pytest

from decoupled.commands import doctor
from decoupled.core import accelerators
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
def test_tensorflow_text_of_another_release_is_reported(capsys, text, cure):
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
    problem = "cannot be used (No such file or directory):"
    assert f"{problem} {tmp_path}/none" in out


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


# What probes print. TensorFlow and JAX themselves take seconds.
COMPUTES = """print('{"release": "2.21.0"}')"""
JAX_COMPUTES = """print('{"devices": ["cpu", "cpu"], "error": "", "foreign": []}')"""


@pytest.mark.parametrize(
    "probes",
    [
        (COMPUTES, JAX_COMPUTES),
        pytest.param((doctor.PROBE, doctor.JAX_PROBE), marks=pytest.mark.slow),
    ],
    ids=["stand-ins", "tensorflow and jax"],
)
def test_the_whole_report_ends_with_0_where_the_core_works(monkeypatch, probes):
    if "jax" not in accelerators.jax_packages():
        pytest.skip("needs JAX")
    monkeypatch.setattr(doctor, "PROBE", probes[0])
    monkeypatch.setattr(doctor, "JAX_PROBE", probes[1])
    before = signal.getsignal(signal.SIGPIPE)
    done = decoupled("doctor")
    assert signal.getsignal(signal.SIGPIPE) is before
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
    assert re.search(r"TensorFlow [\d.]+ computes, on the CPU", done.stdout)
    assert re.search("cpu +2 x cpu: compiles and computes", done.stdout)


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
def commands(capsys):
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


@pytest.fixture
def devices(monkeypatch, capsys):
    """Prints what is said of GPUs, TPUs and JAX; returns the lines as words."""

    def report(gpus=0, driver=None, chips=(), holders=(), packages=None, **results):
        monkeypatch.setattr(doctor, "nvidia_gpus", lambda: gpus)
        packages = {"jax": "0.11.2"} if packages is None else packages
        for name, value in {
            "nvidia_driver": driver,
            "tpu_devices": chips,
            "tpu_holders": holders,
            "jax_packages": packages,
            "mistakes": (),
            "stale_lock": "",
        }.items():
            monkeypatch.setattr(accelerators, name, lambda *_, value=value: value)

        def probe(code, kind):
            if isinstance(results[kind], Exception):
                raise results[kind]
            defaults = {"devices": [], "error": "", "foreign": [], "log": []}
            return {**defaults, **results[kind]}

        monkeypatch.setattr(doctor, "probe", probe)
        for name in doctor.TPU_VARIABLES:
            monkeypatch.delenv(name, raising=False)
        doctor.report_accelerators()
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return report


def test_a_machine_without_gpu_and_tpu(devices):
    assert devices(cpu={"devices": ["cpu", "cpu"]})[2:] == [
        "GPU none of NVIDIA",
        "TPU none: no variable and no device",
        "packages jax 0.11.2",
        "cpu 2 x cpu: compiles and computes",
    ]


@pytest.mark.parametrize(
    "driver, fits",
    [("580.65.06", "cuda"), ("535.129.03", "cuda12"), (None, "cuda")],
)
def test_gpus_and_the_extra_that_fits_their_driver(devices, driver, fits):
    h100 = "NVIDIA H100 80GB HBM3, 59.00 GiB"
    lines = devices(gpus=2, driver=driver, gpu={"devices": [h100] * 2})
    release = driver or "of unknown release"
    assert f"GPU 2 of NVIDIA, driver {release}: the extra {fits} fits" in lines
    assert f"gpu 2 x {h100}: compiles and computes" in lines
    lines = devices(gpus=2, driver=driver, packages={})
    assert f"gpu needs JAX: pip install 'decoupled[{fits}]', or in " in lines[-1]


def test_what_keeps_a_gpu_from_computing(devices):
    system = "/usr/lib/libcublas.so.13 (by LD_LIBRARY_PATH: unset it)"
    failed = {"error": "finds no GPU", "foreign": [system], "log": ["E1 cuInit: 100"]}
    assert devices(gpus=1, gpu=failed)[-3:] == [
        "gpu does not work: finds no GPU",
        "E1 cuInit: 100",
        f"used instead of JAX's own: {system}",
    ]
    lines = devices(gpus=1, gpu=RuntimeError("no answer in 180 seconds"))
    assert lines[-1] == "gpu does not work: no answer in 180 seconds"


def test_a_tpu_in_use_is_left_alone(devices):
    holder = "/dev/vfio/0 is used by process 17 of ann: python train.py"
    lines = devices(chips=["/dev/vfio/0"], holders=[holder])
    assert holder in lines
    assert not any(line.startswith("tpu ") for line in lines)
