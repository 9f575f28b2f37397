"""Minimal pairs of BLiMP's and MultiBLiMP's files, and files that are refused."""

import json

import pytest

from decoupled.analyses.minimal_pair_files import MinimalPair, find_files, read_pairs
from decoupled.core.errors import UserError

ENTRY = {
    "sentence_good": "Cats sleep.",
    "sentence_bad": "Cats sleeps.",
    "field": "syntax",
    "linguistics_term": "agreement",
    "UID": "regular_plural",
    "pair_id": "0",
}
HEADER = "sen\twrong_sen\tverb\tphenomenon\n"


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_blimp(tmp_path):
    other = json.dumps(
        {**ENTRY, "sentence_bad": "Cats\u2028sleeps"}, ensure_ascii=False
    )
    path = write(tmp_path / "a.jsonl", f"{json.dumps(ENTRY)}\n\n{other}\n")
    names = ("syntax", "agreement", "regular_plural")
    assert read_pairs(path) == [
        MinimalPair("Cats sleep.", "Cats sleeps.", *names, f"{path}:1"),
        MinimalPair("Cats sleep.", "Cats\u2028sleeps", *names, f"{path}:3"),
    ]


@pytest.mark.parametrize("name", ["deu/data.tsv", "deu.tsv"])
def test_multiblimp(tmp_path, name):
    quoted = '"Er sagt ""ja""."\t"Er sagst ""ja""."\tsagt\tSV-P\n'
    text = f"{HEADER}Sie gehen.\tSie geht.\tgehen\tSV-#\r\n{quoted}"
    path = write(tmp_path / name, text)
    assert read_pairs(path) == [
        MinimalPair("Sie gehen.", "Sie geht.", "deu", "SV-#", "SV-#", f"{path}:2"),
        MinimalPair(
            'Er sagt "ja".', 'Er sagst "ja".', "deu", "SV-P", "SV-P", f"{path}:3"
        ),
    ]


def test_files_are_found_in_folders_and_a_level_below(tmp_path):
    paths = [
        write(tmp_path / name, "x")
        for name in ("b.jsonl", "c.tsv", "deu/data.tsv", "fin/data.tsv")
    ]
    write(tmp_path / "README.md", "x")
    assert find_files([str(tmp_path)]) == paths
    assert find_files([paths[2], paths[0]]) == [paths[2], paths[0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"sentence_good": \n', "a.jsonl:1: not JSON at column 19"),
        ("\n[1]\n", "a.jsonl:2: not an object with sentence_good, sentence_bad"),
        (json.dumps({**ENTRY, "UID": 3}), 'a.jsonl:1: "UID" is missing, empty or no'),
        (json.dumps({**ENTRY, "field": " "}), 'a.jsonl:1: "field" is missing, empty'),
        (
            json.dumps({**ENTRY, "sentence_bad": "Cats sleep."}),
            "a.jsonl:1: both sentences are 'Cats sleep.'",
        ),
        ("\n", "a.jsonl: holds no minimal pairs"),
        (b"{}\n\xff", "a.jsonl: not UTF-8 at byte 3"),
    ],
)
def test_refused_json_lines(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_pairs(write(tmp_path / "a.jsonl", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sen\tphenomenon\n", "a.tsv:1: must have one column 'wrong_sen'; its columns"),
        ("", "a.tsv:1: must have one column 'sen'"),
        (HEADER, "a.tsv: holds no minimal pairs"),
        (f"{HEADER}a\tb\tc\n", "a.tsv:2: 3 columns, but the first line has 4"),
        (f"{HEADER}a\tb\tc\td\na\t \tc\td", "a.tsv:3: column 'wrong_sen' is empty"),
        (f'{HEADER}"a\tb\tc\td\n', "a.tsv:2: not a table"),
        (f"{HEADER}a\ta\tc\td\n", "a.tsv:2: both sentences are 'a'"),
    ],
)
def test_refused_tables(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_pairs(write(tmp_path / "a.tsv", text))


def test_refused_paths(tmp_path):
    path = write(tmp_path / "some" / "a.csv", "x")
    with pytest.raises(UserError, match=r"a.csv: is neither .jsonl \(BLiMP\) nor"):
        find_files([path])
    with pytest.raises(UserError, match=r"some: has neither \*.jsonl nor \*.tsv"):
        find_files([str(tmp_path / "some")])
    path = write(tmp_path / "a.tsv", "x")
    with pytest.raises(UserError, match=r"a.tsv: is given twice"):
        find_files([path, str(tmp_path)])
    with pytest.raises(UserError, match=r"missing.tsv: cannot read"):
        read_pairs(str(tmp_path / "missing.tsv"))
