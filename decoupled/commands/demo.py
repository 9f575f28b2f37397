"""Shows the idea on a laptop: real text, three models, a table, a plot, an export.

Builds a multilingual corpus from the message catalogs of installed packages, a
vocabulary and token records. Pre-trains a coupled model and two decoupled ones, with a
small and with a large output embedding; the decoupled ones have equal sizes in
fine-tuning. Searches for translations among nearest neighbours. Fine-tunes all three
models on English and evaluates them in languages for which the task has no training
data. Exports the last classifier as a SavedModel that takes raw strings, and runs it in
a separate process. No download is needed. The demo takes about five minutes on two
cores.

Every step is a command of this package, which is printed when it starts. Complete steps
are reused, and an interrupted step is resumed. On Ctrl-C, the current step saves first.

  decoupled demo --work_dir=demo_run

Writes to --work_dir: results.md, results.json, results.png and .svg, export/ and the
folders of the steps.
"""

from absl import flags

from decoupled.core import files, installed, locks
from decoupled.launch import start


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("work_dir", "demo_run", "Folder for all results.")


def main() -> None:
    """Runs the steps and reports the results."""
    installed.need("django", "matplotlib", "polib", purpose="the demo")
    from decoupled.studies.demo import run_demo

    work_dir = files.make_folder(flags.FLAGS.work_dir)
    with locks.hold(work_dir):
        start.save_start(work_dir)
        run_demo(work_dir)
