"""The kinds of files: how they are told apart and become documents."""

import collections
import dataclasses
import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet

from decoupled.configs.corpora import TextSettings
from decoupled.core.errors import UserError
from decoupled.corpora.sources import source_of
from decoupled.corpora.text_lines import clean_sentence

SETTINGS = TextSettings(
    eval_share=0.0,
    min_characters=1,
    split_json=False,
    split_text=False,
    drop_duplicates=True,
    part_bytes=1 << 20,
    max_parts=1,
)
ROWS = ["One.\n\nTwo.", " ", None, "สาม"]


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


def read_documents(path, part=0, parts=1):
    return source_of(path).reads(path, SETTINGS, collections.Counter(), part, parts)


def test_plain_text_has_a_sentence_a_line_and_empty_lines_between_documents(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffOne.\nTwo.\r\n\n \n\n  Three\t3. \n\n")
    assert list(read_documents(path)) == [["One.", "Two."], ["Three 3."]]


def test_json_lines_have_a_document_a_line(tmp_path):
    lines = [{"text": "One.\n\nTwo."}, {"text": " "}, {"text": "สาม", "id": 3}]
    content = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    path = write(tmp_path / "a.jsonl", content)
    assert list(read_documents(path)) == [["One.", "Two."], ["สาม"]]


def read_column(path, column, dropped=None):
    settings = dataclasses.replace(SETTINGS, text_column=column)
    dropped = collections.Counter() if dropped is None else dropped
    return list(source_of(path).reads(path, settings, dropped, 0, 1))


def write_table(path, rows_of_a_group=2, **columns):
    table = pyarrow.table(columns)
    parquet.write_table(table, path, row_group_size=rows_of_a_group)
    return str(path)


def zstandard(content):
    return pyarrow.Codec("zstd").compress(content.encode("utf-8")).to_pybytes()


def test_the_field_of_an_object_has_a_name(tmp_path):
    path = write(tmp_path / "oscar.jsonl", '{"content": "One.", "text": "No."}\n')
    assert read_column(path, "content") == [["One."]]
    with pytest.raises(UserError, match='string "body" .build_corpus.text_column'):
        read_column(path, "body")


@pytest.mark.parametrize(
    "name, pack",
    [
        ("c4-de.tfrecord-0.json.gz", lambda text: gzip.compress(text.encode())),
        ("de_part_1.jsonl.zst", zstandard),
        ("a.json.zst", zstandard),
        ("a.json", str),
    ],
)
def test_json_lines_as_they_are_shared(tmp_path, name, pack):
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ("One.", "สาม"))
    path = write(tmp_path / name, pack(lines))
    assert list(read_documents(path)) == [["One."], ["สาม"]]


def test_a_table_has_a_document_a_row(tmp_path):
    path = write_table(tmp_path / "000.parquet", text=ROWS, id=list("abcd"))
    dropped = collections.Counter()
    assert read_column(path, "text", dropped) == [["One.", "Two."], ["สาม"]]
    assert dropped == {"row without text": 1}


@pytest.mark.parametrize("kind", [pyarrow.large_string(), "dictionary"])
def test_texts_of_a_table_come_in_several_types(tmp_path, kind):
    column = pyarrow.array(["One.", "Two.", "One."])
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind)
    path = write_table(tmp_path / "a.parquet", text=column)
    assert list(read_documents(path)) == [["One."], ["Two."], ["One."]]


def test_a_table_names_its_columns_where_the_one_of_texts_is_missing(tmp_path):
    path = write_table(tmp_path / "a.parquet", raw_content=["a"], url=["b"], size=[3])
    with pytest.raises(UserError, match="no column 'text' .* raw_content, url, size"):
        list(read_documents(path))
    with pytest.raises(UserError, match="column 'size' holds int64, not texts"):
        read_column(path, "size")


def test_a_damaged_table_is_named(tmp_path):
    texts = [f"Text {number}, long enough to be stored." * 50 for number in range(900)]
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": texts}), path, write_page_checksum=True)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"a\.parquet: damaged, or not Parquet"):
        list(read_documents(str(path)))
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes(64) + whole[middle + 64 :])
    with pytest.raises(UserError, match=r"a\.parquet.* damaged, or not Parquet"):
        list(read_documents(str(path)))


@pytest.mark.parametrize("damage", ["cut", "other"])
def test_damaged_zstandard_is_named(tmp_path, damage):
    content = zstandard("".join(f'{{"text": "{n}"}}\n' for n in range(5000)))
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"{}\n" * 9)
    with pytest.raises(UserError, match=r"a\.jsonl\.zst.*damaged"):
        list(read_documents(str(path)))


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.parquet"])
def test_parts_together_are_the_whole(tmp_path, name):
    texts = [f"Text {number}." for number in range(10)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    content = lines if name == "a.jsonl" else "\n\n".join(texts)
    if name == "a.parquet":
        path = write_table(tmp_path / name, 4, text=texts)
    else:
        path = write(tmp_path / name, content)
    whole = list(read_documents(path))
    parts = [list(read_documents(path, part, 3)) for part in range(3)]
    assert [len(part) for part in parts] == [4, 3, 3]
    assert sorted(sum(parts, [])) == sorted(whole)


def test_no_line_break_of_any_kind_survives():
    assert clean_sentence("a\u2028b\x0bc\x85d\u00a0e\rf") == "a b c d e f"


def test_half_a_surrogate_pair_is_replaced(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a \\ud800 b"}\n')
    assert list(read_documents(path)) == [["a \ufffd b"]]


@pytest.mark.parametrize(
    "content, message",
    [
        ('{"text": "a"}\n{"text": \n', r"a\.jsonl:2: not JSON"),
        pytest.param(
            '{"text": "a"}\n' + "[" * 100_000,
            r"a\.jsonl:2: not JSON \(nested too deeply\)",
            id="deep",
        ),
        ('{"title": "a"}\n', r'a\.jsonl:1: not an object with a string "text"'),
        ('["text"]\n', r'a\.jsonl:1: not an object with a string "text"'),
        (b'{"text": "a"}\n\n\xff\n', r"a\.jsonl:3: not UTF-8"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, message):
    path = write(tmp_path / "a.jsonl", content)
    with pytest.raises(UserError, match=message):
        list(read_documents(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.txt: cannot read"):
        list(read_documents(str(tmp_path / "none.txt")))


DUMP = "MediaWiki dumps (.xml, .xml.bz2, .xml.gz)"
JSON = 'JSON lines with a "text" in every line (.jsonl, .jsonl.gz)'
OTHER_JSON = "the same under other names (.json, .json.gz)"
PACKED_JSON = "the same, packed with Zstandard (.jsonl.zst, .json.zst)"
TABLE = "tables (.parquet)"
TEXT = "plain text (all other names, also .gz)"


@pytest.mark.parametrize(
    "path, name",
    [
        ("a.xml", DUMP),
        ("gs://b/a.xml.bz2", DUMP),
        ("a.xml.gz", DUMP),
        ("a.xml.7z", DUMP),
        ("enwiki-latest-pages-articles1.xml-p1p41242.bz2", DUMP),
        ("pages-articles1.xml-p000000010p000030302-shortened.bz2", DUMP),
        ("a.jsonl", JSON),
        ("a.xml/b.jsonl.gz", JSON),
        ("c4-de.tfrecord-00000-of-00100.json.gz", OTHER_JSON),
        ("de_meta/de_part_1.jsonl.zst", PACKED_JSON),
        ("data/por_Latn/train/000_00000.parquet", TABLE),
        ("a.jsonl.bz2", TEXT),
        ("a.txt", TEXT),
        ("a.bz2", TEXT),
        ("axml.txt.gz", TEXT),
    ],
)
def test_the_kind_of_a_file_is_told_by_its_name(path, name):
    assert source_of(path).name == name
