"""The kinds of files: how they are told apart and become documents."""

import collections
import json

import pytest

from decoupled.core.errors import UserError
from decoupled.corpora.sources import source_of
from decoupled.corpora.text_lines import clean_sentence


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


def read_documents(path, part=0, parts=1):
    return source_of(path).reads(path, collections.Counter(), part, parts)


def test_plain_text_has_a_sentence_a_line_and_empty_lines_between_documents(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffOne.\nTwo.\r\n\n \n\n  Three\t3. \n\n")
    assert list(read_documents(path)) == [["One.", "Two."], ["Three 3."]]


def test_json_lines_have_a_document_a_line(tmp_path):
    lines = [{"text": "One.\n\nTwo."}, {"text": " "}, {"text": "สาม", "id": 3}]
    content = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    path = write(tmp_path / "a.jsonl", content)
    assert list(read_documents(path)) == [["One.", "Two."], ["สาม"]]


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
def test_parts_together_are_the_whole(tmp_path, name):
    texts = [f"Text {number}." for number in range(10)]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    content = lines if name == "a.jsonl" else "\n\n".join(texts)
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
        ("a.jsonl.bz2", TEXT),
        ("a.txt", TEXT),
        ("a.bz2", TEXT),
        ("axml.txt.gz", TEXT),
    ],
)
def test_the_kind_of_a_file_is_told_by_its_name(path, name):
    assert source_of(path).name == name
