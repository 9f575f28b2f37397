"""A cache of features on disk, so that text is tokenised once and not at each start.

A cache is one file, FOLDER/DIGEST.tfrecord, a compressed TFRecord. DIGEST is a hash of
the key: all that the features depend on. The first record is JSON: format, key, names,
types and shapes of the arrays, and a SHA-256 of everything. The other records are the
arrays' bytes, one array after the other, 4 MiB a record.

Other inputs, such as another vocabulary, have another key and another file. The key in
the file is compared too. A file that is truncated, damaged or of another format is
replaced, and a line says so.
"""

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import files
from decoupled.core.release import tf

FORMAT = "decoupled-features-1"

_SUFFIX = ".tfrecord"
_RECORD_BYTES = 4 << 20
# Rows are mostly padding: level 1 makes them 15 times smaller, at 400 MB/s.
_COMPRESSION, _LEVEL = "ZLIB", 1
# Booleans, numbers, bytes and text; no objects, which would need pickle.
_KINDS = "biufcSU"
# zlib's largest compression ratio (zlib.net/zlib_tech.html).
_MAX_RATIO = 1032

Features = dict[str, np.ndarray]


class _DamagedError(Exception):
    """A file cannot be used; the message says why and is shown to the user."""


class _Header(NamedTuple):
    arrays: list[tuple[str, str, list[int]]]
    sha256: str


def cached_features(
    folder: str,
    key: dict[str, Any],
    build: Callable[[], Features],
    say: Callable[[str], None],
) -> Features:
    """The features of `key`: read from `folder`, or else built and stored there.

    Needs eager execution. Processes may share a folder, even while they write.

    Args:
      folder: of all caches, local or remote; made if missing.
      key: all that the features depend on, as JSON: task and settings, fingerprints of
        the vocabulary and of the file with the examples, version of the code.
      build: makes the features: name -> array of any shape, of numbers or strings.
      say: prints a line if a cache is damaged or cannot be written.

    Returns:
      What `build` returned, now or earlier, bit for bit.

    Raises:
      UserError: there is no cache and the folder cannot be made or written to.
    """
    path = cache_path(folder, key)
    if files.exists(path):
        try:
            return _read(path, key)
        except _DamagedError as error:
            say(f"{path}: {error}; these features are built anew")
    files.make_folder(folder)
    features = build()
    arrays = {name: np.ascontiguousarray(array) for name, array in features.items()}
    _check(arrays)
    try:
        _write(path, key, features, arrays)
    except (tf.errors.OpError, OSError) as error:
        say(
            f"{path}: cannot write ({files.reason(error)}); the next start builds "
            "these features anew"
        )
    return features


def cache_path(folder: str, key: dict[str, Any]) -> str:
    """The file of a key."""
    return os.path.join(folder, files.fingerprint(_canonical(key))[:32] + _SUFFIX)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _check(arrays: Features) -> None:
    for name, array in arrays.items():
        if array.dtype.kind not in _KINDS:
            raise ValueError(f"{name}: arrays of {array.dtype} cannot be kept")


def _write(path: str, key: dict, features: Features, arrays: Features) -> None:
    described = [
        # The original shape: `ascontiguousarray` turns a scalar into an array of one.
        (name, array.dtype.str, list(features[name].shape))
        for name, array in arrays.items()
    ]
    digest = _digest(key, described)
    for array in arrays.values():
        digest.update(_bytes(array))
    header = {
        "format": FORMAT,
        "key": key,
        "arrays": described,
        "sha256": digest.hexdigest(),
    }
    options = tf.io.TFRecordOptions(_COMPRESSION, compression_level=_LEVEL)
    with files.atomic_path(path) as temporary:
        with tf.io.TFRecordWriter(temporary, options) as writer:
            writer.write(json.dumps(header).encode())
            for array in arrays.values():
                content = _bytes(array)
                for start in range(0, len(content), _RECORD_BYTES):
                    writer.write(content[start : start + _RECORD_BYTES].tobytes())


def _read(path: str, key: dict) -> Features:
    records = _records(path)
    header = _header(next(records, b""), key)
    # A damaged header may claim any size. No more memory is allocated than the largest
    # content of a file of this size.
    if sum(map(_size, header.arrays)) > _MAX_RATIO * tf.io.gfile.stat(path).length:
        raise _DamagedError("damaged (it says that it holds more than it can)")
    digest = _digest(key, header.arrays)
    features = {}
    for name, dtype, shape in header.arrays:
        features[name] = _empty(shape, dtype)
        _fill(_bytes(features[name]), records)
        digest.update(_bytes(features[name]))
        _check_text(features[name])
    if next(records, None) is not None or digest.hexdigest() != header.sha256:
        raise _DamagedError("damaged (its content is not what was written)")
    return features


def _records(path: str) -> Iterator[bytes]:
    """The records of a file.

    Raises:
      _DamagedError: it ends within one, or a checksum does not match.
    """
    dataset = tf.data.TFRecordDataset(path, _COMPRESSION, buffer_size=_RECORD_BYTES)
    try:
        for record in dataset:
            yield record.numpy()
    except tf.errors.OpError as error:
        raise _DamagedError(f"damaged ({files.reason(error)})") from error


def _header(record: bytes, key: dict) -> _Header:
    try:
        content = files.parse_json(record)
        if content["format"] != FORMAT:
            raise _DamagedError("of another format")
        if _canonical(content["key"]) != _canonical(key):
            raise _DamagedError("made of other inputs than its name says")
        arrays = [_described(*entry) for entry in content["arrays"]]
        return _Header(arrays, content["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _DamagedError("damaged (it does not say what it holds)") from error


def _described(name: Any, dtype: Any, shape: Any) -> tuple[str, str, list[int]]:
    """Checks an array's entry in the header, and returns it.

    Raises:
      ValueError, TypeError: it is none that `_write` wrote.
    """
    kind = np.dtype(dtype if isinstance(dtype, str) else None)
    known = kind.str == dtype and kind.kind in _KINDS and kind.itemsize
    if not (isinstance(name, str) and known):
        raise ValueError(f"{name!r}: {dtype!r} is no type of an array")
    if not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"{name!r}: {shape!r} is no shape")
    return name, dtype, shape


def _empty(shape: list[int], dtype: str) -> np.ndarray:
    try:
        return np.empty(shape, np.dtype(dtype))
    except (ValueError, MemoryError) as error:
        raise _DamagedError(f"damaged ({files.reason(error)})") from error


def _size(described: tuple[str, str, list[int]]) -> int:
    """Bytes of an array."""
    _, dtype, shape = described
    return np.dtype(dtype).itemsize * math.prod(shape)


def _check_text(array: np.ndarray) -> None:
    """Checks that an array of text has valid code points only."""
    if array.dtype.kind == "U" and array.size:
        if array.reshape(-1).view(f"{array.dtype.str[0]}u4").max() > sys.maxunicode:
            raise _DamagedError("damaged (its text is none)")


def _fill(content: np.ndarray, records: Iterator[bytes]) -> None:
    """Fills an array of bytes from the next records."""
    filled = 0
    while filled < len(content):
        record = next(records, b"")
        if not 0 < len(record) <= len(content) - filled:
            raise _DamagedError("damaged (truncated)")
        content[filled : filled + len(record)] = np.frombuffer(record, np.uint8)
        filled += len(record)


def _digest(key: dict, described: list) -> "hashlib._Hash":
    return hashlib.sha256(_canonical([key, described]).encode())


def _bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a contiguous array, not copied."""
    return array.reshape(-1).view(np.uint8)
