"""A picture of a task's scores: a bar per language and metric, and what is trivial."""

from typing import Any

from decoupled.core import plots
from decoupled.reports.finetuning_results import SPREAD
from decoupled.runs.task_data import ENGLISH, SPLITS
from decoupled.runs.zero_shot_results import TRIVIAL
from decoupled.xtreme.official import is_official

_GROUP = 0.8
_HATCHES = ("", "//")
_INCHES_PER_BAR, _FEWEST_INCHES, _HEIGHT = 0.3, 4.0, 3.6


def plot_results(result: dict[str, Any], stem: str) -> list[str]:
    """Draws `stem`.png and `stem`.svg; returns their paths, none without labels.

    Bars are of the test files, or where these have no labels of the dev files. A line
    over a bar is the spread over seeds, a short black line across it the trivial score.

    Args:
      result: `task`, `metrics` (those to draw), and split -> language -> values, as
        `decoupled.reports.finetuning_results.combine` gives them.
      stem: of the files' paths.
    """
    split, languages = _labelled(result)
    if not languages:
        return []
    metrics = result["metrics"]
    bars = len(languages) * len(metrics)
    figure, [[axes]] = plots.grid(
        1, 1, max(_FEWEST_INCHES, _INCHES_PER_BAR * bars), _HEIGHT
    )
    width = _GROUP / len(metrics)
    for index, metric in enumerate(metrics):
        places = [i - _GROUP / 2 + width * (index + 0.5) for i in range(len(languages))]
        _bars(axes, places, width, languages.values(), metric, index)
    shown = [
        name if is_official(result["task"], name) else f"{name}*" for name in languages
    ]
    axes.set_xticks(range(len(languages)), shown)
    if shown != list(languages):
        axes.set_xlabel("* a language that XTREME does not list for the task")
    axes.set_xlim(-0.6, len(languages) - 0.4)
    axes.set_ylim(0, 100)
    axes.set_ylabel(f"{split} score, %")
    plots.tidy(axes, grid="y")
    title = f"{result['task']}: trained on English, zero-shot in the others"
    if any(
        f"{metric}{SPREAD}" in row for row in languages.values() for metric in metrics
    ):
        title += "; lines: standard deviation over seeds"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=8)
    return plots.save(figure, stem)


def _labelled(result):
    """The split that is drawn, and its languages that have labels, English first."""
    for split in reversed(SPLITS):
        names = [
            name
            for name, values in result[split].items()
            if any(metric in values for metric in result["metrics"])
        ]
        if names:
            names.sort(key=lambda name: (name != ENGLISH, name))
            return split, {name: result[split][name] for name in names}
    return SPLITS[-1], {}


def _bars(axes, places, width, rows, metric, index):
    """The bars of one metric, with spread and trivial score."""
    axes.bar(
        places,
        [row[metric] for row in rows],
        width=0.9 * width,
        color=plots.COLOURS[index],
        hatch=_HATCHES[index % len(_HATCHES)],
        edgecolor="white",
        yerr=[row.get(f"{metric}{SPREAD}", 0.0) for row in rows],
        ecolor=plots.BLACK,
        error_kw={"linewidth": 1},
        label=metric,
    )
    trivial = [row.get(f"{TRIVIAL}{metric}") for row in rows]
    known = [(x, y) for x, y in zip(places, trivial, strict=True) if y is not None]
    if known:
        axes.hlines(
            [y for _, y in known],
            [x - width / 2 for x, _ in known],
            [x + width / 2 for x, _ in known],
            color=plots.BLACK,
            linewidth=1.6,
            label=None if index else "trivial answers",
        )
