"""Tests whether TensorFlow works here, in a separate process, which may crash.

This module needs only Python, so that it can also explain a broken installation.
"""

import json
import os
import subprocess
import sys
from typing import Any

from decoupled.core.installed import CHECKOUT

SECONDS = 180
# Run by another interpreter: a TensorFlow built for another processor crashes it.
PROBE = """
import json
from decoupled.core.compat import mtf, tf, estimator
import gin, sentencepiece, tensorflow_text
total = tf.linalg.trace(tf.ones([2, 2])).numpy()
assert total == 2.0, total
for gpu in tf.config.list_logical_devices("GPU"):
    with tf.device(gpu.name):
        compiled = tf.function(lambda x: tf.linalg.matmul(x, x) + 1.0, jit_compile=True)
        assert compiled(tf.ones([2, 2])).numpy()[0, 0] == 3.0, gpu.name
print(json.dumps({
    "devices": [d.name for d in tf.config.list_physical_devices()],
    "cuda": tf.sysconfig.get_build_info().get("cuda_version"),
}))
"""


def run() -> dict[str, Any]:
    """Computes with TensorFlow and Mesh-TensorFlow in another process.

    Returns:
      "devices": names of the physical devices. "cuda": the version of CUDA that
      TensorFlow was built for, or None.

    Raises:
      RuntimeError: it failed; the message is its last line, or its exit status.
    """
    paths = [str(CHECKOUT), os.getenv("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no answer in {SECONDS} seconds") from error
    if done.returncode < 0:
        raise RuntimeError(
            f"the interpreter was ended by signal {-done.returncode}; this TensorFlow "
            "may be built for another processor (it needs AVX)"
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(lines[-1].removeprefix("decoupled.core.errors.UserError: "))
    return json.loads(done.stdout.splitlines()[-1])
