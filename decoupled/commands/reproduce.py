"""Tests the paper's claims at a small scale, on real text, with verdicts.

Makes a corpus, a vocabulary and records from the best available text, in which whole
chapters are held out in all languages together. Pre-trains small models, fine-tunes and
analyses them, and as a control also some models after a single step of pre-training.
Writes a page with a verdict on each claim, tables and figures, and beside it every
number by seed and what each model got on every item. No download is needed.

  decoupled reproduce --data_dir=DATA --work_dir=reproduction

--size=1, the default, has the models that decide claim 3, with five seeds. On two cores
it takes about 80 minutes if the processor has AVX-512, and about two and a half hours
if it does not. --size=4 has all models and seeds and takes several sittings. --size=8
doubles its steps, and --size=0.5 halves those of the default. The command can be killed
at any time. The same command then continues and does not repeat complete jobs. If a job
fails, the others still run; the failed jobs are named at the end, with exit code 1.
--document_only writes the page from the complete jobs. --rates trains all models with
several learning rates instead, half as long, with a seed that decides nothing.

The settings are those of sweeps/reproduce.gin. Other questions are other gin files:
  sweeps/reproduce_claims.gin    claims 2, 4 and 7
  sweeps/reproduce_cause.gin     why a wide output embedding lowers the loss
  sweeps/reproduce_fold.gin      folding a wide output embedding before the end
  sweeps/reproduce_reinvest.gin  claim 5, with --languages of ten Bibles
  sweeps/reproduce_words.gin     claim 6, with --languages=en
  sweeps/reproduce_first.gin     the first study
  sweeps/reproduce_english.gin   Tables 12 and 13, with --languages=en

DATA may hold
  parallel_bible/    LANGUAGE.tsv(.gz), lines of id, tab, verse
  xtreme/udpos/      XTREME's parts of speech: a task
  ud/                en_*-ud-dev.conllu and others: probes
  word_similarity/   men.tsv and others, for vocabularies of 16,000 pieces or more
  wikipedia/         a dump, for sweeps/reproduce_words.gin
The training text is parallel_bible/. If it does not exist, the text is the messages of
Django's catalogs. Tasks and measures without data are left out, and the page says so.

--jobs=2 gives each of two jobs a separate core, which is faster than one job on both.
Jobs are forks of a process that has imported TensorFlow, as in `decoupled sweep`.
--measured=docs/reproduction/part_a takes the rows that an earlier study has from the
files beside its page, instead of training them again. The text, the sizes of the rows
and the settings of their pre-training must be the same.
--gin_param='SweepConfig.seeds = (5, 6, 7, 8, 9, 10, 11, 12)' adds seeds to the complete
ones; with --size below 4 give --gin_param='StudyConfig.first_seeds = 0', too.
"""

import sys

from absl import flags

from decoupled.core import installed, locks
from decoupled.launch import start


def define_flags() -> None:
    """The command's flags."""
    start.define_gin_flags()
    flags.DEFINE_string("work_dir", "reproduction", "Folder for all results.")
    flags.DEFINE_string(
        "document", "docs/reproduction/results.md", "Markdown file to write."
    )
    flags.DEFINE_integer(
        "jobs", 0, "Number of parallel jobs; 0: one per core, at most 4.", lower_bound=0
    )
    flags.DEFINE_float("size", 1.0, "Below 4: the first rows; from 4 on: all.")
    flags.DEFINE_string("data_dir", None, "Folder of text and other data; see above.")
    flags.DEFINE_list("languages", ["en", "de", "es", "fr"], "Languages of the text.")
    flags.DEFINE_bool("rates", False, "Only try the learning rates of all rows.")
    flags.DEFINE_string(
        "measured", None, "Folder beside the page of an earlier study; see above."
    )
    flags.DEFINE_bool("document_only", False, "Only write the document.")


def main() -> None:
    """Makes the data, runs the jobs, writes the document."""
    installed.need("scipy", purpose="the statistics")
    from decoupled.studies import reproduce

    values = {name: flags.FLAGS[name].value for name in reproduce.Options._fields}
    options = reproduce.Options(**values)
    if flags.FLAGS.document_only:
        reproduce.write(options, sys.argv[2:])
        return
    with locks.hold(options.work_dir):
        if not reproduce.run(options, sys.argv[2:]):
            sys.exit(1)
