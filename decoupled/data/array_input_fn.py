"""From arrays of features to packed batches, for data sets that fit in memory.

Python code of this process makes the batches.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from decoupled.core.compat import tf
from decoupled.data.packing import (
    Arrays,
    Packing,
    Rows,
    SharedBatch,
    balanced_batches,
    fit_batches,
    pack_batch,
    pack_rows,
)


def training_input_fn(
    arrays: Arrays, batch_size: int, seed: int, start_step: int, packing: Packing
) -> Callable:
    """Shuffled batches of arrays [examples, ...], from that of `start_step` on."""

    def batches():
        return training_batches(arrays, batch_size, seed, start_step, packing)

    return lambda params=None: generated_dataset(batches, _signature(arrays, packing))


def training_batches(
    arrays: Arrays, batch_size: int, seed: int, start_step: int, packing: Packing
) -> Iterator[Arrays]:
    """The batches of `training_input_fn`."""
    sizes = arrays["input_mask"].sum(1)
    order = training_order(batch_size, seed, start_step, sizes, packing.order)
    # TensorFlow asks for some batches in advance, also after the last step.
    for places in itertools.islice(order, packing.steps - start_step):
        rows = {name: array[places] for name, array in arrays.items()}
        yield pack_batch(rows, packing)


def training_order(
    batch_size: int, seed: int, start_step: int, sizes: np.ndarray, rows: Rows
) -> Iterator[np.ndarray]:
    """The indices of each batch's examples, without end.

    The order of an epoch is a function of (seed, epoch). A batch may contain the end of
    one epoch and the start of the next. All batches have nearly the same total length
    (`balanced_batches`), and exchange examples where they do not fit into `rows`
    (`fit_batches`). `sizes` are the tokens of each example.
    """
    order = {}
    for step in itertools.count(start_step):
        places = np.arange(step * batch_size, (step + 1) * batch_size)
        epochs, offsets = divmod(places, len(sizes))
        if (batch_epochs := tuple(np.unique(epochs))) != tuple(order):
            order = {
                epoch: order[epoch]
                if epoch in order
                else _epoch_order(batch_size, seed, int(epoch), sizes, rows)
                for epoch in batch_epochs
            }
        yield np.array(
            [order[epoch][i] for epoch, i in zip(epochs, offsets, strict=True)]
        )


def evaluation_input_fn(
    parts: Iterable[tuple[Arrays, list[list[int]]]],
    packing: Packing,
) -> Callable:
    """The packed rows of several data sets, one after the other.

    `parts` are arrays, and the examples of each of their rows. A batch may have rows of
    two data sets. The next data set is taken from `parts` when all rows of the previous
    one are in batches. The last batch is filled up with empty rows.
    """

    def input_fn(params=None):
        iterator = iter(parts)
        first_part = next(iterator)

        def batches():
            return evaluation_batches(itertools.chain([first_part], iterator), packing)

        return generated_dataset(batches, _signature(first_part[0], packing))

    return input_fn


def evaluation_batches(
    parts: Iterable[tuple[Arrays, list[list[int]]]], packing: Packing
) -> Iterator[Arrays]:
    """The batches of `evaluation_input_fn`."""
    # A row is packed by itself: rows of two data sets may share a batch.
    row_packing = packing._replace(rows=1)
    rows = (
        pack_rows(arrays, [members], row_packing)
        for arrays, plan in parts
        for members in plan
    )
    while batch := list(itertools.islice(rows, packing.rows)):
        empty_rows = packing.rows - len(batch)
        batch += [{n: np.zeros_like(a) for n, a in batch[0].items()}] * empty_rows
        yield {name: np.concatenate([row[name] for row in batch]) for name in batch[0]}


def generated_dataset(
    batches: Callable[[], Iterable[Arrays]], signature: dict[str, tf.TensorSpec]
) -> tf.data.Dataset:
    """A dataset of batches that Python code of this process makes, a few in advance."""
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    # There is nothing to tune, and the tuning thread can delay the end of a session by
    # as long as the session has run, up to a minute (TF 2.15).
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(4).with_options(options)


def _epoch_order(batch_size, seed, epoch, sizes, rows):
    generator = np.random.default_rng([seed, epoch])
    start, body, end = _parts(batch_size, epoch, sizes, generator)
    batches = generator.permutation(body.reshape(-1, batch_size))
    # With a row for each example all batches fit.
    if rows.count < batch_size:

        def parts_of(neighbour: int) -> list[np.ndarray]:
            draw = np.random.default_rng([seed, neighbour])
            return _parts(batch_size, neighbour, sizes, draw)

        # The epoch with the larger part of a shared batch makes it fit.
        shared_batches = []
        if 2 * len(start) >= batch_size:
            shared_batches.append(SharedBatch(start, parts_of(epoch - 1)[2]))
        if 2 * len(end) > batch_size:
            shared_batches.append(SharedBatch(end, parts_of(epoch + 1)[0]))
        fit_batches(batches, sizes, rows, generator, shared_batches)
    return np.concatenate([start, batches.ravel(), end])


def _parts(batch_size, epoch, sizes, generator):
    """An epoch's order in three parts: its share of the batch that it has in common
    with the previous epoch, its own batches, and its share of the next one's first."""
    examples = len(sizes)
    order = generator.permutation(examples)
    # The first examples fill up the last batch of the previous epoch.
    start_size = min(-epoch * examples % batch_size, examples)
    body_size = (examples - start_size) // batch_size * batch_size
    order = balanced_batches(order, sizes, start_size, batch_size, generator)
    return np.split(order, [start_size, start_size + body_size])


def _signature(arrays, packing):
    example = pack_batch({name: array[:1] for name, array in arrays.items()}, packing)
    return {
        name: tf.TensorSpec(array.shape, array.dtype) for name, array in example.items()
    }
