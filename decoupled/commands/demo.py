"""The whole idea on a laptop: real text, three models, one table, one plot, one export.

Builds a multilingual corpus from the message catalogs of installed packages, a
vocabulary and token records; pre-trains a coupled model and two decoupled ones, with a
small and with a large output embedding, which are of equal size in fine-tuning; looks
for translations among nearest neighbours; fine-tunes all three on English and evaluates
them in languages that the task has never shown; exports the last classifier as a
SavedModel that takes raw strings, and runs it in a process of its own. No download,
about five minutes on two cores. Every step is a command of this package, printed as it
starts; a step that is complete is reused, one that was interrupted goes on. Ctrl-C lets
the step save.

  decoupled demo --work_dir=demo_run

Writes to --work_dir: results.md, results.json, results.png and .svg, export/ and the
steps' own folders.
"""

from absl import flags

from decoupled.core import files, installed, locks
from decoupled.launch import start


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("work_dir", "demo_run", "Folder for everything that is made.")
    flags.DEFINE_bool("data_only", False, "Make corpus, vocabulary and records only.")


def main() -> None:
    """Runs the steps, then reports."""
    installed.need("django", "matplotlib", "polib", purpose="the demo")
    from decoupled.reports.demo import run_demo

    work_dir = files.make_folder(flags.FLAGS.work_dir)
    with locks.hold(work_dir):
        start.save_start(work_dir)
        run_demo(work_dir, flags.FLAGS.data_only)
