"""Encodes a corpus into TFRecords of token ids, one folder per language.

Reads a corpus folder (decoupled build_corpus) and a vocabulary (decoupled
build_vocabulary, or the tokenizer of a folder of transformers). Writes
DIR/{train,eval}/{language}/*.tfrecord and, last, DIR/manifest.json. A build that was
killed continues where it stopped. Complete records are not changed.

  decoupled build_records --corpus_dir=corpus \\
    --vocabulary=vocabulary/sentencepiece.model --output_dir=records
"""

from absl import flags

from decoupled.core import locks
from decoupled.corpora.runners import LOCAL
from decoupled.data.records_build import build_records

FLAGS = flags.FLAGS

# A shard of this many tokens takes 16 MiB. Training loads one per language.
TOKENS_PER_SHARD = 1 << 22


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("corpus_dir", None, "Corpus folder.", required=True)
    flags.DEFINE_string(
        "vocabulary",
        None,
        "A sentencepiece.model; or a folder of transformers with the tokenizer of BERT "
        "or XLM-R, or a vocab.txt or tokenizer.json in one.",
        required=True,
    )
    flags.DEFINE_string("output_dir", None, "Records folder.", required=True)
    flags.DEFINE_integer(
        "tokens_per_shard",
        TOKENS_PER_SHARD,
        "Largest number of tokens in a file. Training holds one file per language in "
        "memory, 4 bytes per token.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "workers",
        0,
        "Processes that encode; 0 chooses: one per core, or one for a small corpus.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "runner",
        LOCAL.name,
        "What encodes the text. local: --workers processes of this machine. A runner "
        "of Apache Beam (DataflowRunner, FlinkRunner, SparkRunner, ...) needs folders "
        "and a vocabulary that all its machines can reach. Beam's DirectRunner runs on "
        "this machine, to test a pipeline.",
    )
    flags.DEFINE_multi_string(
        "beam_option", [], "An option of the Beam runner, e.g. region=europe-west4."
    )


def main() -> None:
    """Builds what is missing and prints a table."""
    with locks.hold(FLAGS.output_dir):
        build_records(
            FLAGS.corpus_dir,
            FLAGS.vocabulary,
            FLAGS.output_dir,
            FLAGS.tokens_per_shard,
            FLAGS.workers,
            FLAGS.runner,
            FLAGS.beam_option,
        )
