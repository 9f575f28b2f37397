"""The page of a reproduction: verdicts, conclusions, curves, measures, tables.

A folder of the same name beside the page has pictures, every number by seed
(scores.csv), and runs.md, the page that means link to. It also has the numbers by seed,
each with the settings of its run. The design, design.md, is written by hand.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core import files, plots
from decoupled.core.console import duration
from decoupled.core.tables import GAP
from decoupled.reports import published, sweeps
from decoupled.reports.page import RUNS, Page
from decoupled.reports.results import Results
from decoupled.reproduction import claims
from decoupled.reproduction.finished import Findings
from decoupled.reproduction.lessons import contrast_name, lessons
from decoupled.reproduction.measured import CONTROL, LOGITS, NATS, Measured
from decoupled.reproduction.sections import by_seed, row_cells, write_sections
from decoupled.reproduction.statistics import CONFIDENCE, Estimate
from decoupled.reproduction.training import trained, write_curves
from decoupled.reproduction.verdicts import (
    Checked,
    Judged,
    Part,
    Training,
    check,
    judge,
    with_score,
)

DESIGN = "design.md"
_OUT_OF_REACH = "out of reach: it takes 1.8T tokens"

# The paper's tables of models, with our rows. A table is shown if its last row was run.
PAPER_TABLES = {
    "Table 2: coupled or decoupled": ("coupled", "decoupled"),
    "Table 3: large input or large output embedding": (
        "decoupled", "out_small", "in_small",
    ),
    "Table 4: output embedding size": ("e_small", "in_small", "e_large"),
    "Table 5: additional layers or a larger output embedding": (
        "e_small", "in_small", "add_layers",
    ),
    "Table 6: reinvesting the input embedding": (
        "coupled", "in_small", "reinv_h", "reinv_l",
    ),
    "Exploratory: a nonlinear head": (
        "in_small", "in_small_head", "e_large", "e_large_head",
    ),
    "Table 12: one table for input and output, of full or of half the width": (
        "coupled", "factorised",
    ),
    "Table 13: English": (
        "coupled", "e_small", "in_small", "e_large", "add_layers", "add_layers_4",
    ),
}  # fmt: skip
# Columns of the tables above.
_SCORES = {
    claims.SCORE: "S", claims.RETRIEVAL: "retrieval", claims.UD_POS: "parts of speech",
    claims.PROBES: "dependencies", claims.LOSS: "MLM loss", claims.ACCURACY: "MLM acc",
    claims.BOOKS: "books", claims.POS_PROBES: "POS probes", claims.SIB200: "SIB-200",
}  # fmt: skip


class _Story(NamedTuple):
    """The input of the parts of the page."""

    findings: Findings
    measured: Mapping[str, Measured]
    training: Training
    judged: list[Judged]
    checks: dict[str, list[Checked]]


def write_document(path: str, findings: Findings) -> list[Judged]:
    """Writes the page and the folder beside it; returns the claims with verdicts.

    Args:
      path: of the Markdown file. findings: of the finished jobs.

    Raises:
      UserError: the measured values do not fit together; see `measured.checked`.
    """
    training = trained(findings)
    measured = with_score(findings.measured)
    checks = {
        name: check(one, training)
        for name, one in findings.measured.items()
        if name not in claims.CHECKED_BY
    }
    judged = judge(findings.measured, training)
    if findings.is_english:
        judged = [_without_paper(one) for one in judged]
    story = _Story(findings, measured, training, judged, checks)
    beside = os.path.basename(os.path.splitext(path)[0])
    page = Page(path, beside, formats=("png",))
    _head(page, story)
    _learned(page, story)
    write_curves(page, findings, training, judged)
    for part in (_pretraining, _tables, _claims, _design):
        part(page, story)
    # Below the work folder, whose own path says nothing to others.
    work_dir = os.path.dirname(os.path.normpath(findings.folder))
    numbers = [
        number._replace(
            folder=number.folder and os.path.relpath(number.folder, work_dir)
        )
        for number in findings.numbers
    ]
    csv = os.path.join(page.folder, "scores.csv")
    files.write_text(csv, sweeps.numbers_as_csv(numbers))
    results = Results(findings.rows, [], findings.numbers, findings.folder)
    numbers = sweeps.copy_settings(results, os.path.join(page.folder, "settings"))
    sweeps.write_runs(os.path.join(page.folder, RUNS), numbers)
    page.write()
    return judged


def _without_paper(one: Judged) -> Judged:
    """Without the paper's differences, which are those of multilingual models."""
    parts, secondary = (
        [part._replace(paper=None) for part in listed]
        for listed in (one.parts, one.secondary)
    )
    return one._replace(parts=parts, secondary=secondary)


def _head(page, story):
    found, told = story.findings, story.findings.told
    page.heading("The paper's claims, tried with small models", 1)
    page.text(
        "Written by `decoupled reproduce`: every number is read from the folders of "
        "runs, and every mean links to its runs, with all their settings.",
        f"    {told.command}",
        f"{' '.join(told.text)} {len(found.rows)} models were pre-trained for "
        f"{told.steps:,} steps with seeds {', '.join(map(str, found.seeds))}, with "
        f"activations in {told.activation_dtype}, on {told.machine}. "
        f"{found.complete} of {found.jobs} jobs are complete; their times add up to "
        f"{duration(found.seconds)}. [The design]({_design_page(page)}) was fixed "
        "before the results.",
    )
    if found.complete < found.jobs:
        page.text("**Not everything is complete: what follows has gaps.**")
    page.heading("The claims")
    rows = []
    for one in story.judged:
        parts = [[contrast_name(part), *_numbers(part)] for part in one.parts]
        each = ["<br>".join(column) for column in zip(*parts, strict=True)]
        cells = [*each[:3], _p(one.corrected), *each[3:]]
        number = one.claim.number
        rows.append([number, one.claim.text, f"**{one.verdict}**", *cells])
    text = "RemBERT beats XLM-R on XTREME with 3.5 times fewer tokens."
    rows.append([8, text, _OUT_OF_REACH, *[GAP] * 6])
    interval = f"{CONFIDENCE:.0%} interval"
    page.table(
        ["", "claim", "verdict", "contrast", "difference", interval]
        + ["p (Holm)", "could be seen", "paper"],
        rows,
        words=4,
    )
    page.text(
        "Differences are those that [decide each claim](#claim-by-claim); *could be "
        "seen* is the smallest effect that is found with 80% power at Holm's first "
        "step. The paper's numbers are its own differences, of its own measures."
    )
    bars = [
        Bar(
            f"{one.claim.number}: {contrast_name(part)}",
            part.found.value,
            *part.interval,
            part.margin,
        )
        for one in story.judged
        for part in one.parts
        if part.found is not None and np.isfinite(part.interval).all()
    ]
    if bars:
        page.picture("contrasts", plot_contrasts, bars)


class Bar(NamedTuple):
    """An estimate with its 95% interval.

    label: of its line. margin: a smaller difference counts as no effect.
    """

    label: str
    estimate: float
    low: float
    high: float
    margin: float


def plot_contrasts(bars: Sequence[Bar], stem: str) -> list[str]:
    """A forest plot in multiples of the margins, so that all units share an axis.

    Args:
      bars: from top to bottom. stem: of the files, without suffix.
    """
    figure, [[axes]] = plots.grid(1, 1, 6.5, 0.6 + 0.34 * len(bars))
    axes.axvspan(-1, 1, color=plots.GREY, alpha=0.4, linewidth=0)
    axes.axvline(0, color=plots.BLACK, linewidth=0.8)
    for place, bar in enumerate(bars):
        middle, low, high = np.divide(bar[1:4], bar.margin)
        sides = [[middle - low], [high - middle]]
        style = {"color": plots.BLUE, "marker": "o", "capsize": 3}
        axes.errorbar([middle], [place], xerr=sides, **style)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlabel("difference / margin")
    plots.tidy(axes, grid="x")
    title = "Contrasts of the claims, 95% intervals; grey: within the margin"
    plots.title_and_legend(figure, axes, title)
    return plots.save(figure, stem)


def _numbers(part: Part) -> list[str]:
    """Difference, interval, smallest effect and the paper's effect, as text."""
    digits = 2 if part.unit in (NATS, LOGITS) else 1
    paper = GAP if part.paper is None else f"{part.paper:+.{digits}f}"
    if part.found is None:
        return [GAP, GAP, GAP, paper]
    small = part.smallest_corrected
    return [
        f"{part.found.value:+.2f} {part.unit}",
        _interval(part.interval),
        GAP if small is None else f"{small:.2f}",
        paper,
    ]


def _interval(interval):
    return GAP if interval is None else f"{interval[0]:+.2f} to {interval[1]:+.2f}"


def _p(value):
    if value is None:
        return GAP
    return f"{value:.3f}" if value >= 0.001 else "< 0.001"


def _learned(page, story):
    checks = [one for checked in story.checks.values() for one in checked]
    page.heading("What we learned about embedding coupling")
    page.items(lessons(story.judged, checks, story.training, story.findings))
    page.text(
        "All of this is about models some 200 times smaller than the paper's, one kind "
        "of text and few languages. Seeds and items vary; text, vocabulary and "
        "languages do not. Points of S are no points of XTREME."
    )


def _pretraining(page, story):
    """Every measure of the rows with a control, with the control and the baseline."""
    page.heading("What pre-training brings")
    if not any(story.checks.values()):
        page.text(
            "This cannot be told: no row that trained was measured after one step too, "
            "with two seeds or more."
        )
        return
    page.text(
        "Each measure beside the same after a single step of pre-training, and beside "
        "a baseline that needs no model (word lookup, largest class, unigram entropy). "
        f"Gains are positive where the model is better; {CONFIDENCE:.0%} intervals. A "
        "measure with a gain that is not clearly above 0 is marked and decides nothing."
    )
    rows = []
    for name, checks in story.checks.items():
        measured = story.measured[name]
        passed = bool(checks) and all(one.passed() for one in checks)
        for one in checks:
            cells = [
                page.number(row, _known(measured, row), digits=_digits(measured))
                for row in (one.row, CONTROL + one.row)
            ]
            baseline = measured.baseline
            cells += [
                _gain(one.gain),
                GAP if baseline is None else f"{baseline:.{_digits(measured)}f}",
                _gain(one.over_baseline),
                "yes" if passed else "**no**",
            ]
            rows.append([measured.name, measured.unit, one.row, *cells])
    page.table(
        ["measure", "unit", "row", "value", "after one step", "gain", "baseline"]
        + ["over the baseline", "may decide"],
        rows,
        words=3,
    )


def _gain(found: Estimate | None) -> str:
    return f"{found.value:+.2f} ({_interval(found.interval())})" if found else GAP


def _known(measured, row):
    return by_seed(measured, row) if row in measured.values else {}


def _digits(measured):
    return 2 if measured.unit in (NATS, LOGITS) else 1


def _tables(page, story):
    """The paper's tables of models, then all other sections."""
    rows = story.findings.rows
    columns = {
        head: {row: _known(found, row) for row in rows}
        for name, head in _SCORES.items()
        if (found := story.measured.get(name))
    }
    digits = {_SCORES[claims.LOSS]: 2}
    papers, scores, printed = claims.PAPER_ROWS, [published.AVERAGE], "paper's average"
    if story.findings.is_english:
        papers, scores = claims.ENGLISH_ROWS, ["mnli", "squad"]
        printed = "paper's MNLI; SQuAD"
    for title, names in PAPER_TABLES.items():
        there = [name for name in names if name in rows]
        if len(there) > 1 and names[-1] in there:
            page.heading(title)
            averages = [
                "; ".join(published.printed(papers[name], score) for score in scores)
                if name in papers
                else ""
                for name in there
            ]
            lines = [
                [name, *sweeps.sizes(rows[name]), *cells, average or GAP]
                for (name, *cells), average in zip(
                    row_cells(page, columns, there, digits), averages, strict=True
                )
            ]
            head = ["row", *sweeps.SIZES, *columns, printed]
            page.table(head, lines)
    write_sections(page, story.findings)


def _claims(page, story):
    page.heading("Claim by claim")
    page.text(
        "A contrast is a difference of rows of the same seeds on the same items. The "
        f"{CONFIDENCE:.0%} interval of the formula takes seeds and items for samples; "
        "the bootstrap beside it decides nothing. p is that of the contrast's own "
        "rule, without correction. *Secondary* contrasts are exploratory."
    )
    head = ["contrast", "rule", "difference", "interval", "bootstrap", "p"]
    head += ["seeds", "items", "d. f.", "could be seen", "paper"]
    for one in story.judged:
        page.heading(f"{one.claim.number}. {one.claim.text}", 3)
        page.text(f"**{one.verdict}**. {' '.join(one.sentences)}")
        page.table(head, [_contrast(part) for part in one.parts], words=2)
        if one.secondary:
            page.text("Secondary:")
            page.table(head, [_contrast(part) for part in one.secondary], words=2)


def _contrast(part: Part) -> list[str]:
    difference, interval, small, paper = _numbers(part)
    cells = [contrast_name(part), part.contrast.rule or "secondary"]
    cells += [difference, interval, _interval(part.resampled), _p(part.p_value)]
    if part.found is None:
        return [*cells, *[GAP] * 3, small, paper]
    found = part.found
    counts = [f"{found.seeds}", f"{found.items:,}", f"{found.freedom:.1f}"]
    return [*cells, *counts, small, paper]


def _design(page, story):
    page.heading("The design and its limits")
    page.text(
        f"[{DESIGN}]({_design_page(page)}) says what was fixed before the results, and "
        "how: the text, the rows and where they break the paper's ratios (E_in is H / "
        "2 and not H / 6), the search for the settings and what was rejected, the "
        "measures, the contrast of each claim, and the rules on controls, void rows, "
        "stopping and the number of claims.",
        "The contrasts and rules are those of `decoupled/reproduction/claims.py`.",
    )
    limits = [
        *story.findings.told.left_out,
        "Intervals are about other seeds and other items of the same text. Other "
        "texts, vocabularies and languages may give other results.",
        "Claims are corrected for their number; secondary contrasts are not. Of those, "
        "one in twenty is expected to miss its interval.",
    ]
    page.items(limits)
    every = page.beside("scores.csv")
    page.text(f"Every number by seed: [{RUNS}]({page.runs()}), [scores.csv]({every}).")


def _design_page(page):
    return os.path.join(os.path.dirname(page.runs()), DESIGN)
