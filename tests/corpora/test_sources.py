"""The kinds of files: how they are told apart and become documents."""

import collections
import dataclasses
import gzip
import json
import lzma
import subprocess

import pyarrow
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from decoupled.configs.corpora import CorpusSettings
from decoupled.core.errors import UserError
from decoupled.corpora import sources
from decoupled.corpora.sources import (
    NO_LANGUAGE,
    NO_TEXT,
    OTHER_LANGUAGE,
    Reading,
    source_of,
)
from decoupled.corpora.text_lines import NUL_CHARACTERS, clean_sentence, normal_form
from tests.refusals import refusal

SETTINGS = CorpusSettings(
    eval_share=0.0,
    min_characters=1,
    split_json=False,
    split_text=False,
    drop_duplicates=True,
    part_bytes=1 << 20,
    max_parts=1,
)
ROWS = ["One.\n\nTwo.", " ", None, "สาม"]
MIXED = dataclasses.replace(
    SETTINGS, language_column="lang", language_values={"pt": "por"}
)
RECORDS = pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return str(path)


def read_documents(path, part=0, parts=1):
    dropped = collections.Counter()
    return source_of(path).reads(Reading(path, "en", SETTINGS, dropped, part, parts))


def test_plain_text_has_a_sentence_a_line_and_empty_lines_between_documents(tmp_path):
    path = write(tmp_path / "a.txt", "\ufeffOne.\nTwo.\r\n\n \n\n  Three\t3. \n\n")
    assert list(read_documents(path)) == [["One.", "Two."], ["Three 3."]]


def read_column(path, column, dropped=None):
    settings = dataclasses.replace(SETTINGS, text_column=column)
    dropped = collections.Counter() if dropped is None else dropped
    return list(source_of(path).reads(Reading(path, "en", settings, dropped)))


def write_table(path, rows_of_a_group=2, **columns):
    table = pyarrow.table(columns)
    parquet.write_table(table, path, row_group_size=rows_of_a_group)
    return str(path)


def test_the_field_of_an_object_has_a_name(tmp_path):
    path = write(tmp_path / "oscar.jsonl", '{"content": "One.", "text": "No."}\n')
    assert read_column(path, "content") == [["One."]]
    message = r"oscar\.jsonl:1: no column 'body' .*text_column.*has content, text$"
    with pytest.raises(UserError, match=message):
        read_column(path, "body")


def write_rows(path, **columns):
    """A table, or JSON lines, with these columns."""
    if path.suffix == ".parquet":
        return write_table(path, **columns)
    rows = zip(*columns.values(), strict=True)
    lines = [json.dumps(dict(zip(columns, row, strict=True))) for row in rows]
    return write(path, "".join(f"{line}\n" for line in lines))


@RECORDS
def test_a_row_is_a_document_and_ids_and_titles_are_not_read(tmp_path, name):
    others = {"id": list("abcd"), "title": ["A", None, "C", "D"], "size": [1, 2, 3, 4]}
    path = write_rows(tmp_path / name, text=ROWS, **others)
    dropped = collections.Counter()
    assert read_column(path, "text", dropped) == [["One.", "Two."], ["สาม"]]
    assert dropped == {NO_TEXT: 2}


# The order of the columns is not that of the settings.
LANGUAGES = st.sampled_from(["en", "por", "pt", "EN", " en", "", None])
TEXTS = st.sampled_from([None, "", "One.", "Um."])


@RECORDS
@given(
    rows=st.lists(st.tuples(LANGUAGES, TEXTS), min_size=1, max_size=12),
    parts=st.integers(1, 3),
)
def test_rows_of_one_language_are_read_and_the_others_counted(
    tmp_path_factory, name, rows, parts
):
    languages, texts = zip(*rows, strict=True)
    path = tmp_path_factory.mktemp("rows") / name
    columns = {"lang": list(languages), "text": list(texts)}
    if name == "a.parquet":
        # A column that has nothing but null has no type.
        columns = {k: pyarrow.array(v, pyarrow.string()) for k, v in columns.items()}
    path = write_rows(path, **columns)
    for language, value in (("en", "en"), ("pt", "por")):
        dropped, found = collections.Counter(), []
        for part in range(parts):
            reading = Reading(path, language, MIXED, dropped, part, parts)
            found += source_of(path).reads(reading)
        own = [text for other, text in rows if other == value]
        assert sorted(found) == sorted([text] for text in own if text)
        assert dropped[NO_TEXT] == sum(not text for text in own)
        missing = languages.count(None) + languages.count("")
        assert dropped[NO_LANGUAGE] == missing
        assert dropped[OTHER_LANGUAGE] == len(rows) - len(own) - missing


@RECORDS
@pytest.mark.parametrize(
    "column, message",
    [
        (
            {"language": ["en"]},
            r"a\..* no column 'lang' .*language_column.*; it has text, language$",
        ),
        ({"lang": [7]}, "'lang' (holds int64, not texts|is not a string)"),
    ],
)
def test_the_column_of_languages_has_texts(tmp_path, name, column, message):
    path = write_rows(tmp_path / name, text=["One."], **column)
    with pytest.raises(UserError, match=message):
        list(source_of(path).reads(Reading(path, "en", MIXED, collections.Counter())))


def test_some_rows_of_json_may_lack_a_column(tmp_path):
    rows = '{"text": "One.", "id": "a"}', '{"id": "b"}', '{"text": "Two."}'
    path, dropped = tmp_path / "a.jsonl", collections.Counter()
    for lines in (rows, rows[::-1]):
        write(path, "\n".join(lines))
        assert len(read_column(str(path), "text", dropped)) == 2
    assert dropped == {sources.NO_TEXT: 2}
    write(path, "\n".join([rows[1]] * (sources._ROWS + 1) + [rows[0]]))
    with pytest.raises(UserError, match=r"a\.jsonl:1: no column 'text'"):
        read_column(str(path), "text")


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


@pytest.mark.parametrize(
    "line",
    [{"text": "Line\r\nline\rline\n\nline"}, {"text": "\0Li\0ne\nline\nline\nline"}],
)
def test_lines_in_a_text_end_at_lf_crlf_or_cr_and_have_no_nul(tmp_path, line):
    path = write(tmp_path / "a.jsonl", json.dumps(line) + "\n")
    dropped = collections.Counter()
    assert read_column(path, "text", dropped) == [["Line", "line", "line", "line"]]
    assert dropped[NUL_CHARACTERS] == line["text"].count("\0")


def test_lines_of_the_index_in_a_dump_of_cirrussearch_are_skipped(tmp_path):
    lines = []
    for number in range(3):
        lines.append({"index": {"_type": "_doc", "_id": str(number)}})
        lines.append({"title": "T", "text": f"Text {number}."})
    content = "".join(json.dumps(line) + "\n" for line in lines)
    path = write(tmp_path / "cirrus.json.gz", gzip.compress(content.encode()))
    assert list(read_documents(path)) == [["Text 0."], ["Text 1."], ["Text 2."]]


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


@given(st.text(st.characters(max_codepoint=0x250, exclude_categories=["Cs"])))
def test_the_normal_form_is_that_of_a_vocabulary(text):
    vocabulary = sentencepiece.SentencePieceNormalizer(rule_name="nmt_nfkc")
    expected = vocabulary.normalize(text).replace("\u2581", " ").strip(" ")
    assert normal_form(text) == expected


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
        ('{"title": "a"}\n', r"a\.jsonl:1: no column 'text' .*; it has title$"),
        ("{}\n", r"a\.jsonl:1: no column 'text' .*; it has none$"),
        ('{"text": ["a"]}\n', r"a\.jsonl:1: 'text' is not a string"),
        ('["text"]\n', r"a\.jsonl:1: not a JSON object"),
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


DUMP = "MediaWiki dumps (.xml)"
JSON = 'JSON lines with a "text" in every line (.jsonl, .ndjson, .json)'
TABLE = "tables (.parquet)"
TEXT = "plain text (all others)"


@pytest.mark.parametrize(
    "path, name",
    [
        ("gs://b/a.xml.bz2", DUMP),
        ("a.xml.7z", DUMP),
        ("enwiki-latest-pages-articles1.xml-p1p41242.bz2", DUMP),
        ("pages-articles1.xml-p000000010p000030302-shortened.bz2", DUMP),
        ("a.xml/b.jsonl.gz", JSON),
        ("c4-de.tfrecord-00000-of-00100.json.gz", JSON),
        ("a.ndjson.zst", JSON),
        ("data/por_Latn/train/000_00000.parquet", TABLE),
        ("a.bz2", TEXT),
        ("axml.txt.xz", TEXT),
    ],
)
def test_the_name_tells_the_kind_of_a_file_that_cannot_be_read(path, name):
    assert source_of(path).name == name


OBJECT = '{"text": "One."}\n'
LONG_OBJECT = '{"id": 1, "text": "' + "a" * 300_000 + '"}\n'


@pytest.mark.parametrize(
    "name, content, kind",
    [
        ("a.txt", OBJECT * 3, JSON),
        ("a.txt", LONG_OBJECT, JSON),
        ("a.parquet", OBJECT, JSON),
        ("a.xml.gz", "\ufeff\n" + OBJECT, JSON),
        ("a.txt", '[\n  {\n    "text": "One."\n  }\n]\n', JSON),
        ("a.txt", "{}\n" + OBJECT, JSON),
        ("a.txt", '{"": 1, "text": "One."}\n', JSON),
        ("a.txt", '{"' + "k" * 1000 + '": 1, "text": "One."}\n', JSON),
        ("a.txt", "\x1e" + OBJECT, JSON),
        ("a.txt", "{One.}\nTwo.\n", TEXT),
        ("a.txt", "{} is a set.\n", TEXT),
        ("a.txt", "One.\n" + OBJECT, TEXT),
        ("a.jsonl", "One.\n", JSON),
        ("a.txt", '<mediawiki xml:lang="en">', DUMP),
        ("a.jsonl", '<?xml version="1.0"?>\n<mediawiki>', DUMP),
        ("a.txt", "\ufeff<!-- --> <!-- - --><mediawiki>", DUMP),
        ("a.gz", "<b>One.</b>", TEXT),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_the_content_tells_the_kind_of_a_file(tmp_path, name, content, kind, pack):
    path = write(tmp_path / name, pack(content.encode()))
    assert source_of(path).name == kind
    if kind == DUMP:
        path = write(
            tmp_path / f"2{name}", pack(content.lstrip("\ufeff").encode("utf-16"))
        )
        assert source_of(path).name == kind


def test_a_table_is_told_by_its_content_and_has_to_be_unpacked(tmp_path):
    path = write_table(tmp_path / "a.txt", text=["One.", "Two."])
    assert list(read_documents(path)) == [["One."], ["Two."]]
    packed = write(tmp_path / "b.parquet.gz", gzip.compress(open(path, "rb").read()))
    message = (
        r"packed with gzip; unpack it: gzip -dc \S+b.parquet.gz > NEW_FILE.parquet$"
    )
    with pytest.raises(UserError, match=message):
        list(read_documents(packed))


@pytest.mark.parametrize(
    "content, message",
    [
        ('<doc id="12" url="https://a?curid=12" title="A">\nA\n\nText.\n', "dump"),
        ('One.\n<doc id="12" title="A" nonfiltered="1">\n', ":2: .*WikiExtractor"),
        ("\ufeff\n<text id=\"a\" year='1'>\nOne.\n</text>\n", "line of markup"),
        ("<!DOCTYPE html>\n<html>\n", "HTML, no plain text"),
        ("1\tOne.\n2\tTwo.\n3\tThree.\n", "cut -f2- FILE > NEW_FILE"),
        ('[\n  {\n    "text": "One."\n  }\n]\n', "object a line, .*jq -c"),
        ("614:10:A\n614:12:An b\n614:13:C\n", "the index of a dump, no text"),
        ("# sent_id = 1\n1\tDas\tder\tDET\n", "CoNLL-U, no text"),
        ("# text = Das ist es.\n1\tDas\tder\tDET\n", "CoNLL-U, no text"),
        ("# text of the heading\nOne.\n", None),
        ('["One.", 1]\n' * 3, "JSON arrays, no plain text"),
        ('[["One."], 1]\n' * 3, "JSON arrays, no plain text"),
        ("client\tpath\tsentence\nc0\tx.mp3\tOne.\nc1\ty.mp3\tTwo.\n", "cut -f2 "),
        ("\tOne.\n\tTwo.\n\tThree.\n", None),
        ("[1] One.\n[2] Two.\n[3] Three [sic]\n", None),
        ("[[Berlin]]\n[[Rome]]\n[[Oslo]]\n", None),
        ("One.\tTwo.\nThree.\nFour.\tFive.\n", None),
        ('["One."]\n', None),
        ("<b>One.</b>\nTwo.\n", None),
        ("<3 to all\n", None),
        ("1\tOne.\n2\tTwo.\n", None),
    ],
)
def test_text_of_another_format_is_refused(tmp_path, content, message):
    path = write(tmp_path / "a.txt", content)
    if message is None:
        assert list(read_documents(path))
        return
    with pytest.raises(UserError, match=message):
        list(read_documents(path))


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.lzma", "A.CSV"])
def test_csv_is_no_plain_text(tmp_path, name):
    path = write(tmp_path / name, '1,"One, two.",de\n')
    with pytest.raises(UserError, match="CSV, no plain text"):
        list(read_documents(path))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_documents_without_empty_lines_are_refused_and_the_command_separates_them(
    tmp_path, monkeypatch, pack
):
    monkeypatch.setattr(sources, "_MAX_DOCUMENT", 200)
    path = write(tmp_path / "a.txt", pack(b"One.\n\n" + b"Two.\n" * 7))
    for part in range(2):
        message = refusal(list, read_documents(path, part, parts=2))
        assert message.startswith(f"{path}:5: no empty line between documents in 3 ")
    command = message.rpartition("each: ")[2]
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    documents = list(read_documents(str(tmp_path / "NEW_FILE")))
    assert documents == [["One."]] + [["Two."]] * 7
