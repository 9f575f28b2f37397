"""Arrays of features to batches, for data sets that fit in memory."""

import itertools
from collections.abc import Callable, Iterable

import numpy as np

from decoupled.compat import tf


def training_input_fn(
    arrays: dict[str, np.ndarray], batch_size: int, seed: int, start_step: int
) -> Callable:
    """Shuffled batches without end; step s is the same wherever a run starts.

    Every epoch is a permutation of its own, a function of (seed, epoch); a batch may
    hold the end of one epoch and the start of the next.

    Args:
      arrays: name -> array [examples, ...].
      batch_size, seed: of the run. start_step: the first batch's step.

    Returns:
      An input_fn.
    """
    examples = _examples(arrays)

    def batches():
        step, order, known_epochs = start_step, {}, ()
        while True:
            places = np.arange(step * batch_size, (step + 1) * batch_size)
            epochs, within = divmod(places, examples)
            if (wanted := tuple(np.unique(epochs))) != known_epochs:
                order = {epoch: _permutation(examples, seed, epoch) for epoch in wanted}
                known_epochs = wanted
            rows = [order[epoch][i] for epoch, i in zip(epochs, within, strict=True)]
            yield {name: array[rows] for name, array in arrays.items()}
            step += 1

    return lambda params=None: _dataset(batches, arrays, batch_size)


def evaluation_input_fn(
    parts: Iterable[dict[str, np.ndarray]], batch_size: int
) -> Callable:
    """Data sets one after the other, each once, in order and in batches of its own.

    The last batch of each is padded with rows of zeros. A data set is asked for when
    the one before is batched, so that `parts` may make them one by one.
    """

    def input_fn(params=None):
        waiting = iter(parts)
        first = next(waiting)

        def batches():
            for arrays in itertools.chain([first], waiting):
                yield from _padded_batches(arrays, batch_size)

        return _dataset(batches, first, batch_size)

    return input_fn


def _padded_batches(arrays, batch_size):
    for start in range(0, _examples(arrays), batch_size):
        rows = {k: v[start : start + batch_size] for k, v in arrays.items()}
        missing = batch_size - _examples(rows)
        yield {
            name: np.pad(row, [(0, missing)] + [(0, 0)] * (row.ndim - 1))
            for name, row in rows.items()
        }


def _examples(arrays):
    return len(next(iter(arrays.values())))


def _permutation(examples, seed, epoch):
    return np.random.default_rng([seed, int(epoch)]).permutation(examples)


def _dataset(batches, arrays, batch_size):
    signature = {
        name: tf.TensorSpec([batch_size, *array.shape[1:]], array.dtype)
        for name, array in arrays.items()
    }
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    # Nothing is left to tune, and the thread that tunes can hold up a session's end for
    # as long as the session has run, up to a minute (TF 2.15).
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(4).with_options(options)
