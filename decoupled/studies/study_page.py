"""The page of a study: tables and figures, written from its files.

It has no sentence on what the numbers mean; docs/reproduction.md, which is written by
hand, has these. A folder of the same name beside the page has the files
(`decoupled.studies.study`) and the pictures.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from decoupled.analyses.output import LAYER, Line, Panel, Picture
from decoupled.core import plots
from decoupled.core.console import duration
from decoupled.core.tables import GAP
from decoupled.runs.curve import CROSSED_BELOW, Curve, smoothed
from decoupled.studies import claims, published, sweep_report
from decoupled.studies.claims import Contrast
from decoupled.studies.jobs import LAYER_DROP, RATES
from decoupled.studies.measures import GEOMETRY, LAYERS
from decoupled.studies.page import Page, mean
from decoupled.studies.results import Number, Values, over_seeds
from decoupled.studies.statistics import CONFIDENCE, CONTROL, LOGITS, NATS
from decoupled.studies.study import ITEMS, SCORES, STUDY, Study
from decoupled.studies.verdicts import (
    BY_INTERVAL,
    BY_SEEDS,
    NOT_RUN,
    ClaimVerdict,
    Part,
    judge,
    part_of,
)

# Columns of the table of all rows.
_COLUMNS = {
    claims.SCORE: "S", claims.RETRIEVAL: "retrieval", claims.UD_POS: "parts of speech",
    claims.PROBES: "dependencies", claims.LOSS: "MLM loss", claims.ACCURACY: "MLM acc",
    # Of the first study alone: two tasks, and translation of words.
    "word_translation_input": "words, input",
    "word_translation_output": "words, output",
    claims.SIMILARITY: "word similarity", "books": "books",
    claims.POS_PROBES: "POS probes", "sib200": "SIB-200",
}  # fmt: skip
# About the most points of a curve that are drawn.
_CURVE_POINTS = 60
# A line of a table for each number of a task: its title, the beginning of the numbers'
# names, and the same numbers of the paper.
_DETAILS = {
    LAYERS: (
        "Retrieval of translations by layer (Figure 2; paper: English to German), %",
        "layer ",
        published.TRANSLATION,
    ),
    LAYER_DROP: (
        "Fine-tuning of the first layers alone: parts of speech (Figure 1; paper: "
        "XNLI), %",
        "layers 1 to ",
        published.LAYERS_KEPT,
    ),
    GEOMETRY: ("Embeddings and logits", "", {}),
}


def write_page(
    path: str, study: Study, curves: Mapping[tuple[str, int], Curve] | None = None
) -> list[ClaimVerdict]:
    """Writes the Markdown page and its pictures; returns the claims with verdicts.

    `curves` are losses of pre-training by (row, seed); without them the picture that
    exists stays.
    """
    verdicts = judge(study.evidence)
    folder = os.path.basename(os.path.splitext(path)[0])
    page = Page(path, folder, formats=("png",))
    _head(page, study)
    _verdicts(page, study, verdicts)
    _dose(page, study)
    _training(page, study, curves)
    _checks(page, study)
    _rows(page, study)
    _details(page, study)
    _contrasts(page, study)
    page.write()
    return verdicts


def _head(page, study):
    facts = study.facts
    page.heading("Results of `decoupled reproduce`", 1)
    page.text(f"    {facts['command']}")
    files = [
        f"[{name}]({page.link_to(name)})"
        for name in (SCORES, STUDY, ITEMS)
        if os.path.exists(os.path.join(page.folder, name))
    ]
    page.table(
        ["", ""],
        [
            ["text", " ".join(facts["text"])],
            ["models", f"{len(study.rows)}, {facts['steps']:,} steps"],
            ["seeds", ", ".join(map(str, facts["seeds"]))],
            ["activations", facts["activation_dtype"]],
            ["machine", facts["machine"]],
            ["complete", f"{facts['complete']} of {facts['jobs']} jobs"],
            ["their time", duration(facts["seconds"])],
            *(
                [f"measured in {name}", ", ".join(rows)]
                for name, rows in facts.get("measured", {}).items()
            ),
            ["left out", " ".join(facts["left_out"]) or GAP],
            ["notes", " ".join(facts.get("notes", ())) or GAP],
            ["files", ", ".join(files)],
        ],
        words=2,
    )


def _verdicts(page, study, verdicts):
    page.heading("Claims")
    other_controls = {BY_SEEDS: BY_INTERVAL, BY_INTERVAL: BY_SEEDS}
    control = study.evidence.control
    other_verdicts = judge(study.evidence._replace(control=other_controls[control]))
    rows = []
    for claim, other_verdict in zip(verdicts, other_verdicts, strict=True):
        cells = [
            [part.title, part.contrast.rule, *_numbers(part)] for part in claim.parts
        ]
        columns = ["<br>".join(column) for column in zip(*cells, strict=True)]
        rows.append(
            [*claim.title(), f"**{claim.verdict}**"]
            + [*columns[:4], _p(claim.corrected_p), *columns[4:]]
            + [", ".join(claim.missing()) or GAP, " ".join(claim.reasons) or GAP]
            + [other_verdict.verdict]
        )
    page.table(
        ["", "claim", "verdict", "contrast", "rule", "difference"]
        + [f"{CONFIDENCE:.0%} interval", "p (Holm)", "could be seen", "paper"]
        + ["not measured", "reason", f"with controls by {other_controls[control]}"],
        rows,
        words=5,
    )
    page.text(
        "*Could be seen*: the smallest effect that is found with 80% power at Holm's "
        "first step. *paper*: the paper's difference of its own measure (Tables 2 to "
        "6: average of XTREME; Table 13: MNLI)."
    )
    parts = [
        (": ".join(filter(None, [claim.title()[0], part.title])), part)
        for claim in verdicts
        for part in claim.parts
        if part.estimate is not None and math.isfinite(part.estimate.error)
    ]
    if parts:
        page.picture("contrasts", picture_of_contrasts(parts))


def picture_of_contrasts(parts: Sequence[tuple[str, Part]]) -> Picture:
    """A forest plot in multiples of the margins, so that all units share an axis."""
    low, high = zip(
        *(np.divide(part.estimate.interval(), part.margin) for _, part in parts),
        strict=True,
    )
    values = [part.estimate.value / part.margin for _, part in parts]
    line = Line("difference", values, list(range(len(parts))), low, high)
    rows = [label for label, _ in parts]
    panel = Panel([line], "difference / margin", rows=rows, band=(-1, 1))
    title = "Contrasts of the claims, 95% intervals; grey: within the margin"
    return Picture(title, [[panel]])


def _numbers(part: Part) -> list[str]:
    digits = _digits(part.unit)
    paper = GAP if part.paper is None else f"{part.paper:+.{digits}f}"
    if part.estimate is None:
        return [GAP, GAP, GAP, paper]
    low, high = part.estimate.interval()
    return [
        f"{part.estimate.value:+.2f} {part.unit}",
        f"{low:+.2f} to {high:+.2f}",
        GAP if part.smallest is None else f"{part.smallest:.2f}",
        paper,
    ]


def _digits(unit):
    return 2 if unit in (NATS, LOGITS) else 1


def _p(value):
    if value is None:
        return GAP
    return f"{value:.3f}" if value >= 0.001 else "below 0.001"


def _dose(page, study):
    """Loss and score by E_out, at each rate that was tried and at the chosen ones."""
    doses = study.facts["doses"]
    losses: dict[str, dict[str, float]] = {}
    for number in study.numbers:
        if number.task == RATES:
            losses.setdefault(number.metric, {})[number.row] = number.value
    rates = sorted(losses, key=float)
    # The line of a rate has no runs that stay on the plateau: they would hide the rest.
    limit = (study.facts["unigram_entropy"] or math.inf) - CROSSED_BELOW
    lines = [
        (
            f"rate {rate}",
            {r: [v] for r, v in losses[rate].items() if r in doses and v < limit},
        )
        for rate in rates
    ]
    lines = [(name, of_rows) for name, of_rows in lines if of_rows]
    name = "the row's rate, all seeds"
    panels = [
        _dose_panel(
            lines, doses, "held-out loss, nats", "by rate, one seed, fewer steps"
        ),
        *(
            _dose_panel([(name, _all_values(study, key, doses))], doses, label, title)
            for key, label, title in (
                (claims.LOSS, "held-out loss, nats", "at the rate of each row"),
                (claims.SCORE, "S, points", ""),
                (claims.RETRIEVAL, "retrieval, points", ""),
            )
        ),
    ]
    panels = [panel for panel in panels if any(line.x for line in panel.lines)]
    if panels:
        page.heading("E_out and the learning rate")
        rows = dict.fromkeys(row for by_row in losses.values() for row in by_row)
        if rates:
            page.table(
                ["row", *(f"loss at {rate}" for rate in rates)],
                [[row, *(_loss(losses[r].get(row)) for r in rates)] for row in rows],
            )
        page.picture("dose", Picture("Mean and range over seeds", [panels]))


def _dose_panel(lines, doses, label, title):
    """`lines`: name, and row -> values. All of them have the same places of E_out."""
    rows = sorted({row for _, of_rows in lines for row in of_rows}, key=doses.get)
    x = [str(doses[row]) for row in rows]
    series = [
        [
            [side(of_row.get(row, [math.nan])) for row in rows]
            for side in (np.mean, min, max)
        ]
        for _, of_row in lines
    ]
    all_lines = [Line(name, x, *y) for (name, _), y in zip(lines, series, strict=True)]
    return Panel(all_lines, "E_out", label, title)


def _loss(value):
    return GAP if value is None else f"{value:.3f}"


def _all_values(study, key, rows):
    values = {row: list(_values(study, row, key).values()) for row in rows}
    return {row: of_row for row, of_row in values.items() if of_row}


def _training(page, study, curves):
    if not study.training:
        return
    facts = study.facts
    page.heading("Curves of pre-training")
    if curves:
        level = facts["unigram_entropy"]
        page.picture("curves", picture_of_curves(curves, level))
    else:
        page.text(f"![curves]({page.link_to('curves.png')})")
    page.table(
        f"| row | {CROSSED_BELOW:g} nat below the unigram entropy "
        f"({facts['unigram_entropy']:.2f}) at step | loss at the end | loss "
        f"{facts['common_steps']:,} steps later | void |\n|---|---:|---:|---:|---|",
        [
            [row, trained.crosses, trained.loss, trained.later, trained.void or "no"]
            for row, trained in study.training.items()
        ],
    )


def picture_of_curves(curves: Mapping[tuple[str, int], Curve], level: float) -> Picture:
    """The smoothed loss of each row, mean and range over seeds, and the unigram level.

    `curves`: (row, seed) -> losses of pre-training. `level`: in nats.
    """
    lines, last_step = [], 0
    for row in dict.fromkeys(row for row, _ in curves):
        runs = [curve for (name, _), curve in curves.items() if name == row]
        steps = runs[0].steps
        losses = [smoothed(run) for run in runs if np.array_equal(run.steps, steps)]
        sample = slice(None, None, max(1, len(steps) // _CURVE_POINTS))
        series = (of(losses, axis=0)[sample] for of in (np.mean, np.min, np.max))
        lines.append(Line(row, steps[sample], *series, look={"marker": ""}))
        last_step = max(last_step, int(steps[-1]))
    look = {"color": plots.BLACK, "linestyle": ":", "marker": ""}
    lines.append(Line("unigram entropy", [0, last_step], [level, level], look=look))
    panel = Panel(lines, "step", "masked-LM loss in training, nats")
    return Picture("Pre-training: mean and range over seeds", [[panel]])


def _checks(page, study):
    measures = {
        key: measure
        for key, measure in study.evidence.measures.items()
        if measure.checks
    }
    if not measures:
        return
    page.heading("Trained models against one step of training")
    rows = []
    for key, measure in measures.items():
        digits = _digits(measure.unit)
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
                    *(check.passed(how) for how in (BY_SEEDS, BY_INTERVAL)),
                ]
            )
    page.table(
        ["measure", "unit", "row", "value", "after one step", "gain", "baseline"]
        + ["over the baseline", "clear over seeds", "clear by the interval"],
        rows,
        words=3,
    )


def _gain(gain):
    if gain is None:
        return GAP
    low, high = gain.interval()
    return f"{gain.value:+.2f} ({low:+.2f} to {high:+.2f})"


def _values(study: Study, row: str, key: str) -> Values:
    """The value of a row by seed: the mean over the components of a measure."""
    if key == claims.SCORE:
        parts = [p for p in claims.SCORE_PARTS if p in study.evidence.measures]
        return over_seeds(_values(study, row, part) for part in parts)
    return over_seeds(_by_metric(study.numbers, row, key).values())


def _by_metric(numbers: Iterable[Number], row: str, task: str) -> dict[str, Values]:
    values: dict[str, dict[int, float]] = {}
    for number in numbers:
        if (number.row, number.task) == (row, task):
            values.setdefault(number.metric, {})[number.seed] = number.value
    return values


def _rows(page, study):
    columns = {
        head: (key, _digits(study.evidence.measures[key].unit))
        for key, head in _COLUMNS.items()
        if key in study.evidence.measures
    }
    papers, lines = study.evidence.papers, []
    for name, row in study.rows.items():
        cells = [
            mean(_values(study, name, key), digits=digits)
            for key, digits in columns.values()
        ]
        paper_text = "; ".join(
            text
            for score in (published.AVERAGE, "mnli", "squad")
            if name in papers and (text := published.printed(papers[name], score))
        )
        lines.append([name, *sweep_report.sizes(row), *cells, paper_text or GAP])
    page.heading("Rows: means over seeds ± standard deviations")
    page.table(
        ["row", *sweep_report.SIZES, *columns, "paper: average; MNLI; SQuAD"], lines
    )


def _details(page, study):
    for task, (title, prefix, papers) in _DETAILS.items():
        values = {
            row: {
                metric.removeprefix(prefix): by_seed
                for metric, by_seed in _by_metric(study.numbers, row, task).items()
                if metric.startswith(prefix)
            }
            for row in study.rows
        }
        values = {row: of_row for row, of_row in values.items() if of_row}
        if not values:
            continue
        columns = list(dict.fromkeys(c for of_row in values.values() for c in of_row))
        page.heading(title)
        page.table(
            ["row", *columns],
            [
                [row, *(mean(of_row.get(column, {})) for column in columns)]
                for row, of_row in values.items()
            ],
        )
        paper_rows = {
            row: papers[name]
            for row in values
            if (name := study.evidence.papers.get(row)) in papers
        }
        if paper_rows:
            lines = [[row, *map(str, of.values())] for row, of in paper_rows.items()]
            page.table(["paper", *map(str, next(iter(paper_rows.values())))], lines)
        if task == LAYERS:
            drawn_rows = study.facts["doses"] or paper_rows
            lines = {row: of for row, of in values.items() if row in drawn_rows}
            page.picture("retrieval", picture_of_layers(columns, lines or values))


def picture_of_layers(
    layers: Sequence[str], rows: Mapping[str, Mapping[str, Values]]
) -> Picture:
    """A line for each row (row -> layer -> values): mean and range over seeds."""
    lines = []
    for row, by_layer in rows.items():
        values = [
            list(by_layer[layer].values()) for layer in layers if layer in by_layer
        ]
        series = ([of(numbers) for numbers in values] for of in (np.mean, min, max))
        lines.append(Line(row, list(range(len(values))), *series))
    title = "Retrieval of translations; mean and range over seeds"
    return Picture(title, [[Panel(lines, LAYER, "retrieved, %")]])


def _contrasts(page, study):
    """All contrasts that have numbers; those that decide come first."""
    evidence = study.evidence
    texts = [text for texts in evidence.claims.values() for text in texts]
    texts += [*evidence.sensitivity.values(), *study.secondary]
    parts = [
        part
        for contrast in map(Contrast.read, dict.fromkeys(texts))
        if (part := part_of(contrast, evidence)).state != NOT_RUN and part.estimate
    ]
    if not parts:
        return
    page.heading("Contrasts")
    page.text(
        "*p*: of the contrast's own rule, or two-sided against 0; not corrected. A "
        "contrast without a rule decides nothing."
    )
    rows = []
    for part in parts:
        difference, interval, small, paper = _numbers(part)
        estimate = part.estimate
        rows.append(
            [part.title, part.contrast.rule or GAP, difference, interval]
            + [_p(part.p_value), estimate.seeds, f"{estimate.items:,}"]
            + [f"{estimate.freedom:.1f}", small, paper]
        )
    page.table(
        ["contrast", "rule", "difference", "interval", "p", "seeds", "items", "d. f."]
        + ["could be seen, uncorrected", "paper"],
        rows,
        words=2,
    )
