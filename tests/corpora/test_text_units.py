"""Files become documents, whole or in parts, and the text of a unit."""

import collections
import dataclasses
import hashlib
import json
import os

import numpy as np
import pytest

from decoupled.configs.corpora import CorpusSettings
from decoupled.corpora import sentences, text_units
from decoupled.corpora.corpus import read_documents
from decoupled.corpora.text_units import TextJob
from decoupled.corpora.wikipedia import wikitext

SETTINGS = CorpusSettings(
    eval_share=0.3,
    min_characters=5,
    split_json=True,
    split_text=False,
    drop_duplicates=True,
    part_bytes=1000,
    max_parts=3,
)


def unit_of(path, settings=SETTINGS, part=0):
    content = path.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    return text_units.make_units("en", str(path), sha256, len(content), settings)[part]


def write_json(path, texts):
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return path


@pytest.mark.parametrize(
    "name, size, parts",
    [
        ("a.jsonl", 0, 1),
        ("a.jsonl", 1000, 1),
        ("a.jsonl", 1001, 2),
        ("a.jsonl.gz", 99_999, 3),
        ("a.xml.bz2", 99_999, 3),
        # Its lines are copied, which takes no longer than reading them.
        ("a.txt", 99_999, 1),
    ],
)
def test_large_files_have_parts(name, size, parts):
    units = text_units.make_units("en", name, "ab" * 32, size, SETTINGS)
    assert [(unit.part, unit.parts) for unit in units] == [
        (part, parts) for part in range(parts)
    ]
    assert len({unit.name for unit in units}) == parts


TEXT = "It rains today. We stay in.\nNo.\n"
SPLIT = [["It rains today.", "We stay in."]]
WHOLE = [["It rains today. We stay in.", "No."]]


@pytest.mark.parametrize(
    "name, changes, documents",
    [
        ("a.jsonl", {}, SPLIT),
        ("a.jsonl", {"split_json": False}, WHOLE),
        ("a.txt", {}, WHOLE),
        ("a.txt", {"split_text": True}, SPLIT),
    ],
)
def test_texts_are_split_into_sentences_where_asked(tmp_path, name, changes, documents):
    settings, path = dataclasses.replace(SETTINGS, **changes), tmp_path / name
    if name == "a.jsonl":
        write_json(path, [TEXT] if changes else [TEXT, "-"])
    else:
        path.write_text(TEXT)
    dropped = collections.Counter()
    read = text_units.read_unit(unit_of(path, settings), settings, dropped)
    assert list(read) == documents
    without_any = dropped["document without sentences"]
    assert without_any == (name == "a.jsonl" and not changes)


def test_a_unit_leaves_text_and_digests(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(f"Text {number}.\nMore." for number in range(20)))
    job = TextJob(str(tmp_path / "corpus"), SETTINGS)
    os.makedirs(job.work_dir)
    unit = unit_of(path)
    result = job.run(unit)
    counts = result["splits"]
    assert {split: c["documents"] for split, c in counts.items()} == {
        "train": 10,
        "eval": 10,
    }
    for split, own in counts.items():
        for document in read_documents(job.corpus_dir, own["files"]):
            number = text_units.digest(document)
            assert text_units.split_of(number, 0.3) == split
    digests = np.fromfile(text_units.digests_path(job.corpus_dir, unit), "<u8")
    assert digests.tolist() == [
        text_units.digest([f"Text {number}.", "More."]) for number in range(20)
    ]
    assert job.is_intact(result)
    os.remove(tmp_path / "corpus" / counts["eval"]["files"][0]["name"])
    assert not job.is_intact(result)


@pytest.mark.parametrize("result", [None, {}, {"splits": []}])
def test_a_note_of_another_form_means_that_nothing_is_done(tmp_path, result):
    assert not TextJob(str(tmp_path / "corpus"), SETTINGS).is_intact(result)


@pytest.mark.parametrize(
    "change",
    [
        lambda result, entry: result["splits"].update({"..": result["splits"]["eval"]}),
        lambda result, entry: result["splits"]["train"].update(sentences="many"),
        lambda result, entry: result["dropped"].update(reason=None),
        lambda result, entry: entry.update(name="../secret"),
    ],
)
def test_a_note_that_is_none_of_ours_means_that_nothing_is_done(
    tmp_path, monkeypatch, change
):
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(f"Text {number}." for number in range(20)))
    job = TextJob(str(tmp_path / "corpus"), SETTINGS)
    os.makedirs(job.work_dir)
    monkeypatch.chdir(job.corpus_dir)
    result = job.run(unit_of(path))
    assert job.is_intact(result)
    entry = result["splits"]["train"]["files"][0]
    (tmp_path / "secret").write_bytes(b"x" * entry["bytes"])
    change(result, entry)
    assert not job.is_intact(result)


def test_a_digest_is_the_start_of_the_sha256():
    known = hashlib.sha256(b"One.\nTwo.").hexdigest()
    assert text_units.digest(["One.", "Two."]) == int(known[:16], 16)


def test_the_same_file_elsewhere_is_the_same_unit(tmp_path):
    job = TextJob(str(tmp_path), SETTINGS)
    one, other = (
        text_units.make_units("en", path, "ab" * 32, 7, SETTINGS)[0]
        for path in ("/one/a.txt", "/other/b.txt")
    )
    assert one.name == other.name and job.inputs(one) == job.inputs(other)
    changed = text_units.make_units("en", "/one/a.txt", "cd" * 32, 7, SETTINGS)[0]
    assert one.name != changed.name
    stricter = TextJob(str(tmp_path), dataclasses.replace(SETTINGS, min_characters=9))
    assert job.inputs(one) != stricter.inputs(one)


@pytest.mark.parametrize(
    "path, versions",
    [
        ("a.txt", [text_units.RULES]),
        ("a.jsonl", [text_units.RULES, sentences.RULES]),
        ("a.xml.bz2", [text_units.RULES, sentences.RULES, wikitext.RULES]),
    ],
)
def test_the_rules_that_make_a_text_have_versions(path, versions):
    assert text_units.cleaning_rules([path], SETTINGS) == versions


def test_the_columns_by_default_are_not_noted():
    """Corpora of before these settings stay equal to new ones."""
    noted = dataclasses.replace(SETTINGS, text_column="text").text_settings()
    assert set(noted) == {
        *("eval_share", "min_characters", "split_json", "split_text"),
        *("drop_duplicates", "part_bytes", "max_parts"),
    }
    assert dataclasses.replace(SETTINGS, language_column="a").text_settings() == {
        **noted,
        "language_column": "a",
    }


def test_a_unit_does_not_depend_on_the_values_of_other_languages(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    unit = unit_of(tmp_path / "a.jsonl")
    none, other, own = (
        TextJob(
            str(tmp_path),
            dataclasses.replace(SETTINGS, language_column="a", language_values=values),
        ).inputs(unit)
        for values in (None, {"pt": "por"}, {"pt": "por", "en": "eng"})
    )
    assert none == other != own
