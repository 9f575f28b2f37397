"""Reads the gettext message catalogs of installed packages: human-translated text.

English text comes from the message ids, the other languages from their translations. A
catalog is all `.po` files of one application (`django.po` and `djangojs.po` of
`django/contrib/admin` make the catalog `admin`).

Placeholders become an ellipsis, which exists in every language and keeps the sentence
complete ("Cannot delete …"). Markup, entities and keyboard accelerators are removed.
"""

import collections
import importlib.util
import os
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from decoupled.core import files, gfile, installed
from decoupled.core.errors import UserError
from decoupled.corpora import locales
from decoupled.corpora.text_lines import normal_form, unescape

if TYPE_CHECKING:
    import polib

# Increased when the rules that choose and clean messages change, so that a corpus made
# with the old rules is not reused.
RULES = 2
# Folders whose catalog belongs to the package as a whole: its settings ("django/conf"),
# or the package's own folder ("").
_CORE_FOLDERS = ("", "conf")
CORE = "core"

ELLIPSIS = "…"

# Order matters: doubled percent signs are set aside before anything else reads them.
_LITERAL_PERCENT = "\ue000"
_PLACEHOLDERS = re.compile(
    r"""
      %\s?\(\s*[\w.]+\s*\)\s?[-+\#0]*\d*(?:\.\d+)?[a-zA-Z]?   # %(name)s, %(size).1f
    | %s                                                      # after a digit, too
    | (?<![\d%])%(?:\d+\$)?[-+\#0]*\d*(?:\.\d+)?[a-zA-Z]      # %1$s, %d; not 100%ig
    | \{%(?:(?!\{%|%\}).)*%\}                                 # {% tag %}
    | \$?\{\{[^{}]*\}\}                                       # {{ name }}
    | \$?\{[^{}]*\}                                           # {name}, {0}, {}, ${x}
    """,
    re.VERBOSE,
)
_BLOCK_TAG = re.compile(r"</?(?:br|p|li|ul|ol|div|h\d|tr|td|th|hr)\b[^<>]*>", re.I)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<!--(?:(?!<!--|-->).)*-->")
_ENTITY = re.compile(r"&(?:\w+|#\d+|#[xX][0-9a-fA-F]+);")
# East Asian translations append the accelerator: "文件(&F)" and "文件(_F)".
_APPENDED_ACCELERATOR = re.compile(r"\s*\([&_]\w\)")
# "&File" and "_File" at the start of a word; "AT&T" and "user_id" stay.
_ACCELERATOR = re.compile(r"(?<![\w&_])[&_](?=[^\W\d_])")
_REPEATED_ELLIPSIS = re.compile(rf"{ELLIPSIS}(?:\s*{ELLIPSIS})+")


class Message(NamedTuple):
    """One English message of one catalog.

    package, catalog: the source of the message, e.g. "django" and "admin".
    key: equal messages of different catalogs have equal keys.
    translations: language code -> text, English included.
    """

    package: str
    catalog: str
    key: str
    translations: dict[str, str]


class Catalogs(NamedTuple):
    """messages: by package and catalog, in their order. dropped: reason -> count."""

    messages: list[Message]
    dropped: dict[str, int]


class _File(NamedTuple):
    path: str
    name: str
    package: str
    catalog: str
    language: str


def check_installed(packages: Sequence[str]) -> None:
    """Raises a UserError if one of the packages is not installed."""
    installed.need("polib", purpose="message catalogs")
    if "django" in packages:
        installed.need("django", purpose="catalogs:django")
    for package in packages:
        _package_folder(package)


def read_catalogs(packages: Sequence[str]) -> Catalogs:
    """Reads every catalog of the packages, e.g. ["django", "wagtail"].

    Skipped and counted in `dropped` are fuzzy, obsolete and untranslated entries,
    entries without legible text, and translations that equal the English message
    (untranslated, or a loan word) or, in a regional variant, the translation of the
    base language. For a plural entry the general form is kept: the English plural and
    the highest translated form.

    Raises:
      UserError: a package is not installed, has no catalogs, or a file is damaged.
    """
    dropped = collections.Counter()
    messages: list[Message] = []
    for package in packages:
        catalogs: dict[str, dict[str, Message]] = {}
        for file in _find_files(package):
            entries = _read_entries(file.path)
            _add_entries(catalogs.setdefault(file.catalog, {}), entries, file, dropped)
        for name in sorted(catalogs):
            messages += catalogs[name].values()
    _drop_copies(messages, dropped)
    return Catalogs(messages, dict(sorted(dropped.items())))


def libraries() -> dict[str, str]:
    """The version of the library of catalogs, which their fingerprints do not hold."""
    return {"polib": _polib().__version__}


def fingerprint_catalogs(packages: Sequence[str]) -> dict[str, str]:
    """Package -> one SHA-256 over the names and contents of its catalogs.

    Raises:
      UserError: a package is not installed or has no catalogs.
    """
    return {
        package: files.fingerprint(
            "".join(
                f"{file.name} {files.file_fingerprint(file.path)}\n"
                for file in _find_files(package)
            )
        )
        for package in packages
    }


def _find_files(package: str) -> list[_File]:
    """The `.po` files of a package; English first, as it determines the order."""
    root = _package_folder(package)
    places = []
    for folder, _, names in sorted(gfile.walk(root)):
        parent, folder_name = os.path.split(folder)
        if folder_name == "LC_MESSAGES":
            places += [(parent, name) for name in sorted(names) if name.endswith(".po")]
    codes = locales.language_codes({os.path.basename(parent) for parent, _ in places})
    if not codes:
        raise UserError(f"catalogs:{package}: no LC_MESSAGES/*.po files below {root}")
    po_files = [
        _describe_file(package, root, parent, name, codes[os.path.basename(parent)])
        for parent, name in places
        if os.path.basename(parent) in codes
    ]
    return sorted(
        po_files, key=lambda file: (file.language != locales.ENGLISH, file.name)
    )


def _describe_file(
    package: str, root: str, parent: str, name: str, language: str
) -> _File:
    path = os.path.join(parent, "LC_MESSAGES", name)
    relative = os.path.join(package, os.path.relpath(path, root))
    # .../admin/locale/de/LC_MESSAGES/django.po belongs to the application "admin".
    application = os.path.relpath(os.path.dirname(os.path.dirname(parent)), root)
    return _File(path, relative, package, _catalog_name(application), language)


def _package_folder(package: str) -> str:
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            f"catalogs:{package}: no such package is installed; install it with pip"
        )
    return list(spec.submodule_search_locations)[0]


def _catalog_name(application: str) -> str:
    folder_name = os.path.basename(application.rstrip("."))
    return CORE if folder_name in _CORE_FOLDERS else folder_name


def _polib():
    # polib rather than Babel: Babel prints a warning for each superfluous plural form.
    # Imported here because corpora of text files do not need it.
    import polib

    return polib


def _read_entries(path: str) -> "list[polib.POEntry]":
    if "\0" in files.read_text(path):
        raise UserError(f"{path}: not a gettext catalog (a NUL character)")
    try:
        # The path, not the text: polib would end lines of a text at U+2028, too, and
        # open the file that a text of one line names.
        return list(_polib().pofile(path, encoding="utf-8"))
    except OSError as error:
        line = re.search(r"line (\d+)", str(error))
        where = f"line {line[1]}" if line else files.reason(error)
        raise UserError(f"{path}: not a gettext catalog ({where})") from error


def _add_entries(
    catalog: dict[str, Message],
    entries: "Iterable[polib.POEntry]",
    file: _File,
    dropped: collections.Counter,
) -> None:
    for entry in entries:
        if entry.obsolete:
            dropped["obsolete"] += 1
            continue
        english = clean_message(entry.msgid_plural or entry.msgid)
        key = message_key(english)
        if not key:
            dropped["no text"] += 1
            continue
        message = Message(file.package, file.catalog, key, {locales.ENGLISH: english})
        translations = catalog.setdefault(key, message).translations
        if file.language == locales.ENGLISH:
            continue
        text, reason = _translation(entry)
        if file.language in translations:
            dropped["repeated"] += 1
        elif reason:
            dropped[reason] += 1
        else:
            translations[file.language] = text


def _translation(entry: "polib.POEntry") -> tuple[str, str]:
    """The cleaned translation, and why it cannot be used ("" if it can)."""
    if entry.fuzzy:
        return "", "fuzzy"
    if not entry.translated():
        return "", "untranslated"
    plurals = entry.msgstr_plural
    text = clean_message(plurals[max(plurals)] if plurals else entry.msgstr)
    return (text, "") if message_key(text) else ("", "no text")


def _drop_copies(messages: list[Message], dropped: collections.Counter) -> None:
    """Removes translations that repeat English or, in a variant, the base language."""
    for message in messages:
        keys = {
            language: message_key(text)
            for language, text in message.translations.items()
        }
        for language in keys:
            base = locales.base_language(language)
            if language != locales.ENGLISH and keys[language] == message.key:
                reason = "same as English"
            elif base != language and keys[language] == keys.get(base):
                reason = "same as the base language"
            else:
                continue
            del message.translations[language]
            dropped[reason] += 1


def clean_message(message: str) -> str:
    """The text of a message in one line; "" if braces or no legible text remain.

    A text is legible if it has two letters, or one letter that is neither upper nor
    lower case: in such scripts one character can be a word (是).
    """
    text = message.replace("%%", _LITERAL_PERCENT)
    text = _PLACEHOLDERS.sub(ELLIPSIS, text).replace(_LITERAL_PERCENT, "%")
    text = _TAG.sub("", _BLOCK_TAG.sub(" ", text))
    text = _ENTITY.sub(lambda entity: unescape(entity[0]), text)
    text = _ACCELERATOR.sub("", _APPENDED_ACCELERATOR.sub("", text))
    text = " ".join(_REPEATED_ELLIPSIS.sub(ELLIPSIS, text).split())
    if "{" in text or "}" in text:
        return ""
    return text if _is_legible(text) else ""


def message_key(text: str) -> str:
    """A key of messages that differ only in case, space, punctuation or normal form."""
    return "".join(
        character
        for character in normal_form(text).casefold()
        if unicodedata.category(character)[0] in "LMN"
    )


def _is_legible(text: str) -> bool:
    letters = [character for character in text if character.isalpha()]
    return len(letters) > 1 or any(
        unicodedata.category(letter) == "Lo" for letter in letters
    )
