"""What a reproduction finds in the folder that a user gives, and what it makes."""

import importlib.util
import json
import os
import sys

import pytest

from decoupled.core.errors import UserError
from decoupled.reports import reproduction_data
from decoupled.reports.reproduction_data import find_folders, make_edges
from tests.reports.fake_reproduction import write_json

CONLLU = """# text = The cat sleeps
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tcat\tcat\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsleeps\tsleep\tVERB\t_\t_\t0\troot\t_\t_

"""


@pytest.fixture
def data(tmp_path):
    """A folder with some of everything, and what must be passed over."""
    for name in (
        "wikipedia/enwiki-pages-articles.xml.bz2",
        "wikipedia/swwiki-1.xml",
        "wikipedia/readme.txt",
        "ud/de_gsd-ud-dev.conllu",
        "ud/en_ewt-ud-test.conllu",
        "ud/en_ewt-ud-dev.conllu",
        "ud/en_aaa-ud-test.conllu",
        "xtreme/udpos/train-en.tsv",
        "tatoeba_parallel/de-en.de",
        "word_similarity/men.tsv",
    ):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(CONLLU if name.endswith("conllu") else "")
    return tmp_path / "data"


def test_all_that_is_there(data):
    folders = find_folders("w", 1.0, str(data), None, None)
    assert folders.dumps == [
        ("en", f"{data}/wikipedia/enwiki-pages-articles.xml.bz2"),
        ("sw", f"{data}/wikipedia/swwiki-1.xml"),
    ]
    assert folders.text != folders.corpus
    # Of the first English treebank with two files: without train, dev comes first.
    assert folders.treebank == [
        f"{data}/ud/en_ewt-ud-dev.conllu",
        f"{data}/ud/en_ewt-ud-test.conllu",
    ]
    assert folders.xtreme == f"{data}/xtreme"
    assert folders.pairs == f"{data}/tatoeba_parallel"
    assert folders.words == f"{data}/word_similarity"


def test_nothing_is_given():
    folders = find_folders("w", 2.5, None, None, None)
    assert folders.text == folders.corpus and folders.pairs == "w/data/corpus/parallel"
    assert folders.runs == "w/runs_2.5"
    assert (folders.words, folders.xtreme, folders.treebank) == (None, None, [])


def test_other_folders_of_xtreme_are_no_task_here(data):
    os.rename(data / "xtreme" / "udpos", data / "xtreme" / "xnli")
    assert find_folders("w", 1.0, str(data), None, None).xtreme is None


@pytest.mark.parametrize("name", ["data_dir", "tatoeba_dir", "word_similarity_dir"])
def test_a_folder_that_is_not_there_is_named(name):
    given = dict.fromkeys(("data_dir", "tatoeba_dir", "word_similarity_dir"))
    with pytest.raises(UserError, match=f"--{name}: no folder /nowhere"):
        find_folders("w", 1.0, **{**given, name: "/nowhere"})


def test_files_for_probing(data, tmp_path):
    folders = find_folders(f"{tmp_path}/w", 1.0, str(data), None, None)
    make_edges(folders)
    made = tmp_path / "w" / "data" / "edges"
    assert sorted(str(path.relative_to(made)) for path in made.rglob("*.jsonl")) == [
        *(f"dependencies/{split}.jsonl" for split in ("dev", "train")),
        *(f"pos/{split}.jsonl" for split in ("dev", "train")),
    ]
    example = json.loads((made / "pos" / "train.jsonl").read_text())
    assert [target["label"] for target in example["targets"]] == ["DET", "NOUN", "VERB"]
    (made / "pos" / "dev.jsonl").write_text("kept")
    make_edges(folders)
    assert (made / "pos" / "dev.jsonl").read_text() == "kept"


def test_no_files_for_probing_without_a_treebank(tmp_path):
    make_edges(find_folders(f"{tmp_path}/w", 1.0, None, None, None))
    assert not (tmp_path / "w").exists()


def test_dumps_are_text_beside_the_messages(tmp_path, monkeypatch):
    dumps = tmp_path / "data" / "wikipedia"
    dumps.mkdir(parents=True)
    (dumps / "swwiki-1.xml").write_text("")
    folders = find_folders(f"{tmp_path}/w", 1.0, f"{tmp_path}/data", None, None)
    manifest = {"splits": {"train": {"de": {"files": [{"name": "text/de.txt"}]}}}}
    write_json(tmp_path / "w/data/corpus/manifest.json", manifest)
    steps = {}
    monkeypatch.setattr(
        reproduction_data,
        "run_step",
        lambda _, step: steps.update({step.name: step.command}),
    )
    reproduction_data.make_data(folders, ["en", "de"])
    assert list(steps) == ["corpus", "text", "vocabulary", "records"]
    assert "--languages=en,de" in steps["corpus"]
    assert f"--input=de={folders.corpus}/text/de.txt" in steps["text"]
    assert f"--input=sw={dumps}/swwiki-1.xml" in steps["text"]
    assert f"--corpus_dir={folders.text}" in steps["records"]
    for command in steps.values():
        assert importlib.util.find_spec(f"decoupled.commands.{command[1]}")


def test_what_dumps_need_is_told_before_the_first_job(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencex", None)
    folders = find_folders("w", 1.0, None, None, None)
    reproduction_data.check_installed(folders)
    with pytest.raises(UserError, match=r"sentencex is not .*'decoupled\[data\]'"):
        reproduction_data.check_installed(
            folders._replace(dumps=[("en", "enwiki.xml")])
        )


def test_without_matplotlib_that_is_told_before_the_first_job(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    reproduction_data.check_installed(find_folders("w", 1.0, None, None, None))
    assert "no plots: matplotlib is not installed" in capsys.readouterr().out
