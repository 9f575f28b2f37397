"""Parallel text: sentences with ids, groups of sentences, their splits, Bible books.

An id is the same in every language. For example, `01002003` is verse 3 of chapter 2 of
the first book. The group of an id (a chapter, a page) is held out as a whole, in all
languages. The choice depends only on the group's name and a seed.
"""

import hashlib
import re
from collections.abc import Sequence

from decoupled.configs.corpora import ParallelTextConfig
from decoupled.core.errors import UserError

TRAIN, DEV, TEST = "train", "dev", "test"
HELD_OUT = (DEV, TEST)

_BIBLE = re.compile(r"(?P<chapter>(?P<book>[0-9]{2})[0-9]{3})[0-9]{3}")
# Everything before the last separator: the chapter of GEN.1.2, the page of page_7#4.
_BEFORE_LAST = re.compile(r"(.*[^\W_])[\W_]+[^\W_]+")
# The last book of each group, of the 66 in the order of the King James Version.
_GROUPS_OF_BOOKS = {
    "law": 5,
    "history": 17,
    "poetry": 22,
    "prophets": 39,
    "gospels": 44,
    "letters": 66,
}
BOOK_GROUPS = tuple(_GROUPS_OF_BOOKS)


def group_of(identifier: str, pattern: str | None, place: str) -> str:
    """The group of an id.

    Args:
      pattern: as `ParallelTextConfig.group`. With None, the group of a Bible's id is
        its book and chapter; of other ids it is everything before the last separator.
      place: the position of the id, for messages.

    Raises:
      UserError: the id has no group.
    """
    if pattern is not None:
        match = re.match(pattern, identifier)
        group = match and (match[1] if match.re.groups else match[0])
        if not group:
            raise UserError(
                f"{place}: ParallelTextConfig.group = {pattern!r} finds nothing at the "
                f"beginning of the id {identifier!r}"
            )
        return group
    if match := _BIBLE.fullmatch(identifier):
        return match["chapter"]
    match = _BEFORE_LAST.fullmatch(identifier)
    if match is None:
        raise UserError(
            f"{place}: the id {identifier!r} is no BBCCCVVV and has no separator as "
            "GEN.1.1 has; set ParallelTextConfig.group to a regular expression that "
            "finds the chapter or page in it"
        )
    return match[1]


def split_of(group: str, settings: ParallelTextConfig) -> str:
    """ "train", "dev" or "test": a function of the group and of the settings."""
    where = position(group, settings.seed)
    if where < settings.test_share:
        return TEST
    return DEV if where < settings.test_share + settings.dev_share else TRAIN


def position(name: str, seed: int) -> float:
    """A pseudo-random number in [0, 1) that depends only on the arguments."""
    digest = hashlib.sha256(f"{seed}\t{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def choose(ids: Sequence[str], most: int, seed: int) -> list[str]:
    """At most `most` of the ids, in their order.

    Depends on ids and seed alone: languages with the same ids get the same choice.
    """
    if len(ids) <= most:
        return list(ids)
    kept = set(sorted(ids, key=lambda name: (position(name, seed), name))[:most])
    return [name for name in ids if name in kept]


def book_group(identifier: str) -> str | None:
    """The group of books that a verse is from; None if the id is not a Bible's."""
    match = _BIBLE.fullmatch(identifier)
    if not match or not 1 <= int(match["book"]) <= 66:
        return None
    book = int(match["book"])
    return next(name for name, last in _GROUPS_OF_BOOKS.items() if book <= last)
