"""A small corpus and vocabulary, as a reproduction makes them."""

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
    """Folders of a Bible, tags and a treebank; of their files, one of tags has text."""
    return make_folders(tmp_path, vocabulary)


@pytest.fixture(scope="module")
def shared_folders(tmp_path_factory, vocabulary):
    """The same for tests that change nothing there."""
    return make_folders(tmp_path_factory.mktemp("shared"), vocabulary)


def make_folders(tmp_path, vocabulary):
    data_dir = tmp_path / "DATA"
    for name in ("parallel_bible", "xtreme/udpos", "ud"):
        (data_dir / name).mkdir(parents=True)
    (data_dir / "xtreme/udpos/train-en.tsv").write_text("")
    (data_dir / "xtreme/udpos/test-en.tsv").write_text("Go\tVERB\n")
    for split in ("dev", "test"):
        (data_dir / f"ud/en_ewt-ud-{split}.conllu").write_text("")
    folders = find_folders(str(tmp_path / "work"), str(data_dir), "runs")
    data_folder = tmp_path / "work/data"
    (data_folder / "vocabulary").mkdir(parents=True)
    (data_folder / "vocabulary/sentencepiece.model").symlink_to(vocabulary.path)
    (data_folder / "corpus").mkdir()
    size = {"sentences": 1000, "characters": 100_000}
    manifest = {
        "splits": {"train": {"en": size, "de": size}, "eval": {"en": size, "de": size}}
    }
    (data_folder / "corpus/manifest.json").write_text(json.dumps(manifest))
    for place in ("corpus/parallel/test/sentences", "sentences/test"):
        (data_folder / place).mkdir(parents=True)
        for language in ("en", "de"):
            (data_folder / place / f"{language}.tsv").write_text("")
    return folders
