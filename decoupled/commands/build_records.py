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
from decoupled.corpora.runners import Runner
from decoupled.data.records_build import build_records
from decoupled.launch import start

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
    start.define_runner_flags("encode text")


def main() -> None:
    """Builds what is missing and prints a table."""
    runner = Runner(FLAGS.runner, FLAGS.workers, tuple(FLAGS.beam_option))
    with locks.hold(FLAGS.output_dir):
        build_records(
            FLAGS.corpus_dir,
            FLAGS.vocabulary,
            FLAGS.output_dir,
            FLAGS.tokens_per_shard,
            runner,
        )
