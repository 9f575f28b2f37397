"""Tables of sweeps in the paper's layout: Markdown, CSV and LaTeX.

A row for each model: sizes, parameters, masked-LM accuracy, the score of every task as
mean ± standard deviation over seeds, and their average; the best of a column in bold,
the paper's number below ours. In Markdown a number links to the page of the runs that
it is made of (`runs_page`).
"""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from decoupled.core.markdown import GAP, head, line, linked
from decoupled.reports.published_scores import AVERAGE, printed
from decoupled.reports.sweep_results import (
    MLM,
    Measured,
    RowResults,
    headline,
    spread,
)

_SIZES = ("E_in", "E_out", "H", "L", "PT", "FT")


class Cell(NamedTuple):
    """A number of a table.

    mean, deviation, count: over seeds; None where there is no run. text: as shown.
    paper: the paper's number.
    """

    mean: float | None
    text: str
    paper: str | None


class Table(NamedTuple):
    """A table: columns of scores by name, and rows of sizes and scores."""

    title: str
    columns: list[str]
    names: list[str]
    sizes: list[list[str]]
    cells: list[list[Cell]]

    def best(self, column: int) -> float | None:
        """The highest mean of a column, None where nothing is in it."""
        means = [row[column].mean for row in self.cells]
        return max((mean for mean in means if mean is not None), default=None)


def make_table(title: str, rows: Sequence[RowResults], tasks: Sequence[str]) -> Table:
    """The table of some rows."""
    columns = [MLM, *tasks, *([AVERAGE] if len(tasks) > 1 else [])]
    return Table(
        title,
        columns,
        [row.name for row in rows],
        [_sizes(row) for row in rows],
        [_cells(row, tasks) for row in rows],
    )


def _sizes(row):
    model = row.model
    layers = str(model.num_layers)
    if row.keep_layers:
        layers += f" -> {row.keep_layers}"
    output = str(model.output_embedding_size)
    if model.output_embedding_rank:
        output += f", rank {model.output_embedding_rank}"
    return [
        str(model.input_embedding_size),
        "tied" if model.coupled else output,
        str(model.hidden_size),
        layers,
        _millions(row.pretraining),
        _millions(row.finetuning),
    ]


def _millions(count):
    millions = count / 1e6
    return f"{millions:.0f}M" if millions >= 100 else f"{millions:.2f}M"


def _cells(row, tasks):
    cells = [_cell(row.masked_lm_accuracy, None)]
    cells += [_task_cell(row, task) for task in tasks]
    if len(tasks) > 1:
        average = row.averages(tasks)
        cells.append(_cell(average, printed(row.name, AVERAGE)))
    return cells


def _cell(values, paper):
    found = spread(values)
    if found is None:
        return Cell(None, GAP, paper)
    return Cell(found.mean, _text([found]), paper)


def _task_cell(row, task):
    values = row.scores.get(task, {})
    found = spread(values)
    paper = printed(row.name, task)
    if found is None:
        return Cell(None, GAP, paper)
    metrics = [spread(row.metrics[task][metric]) for metric in headline(task)]
    return Cell(found.mean, _text(metrics), paper)


def _text(spreads):
    means = "/".join(f"{one.mean:.1f}" for one in spreads)
    if spreads[0].count == 1:
        return means
    return f"{means} ± {'/'.join(f'{one.deviation:.1f}' for one in spreads)}"


def markdown(table: Table, page: str) -> str:
    """The table in Markdown; numbers link to `page`, the page of their runs."""
    lines = [
        f"## {table.title}\n",
        *head(["model", *_SIZES, *table.columns]),
    ]
    for name, sizes, cells in zip(table.names, table.sizes, table.cells, strict=True):
        shown = []
        for column, cell in enumerate(cells):
            text = cell.text
            if cell.mean is not None and cell.mean == table.best(column):
                text = f"**{text}**"
            if cell.mean is not None:
                text = linked(text, page, name)
            shown.append(text + (f"<br>paper {cell.paper}" if cell.paper else ""))
        lines.append(line([name, *sizes, *shown]))
    return "\n".join(lines) + "\n"


def latex(table: Table) -> str:
    """The table in LaTeX, for the package booktabs."""
    columns = ["model", *_SIZES, *table.columns]
    lines = [
        rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"\toprule",
        f"{' & '.join(map(_escaped, columns))} " + r"\\",
        r"\midrule",
    ]
    for name, sizes, cells in zip(table.names, table.sizes, table.cells, strict=True):
        shown = []
        for column, cell in enumerate(cells):
            text = _escaped(cell.text)
            if cell.mean is not None and cell.mean == table.best(column):
                text = rf"\textbf{{{text}}}"
            shown.append(text + (f" ({cell.paper})" if cell.paper else ""))
        lines.append(
            " & ".join([_escaped(name), *map(_escaped, sizes), *shown]) + r" \\"
        )
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _escaped(text):
    for found, written in (
        ("_", r"\_"),
        ("±", r"$\pm$"),
        ("->", r"$\rightarrow$"),
        ("%", r"\%"),
    ):
        text = text.replace(found, written)
    return text


def to_csv(numbers: Iterable[Measured]) -> str:
    """A line for each: model, task, metric, seed, value and the folder of its run."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow("model task metric seed value folder".split())
    writer.writerows(one[:-1] for one in numbers)
    return text.getvalue()
