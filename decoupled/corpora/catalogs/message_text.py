"""Turns the messages of a gettext catalog into plain text.

Placeholders become an ellipsis, which exists in every language and keeps the sentence
whole ("Cannot delete …"); markup, entities and keyboard accelerators go.
"""

import html
import re
import unicodedata

ELLIPSIS = "…"

# Order matters: doubled percent signs are set aside before anything else reads them.
_LITERAL_PERCENT = "\ue000"
_PLACEHOLDERS = re.compile(
    r"""
      %\s?\(\s*[\w.]+\s*\)\s?[-+\#0]*\d*(?:\.\d+)?[a-zA-Z]?   # %(name)s, %(size).1f
    | %s                                                      # after a digit, too
    | (?<![\d%])%(?:\d+\$)?[-+\#0]*\d*(?:\.\d+)?[a-zA-Z]      # %1$s, %d; not 100%ig
    | \{%.*?%\}                                               # {% tag %}
    | \$?\{\{[^{}]*\}\}                                       # {{ name }}
    | \$?\{[^{}]*\}                                           # {name}, {0}, {}, ${x}
    """,
    re.VERBOSE,
)
_BLOCK_TAG = re.compile(r"</?(?:br|p|li|ul|ol|div|h\d|tr|td|th|hr)\b[^<>]*>", re.I)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<!--.*?-->")
_ENTITY = re.compile(r"&(?:\w+|#\d+|#[xX][0-9a-fA-F]+);")
# "文件(&F)" and "文件(_F)": how East Asian translations append the accelerator.
_APPENDED_ACCELERATOR = re.compile(r"\s*\([&_]\w\)")
# "&File" and "_File" at the start of a word; "AT&T" and "user_id" stay.
_ACCELERATOR = re.compile(r"(?<![\w&_])[&_](?=[^\W\d_])")
_REPEATED_ELLIPSIS = re.compile(rf"{ELLIPSIS}(?:\s*{ELLIPSIS})+")


def clean_message(message: str) -> str:
    """The text of a message in one line; "" where braces or nothing legible remains.

    A message is legible with two letters or, as one character is a word there, with one
    letter that is neither upper nor lower case (是).
    """
    text = message.replace("%%", _LITERAL_PERCENT)
    text = _PLACEHOLDERS.sub(ELLIPSIS, text).replace(_LITERAL_PERCENT, "%")
    text = _TAG.sub("", _BLOCK_TAG.sub(" ", text))
    text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    text = _ACCELERATOR.sub("", _APPENDED_ACCELERATOR.sub("", text))
    text = " ".join(_REPEATED_ELLIPSIS.sub(ELLIPSIS, text).split())
    if "{" in text or "}" in text:
        return ""
    return text if _is_legible(text) else ""


def message_key(text: str) -> str:
    """What two messages share when they differ in case, space or punctuation only."""
    return "".join(
        character
        for character in text.casefold()
        if unicodedata.category(character)[0] in "LMN"
    )


def _is_legible(text: str) -> bool:
    letters = [character for character in text if character.isalpha()]
    return len(letters) > 1 or any(
        unicodedata.category(letter) == "Lo" for letter in letters
    )
