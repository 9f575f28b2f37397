"""Reading a task's files; each mistake names file, line and reason."""

import pytest

from decoupled.core.errors import UserError
from decoupled.tasks import examples


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "labels.txt").write_text("no\nyes\n")
    (tmp_path / "train-en.tsv").write_text("a text\tyes\nanother\tno\n")
    (tmp_path / "dev-sw.tsv").write_text("moja\tmbili\tno\n")
    (tmp_path / "dev-de.tsv").write_text("eins\tno\n")
    (tmp_path / "dev-en.tsv").write_text("one\tno\n")
    return tmp_path


def test_one_text_and_two(folder):
    labels = examples.read_labels(str(folder))
    assert labels == ["no", "yes"]
    train = examples.read_examples(str(folder / "train-en.tsv"), labels)
    assert train == [(("a text",), "yes"), (("another",), "no")]
    [pair] = examples.read_examples(str(folder / "dev-sw.tsv"), labels)
    assert pair.texts == ("moja", "mbili")


def test_languages_with_english_first(folder):
    assert examples.languages(str(folder), "dev") == ["en", "de", "sw"]
    assert examples.languages(str(folder), "test") == []


def test_line_separators_inside_a_text_stay(folder):
    (folder / "test-en.tsv").write_text("a\u2028b\x0cc\tyes\r\n", newline="")
    [read] = examples.read_examples(str(folder / "test-en.tsv"), ["no", "yes"])
    assert read.texts == ("a\u2028b\x0cc",)


@pytest.mark.parametrize(
    "content, message",
    [
        ("a\tyes\nb\tmaybe\n", r"x\.tsv:2: unknown label 'maybe'; one of no, yes"),
        ("a\tb\tc\tyes\n", r"x\.tsv:1: 4 columns, not 2 or 3"),
        ("alone\n", r"x\.tsv:1: 1 columns, not 2 or 3"),
        ("\n\n", r"x\.tsv: holds no example"),
    ],
)
def test_mistakes(folder, content, message):
    (folder / "test-x.tsv").write_text(content)
    with pytest.raises(UserError, match=message):
        examples.read_examples(str(folder / "test-x.tsv"), ["no", "yes"])


def test_missing_file_and_bad_labels(folder):
    with pytest.raises(UserError, match=r"test-sw\.tsv: cannot read"):
        examples.read_examples(str(folder / "test-sw.tsv"), ["no", "yes"])
    (folder / "labels.txt").write_text("same\nsame\n")
    with pytest.raises(UserError, match="two or more distinct labels"):
        examples.read_labels(str(folder))
