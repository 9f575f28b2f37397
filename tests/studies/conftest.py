"""A corpus and a vocabulary as a reproduction makes them, in small."""

import json

import pytest

from decoupled.configs import ReproductionRoot
from decoupled.launch import gin_files
from decoupled.studies.data import find_folders
from decoupled.studies.reproduce import GIN_FILES


@pytest.fixture(scope="session")
def root():
    """The settings of the first study, for two seeds."""
    seeds = ["SweepConfig.seeds = (0, 1)"]
    names = [*GIN_FILES, "sweeps/reproduce_first.gin"]
    return gin_files.configure(ReproductionRoot, names, seeds)


@pytest.fixture
def folders(tmp_path, vocabulary):
    """Of a Bible, tags and a treebank; nothing is in the files."""
    return make_folders(tmp_path, vocabulary)


@pytest.fixture(scope="module")
def shared_folders(tmp_path_factory, vocabulary):
    """The same for tests that change nothing there."""
    return make_folders(tmp_path_factory.mktemp("shared"), vocabulary)


def make_folders(tmp_path, vocabulary):
    data = tmp_path / "DATA"
    for name in ("parallel_bible", "xtreme/udpos", "ud"):
        (data / name).mkdir(parents=True)
    (data / "xtreme/udpos/train-en.tsv").write_text("")
    for split in ("dev", "test"):
        (data / f"ud/en_ewt-ud-{split}.conllu").write_text("")
    folders = find_folders(str(tmp_path / "work"), str(data), "runs")
    made = tmp_path / "work/data"
    (made / "vocabulary").mkdir(parents=True)
    (made / "vocabulary/sentencepiece.model").symlink_to(vocabulary.path)
    (made / "corpus").mkdir()
    one = {"sentences": 1000, "characters": 100_000}
    manifest = {
        "splits": {"train": {"en": one, "de": one}, "eval": {"en": one, "de": one}}
    }
    (made / "corpus/manifest.json").write_text(json.dumps(manifest))
    for place in ("corpus/parallel/test/sentences", "sentences/test"):
        (made / place).mkdir(parents=True)
        for language in ("en", "de"):
            (made / place / f"{language}.tsv").write_text("")
    return folders
