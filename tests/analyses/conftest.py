"""Two runs' folders for all tests of this folder."""

import pytest

from tests.analyses.tiny_runs import write_run


@pytest.fixture(scope="session")
def pretrained_dir(tmp_path_factory, vocabulary):
    """A pre-training run of a decoupled model."""
    return write_run(tmp_path_factory.mktemp("runs") / "pretrained", vocabulary)


@pytest.fixture(scope="session")
def coupled_dir(tmp_path_factory, vocabulary):
    """A pre-training run of a coupled model."""
    sizes = {"coupled": True, "output_embedding_size": 6}
    return write_run(tmp_path_factory.mktemp("runs") / "coupled", vocabulary, sizes)
