"""Names in wikis of many languages, from names.json.

Namespaces, disambiguation pages, sections of references, and templates within
sentences. Names are compared after case folding and with underscores replaced by
spaces. A change of the names changes text: increase `wikitext.RULES` with it.
"""

import importlib.resources
import re
from collections.abc import Iterable

from decoupled.core import files


def normal_form(name: str) -> str:
    """The form in which names are compared."""
    return " ".join(name.replace("_", " ").split()).casefold()


def _names(listed: Iterable[str]) -> frozenset[str]:
    return frozenset(map(normal_form, listed))


NAMES = files.parse_json(
    importlib.resources.files(__package__).joinpath("names.json").read_bytes()
)
# A dump lists its wiki's own names of namespaces, and `wikipedia.dump` replaces them by
# the English names in links. But no dump lists the aliases, such as Bild and Image for
# Datei and Fichier.
FILE_NAMESPACES = _names(NAMES["file_namespaces"])
CATEGORY_NAMESPACES = _names(NAMES["category_namespaces"])
# Prefixes of other projects; the text of their links is a part of the sentence.
SISTER_PROJECTS = _names(NAMES["sister_projects"])
# Kind of template -> its names.
TEMPLATES = {kind: _names(listed) for kind, listed in NAMES["templates"].items()}

# Codes of wikis: two or three letters, for some with an addition.
LANGUAGE_PREFIX = re.compile(
    r"(?:[a-z]{2,3}(?:-[a-z]{2,}){0,2}|simple|be-x-old|map-bms|cbk-zam|fiu-vro)"
)

_DISAMBIGUATION_TEMPLATES = _names(NAMES["disambiguation_templates"])
_DISAMBIGUATION_TITLE = re.compile(
    rf"[(（](?:{'|'.join(NAMES['disambiguation_titles'])})[)）]$", re.IGNORECASE
)
_DISAMBIGUATION_WORD = re.compile(r"__\s*DISAMBIG\s*__", re.IGNORECASE)
_TEMPLATE_NAME = re.compile(r"\{\{([^{}|\n<]{2,80})")
# Sections that list sources, links, works or pictures and have no prose.
_END_SECTIONS = _names(NAMES["end_sections"])


def is_disambiguation(title: str, wikitext: str) -> bool:
    """True if the title, a template or a magic word marks a disambiguation page."""
    if title.endswith((")", "）")) and _DISAMBIGUATION_TITLE.search(title):
        return True
    if "__" in wikitext and _DISAMBIGUATION_WORD.search(wikitext):
        return True
    return any(
        normal_form(name) in _DISAMBIGUATION_TEMPLATES
        for name in _TEMPLATE_NAME.findall(wikitext)
    )


def is_end_section(heading: str) -> bool:
    """True for the heading of references, links, lists of works and the like."""
    return normal_form(heading).rstrip(" :：") in _END_SECTIONS
