"""Sentences of words to rows of pieces, with the label on a word's first piece.

Each word is encoded by itself, as XTREME does; one of which nothing is left (control
characters, zero-width spaces) becomes <unk>, so that it too has a piece to be tagged
at. A sentence longer than the window goes on in further rows, where a word that does
not fit into what is left of a row starts the next one, and a word longer than the
window is cut. Put one after the other, the pieces of a sentence's rows are the
sentence's pieces.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoupled.data.vocabulary import Vocabulary
from decoupled.tasks.tagged_sentences import TaggedSentence

# [CLS] and [SEP] of every row.
_SPECIALS = 2
# Grows with every change of what `tagging_features` gives.
VERSION = 1


class _Layout(NamedTuple):
    """Where pieces stand.

    rows, positions: of each piece. sizes: pieces of each row. owners: its sentence.
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
    """Sentences as arrays.

    Args:
      vocabulary: of the model.
      sentences: at least one, none without words.
      labels: in the order of their ids.
      sequence_length: tokens of every row, [CLS] and [SEP] included; 3 or more.

    Returns:
      int32 [rows, sequence_length]: `input_word_ids`, `input_mask`, `input_type_ids`
      (zeros), `word_starts` (1 at the first piece of a word: in row-major order these
      are all words in their order), `label_ids` (0 but at the first pieces of words
      that have a tag); `example_index` int32 [rows], the sentence of each row.
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
    first = _starts(counts)
    places = layout.rows[first], layout.positions[first]
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
    """The tags of each sentence's words.

    Args:
      sentences: from which the rows were made.
      word_starts: of `tagging_features`, [rows, sequence_length].
      best_labels: label ids at all pieces, [rows, sequence_length].
      labels: in the order of their ids.
    """
    tags = iter([labels[i] for i in best_labels[word_starts == 1].tolist()])
    return [list(itertools.islice(tags, len(s.words))) for s in sentences]


def _encode(vocabulary: Vocabulary, words: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of all words, one after the other, and how many each word has."""
    distinct = list(dict.fromkeys(words))
    encoded = vocabulary.encode_batch(distinct)
    nothing = [vocabulary.unk_id]
    pieces = {word: ids or nothing for word, ids in zip(distinct, encoded, strict=True)}
    counts = np.fromiter((len(pieces[word]) for word in words), np.int64, len(words))
    flat = itertools.chain.from_iterable(pieces[word] for word in words)
    return np.fromiter(flat, np.int32, counts.sum()), counts


def _lay_out(counts: np.ndarray, owners: np.ndarray, window: int) -> _Layout:
    """Places for the pieces of words, given each word's number and sentence."""
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
    """Sizes of words' parts, none longer than the window, and whose part each is."""
    parts = -(-counts // window)
    sizes = np.full(parts.sum(), window)
    sizes[np.cumsum(parts) - 1] = counts - (parts - 1) * window
    return sizes, np.repeat(np.arange(len(counts)), parts)


def _rows(parts: np.ndarray, owners: np.ndarray, window: int) -> np.ndarray:
    """The row of each part: of its own sentence, the last one while there is room."""
    begins = np.diff(owners, prepend=-1) > 0
    for sentence in np.flatnonzero(np.bincount(owners, parts) > window):
        filled = 0
        for part in range(*np.searchsorted(owners, [sentence, sentence + 1])):
            if filled + parts[part] > window:
                begins[part], filled = True, 0
            filled += parts[part]
    return np.cumsum(begins) - 1


def _starts(sizes: np.ndarray) -> np.ndarray:
    """Where each of consecutive runs of these sizes starts."""
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
