"""Records -> sequences of one length, `[CLS] chunk [SEP]`, in the order of training.

The documents of a shard are joined, with [SEP] between them, and cut into chunks of
sequence_length - 2 tokens. The last chunk of a shard is padded. Each epoch contains
every token exactly once.

The order is computed in NumPy. The language of sequence number g of a run is a function
of (seed, g). The n-th sequence of a language lies in epoch n // q, where q is the
number of its chunks. The order of its shards within an epoch is a function of (seed,
language, epoch). Therefore the position in every language after any number of sequences
follows from counting draws, and a resumed run opens the right shards at once.
"""

import functools
import hashlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from decoupled.configs import SamplingConfig
from decoupled.core.errors import UserError
from decoupled.core.release import tf, without_autograph
from decoupled.corpora.sampling import LanguageRow, language_rows, language_shares
from decoupled.data.counters import (
    Stream,
    graph_bits,
    graph_permutation,
    numpy_bits,
    numpy_permutation,
    shift_right,
)
from decoupled.data.reading import load_shard
from decoupled.data.records import LanguageRecords, RecordsManifest, Shard
from decoupled.data.vocabulary import Vocabulary

TRAIN = "train"
EVAL = "eval"

# Draws are compared with thresholds in [0, 2**32].
_DRAW_BITS = 32
# Draws that are counted at once: arrays of 512 KiB stay in a core's cache.
_COUNTED_AT_ONCE = 1 << 16
_GUIDE_BITS = 16
_FOREVER = np.iinfo(np.int64).max
# Draws per operation, whose overhead is thus shared by many draws.
_DRAWS_AT_ONCE = 4096

# The number of a shard, int64 -> its chunks, int32 [chunks, sequence_length].
_Load = Callable[[tf.Tensor], tf.Tensor]


class Position(NamedTuple):
    """The next chunk of a language: its epoch, the rank of the shard in the order of
    the epoch, and the number of chunks of this shard that were already taken."""

    epoch: int
    rank: int
    offset: int


def chunk_count(shard: Shard, sequence_length: int) -> int:
    """How many sequences a shard gives in one epoch; see `sequences.chunks`."""
    return -(-(shard.tokens + shard.records - 1) // (sequence_length - 2))


def chunk_counts(entry: LanguageRecords, sequence_length: int) -> np.ndarray:
    """`chunk_count` of each shard."""
    counts = [chunk_count(shard, sequence_length) for shard in entry.files]
    return np.array(counts, np.int64)


def language_key(language: str) -> int:
    """A hash of 63 bits for a language, which does not depend on other languages."""
    return int.from_bytes(hashlib.sha256(language.encode()).digest()[:8], "little") >> 1


class SequenceOrder:
    """The order of the training stream: a pure function of the seed.

    languages: those that are drawn, sorted; a language's number is its index here.
    thresholds: int64 [languages]; a draw d in [0, 2**32) belongs to the first language
      whose threshold is above d. No language's interval is empty.
    """

    def __init__(
        self,
        manifest: RecordsManifest,
        sampling: SamplingConfig,
        seed: int,
        sequence_length: int,
    ):
        train = manifest.splits.get(TRAIN, {})
        shares = _shares(manifest, sampling)
        self.languages = tuple(sorted(name for name in train if shares.get(name)))
        self.seed = seed
        self.entries = [train[name] for name in self.languages]
        self.counts = [chunk_counts(entry, sequence_length) for entry in self.entries]
        self.probabilities = np.array([shares[name] for name in self.languages])
        self.thresholds = _thresholds(self.probabilities)
        self._guide = _guide(self.thresholds)

    def draw(self, first: int, count: int) -> np.ndarray:
        """The index in `languages` of each of the sequences [first, first + count)."""
        draws = self._draws(first, count)
        return np.searchsorted(self.thresholds, draws, side="right")

    def counts_before(self, sequence: int) -> np.ndarray:
        """How many of the sequences [0, sequence) each language has.

        About 6 ns per sequence: a million steps of 512 sequences take 3 s.
        """
        is_undecided = self._guide < 0
        cells = np.zeros(len(self._guide), np.int64)
        totals = np.zeros(len(self.languages), np.int64)
        for first in range(0, sequence, _COUNTED_AT_ONCE):
            draws = self._draws(first, min(_COUNTED_AT_ONCE, sequence - first))
            upper_bits = draws >> (_DRAW_BITS - _GUIDE_BITS)
            # The upper bits decide most draws: counting them is enough.
            cells += np.bincount(upper_bits, minlength=len(cells))
            undecided_draws = draws[is_undecided[upper_bits]]
            languages = np.searchsorted(self.thresholds, undecided_draws, side="right")
            totals += np.bincount(languages, minlength=len(totals))
        np.add.at(totals, self._guide[~is_undecided], cells[~is_undecided])
        return totals

    def position(self, number: int, count: int) -> Position:
        """The position in language `number` after `count` of its sequences."""
        counts = self.counts[number]
        epoch, place = divmod(int(count), int(counts.sum()))
        ends = np.cumsum(counts[self.shard_order(number, epoch)])
        rank = int(np.searchsorted(ends, place, side="right"))
        shard_start = int(ends[rank - 1]) if rank else 0
        return Position(epoch, rank, place - shard_start)

    def shard_order(self, number: int, epoch: int) -> np.ndarray:
        return numpy_permutation(
            len(self.counts[number]),
            self.seed,
            Stream.SHARD_ORDER,
            language_key(self.languages[number]),
            epoch,
        )

    def _draws(self, first: int, count: int) -> np.ndarray:
        bits = numpy_bits(self.seed, Stream.LANGUAGE, np.arange(first, first + count))
        return (bits >> np.uint64(64 - _DRAW_BITS)).astype(np.int64)


def sampling_rows(
    manifest: RecordsManifest,
    sampling: SamplingConfig,
    sequence_length: int,
    sequences: int,
) -> list[LanguageRow]:
    """The effect of language sampling on a run of `sequences`, a row per language."""
    train = manifest.splits.get(TRAIN, {})
    epoch = {
        name: int(chunk_counts(entry, sequence_length).sum())
        for name, entry in train.items()
    }
    return language_rows(
        _sentences(manifest), _shares(manifest, sampling), epoch, sequences
    )


def _shares(manifest, sampling) -> dict[str, float]:
    sentences = _sentences(manifest)
    if not any(sentences.values()):
        raise UserError(f"{manifest.folder}: no text to train on in any language")
    return language_shares(sentences, sampling)


def _sentences(manifest) -> dict[str, int]:
    train = manifest.splits.get(TRAIN, {})
    return {
        name: train[name].sentences if train[name].records else 0
        for name in sorted(train)
    }


def _thresholds(probabilities: np.ndarray) -> np.ndarray:
    widths = np.rint(probabilities * 2**_DRAW_BITS).astype(np.int64)
    # A language may be rare, but never impossible.
    widths = np.maximum(widths, 1)
    widths[np.argmax(widths)] += 2**_DRAW_BITS - widths.sum()
    return np.cumsum(widths)


def _guide(thresholds: np.ndarray) -> np.ndarray:
    """The language for the upper 16 bits of a draw; -1 if it depends on the others."""
    step = 1 << (_DRAW_BITS - _GUIDE_BITS)
    starts = np.arange(1 << _GUIDE_BITS, dtype=np.int64) * step
    low = np.searchsorted(thresholds, starts, side="right")
    high = np.searchsorted(thresholds, starts + step - 1, side="right")
    return np.where(low == high, low, -1)


def chunks(
    ids: tf.RaggedTensor, sequence_length: int, vocabulary: Vocabulary
) -> tf.Tensor:
    """Cuts the documents of a shard into chunks, each of which is a sequence.

    [SEP] is put between documents and at the end of each sequence. A chunk that already
    ends with [SEP] gets no second one; its last position is padding. Every chunk
    contains a token of a document: documents are not empty, so that no two [SEP] are
    adjacent. There are ceil((tokens + documents - 1) / (sequence_length - 2)) chunks.
    """
    width = sequence_length - 2
    ids = tf.cast(ids, tf.int32)
    separators = tf.fill([ids.nrows(), 1], vocabulary.sep_id)
    stream = tf.concat([ids, separators], axis=1).values[:-1]
    length = tf.size(stream)
    count = (length + width - 1) // width
    padding = tf.fill([count * width - length], vocabulary.pad_id)
    body = tf.reshape(tf.concat([stream, padding], 0), [count, width])
    lengths = tf.minimum(width, length - tf.range(count) * width)
    last_ids = tf.gather(body, lengths - 1, batch_dims=1)
    # The closing [SEP] stands after the chunk, unless the chunk ends with one.
    is_separator = tf.equal(last_ids, vocabulary.sep_id)
    end = tf.where(is_separator, lengths, lengths + 1)[:, tf.newaxis]
    rows = tf.pad(body, [[0, 0], [1, 1]], constant_values=vocabulary.pad_id)
    place = tf.range(sequence_length)
    rows = tf.where(tf.equal(place, end), vocabulary.sep_id, rows)
    rows = tf.where(tf.equal(place, 0), vocabulary.cls_id, rows)
    return tf.ensure_shape(rows, [None, sequence_length])


class _Shards(NamedTuple):
    """Shards by number, as tensors [shards]."""

    paths: tf.Tensor
    records: tf.Tensor
    tokens: tf.Tensor


class _Start(NamedTuple):
    """A language's shards in the table, and its position, as int64 scalars.

    shard: number of its first shard; shards: how many it has; key: of its name.
    visit: epoch * shards + rank of the first shard to read; offset: chunks of this
      shard that were already taken.
    """

    shard: tf.Tensor
    shards: tf.Tensor
    key: tf.Tensor
    visit: tf.Tensor
    offset: tf.Tensor


def training_sequences(
    manifest: RecordsManifest,
    order: SequenceOrder,
    first: int,
    sequence_length: int,
    vocabulary: Vocabulary,
) -> tf.data.Dataset:
    """The endless training stream from sequence number `first` on, int32 [length]."""
    table = _shard_table(manifest, order.entries)

    def load(shard):
        return _load_chunks(table, shard, sequence_length, vocabulary)

    # Traced once and called for each language: with a separate graph for each of 104
    # languages, the first batch would take most of a minute.
    @tf.function(autograph=False)
    def one_shard(start):
        return _single_shard_stream(order.seed, start, load)

    @tf.function(autograph=False)
    def many_shards(start):
        return _shard_stream(order.seed, start, load)

    streams = []
    for start in _starts(order, first):
        build = one_shard if start.shards == 1 else many_shards
        streams.append(build(_Start(*(tf.constant(n, tf.int64) for n in start))))
    choices = tf.data.Dataset.range(first, _FOREVER).batch(_DRAWS_AT_ONCE)
    choices = choices.map(functools.partial(_draw, order)).unbatch()
    return tf.data.Dataset.choose_from_datasets(streams, choices)


def evaluation_sequences(
    manifest: RecordsManifest,
    entries: list[LanguageRecords],
    counts: list[int],
    batch_size: int,
    sequence_length: int,
    vocabulary: Vocabulary,
) -> tf.data.Dataset:
    """The first `counts[i]` chunks of each language in order, a batch of one language.

    The last batch of a language is filled with sequences of padding.

    Returns:
      A dataset of (ids int32 [batch_size, length], numbers int64 [batch_size], count
      int64). `numbers` are the indices of the sequences within their language; those
      from `count` on are padding.
    """
    table = _shard_table(manifest, entries)
    sizes = [len(entry.files) for entry in entries]
    ends = np.cumsum(sizes, dtype=np.int64)

    # One graph for all languages: building a pipeline for each of 104 languages would
    # take most of a minute.
    @without_autograph
    def batches(first, end, count):
        rows = tf.data.Dataset.range(first, end).map(
            lambda shard: _load_chunks(table, shard, sequence_length, vocabulary)
        )
        rows = rows.flat_map(tf.data.Dataset.from_tensor_slices).take(count)
        padding = tf.fill([sequence_length], vocabulary.pad_id)
        padding = tf.data.Dataset.from_tensors(padding).repeat(-count % batch_size)
        rows = rows.concatenate(padding).batch(batch_size, drop_remainder=True)
        numbers = tf.data.Dataset.range(count + -count % batch_size)
        numbers = numbers.batch(batch_size, drop_remainder=True)
        return tf.data.Dataset.zip(
            (rows, numbers, tf.data.Dataset.from_tensors(count).repeat())
        )

    starts = (ends - sizes, ends, np.array(counts, np.int64))
    return tf.data.Dataset.from_tensor_slices(starts).flat_map(batches)


def evaluation_count(
    entry: LanguageRecords, sequence_length: int, limit: int = 0
) -> int:
    """How many sequences of a language are evaluated: all, or `limit` if not 0."""
    count = int(chunk_counts(entry, sequence_length).sum())
    return min(count, limit) if limit else count


@without_autograph
def _draw(order: SequenceOrder, numbers: tf.Tensor) -> tf.Tensor:
    draws = shift_right(graph_bits(order.seed, Stream.LANGUAGE, numbers), 32)
    return tf.searchsorted(
        tf.constant(order.thresholds),
        tf.cast(draws, tf.int64),
        side="right",
        out_type=tf.int64,
    )


def _starts(order: SequenceOrder, first: int) -> list[_Start]:
    """The position of every language before sequence number `first`."""
    starts, shard = [], 0
    for number, count in enumerate(order.counts_before(first)):
        shards = len(order.counts[number])
        epoch, rank, offset = order.position(number, count)
        key = language_key(order.languages[number])
        starts.append(_Start(shard, shards, key, epoch * shards + rank, offset))
        shard += shards
    return starts


def _shard_stream(seed: int, start: _Start, load: _Load) -> tf.data.Dataset:
    """The sequences of a language from `start` on; holds one shard in memory."""

    def shard_rows(visit):
        epoch, rank = visit // start.shards, visit % start.shards
        order = graph_permutation(
            start.shards, seed, Stream.SHARD_ORDER, start.key, epoch
        )
        shard = tf.cast(order[rank], tf.int64)
        rows = load(start.shard + shard)
        return _shuffled_rows(seed, start, visit, epoch, shard, rows)

    return tf.data.Dataset.range(start.visit, _FOREVER).flat_map(shard_rows)


def _single_shard_stream(seed: int, start: _Start, load: _Load) -> tf.data.Dataset:
    """As `_shard_stream` for a language with one shard. The shard is read once and kept
    in memory, because a small language is repeated often."""

    def epochs(rows):
        return tf.data.Dataset.range(start.visit, _FOREVER).flat_map(
            lambda epoch: _shuffled_rows(seed, start, epoch, epoch, 0, rows)
        )

    return tf.data.Dataset.from_tensors(start.shard).map(load).flat_map(epochs)


def _shuffled_rows(
    seed: int,
    start: _Start,
    visit: tf.Tensor,
    epoch: tf.Tensor,
    shard: tf.Tensor | int,
    rows: tf.Tensor,
) -> tf.data.Dataset:
    """The rows of a shard in the order of the epoch, without those already taken."""
    order = graph_permutation(
        tf.shape(rows)[0], seed, Stream.CHUNK_ORDER, start.key, epoch, shard
    )
    offset = tf.where(tf.equal(visit, start.visit), start.offset, 0)
    return tf.data.Dataset.from_tensor_slices(tf.gather(rows, order[offset:]))


def _shard_table(manifest: RecordsManifest, entries: list[LanguageRecords]) -> _Shards:
    shards = [shard for entry in entries for shard in entry.files]
    return _Shards(
        tf.constant([manifest.path(shard) for shard in shards]),
        tf.constant([shard.records for shard in shards], tf.int64),
        tf.constant([shard.tokens for shard in shards], tf.int64),
    )


@without_autograph
def _load_chunks(
    table: _Shards, shard: tf.Tensor, sequence_length: int, vocabulary: Vocabulary
) -> tf.Tensor:
    ids = load_shard(
        table.paths[shard], table.records[shard], table.tokens[shard], vocabulary.size
    )
    return chunks(ids, sequence_length, vocabulary)
