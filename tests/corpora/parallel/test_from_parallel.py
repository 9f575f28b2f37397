"""Parallel text becomes a corpus; groups are held out in all languages together."""

import dataclasses
import json
import os

import pytest

from decoupled.configs.corpora import CorpusSettings
from decoupled.core.errors import UserError
from decoupled.corpora import corpus_writer
from decoupled.corpora.build import build
from decoupled.corpora.corpus import Corpus
from decoupled.corpora.parallel.parallel_text import group_of, split_of
from decoupled.xtreme.parallel_sentences import read_tatoeba
from tests.corpora.builds import killed_at, tree
from tests.corpora.parallel.test_parallel_text import SETTINGS

LANGUAGES = ("en", "ti", "yo", "zh-Hant")


def make(source, folder, languages=(), **changes):
    settings = dataclasses.replace(SETTINGS, **changes)
    options = CorpusSettings(parallel=settings)
    return build(source, [], str(folder), options, languages)


def bible():
    """id -> number of a verse: 3 verses in 10 chapters of every eleventh book."""
    ids = [
        f"{book:02d}{chapter:03d}{verse:03d}"
        for book in range(1, 67, 11)
        for chapter in range(1, 11)
        for verse in range(1, 4)
    ]
    return {identifier: number for number, identifier in enumerate(ids)}


@pytest.fixture
def bibles(tmp_path):
    """Small Bibles in languages that no test data have."""
    folder = tmp_path / "bibles"
    folder.mkdir()
    for language in LANGUAGES:
        lines = [f"{name}\t{language} {n}.\n" for name, n in bible().items()]
        (folder / f"{language}.tsv").write_text("".join(lines))
    return folder


def replace_line(path, number, line):
    lines = path.read_text().splitlines(keepends=True)
    lines[number - 1 : number] = [line]
    path.write_text("".join(lines))


def split_of_verse(identifier):
    return split_of(group_of(identifier, None, ""), SETTINGS)


def test_chapters_are_documents_and_held_out_together(bibles, tmp_path, capsys):
    assert make(f"aligned:{bibles}", tmp_path / "c")
    built = Corpus(str(tmp_path / "c"))
    expected = {"train": {}, "eval": {}}
    for name, number in bible().items():
        split = "train" if split_of_verse(name) == "train" else "eval"
        expected[split].setdefault(name[:5], []).append(number)
    assert expected["eval"]
    for split, chapters in expected.items():
        for language in LANGUAGES:
            assert list(built.documents(split, language)) == [
                [f"{language} {number}." for number in chapter]
                for chapter in chapters.values()
            ]
    printed = " ".join(capsys.readouterr().out.split())
    assert "pairs with English, dev: 10 ti, 10 yo, 10 zh-Hant" in printed


def test_pairs_are_held_out_translations(bibles, tmp_path):
    make(f"aligned:{bibles}", tmp_path / "c", max_pairs=7)
    sides = set()
    for split in ("dev", "test"):
        for language in LANGUAGES[1:]:
            read = read_tatoeba(str(tmp_path / "c/parallel" / split), language)
            assert len(read.sources) == 7
            numbers = [text.removeprefix(f"{language} ") for text in read.sources]
            result = [read.candidates[i].removeprefix("en ") for i in read.gold]
            assert numbers == result
            sides.add((split, *numbers))
        rows = (tmp_path / f"c/parallel/{split}/sentences/yo.tsv").read_text()
        assert rows == "".join(
            f"{name}\tyo {n}.\n"
            for name, n in bible().items()
            if split_of_verse(name) == split
        )
    # Languages with the same ids have the same pairs.
    assert len(sides) == 2


def test_without_english_there_are_sentences_with_ids(bibles, tmp_path, capsys):
    (bibles / "en.tsv").unlink()
    make(f"aligned:{bibles}", tmp_path / "c")
    assert "no pairs: these need held-out text of en" in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path / "c/parallel/dev")) == ["sentences"]


def test_verses_may_be_missing_or_without_words(bibles, tmp_path, capsys):
    held_out = [name for name in bible() if split_of_verse(name) == "test"]
    numbers = bible()
    path = bibles / "yo.tsv"
    replace_line(path, numbers[held_out[0]] + 1, f"{held_out[0]}\t\n")
    replace_line(path, numbers[held_out[1]] + 1, f"{held_out[1]}\t — \n")
    replace_line(path, numbers[held_out[2]] + 1, "")
    make(f"aligned:{bibles}", tmp_path / "c", max_pairs=1000)
    place = tmp_path / "c/parallel/test/tatoeba"
    expected = [f"en {numbers[name]}." for name in held_out]
    assert (place / "yo-en.en").read_text().splitlines() == expected[3:]
    assert (place / "ti-en.en").read_text().splitlines() == expected
    assert "left out: 2 (sentence without letters)\n" in capsys.readouterr().out
    manifest = Corpus(str(tmp_path / "c")).manifest
    assert manifest["dropped"] == {"sentence without letters": 2}
    assert manifest["pairs"]["test"]["yo"] == len(expected) - 3


# As it is, and with full-width digits, which a vocabulary does not distinguish.
@pytest.mark.parametrize("first_digit", ["0", "\uff10"])
def test_repeated_sentences_are_in_no_file_of_parallel(bibles, tmp_path, first_digit):
    """Of a language alone: in the others too, as their translations were seen."""
    held_out = [name for name in bible() if split_of_verse(name) == "test"]
    trained = next(name for name in bible() if split_of_verse(name) == "train")
    numbers = bible()
    digits = {ord("0") + digit: ord(first_digit) + digit for digit in range(10)}
    yo = f"yo {numbers[trained]}".translate(digits)
    replace_line(bibles / "yo.tsv", numbers[held_out[0]] + 1, f"{held_out[0]}\t{yo}.\n")
    replace_line(
        bibles / "ti.tsv",
        numbers[held_out[2]] + 1,
        f"{held_out[2]}\tti {numbers[held_out[1]]}.\n",
    )
    make(f"aligned:{bibles}", tmp_path / "c", max_pairs=99)
    expected = [f"{numbers[name]}." for name in [held_out[1], *held_out[3:]]]
    for language in LANGUAGES[1:]:
        read = tmp_path / f"c/parallel/test/tatoeba/{language}-en.{language}"
        assert [line.split()[1] for line in read.read_text().splitlines()] == expected
        rows = (tmp_path / f"c/parallel/test/sentences/{language}.tsv").read_text()
        assert [row.split()[-1] for row in rows.splitlines()] == expected
    dropped = Corpus(str(tmp_path / "c")).manifest["dropped"]
    assert sum(dropped.values()) == 2


@pytest.mark.parametrize(
    "number, line, message",
    [
        (2, "01001001\tAgain.\n", r"ti\.tsv:2: the id '01001001' is also in .*tsv:1"),
        (9, "01001009\tAgain.\n", r"ti\.tsv:9: '01001' begins again with the id '0100"),
        (5, "no tab\n", r"ti\.tsv:5: not id, tab, text"),
        (5, "verse\tA.\n", r"ti\.tsv:5: the id 'verse' is no BBCCCVVV"),
    ],
)
def test_a_bad_line_ends_the_build_and_nothing_of_it_is_left(
    bibles, tmp_path, number, line, message
):
    replace_line(bibles / "ti.tsv", number, line)
    with pytest.raises(UserError, match=message):
        make(f"aligned:{bibles}", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_ids_that_differ_between_languages_are_refused(bibles, tmp_path):
    rows = (bibles / "ti.tsv").read_text().splitlines(keepends=True)
    (bibles / "ti.tsv").write_text("".join(f"T.{row[:5]}.{row[5:]}" for row in rows))
    with pytest.raises(UserError, match="ti: shares no id with en in .* has 'T"):
        make(f"aligned:{bibles}", tmp_path / "c")
    assert not (tmp_path / "c/manifest.json").exists()


def test_text_without_a_training_share_or_any_text_is_refused(tmp_path):
    (tmp_path / "en.tsv").write_text("")
    with pytest.raises(UserError, match=r"en\.tsv: no text of en"):
        make(f"aligned:{tmp_path}", tmp_path / "c")
    assert not (tmp_path / "c").exists()
    held_out = next(f"b{i}" for i in range(99) if split_of(f"b{i}", SETTINGS) == "dev")
    (tmp_path / "en.tsv").write_text(f"{held_out}.1\tA.\n")
    with pytest.raises(UserError, match="all text of en is held out; the ids may"):
        make(f"aligned:{tmp_path}", tmp_path / "c")


def test_killed_builds_look_unfinished_and_begin_again(bibles, tmp_path):
    source, folder = f"aligned:{bibles}", tmp_path / "c"
    make(source, tmp_path / "whole")
    for name in ("write_further_files", "write_manifest"):
        with killed_at(corpus_writer, name):
            make(source, folder)
        assert corpus_writer.is_unfinished(str(folder))
        with pytest.raises(UserError, match="no corpus here"):
            Corpus(str(folder))
    assert make(source, folder)
    assert not make(source, folder)
    assert tree(folder) == tree(tmp_path / "whole")


def test_languages_are_chosen(bibles, tmp_path):
    source = f"aligned:{bibles}"
    make(source, tmp_path / "c", languages=["yo"])
    assert Corpus(str(tmp_path / "c")).languages("train") == ["en", "yo"]
    with pytest.raises(UserError, match="has no sw; it has en, ti, yo, zh-Hant"):
        make(source, tmp_path / "other", languages=["sw"])


def test_a_corpus_of_an_earlier_version_is_reused(bibles, tmp_path):
    """It chose translations of a database, and told titles and licences."""
    make(f"aligned:{bibles}", tmp_path / "c")
    path = tmp_path / "c/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["inputs"]["settings"]["translations"] = None
    for language, text in manifest["languages"].items():
        text |= {"title": f"{language}.tsv", "licence": ""}
    path.write_text(json.dumps(manifest))
    assert not make(f"aligned:{bibles}", tmp_path / "c")
