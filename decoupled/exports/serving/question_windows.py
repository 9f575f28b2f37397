"""Makes the windows of `tasks.qa_features` from questions and contexts, in the graph.

For every piece of a context, the characters of the original text that it stands for are
known, so that an answer can be cut from the original text. The characters of all
contexts are numbered consecutively.
"""

import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple

from decoupled.configs import QuestionAnsweringConfig
from decoupled.core.release import tf
from decoupled.data.sentencepiece_file import MARK
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.serving.tagged_words import ends
from decoupled.tasks.qa_features import SPECIALS, WITHOUT_SPACES

_UNICODE = range(0x110000)


class Characters(NamedTuple):
    """The characters of all contexts.

    codes: int32 [characters], code points. offsets: int64 [characters], bytes of the
    own context before each. splits: int64 [batch + 1], first character of each context.
    """

    codes: tf.Tensor
    offsets: tf.Tensor
    splits: tf.Tensor


class Pieces(NamedTuple):
    """The pieces of all contexts.

    ids: int32 [pieces]. starts, ends: int64 [pieces], the characters that a piece
    stands for. splits: int64 [batch + 1], first piece of each context.
    """

    ids: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    splits: tf.Tensor


class Windows(NamedTuple):
    """Windows of all questions; those of a question are consecutive.

    question: int64 [windows], index of the question. packed: the encoder's inputs
      [windows, length]. starts, ends: int64 [windows, length], characters of a piece of
      the context; 0 for other pieces. may_be_middle: bool [windows, length], whether no
      other window shows more context around the piece.
    """

    question: tf.Tensor
    packed: dict[str, tf.Tensor]
    starts: tf.Tensor
    ends: tf.Tensor
    may_be_middle: tf.Tensor


def character_class(members: Iterable[int]) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function int32 [...] -> bool [...]: is a code point among these, in order?"""
    limits = [limit for code in members for limit in (code, code + 1)]
    table = tf.constant(limits, tf.int32)

    def contains(codes: tf.Tensor) -> tf.Tensor:
        found = tf.searchsorted(table, tf.reshape(codes, [-1]), side="right")
        return tf.reshape(found % 2 == 1, tf.shape(codes))

    return contains


def characters(contexts: tf.Tensor) -> Characters:
    """The characters of UTF-8 texts, string [batch]."""
    codes, offsets = tf.strings.unicode_decode_with_offsets(contexts, "UTF-8")
    return Characters(codes.values, offsets.values, codes.row_splits)


class ContextPieces:
    """As `tasks.qa_features.context_pieces`, for a batch of texts."""

    def __init__(self, vocabulary: Vocabulary, tokenizer):
        self._tokenizer = tokenizer
        self._space_id = vocabulary.piece_to_id(MARK)
        self._unk_id = vocabulary.unk_id
        is_mark = (c for c in _UNICODE if unicodedata.category(chr(c))[0] == "M")
        self._is_mark = character_class(list(is_mark))
        alone = (c for first, last in WITHOUT_SPACES for c in range(first, last + 1))
        self._has_no_spaces = character_class(list(alone))

    def __call__(self, contexts: tf.Tensor, text: Characters) -> Pieces:
        """The pieces of string [batch], whose characters are `text`."""
        tokens, first, limit = self._tokenizer.tokenize_with_offsets(contexts)
        owner = tokens.value_rowids()
        longest = tf.reduce_max(tf.concat([tf.strings.length(contexts), [0]], axis=0))
        stride = tf.cast(longest, tf.int64) + 1
        rows = tf.range(tf.size(contexts, tf.int64))
        text_rows = tf.repeat(rows, text.splits[1:] - text.splits[:-1])
        keys = text_rows * stride + text.offsets

        def characters_before(offsets: tf.Tensor) -> tf.Tensor:
            found = tf.searchsorted(keys, owner * stride + offsets, side="left")
            return tf.cast(found, tf.int64)

        starts = characters_before(first.values)
        limits = characters_before(limit.values)
        empty = (starts == limits) & (tokens.values != self._space_id)
        text_ends = tf.gather(text.splits[1:], owner)
        limits = tf.where(empty, tf.minimum(starts + 1, text_ends), limits)
        limits = _running_maximum(limits)
        return self._cut_unknown(
            Pieces(tokens.values, starts, limits, tokens.row_splits), text
        )

    def _cut_unknown(self, pieces: Pieces, text: Characters) -> Pieces:
        """Cuts runs of unknown characters where an answer may begin or end."""
        alone = self._has_no_spaces(text.codes)
        beside = alone | tf.concat([[False], alone[:-1]], axis=0)[: tf.size(alone)]
        may_cut = beside & ~self._is_mark(text.codes)
        places = tf.concat([tf.where(may_cut)[:, 0], [0]], axis=0)
        before = ends(may_cut)
        unknown = (pieces.ids == self._unk_id) & (pieces.ends - pieces.starts > 1)
        inner = tf.where(unknown, pieces.starts + 1, pieces.ends)
        base = tf.gather(before, inner)
        cuts = tf.gather(before, pieces.ends) - base
        part_ends = ends(cuts + 1)
        owner = tf.repeat(tf.range(tf.size(cuts, tf.int64)), cuts + 1)
        number = tf.range(tf.size(owner, tf.int64)) - tf.gather(part_ends, owner)
        last = tf.size(places, tf.int64) - 1
        place = tf.gather(base, owner) + number
        cut_before = tf.gather(places, tf.clip_by_value(place - 1, 0, last))
        cut_after = tf.gather(places, tf.minimum(place, last))
        is_last = number == tf.gather(cuts, owner)
        return Pieces(
            tf.gather(pieces.ids, owner),
            tf.where(number == 0, tf.gather(pieces.starts, owner), cut_before),
            tf.where(is_last, tf.gather(pieces.ends, owner), cut_after),
            tf.gather(part_ends, pieces.splits),
        )


def _running_maximum(values: tf.Tensor) -> tf.Tensor:
    """The largest of int64 [n] so far, in log(n) steps."""
    count = tf.size(values)

    def double(shift, values):
        shifted = tf.concat([values[:shift], values[: count - shift]], axis=0)
        return 2 * shift, tf.maximum(values, shifted)

    return tf.while_loop(
        lambda shift, _: shift < count,
        double,
        [tf.constant(1), values],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )[1]


def question_windows(
    vocabulary: Vocabulary,
    queries: tf.RaggedTensor,
    pieces: Pieces,
    length: int,
    settings: QuestionAnsweringConfig,
) -> Windows:
    """[CLS] question [SEP] part of the context [SEP], padded to the longest window.

    Args:
      vocabulary: of the model.
      queries: int32 [batch, (pieces)], of questions.
      pieces: of the contexts.
      length: most tokens of a window.
      settings: of the task.
    """
    asked = tf.minimum(queries.row_lengths(), settings.max_question_length)
    totals = pieces.splits[1:] - pieces.splits[:-1]
    room, stride = length - asked - SPECIALS, settings.doc_stride
    counts = -(-tf.maximum(totals - room, 0) // stride) + 1
    own = tf.repeat(tf.range(tf.size(counts, tf.int64)), counts)
    number = tf.range(tf.size(own, tf.int64)) - tf.gather(ends(counts), own)
    first = number * stride
    sizes = tf.minimum(tf.gather(totals, own) - first, tf.gather(room, own))
    asked = tf.gather(asked, own)[:, tf.newaxis]
    begin = asked + SPECIALS - 1
    end = begin + sizes[:, tf.newaxis]
    longest = tf.reduce_max(tf.concat([end[:, 0] + 1, [1]], axis=0))
    columns = tf.range(longest)[tf.newaxis, :]
    in_query = (columns > 0) & (columns <= asked)
    in_text = (columns >= begin) & (columns < end)
    within = columns - begin
    text_places = tf.gather(pieces.splits, own) + first
    text_places = text_places[:, tf.newaxis] + within
    query_places = tf.gather(queries.row_splits, own)[:, tf.newaxis] + columns - 1
    ids = tf.where(columns <= end, vocabulary.sep_id, vocabulary.pad_id)
    ids = tf.where(columns == 0, vocabulary.cls_id, ids)
    ids = tf.where(in_query, _at(queries.values, query_places, in_query), ids)
    ids = tf.where(in_text, _at(pieces.ids, text_places, in_text), ids)
    second = (columns >= begin) & (columns <= end)
    packed = {
        "input_word_ids": ids,
        "input_mask": tf.cast(columns <= end, tf.int32),
        "input_type_ids": tf.cast(second, tf.int32),
    }
    shown = _shown(within, sizes[:, tf.newaxis], length)
    best = _shows_most(shown, text_places, in_text, tf.size(pieces.ids, tf.int64))
    character_starts, character_ends = (
        _at(field, text_places, in_text) for field in (pieces.starts, pieces.ends)
    )
    return Windows(own, packed, character_starts, character_ends, best)


def _at(values: tf.Tensor, places: tf.Tensor, inside: tf.Tensor) -> tf.Tensor:
    """values[places] where `inside`, else 0."""
    padded = tf.concat([values, tf.zeros([1], values.dtype)], axis=0)
    found = tf.gather(padded, tf.where(inside, places, 0))
    return tf.where(inside, found, tf.zeros([], values.dtype))


def _shown(within: tf.Tensor, sizes: tf.Tensor, length: int) -> tf.Tensor:
    """How much context a window shows around a piece: the smaller side, then the size
    of the window."""
    return tf.minimum(within, sizes - 1 - within) * (length + 1) + sizes


def _shows_most(
    shown: tf.Tensor, places: tf.Tensor, in_text: tf.Tensor, count: tf.Tensor
) -> tf.Tensor:
    """bool [windows, length]: whether a window shows most context around a piece.

    The first of equal windows is chosen.

    Args:
      shown: int64 [windows, length], from `_shown`. places: int64 [windows, length],
        the number of the piece, below `count`.
    """
    # All other positions share the number after that of the last piece.
    keys = tf.where(in_text, places, count)
    most = tf.math.unsorted_segment_max(shown, keys, count + 1)
    equal = in_text & (shown == tf.gather(most, keys))
    windows = tf.range(tf.shape(shown, tf.int64)[0])[:, tf.newaxis]
    windows = tf.broadcast_to(windows, tf.shape(shown))
    candidates = tf.where(equal, windows, tf.int64.max)
    chosen = tf.math.unsorted_segment_min(candidates, keys, count + 1)
    return equal & (windows == tf.gather(chosen, keys))
