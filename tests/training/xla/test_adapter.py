"""JAX as the adapter starts it, on virtual CPU devices."""

import os
import subprocess
import sys

import pytest

from decoupled.core import accelerators
from decoupled.core.errors import UserError
from decoupled.training.xla import adapter
from tests.refusals import refusal

pytestmark = pytest.mark.skipif(
    "jax" not in accelerators.jax_packages(), reason="needs JAX"
)
# In a process of its own: JAX's settings are those of the first start.
START = """
import os
from decoupled.training.xla import adapter
print(adapter.try_devices("cpu"), os.environ["TF_CPP_MIN_LOG_LEVEL"])
"""


@pytest.mark.parametrize(
    "level, then",
    [
        # The package's own level for TensorFlow would hide JAX's warnings.
        (None, "1"),
        pytest.param("2", "2", marks=pytest.mark.slow),
    ],
)
def test_devices_compute_and_jax_says_what_is_wrong(level, then):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": level or ""}
    if level is None:
        del environment["TF_CPP_MIN_LOG_LEVEL"]
    done = subprocess.run(
        [sys.executable, "-c", START],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.stderr == ""
    assert done.stdout == f"['cpu', 'cpu'] {then}\n"


@pytest.mark.parametrize(
    "plugin, reason",
    [
        ("jax-cuda12-plugin", "Unable to initialize backend 'gpu': no driver"),
        ("libtpu", "its plugin for CUDA is not installed"),
    ],
)
def test_a_device_that_is_missing(monkeypatch, plugin, reason):
    monkeypatch.setattr(accelerators, "cuda_extra", lambda: "cuda12")
    monkeypatch.setattr(accelerators, "jax_packages", lambda: {plugin: "0.11.2"})

    class Jax:
        __version__ = "0.11.2"

        def devices(self, kind):
            raise RuntimeError(
                f"Unable to initialize backend '{kind}': no driver. More"
            )

    assert refusal(adapter._devices, Jax(), "gpu") == (
        f"--accelerator=gpu: JAX 0.11.2 finds no GPU ({reason}); pip install "
        "'decoupled[cuda12]', and decoupled doctor shows what it finds"
    )


@pytest.mark.parametrize(
    "message, advice",
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying", "recompute_layers"),
        ("INTERNAL: NCCL operation ncclAllReduce failed", "MEM_FRACTION=0.65"),
        ("INVALID_ARGUMENT: another mistake", None),
    ],
)
def test_errors_of_memory_say_what_saves_it(message, advice):
    error = RuntimeError(message)
    explained = adapter.explained(error, "the devices")
    if advice is None:
        assert explained is error
    else:
        assert isinstance(explained, UserError)
        assert advice in str(explained) and message in str(explained)
