"""The command that trains a vocabulary."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from decoupled.configs import SamplingConfig, VocabularyConfig
from decoupled.configs.corpora import VocabularySettings
from decoupled.core.errors import UserError
from decoupled.corpora.corpus_writer import write_corpus
from decoupled.data.vocabulary import open_vocabulary
from decoupled.data.vocabulary_build import build_vocabulary
from tests.data.small_corpus import make_vocabulary

# They are drawn in tests/data/test_fertility.py.
pytestmark = pytest.mark.usefixtures("empty_pictures")
WORDS = "one two three four five six seven eight nine ten eleven twelve".split()
FILES = ["fertility.png", "fertility.svg", "sentencepiece.model", "vocabulary.json"]
SWAHILI = "moja mbili tatu nne tano sita saba nane tisa kumi".split()


def settings(vocab_size=45, **changes):
    config = VocabularyConfig(vocab_size, 1.0, False, 1000, 10**6, 16)
    values = {
        "vocabulary": config,
        "sampling": SamplingConfig(),
        "seed": 0,
        "report_sentences": 100,
    }
    return VocabularySettings(**{**values, **changes})


def make_corpus(folder, *swahili):
    """A corpus folder: 100 English and 20 Swahili sentences, English has eval text.

    `swahili`: some of the 20.
    """
    chosen = [("train", [sentence]) for sentence in swahili]

    def documents(words, count):
        for i in range(count):
            yield "train", [f"{words[i % len(words)]} {words[i // 7 % len(words)]}"]

    write_corpus(
        folder,
        source="numbers",
        inputs={},
        languages=[
            ("en", [*documents(WORDS, 100), ("eval", ["one two three!"])]),
            ("sw", [*documents(SWAHILI, 20 - len(swahili)), *chosen]),
        ],
        dropped={},
        contents={},
        tasks={},
    )
    return folder


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_corpus(str(tmp_path_factory.mktemp("made") / "corpus"))


@pytest.fixture(scope="module")
def built(corpus, tmp_path_factory):
    """The folder of a vocabulary without pictures."""
    folder = tmp_path_factory.mktemp("built") / "v"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        assert build_vocabulary(corpus, str(folder), settings())
    return folder


@pytest.fixture
def folder(built, tmp_path):
    """The same, to go on with."""
    return shutil.copytree(built, tmp_path / "v")


def test_trains_and_reports(corpus, built, tmp_path, capfd):
    """The same corpus gives the same files."""
    folder = str(tmp_path / "v")
    assert build_vocabulary(corpus, folder, settings())
    assert sorted(os.listdir(folder)) == FILES
    vocabulary = open_vocabulary(os.path.join(folder, "sentencepiece.model"))
    report = json.loads((tmp_path / "v/vocabulary.json").read_text())
    assert report["vocab_size"] == vocabulary.size == 45
    assert report["fingerprint"] == vocabulary.fingerprint
    assert report["inputs"]["settings"]["sampling"]["alpha"] == 0.5
    english = report["languages"]["en"]
    tokens = len(vocabulary.encode("one two three!"))
    assert english == {
        "split": "eval",
        "sentences": 1,
        "tokens": tokens,
        "tokens_per_word": pytest.approx(tokens / 3, abs=1e-4),
        "tokens_per_character": pytest.approx(tokens / 14, abs=1e-4),
        # "!" is not in the training text.
        "unknown_rate": pytest.approx(1 / tokens, abs=1e-6),
    }
    assert report["languages"]["sw"]["split"] == "train"
    assert report["languages"]["sw"]["sentences"] == 20
    assert report["languages"]["sw"]["unknown_rate"] == 0
    printed, errors = capfd.readouterr()
    assert "45 pieces" in printed and "mean" in printed
    assert errors == ""
    for name in FILES[2:]:
        assert (tmp_path / "v" / name).read_bytes() == (built / name).read_bytes()


@pytest.mark.parametrize("left", [[], ["building_vocabulary.txt"]])
def test_a_complete_vocabulary_is_reused(corpus, folder, capsys, left):
    """Also after a kill behind the report."""
    for name in left:
        (folder / name).write_text("not complete")
    assert not build_vocabulary(corpus, str(folder), settings())
    assert f"{folder}: complete already, reused" in capsys.readouterr().out
    assert sorted(os.listdir(folder)) == FILES[2:]


def test_a_killed_build_is_done_again(corpus, folder, monkeypatch, capsys):
    """Here without matplotlib: then there is no plot."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (folder / "vocabulary.json").unlink()
    (folder / "building_vocabulary.txt").write_text("not complete")
    (folder / "sentencepiece.model").write_bytes(b"half")
    (folder / "sentencepiece.model.tmp-01234567").write_bytes(b"half")
    assert build_vocabulary(corpus, str(folder), settings())
    assert sorted(os.listdir(folder)) == FILES[2:]
    assert "no plots: matplotlib is not installed" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["sentencepiece.model", "fertility.png", "wordpiece.json"]
)
def test_a_file_of_somebody_else_is_refused_and_kept(corpus, tmp_path, name):
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / name).write_bytes(b"not ours")
    with pytest.raises(UserError, match=f"v/{name}: no build_vocabulary .* another"):
        build_vocabulary(corpus, str(tmp_path / "v"), settings())
    assert os.listdir(tmp_path / "v") == [name]
    assert (tmp_path / "v" / name).read_bytes() == b"not ours"


def test_a_failure_in_a_folder_with_other_files_leaves_them_alone(corpus, tmp_path):
    (tmp_path / "v").mkdir()
    (tmp_path / "v/notes.txt").write_text("mine")
    with pytest.raises(UserError, match="vocab_size 5000"):
        build_vocabulary(corpus, str(tmp_path / "v"), settings(5000))
    assert os.listdir(tmp_path / "v") == ["notes.txt"]


def test_the_sample_is_shown_and_reported(tmp_path, capsys):
    corpus = make_corpus(str(tmp_path / "c"), " ".join(WORDS * 50), "one ▅ two")
    weighted = SamplingConfig(0.5, {"sw": 0.5})
    build_vocabulary(corpus, str(tmp_path / "v"), settings(sampling=weighted))
    printed = capsys.readouterr().out
    assert "120 sentences in 2 languages, alpha 0.5" in printed
    assert "MiB of memory and 1 min on two cores" in printed
    assert "trained in" in printed
    sample = json.loads((tmp_path / "v/vocabulary.json").read_text())["sample"]
    # In each of the three epochs.
    assert "3 long sentences were cut; all parts were used" in printed
    assert '3 sentences held "▅"' in printed
    assert (sample["lines"], sample["long_sentences_cut"]) == (123, 3)
    assert sample["sentences_with_reserved_character"] == 3
    assert sample["languages"]["sw"] == {
        "sentences": 20,
        "share": pytest.approx(1 / 6, abs=1e-9),
        "drawn": 0.5,
        "epochs": 3.0,
    }


def test_a_sample_of_few_bytes_for_a_vocabulary_with_bytes(corpus, tmp_path, capsys):
    config = VocabularyConfig(300, 1.0, True, 1000, 900, 16)
    build_vocabulary(corpus, str(tmp_path / "v"), settings(vocabulary=config))
    report = json.loads((tmp_path / "v/vocabulary.json").read_text())
    assert 700 < report["sample"]["bytes"] < 900
    assert "single bytes" in capsys.readouterr().out
    # "!" of the eval text is one byte.
    english = report["languages"]["en"]
    assert english["byte_rate"] == pytest.approx(1 / english["tokens"], abs=1e-6)
    assert english["unknown_rate"] == 0


def test_a_machine_without_the_memory_is_reported_before_anything_is_made(
    corpus, tmp_path, monkeypatch
):
    module = "decoupled.data.vocabulary_build.available_memory"
    monkeypatch.setattr(module, lambda: 1 << 20)
    with pytest.raises(UserError, match="0 sentences would fit: lower it, or max_byt"):
        build_vocabulary(corpus, str(tmp_path / "v"), settings())
    assert not (tmp_path / "v").exists()


KILLED = """
import sys
from decoupled.data import vocabulary_build
from tests.data.test_vocabulary_build import settings

{patch}
vocabulary_build.build_vocabulary(sys.argv[1], sys.argv[2], settings())
"""
KILLS = {
    "while it reads": "from decoupled.corpora.corpus import Corpus\n"
    "Corpus.sentences = lambda *_: iter(kill, None)",
    "before the report": "vocabulary_build.files.write_json = kill",
}


@pytest.mark.parametrize("patch", KILLS.values(), ids=KILLS.keys())
def test_a_run_that_is_killed_leaves_nothing_that_looks_complete(
    corpus, tmp_path, patch
):
    kill = "import os\ndef kill(*_): os.kill(os.getpid(), 9)\n"
    code = KILLED.format(patch=kill + patch)
    folder = str(tmp_path / "v")
    killed = subprocess.run(
        [sys.executable, "-c", code, corpus, folder],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
    )
    assert killed.returncode == -9, killed.stderr.decode()
    assert "vocabulary.json" not in os.listdir(folder)
    assert build_vocabulary(corpus, folder, settings())
    assert sorted(os.listdir(folder)) == FILES


def test_a_vocabulary_of_other_inputs_is_refused(corpus, folder):
    with pytest.raises(UserError, match=r"settings\.vocabulary\.vocab_size: 45 != 46"):
        build_vocabulary(corpus, str(folder), settings(46))


def test_another_model_beside_the_report_is_refused(corpus, folder):
    make_vocabulary(folder / "sentencepiece.model")
    with pytest.raises(UserError, match="sentencepiece.model is not the one of"):
        build_vocabulary(corpus, str(folder), settings())


def test_a_changed_corpus_leaves_nothing(corpus, tmp_path):
    changed = shutil.copytree(corpus, tmp_path / "corpus")
    path = changed / "text/train/sw/text-00000-of-00001.txt"
    path.write_text(path.read_text().replace("moja", "mojo"))
    with pytest.raises(UserError, match="changed since manifest.json was written"):
        build_vocabulary(str(changed), str(tmp_path / "v"), settings())
    assert not (tmp_path / "v").exists()


def test_impossible_settings():
    with pytest.raises(UserError, match="build_vocabulary.report_sentences"):
        settings(report_sentences=0)
