"""When rows leave the plateau of word frequencies, from their curves; the section.

`decoupled.runs.curve` has the definitions.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core import files, plots
from decoupled.reports.page import Page
from decoupled.reproduction import claims
from decoupled.reproduction.finished import Findings
from decoupled.reproduction.measured import NATS
from decoupled.reproduction.verdicts import Judged, Trained, Training, untrained
from decoupled.runs.curve import CROSSED_BELOW, crossing, crossing_level, smoothed


def trained(findings: Findings) -> Training:
    """The progress of training of each row and seed, from curves and held-out losses.

    A run without a measured held-out loss has NaN there and counts as untrained.
    """
    entropy = findings.unigram_entropy
    if not entropy:
        return {}
    below: dict[tuple[str, int], float] = {}
    loss = findings.measured.get(claims.LOSS)
    for row, languages in loss.values.items() if loss else ():
        gaps = [entropy[name] - one.mean(axis=1) for name, one in languages.items()]
        for seed, gap in zip(loss.seeds, np.min(gaps, axis=0).tolist(), strict=True):
            below[row, seed] = gap
    level = crossing_level(entropy, findings.shares or None)
    found: dict[str, dict[int, Trained]] = {}
    for (row, seed), curve in findings.curves.items():
        found.setdefault(row, {})[seed] = Trained(
            below.get((row, seed), math.nan),
            crossing(curve, level),
            findings.told.steps,
        )
    return found


def write_curves(
    page: Page, findings: Findings, training: Training, judged: Iterable[Judged]
) -> None:
    """Writes the section on curves: losses by step, crossings, and which rows are void.

    Args:
      page: the page that it is added to. findings: have the curves. training: from
        `trained`; nothing is written if it is empty. judged: the claims whose rows are
        compared after equally many steps since their crossings.
    """
    if not training:
        return
    shares = findings.shares or None
    level = crossing_level(findings.unigram_entropy, shares) + CROSSED_BELOW
    common, later = _since_crossing(findings, training)
    page.heading("Curves of pre-training")
    page.text(
        "Small models first learn how frequent words are and stay for a while near the "
        f"unigram entropy of the text, {level:.2f} nats a token. A run crosses when "
        f"its smoothed loss falls {CROSSED_BELOW:g} nat below that, for good."
    )
    drawn = _drawn(findings, training, level)
    page.picture("curves", plot_curves, drawn)
    files.write_text(os.path.join(page.folder, "curves.csv"), curves_as_csv(drawn))
    page.text(
        "The smoothed training losses by step, mean and range over seeds: "
        f"[curves.csv]({page.beside('curves.csv')})."
    )
    rows = []
    for row, runs in training.items():
        crossed = {s: run.crossed for s, run in runs.items() if run.crossed is not None}
        final = {seed: smoothed(findings.curves[row, seed])[-1] for seed in runs}
        verdict = untrained(row, training, runs)
        cells = [page.number(row, crossed, digits=0), page.number(row, final, digits=2)]
        cells += [page.number(row, later.get(row, {}), digits=2)]
        rows.append([row, *cells, f"**void**: {verdict}" if verdict else "trained"])
    page.table(
        f"| row | crosses at step | loss at the end | loss {common:,} steps after its "
        "crossing | |\n|---|---:|---:|---:|---|",
        rows,
    )
    page.text(
        "Contrasts with a row that did not train are void. The last column of losses "
        "compares rows after as many steps since their crossing; the learning rate has "
        "not fallen equally far there.",
        *_only_speed(findings, judged, common, later),
    )


def _since_crossing(findings, training):
    """The steps that every run has after crossing; row -> seed -> loss after these."""
    curves = findings.curves
    crossed = {
        (row, seed): run.crossed
        for row, runs in training.items()
        for seed, run in runs.items()
        if run.crossed is not None
    }
    left = [int(curves[run].steps[-1]) - step for run, step in crossed.items()]
    common, later = min(left, default=0), {}
    for (row, seed), step in crossed.items():
        curve = curves[row, seed]
        loss = float(np.interp(step + common, curve.steps, smoothed(curve)))
        later.setdefault(row, {})[seed] = loss
    return common, later


def _only_speed(findings, judged, common, later):
    """The differences of losses that change sign after equally many steps.

    Differences within the margin are left out.
    """
    pairs = dict.fromkeys(
        tuple(part.contrast.weights) for one in judged for part in one.parts
    )
    for first, second in pairs:
        if not {first, second} <= later.keys():
            continue
        seeds = later[first].keys() & later[second].keys()
        ends = [
            [smoothed(findings.curves[row, s])[-1] for s in seeds]
            for row in (first, second)
        ]
        then = [[later[row][s] for s in seeds] for row in (first, second)]
        end, since = (np.mean(np.subtract(*losses)) for losses in (ends, then))
        if abs(end) > claims.MARGINS[NATS] and end * since < 0:
            yield (
                f"**Speed only**: the training loss of {first} minus that of {second} "
                f"is {end:+.2f} nats at the end, but {since:+.2f} after {common:,} "
                "steps since each crossing."
            )


def _drawn(findings, training, level):
    """Smoothed losses of the seeds with the same steps as the row's first seed."""
    steps, losses, crossings = {}, {}, {}
    for row, runs in training.items():
        curves = [findings.curves[row, seed] for seed in runs]
        steps[row] = curves[0].steps
        same = [one for one in curves if np.array_equal(one.steps, steps[row])]
        losses[row] = np.array([smoothed(one) for one in same])
        crossed = [run.crossed for run in runs.values()]
        if None not in crossed:
            crossings[row] = float(np.mean(crossed))
    return Curves(steps, losses, level, crossings)


class Curves(NamedTuple):
    """Training losses.

    steps: row -> its steps. losses: row -> float64 [seeds, steps], in nats. level: the
    unigram entropy. crossings: row -> the mean step of its crossing; rows without a
    crossing are left out.
    """

    steps: Mapping[str, Sequence[int]]
    losses: Mapping[str, np.ndarray]
    level: float | None
    crossings: Mapping[str, float]


def curves_as_csv(drawn: Curves) -> str:
    """The curves at every logged step: mean, minimum and maximum over seeds."""
    lines = ["row,step,loss,least,most"]
    for row, losses in drawn.losses.items():
        for step, found in zip(drawn.steps[row], losses.T, strict=True):
            numbers = (found.mean(), found.min(), found.max())
            lines.append(",".join([row, str(step), *(f"{n:.4f}" for n in numbers)]))
    return "\n".join(lines) + "\n"


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
