"""Pictures of sweeps: means over seeds, with bars.

A bar is the standard deviation over seeds; one seed has none.
"""

from collections.abc import Mapping, Sequence

from decoupled.core import plots
from decoupled.reports.results import PRETRAINING, Results, spread

# Of the length of an axis: what a label takes, and the distance of equal places.
_LABEL, _STEP = 0.06, 0.012


def plot_scores(results: Results, stem: str) -> list[str]:
    """Average score and masked-LM accuracy against PT parameters and against E_out.

    Args:
      results: of a sweep. stem: of the files, without suffix.

    Returns:
      The paths written.
    """
    rows, tasks = results.rows, results.tasks
    masked_lm = [results.masked_lm(row) for row in rows]
    panels = [("masked-LM accuracy, %", masked_lm)]
    if tasks:
        label = "accuracy, %" if len(tasks) == 1 else "mean score of tasks, %"
        panels.append((label, [results.averages(row) for row in rows]))
    sizes = {
        "parameters in pre-training, millions": [
            row.pretraining / 1e6 for row in rows.values()
        ],
        "E_out": [row.model.output_embedding_size for row in rows.values()],
    }
    figure, axes = plots.grid(len(panels), 2, 4.2, 3.2)
    for line, (label, values) in zip(axes, panels, strict=True):
        for panel, (size, places) in zip(line, sizes.items(), strict=True):
            _scatter(panel, rows, values, places)
            panel.set(xlabel=size, ylabel=label)
    seeds = max(map(len, masked_lm), default=0)
    models = "1 model" if len(rows) == 1 else f"{len(rows)} models"
    title = f"{models}; {plots.over_seeds(seeds)}"
    plots.title_and_legend(figure, axes[0][0], title)
    return plots.save(figure, stem)


def _scatter(axes, rows, values, places):
    drawn = apart(places)
    for index, (row, by_seed) in enumerate(zip(rows, values, strict=True)):
        found = spread(by_seed)
        if found is None:
            continue
        look = plots.look(index) | {"linestyle": "none", "capsize": 3}
        bar = found.deviation if found.count > 1 else None
        axes.errorbar(drawn[index], found.mean, bar, label=row, **look)
    axes.set_xscale("log")
    # Marks at the places themselves: those of a logarithmic axis are too few.
    marked = ticks(places)
    axes.set_xticks(marked, [f"{tick:.3g}" for tick in marked], rotation=45)
    axes.minorticks_off()
    plots.tidy(axes)


def ticks(places: Sequence[float]) -> list[float]:
    """Those places, ascending, whose labels do not touch on a logarithmic axis."""
    ordered = sorted(set(places))
    factor = (ordered[-1] / ordered[0]) ** _LABEL if ordered else 1.0
    marked: list[float] = []
    for place in ordered:
        if not marked or place >= marked[-1] * factor:
            marked.append(place)
    return marked


def apart(places: Sequence[float]) -> list[float]:
    """The places, equal ones moved a little to either side on a logarithmic axis."""
    span = max(places) / min(places) if max(places) > min(places) else 10.0
    moved = []
    for index, place in enumerate(places):
        before, all_equal = places[:index].count(place), places.count(place)
        moved.append(place * span ** (_STEP * (before - (all_equal - 1) / 2)))
    return moved


def plot_curves(curves: Mapping[str, Sequence[tuple[float, float]]], stem: str) -> list:
    """Masked-LM accuracy in training, the mean over seeds, a line for each model.

    Args:
      curves: model -> (step, percent). stem: of the files.
    """
    figure, [[axes]] = plots.grid(1, 1, 6.5, 4.0)
    for index, (name, points) in enumerate(curves.items()):
        steps, values = zip(*points, strict=True)
        look = plots.look(index) | {"markevery": max(1, len(points) // 8)}
        axes.plot(steps, values, label=name, **look)
    axes.set(xlabel="step", ylabel="masked-LM accuracy of the training batches, %")
    plots.tidy(axes)
    plots.title_and_legend(figure, axes, "Pre-training")
    return plots.save(figure, stem)


def training_curves(results: Results) -> dict[str, list[tuple[float, float]]]:
    """model -> its training curve, of the models that have one."""
    found = {}
    for row in results.rows:
        runs = [
            n.folder for n in results.numbers if (n.row, n.task) == (row, PRETRAINING)
        ]
        found[row] = training_curve(runs)
    return {name: points for name, points in found.items() if points}


def training_curve(
    folders: Sequence[str], points: int = 40
) -> list[tuple[float, float]]:
    """(step, percent) of runs of one model, averaged over runs and parts of the run.

    Args:
      folders: of pre-training runs. points: how many parts.
    """
    from decoupled.training.events import read_scalars

    runs = [read_scalars(folder, "masked_lm_accuracy") for folder in folders]
    runs = [run for run in runs if run]
    if not runs:
        return []
    last = max(max(run) for run in runs)
    parts: dict[int, list[tuple[int, float]]] = {}
    for run in runs:
        for step, value in run.items():
            parts.setdefault((step - 1) * points // last, []).append((step, value))
    return [
        (
            sum(step for step, _ in part) / len(part),
            100 * sum(value for _, value in part) / len(part),
        )
        for _, part in sorted(parts.items())
    ]
