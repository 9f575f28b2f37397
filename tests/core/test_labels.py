"""What a label is: blanks, control characters, and labels that look the same."""

import time

import pytest

from decoupled.core.errors import UserError
from decoupled.core.labels import check_labels, label_in, look


def test_blanks_around_a_label_are_ignored():
    assert check_labels(["good ", "\tbad", "so so"], "x") == ["good", "bad", "so so"]
    # Other white space may be part of a label.
    assert label_in("10\u00a0", "x") == "10\u00a0"
    assert label_in("\u3000x", "x") == "\u3000x"


@pytest.mark.parametrize(
    "label, named",
    [
        ("a\tb", "U+0009"), ("a\n", "U+000A"), ("a\r", "U+000D"), ("\x0ba", "U+000B"),
        ("a\x1c", "U+001C"), ("a\x1b[31m", "U+001B"), ("a\x85", "U+0085"),
        ("a\u2028b", "U+2028"), ("\u2029", "U+2029"), ("a\x00", "U+0000"),
        ("a\x7f", "U+007F"), ("\ud83d", "U+D83D"),
    ],
)  # fmt: skip
def test_control_characters_are_refused(label, named):
    with pytest.raises(UserError, match=r"^labels\.txt:3: label '") as caught:
        label_in(label, "labels.txt:3")
    assert f"control character {named};" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("label", ["", "  ", "\u200b", "\ufe0f", "\u3000", "\u3164"])
def test_a_label_shows_something(label):
    with pytest.raises(UserError, match="shows no character"):
        label_in(label, "x")


@pytest.mark.parametrize(
    "one, other",
    [
        ("caf\u00e9", "cafe\u0301"),
        ("\uac00", "\u1100\u1161"),
        ("good", "good\u200b"),
        ("good", "go\u00adod"),
        ("good", "good\u00a0"),
        ("so so", "so\u3000so"),
        ("\u2764", "\u2764\ufe0f"),
        ("\u05d0", "\u05d0\u200f"),
    ],
)
def test_two_labels_that_look_the_same_are_refused(one, other):
    with pytest.raises(UserError) as caught:
        check_labels(["x", one, other], "config.json")
    assert f"config.json: labels {ascii(other)} and {ascii(one)} look the same" in str(
        caught.value
    )


def test_the_first_difference_of_long_labels_is_shown():
    with pytest.raises(UserError, match=r"labels 'a{30}b' and 'a{30}\\u200bb' look"):
        check_labels(["a" * 500 + "\u200bb", "a" * 500 + "b"], "x")


def test_labels_that_look_different_stay_apart():
    flags = ["\U0001f3f4\U000e0067\U000e007f", "\U0001f3f4\U000e0073\U000e007f"]
    labels = ["A", "a", "\uff21", "e", "\u00e9", "x2", "x\u00b2", "1", "01", *flags]
    assert check_labels(labels, "x") == labels
    assert look("a b") == "a b"


def test_a_list_names_a_label_once_and_only_texts():
    for again in ("good", "good "):
        with pytest.raises(UserError, match="x: label 'good' occurs twice"):
            check_labels(["good", "bad", again], "x")
    with pytest.raises(UserError, match="x: label 3 is not a text"):
        check_labels(["good", 3], "x")


@pytest.mark.parametrize("label", ["a" * 1001, "e" + "\u0327\u0301" * 200_000])
def test_a_label_is_short(label):
    begin = time.process_time()
    with pytest.raises(UserError, match="characters; at most 1,000 are") as caught:
        label_in(label, "x")
    assert look(label) == label
    assert time.process_time() - begin < 1
    assert len(str(caught.value)) < 500
