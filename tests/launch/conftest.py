"""Tests of this folder leave gin as it was: without bindings and not locked."""

import gin
import pytest


@pytest.fixture(autouse=True)
def clear():
    yield
    gin.clear_config()
