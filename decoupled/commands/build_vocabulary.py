"""Trains a SentencePiece unigram vocabulary on a language-smoothed sample of a corpus.

Reads a corpus folder (decoupled build_corpus). Writes to --output_dir
sentencepiece.model, then fertility.png and .svg if matplotlib is installed, and last
vocabulary.json. This has the settings, the fingerprint, the sample, and for each
language the tokens per word and per character and the share of unknown tokens. Before
training, the command shows how often each language is drawn, and the memory and time
that training takes. A complete vocabulary is not changed.

  decoupled build_vocabulary --corpus_dir=corpus --output_dir=vocabulary \\
    --gin_param='VocabularyConfig.vocab_size = 16000'
"""

from absl import flags

from decoupled.configs import VocabularySettings
from decoupled.core import locks
from decoupled.data.vocabulary_build import build_vocabulary
from decoupled.launch import start

FLAGS = flags.FLAGS


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("corpus_dir", None, "Corpus folder.", required=True)
    flags.DEFINE_string("output_dir", None, "Vocabulary folder.", required=True)
    start.define_gin_flags()


def main() -> None:
    """Trains what is missing and prints a table."""
    settings = start.parse_gin(VocabularySettings)
    with locks.hold(FLAGS.output_dir):
        if build_vocabulary(FLAGS.corpus_dir, FLAGS.output_dir, settings):
            start.save_start(FLAGS.output_dir)
