"""Pictures of a reproduction: Figures 1 and 2 and Table 8, over seeds."""

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from decoupled.core import plots

# Between two models' points of the same layer.
_SHIFT = 0.05
_INPUT_LOOK = {"color": plots.BLUE, "marker": "o"}
_OUTPUT_LOOK = {"color": plots.ORANGE, "marker": "s"}


def plot_dropped(result: dict[str, Any], stem: str) -> list[str]:
    """Score by layers kept, a line for each model (Figure 1).

    Args:
      result: "dropped", model -> layers kept -> seed -> score.
      stem: of the files, without suffix.
    """
    figure, [[axes]] = plots.grid(1, 1, 5.2, 3.4)
    for index, (name, by_layers) in enumerate(result["dropped"].items()):
        by_place = {kept: list(seeds.values()) for kept, seeds in by_layers.items()}
        _line(axes, by_place, name, index, len(result["dropped"]))
    axes.set(xlabel="layers kept in fine-tuning", ylabel="mean score of tasks, %")
    plots.whole_numbers(axes)
    seeds = _most(
        s for by_layers in result["dropped"].values() for s in by_layers.values()
    )
    return _finish(figure, axes, "Fine-tuned without the last layers", seeds, stem)


def plot_translation(result: dict[str, Any], stem: str) -> list[str]:
    """Accuracy of translation by neighbours by layer, a line for each model (Figure 2).

    Args:
      result: "translation", model -> seed -> accuracy of layers 0 to L.
      stem: of the files, without suffix.
    """
    figure, [[axes]] = plots.grid(1, 1, 5.2, 3.4)
    for index, (name, seeds) in enumerate(result["translation"].items()):
        layers = zip(*seeds.values(), strict=True)
        _line(axes, dict(enumerate(layers)), name, index, len(result["translation"]))
    axes.set(xlabel="layer (0: input embedding)", ylabel="accuracy, %")
    axes.set_ylim(bottom=0)
    plots.whole_numbers(axes)
    title = "Nearest-neighbour translation from English"
    return _finish(figure, axes, title, _most(result["translation"].values()), stem)


def plot_similarity(result: dict[str, Any], stem: str) -> list[str]:
    """Spearman of input and output embeddings, and masked-LM accuracy (Table 8).

    Args:
      result: "input" and "output", model -> seed -> Spearman x 100; "masked_lm",
        model -> seed -> percent.
      stem: of the files, without suffix.
    """
    figure, [[left, right]] = plots.grid(1, 2, 4.4, 2.6, sharey=True)
    names = list(result["masked_lm"])
    kinds = (("input", -0.12, _INPUT_LOOK), ("output", 0.12, _OUTPUT_LOOK))
    for kind, shift, style in kinds:
        _points(left, names, result[kind], shift, f"{kind} embedding", style)
    black = {"color": plots.BLACK, "marker": "D"}
    _points(right, names, result["masked_lm"], 0.0, "masked-LM accuracy", black)
    left.axvline(0, color=plots.GREY, linewidth=1)
    left.set_yticks(range(len(names)), names)
    left.set_ylim(len(names) - 0.5, -0.5)
    left.set_xlabel("Spearman x 100, mean of the sets", fontsize=9)
    right.set_xlabel("masked-LM accuracy, %", fontsize=9)
    plots.tidy(right)
    title = "Word similarity and guessing masked words"
    return _finish(figure, left, title, _most(result["masked_lm"].values()), stem)


def _line(axes, by_place: Mapping[int, Any], name, index, count):
    places = sorted(by_place)
    means, deviations = zip(
        *(_spread(by_place[place]) for place in places), strict=True
    )
    look = plots.look(index)
    # Side by side, or bars would hide each other.
    drawn = [place + _SHIFT * (index - (count - 1) / 2) for place in places]
    axes.errorbar(drawn, means, deviations, capsize=3, label=name, **look)


def _points(axes, names, by_model, shift, label, style):
    found = [
        (place + shift, *_spread(list(by_model[name].values())))
        for place, name in enumerate(names)
        if by_model.get(name)
    ]
    if not found:
        return
    heights, means, deviations = zip(*found, strict=True)
    axes.errorbar(
        means,
        heights,
        xerr=deviations,
        capsize=3,
        linestyle="none",
        markersize=5,
        label=label,
        **style,
    )


def _spread(values):
    """Mean and standard deviation, which is NaN for one seed and draws no bar."""
    values = list(values)
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return statistics.fmean(values), deviation


def _most(by_seed: Iterable[Mapping[int, Any]]) -> int:
    """The largest number of seeds."""
    return max(map(len, by_seed), default=0)


def _finish(figure, axes, title, seeds, stem):
    plots.tidy(axes)
    plots.title_and_legend(figure, axes, f"{title}; {plots.over_seeds(seeds)}")
    return plots.save(figure, stem)
