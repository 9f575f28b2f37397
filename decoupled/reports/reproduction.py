"""The document of a reproduction: claims, tables and figures, in Markdown.

Everything is read from the folders of runs. Beside the document lie, in a folder of its
name: figures, every number by seed (scores.csv), and the page that numbers link to,
runs.md, which has them by seed too, each with the settings of its run.
"""

import os
from collections.abc import Sequence
from typing import NamedTuple

from decoupled.core import files
from decoupled.core.tables import GAP
from decoupled.reports import pictures, published, sweeps
from decoupled.reports.claims import Judged, judge, pretraining_gain
from decoupled.reports.page import RUNS, Page
from decoupled.reports.paired import (
    CONFIDENCE,
    SUPPORTED,
    combined,
    student_quantile,
)
from decoupled.reports.results import (
    KINDS,
    PROBING,
    SIMILARITY,
    SPECTRUM,
    Results,
    embedding,
    spread,
)

# Of Table 8, in its order; of Figures 1 and 2.
SIMILARITY_ROWS = ("coupled", "decoupled", "e_out_128", "e_out_768", "e_out_3072")
FIGURE_ROWS = ("e_out_128", "e_out_768", "e_out_3072")
# Of the best model's masked-LM accuracy: below, a model has not learned.
_LEARNED = 0.5


class PaperTable(NamedTuple):
    """A table of the paper: its title, and the names of its models in its order."""

    title: str
    rows: tuple[str, ...]


def write_document(
    path: str,
    results: Results,
    tables: Sequence[PaperTable],
    told: Sequence[str],
    limits: Sequence[str],
) -> list[Judged]:
    """Writes the document and what lies beside it; returns the claims with verdicts.

    Args:
      path: of the Markdown file. results: what was measured. tables: of the paper.
      told: paragraphs on the run as a whole. limits: sentences on its data.
    """
    beside = os.path.basename(os.path.splitext(path)[0])
    page = Page(path, beside, formats=("png",))
    claims = judge(results)
    _head(page, told, results)
    _control(page, results)
    _verdicts(page, claims, results)
    for wanted in tables:
        names = [name for name in wanted.rows if name in results.rows]
        if names:
            page.heading(wanted.title)
            page.table(*sweeps.make_table(results.of(names), page))
    page.picture("scores", pictures.plot_scores, results)
    _similarity(page, results)
    _dropped_layers(page, results)
    _translation(page, results)
    _probing(page, results)
    _ranks(page, results)
    _claims(page, claims)
    _limits(page, limits, results)
    csv = os.path.join(page.folder, "scores.csv")
    files.write_text(csv, sweeps.numbers_as_csv(results.numbers))
    numbers = sweeps.copy_settings(results, os.path.join(page.folder, "settings"))
    sweeps.write_runs(os.path.join(page.folder, RUNS), numbers)
    page.write()
    return claims


def _head(page, told, results):
    page.heading("Tables 2 to 6, 8 and 9, Figures 1 and 2, at a small scale", level=1)
    page.text(
        "Written by `decoupled reproduce`. Every number is read from the "
        "folders of runs. A mean in a table links to the numbers of its runs, each "
        "with all its settings.",
        *told,
    )
    if results.tasks:
        page.text(" ".join(_on_scores(results)))


def _on_scores(results):
    yield (
        f"Scores are means over the tasks, {', '.join(results.tasks)}: of each the "
        "mean over all languages of its dev files, or of its test files where dev is "
        "English alone; English is among them, and the only one trained on."
    )
    if results.trivial is None:
        return
    yield (
        "A trivial baseline (the most frequent class, a word's most frequent tag) "
        f"scores {results.trivial:.1f}."
    )
    means = [
        one.mean for one in map(spread, map(results.averages, results.rows)) if one
    ]
    if means:
        better = sum(mean > results.trivial for mean in means)
        yield f"**{better} of {len(means)} models score higher than that.**"


def _control(page, results):
    if not results.controls():
        return
    page.heading("Does pre-training help here?")
    page.text("The same fine-tuning after a single step of pre-training:")
    rows = [
        [
            row,
            page.number(row, results.averages(row)),
            page.number(row, results.control(row)),
        ]
        for row in results.controls()
    ]
    page.table("| model | score | after one step |\n|---|---:|---:|", rows)
    _parts(page, pretraining_gain(results))


def _verdicts(page, claims, results):
    page.heading("The claims")
    rows = [[j.claim.number, j.claim.text, f"**{j.verdict}**"] for j in claims]
    rows.append(
        [
            8,
            "RemBERT beats XLM-R on XTREME with 3.5 times fewer tokens.",
            "out of reach: it takes 1.8T tokens",
        ]
    )
    page.table("| | claim | verdict |\n|---|---|---|", rows)
    gains = pretraining_gain(results)
    if gains and combined(gain.verdict for gain in gains) != SUPPORTED:
        page.text(
            "**Claims 1 to 5 and part of 7 rest on scores, and it is not shown above "
            "that pre-training helps scores here. Whatever their verdicts, they say "
            "little about pre-training.**"
        )


def _similarity(page, results):
    """Table 8, the published numbers below ours."""
    sets = list(results.coverage)
    if not sets:
        return
    page.heading("Table 8: word similarity and masked-LM accuracy")
    page.text("Spearman x 100 of the dot product, input / output embedding.")
    rows = []
    for row in SIMILARITY_ROWS:
        cells = []
        for name in sets:
            metrics = [f"{name}{embedding(kind)}" for kind in KINDS]
            values = [results.values(row, SIMILARITY, metric) for metric in metrics]
            printed = published.WORD_SIMILARITY[row].get(name, ())
            paper = " / ".join(f"{value:.1f}" for value in printed)
            cells.append(page.number(row, *values, paper=paper))
        paper = f"{published.MASKED_LM[row]:.1f}"
        rows.append(
            [row, *cells, page.number(row, results.masked_lm(row), paper=paper)]
        )
    page.table(["model", *sets, "MLM acc"], rows)
    covered = ", ".join(
        f"{name} {found / pairs:.0%} of {pairs:,}"
        for name, (found, pairs) in results.coverage.items()
    )
    page.text(f"Pairs that the vocabulary can write: {covered}.")
    drawn = {"masked_lm": {row: results.masked_lm(row) for row in SIMILARITY_ROWS}}
    for kind in KINDS:
        drawn[kind] = {row: results.similarity(row, kind) for row in SIMILARITY_ROWS}
    page.picture("similarity", pictures.plot_similarity, drawn)


def _dropped_layers(page, results):
    drawn = pictures.ByLayer(
        "Fine-tuned without the last layers",
        "layers kept in fine-tuning",
        "mean score of tasks, %",
        _of_figures(results.dropped),
    )
    _figure(
        page,
        "Figure 1: without the last layers",
        "Scores of models that were fine-tuned with their first layers alone.",
        ("layers kept", "XNLI", published.LAYERS_KEPT),
        ("figure_1", drawn),
    )


def _translation(page, results):
    drawn = pictures.ByLayer(
        "Nearest-neighbour translation from English",
        "layer (0: input embedding)",
        "accuracy, %",
        _of_figures(results.translation),
        from_zero=True,
    )
    languages = ", ".join(f"{name} ({n:,})" for name, n in results.pairs.items())
    _figure(
        page,
        "Figure 2: translation by nearest neighbours",
        "Share of English sentences whose nearest neighbour is their translation, "
        f"%; mean over languages (pairs): {languages}.",
        ("layer", "German", published.TRANSLATION),
        ("figure_2", drawn),
    )


def _of_figures(measured):
    found = {row: measured(row) for row in FIGURE_ROWS}
    return {row: by_layer for row, by_layer in found.items() if by_layer}


def _figure(page, title, intro, paper, picture):
    """A figure as tables, ours and the paper's, and as a picture.

    Args:
      paper: head of the layers, what it measured, model -> layer -> number.
      picture: its name and what is drawn.
    """
    head, measured, printed = paper
    models = picture[1].models
    if not models:
        return
    page.heading(title)
    page.text(intro)
    layers = sorted({layer for by_layer in models.values() for layer in by_layer})
    rows = [
        [row, *(page.number(row, by_layer.get(layer, {})) for layer in layers)]
        for row, by_layer in models.items()
    ]
    page.table([head, *map(str, layers)], rows)
    page.text(f"The paper, {measured}:")
    rows = [[row, *map(str, printed[row].values())] for row in FIGURE_ROWS]
    page.table([head, *map(str, printed[FIGURE_ROWS[0]])], rows)
    page.picture(picture[0], pictures.plot_by_layer, picture[1])


def _probing(page, results):
    """Table 9, the published numbers below ours."""
    metrics = results.metrics(PROBING)
    if not metrics:
        return
    page.heading("Table 9: edge probing")
    page.text("F1 of a probe on a learned mix of all layers of the frozen encoder, %.")
    tasks = {metric.removeprefix("F1, "): metric for metric in metrics}
    rows = []
    for row in FIGURE_ROWS:
        cells = [
            page.number(
                row,
                results.values(row, PROBING, metric),
                paper=f"{published.PROBES[row][task]:.1f}",
            )
            for task, metric in tasks.items()
        ]
        rows.append([row, *cells, page.number(row, results.probing(row))])
    page.table(["model", *tasks, "mean"], rows)


def _ranks(page, results):
    """Effective ranks of all models' embeddings."""
    if not results.metrics(SPECTRUM):
        return
    page.heading("Spectrum of the embeddings")
    page.text(
        "Effective rank (exponential of the entropy of the singular values, mean row "
        "taken away) of the width E. Not in the paper."
    )
    rows = []
    for name, row in results.rows.items():
        cells = [name]
        for kind in KINDS:
            metric = f"effective rank{embedding(kind)}"
            values = results.values(name, SPECTRUM, metric)
            width = getattr(row.model, f"{kind}_embedding_size")
            cells += [page.number(name, values), str(width) if values else GAP]
        rows.append(cells)
    head = "| model | input | of E_in | output | of E_out |\n|---|---:|---:|---:|---:|"
    page.table(head, rows)


def _claims(page, claims):
    page.heading("The claims, number by number")
    page.text(
        "Differences of runs of the same seed, in points; their mean, and its "
        f"{CONFIDENCE:.0%} interval by Student's t. A claim is supported where the "
        "interval lies entirely on the paper's side, not supported where it lies "
        "entirely on the other, and undecided otherwise. One of several parts needs "
        "all of them; a part without a rule is shown for comparison only. Each run's "
        f"number and settings: [all runs]({page.runs()})."
    )
    for judged in claims:
        page.heading(f"{judged.claim.number}. {judged.claim.text}", level=3)
        page.text(f"**{judged.verdict}**")
        _parts(page, judged.parts)
        page.text(judged.note)


def _parts(page, parts):
    rows = []
    for part in parts:
        found, ours, interval, seeds = part.found, GAP, GAP, "0"
        if found is not None:
            ours, seeds = f"{found.mean:+.2f}", str(found.count)
            if found.low is not None:
                interval = f"{found.low:+.2f} to {found.high:+.2f}"
        paper = GAP if part.paper is None else f"{part.paper:+.1f}"
        verdict = part.verdict or ""
        rows.append([part.what, paper, ours, interval, seeds, part.rule, verdict])
    head = (
        f"| difference | paper | here | {CONFIDENCE:.0%} interval | seeds | supports "
        "| verdict |\n|---|---:|---:|---:|---:|---|---|"
    )
    page.table(head, rows)


def _limits(page, limits, results):
    page.heading("What limits this")
    seeds, intervals = len(results.seeds), []
    if seeds > 1:
        width = student_quantile((1 + CONFIDENCE) / 2, seeds - 1) / seeds**0.5
        intervals.append(
            f"{seeds} seeds: an interval reaches {width:.1f} standard deviations of "
            "the differences to either side, so that only large differences are "
            "decided."
        )
    page.items(
        [
            *intervals,
            *_unlearned(results),
            "Intervals are of single differences. With so many of them, expect one in "
            "twenty to miss its true value.",
            "Seeds vary initial weights, data order and masks, in pre-training and "
            "fine-tuning together. The text, the vocabulary and the task are the same: "
            "intervals say nothing about other texts and tasks.",
            "Which differences are taken, and what they have to show, is fixed in "
            "`decoupled/reports/claims.py` and does not depend on results.",
            *limits,
        ]
    )


def _unlearned(results):
    """A sentence on models that guess masked words far worse than the others."""
    found = {row: spread(results.masked_lm(row)) for row in results.rows}
    means = {row: one.mean for row, one in found.items() if one}
    best = max(means.values(), default=0.0)
    low = [row for row, mean in means.items() if mean < _LEARNED * best]
    if low:
        yield (
            f"{', '.join(low)}: guesses less than half as many masked words as the "
            f"best model ({best:.1f}%). At this length and rate it has not learned "
            "what the others have. Claims that compare it say nothing about its size."
        )
