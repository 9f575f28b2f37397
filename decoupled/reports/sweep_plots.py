"""Pictures of sweeps: scores against parameters and E_out, and training curves."""

from collections.abc import Sequence

from decoupled.core import plots
from decoupled.reports.sweep_results import PRETRAINING, RowResults, spread

# Of the length of an axis: what a label takes, and the distance of equal places.
_LABEL, _STEP = 0.06, 0.012


def plot_scores(result: dict, stem: str) -> list[str]:
    """Average score and masked-LM accuracy against PT parameters and against E_out.

    Args:
      result: "rows", list of RowResults; "tasks", those averaged.
      stem: of the files, without suffix.

    Returns:
      The paths written.
    """
    rows, tasks = result["rows"], result["tasks"]
    panels = [("masked-LM accuracy, %", [row.masked_lm_accuracy for row in rows])]
    if tasks:
        label = "accuracy, %" if len(tasks) == 1 else "mean score of tasks, %"
        panels.append((label, [row.averages(tasks) for row in rows]))
    figure, axes = plots.grid(len(panels), 2, 4.2, 3.2)
    for line, (label, values) in enumerate(panels):
        _scatter(axes[line][0], rows, values, [row.pretraining / 1e6 for row in rows])
        axes[line][0].set(xlabel="parameters in pre-training, millions", ylabel=label)
        _scatter(
            axes[line][1],
            rows,
            values,
            [row.model.output_embedding_size for row in rows],
        )
        axes[line][1].set(xlabel="E_out", ylabel=label)
    plots.title_and_legend(figure, axes[0][0], _title(rows))
    return plots.save(figure, stem)


def _title(rows):
    seeds = max((len(row.masked_lm_accuracy) for row in rows), default=0)
    models = "1 model" if len(rows) == 1 else f"{len(rows)} models"
    return f"{models}; {plots.over_seeds(seeds)}"


def _scatter(axes, rows, values, places):
    drawn = apart(places)
    for index, (row, by_seed) in enumerate(zip(rows, values, strict=True)):
        found = spread(by_seed)
        if found is None:
            continue
        look = plots.look(index) | {"linestyle": "none"}
        axes.errorbar(
            drawn[index],
            found.mean,
            found.deviation if len(by_seed) > 1 else None,
            label=row.name,
            capsize=3,
            **look,
        )
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


def plot_curves(result: dict, stem: str) -> list[str]:
    """Masked-LM accuracy in training, the mean over seeds, a line for each model.

    Args:
      result: "curves", model -> list of (step, percent). stem: of the files.
    """
    figure, [[axes]] = plots.grid(1, 1, 6.5, 4.0)
    for index, (name, points) in enumerate(result["curves"].items()):
        steps, values = zip(*points, strict=True)
        look = plots.look(index) | {"markevery": max(1, len(points) // 8)}
        axes.plot(steps, values, label=name, **look)
    axes.set(xlabel="step", ylabel="masked-LM accuracy of the training batches, %")
    plots.tidy(axes)
    plots.title_and_legend(figure, axes, "Pre-training")
    return plots.save(figure, stem)


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


def curves(rows: Sequence[RowResults]) -> dict[str, list[tuple[float, float]]]:
    """model -> its training curve, of the models that have one."""
    found = {
        row.name: training_curve(list(row.folders.get(PRETRAINING, {}).values()))
        for row in rows
    }
    return {name: points for name, points in found.items() if points}
