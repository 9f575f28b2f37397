"""Pictures of the reproduction: curves, contrasts with intervals, values by place.

Every line is a mean over seeds; bands and bars reach from the lowest seed to the
highest.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core import plots

# Between the points of two models at the same place.
_SHIFT = 0.05


class Curves(NamedTuple):
    """Training losses.

    steps: row -> its steps. losses: row -> float64 [seeds, steps], in nats. level: the
    unigram entropy. crossings: row -> the mean step of its crossing; a row without one
    is missing.
    """

    steps: Mapping[str, Sequence[int]]
    losses: Mapping[str, np.ndarray]
    level: float | None
    crossings: Mapping[str, float]


def plot_curves(drawn: Curves, stem: str) -> list[str]:
    """The loss of each row by step, the unigram level, and a mark at each crossing.

    Args:
      drawn: what is drawn. stem: of the files, without suffix.

    Returns:
      The paths written.
    """
    figure, [[axes]] = plots.grid(1, 1, 6.5, 4.2)
    for index, (row, losses) in enumerate(drawn.losses.items()):
        style = plots.look(index) | {"marker": ""}
        steps, mean = drawn.steps[row], losses.mean(axis=0)
        axes.plot(steps, mean, label=row, **style)
        low, high = losses.min(axis=0), losses.max(axis=0)
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.15, lw=0)
        if row in drawn.crossings:
            at = drawn.crossings[row]
            place = at, np.interp(at, steps, mean)
            axes.plot(*place, **plots.look(index) | {"linestyle": "none"})
    if drawn.level is not None:
        line = {"color": plots.BLACK, "linewidth": 1, "linestyle": ":"}
        axes.axhline(drawn.level, label="unigram entropy", **line)
    axes.set(xlabel="step", ylabel="masked-LM loss in training, nats")
    plots.tidy(axes)
    title = "Pre-training: mean and range over seeds; marks: crossings"
    plots.title_and_legend(figure, axes, title)
    return plots.save(figure, stem)


class Bar(NamedTuple):
    """An estimate with its 95% interval.

    label: of its line. margin: below it a difference counts as none.
    """

    label: str
    estimate: float
    low: float
    high: float
    margin: float


def plot_contrasts(bars: Sequence[Bar], stem: str) -> list[str]:
    """A forest plot in multiples of the margins, so that all units share an axis.

    Args:
      bars: from top to bottom. stem: of the files, without suffix.
    """
    figure, [[axes]] = plots.grid(1, 1, 6.5, 0.6 + 0.34 * len(bars))
    axes.axvspan(-1, 1, color=plots.GREY, alpha=0.4, linewidth=0)
    axes.axvline(0, color=plots.BLACK, linewidth=0.8)
    for place, bar in enumerate(bars):
        middle, low, high = np.divide(bar[1:4], bar.margin)
        sides = [[middle - low], [high - middle]]
        style = {"color": plots.BLUE, "marker": "o", "capsize": 3}
        axes.errorbar([middle], [place], xerr=sides, **style)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlabel("difference / margin")
    plots.tidy(axes, grid="x")
    title = "Contrasts of the claims, 95% intervals; grey: within the margin"
    plots.title_and_legend(figure, axes, title)
    return plots.save(figure, stem)


class Lines(NamedTuple):
    """Values at places, such as layers, of several rows.

    across, up: labels of the axes. places: their names. rows: row -> float64 [seeds,
    places], NaN where it has no such place.
    """

    title: str
    across: str
    up: str
    places: Sequence[str]
    rows: Mapping[str, np.ndarray]


def plot_lines(drawn: Lines, stem: str) -> list[str]:
    """A line for each row.

    Args:
      drawn: what is drawn. stem: of the files, without suffix.
    """
    figure, [[axes]] = plots.grid(1, 1, 5.2, 3.4)
    for index, (row, values) in enumerate(drawn.rows.items()):
        mean = values.mean(axis=0)
        sides = [mean - values.min(axis=0), values.max(axis=0) - mean]
        # Side by side, or bars would hide each other.
        shift = _SHIFT * (index - (len(drawn.rows) - 1) / 2)
        at = np.arange(len(mean)) + shift
        axes.errorbar(at, mean, sides, label=row, capsize=2, **plots.look(index))
    axes.set_xticks(range(len(drawn.places)), drawn.places)
    axes.set(xlabel=drawn.across, ylabel=drawn.up)
    plots.tidy(axes)
    title = f"{drawn.title}; mean and range over seeds"
    plots.title_and_legend(figure, axes, title)
    return plots.save(figure, stem)
