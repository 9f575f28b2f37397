"""Mistakes that are collected and shown at once, and how a terminal shows messages."""

import pytest

from decoupled.core.errors import Mistakes, UserError, in_one_line, printable


def test_one_mistake_is_reported_as_it_is_and_several_with_numbers():
    mistakes = Mistakes()
    mistakes.raise_all()
    for text in ("a: missing", "b: empty"):
        with mistakes.noted():
            raise UserError(text)
        if text.startswith("a"):
            with pytest.raises(UserError, match="^a: missing$"):
                mistakes.raise_all()
    with pytest.raises(UserError, match=r"^2 mistakes: \(1\) a: missing; \(2\) b: emp"):
        mistakes.raise_all()


def test_other_errors_pass():
    with pytest.raises(KeyError), Mistakes().noted():
        raise KeyError("a defect")


# Words that need joiners, marks and signs of the direction.
ORDINARY = [
    "naïve Straße",
    "e\u0301 combining",
    "العربية \u200f\u061c\u0640",
    "می\u200cخواهم",
    "हिन्दी क्\u200dष",
    "👩\u200d👩\u200d👧 🏴\U000e0067\U000e0062\U000e007f ❤\ufe0f",
    "日本語 \u3000 ไทย",
    "a\ufeffb \u00ad \u00a0 $x^{ [1] \\ % `",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_text_of_any_script_stays_as_it_is(text):
    assert printable(text) == in_one_line(text) == text


@pytest.mark.parametrize(
    "text, shown",
    [
        ("\x1b[31mred", r"\x1b[31mred"),
        ("bell\a back\b", r"bell\x07 back\x08"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("cr\rover", r"cr\rover"),
        ("\x00\x7f", r"\x00\x7f"),
        ("a\u202eb\u2066c\u2028", r"a\u202eb\u2066c\u2028"),
        ("\udcff", r"\udcff"),
    ],
)
def test_what_would_act_on_a_terminal_is_shown_by_its_number(text, shown):
    assert printable(text) == in_one_line(text) == shown


def test_a_message_is_one_line():
    assert printable("a\n\tb") == "a\n\tb"
    assert in_one_line("is empty;\n    build it") == "is empty; build it"
    assert in_one_line("new\nline  twice\t") == r"new\nline  twice"


def test_a_long_message_keeps_its_beginning_and_its_end():
    value = "x" * 200_000
    message = in_one_line(f"a.gin:3: size = {value} is no number; correct it")
    assert message.startswith("a.gin:3: size = xxx")
    assert message.endswith("xxx is no number; correct it")
    assert "[... 199,600 characters ...]" in message and len(message) < 600
    words = in_one_line(f"a.tsv:3: {'many words ' * 20_000}; correct it")
    assert words.startswith("a.tsv:3: many words") and words.endswith("; correct it")
    assert len(words) < 2100
