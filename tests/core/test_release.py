"""Which releases of TensorFlow are supported, and what importing one prints."""

import os
import subprocess
import sys

import pytest

from decoupled.core import release
from decoupled.core.errors import UserError
from decoupled.core.machine import Processor

LOG = b"I0000 00:00:1795373649.251755   21056 port.cc:153] oneDNN is on.\n"
WARNING = b"W0000 00:00:1795373649.251755   21056 port.cc:153] Twice.\n"
NOTICE = b"WARNING: All log messages before absl::InitializeLog() is called are\n"
FATAL = b"F0000 00:00:1795373649.251755   21056 port.cc:153] It ends here.\n"
# The form up to 2.16, and errors where nothing is wrong.
OLD_LOG = b"2026-11-26 16:00:00.123456: I tensorflow/core/util/port.cc:1] oneDNN.\n"
OLD_ERROR = b"2026-11-26 16:00:00.123456: E tensorflow/core/a.cc:1] It is full.\n"
NO_GPU = b"E0000 00:00:1795709234.1 1 cuda_platform.cc:52] failed call to cuInit: 303\n"
OLD_NO_GPU = b"2026-11-26 16:00:00.1: E xla/cuda.cc:2] failed call to cuInit: NO_GPU\n"
TWICE = b"E0000 00:00:1795709234.1 1 cuda_dnn.cc:8] Unable to register cuDNN factory\n"
ERROR = b"E0000 00:00:1795709234.1 1 a.cc:8] It is full.\n"
OTHER = b"module.py:1: FutureWarning: soon\n"


@pytest.mark.parametrize(
    "version, known",
    [
        ("2.15.0", (2, 15)),
        ("2.15.1", (2, 15)),
        ("2.16.0-rc1", (2, 16)),
        ("2.21.0", (2, 21)),
    ],
)
def test_releases_from_the_oldest_to_the_newest_are_known(version, known):
    assert release.check_release(version) == known


@pytest.mark.parametrize(
    "version",
    ["1.15.5", "2.2.0", "2.14.1", "2.22.0", "2.22.0-dev20261101", "3.0.0", "?"],
)
def test_other_releases_are_refused_with_what_to_install(version):
    with pytest.raises(UserError) as raised:
        release.check_release(version)
    assert str(raised.value) == (
        f"TensorFlow {version} is installed, which decoupled does not know; install "
        "one from 2.15 to 2.21: pip install 'tensorflow>=2.15,<2.22'"
    )


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip


def test_a_command_ends_in_one_line_with_a_release_that_is_not_known(tmp_path):
    (tmp_path / "tensorflow.py").write_text("__version__ = '2.22.0'")
    done = run(
        "-m", "decoupled", "plan", "--topology=v3-8", "--gin_file=models/coupled.gin",
        PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("decoupled plan: error: TensorFlow 2.22.0 is installed, ")


@pytest.mark.slow
def test_all_lines_are_shown_to_whoever_sets_the_level_for_that():
    done = run("-c", "import decoupled.core.release", TF_CPP_MIN_LOG_LEVEL="0")
    # Of the instructions that it is not compiled for.
    assert "This TensorFlow binary is optimized" in done.stderr


@pytest.mark.parametrize(
    "level, shown",
    [
        ("0", [NOTICE, LOG, WARNING, FATAL, OTHER]),
        ("1", [WARNING, FATAL, OTHER]),
        ("3", [FATAL, OTHER]),
        ("none", [NOTICE, LOG, WARNING, FATAL, OTHER]),
    ],
)
def test_lines_below_the_level_are_left_out(level, shown, monkeypatch, capfdbinary):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    with release.early_lines_as_the_level_says():
        os.write(2, NOTICE + LOG + WARNING + FATAL + OTHER)
    assert capfdbinary.readouterr().err == b"".join(shown)


@pytest.mark.parametrize(
    "devices, level, shown",
    [
        (0, "2", [ERROR, OLD_ERROR]),
        (1, "2", [NO_GPU, OLD_NO_GPU, ERROR, OLD_ERROR]),
        (1, "3", []),
        (0, "0", [NO_GPU, OLD_NO_GPU, TWICE, ERROR, OLD_ERROR, OLD_LOG]),
    ],
)
def test_errors_that_are_none_appear_at_level_0_only(
    devices, level, shown, monkeypatch, capfdbinary
):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", level)
    monkeypatch.setattr(release, "nvidia_devices", lambda: devices)
    with release.early_lines_as_the_level_says():
        os.write(2, NO_GPU + OLD_NO_GPU + TWICE + ERROR + OLD_ERROR + OLD_LOG)
    assert capfdbinary.readouterr().err == b"".join(shown)


@pytest.mark.slow
def test_the_start_of_tensorflow_prints_nothing_at_level_2():
    """As tests/core/test_compat.py finds at the level of the package."""
    code = (
        "from decoupled.core.release import tf\n"
        "assert tf.constant(1).numpy() == 1 and not tf.config.list_logical_devices('X')"
    )
    done = run("-c", code, TF_CPP_MIN_LOG_LEVEL="2")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("in_command", [True, False])
def test_only_a_command_hides_gpus_from_tensorflow(in_command, tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import types\n"
        "__version__ = '2.21.0'\n"
        "def list_physical_devices(kind): return [kind]\n"
        "def set_visible_devices(devices, kind): print('hides', kind, devices)\n"
        "config = types.SimpleNamespace(**globals())\n"
        "autograph = types.SimpleNamespace(experimental=config)\n"
        "config.do_not_convert = None\n"
    )
    name = "from decoupled.core import endings; endings.call_command('decoupled plan')"
    code = (name if in_command else "") + "\nimport decoupled.core.release"
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = run("-c", code, PYTHONPATH=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("hides GPU []\n" if in_command else "")


def test_what_failed_is_still_reported(monkeypatch, capfdbinary):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    with pytest.raises(ImportError), release.early_lines_as_the_level_says():
        os.write(2, LOG + OTHER)
        raise ImportError
    os.write(2, LOG)
    assert capfdbinary.readouterr().err == OTHER + LOG


def test_where_the_process_may_be_ended_its_last_words_are_seen(
    monkeypatch, capfdbinary
):
    monkeypatch.setattr(release, "processor", lambda: Processor("", "", frozenset()))
    with release.early_lines_as_the_level_says():
        os.write(2, LOG)
        assert capfdbinary.readouterr().err == LOG
