"""Files of classification: csv quoting undone, mistakes named by file and line."""

import os

import pytest

from decoupled.core.errors import UserError
from decoupled.core.labels import LabelReader
from decoupled.tasks.presets import TASKS
from decoupled.tasks.text_files import read_corpus_labels, read_texts

LABELS = ["contradiction", "entailment", "neutral"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("pairs") / "test-sw.tsv")


def read_pairs(path, split="train"):
    return read_texts(path, TASKS["xnli"], split, LabelReader(LABELS))


def read(path, content, split="train"):
    with open(path, "w", encoding="utf-8", newline="") as handle:
        handle.write(content)
    return read_pairs(path, split)


def test_sentences_and_label_in_the_order_of_the_file(path):
    examples = read(path, "Ndiyo.\tHapana.\tcontradiction\r\na\tb\tneutral\r\n")
    assert examples == [
        (("Ndiyo.", "Hapana."), "contradiction"),
        (("a", "b"), "neutral"),
    ]


def test_test_files_may_lack_labels(path):
    assert read(path, "a\tb\nc\td\n", split="test") == [
        (("a", "b"), None),
        (("c", "d"), None),
    ]
    with pytest.raises(UserError, match=r"test-sw\.tsv:1: column 3: is missing"):
        read(path, "a\tb\nc\td\n")


@pytest.mark.parametrize(
    "written, text",
    [
        ('"He said ""yes""."', 'He said "yes".'),
        ('"""Yes"""', '"Yes"'),
        ('""""', '"'),
        # What csv.writer never writes is text.
        ('"Yes"', '"Yes"'),
        ('""', '""'),
        ('"Yes" he said', '"Yes" he said'),
        ('"Yes', '"Yes'),
        ('5" pipe', '5" pipe'),
        ('a ""b""', 'a ""b""'),
    ],
)
def test_only_what_csv_writer_quotes_loses_its_quotes(path, written, text):
    lines = f"{written}\tb\tneutral\na\t{written}\tneutral\n"
    assert [example.texts for example in read(path, lines)] == [
        (text, "b"),
        ("a", text),
    ]
    unlabelled = read(path, f"{written}\tb\n", split="test")
    assert unlabelled == [((text, "b"), None)]


def test_machine_translated_training_files_spell_a_label_their_own_way(path):
    [example] = read(path, "a\tb\tcontradictory\n")
    assert example.label == "contradiction"


@pytest.mark.parametrize(
    "content, message",
    [
        ("a\tb\tneutral\na\tb\n", r":2: 2 columns, not 3 \(sentence"),
        ("a\tb\tneutral\nx\tneutral\tb\tc\n", r":2: 4 columns, not 3"),
        ("alone\n", r":1: 1 columns, not 3"),
        ("a\tb\tneutral\n\nc\td\tneutral\n", r":2: 1 columns, not 3"),
        (
            "a\tb\tneutral\nc\td\tmaybe\n",
            r":2: .*unknown label 'maybe'; the task's labels",
        ),
        ("\n\n", "holds no example"),
        ("", "holds no example"),
    ],
)
def test_mistakes_are_reported_with_file_and_line(path, content, message):
    with pytest.raises(UserError, match=message) as caught:
        read(path, content)
    assert "test-sw.tsv" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("language", ["en", "sw"])
@pytest.mark.parametrize("split, count", [("dev", 2490), ("test", 5010)])
def test_real_files_of_xnli(data_dir, split, count, language):
    path = os.path.join(data_dir, "xtreme", "xnli", f"{split}-{language}.tsv")
    examples = read_pairs(path)
    assert len(examples) == count
    # The three hypotheses of a premise differ in their labels.
    assert {label: sum(e.label == label for e in examples) for label in LABELS} == (
        dict.fromkeys(LABELS, count // 3)
    )


def read_corpus(path, content):
    """As the test file of a corpus' task."""
    with open(path, "w", encoding="utf-8", newline="") as handle:
        handle.write(content)
    return read_texts(path, TASKS["catalogs"], "test", LabelReader(["no", "yes"]))


def test_lines_of_a_corpus_have_one_text_or_two(path):
    assert read_corpus(path, 'a "text"\tyes\n\nanother\ttext\tno\n') == [
        (('a "text"',), "yes"),
        (("another", "text"), "no"),
    ]
    [read] = read_corpus(path, "a\u2028b\x0cc\tyes\r\n")
    assert read.texts == ("a\u2028b\x0cc",)


@pytest.mark.parametrize(
    "content, message",
    [
        ("a\tyes\nb\tmaybe\n", r"\.tsv:2: .*unknown label 'maybe'; .*: no, yes"),
        ("a\tb\tc\tyes\n", r"\.tsv:1: 4 columns, not 2 or 3"),
        ("alone\n", r"\.tsv:1: 1 columns, not 2 or 3"),
        ("a\t\n", r"\.tsv:1: column 'label': is empty"),
        ("\n\n", r"\.tsv: holds no example"),
    ],
)
def test_mistakes_in_lines_of_a_corpus(path, content, message):
    with pytest.raises(UserError, match=message):
        read_corpus(path, content)


def test_bad_labels_of_a_corpus(tmp_path):
    (tmp_path / "labels.txt").write_text("same\nsame\n")
    with pytest.raises(UserError, match="labels.txt: label 'same' occurs twice"):
        read_corpus_labels(str(tmp_path))
