"""Commands in a process of their own, as users start them."""

import os
import subprocess
import sys


def decoupled(*words, **environment):
    """Runs `decoupled WORDS`; the ended process, its output as text.

    Args:
      environment: variables that it has beside those of the tests.
    """
    return subprocess.run(
        [sys.executable, "-m", "decoupled", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **environment},
    )


def mistake(*words, after="", **environment):
    """The one line on stderr with which a command refuses, with exit code 2.

    Args:
      after: what stdout begins with; nothing stands there where this is empty.
    """
    done = decoupled(*words, **environment)
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stdout.startswith(after) if after else not done.stdout, done.stdout
    [line] = done.stderr.splitlines()
    return line
