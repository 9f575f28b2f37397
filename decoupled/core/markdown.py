"""Lines of Markdown tables, for reports and documents."""

from collections.abc import Iterable, Sequence

# A cell of a number that is not there.
GAP = "-"


def head(columns: Sequence[str], words: int = 1) -> list[str]:
    """The first two lines of a table: columns of words to the left, numbers right."""
    numbers = len(columns) - words
    return [line(columns), line(["---"] * words + ["---:"] * numbers)]


def line(cells: Iterable[str]) -> str:
    """A line of a table."""
    return f"| {' | '.join(cells)} |"


def linked(text: str, page: str, section: str) -> str:
    """The text as a link to a section of a page."""
    return f"[{text}]({page}#{section})"
