"""Messages of catalogs become plain text."""

import pytest

from decoupled.corpora.catalogs.message_text import clean_message, message_key


@pytest.mark.parametrize(
    "message, text",
    [
        ("Cannot delete %(name)s", "Cannot delete …"),
        ("“%(value)s” value must be %(type)r.", "“…” value must be …."),
        ("%d of %d selected", "… of … selected"),
        ("%1$s sent %2$s a file", "… sent … a file"),
        ("%(size)d byte", "… byte"),
        ("%(number)s. päivä", "…. päivä"),
        ("{name} by {0} on {{ date }}", "… by … on …"),
        ("{% if x %}Shown{% endif %} here", "…Shown… here"),
        ("%(a)s %(b)s has text", "… has text"),
        ("100%% of 20% taken", "100% of 20% taken"),
        ('Log <a href="%(url)s">in</a>.<br>Please', "Log in. Please"),
        ("Save &amp; close&nbsp;it", "Save & close it"),
        ("a &lt; b, 1 < 2 or more", "a < b, 1 < 2 or more"),
        ("&File _Edit AT&T user_id", "File Edit AT&T user_id"),
        ("文件(&F)", "文件"),
        ("  two\n lines\t", "two lines"),
        ("是", "是"),
    ],
)
def test_cleans(message, text):
    assert clean_message(message) == text


@pytest.mark.parametrize(
    "message", ["", "%(name)s", "%s: %s", "…", "12:30", "M", "<br>", 'broken {"a": {}']
)
def test_drops_what_is_not_legible(message):
    assert clean_message(message) == ""


def test_key_ignores_case_space_and_punctuation():
    assert message_key("Yes, Delete!") == message_key("yes delete") == "yesdelete"


def test_key_keeps_vowel_signs():
    assert message_key("कि") != message_key("की")
