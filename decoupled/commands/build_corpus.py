"""Builds a corpus folder: text by language, split into train and eval.

Reads --source or --input. --source is the message catalogs of installed packages, which
need no download, or parallel text. Both also give parallel pairs; catalogs give
a labelled zero-shot task as well. --input is files: dumps of wikis, JSON lines,
plain text, also compressed; paths may be remote (gs://). Writes
DIR/text/{train,eval}/LANGUAGE/ and, last, DIR/manifest.json. A build that was killed
continues where it stopped. A complete corpus is not changed.

  decoupled build_corpus --source=catalogs:django --output_dir=corpus
  decoupled build_corpus --source=aligned:bibles --output_dir=corpus
  decoupled build_corpus --output_dir=corpus \\
    --input='en=dumps/enwiki-*.xml*.bz2,sw=dumps/swwiki-*.bz2' --input='de=/cc/*.jsonl'
  decoupled build_corpus --output_dir=corpus --languages=mbert \\
    --input='{language}=dumps/{language}wiki-*.xml*.bz2'
"""

from absl import flags

from decoupled.configs import CorpusSettings
from decoupled.core import locks
from decoupled.corpora.build import build
from decoupled.corpora.runners import Runner
from decoupled.corpora.sources import SOURCES
from decoupled.launch import start

FLAGS = flags.FLAGS
_KINDS = "; ".join(source.name for source in SOURCES)


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string(
        "source",
        None,
        "catalogs:PACKAGE,...: message catalogs of installed packages; or "
        "aligned:FOLDER with LANGUAGE.tsv(.gz), or aligned:LANGUAGE=FILE,...: parallel "
        "text, a line of id, tab and sentence, of which whole chapters or pages are "
        "held out.",
    )
    flags.DEFINE_list(
        "languages",
        [],
        "Only these languages of --source, e.g. de,fr; English is always included. "
        "With --input: what {language} there stands for. mbert and rembert are the "
        "languages of the released models.",
    )
    flags.DEFINE_multi_string(
        "input",
        [],
        "LANGUAGE=GLOB,...: files of a language, given by a code such as en, zh-Hant, "
        f"zh_TW or sr@latin. Kinds: {_KINDS}. Plain text has a sentence per line and "
        "an empty line between documents. The content of a file, not its name, decides "
        "how it is read: plain, or packed with gzip, bzip2, xz or Zstandard.",
    )
    flags.DEFINE_string("output_dir", None, "Corpus folder.", required=True)
    start.define_runner_flags("read files")
    start.define_gin_flags()


def main() -> None:
    """Builds what is missing and prints a table."""
    settings = start.parse_gin(CorpusSettings)
    runner = Runner(FLAGS.runner, FLAGS.workers, tuple(FLAGS.beam_option))
    with locks.hold(FLAGS.output_dir):
        if build(
            FLAGS.source,
            FLAGS.input,
            FLAGS.output_dir,
            settings,
            FLAGS.languages,
            runner,
        ):
            start.save_start(FLAGS.output_dir)
