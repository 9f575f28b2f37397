"""Classification and regression of a text or a pair of texts: a label or a number."""

import collections
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import console, files
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.core.tab_separated import row_text
from decoupled.data.vocabulary import Vocabulary
from decoupled.model.dims import Dims, labels_dim
from decoupled.model.encoder import encode
from decoupled.model.heads import Forward, sequence_logits
from decoupled.model.layers import Builder
from decoupled.model.variables import Head
from decoupled.ops.normalization import softmax
from decoupled.tasks.description import CORPUS, XTREME, TaskDescription
from decoupled.tasks.task import (
    Features,
    FinetuningTask,
    Labelling,
    Task,
    example_layout,
    with_weights,
)
from decoupled.tasks.text_files import (
    LabelledTexts,
    line_ends_note,
    read_corpus_labels,
    read_texts,
)

# [CLS] and two [SEP], and a piece for each of two segments.
_SHORTEST = 5
# Increases when the result of `features` changes, so that older caches are not used.
_FEATURES_VERSION = 1


class Classification(Labelling):
    """Gives a sequence one of a fixed set of labels."""

    @property
    def head(self) -> Head:
        return Head(pooler=True, labels=len(self.labels))

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        return example_layout(self, dims, "label_ids")

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return with_weights(features, features["label_ids"])

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        cls = encode(build, features, self.first_positions(build, features))[-1]
        logits = sequence_logits(build, cls, self._labels_dim.size, self._dropout)
        weights = features["example_weights"]
        predictions = {"probabilities": softmax(logits)}
        return self._labelled(features, logits, weights, predictions)


class Regression(Task):
    """Gives a sequence a number; the loss is the mean squared error.

    Features beside the encoder's inputs: `targets`, float32 [batch].
    """

    metrics = {}

    def __init__(self, name: str, sequence_length: int, dropout: float):
        super().__init__(name, sequence_length, dropout)
        self._output_dim = labels_dim(1)

    @property
    def head(self) -> Head:
        return Head(pooler=True, labels=1)

    def extra_dims(self) -> list[mtf.Dimension]:
        return [self._output_dim]

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        return example_layout(self, dims, "targets")

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return with_weights(features, features["targets"])

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        cls = encode(build, features, self.first_positions(build, features))[-1]
        outputs = sequence_logits(build, cls, 1, self._dropout)
        values = mtf.reduce_sum(outputs, reduced_dim=self._output_dim)
        weights = features["example_weights"]
        losses = mtf.square(values - features["targets"]) * weights
        return Forward(
            loss=mtf.reduce_sum(losses * features["loss_scale"]),
            sums={
                "loss_sum": mtf.reduce_sum(losses),
                "weight": mtf.reduce_sum(weights),
            },
            predictions={"values": values},
        )


class _TextTask(FinetuningTask):
    """A label or a number for a text or a pair of texts."""

    def __init__(
        self,
        description: TaskDescription,
        data_dir: str,
        max_sequence_length: int,
        **settings: Any,
    ):
        if max_sequence_length < _SHORTEST:
            raise UserError(
                f"FinetuningConfig.max_sequence_length: {max_sequence_length} leaves "
                f"no room for two texts; use {_SHORTEST} or more"
            )
        settings |= {
            "max_sequence_length": max_sequence_length,
            "version": _FEATURES_VERSION,
        }
        super().__init__(description, data_dir, settings)
        self._length = max_sequence_length
        # Files whose line ends in cells were noted; a file is read several times.
        self._noted_files: set[str] = set()

    def read_file(self, path: str, language: str, split: str) -> list[LabelledTexts]:
        rows = read_texts(path, self.description, split, self.label_reader())
        note = line_ends_note(path, rows)
        if note and path not in self._noted_files:
            self._noted_files.add(path)
            console.say(note)
        return rows

    def _pack(
        self,
        vocabulary: Vocabulary,
        examples: list[LabelledTexts],
        **targets: np.ndarray,
    ) -> Features:
        inputs = pack_texts(vocabulary, [e.texts for e in examples], self._length)
        indices = np.arange(len(examples), dtype=np.int32)
        return {**inputs, **targets, "example_index": indices}


class LabelAnswer(NamedTuple):
    """The most probable label and its probability."""

    label: str
    probability: float


class ClassificationTask(_TextTask):
    """A label for a text or a pair of texts; an answer is a `LabelAnswer`.

    Without labels in the description, they come from the training files, or from the
    file that `build_corpus` writes.
    """

    graph_features = ("input_word_ids", "input_mask", "input_type_ids", "label_ids")

    def __init__(
        self, description: TaskDescription, data_dir: str, max_sequence_length: int
    ):
        super().__init__(description, data_dir, max_sequence_length)
        if description.form == CORPUS and not description.labels:
            self.labels = read_corpus_labels(os.path.join(data_dir, self.name))
        else:
            self.labels = self._read_labels(
                lambda path, labels: read_texts(path, description, "train", labels)
            )
        self._settings["labels"] = self.labels

    def features(
        self, vocabulary: Vocabulary, examples: list[LabelledTexts]
    ) -> Features:
        ids = {label: index for index, label in enumerate(self.labels)}
        label_ids = [ids.get(example.label, 0) for example in examples]
        return self._pack(vocabulary, examples, label_ids=np.array(label_ids, np.int32))

    def network(self, dropout: float) -> Classification:
        return Classification(self.name, self.labels, self._length, dropout)

    def answers(
        self, examples: list[LabelledTexts], features: Features, outputs: Features
    ) -> list[LabelAnswer]:
        rows = outputs["probabilities"]
        return [
            LabelAnswer(self.labels[int(row.argmax())], float(row.max()))
            for row in rows
        ]

    def score(
        self, language: str, examples: list[LabelledTexts], answers: list[LabelAnswer]
    ) -> dict[str, float] | None:
        labels = [example.label for example in examples]
        if None in labels:
            return None
        return self.description.score(language, labels, [a.label for a in answers])

    def trivial_answers(self, examples: list[LabelledTexts]) -> list[LabelAnswer]:
        """The most frequent label in training; of equally frequent ones the first."""
        counts = collections.Counter(example.label for example in self.training)
        majority = max(self.labels, key=lambda label: counts[label])
        return [LabelAnswer(majority, counts[majority] / len(self.training))] * len(
            examples
        )

    def write(
        self, path: str, examples: list[LabelledTexts], answers: list[LabelAnswer]
    ) -> None:
        """Writes a label a line and, but for XTREME, after a tab its probability.

        A label with quotes is quoted as by csv.writer, so that `read_rows` reads it.
        """
        if self.description.form == XTREME:
            lines = (f"{answer.label}\n" for answer in answers)
        else:
            lines = (row_text([a.label, f"{a.probability:.6f}"]) for a in answers)
        files.write_text(path, "".join(lines))


class RegressionTask(_TextTask):
    """A number for a text or a pair of texts, as STS-B's; an answer is a float."""

    graph_features = ("input_word_ids", "input_mask", "input_type_ids", "targets")

    def read_file(self, path: str, language: str, split: str) -> list[LabelledTexts]:
        """The rows of a split. A dev file of equal numbers is refused: correlations are
        undefined there, and cannot select a checkpoint."""
        rows = super().read_file(path, language, split)
        if split == "dev" and len({float(row.label) for row in rows}) < 2:
            raise UserError(
                f"{path}: every number is {rows[0].label}, and a correlation needs two "
                "different numbers; add examples, or give no dev file"
            )
        return rows

    def features(
        self, vocabulary: Vocabulary, examples: list[LabelledTexts]
    ) -> Features:
        targets = [float(example.label or 0.0) for example in examples]
        return self._pack(vocabulary, examples, targets=np.array(targets, np.float32))

    def network(self, dropout: float) -> Regression:
        return Regression(self.name, self._length, dropout)

    def answers(
        self, examples: list[LabelledTexts], features: Features, outputs: Features
    ) -> list[float]:
        return outputs["values"].tolist()

    def score(
        self, language: str, examples: list[LabelledTexts], answers: list[float]
    ) -> dict[str, float] | None:
        """None if the file has no numbers or all of them are equal."""
        if any(example.label is None for example in examples):
            return None
        targets = np.array([float(example.label) for example in examples])
        if np.ptp(targets) == 0:
            return None
        return self.description.score(language, targets, np.array(answers))

    def trivial_answers(self, examples: list[LabelledTexts]) -> list[float]:
        mean = float(np.mean([float(example.label) for example in self.training]))
        return [mean] * len(examples)

    def write(
        self, path: str, examples: list[LabelledTexts], answers: list[float]
    ) -> None:
        files.write_text(path, "".join(f"{answer:.9g}\n" for answer in answers))


def pack_texts(
    vocabulary: Vocabulary, texts: list[tuple[str, ...]], sequence_length: int
) -> dict[str, np.ndarray]:
    """Encodes texts or pairs of texts as [CLS] A [SEP] or [CLS] A [SEP] B [SEP].

    XLM-R has a second [SEP] between A and B, and one type. If a pair is too long,
    pieces are cut from the end of the longer text first. The arrays are int32 [texts,
    sequence_length].
    """
    shape = [len(texts), sequence_length]
    ids = np.full(shape, vocabulary.pad_id, np.int32)
    mask = np.zeros(shape, np.int32)
    types = np.zeros(shape, np.int32)
    for row, segments in enumerate(_segments(vocabulary, texts)):
        counts = [1] if len(segments) == 1 else [vocabulary.pairs.separators, 1]
        segments = truncate(segments, sequence_length - 1 - sum(counts))
        position = 1
        ids[row, 0] = vocabulary.cls_id
        for number, (segment, count) in enumerate(zip(segments, counts, strict=True)):
            end = position + len(segment) + count
            ids[row, position:end] = [*segment, *[vocabulary.sep_id] * count]
            types[row, position:end] = number * vocabulary.pairs.second_type
            position = end
        mask[row, :position] = 1
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}


def _segments(
    vocabulary: Vocabulary, texts: list[tuple[str, ...]]
) -> Iterator[list[list[int]]]:
    segments = iter(vocabulary.encode_batch([t for pair in texts for t in pair]))
    for pair in texts:
        yield [next(segments) for _ in pair]


def truncate(segments: list[list[int]], budget: int) -> list[list[int]]:
    """Cuts segments to `budget` pieces in all, always the longer one, or the second."""
    lengths = [len(segment) for segment in segments]
    excess = sum(lengths) - budget
    if excess <= 0:
        return segments
    if len(lengths) == 1:
        return [segments[0][:budget]]
    longer_index = int(lengths[1] >= lengths[0])
    # The longer one is cut to the length of the shorter one, then both equally.
    difference = min(excess, abs(lengths[0] - lengths[1]))
    lengths[longer_index] -= difference
    excess -= difference
    lengths[1] -= (excess + 1) // 2
    lengths[0] -= excess // 2
    return [s[:n] for s, n in zip(segments, lengths, strict=True)]
