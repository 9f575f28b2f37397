"""Sentences of a probing task as frozen vectors, and batches of them.

The encoder runs once per sentence. The vectors of all layers are written in float16 to
a memory-mapped file. OntoNotes with a BERT-base takes about 50 GB, more memory than
most machines have; the part that fits into memory is read at its speed.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.analyses.models import array_on_disk, encoder_batches
from decoupled.analyses.probing.task_files import Example
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.runs.saved_run import Model

# Features -> all layers; see `decoupled.analyses.models.layer_encoder`.
Encode = Callable[[dict[str, np.ndarray]], tf.Tensor]
# [CLS] and [SEP].
_SPECIAL = 2
_ENCODED_AT_ONCE = 32


class SpanBatch(NamedTuple):
    """Concatenated sentences.

    vectors: float32 [pieces, layers, H]. spans: one or two of (int32 [n], int32 [n]):
    rows of `vectors`, and the target of each row, non-decreasing and without gaps.
    labels: float32 [targets, labels], 1 if a target has the label.
    unknown_labels: the number of labels of targets that are not among these.
    """

    vectors: np.ndarray
    spans: tuple[tuple[np.ndarray, np.ndarray], ...]
    labels: np.ndarray
    unknown_labels: int


class Sentence(NamedTuple):
    """A sentence with targets.

    first, end: of its pieces, rows of the vectors. spans: int64 [targets, 1 or 2, 2],
    pieces [first, end) within the sentence. labels: the ids of each target's labels, -1
    for labels that are not in the training data. places: the sentence of the file, and
    which of its targets.
    """

    first: int
    end: int
    spans: np.ndarray
    labels: list[tuple[int, ...]]
    places: list[tuple[int, int]]


class ProbingData(NamedTuple):
    """A split of a task.

    vectors: [pieces, layers + 1, H]. lost_targets: the number of targets beyond the
    model's positions.
    """

    vectors: np.ndarray
    sentences: list[Sentence]
    num_labels: int
    lost_targets: int

    @property
    def places(self) -> list[tuple[int, int]]:
        """The places of all targets that are not lost."""
        return [place for sentence in self.sentences for place in sentence.places]

    def batch(self, rows: Sequence[int]) -> SpanBatch:
        """The sentences `rows`."""
        sentences = [self.sentences[row] for row in rows]
        vectors = [self.vectors[of.first : of.end] for of in sentences]
        shifts = np.cumsum([0, *map(len, vectors)])
        spans = [of.spans + shift for of, shift in zip(sentences, shifts, strict=False)]
        ids = [ids for sentence in sentences for ids in sentence.labels]
        labels = np.zeros([len(ids), self.num_labels], np.float32)
        for target, target_ids in enumerate(ids):
            labels[target, [label for label in target_ids if label >= 0]] = 1
        return SpanBatch(
            np.concatenate(vectors).astype(np.float32),
            tuple(map(_rows_of_spans, np.concatenate(spans).swapaxes(0, 1))),
            labels,
            sum(target_ids.count(-1) for target_ids in ids),
        )


def label_ids(examples: Sequence[Example]) -> dict[str, int]:
    """The labels of the training data, sorted."""
    labels = {label for _, targets in examples for t in targets for label in t.labels}
    return {label: number for number, label in enumerate(sorted(labels))}


def prepare(
    model: Model,
    encode: Encode,
    examples: Sequence[Example],
    labels: dict[str, int],
    path: str,
    max_tokens: int | None,
) -> ProbingData:
    """Encodes a split; writes its vectors to the new file `path`.

    Words are encoded one by one, because SentencePiece never joins two words. Pieces
    beyond `max_tokens` (including [CLS] and [SEP]; None for the model's positions) and
    their targets are cut off.
    """
    length = max_tokens or model.config.max_positions
    longest = length - _SPECIAL
    pieces, sentences, lost_targets, end = [], [], 0, 0
    for number, (words, targets) in enumerate(examples):
        ends, sentence_pieces = _pieces(model, words)
        spans = ends[[[span for span in t[:2] if span is not None] for t in targets]]
        is_within = spans[:, :, 1].max(1) <= longest
        lost_targets += int((~is_within).sum())
        if not is_within.any():
            # The vectors of this sentence are not read.
            continue
        pieces.append(sentence_pieces[:longest])
        first, end = end, end + len(pieces[-1])
        indices = np.flatnonzero(is_within).tolist()
        ids = [tuple(labels.get(n, -1) for n in targets[i].labels) for i in indices]
        places = [(number, index) for index in indices]
        sentences.append(Sentence(first, end, spans[is_within], ids, places))
    if not pieces:
        raise UserError(
            f"{model.name}: no target is within the first {length} positions"
        )
    shape = (end, model.config.num_layers + 1, model.config.hidden_size)
    vectors = array_on_disk(path, np.float16, shape)
    progress = f"{model.name}: encoding sentences"
    for rows, batch in encoder_batches(
        model.vocabulary, pieces, _ENCODED_AT_ONCE, progress
    ):
        outputs = encode(batch).numpy()
        for place, row in enumerate(rows):
            first, end, *_ = sentences[row]
            layers = outputs[:, place, 1 : end - first + 1]
            vectors[first:end] = layers.swapaxes(0, 1)
    return ProbingData(vectors, sentences, len(labels), lost_targets)


def _pieces(model: Model, words: list[str]) -> tuple[np.ndarray, list[int]]:
    """The ends of the words, int64 [words + 1] starting with 0, and all pieces."""
    vocabulary = model.vocabulary
    # A word that the normalisation removes completely still needs a piece.
    pieces = [ids or [vocabulary.unk_id] for ids in vocabulary.encode_batch(words)]
    ends = np.cumsum([0, *map(len, pieces)])
    return ends, [piece for ids in pieces for piece in ids]


def _rows_of_spans(spans: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a batch's vectors, and the target of each row."""
    targets = np.repeat(np.arange(len(spans)), spans[:, 1] - spans[:, 0])
    rows = np.concatenate([np.arange(*span) for span in spans])
    return rows.astype(np.int32), targets.astype(np.int32)
