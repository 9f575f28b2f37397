"""Batches in files, for hosts that run no Python.

The batches of fine-tuning are made by Python code of this process. The workers of a TPU
slice of several hosts are C++ servers, which cannot call it ("No registered 'PyFunc'").
For them batches are written as TFRecords first, and read by tf.data alone. A record is
a `tf.train.Example` with the bytes of each array.
"""

import itertools
import os
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from decoupled.core import files
from decoupled.core.compat import tf

# Batches of a file: a run that is killed while they are written loses one file's.
PER_FILE = 500
_COMPRESSION, _LEVEL = "ZLIB", 1

Arrays = dict[str, np.ndarray]
Signature = dict[str, tf.TensorSpec]


def write_training_batches(
    folder: str,
    batches_from: Callable[[int], Iterator[Arrays]],
    start: int,
    end: int,
    track: Callable[[Sequence[int], str], Iterator[int]],
) -> list[str]:
    """Writes the batches of steps `start` to `end`; files that are there are kept.

    Args:
      folder: named by all that the batches depend on; made where it is missing.
      batches_from: step -> the batches from that step on. Batches of a step are the
        same wherever the iterator starts.
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
    for number in track(missing, "writing batches for the TPU's hosts"):
        batches = itertools.islice(batches_from(number * PER_FILE), PER_FILE)
        write_batches(paths[number - numbers.start], batches)
    return paths


def write_batches(path: str, batches: Iterator[Arrays]) -> None:
    """Writes one file, atomically."""
    options = tf.io.TFRecordOptions(_COMPRESSION, compression_level=_LEVEL)
    with files.atomic_path(path) as temporary:
        with tf.io.TFRecordWriter(temporary, options) as writer:
            for batch in batches:
                writer.write(_example(batch).SerializeToString())


def read_batches(
    paths: Sequence[str], signature: Signature, skip: int = 0
) -> tf.data.Dataset:
    """The batches of some files in order, without those that are skipped.

    Args:
      paths: of `write_batches`.
      signature: name -> shape and dtype, int32 or float32, of each batch's array.
      skip: batches of the first file that are left out.
    """

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
