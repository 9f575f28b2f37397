"""Plain text and JSON lines become documents by language."""

import json

import pytest

from decoupled.core.errors import UserError
from decoupled.corpora.text import (
    clean_sentence,
    find_inputs,
    is_dump,
    read_documents,
)


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


def test_plain_text_has_a_sentence_a_line_and_empty_lines_between_documents(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffOne.\nTwo.\r\n\n \n\n  Three\t3. \n\n")
    assert list(read_documents(path)) == [["One.", "Two."], ["Three 3."]]


def test_json_lines_have_a_document_a_line(tmp_path):
    lines = [{"text": "One.\n\nTwo."}, {"text": " "}, {"text": "สาม", "id": 3}]
    content = "\n".join(json.dumps(line) for line in lines) + "\n\n"
    path = write(tmp_path / "a.jsonl", content)
    assert list(read_documents(path)) == [["One.", "Two."], ["สาม"]]


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


def test_inputs_are_globs_by_language(tmp_path):
    for name in ("b.txt", "a.txt", "c.jsonl"):
        write(tmp_path / name, "x")
    found = find_inputs([f"zh-Hans={tmp_path}/c.jsonl", f"en={tmp_path}/*.txt"])
    assert found == {
        "en": [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"],
        "zh-Hans": [f"{tmp_path}/c.jsonl"],
    }


@pytest.mark.parametrize("value", ["en", "=a.txt", "en="])
def test_malformed_input(value):
    with pytest.raises(UserError, match="not of the form LANGUAGE=GLOB"):
        find_inputs([value])


@pytest.mark.parametrize("language", ["../x", "e n", "/en", "en\n"])
def test_a_language_that_is_no_code_is_refused(language):
    with pytest.raises(UserError, match="--input: .* is no language code"):
        find_inputs([f"{language}=a.txt"])


def test_codes_of_all_kinds_separate_inputs(tmp_path):
    write(tmp_path / "a,b.txt", "x")
    codes = ["be-tarask", "sr@latin", "zh-Hant", "zh_TW"]
    found = find_inputs([",".join(f"{code}={tmp_path}/a,b.txt" for code in codes)])
    assert list(found) == codes


def test_input_without_files(tmp_path):
    with pytest.raises(UserError, match="no file matches"):
        find_inputs([f"en={tmp_path}/*.txt"])


def test_input_given_twice(tmp_path):
    path = write(tmp_path / "a.txt", "x")
    with pytest.raises(UserError, match="is given twice"):
        find_inputs([f"en={path}", f"en={tmp_path}/*"])


@pytest.mark.parametrize(
    "path, expected",
    [
        ("a.xml", True),
        ("gs://b/a.xml.bz2", True),
        ("a.xml.gz", True),
        ("a.xml.7z", True),
        ("enwiki-latest-pages-articles1.xml-p1p41242.bz2", True),
        ("pages-articles1.xml-p000000010p000030302-shortened.bz2", True),
        ("a.txt", False),
        ("a.jsonl", False),
        ("a.bz2", False),
        ("axml.txt.gz", False),
    ],
)
def test_dumps_are_known_by_their_names(path, expected):
    assert is_dump(path) == expected
