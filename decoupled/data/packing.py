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

# Size of the sample of batches that gives the smallest number of rows to try for each
# row length. The chosen shape is then checked against all batches.
_SAMPLE = 100
# How often a batch tries to exchange examples before the shape counts as too small.
_ATTEMPTS = 200
# Both are smaller for batches of more than `_EXAMPLES`, but at least `_MIN_COUNT`.
_EXAMPLES, _MIN_COUNT = 32, 4
# Number of examples that are packed together where their order does not matter.
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
    indices = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    rows = []
    while indices:
        first, *candidates = indices
        # Bit t of sums[n] is set if some of the last n examples have t tokens together.
        limit = (1 << (length - sizes[first] + 1)) - 1
        sums = [1]
        for index in reversed(candidates):
            sums.append((sums[-1] | sums[-1] << sizes[index]) & limit)
        total = sums.pop().bit_length() - 1
        row, indices = [first], []
        for index in candidates:
            other_sums = sums.pop()
            is_taken = sizes[index] <= total and other_sums >> total - sizes[index] & 1
            (row if is_taken else indices).append(index)
            total -= sizes[index] if is_taken else 0
        rows.append(row)
    return rows


def plan_packing(
    batches_for: Callable[[Rows], Iterator[np.ndarray]],
    steps: int,
    batch_size: int,
    min_length: int,
    step: int,
    multiple: int,
    cost: Callable[[int], float],
    made_for: Rows | None = None,
) -> Packing:
    """The shape that all batches fit into and that costs the least; shows progress.

    Args:
      batches_for: shape -> the run's batches, int [examples] each: the tokens of its
        examples. They fit into the shape if `fit_batches` could make them fit.
      step: lengths are multiples of it, from `min_length` to twice as much.
      cost: length of a row -> cost of one of its tokens.
      made_for: see `Packing`; None for a new run.
    """
    min_length = -(-min_length // step) * step
    # One example per row always fits.
    max_rows = -(-batch_size // multiple) * multiple
    sample_size = _fewer_if_large(_SAMPLE, batch_size)
    stride = max(1, steps // sample_size)
    sample_shape = made_for or Rows(max_rows, min_length)
    sample = list(itertools.islice(batches_for(sample_shape), 0, None, stride))
    shapes = []
    for length in range(min_length, 2 * min_length + 1, step):
        # Shapes that no batch of the sample fits into are not tried.
        min_rows = min(len(pack(sizes, length)) for sizes in sample)
        min_rows = -(-min_rows // multiple) * multiple
        shapes += [Rows(n, length) for n in range(min_rows, max_rows + 1, multiple)]

    def preference(rows: Rows) -> tuple[bool, float]:
        # A run that goes on keeps the shape that its batches fill.
        is_other = rows != made_for or rows.count == max_rows
        return is_other, rows.count * rows.length * cost(rows.length)

    shapes.sort(key=preference)
    for rows in shapes:
        examples = _fullest_row(batches_for(made_for or rows), rows, steps)
        if examples:
            made_for_other = None if rows == made_for else made_for
            return Packing(*rows, examples, steps, made_for_other)
    raise AssertionError("a batch has more examples than batch_size")


def _fewer_if_large(number: int, batch_size: int) -> int:
    """Packing a batch takes the longer, the more examples it has."""
    return max(_MIN_COUNT, int(number * min(1.0, _EXAMPLES / batch_size)))


def _fullest_row(batches: Iterator[np.ndarray], rows: Rows, steps: int) -> int:
    """The most examples in a row of any batch; 0 if one does not fit."""
    max_examples = 0
    for sizes in console.track(batches, "planning packed batches", steps):
        packed_rows = pack(sizes, rows.length)
        if len(packed_rows) > rows.count:
            return 0
        max_examples = max(max_examples, *map(len, packed_rows))
    return max_examples


class SharedBatch(NamedTuple):
    """A batch of the end of an epoch and the start of the next.

    part: of this epoch, by descending length. other_part: of the other epoch.
    """

    part: np.ndarray
    other_part: np.ndarray


def fit_batches(
    batches: np.ndarray,
    sizes: np.ndarray,
    rows: Rows,
    generator: np.random.Generator,
    shared_batches: Sequence[SharedBatch] = (),
) -> None:
    """Makes the batches of an epoch fit by exchanging examples of one stratum.

    A batch that does not fit exchanges some of its examples with another batch, until
    it fits and the other one does not become too large. Nothing else changes. If no
    exchange helps, this batch stays as it is, and those after it are not made to fit.

    Args:
      batches: int [batches, batch_size], changed in place. All examples of a column are
        of one stratum (`balanced_batches`).
      shared_batches: those that other epochs leave; each `part` is changed in place.
    """
    strata = batches.shape[1]
    if not len(batches):
        return
    parts = [(*shared, _columns(len(shared.part), strata)) for shared in shared_batches]
    parts += [(batch, batch[:0], np.arange(strata)) for batch in batches]

    def fits(*parts: np.ndarray) -> bool:
        batch = np.concatenate(parts)
        return len(pack(sizes[batch], rows.length)) <= rows.count

    def exchange(part: np.ndarray, other_part: np.ndarray, columns: np.ndarray) -> bool:
        for _ in range(_fewer_if_large(_ATTEMPTS, strata)):
            other_batch = batches[generator.integers(len(batches))]
            if np.shares_memory(other_batch, part):
                continue
            # From a few examples to nearly all.
            places = np.flatnonzero(generator.random(len(part)) < generator.random())
            targets = columns[places]
            other_fitted = fits(other_batch)
            part[places], other_batch[targets] = other_batch[targets], part[places]
            if fits(part, other_part) and (fits(other_batch) or not other_fitted):
                return True
            part[places], other_batch[targets] = other_batch[targets], part[places]
        return False

    for part, other_part, columns in parts:
        if not fits(part, other_part) and not exchange(part, other_part, columns):
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
    scalars = {name for name, array in arrays.items() if array.ndim == 1}
    if scalars and "example_weights" not in arrays:
        weights = np.ones(len(arrays["input_mask"]), np.float32)
        arrays = {**arrays, "example_weights": weights}
        scalars.add("example_weights")
    packed_arrays = {
        name: np.zeros((rows, examples if name in scalars else length), array.dtype)
        for name, array in arrays.items()
    }
    packed_arrays["position_ids"] = np.zeros((rows, length), np.int32)
    if scalars:
        packed_arrays["first_positions"] = np.zeros((rows, examples), np.int32)
    for row, members in enumerate(plan):
        end = 0
        for number, index in enumerate(members):
            start, end = end, end + arrays["input_mask"][index].sum()
            for name, array in arrays.items():
                if name in scalars:
                    packed_arrays[name][row, number] = array[index]
                else:
                    packed_arrays[name][row, start:end] = array[index, : end - start]
            # Attention stays within equal numbers; 0 is padding.
            packed_arrays["input_mask"][row, start:end] = number + 1
            packed_arrays["position_ids"][row, start:end] = np.arange(end - start)
            if scalars:
                packed_arrays["first_positions"][row, number] = start
    return packed_arrays


def plan_rows(sizes: np.ndarray, length: int, limit: int) -> list[list[int]]:
    """The indices of each row's examples, at most `limit`, for a whole data set."""
    plan = []
    # `pack` takes the square of the number of examples.
    for start in range(0, len(sizes), _PACKED_AT_ONCE):
        for row in pack(sizes[start : start + _PACKED_AT_ONCE], length):
            indices = [start + index for index in row]
            plan += [indices[i : i + limit] for i in range(0, len(indices), limit)]
    return plan


def unpack(
    rows: Sequence[Arrays],
    plan: Sequence[Sequence[int]],
    sizes: np.ndarray,
    of_tokens: bool,
    max_length: int,
) -> Arrays:
    """What a graph gave for packed rows, example by example.

    Args:
      rows: name -> [length, ...], or [examples, ...], of each row.
      of_tokens: whether the arrays are of tokens, not of whole examples.
      max_length: the most tokens of an example.
    """
    arrays = {}
    for name, array in rows[0].items():
        shape = (max_length, *array.shape[1:]) if of_tokens else array.shape[1:]
        arrays[name] = np.zeros((len(sizes), *shape), array.dtype)
    for row, members in zip(rows, plan, strict=True):
        end = 0
        for number, index in enumerate(members):
            start, end = end, end + sizes[index]
            for name, array in row.items():
                if of_tokens:
                    arrays[name][index, : end - start] = array[start:end]
                else:
                    arrays[name][index] = array[number]
    return arrays


def balanced_batches(
    order: np.ndarray,
    sizes: np.ndarray,
    offset: int,
    batch_size: int,
    generator: np.random.Generator,
) -> np.ndarray:
    """An order of the same examples whose batches have nearly the same total length.

    `order` is a random permutation. `offset` examples of all lengths fill up the last
    batch of the previous epoch.
    """
    # Every batch gets one example of each stratum of lengths: a long one if it has few
    # tokens so far. Noise as large as the differences within a stratum mixes batches of
    # nearly the same number of tokens, so that no two epochs have the same batches.
    examples = len(order)
    batches = (examples - offset) // batch_size
    # Descending; examples of equal length keep their random order.
    order = order[np.argsort(-sizes[order], kind="stable")]
    start, order = _at_equal_distances(order, offset)
    end, order = _at_equal_distances(order, examples - offset - batches * batch_size)
    body = order.reshape(batch_size, batches)
    totals = np.zeros(batches, np.int64)
    for stratum in body if batches else ():
        noise = generator.uniform(0, np.ptp(sizes[stratum]) + 1, batches)
        stratum[np.argsort(totals + noise)] = stratum.copy()
        totals += sizes[stratum]
    return np.concatenate([start, body.T.ravel(), end])


def _at_equal_distances(order, count):
    """`count` of the elements, and the others."""
    places = ((np.arange(count) + 0.5) * len(order) / max(count, 1)).astype(np.int64)
    return order[places], np.delete(order, places)
