"""A page in Markdown, written block by block: headings, paragraphs, tables, pictures.

A folder beside the page has the pictures.
"""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from decoupled.analyses.output import Picture, draw
from decoupled.core import files, gfile, plots, tables
from decoupled.core.tables import GAP
from decoupled.studies.results import Values, spread


class Page:
    """A page that is built from top to bottom, then written.

    Args:
      subfolder: the folder of pictures and other files, relative to the page; "" is
        the page's own folder.
      formats: of the pictures that are kept.
    """

    def __init__(
        self, path: str, subfolder: str = "", formats: Sequence[str] = plots.FORMATS
    ):
        self.path = path
        self.folder = files.make_folder(os.path.join(os.path.dirname(path), subfolder))
        self._subfolder = subfolder
        self._formats = tuple(formats)
        self._blocks: list[str] = []

    def heading(self, title: str, level: int = 2) -> None:
        """A heading; the page's title has level 1."""
        self._blocks.append(f"{'#' * level} {title}")

    def text(self, paragraph: str) -> None:
        """A paragraph, in Markdown."""
        self._blocks.append(paragraph)

    def items(self, items: Iterable[str]) -> None:
        """A list with one line per item."""
        self._blocks.append("\n".join(f"- {item}" for item in items))

    def table(
        self,
        columns: Sequence[str] | str,
        rows: Iterable[Iterable[Any]],
        words: int = 1,
    ) -> None:
        """A table, see `tables.to_markdown`."""
        self._blocks.append(tables.to_markdown(columns, rows, words))

    def picture(self, name: str, picture: Picture) -> None:
        """Draws the picture beside the page; nothing without matplotlib."""
        paths = draw(picture, os.path.join(self.folder, name))
        for path in paths:
            if not path.endswith(self._formats):
                gfile.remove(path)
        if paths:
            title = f"{name}.png" if not self._subfolder else name
            link = self.link_to(f"{name}.png")
            self._blocks.append(f"![{title}]({link})")

    def link_to(self, name: str) -> str:
        """The link to a file in the folder of pictures."""
        return os.path.join(self._subfolder, name)

    def write(self) -> None:
        """Writes the page, atomically."""
        files.write_text(self.path, "\n\n".join(self._blocks) + "\n")


def mean(*values: Values, digits: int = 1) -> str:
    """Mean ± standard deviation over seeds; only the mean for one seed.

    Of one number, or of several of the same seeds: "40.0/55.0 ± 1.1/0.9".
    """
    spreads = [spread(by_seed) for by_seed in values]
    if None in spreads:
        return GAP
    text = "/".join(f"{number.mean:.{digits}f}" for number in spreads)
    if spreads[0].count == 1:
        return text
    return (
        f"{text} ± {'/'.join(f'{number.deviation:.{digits}f}' for number in spreads)}"
    )
