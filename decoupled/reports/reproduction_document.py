"""The document of a reproduction: claims, tables and figures, in Markdown.

Everything is read from the folders of runs. Beside the document lie, in a folder of its
name: figures, every number by seed (scores.csv), and the page that numbers link to,
runs.md, which has them by seed too, each with the settings of its run.
"""

import itertools
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from decoupled.core import files
from decoupled.core.markdown import GAP, line
from decoupled.reports import reproduction_tables, runs_page, sweep_plots, sweep_tables
from decoupled.reports.claims import Claim, judge, pretraining_gain
from decoupled.reports.paired import (
    CONFIDENCE,
    SUPPORTED,
    combined,
    student_quantile,
)
from decoupled.reports.reproduction_results import Evidence
from decoupled.reports.sweep_results import spread

# Of the best model's masked-LM accuracy: below, a model has not learned.
_LEARNED = 0.5
# The line of a gin file by which runs of one row differ.
_SEED = re.compile(r"^\w+\.seed = \d+$", re.MULTILINE)


class PaperTable(NamedTuple):
    """A table of the paper: its title, and the names of its models in its order."""

    title: str
    rows: tuple[str, ...]


class Facts(NamedTuple):
    """What folders of runs do not tell.

    command: that was run. machine, date: where and when. duration: the sum over jobs.
    complete, jobs: how many there are. parallel: how many ran at a time. paragraphs: on
    data and scale. missing: what was left out, and why.
    """

    command: str
    machine: str
    date: str
    duration: str
    complete: int
    jobs: int
    parallel: int
    paragraphs: list[str]
    missing: list[str]


def write_document(
    path: str, evidence: Evidence, tables: Sequence[PaperTable], facts: Facts
) -> list[Claim]:
    """Writes the document and what lies beside it; returns the claims with verdicts.

    Args:
      path: of the Markdown file. evidence: what was measured. tables: of the paper.
      facts: on the run as a whole.
    """
    claims = judge(evidence)
    folder = files.make_folder(os.path.splitext(path)[0])
    parts = [
        _head(facts, evidence),
        _control(evidence, path),
        _verdicts(claims, evidence),
        *_tables(evidence, tables, path),
        reproduction_tables.figure(
            path,
            "scores",
            sweep_plots.plot_scores,
            {"rows": list(evidence.rows.values()), "tasks": evidence.tasks},
        ),
        reproduction_tables.similarity(evidence, path),
        reproduction_tables.dropped_layers(evidence, path),
        reproduction_tables.translation(evidence, path),
        reproduction_tables.probing(evidence, path),
        reproduction_tables.ranks(evidence, path),
        _claims_part(claims, path),
        _limits(facts, evidence),
    ]
    files.write_text(
        os.path.join(folder, "scores.csv"), sweep_tables.to_csv(evidence.numbers)
    )
    runs_page.write(
        os.path.join(os.path.dirname(path), reproduction_tables.page(path)),
        _with_copies(
            evidence.numbers, evidence.folder, os.path.join(folder, "settings")
        ),
    )
    files.write_text(path, "\n".join(part for part in parts if part))
    return claims


def _head(facts, evidence):
    lines = [
        "# Tables 2 to 6, 8 and 9, Figures 1 and 2, at a small scale",
        "",
        "Written by `decoupled reproduce`. Every number is read from the "
        "folders of runs. A mean in a table links to the numbers of its runs, each "
        "with all its settings.",
        "",
        f"    {facts.command}",
        "",
        f"{facts.date}, on {facts.machine}. {facts.complete} of {facts.jobs} jobs "
        f"complete; their times add up to {facts.duration}, with {facts.parallel} at a "
        "time.",
    ]
    if facts.complete < facts.jobs:
        lines += ["", "**Not everything is complete: what follows has gaps.**"]
    for paragraph in facts.paragraphs:
        lines += ["", paragraph]
    if evidence.tasks:
        lines += ["", " ".join(_score_sentences(evidence))]
    return "\n".join(lines) + "\n"


def _score_sentences(evidence):
    yield (
        f"Scores are means over the tasks, {', '.join(evidence.tasks)}: of each the "
        "mean over all languages of its dev files, or of its test files where dev is "
        "English alone; English is among them, and the only one trained on."
    )
    if evidence.trivial is None:
        return
    yield (
        "A trivial baseline (the most frequent class, a word's most frequent tag) "
        f"scores {evidence.trivial:.1f}."
    )
    means = [spread(evidence.averages(row)) for row in evidence.rows]
    found = [one.mean for one in means if one]
    if found:
        better = sum(mean > evidence.trivial for mean in found)
        yield f"**{better} of {len(found)} models score higher than that.**"


def _control(evidence, path):
    gains = pretraining_gain(evidence)
    if not gains:
        return ""
    lines = [
        "## Does pre-training help here?",
        "",
        "The same fine-tuning after a single step of pre-training:",
        "",
        "| model | score | after one step |",
        "|---|---:|---:|",
    ]
    for row, scores in evidence.controls.items():
        both = (evidence.averages(row), scores)
        cells = [reproduction_tables.number(values, path, row) for values in both]
        lines.append(line([row, *cells]))
    return "\n".join([*lines, "", *_part_lines(gains)]) + "\n"


def _verdicts(claims, evidence):
    lines = ["## The claims", "", "| | claim | verdict |", "|---|---|---|"]
    lines += [f"| {c.number} | {c.text} | **{c.verdict}** |" for c in claims]
    lines.append(
        "| 8 | RemBERT beats XLM-R on XTREME with 3.5 times fewer tokens. | out of "
        "reach: it takes 1.8T tokens |"
    )
    gains = pretraining_gain(evidence)
    if gains and combined(gain.verdict for gain in gains) != SUPPORTED:
        lines += [
            "",
            "**Claims 1 to 5 and part of 7 rest on scores, and it is not shown above "
            "that pre-training helps scores here. Whatever their verdicts, they say "
            "little about pre-training.**",
        ]
    return "\n".join(lines) + "\n"


def _tables(evidence, tables, path):
    for wanted in tables:
        rows = [evidence.rows[name] for name in wanted.rows if name in evidence.rows]
        if rows:
            table = sweep_tables.make_table(wanted.title, rows, evidence.tasks)
            yield sweep_tables.markdown(table, reproduction_tables.page(path))


def _with_copies(numbers, runs, folder):
    """The numbers with copies of their settings, which lie in `folder` as in `runs`.

    The runs of a row or an analysis, folders seed_N beside each other, share one copy
    where their settings differ by the seed alone.
    """
    seeds = {one.settings: one.seed for one in numbers}
    texts = {
        path: files.read_text(path)
        for path in sorted(seeds, key=seeds.get)
        if files.exists(path)
    }
    copies = {}
    for row, group in itertools.groupby(sorted(texts, key=_row_of), _row_of):
        paths = list(group)
        name = os.path.join(folder, os.path.relpath(row, runs))
        if len({_SEED.sub("", texts[path]) for path in paths}) == 1:
            copies |= dict.fromkeys(paths, f"{name}.gin")
            told = ", ".join(str(seeds[path]) for path in paths)
            head = f"# Seeds {told}: nothing else differs. Below: seed "
            text = f"{head}{seeds[paths[0]]}.\n{texts[paths[0]]}"
            _write_copy(copies[paths[0]], text)
            continue
        for path in paths:
            run = os.path.basename(os.path.dirname(path))
            copies[path] = os.path.join(name, f"{run}.gin")
            _write_copy(copies[path], texts[path])
    return [
        one._replace(settings=copies.get(one.settings, one.settings)) for one in numbers
    ]


def _row_of(settings):
    """The folder of all seeds, of the settings in the folder of one."""
    return os.path.dirname(os.path.dirname(settings))


def _write_copy(path, text):
    files.make_folder(os.path.dirname(path))
    files.write_text(path, text)


def _claims_part(claims, path):
    percent = f"{CONFIDENCE:.0%}"
    lines = [
        "## The claims, number by number",
        "",
        "Differences of runs of the same seed, in points; their mean, and its "
        f"{percent} interval by Student's t. A claim is supported where the interval "
        "lies entirely on the paper's side, not supported where it lies entirely on "
        "the other, and undecided otherwise. One of several parts needs all of them; "
        "a part without a rule is shown for comparison only. Each run's number and "
        f"settings: [all runs]({reproduction_tables.page(path)}).",
    ]
    for claim in claims:
        lines += [
            "",
            f"### {claim.number}. {claim.text}",
            "",
            f"**{claim.verdict}**",
            "",
            *_part_lines(claim.parts),
            "",
            claim.note,
        ]
    return "\n".join(lines) + "\n"


def _part_lines(parts):
    yield (
        f"| difference | paper | here | {CONFIDENCE:.0%} interval | seeds | supports | "
        "verdict |"
    )
    yield "|---|---:|---:|---:|---:|---|---|"
    for part in parts:
        yield line(_part_cells(part))


def _part_cells(part):
    found = part.found
    ours, interval, seeds = GAP, GAP, "0"
    if found is not None:
        ours, seeds = f"{found.mean:+.2f}", str(found.count)
        if found.low is not None:
            interval = f"{found.low:+.2f} to {found.high:+.2f}"
    paper = GAP if part.paper is None else f"{part.paper:+.1f}"
    return [part.what, paper, ours, interval, seeds, part.rule, part.verdict or ""]


def _limits(facts, evidence):
    seeds = len(evidence.described["seeds"])
    lines = ["## What limits this", ""]
    if seeds > 1:
        width = student_quantile((1 + CONFIDENCE) / 2, seeds - 1) / seeds**0.5
        lines.append(
            f"- {seeds} seeds: an interval reaches {width:.1f} standard deviations of "
            "the differences to either side, so that only large differences are "
            "decided."
        )
    lines += [f"- {one}" for one in _unlearned(evidence)]
    lines += [
        "- Intervals are of single differences. With so many of them, expect one in "
        "twenty to miss its true value.",
        "- Seeds vary initial weights, data order and masks, in pre-training and "
        "fine-tuning together. The text, the vocabulary and the task are the same: "
        "intervals say nothing about other texts and tasks.",
        "- Which differences are taken, and what they have to show, is fixed in "
        "`decoupled/reports/claims.py` and does not depend on results.",
        *(f"- {one}" for one in facts.missing),
    ]
    return "\n".join(lines) + "\n"


def _unlearned(evidence):
    """A sentence on models that guess masked words far worse than the others."""
    found = {row: spread(evidence.masked_lm(row)) for row in evidence.rows}
    means = {row: one.mean for row, one in found.items() if one}
    best = max(means.values(), default=0.0)
    low = [row for row, mean in means.items() if mean < _LEARNED * best]
    if low:
        yield (
            f"{', '.join(low)}: guesses less than half as many masked words as the "
            f"best model ({best:.1f}%). At this length and rate it has not learned "
            "what the others have. Claims that compare it say nothing about its size."
        )
