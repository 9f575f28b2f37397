"""The order of the sequences in the training stream, computed in NumPy.

The language of sequence number g of a run is a function of (seed, g). The n-th sequence
of a language lies in epoch n // q, where q is the number of its chunks. The order of
its shards within an epoch is a function of (seed, language, epoch). Therefore the
position in every language after any number of sequences follows from counting draws,
and a resumed run opens the right shards at once.
"""

import hashlib
from typing import NamedTuple

import numpy as np

from decoupled.configs import SamplingConfig
from decoupled.core.errors import UserError
from decoupled.corpora.sampling import LanguageRow, language_rows, language_shares
from decoupled.data.counters import Stream, numpy_bits, numpy_permutation
from decoupled.data.records import LanguageRecords, RecordsManifest, Shard

TRAIN = "train"
EVAL = "eval"

# Draws are compared with thresholds in [0, 2**32].
_DRAW_BITS = 32
# Draws counted at once: arrays of 512 KiB stay in a core's cache.
_CHUNK = 1 << 16
_GUIDE_BITS = 16


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

    Limits on epochs refer to `sequences`, those of the whole run.

    languages: those that are drawn, sorted; a language's number is its index here.
    undrawn_languages: those in the manifest without text, or excluded by their weight.
    thresholds: int64 [languages]; a draw d in [0, 2**32) belongs to the first language
      whose threshold is above d. No language's interval is empty.
    """

    def __init__(
        self,
        manifest: RecordsManifest,
        sampling: SamplingConfig,
        seed: int,
        sequence_length: int,
        sequences: int | None = None,
    ):
        train = manifest.splits.get(TRAIN, {})
        shares = _shares(manifest, sampling, sequence_length, sequences)
        self.languages = tuple(sorted(name for name in train if shares.get(name)))
        self.undrawn_languages = tuple(sorted(set(train) - set(self.languages)))
        self.seed = seed
        self.entries = [train[name] for name in self.languages]
        self.counts = [chunk_counts(entry, sequence_length) for entry in self.entries]
        self.probabilities = np.array([shares[name] for name in self.languages])
        self.thresholds = _thresholds(self.probabilities)
        self._guide = _guide(self.thresholds)

    def draw(self, first: int, count: int) -> np.ndarray:
        """Language numbers of sequences [first, first + count)."""
        draws = self._draws(first, count)
        return np.searchsorted(self.thresholds, draws, side="right")

    def counts_before(self, sequence: int) -> np.ndarray:
        """How many of the sequences [0, sequence) each language has.

        About 6 ns per sequence: a million steps of 512 sequences take 3 s.
        """
        undecided = self._guide < 0
        cells = np.zeros(len(self._guide), np.int64)
        total = np.zeros(len(self.languages), np.int64)
        for first in range(0, sequence, _CHUNK):
            draws = self._draws(first, min(_CHUNK, sequence - first))
            upper = draws >> (_DRAW_BITS - _GUIDE_BITS)
            # The upper bits decide most draws: counting them is enough.
            cells += np.bincount(upper, minlength=len(cells))
            unsure = draws[undecided[upper]]
            exact = np.searchsorted(self.thresholds, unsure, side="right")
            total += np.bincount(exact, minlength=len(total))
        np.add.at(total, self._guide[~undecided], cells[~undecided])
        return total

    def position(self, number: int, taken: int) -> Position:
        """The position in language `number` after `taken` of its sequences."""
        counts = self.counts[number]
        epoch, within = divmod(int(taken), int(counts.sum()))
        ends = np.cumsum(counts[self.shard_order(number, epoch)])
        rank = int(np.searchsorted(ends, within, side="right"))
        before = int(ends[rank - 1]) if rank else 0
        return Position(epoch, rank, within - before)

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
    shares = _shares(manifest, sampling, sequence_length, sequences)
    return language_rows(
        _sentences(manifest),
        shares,
        _epochs(manifest, sequence_length),
        sequences,
    )


def _shares(manifest, sampling, sequence_length, sequences) -> dict[str, float]:
    sentences = _sentences(manifest)
    if not any(sentences.values()):
        raise UserError(f"{manifest.folder}: no text to train on in any language")
    epoch = _epochs(manifest, sequence_length)
    return language_shares(sentences, sampling, epoch, sequences, "sequences")


def _sentences(manifest) -> dict[str, int]:
    train = manifest.splits.get(TRAIN, {})
    return {
        name: train[name].sentences if train[name].records else 0
        for name in sorted(train)
    }


def _epochs(manifest, sequence_length) -> dict[str, int]:
    train = manifest.splits.get(TRAIN, {})
    return {
        name: int(chunk_counts(train[name], sequence_length).sum())
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
