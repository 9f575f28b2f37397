"""Tables of the document with a line for each row and a column for each detail.

`SECTIONS` defines their contents. A section without measured values is left out. Some
sections also have a picture.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import plots
from decoupled.reports import published
from decoupled.reports.page import Page
from decoupled.reports.results import Values
from decoupled.reproduction import claims
from decoupled.reproduction.finished import Findings
from decoupled.reproduction.measured import CONTROL

# column -> row -> seed -> value.
Columns = Mapping[str, Mapping[str, Values]]
EFFECTIVE_RANK = "effective rank"
# The rows in pictures by layer; more rows would overlap.
_DRAWN = ("coupled", "e_small", "in_small", "e_large")
# The distance between the points of two models at the same position.
_SHIFT = 0.05


class _Columns(dict[str, dict[str, dict[int, float]]]):
    """Columns that are filled value by value, without controls and missing values."""

    def add(self, column: str, row: str, seed: int, value: float | None) -> None:
        if value is not None and not row.startswith(CONTROL):
            self.setdefault(column, {}).setdefault(row, {})[seed] = value


Read = Callable[[Findings], Columns]


class Section(NamedTuple):
    """A table of rows.

    title, text: above it. read: reads its columns. digits: after the point. drawn: the
    name of a picture and the labels of its axes, x then y; or None. paper: what the
    paper measured, and row -> column -> the paper's number.
    """

    title: str
    text: str
    read: Read
    digits: int = 1
    drawn: tuple[str, str, str] | None = None
    paper: tuple[str, Mapping[str, Mapping[Any, float]]] | None = None


def _of_numbers(
    task: str, prefix: str = "", change: Callable[[float], float] = lambda value: value
) -> Read:
    """The values of a task, a column for each metric.

    Args:
      prefix: of the metrics, removed from the names of columns.
      change: applied to the values.
    """

    def read(findings):
        columns = _Columns()
        for number in findings.numbers:
            if number.task == task and number.metric.startswith(prefix):
                column = number.metric.removeprefix(prefix)
                columns.add(column, number.row, number.seed, change(number.value))
        return columns

    return read


def _of_measured(names: Mapping[str, str]) -> Read:
    """Measures as columns: name in `Findings.measured` -> head of the column."""

    def read(findings):
        return {
            head: {
                row: by_seed(found, row)
                for row in found.values
                if not row.startswith(CONTROL)
            }
            for name, head in names.items()
            if (found := findings.measured.get(name))
        }

    return read


def by_seed(measured: Any, row: str) -> dict[int, float]:
    """The value of a row by seed."""
    values = measured.by_seed(row)
    return dict(zip(measured.seeds, values.tolist(), strict=True))


def _dropped(findings):
    """Scores with only the first layers, and with all layers."""
    columns = _of_numbers(claims.LAYER_DROP, "layers 1 to ")(findings)
    some = {row for rows in columns.values() for row in rows}
    whole = _of_measured({claims.UD_POS: "all"})(findings).get("all", {})
    return {kept: columns[kept] for kept in sorted(columns, key=int)} | {
        "all": {row: values for row, values in whole.items() if row in some}
    }


def _logit(percent):
    # A share of 0 has no logit; it is replaced by half a verse of a thousand.
    share = min(max(percent / 100, 0.0005), 0.9995)
    return math.log(share / (1 - share))


def _of_models(
    analysis: str, values: Callable[[dict], Iterator[tuple[str, float | None]]]
) -> Read:
    """(column, value) of each model of an analysis that keeps no items."""

    def read(findings):
        columns = _Columns()
        for seed, result in findings.results.get(analysis, {}).items():
            for model in result["models"]:
                for column, value in values(model):
                    columns.add(column, row_of(model), seed, value)
        return columns

    return read


def row_of(model: Mapping[str, Any]) -> str:
    """The row of a model of an analysis, from its folder .../models/ROW/seed_S."""
    *_, room, _, row, _ = ("", *os.path.normpath(model["folder"]).split(os.sep))
    return f"{CONTROL}{row}" if room == "control" else row


def _geometry(model):
    gradient, logits = model["gradient"], model["logits"]
    yield "gradient that arrives, %", 100 * gradient["share"]
    yield "of a random map, %", 100 * gradient["random_share"]
    yield "rank of logits", float(logits["rank"])
    yield "at most", float(logits["bound"])
    yield EFFECTIVE_RANK, logits["effective_rank"]


def _anisotropy(model):
    for layer in model["layers"]:
        yield str(layer["layer"]), layer["predicted"]


def _spectrum(model):
    # Geometry of an earlier version has no embeddings.
    for table in model.get("embeddings", ()):
        yield table["embedding"], table["effective_rank"]


def _similarity(model):
    for entry in model["correlations"]:
        if entry["score"] == "dot" and entry["spearman"] is not None:
            name = f"{entry['set']}, {entry['embedding']}"
            yield name, 100 * entry["spearman"]


def _frequency(model):
    for entry in model["all"]["by_frequency"]:
        yield f"{entry['from']:,} to {entry['to']:,}", entry["loss"]


def _likeness(findings):
    """Linear CKA of the coupled table with the tables of the other rows."""
    columns = _Columns()
    for seed, result in findings.results.get("geometry", {}).items():
        rows = {model["name"]: row_of(model) for model in result["models"]}
        for pair in result["pairs"]:
            sides = [pair["first"], pair["second"]]
            names = [rows[side["model"]] for side in sides]
            if names.count("coupled") == 1:
                other = 1 - names.index("coupled")
                columns.add(sides[other]["embedding"], names[other], seed, pair["cka"])
    return columns


_PAPER_WORDS = {
    row: {name: " / ".join(map(str, values)) for name, values in sets.items()}
    for row, sets in published.WORD_SIMILARITY.items()
}
SECTIONS = (
    Section(
        "Figure 2: retrieval of translations by layer",
        "Share of held-out verses whose nearest neighbour in another language is their "
        "translation, %; the mean over all ordered pairs of languages. Layer 0 is the "
        "input embedding.",
        _of_numbers("layers", "layer "),
        drawn=("retrieval", "layer", "retrieved, %"),
        paper=("English to German", published.TRANSLATION),
    ),
    Section(
        "Figure 2 in logits",
        "The same as log of the odds, in which claim 7 is judged.",
        _of_numbers("layers", "layer ", _logit),
        2,
        ("retrieval_logits", "layer", "retrieved, log of the odds"),
    ),
    Section(
        "Figure 1: without the last layers",
        "Parts of speech, % of words right, of models that were fine-tuned with their "
        "first layers alone. Secondary.",
        _dropped,
        paper=("XNLI, by layers kept", published.LAYERS_KEPT),
    ),
    Section(
        "Instead of Table 8: word translation by the tables",
        "Mean reciprocal rank x 100 of the translations of whole words, by the rows of "
        "a table; a coupled model has one table. The paper compares with similarities "
        "that people gave, for which this vocabulary has too few whole words.",
        _of_measured({claims.INPUT_WORDS: "input", claims.OUTPUT_WORDS: "output"}),
    ),
    Section(
        "Table 9: probes",
        "Right answers of probes on a learned mix of all layers of the frozen model, "
        "%.",
        _of_measured({claims.POS_PROBES: "pos", claims.PROBES: "dependencies"}),
        paper=("F1", published.PROBES),
    ),
    LOGITS := Section(
        "Gradients and logits",
        "How much of the gradient of the loss by the logits passes the output "
        "embedding and reaches the encoder, beside what a random map of this rank "
        "would pass; the rank of the logits at masked positions, the largest that the "
        "head allows (a linear one allows about H), and the effective rank. "
        "Secondary.",
        _of_models("geometry", _geometry),
    ),
    Section(
        "Anisotropy by layer",
        "Mean cosine of hidden vectors at masked positions of different texts: 1 where "
        "all point the same way. Secondary.",
        _of_models("geometry", _anisotropy),
        2,
    ),
    Section(
        "Likeness to the coupled table",
        "Linear CKA of the table of `coupled` with the input and the output table of "
        "other rows: 1 where they are equal up to rotation and scale. Secondary.",
        _likeness,
        2,
    ),
    Section(
        "Spectrum of the tables",
        "Effective rank (exponential of the entropy of the singular values, mean row "
        "taken away). Secondary.",
        _of_models("geometry", _spectrum),
    ),
    Section(
        "Table 8: word similarity",
        "Spearman x 100 with similarities that people gave, of pairs of words that are "
        "whole pieces. Secondary.",
        _of_models("word_similarity", _similarity),
        paper=("input / output", _PAPER_WORDS),
    ),
    Section(
        "Masked-LM loss by frequency",
        "Nats, by how often the masked piece occurs in the training text. Secondary.",
        _of_models("masked_lm", _frequency),
        2,
        ("frequency", "occurrences in training", "loss, nats"),
    ),
)


def write_sections(page: Page, findings: Findings) -> None:
    """Writes all sections that have measured values, with their pictures.

    Args:
      page: the page that they are added to. findings: of the finished jobs.
    """
    for section in SECTIONS:
        found = section.read(findings)
        there = [
            row for row in findings.rows if any(row in by for by in found.values())
        ]
        if not there:
            continue
        page.heading(section.title)
        page.text(section.text)
        digits = dict.fromkeys(found, section.digits)
        page.table(["row", *found], row_cells(page, found, there, digits))
        _write_paper(page, section, findings, there)
        if section.drawn:
            name, across, up = section.drawn
            lines = Lines(section.title, across, up, list(found), _lines(found))
            page.picture(name, plot_lines, lines)


def row_cells(
    page: Page, columns: Columns, rows: Iterable[str], digits: Mapping[str, int]
) -> Iterator[list[str]]:
    """A line for each row, means linked to the runs.

    Args:
      digits: after the point, by column; 1 in others.
    """
    for row in rows:
        cells = [
            page.number(row, found.get(row, {}), digits=digits.get(head, 1))
            for head, found in columns.items()
        ]
        yield [row, *cells]


def _write_paper(page, section, findings, rows):
    """A table of the paper's numbers for the same rows."""
    if section.paper is None or findings.is_english:
        return
    what, printed = section.paper
    names = {row: claims.PAPER_ROWS.get(row) for row in rows}
    found = {row: printed[name] for row, name in names.items() if name in printed}
    if found:
        heads = list(next(iter(found.values())))
        page.text(f"The paper, {what}:")
        lines = [[row, *map(str, values.values())] for row, values in found.items()]
        page.table(["", *map(str, heads)], lines)


def _lines(columns):
    """row -> float64 [seeds, columns], for the rows that are drawn; NaN in gaps."""
    found = {}
    for row in _DRAWN:
        values = [by.get(row, {}) for by in columns.values()]
        seeds = sorted(set().union(*values))
        if seeds:
            found[row] = np.array(
                [[by.get(seed, np.nan) for by in values] for seed in seeds]
            )
    return found


class Lines(NamedTuple):
    """Values of several rows at positions such as layers.

    across, up: labels of the axes. places: names of the positions. rows: row -> float64
    [seeds, places], NaN where the row has no value.
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
    # Layers that no row of the picture has are not drawn.
    shown = [np.flatnonzero(np.isfinite(v).any(axis=0)) for v in drawn.rows.values()]
    count = 1 + max((int(places[-1]) for places in shown if len(places)), default=0)
    for index, (row, values) in enumerate(drawn.rows.items()):
        values = values[:, :count]
        mean = values.mean(axis=0)
        sides = [mean - values.min(axis=0), values.max(axis=0) - mean]
        # Shifted, so that the error bars do not overlap.
        shift = _SHIFT * (index - (len(drawn.rows) - 1) / 2)
        at = np.arange(len(mean)) + shift
        axes.errorbar(at, mean, sides, label=row, capsize=2, **plots.look(index))
    axes.set_xticks(range(count), drawn.places[:count])
    axes.set(xlabel=drawn.across, ylabel=drawn.up)
    plots.tidy(axes)
    title = f"{drawn.title}; mean and range over seeds"
    plots.title_and_legend(figure, axes, title)
    return plots.save(figure, stem)
