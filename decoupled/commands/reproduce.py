"""The paper's tables and claims at a small scale, on real text, with verdicts.

Makes a corpus, a vocabulary and records from the best text at hand; pre-trains small
models of the paper's tables with five seeds; measures them; and decides for each of the
paper's claims what they say.

  decoupled reproduce --data_dir=DATA --work_dir=reproduction

--size=1 (default, under 2 hours on 2 cores) has the rows of Table 4; --size=4 and more
have all rows, over as many sittings as it takes. Killed at any time and started again
with the same flags, it goes on: complete jobs are not repeated. One that fails does not
stop the rest and is named at the end, with code 1.
"""

import sys

from absl import flags

from decoupled.core import locks
from decoupled.launch import start


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_string("work_dir", "reproduction", "Folder for everything made.")
    flags.DEFINE_string("document", "docs/reproduction.md", "Markdown file to write.")
    flags.DEFINE_integer(
        "jobs", 0, "Jobs at a time; 0: one a core, 4 at most.", lower_bound=0
    )
    flags.DEFINE_float("size", 1.0, "1: rows of Table 4; 4 or more: all rows.")
    flags.DEFINE_string("data_dir", None, "Folder of text and more data, see above.")
    flags.DEFINE_list("languages", ["en", "de", "es", "fr"], "Of the text.")


def main() -> None:
    """Makes the data, runs the jobs, writes the document."""
    from decoupled.reproduction import run

    values = {name: flags.FLAGS[name].value for name in run.Options._fields}
    options = run.Options(**values)
    with locks.hold(options.work_dir):
        if not run.run(options, sys.argv[2:]):
            sys.exit(1)
