"""Sequence classification for fine-tuning: xnli, pawsx and the catalogs task."""

import collections
import os
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary
from decoupled.metrics.accuracy import accuracy
from decoupled.tasks import examples as labelled_texts
from decoupled.tasks.classification import Classification
from decoupled.tasks.examples import LabelledTexts
from decoupled.tasks.features import pack_texts
from decoupled.tasks.finetuning_task import Features, FinetuningTask
from decoupled.tasks.sentence_pairs import read_pairs
from decoupled.xtreme.files import LanguageFile, languages_of
from decoupled.xtreme.official import english_first

LABELS = {
    "xnli": ("contradiction", "entailment", "neutral"),
    "pawsx": ("0", "1"),
}
CATALOGS = "catalogs"
# [CLS] and two [SEP], and a piece for each of two segments.
_SHORTEST = 5
# Counts changes of what `features` makes, so that none made before is taken for it.
_FEATURES_VERSION = 1
_HOW_TO_GET = {
    "xnli": "XTREME's scripts/download_data.sh writes it from XNLI and MultiNLI",
    "pawsx": "XTREME's scripts/download_data.sh writes it from PAWS-X",
    CATALOGS: "decoupled build_corpus --source=catalogs:PACKAGE writes it",
}


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

    metrics = headline = ("accuracy",)
    prediction_suffix = "tsv"
    graph_features = ("input_word_ids", "input_mask", "input_type_ids", "label_ids")

    def __init__(self, name: str, labels: list[str], max_sequence_length: int):
        if max_sequence_length < _SHORTEST:
            raise UserError(
                f"FinetuningConfig.max_sequence_length: {max_sequence_length} leaves "
                f"no room for two texts; {_SHORTEST} or more"
            )
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
        """The graph's side of the task."""
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
        """Accuracy in percent; None without labels."""
        labels = [example.label for example in examples]
        if None in labels:
            return None
        return accuracy(labels, [answer.label for answer in answers])

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


class CatalogsTask(SequenceClassificationTask):
    """Which catalog does a message come from? A task that `build_corpus` writes.

    Its languages are those that have files, its labels those of `catalogs/labels.txt`.

    Args:
      data_dir: the folder with a folder per task.
      max_sequence_length: tokens of a row.

    Raises:
      UserError: the labels are missing or no labels.
    """

    def __init__(self, data_dir: str, max_sequence_length: int):
        labels = labelled_texts.read_labels(os.path.join(data_dir, CATALOGS))
        super().__init__(CATALOGS, labels, max_sequence_length)

    def languages(self, data_dir: str, split: str) -> list[str]:
        """The languages that have a file of this split, English first."""
        return labelled_texts.languages(os.path.join(data_dir, self.name), split)

    def read(self, data_dir: str, split: str, language: str) -> list[LabelledTexts]:
        """The messages, or pairs of texts, with their labels."""
        return labelled_texts.read_examples(
            self.path(data_dir, split, language), self.labels
        )

    def write(
        self, path: str, examples: list[LabelledTexts], answers: list[Answer]
    ) -> None:
        """Writes a label a line and, after a tab, its probability."""
        lines = (f"{label}\t{probability:.6f}\n" for label, probability in answers)
        files.write_text(path, "".join(lines))
