"""What an analysis shows and writes: tables, a picture, JSON and values of items.

A module of an analysis has `measure`, which returns its result, and two functions of
the result: `tables` and `picture`. Everything else about tables and plots is here.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from decoupled.core import console, files, gfile, plots

LAYER = "layer (0: input embedding)"


class Table(NamedTuple):
    """See `console.table`."""

    title: str
    columns: list[str]
    rows: list[list[Any]]


class Line(NamedTuple):
    """A series of a panel, with error bars from `low` to `high` where they are given.

    A name has one look in all panels; `look` changes it.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    look: dict[str, Any] = {}


class Panel(NamedTuple):
    """Lines over x; or points in a row for each of `rows`, whose y is the row.

    from_zero: whether the axis of values begins at 0. band: values in grey.
    """

    lines: list[Line]
    x_label: str
    y_label: str = ""
    title: str = ""
    rows: Sequence[str] = ()
    from_zero: bool = False
    band: tuple[float, float] | None = None


class Picture(NamedTuple):
    """Rows of panels; the last row may be shorter."""

    title: str
    panels: list[list[Panel]]


def write(
    folder: str,
    result: dict[str, Any],
    tables: Callable[[dict[str, Any]], Iterable[Table]],
    picture: Callable[[dict[str, Any]], Picture],
) -> None:
    """Shows the tables; writes NAME.json, the picture and NAME.items.npz.

    `arrays` of the result have a value for each item (a sentence, a word), and are
    written to the last of these files. What an earlier analysis wrote is removed first,
    and NAME.json comes after the arrays, so that also a kill mixes no two analyses.
    """
    for table in tables(result):
        console.table(*table)
    stem = os.path.join(folder, result["analysis"])
    content = {name: value for name, value in result.items() if name != "arrays"}
    text = files.json_text(f"{stem}.json", content)
    for kind in ("json", "items.npz", *plots.FORMATS):
        if files.exists(path := f"{stem}.{kind}"):
            gfile.remove(path)
    if "arrays" in result:
        files.write_arrays(f"{stem}.items.npz", result["arrays"])
    files.write_text(f"{stem}.json", text)
    picture_paths = draw(picture(content), stem)
    console.say(f"wrote {', '.join([f'{stem}.json', *picture_paths])}")


def draw(picture: Picture, stem: str) -> list[str]:
    """Writes `stem`.png and `stem`.svg; without matplotlib it only prints a message."""
    if not plots.can_draw():
        return []
    panels = [panel for row in picture.panels for panel in row]
    names = list(dict.fromkeys(line.name for p in panels for line in p.lines))
    height = max(3.0, *(1.0 + 0.36 * len(panel.rows) for panel in panels))
    width = 4.0 if len(picture.panels[0]) < 4 else 2.6
    rows, columns = len(picture.panels), len(picture.panels[0])
    figure, grid = plots.grid(rows, columns, width, height)
    charts = []
    for panels, row in zip(picture.panels, grid, strict=True):
        for panel, axes in itertools.zip_longest(panels, row):
            if panel is None:
                # The last row may be shorter.
                axes.remove()
                continue
            _draw_panel(axes, panel, names)
            charts.append(axes)
    source = max(charts, key=lambda axes: len(axes.get_legend_handles_labels()[0]))
    plots.title_and_legend(figure, source, picture.title)
    return plots.save(figure, stem)


def _draw_panel(axes, panel: Panel, names: list[str]) -> None:
    panel_names = [line.name for line in panel.lines]
    for number, line in enumerate(panel.lines):
        style = {**plots.look(names.index(line.name)), **line.look}
        x, y, values = list(line.x), list(line.y), line.y
        if panel.rows:
            # Shifted, so that the error bars of a row do not overlap.
            step = 0.78 / max(3, len(panel.lines))
            y = [place + step * (number - (len(panel.lines) - 1) / 2) for place in y]
            style["linestyle"], values = "none", line.x
        error = None
        if line.low is not None:
            error = [
                [v - low for v, low in zip(values, line.low, strict=True)],
                [high - v for v, high in zip(values, line.high, strict=True)],
            ]
        bars = {"xerr" if panel.rows else "yerr": error}
        is_first = panel_names.index(line.name) == number
        label = line.name if is_first else "_nolegend_"
        axes.errorbar(x, y, label=label, capsize=2, **bars, **style)
    if panel.band:
        shade = axes.axvspan if panel.rows else axes.axhspan
        shade(*panel.band, color=plots.GREY, alpha=0.4, linewidth=0)
    axes.set_xlabel(panel.x_label, fontsize=9)
    axes.set_ylabel(panel.y_label, fontsize=9)
    axes.set_title(panel.title, fontsize=10)
    if panel.rows:
        axes.set_yticks(range(len(panel.rows)), panel.rows)
        axes.set_ylim(len(panel.rows) - 0.4, -0.6)
    elif all(isinstance(value, int) for line in panel.lines for value in line.x):
        plots.whole_numbers(axes)
    else:
        axes.tick_params(axis="x", labelrotation=30)
    plots.tidy(axes, grid="x" if panel.rows else "both")
    if panel.from_zero:
        (axes.set_xlim if panel.rows else axes.set_ylim)(0)


def percent(share: float | None) -> str | None:
    """A share x 100; None stays None, which a table shows as a gap."""
    return None if share is None else f"{100 * share:.1f}"
