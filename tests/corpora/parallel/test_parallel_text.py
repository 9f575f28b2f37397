"""Groups of ids, and what is held out of them."""

import dataclasses
import gzip

import pytest

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core.errors import UserError
from decoupled.corpora.parallel import parallel_text
from decoupled.corpora.parallel.parallel_text import group_of, split_of

SETTINGS = ParallelTextConfig(
    dev_share=0.1, test_share=0.2, seed=0, group=None, max_pairs=10
)


@pytest.mark.parametrize(
    "identifier, pattern, group",
    [
        ("01002003", None, "01002"),
        ("GEN.1.2", None, "GEN.1"),
        ("GEN 1:2", None, "GEN 1"),
        ("page_7#4", None, "page_7"),
        ("doc12_3_41", None, "doc12_3"),
        ("第一章・二", None, "第一章"),
        ("GEN.1.4-5", None, "GEN.1"),
        ("1 John 1:4a–5,7", None, "1 John 1"),
        ("01.002.004-006", None, "01.002"),
        ("01002003-01002004", None, "01002"),
        ("page7#4-5", None, "page7"),
        ("20240105-00000012", None, "20240105"),
        ("news_2010-05", None, "news_2010"),
        ("page_12-13", None, "page_12"),
        ("1.2-3", None, "1.2"),
        ("web/2010/05-12", None, "web/2010/05"),
        ("123456", "[0-9]{4}", "1234"),
        ("b1c22v3", r"b(\d+c\d+)", "1c22"),
        ("01002003", "[0-9]{2}", "01"),
    ],
)
def test_the_group_of_an_id(identifier, pattern, group):
    assert group_of(identifier, pattern, "a.tsv:1") == group


@pytest.mark.parametrize(
    "identifier, pattern, message",
    [
        ("verse12", None, "a.tsv:1: the id 'verse12' is no BBCCCVVV and has no sep"),
        ("1002003", None, "set ParallelTextConfig.group to a regular expression"),
        ("GEN.1.", None, "has no separator"),
        ("x12", "[0-9]+", r"a.tsv:1: ParallelTextConfig.group = '\[0-9\]\+' finds no"),
        ("x12", "()x", "finds nothing at the beginning of the id 'x12'"),
    ],
)
def test_an_id_without_a_group(identifier, pattern, message):
    with pytest.raises(UserError, match=message):
        group_of(identifier, pattern, "a.tsv:1")


def test_a_split_has_its_share_and_depends_on_the_seed():
    splits = [split_of(str(group), SETTINGS) for group in range(5000)]
    shares = {name: splits.count(name) / 5000 for name in ("train", "dev", "test")}
    assert shares == pytest.approx({"train": 0.7, "dev": 0.1, "test": 0.2}, abs=0.03)
    other = dataclasses.replace(SETTINGS, seed=1)
    assert splits != [split_of(str(group), other) for group in range(5000)]


def find(place):
    return parallel_text.find(str(place))


def read(path):
    return list(parallel_text.read(str(path)))


def test_languages_are_the_names_of_the_files_of_a_folder(tmp_path):
    (tmp_path / "yo.tsv").write_text("GEN.1.1\tNí àtètèkọ́ṣe.\n")
    (tmp_path / "zh-Hant.tsv.gz").write_bytes(gzip.compress(b"GEN.1.1\tA.\n"))
    for name in ("README.md", "de.tsv.xz", "en.tsv.bz2"):
        (tmp_path / name).write_text("1.1\tA.\n")
    result = find(tmp_path)
    assert list(result) == ["de", "en", "yo", "zh-Hant"]
    assert read(result["zh-Hant"].path) == [
        ("GEN.1.1", "A.", f"{tmp_path}/zh-Hant.tsv.gz:1")
    ]


def test_languages_may_be_given(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("1.1\tA.\n")
    result = find(f"am={tmp_path}/a.txt,ti={tmp_path}/b.*")
    assert list(result) == ["am", "ti"]


def test_white_space_is_one_space_and_lines_without_text_stay(tmp_path):
    path = tmp_path / "en.tsv"
    path.write_bytes("\ufeff1.1\t One \u2028two. \r\n\n1.2\t\n".encode())
    assert [line[:2] for line in read(path)] == [("1.1", "One two."), ("1.2", "")]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"1.1\ta\n1.2 b\n", r"en\.tsv:2: not id, tab, text"),
        (b"1.1\ta\n\tb\n", r"en\.tsv:2: not id, tab, text"),
        (b"1.1\ta\tb\n", r"en\.tsv:1: not id, tab, text"),
        (b"1\x07.1\ta\n", r"en\.tsv:1: the id '1\\x07.1' has control characters"),
        (b"1." * 200 + b"1\ta\n", r"en\.tsv:1: .* more than 200 characters"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, message):
    path = tmp_path / "en.tsv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(path)


@pytest.mark.parametrize(
    "place, message",
    [
        ("{0}/none", "aligned:.*/none: not a folder with files LANGUAGE.tsv or LANG"),
        ("{0}", "not a folder with files LANGUAGE.tsv"),
        ("en={0}/none.tsv", "--source=aligned:en=.*: no file matches"),
        ("en={0}/*.txt", r"2 files for en \(.*/a.txt, .*/b.txt\); aligned text is one"),
    ],
)
def test_a_wrong_place_is_reported(tmp_path, place, message):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("1.1\tA.\n")
    with pytest.raises(UserError, match=message):
        find(place.format(tmp_path))


def test_two_files_of_a_language_are_refused_by_analyses_too(tmp_path):
    (tmp_path / "en.tsv").write_text("1\tOne.\n")
    (tmp_path / "hi.tsv").write_text("1\tएक।\n")
    (tmp_path / "hi.tsv.gz").write_bytes(gzip.compress("1\tदो।\n".encode()))
    with pytest.raises(UserError, match=r"2 files for hi \(hi.tsv, hi.tsv.gz\)"):
        parallel_text.read_sentences(str(tmp_path))
