"""The page that numbers of tables link to: each by seed, with the settings of its run.

A section for each model, a line for each number, a column for each seed. Markdown.
"""

import os
from collections.abc import Sequence

from decoupled.core import files
from decoupled.core.markdown import GAP, head, line
from decoupled.reports.sweep_results import Measured


def write(path: str, numbers: Sequence[Measured]) -> None:
    """Writes the page.

    Args:
      path: of the Markdown file. numbers: models come in the order of their first one;
        those whose `settings` are not there are written without a link.
    """
    folder = os.path.dirname(path)
    lines = [
        "# Runs",
        "",
        "Every number of the tables by seed. Each links to all settings of its run; an "
        "analysis that has none links to those of the model's pre-training. Runs that "
        "differ by the seed alone share a file.",
    ]
    for row in dict.fromkeys(one.row for one in numbers):
        of_row = [one for one in numbers if one.row == row]
        lines += ["", f"## {row}", "", *_table(of_row, folder)]
    files.write_text(path, "\n".join(lines) + "\n")


def _table(numbers, folder):
    seeds = sorted({one.seed for one in numbers})
    by_line: dict[tuple[str, str], dict[int, Measured]] = {}
    for one in numbers:
        by_line.setdefault((one.task, one.metric), {})[one.seed] = one
    yield from head(["", "", *(f"seed {seed}" for seed in seeds)], words=2)
    for (task, metric), by_seed in by_line.items():
        cells = (_cell(by_seed.get(seed), folder) for seed in seeds)
        yield line([task, metric, *cells])


def _cell(one, folder):
    if one is None:
        return GAP
    if not files.exists(one.settings):
        return f"{one.value:.2f}"
    return f"[{one.value:.2f}]({os.path.relpath(one.settings, folder)})"
