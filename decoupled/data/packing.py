"""Sequence packing: a row holds several examples instead of one and padding.

Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination": attention
stays within an example, and positions start anew with each, so that loss and gradients
are those of padded rows. All batches of a run have one shape, which a TPU needs too.

All batches of the run fit into this shape. One that did not would add a row to each.
Hence batches get nearly the same number of tokens (`balanced_batches`), and those that
still do not fit exchange examples with others (`fit_batches`).
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core import console

# Size of the sample of batches from which the smallest number of rows to try is found,
# for each row length. The chosen shape is then checked against all batches.
_SAMPLE = 100
# How often a batch tries to exchange examples before the shape counts as too small.
_ATTEMPTS = 200
# There are fewer of both with more examples in a batch than this, but at least so many.
_EXAMPLES, _FEWEST = 32, 4
# Examples of a data set that are packed together where their order does not matter.
_PACKED_AT_ONCE = 256

Arrays = dict[str, np.ndarray]


class Rows(NamedTuple):
    """What each batch fits into: a number of rows, and the tokens of a row."""

    count: int
    length: int


class Packing(NamedTuple):
    """The shape of packed batches.

    rows: of a batch. length: tokens of a row. examples: the most that a row holds.
    steps: of the run. A batch after its last one may not fit.
    made_for: the shape that the run's batches were made to fit into, if it is another
      one, as in a run that goes on with another mesh.
    """

    rows: int
    length: int
    examples: int
    steps: int
    made_for: Rows | None = None

    @property
    def order(self) -> Rows:
        """The shape on which the order of the examples depends (`fit_batches`)."""
        return self.made_for or Rows(self.rows, self.length)


def pack(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Divides examples into rows by minimum bin slack (MBS' of Fleszar and Hindi 2002).

    A row gets the longest example that is left, and then those of the others that fill
    it best. First fit leaves too much room: 32 pairs of XNLI take 11 rows of 128 tokens
    instead of 10. `sizes` are at least 1 and at most `length`. A row is a list of
    indices.
    """
    sizes, length = [int(size) for size in sizes], int(length)
    left = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    rows = []
    while left:
        first, *others = left
        # Bit t of sums[n] is set if some of the last n examples have t tokens together.
        limit = (1 << (length - sizes[first] + 1)) - 1
        sums = [1]
        for index in reversed(others):
            sums.append((sums[-1] | sums[-1] << sizes[index]) & limit)
        total = sums.pop().bit_length() - 1
        row, left = [first], []
        for index in others:
            without = sums.pop()
            is_taken = sizes[index] <= total and without >> total - sizes[index] & 1
            (row if is_taken else left).append(index)
            total -= sizes[index] if is_taken else 0
        rows.append(row)
    return rows


def plan_packing(
    batches_for: Callable[[Rows], Iterator[np.ndarray]],
    steps: int,
    batch_size: int,
    shortest: int,
    step: int,
    multiple: int,
    cost: Callable[[int], float],
    made_for: Rows | None = None,
) -> Packing:
    """The shape that all batches fit into and that costs the least; shows progress.

    Args:
      batches_for: shape -> the run's batches, int [examples] each: the tokens of its
        examples. They fit into the shape if `fit_batches` could make them fit.
      step: lengths are multiples of it, from `shortest` to twice as much.
      cost: length of a row -> cost of one of its tokens.
      made_for: see `Packing`; None for a new run.
    """
    shortest = -(-shortest // step) * step
    # One example per row always fits.
    most = -(-batch_size // multiple) * multiple
    some = _fewer_if_large(_SAMPLE, batch_size)
    every = max(1, steps // some)
    unchanged = made_for or Rows(most, shortest)
    sample = list(itertools.islice(batches_for(unchanged), 0, None, every))
    shapes = []
    for length in range(shortest, 2 * shortest + 1, step):
        # Shapes that no batch of the sample fits into are not tried.
        fewest = min(len(pack(sizes, length)) for sizes in sample)
        fewest = -(-fewest // multiple) * multiple
        shapes += [Rows(count, length) for count in range(fewest, most + 1, multiple)]

    def preference(rows: Rows) -> tuple[bool, float]:
        # A run that goes on keeps the shape that its batches fill.
        is_other = rows != made_for or rows.count == most
        return is_other, rows.count * rows.length * cost(rows.length)

    shapes.sort(key=preference)
    for rows in shapes:
        examples = _fullest_row(batches_for(made_for or rows), rows, steps)
        if examples:
            other = None if rows == made_for else made_for
            return Packing(*rows, examples, steps, other)
    raise AssertionError("a batch has more examples than batch_size")


def _fewer_if_large(number: int, batch_size: int) -> int:
    """Packing a batch takes the longer, the more examples it has."""
    return max(_FEWEST, int(number * min(1.0, _EXAMPLES / batch_size)))


def _fullest_row(batches: Iterator[np.ndarray], rows: Rows, steps: int) -> int:
    """The most examples in a row of any batch; 0 if one does not fit."""
    fullest = 0
    for sizes in console.track(batches, "planning packed batches", steps):
        packed = pack(sizes, rows.length)
        if len(packed) > rows.count:
            return 0
        fullest = max(fullest, *map(len, packed))
    return fullest


class SharedBatch(NamedTuple):
    """A batch of the end of an epoch and the start of the next.

    part: of this epoch, by descending length. rest: of the other one.
    """

    part: np.ndarray
    rest: np.ndarray


def fit_batches(
    batches: np.ndarray,
    sizes: np.ndarray,
    rows: Rows,
    generator: np.random.Generator,
    shared: Sequence[SharedBatch] = (),
) -> None:
    """Makes the batches of an epoch fit by exchanging examples of one stratum.

    A batch that does not fit exchanges some of its examples with another batch, until
    it fits and the other one does not become too large. Nothing else changes. If no
    exchange helps, this batch stays as it is, and those after it are not made to fit.

    Args:
      batches: int [batches, batch_size], changed in place. All examples of a column are
        of one stratum (`balanced_batches`).
      shared: batches that other epochs leave to this one; `part` is changed in place.
    """
    strata = batches.shape[1]
    if not len(batches):
        return
    parts = [(part, rest, _columns(len(part), strata)) for part, rest in shared]
    parts += [(batch, batch[:0], np.arange(strata)) for batch in batches]

    def fits(*parts: np.ndarray) -> bool:
        batch = np.concatenate(parts)
        return len(pack(sizes[batch], rows.length)) <= rows.count

    def exchange(part: np.ndarray, rest: np.ndarray, columns: np.ndarray) -> bool:
        for _ in range(_fewer_if_large(_ATTEMPTS, strata)):
            other = batches[generator.integers(len(batches))]
            if np.shares_memory(other, part):
                continue
            # From a few examples to nearly all.
            some = np.flatnonzero(generator.random(len(part)) < generator.random())
            theirs = columns[some]
            fitted = fits(other)
            part[some], other[theirs] = other[theirs], part[some]
            if fits(part, rest) and (fits(other) or not fitted):
                return True
            part[some], other[theirs] = other[theirs], part[some]
        return False

    for part, rest, columns in parts:
        if not fits(part, rest) and not exchange(part, rest, columns):
            return


def _columns(count: int, strata: int) -> np.ndarray:
    """The strata of `count` examples that were taken at equal distances."""
    return ((np.arange(count) + 0.5) * strata / max(count, 1)).astype(np.int64)


def pack_batch(arrays: Arrays, packing: Packing) -> Arrays:
    """The examples of a batch in packed rows, by `pack`; see `pack_rows`."""
    plan = pack(arrays["input_mask"].sum(1), packing.length)
    return pack_rows(arrays, plan, packing)


def pack_rows(
    arrays: Arrays, plan: Sequence[Sequence[int]], packing: Packing
) -> Arrays:
    """Examples in packed rows, those of the plan and empty ones behind them.

    `arrays` are [examples, tokens] or [examples]; `input_mask` is 1 at the tokens of an
    example and 0 behind them. `plan` has the indices of each row's examples.

    Returns:
      name -> [rows, length] for arrays of tokens and [rows, examples] for others, zero
      where there is no token and no example. `input_mask` has the number of the example
      that a token belongs to, from 1. Beside the arrays' names there are
        position_ids: int32 [rows, length], of each token in its example;
      and, where examples have a feature that is not of their tokens,
        first_positions: int32 [rows, examples], where each example begins;
        example_weights: float32 [rows, examples], 0 where there is no example; unless
          the arrays have it, 1 elsewhere.
    """
    rows, length, examples, *_ = packing
    whole = {name for name, array in arrays.items() if array.ndim == 1}
    if whole and "example_weights" not in arrays:
        weights = np.ones(len(arrays["input_mask"]), np.float32)
        arrays = {**arrays, "example_weights": weights}
        whole.add("example_weights")
    packed = {
        name: np.zeros((rows, examples if name in whole else length), array.dtype)
        for name, array in arrays.items()
    }
    packed["position_ids"] = np.zeros((rows, length), np.int32)
    if whole:
        packed["first_positions"] = np.zeros((rows, examples), np.int32)
    for row, members in enumerate(plan):
        end = 0
        for number, index in enumerate(members):
            start, end = end, end + arrays["input_mask"][index].sum()
            for name, array in arrays.items():
                if name in whole:
                    packed[name][row, number] = array[index]
                else:
                    packed[name][row, start:end] = array[index, : end - start]
            # Attention stays within equal numbers; 0 is padding.
            packed["input_mask"][row, start:end] = number + 1
            packed["position_ids"][row, start:end] = np.arange(end - start)
            if whole:
                packed["first_positions"][row, number] = start
    return packed


def plan_rows(sizes: np.ndarray, length: int, most: int) -> list[list[int]]:
    """For each row of a whole data set the indices of its examples, at most `most`."""
    plan = []
    # `pack` takes the square of the number of examples.
    for start in range(0, len(sizes), _PACKED_AT_ONCE):
        for row in pack(sizes[start : start + _PACKED_AT_ONCE], length):
            indices = [start + index for index in row]
            plan += [indices[i : i + most] for i in range(0, len(indices), most)]
    return plan


def unpack(
    rows: Sequence[Arrays],
    plan: Sequence[Sequence[int]],
    sizes: np.ndarray,
    of_tokens: bool,
    longest: int,
) -> Arrays:
    """What a graph gave for packed rows, example by example.

    Args:
      rows: name -> [length, ...], or [examples, ...], of each row.
      of_tokens: whether the arrays are of tokens, not of whole examples.
      longest: tokens that an example may have.
    """
    unpacked = {}
    for name, array in rows[0].items():
        shape = (longest, *array.shape[1:]) if of_tokens else array.shape[1:]
        unpacked[name] = np.zeros((len(sizes), *shape), array.dtype)
    for row, members in zip(rows, plan, strict=True):
        end = 0
        for number, index in enumerate(members):
            start, end = end, end + sizes[index]
            for name, array in row.items():
                if of_tokens:
                    unpacked[name][index, : end - start] = array[start:end]
                else:
                    unpacked[name][index] = array[number]
    return unpacked


def balanced_batches(
    order: np.ndarray,
    sizes: np.ndarray,
    first: int,
    batch_size: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """An order of the same examples whose batches have nearly the same total length.

    `order` is a random permutation. The `first` examples fill up the last batch of the
    epoch before, and have all lengths.
    """
    # Every batch gets one example of each stratum of lengths: a long one if it has few
    # tokens so far. Noise as large as the differences within a stratum mixes batches of
    # nearly the same number of tokens, so that no two epochs have the same batches.
    examples = len(order)
    batches = (examples - first) // batch_size
    # Descending; examples of equal length keep their random order.
    order = order[np.argsort(-sizes[order], kind="stable")]
    start, order = _at_equal_distances(order, first)
    end, order = _at_equal_distances(order, examples - first - batches * batch_size)
    body = order.reshape(batch_size, batches)
    totals = np.zeros(batches, np.int64)
    for stratum in body if batches else ():
        noise = generator.uniform(0, np.ptp(sizes[stratum]) + 1, batches)
        stratum[np.argsort(totals + noise)] = stratum.copy()
        totals += sizes[stratum]
    return np.concatenate([start, body.T.ravel(), end])


def _at_equal_distances(order, count):
    """`count` of the elements, and the others."""
    taken = ((np.arange(count) + 0.5) * len(order) / max(count, 1)).astype(np.int64)
    return order[taken], np.delete(order, taken)
