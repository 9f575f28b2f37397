"""What JAX reads once in a process: the number of devices, and the cache's folder."""

from importlib.util import find_spec

import pytest

from decoupled.training.xla import adapter


@pytest.fixture(scope="package", autouse=True)
def eight_devices_and_a_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("compiled")
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
        if find_spec("jax"):
            adapter.Client("cpu", [8], print)
        yield
