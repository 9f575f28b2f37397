"""Commands as their users call them: words in; an exit code and what is printed out."""

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
from unittest import mock

# Defines flags that must stay when those of a command are removed.
import absl.app  # noqa: F401
from absl import logging as absl_logging
from absl.testing import flagsaver

from decoupled import __main__ as entry


def decoupled(*words):
    """Runs `decoupled WORDS` in this process; returns exit code and output as text.

    It saves the start of a process, and seconds where the command loads TensorFlow.
    It restores flags, levels of logging and signals: with SIGPIPE as `doctor` sets it,
    a write to a process that has ended would kill the tests. What the shell sees of a
    process is tested in tests/test_main.py and tests/launch/test_start.py.
    """
    argv = ["decoupled", *map(str, words)]
    out, err = io.StringIO(), io.StringIO()
    flags = flagsaver.save_flag_values()
    level, tensorflow = absl_logging.get_verbosity(), logging.getLogger("tensorflow")
    tensorflow_level = tensorflow.level
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        with (
            mock.patch("sys.argv", argv),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            entry.main()
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        flagsaver.restore_flag_values(flags)
        absl_logging.set_verbosity(level)
        tensorflow.setLevel(tensorflow_level)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
    return subprocess.CompletedProcess(argv, code, out.getvalue(), err.getvalue())


def in_process_of_its_own(*words, **environment):
    """Runs `decoupled WORDS` in a new process, for tests of processes.

    Args:
      environment: further variables, or changed ones.
    """
    return subprocess.run(
        [sys.executable, "-m", "decoupled", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **environment},
    )


def mistake(*words, output_start=""):
    """The one line on stderr with which a command refuses, with exit code 2.

    Args:
      output_start: what stdout begins with; where this is empty, stdout must be, too.
    """
    process = decoupled(*words)
    assert process.returncode == 2, process.stderr[-2000:]
    output = process.stdout
    assert output.startswith(output_start) if output_start else not output, output
    lines = process.stderr.splitlines()
    # Tests change a flag of a command by giving it once more.
    [line] = [line for line in lines if not line.endswith("; only the last counts")]
    return line
