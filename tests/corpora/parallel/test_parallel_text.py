"""Groups of ids, what is held out of them, and the books of the Bible."""

import dataclasses

import pytest

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core.errors import UserError
from decoupled.corpora.parallel.parallel_text import (
    BOOK_GROUPS,
    book_group,
    group_of,
    split_of,
)

SETTINGS = ParallelTextConfig(
    dev_share=0.1,
    test_share=0.2,
    seed=0,
    group=None,
    max_pairs=10,
    max_train_examples=10,
    max_test_examples=10,
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


@pytest.mark.parametrize(
    "identifier, label",
    [
        ("01001001", "law"),
        ("05034012", "law"),
        ("06001001", "history"),
        ("19119176", "poetry"),
        ("39004006", "prophets"),
        ("44001001", "gospels"),
        ("66022021", "letters"),
        ("67001001", None),
        ("00001001", None),
        ("GEN.1.1", None),
    ],
)
def test_the_group_of_books(identifier, label):
    assert book_group(identifier) == label
    assert label is None or label in BOOK_GROUPS
