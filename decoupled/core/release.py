"""TensorFlow: checks the release and imports it without its log messages.

All modules of the package import `tf` from here, or from `decoupled.core.compat` if
they train. `compat` repairs the parts that training needs and later releases have
removed.
"""

import contextlib
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator

from decoupled.core import endings
from decoupled.core.errors import UserError
from decoupled.core.machine import choose_kernels, nvidia_devices, processor

# The oldest and the newest release with which the tests have passed.
OLDEST, NEWEST = (2, 15), (2, 21)
# A line of TensorFlow's C++ side below a fatal one, and one of absl about such lines.
_LOG_LINE = re.compile(
    rb"([IWE])\d{4} \d\d:\d\d:|[\d-]{10} [\d:.]+: ([IWE]) |"
    rb"WARNING: All log messages before absl"
)
# What TensorFlow logs where nothing is wrong: the first on every machine without a GPU,
# the others in releases with CUDA up to 2.19, the last without TensorRT.
_NO_GPU = b"failed call to cuInit"
_NEVER_WRONG = re.compile(rb"Unable to register cu|Could not find TensorRT")


def check_release(version: str) -> tuple[int, int]:
    """The release of a version: "2.21.0" is (2, 21)."""
    parts = re.match(r"(\d+)\.(\d+)\b", version)
    release = tuple(map(int, parts.groups())) if parts else ()
    if not OLDEST <= release <= NEWEST:
        oldest, newest = (".".join(map(str, numbers)) for numbers in (OLDEST, NEWEST))
        raise UserError(
            f"TensorFlow {version} is installed, which decoupled does not know; "
            f"install one from {oldest} to {newest}: pip install 'tensorflow>={oldest},"
            f"<{NEWEST[0]}.{NEWEST[1] + 1}'"
        )
    return release


@contextlib.contextmanager
def early_lines_as_the_level_says() -> Iterator[None]:
    """Applies TF_CPP_MIN_LOG_LEVEL to the messages during the import of TensorFlow.

    TensorFlow reads this level only when its libraries are loaded. Before that,
    releases from 2.16 on log on every machine that oneDNN is on and that there is no
    GPU, and releases with CUDA log that its libraries are registered twice. They log as
    errors what is no error; only level 0 shows those. Other output to stderr during the
    import appears after the import.
    """
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0")
    hidden_levels = [b"I", b"W", b"E"][: int(level)] if level.isdigit() else []
    # On a processor without AVX the import ends the process after a message that must
    # appear.
    if not hidden_levels or "avx" not in processor().flags:
        yield
        return
    with tempfile.TemporaryFile() as file:
        stderr = os.dup(2)
        sys.stderr.flush()
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            for line in file:
                log_line = _LOG_LINE.match(line)
                level = log_line and (log_line[1] or log_line[2])
                no_error = _NEVER_WRONG.search(line) or (
                    _NO_GPU in line and not nvidia_devices()
                )
                if not (log_line and (level in [None, *hidden_levels] or no_error)):
                    os.write(2, line)


@contextlib.contextmanager
def without_keras_and_jax() -> Iterator[None]:
    """Keeps TensorFlow's import from importing Keras, and JAX for TensorFlow Lite.

    Keras registers classes for Keras models, which this package does not use. If
    scikit-learn and matplotlib are installed, Keras imports them too, and its import
    takes as long as TensorFlow's; that of JAX takes a second. TensorFlow tolerates that
    these imports fail; `tf.keras` imports Keras when it is first used.
    """
    modules = ("keras.src.optimizers", "tf_keras.src.optimizers", "jax")
    # None in sys.modules makes an import fail.
    absent_modules = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent_modules))
    try:
        yield
    finally:
        for name in absent_modules:
            del sys.modules[name]


def import_tensorflow_text() -> types.ModuleType:
    """tensorflow_text without its Keras layers, which take ten times as long."""
    layers = "tensorflow_text.python.keras"
    if "keras" not in sys.modules:
        sys.modules.setdefault(layers, types.ModuleType(layers))
    import tensorflow_text

    return tensorflow_text


choose_kernels()
with early_lines_as_the_level_says(), without_keras_and_jax():
    import tensorflow as tf

    RELEASE = check_release(tf.__version__)
    # CUDA is initialized here instead of later, once a process.
    if tf.config.list_physical_devices("GPU") and endings.in_command():
        # What a command computes with TensorFlow, it computes on the CPU: GPUs are for
        # programs of XLA (--accelerator=gpu), which need their memory. Sessions that
        # have their own settings leave GPUs out there.
        tf.config.set_visible_devices([], "GPU")

# Traces a dataset's function as it is written. AutoGraph would convert its source
# first, which takes 10 to 60 ms a function; no function of this package needs that.
without_autograph = tf.autograph.experimental.do_not_convert

__all__ = [
    "RELEASE",
    "check_release",
    "import_tensorflow_text",
    "tf",
    "without_autograph",
]
