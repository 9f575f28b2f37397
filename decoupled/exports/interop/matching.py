"""Which variable of one model becomes which of another, and what is left over.

Nothing is dropped or made up in silence: names left over on either side are an error
unless the user names them.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from decoupled.core.errors import UserError
from decoupled.exports.interop.safetensors_files import Shape

# More names than this are shortened in an error; the report has all.
_MOST_NAMES = 8


class Matching(NamedTuple):
    """What becomes what.

    sources: our variable -> the name that its values come from.
    unused: names of the source that nothing takes.
    unset: our variables that the source has no values for.
    """

    sources: dict[str, str]
    unused: list[str]
    unset: list[str]


def match(targets: Mapping[str, str], sources: Mapping[str, str]) -> Matching:
    """Matches by name.

    Args:
      targets: our variable -> the name that it should have in the source.
      sources: name in the source -> name in its file.
    """
    found = {
        ours: sources[theirs] for ours, theirs in targets.items() if theirs in sources
    }
    return Matching(
        found,
        sorted(set(sources.values()) - set(found.values())),
        sorted(set(targets) - set(found)),
    )


def check_complete(where: str, matching: Matching, allowed: Sequence[str]) -> None:
    """Refuses names left over that are not allowed to be.

    Args:
      where: the source, for messages.
      matching: what `match` found.
      allowed: patterns as of a shell, e.g. "cls.seq_relationship.*".

    Raises:
      UserError: a name that no pattern allows, or a pattern that allows no name.
    """
    left = [*matching.unused, *matching.unset]
    for pattern in allowed:
        if not fnmatch.filter(left, pattern):
            raise UserError(
                f"--allow_partial: {pattern!r} is no variable without use or value in "
                f"{where}; take it away or correct it"
            )
    for names, what in (
        (matching.unset, "no values for"),
        (matching.unused, "no use for"),
    ):
        refused = [name for name in names if not _allows(allowed, name)]
        if refused:
            raise UserError(
                f"{where}: {what} {_listed(refused)}; to take over a part of a model, "
                f"give --allow_partial='{refused[0]}' and so on (patterns as a shell's)"
            )


def check_shape(
    where: str, name: str, found: Shape, wanted: Shape, config: str
) -> None:
    """Refuses a tensor whose shape is not the one that the sizes give.

    Raises:
      UserError: `config` contradicts the weights.
    """
    if found != wanted:
        raise UserError(
            f"{where}: {name} has shape {list(found)}, {config} makes it {list(wanted)}"
        )


def _allows(allowed: Sequence[str], name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed)


def _listed(names: Sequence[str]) -> str:
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more"
