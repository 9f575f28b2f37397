"""Makes tables and plots of sweeps, in the paper's layout, from their folders.

  decoupled report --sweep_dir=runs/table4 --output_dir=runs/table4/report

Every number is read from the runs' folders; in report.md each links to runs.md, which
has it by seed, with the settings of each run. What is not complete leaves a gap.
Several --sweep_dir are put together: the rows of all, and all seeds of models that they
share.

Writes to --output_dir: report.md, runs.md, report.csv (every single number),
report.tex, scores.png and .svg, curves.png and .svg.
"""

import os

from absl import flags

from decoupled.core import console, files
from decoupled.core.errors import UserError

RUNS = "runs.md"


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_multi_string("sweep_dir", None, "A folder of a sweep.")
    flags.DEFINE_string("output_dir", None, "Folder of the report, made if missing.")
    flags.DEFINE_list("rows", None, "Only these models, in this order.")
    flags.DEFINE_string("title", None, "Of the table (the first sweep's).")
    flags.mark_flags_as_required(["sweep_dir", "output_dir"])


def main() -> None:
    """Reads the sweeps and writes the report."""
    from decoupled.core import plots
    from decoupled.reports import runs_page, sweep_plots, sweep_results, sweep_tables

    options = flags.FLAGS
    described = [sweep_results.read_description(path) for path in options.sweep_dir]
    tasks = list(dict.fromkeys(task for one in described for task in one["tasks"]))
    rows = _chosen(sweep_results.read_rows(options.sweep_dir), options.rows)
    tasks = [task for task in tasks if any(task in row.scores for row in rows)]
    title = options.title or described[0]["title"]
    table = sweep_tables.make_table(title, rows, tasks)
    folder = files.make_folder(options.output_dir)
    pictures = plots.draw(
        sweep_plots.plot_scores,
        {"rows": rows, "tasks": tasks},
        os.path.join(folder, "scores"),
    )
    found = sweep_plots.curves(rows)
    if found:
        pictures += plots.draw(
            sweep_plots.plot_curves, {"curves": found}, os.path.join(folder, "curves")
        )
    text = sweep_tables.markdown(table, RUNS)
    shown = [os.path.basename(path) for path in pictures if path.endswith(".png")]
    text += "".join(f"\n![{name}]({name})\n" for name in shown)
    files.write_text(os.path.join(folder, "report.md"), text)
    files.write_text(os.path.join(folder, "report.tex"), sweep_tables.latex(table))
    numbers = sweep_results.measured(rows)
    files.write_text(os.path.join(folder, "report.csv"), sweep_tables.to_csv(numbers))
    runs_page.write(os.path.join(folder, RUNS), numbers)
    _print(table)
    console.say(f"report: {os.path.join(folder, 'report.md')}")


def _chosen(rows, names):
    if names is None:
        return rows
    by_name = {row.name: row for row in rows}
    missing = [name for name in names if name not in by_name]
    if missing:
        raise UserError(
            f"--rows: no {', '.join(missing)} in the sweeps, which have "
            f"{', '.join(by_name)}"
        )
    return [by_name[name] for name in names]


def _print(table):
    columns = ["model", "E_in", "E_out", "H", "L", "PT", "FT", *table.columns]
    rows = [
        [name, *sizes, *(cell.text for cell in cells)]
        for name, sizes, cells in zip(
            table.names, table.sizes, table.cells, strict=True
        )
    ]
    console.table(table.title, columns, rows)
