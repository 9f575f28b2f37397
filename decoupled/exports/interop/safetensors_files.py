"""Safetensors files, read and written one tensor at a time.

The format (https://huggingface.co/docs/safetensors): 8 bytes with the length of the
header, a JSON header with dtype, shape and offsets of each tensor, then their bytes in
little endian. The package safetensors checks headers. The numbers are read and written
here, because the package writes all tensors at once, and reads a file that is mapped
into memory, which ends the process (SIGBUS) if the file becomes shorter.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from decoupled.core import console, files, gfile, installed
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.model.variables import Shape
from decoupled.training.checkpoint_files import aligned_empty

FILE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"

_METADATA = "__metadata__"
_LENGTH = struct.Struct("<Q")
_BLOCK = 1 << 24
_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": tf.bfloat16.as_numpy_dtype}
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


class StoredTensor(NamedTuple):
    """A tensor in the file at `path`; `start` and `size` are in bytes."""

    path: str
    dtype: str
    shape: Shape
    start: int
    size: int


class SafetensorsFolder:
    """The tensors of a folder's model.safetensors, or of the shards in its index."""

    def __init__(self, folder: str):
        self.folder = folder
        self.tensors: dict[str, StoredTensor]
        index = os.path.join(folder, INDEX_NAME)
        path = os.path.join(folder, FILE_NAME)
        if files.exists(path):
            self.tensors = read_header(path)
        elif files.exists(index):
            self.tensors = _read_shards(folder, index)
        else:
            raise UserError(_no_weights(folder))

    def read(self, name: str) -> np.ndarray:
        """A tensor as float32; half precision is converted."""
        tensor = self.tensors[name]
        if tensor.dtype not in _DTYPES:
            raise UserError(
                f"{tensor.path}: {name} is of type {tensor.dtype}; only F32, F16 and "
                "BF16 are weights"
            )
        value = aligned_empty(tensor.shape)
        flat_value, count = value.reshape(-1), 0
        for block in _blocks(tensor):
            numbers = np.frombuffer(block, _DTYPES[tensor.dtype])
            numbers = numbers.astype(np.float32, copy=False)
            if not np.all(np.isfinite(numbers)):
                raise UserError(
                    f"{tensor.path}: {name} holds values that are not finite"
                )
            flat_value[count : count + len(numbers)] = numbers
            count += len(numbers)
        return value

    def same_content(self, first: str, second: str) -> bool:
        """Whether two tensors have the same type, shape and bytes."""
        left, right = self.tensors[first], self.tensors[second]
        if (left.dtype, left.shape) != (right.dtype, right.shape):
            return False
        pairs = zip(_blocks(left), _blocks(right), strict=True)
        return all(left_block == right_block for left_block, right_block in pairs)


def read_header(path: str) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file, by name."""
    installed.need("safetensors", purpose="models of Hugging Face")
    import safetensors

    files.check_regular(path)
    try:
        # Opening checks that the tensors fill the rest of the file without a gap.
        with safetensors.safe_open(path, "numpy"):
            pass
        with open(path, "rb") as handle:
            size = _LENGTH.unpack(handle.read(_LENGTH.size))[0]
            entries = files.parse_json(handle.read(size), unique_names=True)
    except OSError as error:
        raise UserError(f"{path}: cannot read ({files.reason(error)})") from error
    except (safetensors.SafetensorError, ValueError, UserError) as error:
        raise UserError(
            f"{path}: not a safetensors file, or cut off ({files.reason(error)}); "
            "download it again"
        ) from error
    entries.pop(_METADATA, None)
    tensors = {}
    for name, entry in entries.items():
        start, end = (_LENGTH.size + size + offset for offset in entry["data_offsets"])
        shape = tuple(entry["shape"])
        tensors[name] = StoredTensor(path, entry["dtype"], shape, start, end - start)
    return tensors


def write_safetensors(
    path: str, shapes: Mapping[str, Shape], value_of: Callable[[str], np.ndarray]
) -> None:
    """Writes float32 tensors atomically; each is read just before it is written."""
    header, offset = {_METADATA: {"format": "pt"}}, 0
    for name in sorted(shapes):
        end = offset + 4 * math.prod(shapes[name])
        header[name] = {
            "dtype": "F32",
            "shape": list(shapes[name]),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode("utf-8")
    # Spaces, so that the numbers start at a multiple of 8.
    text += b" " * (-len(text) % 8)
    with files.atomic_write(path, "wb") as handle:
        handle.write(_LENGTH.pack(len(text)) + text)
        for name in console.track(sorted(shapes), "writing tensors"):
            value = value_of(name)
            if value.shape != tuple(shapes[name]):
                raise ValueError(f"{name}: {value.shape}, not {shapes[name]}")
            for block in _flat_blocks(value):
                handle.write(block.astype("<f4", copy=False).tobytes())
            # The next one is read without this one in memory.
            del value, block


def _flat_blocks(value: np.ndarray) -> Iterator[np.ndarray]:
    flat = np.ascontiguousarray(value).reshape(-1)
    step = _BLOCK // 4
    for start in range(0, max(flat.size, 1), step):
        yield flat[start : start + step]


def _blocks(tensor: StoredTensor) -> Iterator[bytes]:
    """The bytes of a tensor in blocks of whole elements."""
    try:
        with gfile.GFile(tensor.path, "rb") as handle:
            handle.seek(tensor.start)
            remainder = tensor.size
            while remainder:
                block = handle.read(min(remainder, _BLOCK))
                if not block:
                    raise UserError(f"{tensor.path}: became shorter while it was read")
                remainder -= len(block)
                yield block
    except gfile.OpError as error:
        raise UserError(
            f"{tensor.path}: cannot read ({files.reason(error)})"
        ) from error


def _read_shards(folder, index):
    content = files.read_json(index)
    shards = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise UserError(f'{index}: no "weight_map" of tensors to files')
    tensors = {}
    for shard in sorted(set(map(str, shards.values()))):
        is_name = files.is_below(shard) and "/" not in shard
        if not (is_name and shard.endswith(".safetensors")):
            raise UserError(f"{index}: {shard!r} is not the name of a shard beside it")
        path = os.path.join(folder, shard)
        if not files.exists(path):
            raise UserError(f"{path}: missing, {INDEX_NAME} names it; download it")
        for name, tensor in read_header(path).items():
            if shards.get(name, shard) != shard:
                raise UserError(
                    f"{index}: places {name} in {shards[name]}, but {shard} has it; "
                    "files of two models?"
                )
            tensors[name] = tensor
    for name in sorted(set(shards) ^ set(tensors)):
        where = "the index only" if name in shards else "a shard only"
        raise UserError(f"{index}: {name} is in {where}; files of two models?")
    return tensors


def _no_weights(folder):
    if not gfile.isdir(folder):
        return f"{folder}: no such folder"
    pickles = [n for n in sorted(gfile.listdir(folder)) if n.endswith(_PICKLES)]
    if pickles:
        return (
            f"{os.path.join(folder, pickles[0])}: a pickle can run code when it is "
            "read, so none is; load the model in transformers where you trust it and "
            "write it again with save_pretrained(FOLDER, safe_serialization=True)"
        )
    return f"{folder}: neither {FILE_NAME} nor {INDEX_NAME}"
