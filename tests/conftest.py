"""What all tests share: a quiet TensorFlow, and the folder of real data."""

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


@pytest.fixture(scope="session")
def data_dir() -> str:
    """The folder of real data, DECOUPLED_DATA_DIR; skips where that is unset."""
    folder = os.environ.get("DECOUPLED_DATA_DIR")
    if not folder:
        pytest.skip("DECOUPLED_DATA_DIR is unset: no real data to read")
    return folder
