"""One vocabulary and two runs' folders for all tests of this folder."""

import pytest

from decoupled.data.vocabulary import Vocabulary
from tests.analyses.tiny_runs import write_run
from tests.exports.models import train_sentencepiece


@pytest.fixture(scope="session")
def vocabulary(tmp_path_factory):
    """A tiny vocabulary."""
    path = str(tmp_path_factory.mktemp("vocabulary") / "sentencepiece.model")
    train_sentencepiece(path)
    return Vocabulary(path)


@pytest.fixture(scope="session")
def pretrained_dir(tmp_path_factory, vocabulary):
    """A pre-training run of a decoupled model."""
    return write_run(tmp_path_factory.mktemp("runs") / "pretrained", vocabulary)


@pytest.fixture(scope="session")
def coupled_dir(tmp_path_factory, vocabulary):
    """A pre-training run of a coupled model."""
    sizes = {"coupled": True, "output_embedding_size": 6}
    return write_run(tmp_path_factory.mktemp("runs") / "coupled", vocabulary, sizes)
