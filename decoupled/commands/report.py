"""Makes tables and plots of sweeps, in the paper's layout, from their folders.

  decoupled report --sweep_dir=runs/table4 --output_dir=runs/table4/report

Every number is read from the runs' folders. report.csv has each of them by seed, with
the folder of its run, whose config.1.gin has all settings. An incomplete run leaves a
gap; report.md then says that the sweep is not finished, and how many seeds of each
model are. A run with other settings than the last command of its sweep counts as
missing. Several --sweep_dir are joined: the report has the rows of all of them, and all
seeds of models that they share. Sweeps with other settings of training, a seed twice,
or scores of other languages are refused.

Writes to --output_dir: report.md, report.csv (every single number), scores.png
and .svg.
"""

from absl import flags

GONE = {
    "--rows": "report.csv has every number by model",
    "--title": "report.md can be edited",
}


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_multi_string("sweep_dir", None, "A folder of a sweep.")
    flags.DEFINE_string("output_dir", None, "Folder of the report, created if missing.")
    flags.mark_flags_as_required(["sweep_dir", "output_dir"])


def main() -> None:
    """Reads the sweeps and writes the report."""
    from decoupled.studies.sweep_report import write_report

    write_report(flags.FLAGS.sweep_dir, flags.FLAGS.output_dir)
