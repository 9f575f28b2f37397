"""Classification of a text or a pair of texts: graph, features, answers, scores.

The tasks are XTREME's xnli and pawsx, and two that `build_corpus` writes, catalogs and
books. `decoupled.tasks.own` has others.
"""

import collections
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs.finetuning import CLASSIFICATION
from decoupled.core import files
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.core.tab_separated import row_text
from decoupled.data.vocabulary import Vocabulary
from decoupled.metrics.labels import accuracy
from decoupled.model.dims import Dims
from decoupled.model.encoder import encode
from decoupled.model.heads import Forward, sequence_logits
from decoupled.model.layers import Builder
from decoupled.model.variables import Head, classifier
from decoupled.ops.normalization import softmax
from decoupled.tasks import classification_files
from decoupled.tasks.classification_files import LabelledTexts, read_pairs
from decoupled.tasks.task import (
    Features,
    FinetuningTask,
    Labelling,
    example_dims,
    loss_scale,
)
from decoupled.xtreme.files import LanguageFile, languages_of
from decoupled.xtreme.official import english_first

LABELS = {
    "xnli": ("contradiction", "entailment", "neutral"),
    "pawsx": ("0", "1"),
}
CATALOGS, BOOKS = "catalogs", "books"
# [CLS] and two [SEP], and a piece for each of two segments.
_SHORTEST = 5
# Increases when the result of `features` changes, so that older caches are not used.
_FEATURES_VERSION = 1
_HOW_TO_GET = {
    "xnli": "XTREME's scripts/download_data.sh writes it from XNLI and MultiNLI",
    "pawsx": "XTREME's scripts/download_data.sh writes it from PAWS-X",
    CATALOGS: "decoupled build_corpus --source=catalogs:PACKAGE writes it",
    BOOKS: "decoupled build_corpus writes it, of a --source of Bibles",
}


class Classification(Labelling):
    """Gives a sequence one of a fixed set of labels."""

    @property
    def head(self) -> Head:
        """Pooler and last layer."""
        return classifier(len(self.labels))

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        """The encoder's inputs, and labels and weights of each example."""
        return example_dims(self, dims, "label_ids")

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Adds weights (padding has 0) and 1 / (their sum over the batch)."""
        weights = features.get("example_weights")
        if weights is None:
            weights = tf.ones_like(features["label_ids"], tf.float32)
        return {
            **features,
            "example_weights": weights,
            "loss_scale": loss_scale(weights),
        }

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        """Loss, correct predictions and probabilities [batch, labels]."""
        cls = encode(build, features, self.first_positions(build, features)).output
        logits = sequence_logits(build, cls, self._labels_dim.size, self._dropout)
        weights = features["example_weights"]
        predictions = {"probabilities": softmax(logits)}
        return self._labelled(build, features, logits, weights, predictions)


class Answer(NamedTuple):
    """The most probable label and its probability."""

    label: str
    probability: float


class SequenceClassificationTask(FinetuningTask):
    """One label for a text or a pair of texts; an answer is an `Answer`.

    Files are `NAME/{train-en,dev-L,test-L}.tsv` below --data_dir.

    Args:
      name: of the task and its folder.
      labels: in the order of their ids.
      max_sequence_length: tokens of a row; longer pairs lose pieces of the longer text.

    Raises:
      UserError: a row has no room for two texts.
    """

    kind = CLASSIFICATION
    metrics = headline = ("accuracy",)
    prediction_suffix = "tsv"
    graph_features = ("input_word_ids", "input_mask", "input_type_ids", "label_ids")

    def __init__(self, name: str, labels: list[str], max_sequence_length: int):
        check_row(max_sequence_length)
        self.name = name
        self.labels = list(labels)
        self._length = max_sequence_length

    def languages(self, data_dir: str, split: str) -> list[str]:
        """The languages that have a file: English, XTREME's others, then the rest."""
        found = languages_of(data_dir, f"{self.name}/{split}-{{language}}.tsv")
        return english_first(self.name, found)

    def path(self, data_dir: str, split: str, language: str) -> str:
        """`NAME/SPLIT-LANGUAGE.tsv`."""
        path = os.path.join(data_dir, self.name, f"{split}-{language}.tsv")
        if not files.exists(path):
            raise UserError(
                f"{path}: missing; {self.name} needs its {split} file of language "
                f"{language!r}: {_HOW_TO_GET[self.name]}"
            )
        return path

    def read(self, data_dir: str, split: str, language: str) -> list[LabelledTexts]:
        """The pairs; only those of test files may lack labels."""
        path = self.path(data_dir, split, language)
        file = LanguageFile(path, self.name, language)
        return read_pairs(file, self.labels, may_lack_labels=split == "test")

    def settings(self) -> dict[str, Any]:
        """Length, labels and version of the features."""
        return {
            "max_sequence_length": self._length,
            "labels": self.labels,
            "version": _FEATURES_VERSION,
        }

    def features(
        self, vocabulary: Vocabulary, examples: list[LabelledTexts]
    ) -> Features:
        """The encoder's inputs and `label_ids` int32 [examples], 0 without a label."""
        ids = {label: index for index, label in enumerate(self.labels)}
        packed = pack_texts(vocabulary, [e.texts for e in examples], self._length)
        label_ids = [ids.get(example.label, 0) for example in examples]
        return {
            **packed,
            "label_ids": np.array(label_ids, np.int32),
            "example_index": np.arange(len(examples), dtype=np.int32),
        }

    def network(self, dropout: float, label_smoothing: float) -> Classification:
        """The graph's side of the task, whose loss never depends on padding."""
        return Classification(
            self.name, self.labels, self._length, dropout, label_smoothing
        )

    def answers(
        self, examples: list[LabelledTexts], features: Features, outputs: Features
    ) -> list[Answer]:
        """The best labels, from `probabilities` float32 [examples, labels]."""
        rows = outputs["probabilities"]
        return [
            Answer(self.labels[int(row.argmax())], float(row.max())) for row in rows
        ]

    def score(
        self, language: str, examples: list[LabelledTexts], answers: list[Answer]
    ) -> dict[str, float] | None:
        """`scores_of` in percent; None without labels."""
        labels = [example.label for example in examples]
        if None in labels:
            return None
        return self.scores_of(labels, [answer.label for answer in answers])

    def scores_of(self, labels: list[str], answers: list[str]) -> dict[str, float]:
        """Accuracy."""
        return accuracy(labels, answers)

    def trivial_answers(
        self, training: list[LabelledTexts], examples: list[LabelledTexts]
    ) -> list[Answer]:
        """The most frequent label in training; of equally frequent ones the first."""
        counts = collections.Counter(example.label for example in training)
        majority = max(self.labels, key=lambda label: counts[label])
        return [Answer(majority, counts[majority] / len(training))] * len(examples)

    def write(
        self, path: str, examples: list[LabelledTexts], answers: list[Answer]
    ) -> None:
        """Writes a label a line."""
        files.write_text(path, "".join(f"{answer.label}\n" for answer in answers))


class CorpusTask(SequenceClassificationTask):
    """The catalog that a message comes from (catalogs), or the group of books that a
    verse comes from (books). `build_corpus` writes the files of both.

    The files determine the languages and the labels.

    Args:
      name: of the task and its folder.
      data_dir: the folder with a folder per task.
      max_sequence_length: tokens of a row.

    Raises:
      UserError: the file of labels is missing or malformed.
    """

    def __init__(self, name: str, data_dir: str, max_sequence_length: int):
        labels = classification_files.read_labels(os.path.join(data_dir, name))
        super().__init__(name, labels, max_sequence_length)

    def languages(self, data_dir: str, split: str) -> list[str]:
        """The languages that have a file of this split, English first."""
        return classification_files.languages(os.path.join(data_dir, self.name), split)

    def read(self, data_dir: str, split: str, language: str) -> list[LabelledTexts]:
        """The texts, or pairs of texts, with their labels."""
        path = self.path(data_dir, split, language)
        return classification_files.read_examples(path, self.labels)

    def write(
        self, path: str, examples: list[LabelledTexts], answers: list[Answer]
    ) -> None:
        """As `write_probable`."""
        write_probable(path, answers)


def check_row(max_sequence_length: int) -> None:
    """Refuses rows that have no room for two texts, with a UserError."""
    if max_sequence_length < _SHORTEST:
        raise UserError(
            f"FinetuningConfig.max_sequence_length: {max_sequence_length} leaves no "
            f"room for two texts; {_SHORTEST} or more"
        )


def write_probable(path: str, answers: list[Answer]) -> None:
    """Writes a label a line and, after a tab, its probability.

    A label with quotes is quoted as by csv.writer, so that `read_rows` reads it.
    """
    lines = (row_text([label, f"{probability:.6f}"]) for label, probability in answers)
    files.write_text(path, "".join(lines))


def pack_texts(
    vocabulary: Vocabulary, texts: list[tuple[str, ...]], sequence_length: int
) -> dict[str, np.ndarray]:
    """Encodes texts or pairs of texts as [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    If a pair is too long, pieces are cut from the end of the longer text first.

    Args:
      vocabulary: of the model.
      texts: one or two texts each.
      sequence_length: tokens of every row, special pieces included.

    Returns:
      `input_word_ids`, `input_mask`, `input_type_ids`: int32 [texts, sequence_length];
      type 1 is the second text and its [SEP].
    """
    shape = [len(texts), sequence_length]
    ids = np.full(shape, vocabulary.pad_id, np.int32)
    mask = np.zeros(shape, np.int32)
    types = np.zeros(shape, np.int32)
    for row, segments in enumerate(_segments(vocabulary, texts)):
        segments = truncate(segments, sequence_length - 1 - len(segments))
        position = 1
        ids[row, 0] = vocabulary.cls_id
        for number, segment in enumerate(segments):
            end = position + len(segment) + 1
            ids[row, position:end] = [*segment, vocabulary.sep_id]
            types[row, position:end] = number
            position = end
        mask[row, :position] = 1
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}


def _segments(
    vocabulary: Vocabulary, texts: list[tuple[str, ...]]
) -> Iterator[list[list[int]]]:
    encoded = iter(vocabulary.encode_batch([t for pair in texts for t in pair]))
    for pair in texts:
        yield [next(encoded) for _ in pair]


def truncate(segments: list[list[int]], budget: int) -> list[list[int]]:
    """Cuts segments to `budget` pieces in all, always the longer one.

    If two segments are equally long, the second is cut first.
    """
    lengths = [len(segment) for segment in segments]
    excess = sum(lengths) - budget
    if excess <= 0:
        return segments
    if len(lengths) == 1:
        return [segments[0][:budget]]
    longer = int(lengths[1] >= lengths[0])
    # The longer one is cut to the length of the shorter one, then both equally.
    first = min(excess, abs(lengths[0] - lengths[1]))
    lengths[longer] -= first
    rest = excess - first
    lengths[1] -= (rest + 1) // 2
    lengths[0] -= rest // 2
    return [s[:n] for s, n in zip(segments, lengths, strict=True)]
