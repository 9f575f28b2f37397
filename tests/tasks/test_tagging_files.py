"""Files of udpos and panx: XTREME's names, with and without tags, and what is wrong."""

import pytest

from decoupled.core.errors import UserError
from decoupled.tasks.tagging_files import (
    TaggedSentence,
    files_by_language,
    find_file,
    read_sentences,
)
from decoupled.xtreme.files import LanguageFile
from decoupled.xtreme.labels import read_labels
from tests.xtreme.xtreme_samples import language_file

THAI = "แมว\tNOUN\nนั่ง\tVERB\n\nหมา\tNOUN\n"


@pytest.fixture
def read(tmp_path):
    """Reads a text as the test file of a language, or of another name."""

    def read(text, task="udpos", name="udpos/test-th.tsv", tags_may_miss=True):
        file = language_file(tmp_path / name, text, task, "th")
        return read_sentences(file, tags_may_miss)

    return read


def refused(read, text, **arguments):
    with pytest.raises(UserError) as error:
        read(text, **arguments)
    assert "\n" not in str(error.value)
    return str(error.value).partition("udpos/")[2]


def test_words_and_tags(read):
    assert read(THAI) == [
        TaggedSentence(["แมว", "นั่ง"], ["NOUN", "VERB"]),
        TaggedSentence(["หมา"], ["NOUN"]),
    ]


def test_test_files_may_lack_tags(read):
    expected = [TaggedSentence(["แมว", "นั่ง"], None), TaggedSentence(["หมา"], None)]
    assert read("แมว\nนั่ง\n\nหมา\n") == expected
    # The tab may be there.
    assert read("แมว\t\nนั่ง\t\n\nหมา\t\n") == expected


@pytest.mark.parametrize(
    "text", ["\n\na\tX\n\n\n \nb\tX\n\n", "a\tX\r\n\r\nb\tX", "a\tX\r\rb\tX\r"]
)
def test_empty_lines_and_line_ends(read, text):
    assert read(text) == [TaggedSentence(["a"], ["X"]), TaggedSentence(["b"], ["X"])]


@pytest.mark.parametrize("word", ["\xa0", "\u2028", "\x0c", "\u200b", "con người", '"'])
def test_any_other_line_is_a_word(read, word):
    assert read(f"{word}\na\n") == [TaggedSentence([word, "a"], None)]
    assert read(f"{word}\tX\na\tX\n") == [TaggedSentence([word, "a"], ["X", "X"])]


def test_entities(read):
    (sentence,) = read("Kofi\tB-PER\nAnnan\tI-PER\nspoke\tO\n", task="panx")
    assert sentence.tags == ["B-PER", "I-PER", "O"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "test-th.tsv (language th): holds no word"),
        ("\n \n", "test-th.tsv (language th): holds no word"),
        (
            "a\tX\n\nb\tNOPE\n",
            "test-th.tsv:3 (language th): 'NOPE' is not a part of speech of UD, "
            "as NOUN",
        ),
        (
            "a\tX\nb\n",
            "test-th.tsv:2 (language th): no tag after the word, but other lines "
            "have one",
        ),
        (
            "1\ta\ta\tX\n",
            "test-th.tsv:1 (language th): 4 columns, not a word, a tab and its tag",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(read, text, message):
    assert refused(read, text) == message


def test_tags_of_entities_are_no_parts_of_speech(read):
    with pytest.raises(UserError, match="'NOUN' is not O, or B- or I-"):
        read("a\tNOUN\n", task="panx")


def test_training_needs_tags(read):
    message = refused(read, "\na\n", tags_may_miss=False)
    assert message.endswith(":2 (language th): no tags, which only test files may lack")


def test_not_utf_8(read):
    assert "not UTF-8 at byte 1" in refused(read, b"a\xff\tX\n")


def make(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


def test_languages_of_xtreme_come_first_and_english_before_them(tmp_path):
    make(
        tmp_path / "udpos",
        *(f"test-{name}.tsv" for name in ("zh", "af", "en", "de", "xx")),
        "dev-fr.tsv",
        "test-ar.conll",
    )
    found = files_by_language("udpos", str(tmp_path), "test")
    assert list(found) == ["en", "af", "de", "zh", "xx"]
    assert found["de"] == str(tmp_path / "udpos" / "test-de.tsv")
    assert files_by_language("panx", str(tmp_path), "test") == {}


@pytest.mark.parametrize("task", ["udpos", "panx"])
def test_a_missing_file_is_named(tmp_path, task):
    with pytest.raises(UserError) as error:
        find_file(task, str(tmp_path), "dev", "sw" if task == "panx" else "zh")
    message = str(error.value)
    assert message.startswith(f"{tmp_path}/{task}/dev-")
    assert f": missing, the dev file of task {task} in language" in message
    assert "scripts/download_data.sh" in message


PROCESSED = "udpos/udpos_processed_maxlen128/th/test.some-model"


def processed(tmp_path, text, index, name=PROCESSED):
    language_file(tmp_path / f"{name}.idx", index, "udpos")
    return language_file(tmp_path / name, text, "udpos", "th")


def test_what_preprocessing_made_is_found_and_rejoined(tmp_path):
    """Cut after the second word of the first sentence; empty lines count there."""
    file = processed(
        tmp_path,
        "a\tNOUN\nb\tVERB\n\nc\tNUM\n\n\nd\tX\n",
        "0\n0\n\n0\n\n\n2\n",
    )
    assert find_file("udpos", str(tmp_path), "test", "th") == file.path
    assert list(files_by_language("udpos", str(tmp_path), "test")) == ["th"]
    assert read_sentences(file, True) == [
        TaggedSentence(["a", "b", "c"], ["NOUN", "VERB", "NUM"]),
        TaggedSentence(["d"], ["X"]),
    ]


def test_what_preprocessing_fills_in_is_no_tag(tmp_path):
    file = processed(tmp_path, "a\tX\n\nb\tX\n", "0\n\n1\n")
    assert [s.tags for s in read_sentences(file, True)] == [None, None]


def test_plain_files_come_first_and_others_need_their_index(tmp_path):
    folder = "udpos/udpos_processed_maxlen128/th"
    make(tmp_path, f"{folder}/test.other", f"{folder}/dev.some-model.idx")
    assert files_by_language("udpos", str(tmp_path), "test") == {}
    processed(tmp_path, "a\tX\n", "0\n")
    make(tmp_path, "udpos/test-th.tsv")
    found = find_file("udpos", str(tmp_path), "test", "th")
    assert found == str(tmp_path / "udpos" / "test-th.tsv")


@pytest.mark.parametrize("index, line", [("0\n", 3), ("0\n0\n1\n", 2), ("", 1)])
def test_an_index_of_another_file_is_refused(tmp_path, index, line):
    file = processed(tmp_path, "a\tX\n\nb\tX\n", index)
    with pytest.raises(UserError, match="make both anew") as error:
        read_sentences(file, True)
    assert str(error.value).startswith(f"{file.path}.idx:{line} (language th): ")


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_real_sentences_are_those_of_the_reader_of_labels(data_dir, split):
    """Which was written apart, to score."""
    path = find_file("udpos", f"{data_dir}/xtreme", split, "en")
    file = LanguageFile(path, "udpos", "en")
    sentences = read_sentences(file, False)
    assert [s.tags for s in sentences] == read_labels(file)
    with open(path, encoding="utf-8") as handle:
        lines = [line.split("\t")[0] for line in handle.read().split("\n") if line]
    assert [word for s in sentences for word in s.words] == lines
