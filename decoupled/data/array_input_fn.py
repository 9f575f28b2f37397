"""From arrays of features to batches, for data sets that fit in memory.

Batches are made by Python code of this process. The workers of a TPU slice of several
hosts are C++ servers, which cannot call Python ("No registered 'PyFunc'"). For them
batches are first written as TFRecords, which tf.data reads without Python. A record is
a `tf.train.Example` with the bytes of each array.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from decoupled.core import files
from decoupled.core.compat import tf
from decoupled.core.release import without_autograph
from decoupled.data.packing import (
    Packing,
    Rows,
    SharedBatch,
    balanced_batches,
    fit_batches,
    pack_batch,
)

# Batches in a file. A run that is killed while writing loses those of one file.
PER_FILE = 500
_COMPRESSION, _LEVEL = "ZLIB", 1
# Number of batches that are sorted by length together: enough for rows of nearly equal
# length, but at most a quarter of an epoch. If the whole epoch were sorted, batches
# would contain the same rows in every epoch, and rows with the same label would come
# together where labels depend on the length.
_GROUP, _GROUPS_PER_EPOCH = 50, 4

Arrays = dict[str, np.ndarray]


def training_input_fn(
    arrays: Arrays,
    batch_size: int,
    seed: int,
    start_step: int,
    lengths: Sequence[int] = (),
    packing: Packing | None = None,
) -> Callable:
    """Endless shuffled batches; that of a step does not depend on where a run starts.

    Args:
      arrays: name -> array [examples, ...].
      batch_size, seed: of the run. start_step: the first batch's step.
      lengths: ascending. If given, rows are grouped by length (`training_order`), and a
        batch is cut to the shortest length that its longest row fits into. Otherwise
        batches keep the length of the arrays.
      packing: the shape of packed batches (`pack_batch`), which end with the run; None
        for rows of one example.

    Returns:
      An input_fn.
    """

    def batches():
        return training_batches(arrays, batch_size, seed, start_step, lengths, packing)

    if packing is not None:
        return lambda params=None: generated_dataset(
            batches, _packed_signature(arrays, packing)
        )
    return lambda params=None: _dataset(
        batches, arrays, batch_size, any_length=bool(lengths)
    )


def training_batches(
    arrays: Arrays,
    batch_size: int,
    seed: int,
    start_step: int,
    lengths: Sequence[int] = (),
    packing: Packing | None = None,
) -> Iterator[Arrays]:
    """The batches of `training_input_fn`."""
    sizes = arrays["input_mask"].sum(1) if lengths or packing is not None else None
    fitting = last = None
    if packing is not None:
        fitting = packing.order
        # TensorFlow asks for some batches in advance, also after the last step.
        last = packing.steps - start_step
    order = training_order(
        _examples(arrays), batch_size, seed, start_step, sizes, fitting
    )
    for places in itertools.islice(order, last):
        rows = {name: array[places] for name, array in arrays.items()}
        if packing is not None:
            yield pack_batch(rows, packing)
        else:
            yield _cut(rows, lengths) if lengths else rows


def training_order(
    examples: int,
    batch_size: int,
    seed: int,
    start_step: int,
    sizes: np.ndarray | None = None,
    packed: Rows | None = None,
) -> Iterator[np.ndarray]:
    """The indices of each batch's rows, without end.

    Every epoch has a permutation of its own, a function of (seed, epoch). A batch may
    contain the end of one epoch and the start of the next.

    Args:
      examples: rows in all. batch_size, seed, start_step: see `training_input_fn`.
      sizes: int [examples], tokens of each row. If given, a batch has rows of similar
        length: groups of `_GROUP` batches of the permutation (fewer in a short epoch)
        are sorted by length and divided into batches again, and all batches of the
        epoch are shuffled. The batches that an epoch shares with its neighbours stay
        random.
      packed: rows that every batch is to fit into. If given, batches have nearly the
        same total length instead (`balanced_batches`), also shuffled, and exchange
        examples where they do not fit (`fit_batches`).
    """
    order = {}
    for step in itertools.count(start_step):
        places = np.arange(step * batch_size, (step + 1) * batch_size)
        epochs, within = divmod(places, examples)
        if (wanted := tuple(np.unique(epochs))) != tuple(order):
            order = {
                epoch: order[epoch]
                if epoch in order
                else _epoch_order(examples, batch_size, seed, int(epoch), sizes, packed)
                for epoch in wanted
            }
        yield np.array(
            [order[epoch][i] for epoch, i in zip(epochs, within, strict=True)]
        )


def recorded_training_input_fn(
    arrays: Arrays,
    batch_size: int,
    seed: int,
    steps: range,
    folder: str,
    track: Callable,
    packing: Packing | None = None,
) -> Callable:
    """The batches of `training_input_fn` through files, for hosts that run no Python.

    Args:
      arrays, batch_size, seed, packing: as for `training_input_fn`.
      steps: whose batches are needed; this function writes the missing ones.
      folder: gets a folder for this training set, batch size and seed.
      track: as `console.track`.
    """
    paths = _write_training_batches(
        os.path.join(folder, _fingerprint(arrays, batch_size, seed, packing)),
        lambda step: training_batches(arrays, batch_size, seed, step, (), packing),
        steps.start,
        steps.stop,
        track,
    )
    signature = _signature(arrays, batch_size)
    if packing is not None:
        signature = _packed_signature(arrays, packing)
    skip = steps.start % PER_FILE
    return lambda params=None: _read_batches(paths, signature, skip).prefetch(4)


def evaluation_input_fn(
    parts: Iterable[Arrays],
    batch_size: int,
    lengths: Sequence[int] = (),
    record_to: str | None = None,
) -> Callable:
    """Data sets one after the other, each once and in batches of its own.

    The last batch of each is padded with rows of zeros. The next data set is taken from
    `parts` when all batches of the one before are made.

    Args:
      parts: data sets, name -> array [rows] or [rows, tokens].
      batch_size: rows of a batch.
      lengths: of the buckets, ascending. If given, rows come `longest_first`, and a
        batch is cut to the shortest length that its longest row fits into. Otherwise
        batches keep the length of the arrays.
      record_to: a file through which all batches go, for hosts that run no Python;
        `parts` must then not wait for predictions. None: Python makes the batches.

    Returns:
      An input_fn.
    """

    def input_fn(params=None):
        waiting = iter(parts)
        first = next(waiting)

        def batches():
            for arrays in itertools.chain([first], waiting):
                yield from evaluation_batches(arrays, batch_size, lengths)

        if record_to is not None:
            files.make_folder(os.path.dirname(record_to))
            _write_batches(record_to, batches())
            return _read_batches([record_to], _signature(first, batch_size)).prefetch(4)
        return _dataset(batches, first, batch_size, any_length=bool(lengths))

    return input_fn


def generated_dataset(
    batches: Callable[[], Iterable[Arrays]], signature: dict[str, tf.TensorSpec]
) -> tf.data.Dataset:
    """A dataset of batches that Python code of this process makes, a few in advance.

    Args:
      batches: starts from the first batch; called at every iteration of the dataset.
      signature: name -> shape and dtype of each batch's array.
    """
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    # There is nothing to tune, and the tuning thread can delay the end of a session by
    # as long as the session has run, up to a minute (TF 2.15).
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(4).with_options(options)


def longest_first(input_mask: np.ndarray) -> np.ndarray:
    """Indices of rows by decreasing length; rows of equal length keep their order.

    Rows of similar length come together, and the batch that is padded with empty rows
    is a short one.

    Args:
      input_mask: int [rows, tokens], 1 at the tokens of a row, 0 behind them.
    """
    return np.argsort(-input_mask.sum(1), kind="stable")


def evaluation_batches(
    arrays: Arrays, batch_size: int, lengths: Sequence[int]
) -> Iterator[Arrays]:
    """The batches of one data set; see `evaluation_input_fn`."""
    order = np.arange(_examples(arrays))
    if lengths:
        order = longest_first(arrays["input_mask"])
    for start in range(0, len(order), batch_size):
        places = order[start : start + batch_size]
        rows = {name: array[places] for name, array in arrays.items()}
        if lengths:
            rows = _cut(rows, lengths)
        missing = batch_size - len(places)
        yield {
            name: np.pad(row, [(0, missing)] + [(0, 0)] * (row.ndim - 1))
            for name, row in rows.items()
        }


def _cut(rows, lengths):
    """Cuts rows to the shortest length that the longest of them fits into."""
    used = rows["input_mask"].sum(1).max()
    length = next(length for length in lengths if length >= used)
    return {k: v[:, :length] if v.ndim > 1 else v for k, v in rows.items()}


def _fingerprint(arrays, batch_size, seed, packing):
    """A hash of all that the batches of training depend on."""
    shape = (batch_size, seed) if packing is None else (batch_size, seed, packing)
    digest = hashlib.sha256(repr(shape).encode())
    for name, array in sorted(arrays.items()):
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()[:16]


def _examples(arrays):
    return len(next(iter(arrays.values())))


def _epoch_order(examples, batch_size, seed, epoch, sizes, packed):
    generator = np.random.default_rng([seed, epoch])
    if sizes is None:
        return generator.permutation(examples)
    start, body, end = _parts(examples, batch_size, epoch, sizes, packed, generator)
    if packed is None:
        group = min(_GROUP, len(body) // batch_size // _GROUPS_PER_EPOCH)
        group = max(group, 1) * batch_size
        for place in range(0, len(body), group):
            rows = body[place : place + group]
            rows[:] = rows[np.argsort(sizes[rows], kind="stable")]
    batches = generator.permutation(body.reshape(-1, batch_size))
    # With a row for each example all batches fit.
    if packed is not None and packed.count < batch_size:

        def parts_of(neighbour: int) -> list[np.ndarray]:
            draw = np.random.default_rng([seed, neighbour])
            return _parts(examples, batch_size, neighbour, sizes, packed, draw)

        # The epoch with the larger part of a shared batch makes it fit.
        shared = []
        if 2 * len(start) >= batch_size:
            shared.append(SharedBatch(start, parts_of(epoch - 1)[2]))
        if 2 * len(end) > batch_size:
            shared.append(SharedBatch(end, parts_of(epoch + 1)[0]))
        fit_batches(batches, sizes, packed, generator, shared)
    return np.concatenate([start, batches.ravel(), end])


def _parts(examples, batch_size, epoch, sizes, packed, generator):
    """An epoch's order in three parts: its share of the batch that it has in common
    with the epoch before, its own batches, and its share of the next epoch's first."""
    order = generator.permutation(examples)
    # The first rows fill up the last batch of the epoch before.
    first = min(-epoch * examples % batch_size, examples)
    whole = (examples - first) // batch_size * batch_size
    if packed is not None:
        order = balanced_batches(order, sizes, first, batch_size, generator)
    return np.split(order, [first, first + whole])


def _signature(arrays, batch_size, any_length=False):
    def rest(array):
        return [None] * (array.ndim - 1) if any_length else array.shape[1:]

    return {
        name: tf.TensorSpec([batch_size, *rest(array)], array.dtype)
        for name, array in arrays.items()
    }


def _packed_signature(arrays, packing):
    """Shape and dtype of the arrays of `pack_batch`."""
    example = pack_batch({name: array[:1] for name, array in arrays.items()}, packing)
    return {
        name: tf.TensorSpec(array.shape, array.dtype) for name, array in example.items()
    }


def _dataset(batches, arrays, batch_size, any_length=False):
    return generated_dataset(batches, _signature(arrays, batch_size, any_length))


def _write_training_batches(
    folder: str,
    batches_from: Callable[[int], Iterator[Arrays]],
    start: int,
    end: int,
    track: Callable[[Sequence[int], str], Iterator[int]],
) -> list[str]:
    """Writes the batches of steps `start` to `end`; existing files are kept.

    Args:
      folder: its name depends on all that the batches depend on; made if missing.
      batches_from: step -> the batches from that step on. The batch of a step does not
        depend on where the iterator starts.
      start, end: steps, the last one excluded.
      track: as `console.track`, shows the progress.

    Returns:
      The files. The first begins with step start // PER_FILE * PER_FILE.
    """
    files.make_folder(folder)
    numbers = range(start // PER_FILE, -(-end // PER_FILE))
    paths = [os.path.join(folder, f"batches-{number:05d}") for number in numbers]
    missing = [
        n for n, path in zip(numbers, paths, strict=True) if not files.exists(path)
    ]
    batches, following = iter(()), None
    for number in track(missing, "writing batches for the TPU's hosts"):
        # A start anywhere but at the next batch makes the order of its epoch anew.
        if number != following:
            batches = batches_from(number * PER_FILE)
        following = number + 1
        _write_batches(
            paths[number - numbers.start], itertools.islice(batches, PER_FILE)
        )
    return paths


def _write_batches(path: str, batches: Iterator[Arrays]) -> None:
    """Writes one file, atomically."""
    options = tf.io.TFRecordOptions(_COMPRESSION, compression_level=_LEVEL)
    with files.atomic_path(path) as temporary:
        with tf.io.TFRecordWriter(temporary, options) as writer:
            for batch in batches:
                writer.write(_example(batch).SerializeToString())


def _read_batches(
    paths: Sequence[str], signature: dict[str, tf.TensorSpec], skip: int = 0
) -> tf.data.Dataset:
    """The batches of some files in order, without those that are skipped.

    Args:
      paths: of `_write_batches`.
      signature: name -> shape and dtype, int32 or float32, of each batch's array.
      skip: batches of the first file that are left out.
    """

    @without_autograph
    def parsed(record):
        names = {name: tf.io.FixedLenFeature([], tf.string) for name in signature}
        values = tf.io.parse_single_example(record, names)
        return {
            name: tf.reshape(tf.io.decode_raw(values[name], spec.dtype), spec.shape)
            for name, spec in signature.items()
        }

    return tf.data.TFRecordDataset(list(paths), _COMPRESSION).skip(skip).map(parsed)


def _example(batch):
    features = {
        name: tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[np.ascontiguousarray(array).tobytes()])
        )
        for name, array in batch.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=features))
