"""The text that replaces a template within a sentence.

Templates are programs of their wiki, and a dump of articles does not contain them. The
templates that occur most often within a sentence are replaced by one of their
arguments. Those that mark a note or a doubt are removed, because their text does not
belong to the sentence; the text that a doubt is about stays. The text of all others is
unknown, and a `HOLE` or `GAP` replaces them.

names.json has the names that this depends on, in wikis of many languages: namespaces,
disambiguation pages, sections of references, and templates within sentences. Names are
compared after case folding and with underscores replaced by spaces. A change of the
names changes text: increase `wikitext.RULES` with it.
"""

import calendar
import importlib.resources
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from decoupled.core import files
from decoupled.corpora.text_lines import is_small


def normal_form(name: str) -> str:
    """The form in which names are compared."""
    return " ".join(name.replace("_", " ").split()).casefold()


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(normal_form, names))


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
TEMPLATES = {kind: _names(names) for kind, names in NAMES["templates"].items()}

# Codes of wikis: two or three letters, for some with an addition.
LANGUAGE_PREFIX = re.compile(
    r"(?:[a-z]{2,3}(?:-[a-z]{2,}){0,2}|simple|be-x-old|map-bms|cbk-zam|fiu-vro)"
)

# {{link-en|text|Title}}, of any language.
_LANGUAGE_LINK = re.compile(f"link-{LANGUAGE_PREFIX.pattern}")

_DISAMBIGUATION_TEMPLATES = _names(NAMES["disambiguation_templates"])
_DISAMBIGUATION_TITLE = re.compile(
    rf"[(（](?:{'|'.join(NAMES['disambiguation_titles'])})[)）]$", re.IGNORECASE
)
_DISAMBIGUATION_WORD = re.compile(r"__\s*DISAMBIG\s*__", re.IGNORECASE)
_TEMPLATE_NAME = re.compile(r"\{\{([^{}|\n<]{2,80})")
# Sections that list sources, links, works or pictures and have no prose. The ambiguous
# ones may have some: about a country's literature, a river's source.
_AMBIGUOUS_END_SECTIONS = _names(NAMES["ambiguous_end_sections"])
_END_SECTIONS = _names(NAMES["end_sections"]) | _AMBIGUOUS_END_SECTIONS


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
    return _section_name(heading) in _END_SECTIONS


def is_ambiguous_section(heading: str) -> bool:
    """True for those headings of an end section that may also stand above prose."""
    return _section_name(heading) in _AMBIGUOUS_END_SECTIONS


def _section_name(heading):
    return normal_form(heading).rstrip(" :：")


# Replaces a part of the sentence: a formula, a conversion. (This is Unicode's object
# replacement character.)
HOLE = "\ufffc"
# Replaces an unknown template, which may be a note or a part of the sentence.
GAP = "\ufff9"

# Markup that may occur between the start of a line and its text, and before a word.
_MARKS_BEFORE = re.compile(r"(?:['*#:; \t]|<[a-z][^<>\n]*>)*", re.IGNORECASE)
_BEFORE_WORD = re.compile(
    r"(?:'|</?[a-z][^<>\n]{0,200}>){0,20}(?P<line>\n)?"
    r"(?:'|</?[a-z][^<>\n]{0,200}>){0,20}"
    r"(?:\[\[(?=(?P<target>[^\[\]|\n]{0,200}))(?:[^\[\]|\n]{0,200}\|)?)?"
    r"(?P<letter>[^\W\d_])",
    re.IGNORECASE,
)
_WINDOW = 200
_LONGEST_CAPTION = 2000
_DEPTH = 6

# Text before a date or a name, which may be the template's argument.
_TEXT_BEFORE_ARGUMENT = NAMES["text_before_argument"]
# An apostrophe beside the two of italics would be read as bold.
APOSTROPHE = "&#39;"
_CONSTANT_TEXT = {
    name: text.replace("'", APOSTROPHE) for name, text in NAMES["constant_text"].items()
}
_UNITS, _SYMBOLS = NAMES["units"], frozenset(NAMES["unit_symbols"])
_RANGES = NAMES["ranges"]
_WITHOUT_TEXT = TEMPLATES["nothing"]

_FRENCH_CENTURY = re.compile(r"([IVX]+(?:e|er)) (siècle|millénaire)([^|]*)", re.I)
_NUMBER = re.compile(r"[-−+]?[\d,.]+(?:[/⁄]\d+)?(?:e\d+)?")
# A month in digits: "1 1 2000". A year before Christ: "-44".
_NO_DATE = re.compile(r"(?:\d[\s/.-]+|[-−])\d")
_INNERMOST = re.compile(r"\{\{([^{}]*)\}\}")
_LINK_BAR = re.compile(r"(\[\[[^\[\]|]*)\|([^\[\]]*\]\])")


def nothing(text: str, start: int, end: int, next_line: bool = False) -> str:
    """The replacement of markup without text, text[start:end]: "", or a `HOLE`."""
    # The capital of a line that goes on in lowercase may have been inside the markup:
    # `<score>F</score>undamental`.
    if not starts_line(text, start):
        return ""
    return HOLE if is_before_small(text, end, next_line) else ""


def starts_line(text: str, start: int) -> bool:
    """Whether only marks of lists and fonts precede `start` in its line."""
    line = text[max(0, start - _WINDOW) : start].rpartition("\n")[2]
    return _MARKS_BEFORE.fullmatch(line) is not None


def is_before_small(text: str, end: int, next_line: bool) -> bool:
    """Whether a lowercase letter follows directly, perhaps in a font tag or a link.

    Pictures and categories may lie between.
    """
    for _ in range(_DEPTH):
        match = _BEFORE_WORD.match(text, end)
        if match is None or (match["line"] and not next_line):
            return False
        namespace, colon, _ = (match["target"] or "").partition(":")
        if not (colon and is_beside_text(namespace)):
            return is_small(match["letter"])
        end = text.find("]]", match.end(), match.end() + _LONGEST_CAPTION) + 2
        if end == 1:
            return False
    return False


def is_beside_text(namespace: str) -> bool:
    """Whether links to pages of the namespace are pictures or categories."""
    name = normal_form(namespace)
    return name in FILE_NAMESPACES or name in CATEGORY_NAMESPACES


def replacement(template: str) -> str:
    """What replaces a template, `{{...}}`: plain wikitext, `HOLE`, or `GAP`."""
    content = template[2:-2]
    if "{{" not in content:
        return _content_text(content)
    name = _name(content)
    if name in _WITHOUT_TEXT:
        return ""
    if len(template) > 1000:
        return GAP
    for _ in range(_DEPTH):
        content, count = _INNERMOST.subn(lambda match: _content_text(match[1]), content)
        if not count:
            break
    return _content_text(content) if "{{" not in content else GAP


def _name(content):
    return normal_form(content.partition("|")[0])


def _content_text(content):
    name = _name(content)
    if name in _WITHOUT_TEXT:
        return ""
    if name in _CONSTANT_TEXT:
        return HOLE if any(_positional_arguments(content)) else _CONSTANT_TEXT[name]
    if name in _TEXT_BEFORE_ARGUMENT:
        arguments = _positional_arguments(content)
        if any(arguments[1:]):
            return HOLE
        return " ".join([_TEXT_BEFORE_ARGUMENT[name], *arguments]).strip()
    if name.startswith("formatnum:"):
        return content.partition(":")[2].partition("|")[0].strip()
    if _LANGUAGE_LINK.fullmatch(name):
        name = "link-interwiki"
    if kind := _KIND_OF.get(name):
        arguments = _positional_arguments(content)
        if any(arguments[kind.max_count :]) or _has_argument(content, kind.text_keys):
            return HOLE
        return kind.text(arguments, content) or kind.without_text
    if century := _FRENCH_CENTURY.fullmatch(" ".join(content.split())):
        return "".join((century[1], " ", century[2], century[3]))
    return GAP


def _positional_arguments(content):
    if "[[" in content:
        content = _LINK_BAR.sub("\\1\0\\2", content)
    arguments = []
    for argument in content.split("|")[1:]:
        name, equals, value = argument.partition("=")
        if not equals:
            arguments.append(argument.strip())
        elif name.strip().isdigit():
            arguments.append(value.strip())
    return [argument.replace("\0", "|") for argument in arguments]


def _named_argument(content, key):
    match = re.search(rf"\|\s*{key}\s*=\s*([^|]*)", content)
    return match[1].strip() if match else ""


def _has_argument(content, keys):
    return bool(keys and re.search(rf"\|\s*(?:{keys})\s*=", content))


def _first(arguments, content):
    return arguments[0] if arguments else ""


def _second(arguments, content):
    return arguments[1] if len(arguments) > 1 else ""


def _last(arguments, content):
    return arguments[-1] if arguments else ""


def _second_or_first(arguments, content):
    return _second(arguments, content) or _first(arguments, content)


def _raised(arguments, content):
    tag = "sub" if _name(content) == "sub" else "sup"
    return f"<{tag}>{arguments[0]}</{tag}>" if arguments else ""


def _link_title(arguments, content):
    """{{ill|Title|de|Titel}}; the old order is {{ill|de|Titel}}."""
    title = _first(arguments, content)
    return HOLE if LANGUAGE_PREFIX.fullmatch(title) else title


def _convert(arguments, content):
    text = ""
    while arguments and _NUMBER.fullmatch(arguments[0]):
        text += arguments.pop(0)
        if len(arguments) > 1 and arguments[0] in _RANGES:
            text += _RANGES[arguments.pop(0)]
        else:
            break
    if not text or not arguments or "e" in text:
        return HOLE
    unit = _UNITS.get(arguments[0].lower(), arguments[0])
    if unit == arguments[0] and unit not in _SYMBOLS:
        return HOLE
    if len(arguments) > 2 and _NUMBER.fullmatch(arguments[1]):
        is_length = arguments[2] == "in" and "1" not in (text, arguments[1])
        return f"{text} {unit} {arguments[1]} inches" if is_length else HOLE
    if re.search(r"\badj\s*=\s*(on|mid)", content):
        singular = {"feet": "foot", "inches": "inch", "stone": "stone"}
        return f"{text}-{singular.get(unit, unit.removesuffix('s'))}"
    # The names of units are plurals.
    return HOLE if text.lstrip("-−+") == "1" else f"{text} {unit}"


def _value(arguments, content):
    if not any(arguments):
        return HOLE
    unit = _named_argument(content, "u") or _named_argument(content, "ul")
    return (
        f"{arguments[0]} {unit}".strip() if re.fullmatch("[A-Za-z%°]*", unit) else HOLE
    )


def _number_and_unit(arguments, content):
    return " ".join(filter(None, arguments))


def _fraction(arguments, content):
    # A space, because a number may stand before it: `5{{frac|1|2}}`.
    if len(arguments) == 3:
        return f" {arguments[0]} {arguments[1]}/{arguments[2]}"
    return f" {'/'.join(arguments)}" if len(arguments) == 2 else HOLE


def _as_of(arguments, content):
    date, month = [*arguments, "", ""][:2]
    if not date.isdigit():
        return ""
    word = "as of" if re.search(r"\blc\s*=\s*[yo]", content) else "As of"
    if month:
        if month.lstrip("0") not in map(str, range(1, 13)):
            return HOLE
        date = f"{calendar.month_name[int(month)]} {date}"
    return f"{word} {date}"


def _french_century(arguments, content):
    if len(arguments) < 2:
        return ""
    word = "" if _name(content) == "s-" else " siècle"
    return f"{arguments[0]}{arguments[1]}{word}"


def _spanish_century(arguments, content):
    if not arguments:
        return ""
    before_christ = " a. C." if len(arguments) > 1 and arguments[1] == "a" else ""
    return f"siglo {arguments[0]}{before_christ}"


def _quoted(arguments, content):
    return f"« {arguments[0]} »" if arguments else ""


def _ship(arguments, content):
    return " ".join(arguments[:2])


def _prefixed_ship(arguments, content):
    return f"{_name(content).upper()} {arguments[0]}" if arguments else ""


def _chinese_link(arguments, content):
    """{{tsl|en|English title|Chinese title|text}}"""
    return _last(arguments[2:4], content)


def _date(arguments, inner):
    text = " ".join(filter(None, arguments[:3]))
    return HOLE if _NO_DATE.search(text) else text


class _Kind(NamedTuple):
    """How a kind of templates is shown; one with other arguments becomes a `HOLE`.

    text: makes it of the positional arguments and all that is in the braces. max_count:
    of the positional arguments; many conversions in one would take long. text_keys:
    names of arguments that change the text. without_text: the replacement of one that
    shows nothing; a note about the text before it needs no argument.
    """

    text: Callable[[list[str], str], str]
    max_count: int
    text_keys: str = ""
    without_text: str = GAP


# names.json lists the templates of each kind.
_KINDS = {
    "only_argument": _Kind(_first, 1),
    "first_of_two_arguments": _Kind(_first, 2, "text|texte"),
    "marked_text": _Kind(_first, 50, "text|texte", without_text=""),
    "raised": _Kind(_raised, 1),
    "japanese_name": _Kind(_first, 4),
    "link_title": _Kind(_link_title, 50, "lt|label"),
    "second_argument": _Kind(_second, 2),
    "last_argument": _Kind(_last, 3),
    "second_or_first_argument": _Kind(_second_or_first, 5),
    "conversion": _Kind(_convert, 50),
    "number_and_unit": _Kind(_number_and_unit, 2, "e"),
    "fraction": _Kind(_fraction, 3),
    "french_century": _Kind(_french_century, 2),
    "spanish_century": _Kind(_spanish_century, 3),
    "prefixed_ship": _Kind(_prefixed_ship, 3),
    "ship": _Kind(_ship, 4),
    "date": _Kind(_date, 4),
    "value": _Kind(_value, 1, "e|upl?|p|s|end"),
    "as_of": _Kind(_as_of, 2, "since|alt|pre|post|bare"),
    "quotation": _Kind(_quoted, 1),
    "chinese_link": _Kind(_chinese_link, 4),
}
_KIND_OF = {name: _KINDS[kind] for kind in _KINDS for name in TEMPLATES[kind]}
