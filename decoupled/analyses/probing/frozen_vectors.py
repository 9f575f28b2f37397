"""Sentences of a probing task as frozen vectors, and batches of them.

The encoder runs once per sentence. The vectors of all layers are written in float16 to
a memory-mapped file. OntoNotes with a BERT-base takes about 50 GB, more memory than
most machines have; the part that fits into memory is read at its speed.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.analyses.models import array_on_disk, batches, packed
from decoupled.analyses.probing.task_files import Example, Target
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
    missed: the number of labels of targets that are not among these.
    """

    vectors: np.ndarray
    spans: tuple[tuple[np.ndarray, np.ndarray], ...]
    labels: np.ndarray
    missed: int


class ProbingData(NamedTuple):
    """A split of a task.

    vectors: [pieces, layers + 1, H], all sentences concatenated.
    starts: int64 [sentences + 1], the first piece of each. spans: one or two of int64
    [targets, 2], pieces [first, end) within their sentence. labels: the ids of each
    target's labels, -1 for labels that are not in the training data. target_starts:
    int64 [sentences + 1]. places: the sentence of the file, and which of its targets.
    lost: the number of targets beyond the model's positions.
    """

    vectors: np.ndarray
    starts: np.ndarray
    spans: tuple[np.ndarray, ...]
    labels: list[tuple[int, ...]]
    target_starts: np.ndarray
    num_labels: int
    places: list[tuple[int, int]]
    lost: int

    @property
    def sentences(self) -> int:
        """The number of sentences."""
        return len(self.starts) - 1

    @property
    def targets(self) -> int:
        """The number of targets, without those that are lost."""
        return len(self.labels)

    def batch(self, rows: Sequence[int]) -> SpanBatch:
        """The sentences `rows`."""
        vectors = np.concatenate(
            [self.vectors[self.starts[r] : self.starts[r + 1]] for r in rows]
        )
        lengths = [self.starts[r + 1] - self.starts[r] for r in rows]
        shifts = np.cumsum([0, *lengths[:-1]])
        counts = [self.target_starts[r + 1] - self.target_starts[r] for r in rows]
        chosen = np.concatenate(
            [np.arange(self.target_starts[r], self.target_starts[r + 1]) for r in rows]
        )
        shift = np.repeat(shifts, counts)
        labels = np.zeros([len(chosen), self.num_labels], np.float32)
        missed = 0
        for place, target in enumerate(chosen):
            known = [label for label in self.labels[target] if label >= 0]
            labels[place, known] = 1
            missed += len(self.labels[target]) - len(known)
        return SpanBatch(
            vectors.astype(np.float32),
            tuple(_rows_of_spans(spans[chosen], shift) for spans in self.spans),
            labels,
            missed,
        )

    def batches(self, size: int) -> Iterator[SpanBatch]:
        """All sentences in their order, `size` at a time."""
        for start in range(0, self.sentences, size):
            yield self.batch(range(start, min(start + size, self.sentences)))


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
    pieces, spans, ids, counts, places, lost = [], [], [], [], [], 0
    for number, (words, targets) in enumerate(examples):
        ends, sentence = _pieces(model, words)
        within = [_last_piece(t, ends) <= longest for t in targets]
        kept = list(itertools.compress(targets, within))
        lost += len(targets) - len(kept)
        if not kept:
            # The vectors of this sentence are not read.
            continue
        pieces.append(sentence[:longest])
        counts.append(len(kept))
        places += [(number, place) for place in np.flatnonzero(within).tolist()]
        spans += [
            [[ends[s[0]], ends[s[1]]] for s in t[:2] if s is not None] for t in kept
        ]
        ids += [tuple(labels.get(name, -1) for name in t.labels) for t in kept]
    if not pieces:
        raise UserError(
            f"{model.name}: no target is within the first {length} positions"
        )
    starts = np.cumsum([0, *map(len, pieces)])
    vectors = _encode(model, encode, pieces, starts, path)
    every_span = np.array(spans, np.int64)
    return ProbingData(
        vectors,
        starts,
        tuple(every_span[:, place] for place in range(every_span.shape[1])),
        ids,
        np.cumsum([0, *counts]),
        len(labels),
        places,
        lost,
    )


def _pieces(model: Model, words: list[str]) -> tuple[np.ndarray, list[int]]:
    """The ends of the words, int64 [words + 1] starting with 0, and all pieces."""
    vocabulary = model.vocabulary
    # A word that the normalisation removes completely still needs a piece.
    encoded = [ids or [vocabulary.unk_id] for ids in vocabulary.encode_batch(words)]
    ends = np.cumsum([0, *map(len, encoded)])
    return ends, [piece for ids in encoded for piece in ids]


def _last_piece(target: Target, ends: np.ndarray) -> int:
    spans = [span for span in (target.span1, target.span2) if span is not None]
    return max(ends[end] for _, end in spans)


def _rows_of_spans(
    spans: np.ndarray, shift: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a batch's vectors, and the target of each row."""
    segments = np.repeat(np.arange(len(spans)), spans[:, 1] - spans[:, 0])
    rows = [np.arange(*span) for span in spans + shift[:, np.newaxis]]
    return np.concatenate(rows).astype(np.int32), segments.astype(np.int32)


def _encode(
    model: Model,
    encode: Encode,
    pieces: list[list[int]],
    starts: np.ndarray,
    path: str,
) -> np.ndarray:
    """Runs the encoder over all sentences; returns the mapped file."""
    shape = (int(starts[-1]), model.config.num_layers + 1, model.config.hidden_size)
    vectors = array_on_disk(path, np.float16, shape)
    rows = {**packed(model.vocabulary, pieces), "row": np.arange(len(pieces))}
    for batch in batches(rows, _ENCODED_AT_ONCE, f"{model.name}: encoding sentences"):
        outputs = encode(batch).numpy()
        for place, row in enumerate(batch["row"]):
            first, end = starts[row : row + 2]
            of_sentence = outputs[:, place, 1 : end - first + 1]
            vectors[first:end] = of_sentence.swapaxes(0, 1)
    return vectors
