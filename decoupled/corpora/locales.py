"""Language codes: their form, and the codes of locale folders.

A code is the name of a folder, and the name of a language in settings and inputs. It
consists of ASCII letters and digits, in parts with a single "-", "_" or "@" between
them, and begins with a letter: `en`, `zh-Hant`, `zh_TW`, `be-tarask`, `sr@latin`.

The rule for the locale folders of a package:

* Codes are BCP 47: `zh_Hans` -> `zh-Hans`, `sr@latin` -> `sr-Latn`, `es_AR` -> `es-AR`.
* English variants (`en_GB`) are left out: English comes from the message ids alone.
* A territory is removed if the package has no other catalog of the language
  (`he_IL` -> `he`), or if it repeats the language's own code beside other territories
  (`pt_PT` -> `pt`).
* A code that still has a territory is a regional variant (`es-AR` beside `es`).
  Different scripts are different languages (`zh-Hans`, `zh-Hant`, `sr-Latn`).
"""

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from decoupled.core.errors import UserError

ENGLISH = "en"
# This pattern is also searched in longer text, so the limit of `MAX_CODE` characters is
# not in it. Users may choose any such code. `xtreme.files` has a narrower rule, because
# it has to tell languages from other words in file names.
CODE = r"[A-Za-z][A-Za-z0-9]*(?:[-_@][A-Za-z0-9]+)*"
MAX_CODE = 64
_LOCALE = re.compile(
    r"(?P<language>[a-z]{2,3})"
    r"(?:[_-](?P<script>[A-Za-z]{4}))?"
    r"(?:[_-](?P<territory>[A-Za-z]{2}|\d{3}))?"
    r"(?:@(?P<modifier>[A-Za-z0-9]+))?"
)
_MODIFIERS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva"}


class _Locale(NamedTuple):
    language: str
    script: str | None
    territory: str | None


def check_language(code: Any, source: str) -> None:
    """Raises a UserError that begins with `source` if `code` is no language code.

    Codes become folder names, and those of a manifest or a dump are not trusted.
    """
    is_short = isinstance(code, str) and len(code) <= MAX_CODE
    if not (is_short and re.fullmatch(CODE, code)):
        raise UserError(
            f"{source}: {code!r} is no language code, which has ASCII letters and "
            'digits, a letter first, a single "-", "_" or "@" between parts (zh-Hant, '
            f"zh_TW, sr@latin), and {MAX_CODE} characters at most"
        )


def language_codes(folders: Iterable[str]) -> dict[str, str]:
    """Locale folder -> language code; other folders and English variants are absent."""
    locales = {name: _parse(name) for name in sorted(folders)}
    locales = {name: locale for name, locale in locales.items() if locale}
    return {
        name: _code(locale, list(locales.values()))
        for name, locale in locales.items()
        if locale.language != ENGLISH or name == ENGLISH
    }


def is_variant(code: str) -> bool:
    """True for a regional variant such as `es-AR` or `es-419`."""
    return re.search(r"-([A-Z]{2}|\d{3})$", code) is not None


def base_language(code: str) -> str:
    """`es` for `es-AR`, `zh-Hant` for `zh-Hant-HK`; other codes are unchanged."""
    return code.rsplit("-", 1)[0] if is_variant(code) else code


def _parse(name: str) -> _Locale | None:
    match = _LOCALE.fullmatch(name)
    if match is None:
        return None
    script = match["script"]
    if match["modifier"]:
        script = _MODIFIERS.get(match["modifier"].lower(), match["modifier"].lower())
    elif script:
        script = script.title()
    territory = match["territory"].upper() if match["territory"] else None
    return _Locale(match["language"], script, territory)


def _code(locale: _Locale, locales: list[_Locale]) -> str:
    territory = locale.territory
    siblings = [
        other
        for other in locales
        if other[:2] == locale[:2] and other.territory != territory
    ]
    repeats_language = territory == locale.language.upper()
    has_plain_sibling = any(other.territory is None for other in siblings)
    if not siblings or (repeats_language and not has_plain_sibling):
        territory = None
    return "-".join(filter(None, (locale.language, locale.script, territory)))


# The languages of released models, by the codes that their corpora have:
# google-research/bert, multilingual.md; google-research/google-research,
# rembert/README.md.
# The codes of the Wikipedias of multilingual BERT's 104 languages: simplified and
# traditional Chinese are two of them, and one Wikipedia.
_MBERT = """
    af an ar ast az azb ba bar be bg bn bpy br bs ca ce ceb cs cv cy da de el en es
    et eu fa fi fr fy ga gl gu he hi hr ht hu hy id io is it ja jv ka kk kn ko ky la
    lb lmo lt lv mg min mk ml mn mr ms my nds ne new nl nn no oc pa pl pms pnb pt ro
    ru scn sco sh sk sl sq sr su sv sw ta te tg th tl tr tt uk ur uz vi vo war yo zh
"""
# The paper says 110 languages; its release lists 111 codes, which are mC4's: iw is
# Hebrew, and Latn romanised text.
_REMBERT = """
    af am ar az be bg bg-Latn bn bs ca ceb co cs cy da de el el-Latn en eo es et eu
    fa fi fil fr fy ga gd gl gu ha haw hi hi-Latn hmn hr ht hu hy id ig is it iw ja
    ja-Latn jv ka kk km kn ko ku ky la lb lo lt lv mg mi mk ml mn mr ms mt my ne nl
    no ny pa pl ps pt ro ru ru-Latn sd si sk sl sm sn so sq sr st su sv sw ta te tg
    th tr uk ur uz vi xh yi yo zh zh-Hans zh-Hant zh-Latn zu
"""
LISTS = {"mbert": _MBERT.split(), "rembert": _REMBERT.split()}


def expand_lists(languages: Iterable[str]) -> list[str]:
    """The languages, each once, with those of a list in place of its name."""
    codes = (code for name in languages for code in LISTS.get(name, [name]))
    return list(dict.fromkeys(codes))
