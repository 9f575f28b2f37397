"""Reports of sweeps in the paper's layout: table, pictures, every number by seed.

The table has a row for each model: sizes, parameters, masked-LM accuracy, the score of
every task as mean ± standard deviation over seeds, and the average of the scores. The
best value of a column is bold, and the paper's number is below ours.

Pictures show means over seeds. Error bars are the standard deviation over seeds; with
one seed there are none.
"""

import os
from collections.abc import Sequence

from decoupled.analyses.output import Line, Panel, Picture
from decoupled.core import console, files, plots
from decoupled.core.tables import Cell
from decoupled.studies.jobs import Row
from decoupled.studies.page import Page, mean
from decoupled.studies.published import AVERAGE, SCORES, printed
from decoupled.studies.results import (
    MLM,
    SweepResults,
    numbers_as_csv,
    read_sweeps,
    spread,
)

SIZES = ("E_in", "E_out", "H", "L", "PT", "FT")


def write_report(sweep_dirs: Sequence[str], output_dir: str) -> None:
    """Writes report.md, report.csv and pictures of all sweeps, and prints the table."""
    results = read_sweeps(sweep_dirs)
    page = Page(os.path.join(output_dir, "report.md"))
    table = make_table(results)
    page.heading(results.title)
    page.table(*table)
    summary, *models = progress(results)
    page.text(summary)
    if models:
        page.items(models)
    notes = [f"{task}: {results.scored[task]}" for task in results.tasks]
    notes += [
        f"{task}: in no column and no average, because its runs have scores of English "
        "dev alone or none; give it files with labels in more languages"
        for task in results.unscored
    ]
    for line in notes:
        page.text(line)
    page.picture("scores", picture_of_scores(results))
    page.write()
    numbers = numbers_as_csv(results.numbers)
    files.write_text(os.path.join(page.folder, "report.csv"), numbers)
    console.table(results.title, *table)
    for line in (summary, *models, *notes, f"report: {page.path}"):
        console.say(line)


def progress(results: SweepResults) -> list[str]:
    """Whether the sweeps are finished, and how many seeds of each model are there."""
    missing = results.planned - results.complete
    start = f"All {results.planned} jobs are complete"
    if missing:
        start = f"Not finished: {missing} of {results.planned} jobs are missing"
    seeds = {row: len(results.masked_lm(row)) for row in results.rows}
    if len(set(seeds.values())) == 1:
        return [f"{start}. Seeds of each model: {max(seeds.values())}."]
    lines = (f"{row}: {count}" for row, count in seeds.items())
    return [f"{start}. Seeds of each model:", *lines]


def make_table(results: SweepResults) -> tuple[list[str], list[list[str | Cell]]]:
    """The columns and the rows, one for each model."""
    columns = [MLM, *results.tasks, *([AVERAGE] if len(results.tasks) > 1 else [])]
    rows = [[name, *sizes(row)] for name, row in results.rows.items()]
    for column in columns:
        by_row = {row: _values(results, row, column) for row in results.rows}
        means = {row: spread(v[0]).mean for row, v in by_row.items() if v[0]}
        best = max(means.values(), default=None)
        for cells in rows:
            row = cells[0]
            cells.append(
                Cell(
                    mean(*by_row[row][1:]),
                    bold=row in means and means[row] == best,
                    paper=_paper(row, column, results.tasks),
                )
            )
    return ["model", *SIZES, *columns], rows


def _paper(row, column, tasks):
    """The paper's number; an average of other tasks is none."""
    is_other = {*tasks, AVERAGE} != SCORES.get(row, {}).keys()
    return "" if column == AVERAGE and is_other else printed(row, column)


def _values(results, row, column):
    """The values by which models are compared, and the values shown (each metric)."""
    if column == MLM:
        return [results.masked_lm(row)] * 2
    if column == AVERAGE:
        return [results.averages(row)] * 2
    metrics = [
        results.values(row, column, name) for name in results.metrics(row, column)
    ]
    return [results.score(row, column), *metrics]


def sizes(row: Row) -> list[str]:
    """A model's widths, layers and parameters, in the order of `SIZES`."""
    model = row.model
    layers = str(model.num_layers)
    if row.keep_layers:
        layers += f" -> {row.keep_layers}"
    return [
        str(model.input_embedding_size),
        "tied" if model.coupled else str(model.output_embedding_size),
        str(model.hidden_size),
        layers,
        _millions(row.pretraining),
        _millions(row.finetuning),
    ]


def _millions(count):
    millions = count / 1e6
    return f"{millions:.0f}M" if millions >= 100 else f"{millions:.2f}M"


def picture_of_scores(results: SweepResults) -> Picture:
    """Average score and masked-LM accuracy against PT parameters and against E_out."""
    rows, tasks = results.rows, results.tasks
    measures = {"masked-LM accuracy, %": results.masked_lm}
    if tasks:
        label = "mean score of tasks, %"
        if len(tasks) == 1:
            metrics = (results.metrics(row, tasks[0]) for row in rows)
            label = f"{' and '.join(next(metrics))}, %".replace("_", " ")
        measures[label] = results.averages
    sizes = {
        "parameters in pre-training, millions": lambda row: row.pretraining / 1e6,
        "E_out": lambda row: row.model.output_embedding_size,
    }
    panels = [
        [
            Panel(
                [
                    _point(name, place(row), score)
                    for name, row in rows.items()
                    if (score := spread(measure(name)))
                ],
                size,
                label,
            )
            for size, place in sizes.items()
        ]
        for label, measure in measures.items()
    ]
    seeds = [len(measure(name)) for measure in measures.values() for name in rows]
    models = "1 model" if len(rows) == 1 else f"{len(rows)} models"
    return Picture(f"{models}; {plots.over_seeds(seeds)}", panels)


def _point(name, place, score):
    bar = score.deviation
    sides = ([score.mean - bar], [score.mean + bar]) if score.count > 1 else ()
    return Line(name, [place], [score.mean], *sides, look={"linestyle": "none"})
