"""The page of a study: verdicts, measures, curves, written from its two files.

A folder of the same name beside the page has the files (`decoupled.reproduction.study`)
and the pictures. The design, design.md, is written by hand.
"""

import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.analyses.output import LAYER, Line, Panel, Picture, draw
from decoupled.core import plots
from decoupled.core.console import duration
from decoupled.core.tables import GAP
from decoupled.reports import published, sweeps
from decoupled.reports.page import Page, mean
from decoupled.reports.results import Number, Values, over_seeds
from decoupled.reproduction import claims
from decoupled.reproduction.measures import GEOMETRY, LAYERS
from decoupled.reproduction.statistics import (
    CONFIDENCE,
    CONTROL,
    LOGITS,
    NATS,
    Estimate,
)
from decoupled.reproduction.study import SCORES, STUDY, Study
from decoupled.reproduction.verdicts import NOT_RUN, Judged, Part, judge, p_text
from decoupled.runs.curve import CROSSED_BELOW, Curve, smoothed
from decoupled.sweeps.jobs import LAYER_DROP

DESIGN = "design.md"
_OUT_OF_REACH = "out of reach: it takes 1.8T tokens"
# The rows in the picture of layers; more rows would overlap.
_DRAWN = ("coupled", "e_small", "in_small", "e_large")
# Columns of the table of all rows.
_COLUMNS = {
    claims.SCORE: "S", claims.RETRIEVAL: "retrieval", claims.UD_POS: "parts of speech",
    claims.PROBES: "dependencies", claims.LOSS: "MLM loss", claims.ACCURACY: "MLM acc",
    claims.INPUT_WORDS: "words, input", claims.OUTPUT_WORDS: "words, output",
    claims.SIMILARITY: "word similarity", claims.BOOKS: "books",
    claims.POS_PROBES: "POS probes", claims.SIB200: "SIB-200",
}  # fmt: skip


def write_page(
    path: str, study: Study, curves: Mapping[tuple[str, int], Curve] | None = None
) -> list[Judged]:
    """Writes the Markdown page and its pictures; returns the claims with verdicts.

    `curves` are losses of pre-training by (row, seed); without them the picture that
    exists stays.
    """
    judged = judge(study.evidence)
    if study.is_english():
        judged = [_without_paper(claim) for claim in judged]
    beside = os.path.basename(os.path.splitext(path)[0])
    page = Page(path, beside, formats=("png",))
    _head(page, study)
    _verdicts(page, judged)
    _training(page, study, curves)
    _checks(page, study)
    _rows(page, study)
    _layers(page, study)
    _claims(page, judged)
    page.heading("Limits")
    page.items([*claims.LIMITS, *study.facts["left_out"]])
    page.write()
    return judged


def _without_paper(claim: Judged) -> Judged:
    """Without the paper's differences, which are those of multilingual models."""
    parts, secondary = (
        [part._replace(paper=None) for part in parts]
        for parts in (claim.parts, claim.secondary)
    )
    return claim._replace(parts=parts, secondary=secondary)


def _head(page, study):
    facts = study.facts
    files = (page.beside(name) for name in (SCORES, STUDY))
    page.heading("The paper's claims, tried with small models", 1)
    page.text(
        f"    {facts['command']}",
        f"{' '.join(facts['text'])} {len(study.rows)} models were pre-trained for "
        f"{facts['steps']:,} steps with seeds {', '.join(map(str, facts['seeds']))}, "
        f"with activations in {facts['activation_dtype']}, on {facts['machine']}. "
        f"{facts['complete']} of {facts['jobs']} jobs are complete; their times add up "
        f"to {duration(facts['seconds'])}. [The design]({design_link(page)}) was fixed "
        "before the results. Every number by seed is in "
        f"[{SCORES}]({next(files)}), every estimate in [{STUDY}]({next(files)}), from "
        "which `decoupled reproduce` writes this page.",
        *facts.get("notes", ()),
    )
    if facts["complete"] < facts["jobs"]:
        page.text("**Not everything is complete: what follows has gaps.**")


def design_link(page: Page) -> str:
    """The design lies in the folder of the study's page, or in that of its parent."""
    if os.path.exists(os.path.join(os.path.dirname(page.path), DESIGN)):
        return DESIGN
    return page.beside(DESIGN)


def _verdicts(page, judged):
    page.heading("The claims")
    rows = []
    for claim in judged:
        cells = [[part.title(), *_numbers(part)] for part in claim.parts]
        each = ["<br>".join(column) for column in zip(*cells, strict=True)]
        number, text = claim.claim.number, claim.claim.text
        rows.append(
            [number, text, _verdict(claim), *each[:3], _p(claim.corrected), *each[3:]]
        )
    text = "RemBERT beats XLM-R on XTREME with 3.5 times fewer tokens."
    rows.append([8, text, _OUT_OF_REACH, *[GAP] * 6])
    page.table(
        ["", "claim", "verdict", "contrast", "difference", f"{CONFIDENCE:.0%} interval"]
        + ["p (Holm)", "could be seen", "paper"],
        rows,
        words=4,
    )
    page.text(
        "*Could be seen* is the smallest effect that is found with 80% power at Holm's "
        "first step. The paper's numbers are its own differences, of its own measures."
    )
    parts = [
        (f"{claim.claim.number}: {part.title()}", part)
        for claim in judged
        for part in claim.parts
        if part.estimate is not None and math.isfinite(part.estimate.error)
    ]
    if parts:
        page.picture("contrasts", plot_contrasts, parts)


def _verdict(claim):
    missing = claim.missing()
    return f"**{claim.verdict}**" + (
        f" in one part; **not measured**: {', '.join(missing)}" if missing else ""
    )


def plot_contrasts(parts: Sequence[tuple[str, Part]], stem: str) -> list[str]:
    """A forest plot in multiples of the margins, so that all units share an axis."""
    figure, [[axes]] = plots.grid(1, 1, 6.5, 0.6 + 0.34 * len(parts))
    axes.axvspan(-1, 1, color=plots.GREY, alpha=0.4, linewidth=0)
    axes.axvline(0, color=plots.BLACK, linewidth=0.8)
    for place, (_, part) in enumerate(parts):
        low, high = np.divide(part.estimate.interval(), part.margin)
        middle = part.estimate.value / part.margin
        sides = [[middle - low], [high - middle]]
        style = {"color": plots.BLUE, "marker": "o", "capsize": 3}
        axes.errorbar([middle], [place], xerr=sides, **style)
    axes.set_yticks(range(len(parts)), [label for label, _ in parts])
    axes.set_ylim(len(parts) - 0.5, -0.5)
    axes.set_xlabel("difference / margin")
    plots.tidy(axes, grid="x")
    title = "Contrasts of the claims, 95% intervals; grey: within the margin"
    plots.title_and_legend(figure, axes, title)
    return plots.save(figure, stem)


def _numbers(part: Part) -> list[str]:
    digits = _digits(part.unit)
    paper = GAP if part.paper is None else f"{part.paper:+.{digits}f}"
    if part.estimate is None:
        return [GAP, GAP, GAP, paper]
    small = part.smallest_corrected
    return [
        f"{part.estimate.value:+.2f} {part.unit}",
        _interval(part.estimate.interval()),
        GAP if small is None else f"{small:.2f}",
        paper,
    ]


def _digits(unit):
    return 2 if unit in (NATS, LOGITS) else 1


def _interval(interval):
    return f"{interval[0]:+.2f} to {interval[1]:+.2f}"


def _p(value):
    return GAP if value is None else p_text(value)


def _training(page, study, curves):
    if not study.training:
        return
    facts = study.facts
    page.heading("Curves of pre-training")
    page.text(
        "Small models first learn how frequent words are and stay for a while near the "
        f"unigram entropy of the text, {facts['unigram_entropy']:.2f} nats a token. A "
        f"run crosses when its smoothed loss falls {CROSSED_BELOW:g} nat below that, "
        "for good. Contrasts with a row that did not train are void."
    )
    if curves:
        page.picture("curves", plot_curves, (curves, facts["unigram_entropy"]))
    else:
        page.text(f"![curves]({page.beside('curves.png')})")
    page.table(
        f"| row | crosses at step | loss at the end | loss {facts['common_steps']:,} "
        "steps after its crossing | |\n|---|---:|---:|---:|---|",
        [
            [
                *(row, trained.crosses, trained.loss, trained.later),
                f"**void**: {trained.void}" if trained.void else "trained",
            ]
            for row, trained in study.training.items()
        ],
    )
    page.text(*facts["only_speed"])


def plot_curves(
    drawn: tuple[Mapping[tuple[str, int], Curve], float], stem: str
) -> list[str]:
    """The smoothed loss of each row, mean and range over seeds, and the unigram level.

    `drawn`: (row, seed) -> losses of pre-training; and the unigram entropy in nats.
    """
    curves, level = drawn
    figure, [[axes]] = plots.grid(1, 1, 6.5, 4.2)
    for index, row in enumerate(dict.fromkeys(row for row, _ in curves)):
        runs = [curve for (name, _), curve in curves.items() if name == row]
        steps = runs[0].steps
        same = [smoothed(run) for run in runs if np.array_equal(run.steps, steps)]
        style = plots.look(index) | {"marker": ""}
        axes.plot(steps, np.mean(same, axis=0), label=row, **style)
        shade = {"color": style["color"], "alpha": 0.15, "lw": 0}
        axes.fill_between(steps, np.min(same, axis=0), np.max(same, axis=0), **shade)
    line = {"color": plots.BLACK, "linewidth": 1, "linestyle": ":"}
    axes.axhline(level, label="unigram entropy", **line)
    axes.set(xlabel="step", ylabel="masked-LM loss in training, nats")
    plots.tidy(axes)
    title = "Pre-training: mean and range over seeds"
    plots.title_and_legend(figure, axes, title)
    return plots.save(figure, stem)


def _checks(page, study):
    measures = {
        key: with_checks
        for key, with_checks in study.evidence.measures.items()
        if with_checks.checks
    }
    page.heading("What pre-training brings")
    if not measures:
        page.text("No row that trained was measured after one step too.")
        return
    page.text(
        "Each measure beside the same after a single step of pre-training, and beside "
        "a baseline that needs no model (word lookup, largest class, unigram entropy). "
        f"Gains are positive where the model is better; {CONFIDENCE:.0%} intervals. A "
        "measure with a gain that is not clearly above 0 decides nothing."
    )
    rows = []
    for key, measure in measures.items():
        digits = _digits(measure.unit)
        passed = all(check.passed() for check in measure.checks)
        for check in measure.checks:
            values = [
                mean(_values(study, row, key), digits=digits)
                for row in (check.row, CONTROL + check.row)
            ]
            baseline = measure.baseline
            rows.append(
                [
                    *(measure.name, measure.unit, check.row, *values),
                    _gain(check.gain),
                    GAP if baseline is None else f"{baseline:.{digits}f}",
                    _gain(check.over_baseline),
                    "yes" if passed else "**no**",
                ]
            )
    page.table(
        ["measure", "unit", "row", "value", "after one step", "gain", "baseline"]
        + ["over the baseline", "may decide"],
        rows,
        words=3,
    )


def _gain(gain: Estimate | None) -> str:
    return f"{gain.value:+.2f} ({_interval(gain.interval())})" if gain else GAP


def _values(study: Study, row: str, key: str) -> Values:
    """The value of a row by seed: the mean over the components of a measure."""
    if key == claims.SCORE:
        parts = [p for p in claims.SCORE_PARTS if p in study.evidence.measures]
        return over_seeds(_values(study, row, part) for part in parts)
    components: dict[str, dict[int, float]] = {}
    for number in study.numbers:
        if (number.row, number.task) == (row, key):
            components.setdefault(number.metric, {})[number.seed] = number.value
    return over_seeds(components.values())


def _rows(page, study):
    columns = {
        head: (key, _digits(study.evidence.measures[key].unit))
        for key, head in _COLUMNS.items()
        if key in study.evidence.measures
    }
    papers, scores, printed = claims.PAPER_ROWS, [published.AVERAGE], "paper's average"
    if study.is_english():
        papers, scores = claims.ENGLISH_ROWS, ["mnli", "squad"]
        printed = "paper's MNLI; SQuAD"
    lines = []
    for name, row in study.rows.items():
        cells = [
            mean(_values(study, name, key), digits=digits)
            for key, digits in columns.values()
        ]
        average = "; ".join(
            text
            for score in scores
            if name in papers and (text := published.printed(papers[name], score))
        )
        lines.append([name, *sweeps.sizes(row), *cells, average or GAP])
    page.heading("The rows")
    page.text(
        "Means over seeds ± standard deviations, in points, nats (MLM loss) and mean "
        "reciprocal rank x 100 (translation of words by the input and the output "
        "embedding). S is the mean of retrieval, parts of speech and dependencies."
    )
    page.table(["row", *sweeps.SIZES, *columns, printed], lines)


class Details(NamedTuple):
    """A table with a column for each number of a task, beside the paper's."""

    title: str
    text: str
    task: str
    prefix: str
    paper: str
    printed: Mapping[str, Mapping[int, float]]


_DETAILS = (
    Details(
        "Figure 2: retrieval of translations by layer",
        "Share of held-out verses whose nearest neighbour in another language is their "
        "translation, %; the mean over all ordered pairs of languages. Layer 0 is the "
        "input embedding.",
        LAYERS,
        "layer ",
        "English to German",
        published.TRANSLATION,
    ),
    Details(
        "Figure 1: without the last layers",
        "Parts of speech, % of words right, of models that were fine-tuned with their "
        "first layers alone. Secondary.",
        LAYER_DROP,
        "layers 1 to ",
        "XNLI, by layers kept",
        published.LAYERS_KEPT,
    ),
    Details(
        "Embeddings and logits",
        "The share of the gradient of the loss by the logits that passes the output "
        "embedding, beside what a random map of this rank would pass; ranks of the "
        "logits at masked positions and of the embedding tables. Exploratory.",
        GEOMETRY,
        "",
        "",
        {},
    ),
)


def _layers(page, study):
    for details in _DETAILS:
        numbers = [
            number._replace(metric=number.metric.removeprefix(details.prefix))
            for number in study.numbers
            if (number.task, number.row.startswith(CONTROL)) == (details.task, False)
            and number.metric.startswith(details.prefix)
        ]
        columns = list(dict.fromkeys(number.metric for number in numbers))
        rows = [
            row for row in study.rows if any(number.row == row for number in numbers)
        ]
        if not rows:
            continue
        page.heading(details.title)
        page.text(details.text)
        values = {row: _by_column(numbers, row) for row in rows}
        lines = [
            [row, *(mean(values[row].get(column, {})) for column in columns)]
            for row in rows
        ]
        page.table(["row", *columns], lines)
        _paper(page, study, details, rows)
        if details.task == LAYERS:
            drawn = {row: values[row] for row in _DRAWN if row in values}
            page.picture("retrieval", plot_layers, (columns, drawn))


def _by_column(numbers: Iterable[Number], row: str) -> dict[str, dict[int, float]]:
    values: dict[str, dict[int, float]] = {}
    for number in numbers:
        if number.row == row:
            values.setdefault(number.metric, {})[number.seed] = number.value
    return values


def _paper(page, study, details, rows):
    names = {row: claims.PAPER_ROWS.get(row) for row in rows}
    printed = {
        row: details.printed[name]
        for row, name in names.items()
        if name in details.printed
    }
    if printed and not study.is_english():
        page.text(f"The paper, {details.paper}:")
        lines = [[row, *map(str, values.values())] for row, values in printed.items()]
        page.table(["", *map(str, next(iter(printed.values())))], lines)


def plot_layers(
    drawn: tuple[Sequence[str], Mapping[str, Mapping[str, Values]]], stem: str
) -> list[str]:
    """A line for each row: mean and range over seeds by layer.

    `drawn`: names of the layers; and row -> layer -> values by seed.
    """
    layers, rows = drawn
    lines = []
    for row, by_layer in rows.items():
        values = [
            list(by_layer[layer].values()) for layer in layers if layer in by_layer
        ]
        middle = [statistics.fmean(each) for each in values]
        sides = (list(map(side, values)) for side in (min, max))
        lines.append(Line(row, list(range(len(values))), middle, *sides))
    title = "Retrieval of translations; mean and range over seeds"
    panel = Panel(lines, LAYER, "retrieved, %")
    return draw(Picture(title, [[panel]]), stem)


def _claims(page, judged):
    page.heading("Claim by claim")
    page.text(
        "A contrast is a difference of rows of the same seeds on the same items. The "
        f"{CONFIDENCE:.0%} interval of the formula takes seeds and items for samples; "
        "the bootstrap beside it decides nothing. p is that of the contrast's own "
        "rule, without correction. *Secondary* contrasts are exploratory."
    )
    head = ["contrast", "rule", "difference", "interval", "bootstrap", "p"]
    head += ["seeds", "items", "d. f.", "could be seen", "paper"]
    for claim in judged:
        if claim.verdict == NOT_RUN:
            continue
        page.heading(f"{claim.claim.number}. {claim.claim.text}", 3)
        page.text(f"{_verdict(claim)}. {' '.join(claim.sentences)}")
        parts = [*claim.parts, *claim.secondary]
        page.table(head, [_contrast(part) for part in parts], words=2)


def _contrast(part: Part) -> list[str]:
    difference, interval, small, paper = _numbers(part)
    cells = [part.title(), part.contrast.rule or "secondary", difference, interval]
    if part.estimate is None:
        return [*cells, *[GAP] * 5, small, paper]
    estimate = part.estimate
    cells += [_interval(part.resampled), _p(part.p_value)]
    counts = [f"{estimate.seeds}", f"{estimate.items:,}", f"{estimate.freedom:.1f}"]
    return [*cells, *counts, small, paper]
