"""Tagging, a label for every word: graph, features, answers, scores.

A word's label is predicted at its first piece.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core import files
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary
from decoupled.model.dims import Dims
from decoupled.model.encoder import encode
from decoupled.model.heads import Forward, token_logits
from decoupled.model.layers import Builder
from decoupled.model.variables import Head
from decoupled.tasks.description import XTREME, TaskDescription
from decoupled.tasks.tagging_files import TaggedSentence, read_sentences, read_tagged
from decoupled.tasks.task import Features, FinetuningTask, Labelling, with_token_weights
from decoupled.xtreme.files import LanguageFile

# [CLS] and [SEP] of every row.
_SPECIALS = 2
# Increases when the result of `tagging_features` changes, so that older caches are not
# used.
_FEATURES_VERSION = 1

Tags = list[str]


class Tagging(Labelling):
    """Gives each word of a sentence one of a fixed set of labels.

    Features beside the encoder's inputs: `label_ids` int32 [batch, sequence], in
    [0, labels) everywhere, and `word_starts` int32 [batch, sequence], 1 at the first
    piece of a word. Loss and sums are those at first pieces only (Devlin et al. 2019,
    section 5.3).
    """

    predicts_tokens = True

    @property
    def head(self) -> Head:
        return Head(labels=len(self.labels))

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        names = ("label_ids", "label_weights")
        layout = {name: [dims.batch, dims.sequence] for name in names}
        return {**self.encoder_dims(dims), **layout, "loss_scale": [dims.batch]}

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        features = dict(features)
        weights = tf.cast(features.pop("word_starts"), tf.float32)
        return with_token_weights(features, "label_weights", weights)

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        layers = encode(build, features)
        logits = token_logits(build, layers[-1], self._labels_dim.size, self._dropout)
        weights = features["label_weights"]
        predictions = {
            "best_labels": mtf.argmax(logits, self._labels_dim),
            # NaN, which has an argmax too, ends the run that predicts.
            "sums_of_logits": mtf.reduce_sum(logits, reduced_dim=self._labels_dim),
        }
        return self._labelled(features, logits, weights, predictions)


class TaggingTask(FinetuningTask):
    """A tag for each word; an answer is a list with a tag a word.

    Without labels in the description, they come from the training files.
    """

    graph_features = (
        "input_word_ids",
        "input_mask",
        "input_type_ids",
        "word_starts",
        "label_ids",
    )

    def __init__(
        self, description: TaskDescription, data_dir: str, max_sequence_length: int
    ):
        shortest = _SPECIALS + 1
        if max_sequence_length < shortest:
            raise UserError(
                f"FinetuningConfig.max_sequence_length: {max_sequence_length} leaves "
                f"no room for text; use {shortest} or more"
            )
        settings = {
            "max_sequence_length": max_sequence_length,
            "version": _FEATURES_VERSION,
        }
        super().__init__(description, data_dir, settings)
        self._length = max_sequence_length
        self.labels = self._read_labels(
            lambda path, labels: read_tagged(path, description, "train", labels)
        )
        settings["labels"] = self.labels

    def read_file(self, path: str, language: str, split: str) -> list[TaggedSentence]:
        if self.description.form == XTREME:
            file = LanguageFile(path, self.name, language)
            return read_sentences(file, self.labels, tags_may_miss=split == "test")
        return read_tagged(path, self.description, split, self.label_reader())

    def features(
        self, vocabulary: Vocabulary, examples: list[TaggedSentence]
    ) -> Features:
        return tagging_features(vocabulary, examples, self.labels, self._length)

    def network(self, dropout: float) -> Tagging:
        return Tagging(self.name, self.labels, self._length, dropout)

    def answers(
        self, examples: list[TaggedSentence], features: Features, outputs: Features
    ) -> list[Tags]:
        return word_tags(
            examples, features["word_starts"], outputs["best_labels"], self.labels
        )

    def score(
        self, language: str, examples: list[TaggedSentence], answers: list[Tags]
    ) -> dict[str, float] | None:
        if any(sentence.tags is None for sentence in examples):
            return None
        return self.description.score(language, [s.tags for s in examples], answers)

    def trivial_answers(self, examples: list[TaggedSentence]) -> list[Tags]:
        """A word's most frequent tag in training; for new words that of all words. Of
        equally frequent tags, the one that comes first in training is taken."""
        by_word, counts = defaultdict(Counter), Counter()
        for sentence in self.training:
            for word, tag in zip(sentence.words, sentence.tags, strict=True):
                by_word[word][tag] += 1
                counts[tag] += 1
        default = counts.most_common(1)[0][0]
        best_tags = {word: tags.most_common(1)[0][0] for word, tags in by_word.items()}
        return [[best_tags.get(word, default) for word in s.words] for s in examples]

    def write(
        self, path: str, examples: list[TaggedSentence], answers: list[Tags]
    ) -> None:
        """Writes a tag a line and an empty line after each sentence."""
        lines = (f"{tag}\n" for tags in answers for tag in [*tags, ""])
        files.write_text(path, "".join(lines))


class _Layout(NamedTuple):
    """The rows of pieces.

    rows, positions: row and position of each piece. sizes, owners: number of pieces and
    sentence of each row.
    """

    rows: np.ndarray
    positions: np.ndarray
    sizes: np.ndarray
    owners: np.ndarray


def tagging_features(
    vocabulary: Vocabulary,
    sentences: Sequence[TaggedSentence],
    labels: Sequence[str],
    sequence_length: int,
) -> dict[str, np.ndarray]:
    """Sentences of words as rows of pieces, with the label on a word's first piece.

    Each word is encoded by itself, as XTREME does. A word whose normalised text is
    empty (control characters, zero-width spaces) becomes <unk>, so that it too has a
    piece for its tag. A sentence longer than the window continues in further rows. A
    word that does not fit into the rest of a row starts the next row. A word longer
    than the window is divided between rows. No piece is lost or repeated.

    int32 [rows, sequence_length]: `word_starts` is 1 at the first piece of each word,
    in row-major order all words in their order; `label_ids` is the tag's id there, 0
    without a tag. `example_index` int32 [rows] is the sentence of each row.
    """
    words = [word for sentence in sentences for word in sentence.words]
    pieces, counts = _encode(vocabulary, words)
    owners = np.repeat(
        np.arange(len(sentences)), [len(sentence.words) for sentence in sentences]
    )
    layout = _lay_out(counts, owners, sequence_length - _SPECIALS)
    sizes = layout.sizes

    shape = [len(sizes), sequence_length]
    ids = np.full(shape, vocabulary.pad_id, np.int32)
    ids[:, 0] = vocabulary.cls_id
    ids[layout.rows, layout.positions] = pieces
    ids[np.arange(len(sizes)), sizes + 1] = vocabulary.sep_id
    mask = np.arange(sequence_length) < sizes[:, np.newaxis] + _SPECIALS
    first_pieces = _starts(counts)
    places = layout.rows[first_pieces], layout.positions[first_pieces]
    starts, label_ids = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    starts[places] = 1
    label_ids[places] = _label_ids(sentences, labels)
    return {
        "input_word_ids": ids,
        "input_mask": mask.astype(np.int32),
        "input_type_ids": np.zeros(shape, np.int32),
        "word_starts": starts,
        "label_ids": label_ids,
        "example_index": layout.owners.astype(np.int32),
    }


def word_tags(
    sentences: Sequence[TaggedSentence],
    word_starts: np.ndarray,
    best_labels: np.ndarray,
    labels: Sequence[str],
) -> list[list[str]]:
    """The tags of each sentence's words, from the label ids of all pieces."""
    tags = iter([labels[i] for i in best_labels[word_starts == 1].tolist()])
    return [list(itertools.islice(tags, len(s.words))) for s in sentences]


def _encode(vocabulary: Vocabulary, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    unique_words = list(dict.fromkeys(words))
    encodings = zip(unique_words, vocabulary.encode_batch(unique_words), strict=True)
    pieces = {word: ids or [vocabulary.unk_id] for word, ids in encodings}
    counts = np.fromiter((len(pieces[word]) for word in words), np.int64, len(words))
    ids = itertools.chain.from_iterable(pieces[word] for word in words)
    return np.fromiter(ids, np.int32, counts.sum()), counts


def _lay_out(counts: np.ndarray, owners: np.ndarray, window: int) -> _Layout:
    """Rows and positions of pieces, from each word's number of pieces and sentence."""
    parts, part_words = _cut(counts, window)
    part_rows = _rows(parts, owners[part_words], window)
    sizes = np.bincount(part_rows, parts).astype(np.int64)
    first_parts = _starts(np.bincount(part_rows))
    # [CLS] comes first.
    positions = 1 + np.arange(sizes.sum()) - np.repeat(_starts(sizes), sizes)
    return _Layout(
        np.repeat(np.arange(len(sizes)), sizes),
        positions,
        sizes,
        owners[part_words[first_parts]],
    )


def _cut(counts: np.ndarray, window: int) -> tuple[np.ndarray, np.ndarray]:
    """Divides words into parts that fit the window."""
    parts = -(-counts // window)
    sizes = np.full(parts.sum(), window)
    sizes[np.cumsum(parts) - 1] = counts - (parts - 1) * window
    return sizes, np.repeat(np.arange(len(counts)), parts)


def _rows(parts: np.ndarray, owners: np.ndarray, window: int) -> np.ndarray:
    """The row of each part: the last one of its sentence if it fits, else a new one."""
    begins_row = np.diff(owners, prepend=-1) > 0
    for sentence in np.flatnonzero(np.bincount(owners, parts) > window):
        row_size = 0
        for part in range(*np.searchsorted(owners, [sentence, sentence + 1])):
            if row_size + parts[part] > window:
                begins_row[part], row_size = True, 0
            row_size += parts[part]
    return np.cumsum(begins_row) - 1


def _starts(sizes: np.ndarray) -> np.ndarray:
    return np.cumsum(sizes) - sizes


def _label_ids(sentences: Sequence[TaggedSentence], labels: Sequence[str]) -> list[int]:
    ids = {label: number for number, label in enumerate(labels)}
    return [
        number
        for sentence in sentences
        for number in (
            [0] * len(sentence.words)
            if sentence.tags is None
            else map(ids.__getitem__, sentence.tags)
        )
    ]
