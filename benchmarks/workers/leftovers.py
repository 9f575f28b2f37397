"""Counts what is left of markup in text. Standard library only."""

import re

# Marks, names from tags, attributes and templates, and what the removal of a template
# leaves of a parenthesis. Names also find it where punctuation was taken out.
_LEFTOVERS = re.compile(
    r"\[\[|\]\]|\{\{|\}\}|\{\||\|\}|\||==+|''+|</?[a-z]+|&[a-z]+;|__[A-Z]+__|formula_\d"
    r"|https?\b|www\.|\b\d*px\b|\b(?:thumb|nbsp|ndash|colspan|rowspan|bgcolor|valign"
    r"|cellpadding|wikitable|reflist|infobox|navbox|ref|isbn|doi)\b"
    r"|[(（]\s*[,;:)）]|[,;]\s*\)|,\s*,|\s,",
    re.IGNORECASE,
)


def count(text: str) -> int:
    """The number of places in a text that look like markup."""
    return sum(1 for _ in _LEFTOVERS.finditer(text))
