"""What the fork server of a sweep imports once, so that its jobs need not.

Python's fork server imports this module (`decoupled.studies.runner`), which imports
TensorFlow and the package's larger modules. Elsewhere it does nothing.

A running TensorFlow does not survive a fork, because of its threads and the locks that
they hold. A fork is safe here: these threads start with the first session, eager
operation or dataset, but not when TensorFlow is imported (observed with 2.15 and 2.21).
OpenBLAS, which NumPy and SciPy use, starts threads when it is loaded. It ends them
before each fork by its own handler, and parent and child start them again when they
multiply. So this process is forked once without a job, and its threads are counted. If
one is left, jobs start Python anew (`CAN_FORK`). They also do so where there is a GPU:
the import may initialize CUDA, which no fork can use.
"""

import contextlib
import gc
import importlib
import os
import signal
import sys
import time

from decoupled.core.machine import nvidia_devices

_MODULES = (
    "decoupled.core.compat",
    "decoupled.launch.start",
    "decoupled.commands.analyze",
    "decoupled.commands.finetune",
    "decoupled.commands.pretrain",
    "decoupled.commands.retrieve",
    "decoupled.runs.finetuning",
    "decoupled.runs.pretraining",
    "decoupled.tasks.presets",
    "decoupled.analyses.models",
    # Imported within the functions that draw.
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
)
_THREADS = "/proc/self/task"
# A joined thread stays in /proc for a moment.
_SECONDS_TO_END = 2.0
# What a terminal or a service manager sends to all processes of a sweep. The server
# ends with the sweep.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _prepare() -> bool:
    """Imports everything; returns whether this process can fork."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for name in _MODULES:
        # A job that needs a missing module reports it.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    # The garbage collector would write to every object, and so copy all memory per
    # fork.
    gc.freeze()
    return _is_forkable()


def _is_forkable():
    return not nvidia_devices() and _is_single_thread()


def _is_single_thread():
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    deadline = time.monotonic() + _SECONDS_TO_END
    while len(os.listdir(_THREADS)) > 1:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# The server runs `python -c "from multiprocessing.forkserver import main; ..."`.
_IS_SERVER = sys.argv[:1] == ["-c"] and "multiprocessing.forkserver" in sys.modules
CAN_FORK = _IS_SERVER and _prepare()
