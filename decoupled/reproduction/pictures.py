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

    label: of its line. unit: bars of one unit share a panel. margin: below it a
    difference counts as none; None without.
    """

    label: str
    unit: str
    estimate: float
    low: float
    high: float
    margin: float | None


def plot_contrasts(bars: Sequence[Bar], stem: str) -> list[str]:
    """A forest plot: a panel for each unit, margins as grey bands around 0.

    Args:
      bars: from top to bottom. stem: of the files, without suffix.
    """
    units = list(dict.fromkeys(bar.unit for bar in bars))
    most = max(sum(bar.unit == unit for bar in bars) for unit in units)
    figure, panels = plots.grid(len(units), 1, 6.0, 0.7 + 0.32 * most)
    for [axes], unit in zip(panels, units, strict=True):
        own = [bar for bar in bars if bar.unit == unit]
        for place, bar in enumerate(own):
            sides = [[bar.estimate - bar.low], [bar.high - bar.estimate]]
            style = {"color": plots.BLUE, "marker": "o", "capsize": 3}
            axes.errorbar([bar.estimate], [place], xerr=sides, **style)
            if bar.margin is not None:
                heights = {"ymin": place - 0.4, "ymax": place + 0.4}
                edges = [-bar.margin, bar.margin]
                axes.fill_betweenx(
                    list(heights.values()), *edges, color=plots.GREY, alpha=0.4, lw=0
                )
        axes.axvline(0, color=plots.BLACK, linewidth=0.8)
        axes.set_yticks(range(len(own)), [bar.label for bar in own])
        axes.set_ylim(len(own) - 0.5, -0.5)
        axes.set_xlabel(unit, fontsize=9)
        plots.tidy(axes, grid="x")
    title = "Contrasts of the claims, 95% intervals; grey: the margin"
    plots.title_and_legend(figure, panels[0][0], title)
    return plots.save(figure, stem)


class Lines(NamedTuple):
    """Values at places, such as layers, of several rows.

    across: label of the places. places: their names. panels: label of the values ->
    row -> float64 [seeds, places].
    """

    title: str
    across: str
    places: Sequence[str]
    panels: Mapping[str, Mapping[str, np.ndarray]]


def plot_lines(drawn: Lines, stem: str) -> list[str]:
    """A line for each row, a panel for each kind of values.

    Args:
      drawn: what is drawn. stem: of the files, without suffix.
    """
    figure, [panels] = plots.grid(1, len(drawn.panels), 4.6, 3.4)
    for axes, (label, rows) in zip(panels, drawn.panels.items(), strict=True):
        for index, (row, values) in enumerate(rows.items()):
            mean = values.mean(axis=0)
            sides = [mean - values.min(axis=0), values.max(axis=0) - mean]
            # Side by side, or bars would hide each other.
            shift = _SHIFT * (index - (len(rows) - 1) / 2)
            at = np.arange(len(mean)) + shift
            axes.errorbar(at, mean, sides, label=row, capsize=2, **plots.look(index))
        axes.set_xticks(range(len(drawn.places)), drawn.places)
        axes.set(xlabel=drawn.across, ylabel=label)
        plots.tidy(axes)
    title = f"{drawn.title}; mean and range over seeds"
    plots.title_and_legend(figure, panels[0], title)
    return plots.save(figure, stem)
