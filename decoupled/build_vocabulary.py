"""Trains a SentencePiece unigram vocabulary on a language-smoothed sample of a corpus.

Reads a corpus folder (python -m decoupled.build_corpus); writes DIR/sentencepiece.model
and DIR/vocabulary.json, which comes last: settings, fingerprint, and per language the
tokens per word and per character and the share of unknown tokens. A vocabulary that is
complete is left as it is.

  python -m decoupled.build_vocabulary --corpus_dir=corpus --output_dir=vocabulary \\
    --gin_param='VocabularyConfig.vocab_size = 16000'
"""

import dataclasses
import itertools
import os
from typing import Any

import gin
import tensorflow as tf
from absl import flags

from decoupled import console, files, launch
from decoupled.configs import SamplingConfig, VocabularyConfig
from decoupled.corpora.corpus import Corpus, difference
from decoupled.corpora.sampling import sample_sizes, smoothed_sample
from decoupled.data.vocabulary import (
    FILE_NAME,
    NORMALIZATION,
    Vocabulary,
    train_vocabulary,
    vocabulary_path,
)
from decoupled.errors import UserError

FLAGS = flags.FLAGS
GIN_FILE = "runs/build_vocabulary.gin"
FORMAT = "decoupled-vocabulary-1"
REPORT = "vocabulary.json"

_SHOWN_LANGUAGES = 12
_ENCODED_AT_ONCE = 1000


@dataclasses.dataclass(frozen=True)
class VocabularySettings:
    """What gin sets; see gin/runs/build_vocabulary.gin."""

    vocabulary: VocabularyConfig
    sampling: SamplingConfig
    seed: int
    report_sentences: int

    def __post_init__(self):
        if self.report_sentences < 1:
            raise UserError(
                f"build_vocabulary.report_sentences: {self.report_sentences} is not "
                "positive"
            )


def define_flags() -> None:
    """The command's flags."""
    flags.DEFINE_string("corpus_dir", None, "Corpus folder.", required=True)
    flags.DEFINE_string("output_dir", None, "Vocabulary folder.", required=True)
    launch.define_gin_flags()


@gin.configurable
def build_vocabulary(
    *,
    vocabulary: VocabularyConfig = gin.REQUIRED,
    sampling: SamplingConfig = gin.REQUIRED,
    seed: int = gin.REQUIRED,
    report_sentences: int = gin.REQUIRED,
) -> VocabularySettings:
    """The settings of the command."""
    return VocabularySettings(vocabulary, sampling, seed, report_sentences)


def main() -> None:
    """Trains what is missing and prints a table."""
    settings = launch.parse_gin(build_vocabulary, GIN_FILE)
    if build(FLAGS.corpus_dir, FLAGS.output_dir, settings):
        launch.save_start(FLAGS.output_dir, "build_vocabulary")


def build(corpus_dir: str, output_dir: str, settings: VocabularySettings) -> bool:
    """Trains the vocabulary; False where it was complete already.

    Raises:
      UserError: the corpus or the output folder cannot be used, the folder holds a
        vocabulary of other inputs, or the text cannot give so many pieces.
    """
    corpus = Corpus(corpus_dir)
    inputs = {
        "corpus_fingerprint": corpus.fingerprint,
        "normalization": NORMALIZATION,
        "settings": dataclasses.asdict(settings),
    }
    report = _find(output_dir, inputs)
    if report is not None:
        console.say(f"{output_dir}: complete already, reused")
        _print_table(output_dir, report)
        return False
    existed = tf.io.gfile.isdir(output_dir)
    files.make_folder(output_dir)
    files.remove_temporaries(output_dir)
    try:
        vocabulary = _train(corpus, output_dir, settings)
    except BaseException:
        if not existed:
            tf.io.gfile.rmtree(output_dir)
        raise
    report = {
        "format": FORMAT,
        "vocab_size": vocabulary.size,
        "fingerprint": vocabulary.fingerprint,
        "inputs": inputs,
        "languages": _measure(corpus, vocabulary, settings.report_sentences),
    }
    files.write_json(os.path.join(output_dir, REPORT), report)
    _print_table(output_dir, report)
    return True


def _find(output_dir: str, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """The report of the complete vocabulary that is there, if it is of these inputs."""
    path = os.path.join(output_dir, REPORT)
    if not files.exists(path):
        return None
    report = files.read_json(path)
    if not isinstance(report, dict) or report.get("format") != FORMAT:
        raise UserError(f"{path}: not the report of a vocabulary ({FORMAT})")
    cure = "choose another --output_dir or remove the folder"
    if different := difference(report["inputs"], inputs):
        raise UserError(
            f"{output_dir}: holds a vocabulary of other inputs ({different}); {cure}"
        )
    found = Vocabulary(vocabulary_path(output_dir)).fingerprint
    if found != report["fingerprint"]:
        raise UserError(f"{output_dir}: {FILE_NAME} is not the one of {REPORT}; {cure}")
    return report


def _train(corpus: Corpus, output_dir: str, settings: VocabularySettings) -> Vocabulary:
    counts = corpus.counts("train")
    alpha, config = settings.sampling.alpha, settings.vocabulary
    sample = smoothed_sample(
        counts,
        lambda language: corpus.sentences("train", language),
        alpha,
        config.max_sentences,
        settings.seed,
    )
    sentences = sum(sample_sizes(counts, alpha, config.max_sentences).values())
    console.say(
        f"training {config.vocab_size:,} pieces on {sentences:,} sentences in "
        f"{len(counts)} languages, alpha {alpha}"
    )
    tracked = console.track(sample, "reading sentences", sentences)
    return train_vocabulary(tracked, vocabulary_path(output_dir), config)


def _measure(
    corpus: Corpus, vocabulary: Vocabulary, report_sentences: int
) -> dict[str, dict[str, Any]]:
    """Fertility and unknown rate by language, on eval text where there is some."""
    held_out = set(corpus.languages("eval"))
    measured = {}
    for language in console.track(corpus.languages("train"), "measuring fertility"):
        split = "eval" if language in held_out else "train"
        sentences = itertools.islice(
            corpus.sentences(split, language), report_sentences
        )
        measured[language] = {
            "split": split,
            **_fertility(vocabulary, iter(sentences)),
        }
    return measured


def _fertility(vocabulary: Vocabulary, sentences) -> dict[str, Any]:
    words = characters = tokens = unknown = count = 0
    while batch := list(itertools.islice(sentences, _ENCODED_AT_ONCE)):
        count += len(batch)
        words += sum(len(sentence.split()) for sentence in batch)
        characters += sum(map(len, batch))
        for ids in vocabulary.encode_batch(batch):
            tokens += len(ids)
            unknown += ids.count(vocabulary.unk_id)
    return {
        "sentences": count,
        "tokens": tokens,
        "tokens_per_word": round(tokens / max(words, 1), 4),
        "tokens_per_character": round(tokens / max(characters, 1), 4),
        "unknown_rate": round(unknown / max(tokens, 1), 6),
    }


def _print_table(output_dir: str, report: dict[str, Any]) -> None:
    """The languages with most unknown tokens, and the mean of all."""
    columns = ("tokens_per_word", "tokens_per_character", "unknown_rate")
    rows = [
        [language, *(measured[column] for column in columns)]
        for language, measured in report["languages"].items()
    ]
    rows.sort(key=lambda row: (-row[3], -row[2], row[0]))
    shown, rest = rows[:_SHOWN_LANGUAGES], rows[_SHOWN_LANGUAGES:]
    if rest:
        shown.append([f"mean of {len(rest)} more", *_means(rest)])
    shown.append([f"mean of all {len(rows)}", *_means(rows)])
    console.table(
        f"{vocabulary_path(output_dir)}: {report['vocab_size']:,} pieces",
        ["language", "tokens/word", "tokens/character", "unknown"],
        shown,
    )


def _means(rows: list[list[Any]]) -> list[float]:
    return [sum(column) / len(rows) for column in list(zip(*rows, strict=True))[1:]]


if __name__ == "__main__":
    define_flags()
    launch.run(main, __doc__)
