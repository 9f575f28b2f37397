"""How commands end: exit codes, last lines, Ctrl-C, and an output that is closed."""

import contextlib
import errno
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import pytest

from decoupled.core import endings, files, gfile
from decoupled.core.errors import Interrupted, Terminated, UserError, WorkerLost
from decoupled.core.release import tf
from decoupled.corpora.corpus_writer import TextShards
from tests.processes import run_python

SCRIPT = pathlib.Path(sys.executable).parent / "decoupled"
STARTS = ([sys.executable, "-m", "decoupled"], [str(SCRIPT)])


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """What `end` sets for the rest of a process."""
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGALRM)}
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    monkeypatch.setattr(endings, "_name", "decoupled test")
    monkeypatch.setattr(endings, "_resume_command", "")
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def raises(error):
    def work():
        raise error

    return work


def ending(work, capsys):
    """The exit code and the lines on stderr."""
    with pytest.raises(SystemExit) as stop:
        endings.end(work)
    return stop.value.code or 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "work, code",
    [(lambda: None, 0), (lambda: 1, 1), (lambda: sys.exit(3), 3), (sys.exit, 0)],
)
def test_without_an_error_the_code_is_that_of_the_work(work, code, capsys):
    assert ending(work, capsys) == (code, "")


@pytest.mark.parametrize(
    "error, code, line",
    [
        (UserError("a: is empty;\n   build it"), 2, "error: a: is empty; build it"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/a"), 2,
         "error: runs/a: No space left on device"),
        (OSError(errno.EFBIG, "File too large"), 2, "error: File too large"),
        (PermissionError(13, "Permission denied", b"a\xffb"), 2,
         r"error: a\udcffb: Permission denied"),
        (BrokenPipeError(32, "Broken pipe"), 2, "error: Broken pipe"),
        (MemoryError("Unable to allocate 3 GiB"), 2,
         "error: not enough memory (Unable to allocate 3 GiB); end other programs, use "
         "a larger machine, or give the command less at once"),
        (MemoryError(), 2,
         "error: not enough memory; end other programs, use a larger machine, or give "
         "the command less at once"),
        (tf.errors.ResourceExhaustedError(None, None, "a; No space left on device"), 2,
         "error: a; No space left on device"),
        (tf.errors.NotFoundError(None, None, "gs://b/c: not found"), 2,
         "error: gs://b/c: not found"),
        (WorkerLost("gone"), 75, "error: gone"),
        (Terminated("SIGTERM: saved"), 143, "SIGTERM: saved"),
    ],
)  # fmt: skip
def test_what_the_user_can_mend_ends_in_one_line(error, code, line, capsys):
    assert ending(raises(error), capsys) == (code, f"decoupled test: {line}\n")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        OSError("no number"),
        tf.errors.InvalidArgumentError(None, None, "shapes"),
    ],
)
def test_a_defect_is_raised(error):
    with pytest.raises(type(error)):
        endings.end(raises(error))


@pytest.mark.parametrize(
    "error, message",
    [(KeyboardInterrupt(), "interrupted"), (Interrupted("Ctrl-C: saved"), None)],
)
def test_ctrl_c_says_how_to_go_on_once_there_is_a_run(error, message, capsys):
    assert ending(raises(error), capsys) == (130, "")
    endings.resume_with("decoupled pretrain --model_dir=a")
    assert ending(raises(error), capsys) == (
        130,
        f"decoupled test: {message or error}; go on with: decoupled pretrain "
        "--model_dir=a\n",
    )


@contextlib.contextmanager
def no_room():
    """No file can grow, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write_shards(path):
    shards = TextShards(path, "text")
    shards.write(["a sentence"])
    shards.finish()


def write_array(path):
    import numpy as np

    files.write_arrays(path, {"a": np.ones(3)})


def add(path):
    with gfile.GFile(path, "ab") as handle:
        handle.write(b"x")


def write_folder(path):
    with files.atomic_path(path) as folder:
        os.mkdir(folder)
        files.write_json(f"{folder}/a.json", {})


@pytest.mark.parametrize(
    "write, named",
    [
        (lambda path: files.write_text(path, "x"), "a"),
        (lambda path: files.write_json(path, {}), "a"),
        (write_array, "a"),
        (write_shards, "a/text/text.tmp-"),
        (add, "a"),
        (write_folder, "a/a.json"),
    ],
)
def test_on_a_full_disk_the_file_is_named(write, named, tmp_path):
    with pytest.raises(OSError) as raised, no_room():
        write(str(tmp_path / "a"))
    assert raised.value.filename.startswith(str(tmp_path / named))
    assert raised.value.strerror == "File too large"


# Python's print, and rich's tables.
@pytest.mark.parametrize(
    "start, words, unbuffered",
    [
        (STARTS[1], ["finetune", "--help"], ""),
        (STARTS[0], ["parameters", "--all"], "1"),
    ],
)
def test_an_output_that_takes_nothing_ends_in_one_line(start, words, unbuffered):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*start, *words], stdout=full, stderr=subprocess.PIPE, text=True,
            check=False, timeout=120,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )  # fmt: skip
    name = " ".join(["decoupled", *words[:1]])
    line = f"{name}: error: stdout: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_a_closed_output_is_refused_before_the_work(tmp_path):
    folder = tmp_path / "corpus"
    (tmp_path / "a.txt").write_text("A sentence.\n")
    words = ["build_corpus", f"--input=en={tmp_path}/a.txt", f"--output_dir={folder}"]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *STARTS[0], *words],
        stderr=subprocess.PIPE, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "decoupled: error: stdout: is closed; send it to a file or to /dev/null\n"
    )
    assert not folder.exists()


def test_an_output_in_ascii_shows_any_text():
    code = (
        "from decoupled.core import console, endings\n"
        "endings.end(lambda: console.say('caf\\xe9 \\u0928'))"
    )
    done = run_python(code, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout, done.stderr) == (0, "caf\\xe9 \\u0928\n", "")


# Sends Ctrl-C to its own process when a module is imported.
CTRL_C = """
import os, signal, sys

class Finder:
    def find_spec(name, path=None, target=None):
        if name in os.environ["MOMENT"].split():
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder)
"""


def run_interrupted(command, moment, folder, **options):
    (folder / "sitecustomize.py").write_text(CTRL_C)
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, **options,
        env={**os.environ, "PYTHONPATH": path, "MOMENT": moment},
    )  # fmt: skip


# Before NumPy and absl, and within TensorFlow.
@pytest.mark.parametrize(
    "moment", ["decoupled.core.endings", "tensorflow.python.framework.ops"]
)
def test_ctrl_c_during_the_imports_ends_quietly(moment, tmp_path):
    plan = [*STARTS[0], "plan", "--topology=v3-8", "--gin_file=models/coupled.gin"]
    done = run_interrupted(plan, moment, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_where_ctrl_c_is_ignored_it_stays_so(tmp_path):
    """As under nohup, and for the background jobs of a script."""

    def ignore():
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    words = [*STARTS[0], "parameters", "--all"]
    both = "decoupled.core.endings rich.table"
    done = run_interrupted(words, both, tmp_path, preexec_fn=ignore)
    assert (done.returncode, done.stderr) == (0, "")
    assert "coupled" in done.stdout


def test_a_lock_is_released_if_ctrl_c_comes_in_an_import(tmp_path):
    folder = tmp_path / "a" / "b"
    code = (
        "from decoupled.core import endings, locks\n"
        "def work():\n"
        f"    with locks.hold({str(folder)!r}):\n"
        "        import wave\n"
        "endings.end(work)"
    )
    done = run_interrupted([sys.executable, "-c", code], "wave", tmp_path)
    assert (done.returncode, done.stderr) == (130, "")
    assert not folder.parent.exists()


def test_ctrl_c_in_a_destructor_is_not_lost():
    code = (
        "import os, signal, time\n"
        "from decoupled.core import endings\n"
        "class Thing:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "def work():\n"
        "    Thing()\n"
        "    time.sleep(20)\n"
        "endings.end(work)"
    )
    begin = time.monotonic()
    done = run_python(code)
    assert (done.returncode, done.stderr) == (130, "")
    assert time.monotonic() - begin < 15


def test_a_second_ctrl_c_does_not_disturb_the_ending(capsys):
    class Rude(UserError):
        def __str__(self):
            assert signal.getsignal(signal.SIGINT) is endings._leave_at_once
            return "rude"

    assert ending(raises(Rude()), capsys)[0] == 2
