"""Files of udpos and panx: XTREME's names, with and without tags, and what is wrong."""

import pytest

from decoupled.core.errors import UserError
from decoupled.tasks.presets import TASKS
from decoupled.tasks.tagging_files import TaggedSentence, read_sentences
from decoupled.xtreme.files import LanguageFile, read_labels
from tests.xtreme.xtreme_samples import language_file

UDPOS = TASKS["udpos"].labels
THAI = "แมว\tNOUN\nนั่ง\tVERB\n\nหมา\tNOUN\n"


@pytest.fixture
def read(tmp_path):
    """Reads a text as the test file of a language, or of another name."""

    def read(text, task="udpos", name="udpos/test-th.tsv", tags_may_miss=True):
        file = language_file(tmp_path / name, text, task, "th")
        return read_sentences(file, TASKS[task].labels, tags_may_miss)

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


def test_a_header_of_words_is_no_word(read):
    message = "test-th.tsv:1 (language th): 'word' looks like a header; remove the line"
    assert refused(read, "word\nแมว\nนั่ง\n") == message
    assert read("Word\tNOUN\n") == [TaggedSentence(["Word"], ["NOUN"])]


def test_blanks_between_words_and_tags_are_no_words(read):
    assert "blanks, not tabs" in refused(read, "แมว NOUN\nนั่ง VERB\n\nหมา NOUN\n")
    assert read("con mèo\nVERB\n")[0].tags is None


def test_the_language_before_each_word_is_no_part_of_it(read, capsys):
    """WikiANN's original files have it; XTREME's preprocessing removes it."""
    expected = [TaggedSentence(["Juma", ":", "Kenya"], ["X", "X", "X"])]
    assert read("sw:Juma\tX\nsw::\tX\nsw:Kenya\tX\n") == expected
    address = "http://example.org"
    assert read(f"{address}\tX\n") == [TaggedSentence([address], ["X"])]
    assert read("sw:Juma\tX\nsw:\tX\n") == [TaggedSentence(["Juma", ""], ["X", "X"])]
    assert "'sw:' before each word is left out" in capsys.readouterr().out
    # One word is no file of WikiANN.
    assert read("re:Invent\n") == [TaggedSentence(["re:Invent"], None)]
    kept = [TaggedSentence(["sw:Juma", "na", "sw:Kenya"], ["X", "X", "X"])]
    assert read("sw:Juma\tX\nna\tX\nsw:Kenya\tX\n") == kept


@pytest.mark.parametrize(
    "text", ["\n\na\tX\n\n\n \nb\tX\n\n", "a\tX\r\n\r\nb\tX", "a\tX\r\rb\tX\r"]
)
def test_empty_lines_and_line_ends(read, text):
    assert read(text) == [TaggedSentence(["a"], ["X"]), TaggedSentence(["b"], ["X"])]


@pytest.mark.parametrize("word", ["\xa0", "\u2028", "\x0c", "\u200b", "con người", '"'])
def test_any_other_line_is_a_word(read, word):
    assert read(f"{word}\na\n") == [TaggedSentence([word, "a"], None)]
    assert read(f"{word}\tX\na\tX\n") == [TaggedSentence([word, "a"], ["X", "X"])]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "test-th.tsv (language th): holds no word"),
        ("\n \n", "test-th.tsv (language th): holds no word"),
        (
            "a\tX\n\nb\tNOPE\n",
            "test-th.tsv:3 (language th): 'NOPE' is not one of the tags ADJ, ADP, ADV, "
            "AUX, CCONJ, DET, INTJ, NOUN, NUM, PART, PRON, PROPN, PUNCT, SCONJ, SYM, "
            "VERB, X, _",
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
def test_what_is_wrong_is_reported_with_its_line(read, text, message):
    assert refused(read, text) == message


def test_tags_of_entities_are_no_parts_of_speech(read):
    with pytest.raises(UserError, match="'NOUN' is not one of the tags B-LOC, B-ORG"):
        read("a\tNOUN\n", task="panx")


def test_training_needs_tags(read):
    message = refused(read, "\na\n", tags_may_miss=False)
    assert message.endswith(":2 (language th): no tags, which only test files may lack")


def processed(tmp_path, text, index):
    name = "udpos/udpos_processed_maxlen128/th/test.some-model"
    language_file(tmp_path / f"{name}.idx", index, "udpos")
    return language_file(tmp_path / name, text, "udpos", "th")


def test_what_preprocessing_made_is_found_and_rejoined(tmp_path):
    """Cut after the second word of the first sentence; empty lines count there."""
    file = processed(
        tmp_path,
        "a\tNOUN\nb\tVERB\n\nc\tNUM\n\n\nd\tX\n",
        "0\n0\n\n0\n\n\n2\n",
    )
    assert TASKS["udpos"].find_files(str(tmp_path), "test") == {"th": file.path}
    assert read_sentences(file, UDPOS, True) == [
        TaggedSentence(["a", "b", "c"], ["NOUN", "VERB", "NUM"]),
        TaggedSentence(["d"], ["X"]),
    ]


def test_what_preprocessing_fills_in_is_no_tag(tmp_path):
    file = processed(tmp_path, "a\tX\n\nb\tX\n", "0\n\n1\n")
    assert [s.tags for s in read_sentences(file, UDPOS, True)] == [None, None]


@pytest.mark.parametrize("index, line", [("0\n", 3), ("0\n0\n1\n", 2), ("", 1)])
def test_an_index_of_another_file_is_refused(tmp_path, index, line):
    file = processed(tmp_path, "a\tX\n\nb\tX\n", index)
    with pytest.raises(UserError, match="make both anew") as error:
        read_sentences(file, UDPOS, True)
    assert str(error.value).startswith(f"{file.path}.idx:{line} (language th): ")


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_real_sentences_are_those_of_the_reader_of_labels(data_dir, split):
    """Which was written apart, to score."""
    path = f"{data_dir}/xtreme/udpos/{split}-en.tsv"
    file = LanguageFile(path, "udpos", "en")
    sentences = read_sentences(file, UDPOS, False)
    assert [s.tags for s in sentences] == read_labels(file)
    with open(path, encoding="utf-8") as handle:
        lines = [line.split("\t")[0] for line in handle.read().split("\n") if line]
    assert [word for s in sentences for word in s.words] == lines
