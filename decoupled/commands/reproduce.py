"""The paper's tables and figures at a small scale, on real text, with verdicts.

Builds a corpus from the message catalogs of installed packages, a vocabulary and
records; pre-trains every model of Tables 2 to 6 with three seeds, every width divided
by 8 and every depth by 4; fine-tunes them on English and tries them in all languages;
fine-tunes three of them without their last layers (Figure 1); measures word similarity
(Table 8), translation by nearest neighbours (Figure 2), what probes find in frozen
layers (Table 9) and the spectrum of the embeddings; and fine-tunes one of them after a
single step of pre-training, as a control. Writes a document with every table and
figure, the published numbers beside ours, and for each of the paper's claims whether it
is supported, with paired differences over seeds. No download; one to two hours on two
cores.

  decoupled reproduce --work_dir=reproduction

Killed at any time and started again, it goes on: complete jobs are not repeated. One
that fails does not stop the rest and is named at the end, with code 1.
--document_only writes the document from what is complete.

--data_dir is a folder that may hold
  wikipedia/         dumps like enwiki-*.xml.bz2: more text
  xtreme/udpos/      XTREME's parts of speech: a second task
  tatoeba_parallel/  XX-en.en and XX-en.XX: pairs for Figure 2, else held-out messages
  word_similarity/   men.tsv and others: Table 8, else left out
  ud/                en_*-ud-dev.conllu and others: Table 9, else left out

--size=2 doubles steps and widths; --gin_param='SweepConfig.seeds = (0, 1, 2, 3, 4)'
adds seeds to those that are complete.
"""

import sys

from absl import flags

from decoupled.core import installed, locks
from decoupled.launch import start

# Of the catalogs and of Figure 2: few enough for each to get its share of an hour.
LANGUAGES = "en,de,nl,sv,nb,da,fr,es,it,pt,pl,ru"


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_string("work_dir", "reproduction", "Folder for everything made.")
    flags.DEFINE_string("document", "docs/reproduction.md", "Markdown file to write.")
    flags.DEFINE_integer("jobs", 1, "Jobs that run at a time.", lower_bound=1)
    flags.DEFINE_float("size", 1.0, "Multiplies steps, and widths from 2 on.")
    flags.DEFINE_string("data_dir", None, "Folder of more data, see above.")
    flags.DEFINE_string("tatoeba_dir", None, "Instead of DATA/tatoeba_parallel.")
    flags.DEFINE_string("word_similarity_dir", None, "Instead of DATA/word_similarity.")
    flags.DEFINE_list("languages", LANGUAGES, "Of the messages and of Figure 2.")
    flags.DEFINE_bool("document_only", False, "Write the document, run nothing.")


def main() -> None:
    """Makes the data, runs the jobs, writes the document."""
    installed.need("django", "polib", purpose="the text and the task")
    from decoupled.reports import reproduction_run

    values = {
        name: flags.FLAGS[name].value for name in reproduction_run.Options._fields
    }
    options = reproduction_run.Options(**values)
    if flags.FLAGS.document_only:
        reproduction_run.write(options, sys.argv[2:])
        return
    with locks.hold(options.work_dir):
        if not reproduction_run.reproduce(options, sys.argv[2:]):
            sys.exit(1)
