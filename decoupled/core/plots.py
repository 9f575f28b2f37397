"""Common parts of all plots: colours, panels, and reproducible PNG and SVG files.

The colours are Okabe and Ito's, which colour-blind readers can tell apart. Series also
differ in their markers and lines. Plots need matplotlib from the [plots] extra.
"""

import io
import os
import re
import warnings
from collections.abc import Iterable

from decoupled.core import console, files, installed
from decoupled.core.errors import printable

FORMATS = ("png", "svg")
BLUE, ORANGE, GREEN = "#0072B2", "#D55E00", "#009E73"
GREY, BLACK = "#BBBBBB", "#000000"
COLOURS = (BLUE, ORANGE, GREEN, "#CC79A7", "#E69F00", "#56B4E9", BLACK)
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
LINES = ("-", "--", "-.", ":")
_DPI = 130
# Labels that matplotlib gives to what has no label.
_UNLABELLED = re.compile(r"_(child|container)\d+|_nolegend_")


def look(index: int) -> dict[str, object]:
    """Colour, marker and line of the series `index`; no two alike among many."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[index // len(COLOURS) % len(LINES)],
        # Open markers in the second round, for plots without lines.
        "fillstyle": ("full", "none")[index // len(COLOURS) % 2],
        "markersize": 5,
        "linewidth": 1.4,
    }


def grid(rows: int, columns: int, width: float, height: float, **sharing):
    """A figure of panels of some inches each, and its axes, [rows][columns]."""
    from matplotlib.figure import Figure

    size = (1.2 + width * columns, 0.8 + height * rows)
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **sharing)


def tidy(axes, grid: str = "both") -> None:
    """Light grid lines behind the data, small numbers, no box."""
    axes.grid(visible=True, axis=grid, color=GREY, linewidth=0.5, alpha=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def whole_numbers(axes) -> None:
    """Sets ticks of the x axis only at whole numbers, even on a short axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def over_seeds(counts: Iterable[int]) -> str:
    """The description of error bars for a title, from the seeds of each mean.

    One seed has no bars, and a mean that is missing has no seed.
    """
    known_counts = sorted(count for count in counts if count)
    if not known_counts or known_counts[-1] < 2:
        return "one seed"
    low, high = known_counts[0], known_counts[-1]
    seeds = str(high) if low == high else f"{low} to {high}"
    return f"bars: standard deviation over {seeds} seeds"


def title_and_legend(figure, axes, title: str) -> None:
    """Adds the figure's title and, below the panels, the legend of `axes`.

    A title that is wider than the figure continues in further lines.
    """
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, wrap=True)
    for artist in (*axes.get_children(), *axes.containers):
        label = str(artist.get_label())
        # matplotlib leaves such a label out of the legend.
        if label.startswith("_") and not _UNLABELLED.fullmatch(label):
            artist.set_label(f" {label}")
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside lower left",
            ncols=min(len(handles), 3),
            frameon=False,
            fontsize=8,
        )


def save(figure, stem: str) -> list[str]:
    """Writes `stem`.png and `stem`.svg; equal data give equal bytes.

    Names of models, languages and labels appear as they are: matplotlib would read "$"
    as the beginning of a formula.
    """
    import matplotlib

    settings = {"svg.hashsalt": "decoupled", "svg.fonttype": "none"}
    settings["text.parse_math"] = False
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        # The font of the PNG lacks many scripts; a reader of the SVG brings a font.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        _take_texts_literally(figure)
        return [_save(figure, stem, kind) for kind in FORMATS]


def _take_texts_literally(figure):
    from matplotlib.category import StrCategoryFormatter
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter, LogFormatter

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(printable(text.get_text()))
    # The labels of ticks are made when the figure is drawn.
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        formatter = axis.get_major_formatter()
        if isinstance(formatter, LogFormatter):
            # By default these are formulas.
            axis.set_major_formatter(LogFormatter())
            axis.set_minor_formatter(LogFormatter(labelOnlyBase=True))
        elif isinstance(formatter, FuncFormatter | StrCategoryFormatter):
            axis.set_major_formatter(
                lambda value, place, label=formatter: printable(label(value, place))
            )


def can_draw() -> bool:
    """False, with a printed message, if matplotlib is not installed."""
    if problem := installed.lacking("matplotlib", purpose="plots"):
        console.say(f"no plots: {problem}")
    return not problem


def _save(figure, stem, kind):
    path = f"{stem}.{kind}"
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    content = io.BytesIO()
    figure.savefig(content, format=kind, dpi=_DPI, metadata=metadata)
    with files.atomic_write(path, "wb") as handle:
        handle.write(content.getvalue())
    return os.path.normpath(path) if "://" not in path else path
