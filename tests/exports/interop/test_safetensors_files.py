"""Safetensors files against the library of that name, and damaged ones."""

import json
import pickle
import struct

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from decoupled.core.errors import UserError
from decoupled.exports.interop.safetensors_files import (
    SafetensorsFolder,
    read_header,
    write_safetensors,
)

ARRAYS = {
    "b": np.arange(6, dtype=np.float32).reshape(2, 3),
    "a.weight": np.array([[1.5], [-2.0]], np.float32),
    "scalar": np.array(3.25, np.float32),
    "empty": np.zeros((0, 4), np.float32),
}


def written(tmp_path, arrays=ARRAYS, name="model.safetensors"):
    save_file(arrays, tmp_path / name)
    return tmp_path / name


def raw_file(tmp_path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(shape, start, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_reads_what_the_library_wrote(tmp_path):
    written(tmp_path)
    stored = SafetensorsFolder(str(tmp_path))
    shapes = {name: tensor.shape for name, tensor in stored.tensors.items()}
    assert shapes == {name: value.shape for name, value in ARRAYS.items()}
    for name, value in ARRAYS.items():
        read = stored.read(name)
        assert read.dtype == np.float32
        assert np.array_equal(read, value)


def test_the_library_reads_what_is_written(tmp_path):
    path = tmp_path / "model.safetensors"
    shapes = {name: value.shape for name, value in ARRAYS.items()}
    write_safetensors(str(path), shapes, ARRAYS.__getitem__)
    again = load_file(path)
    assert set(again) == set(ARRAYS)
    for name, value in ARRAYS.items():
        assert np.array_equal(again[name], value)
    # So that others may map the numbers into memory.
    assert struct.unpack("<Q", path.read_bytes()[:8])[0] % 8 == 0


def test_transposed_arrays_are_written_as_they_look(tmp_path):
    path = tmp_path / "model.safetensors"
    write_safetensors(str(path), {"t": (3, 2)}, lambda name: ARRAYS["b"].T)
    assert load_file(path)["t"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_half_precision_is_widened(tmp_path):
    half = np.array([1.5, -0.25, 65504], np.float16)
    # The bytes of a bfloat16 are the upper half of a float32's: 1.0, -2.0.
    data = half.tobytes() + bytes.fromhex("803f00c0")
    raw_file(
        tmp_path, {"h": entry([3], 0, 6, "F16"), "b": entry([2], 6, 10, "BF16")}, data
    )
    stored = SafetensorsFolder(str(tmp_path))
    assert stored.read("h").tolist() == [1.5, -0.25, 65504]
    assert stored.read("b").tolist() == [1.0, -2.0]


def test_shards_are_read_by_their_index(tmp_path):
    written(tmp_path, {"a": ARRAYS["b"]}, "model-1.safetensors")
    written(tmp_path, {"c": ARRAYS["scalar"]}, "model-2.safetensors")
    places = {"a": "model-1.safetensors", "c": "model-2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    stored = SafetensorsFolder(str(tmp_path))
    assert stored.read("a").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert stored.read("c") == 3.25
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(UserError, match="model-2.safetensors: missing"):
        SafetensorsFolder(str(tmp_path))


@pytest.mark.parametrize(
    "places, message",
    [
        ({"a": "../model-1.safetensors"}, "not the name of a shard"),
        ({"a": "model-1.bin"}, "not the name of a shard"),
        ({"a": "model-1.safetensors", "z": "model-1.safetensors"}, "z is in the index"),
        ({}, 'no "weight_map"'),
    ],
)
def test_an_index_that_is_wrong_is_refused(tmp_path, places, message):
    written(tmp_path, {"a": ARRAYS["b"]}, "model-1.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(UserError, match=message):
        SafetensorsFolder(str(tmp_path))


@pytest.mark.parametrize("place", ["model-1.safetensors", "model-2.safetensors"])
def test_a_tensor_of_another_shard_than_the_index_says_is_refused(tmp_path, place):
    first, second = {"a": ARRAYS["b"], "b": ARRAYS["scalar"]}, {"c": ARRAYS["scalar"]}
    if place == "model-1.safetensors":
        second["a"] = ARRAYS["b"] + 1
    written(tmp_path, first, "model-1.safetensors")
    written(tmp_path, second, "model-2.safetensors")
    places = {"a": place, "b": "model-1.safetensors", "c": "model-2.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    with pytest.raises(UserError, match=f"places a in {place}, but model-[12].safe"):
        SafetensorsFolder(str(tmp_path))


def test_equal_content_is_told_from_other(tmp_path):
    same = ARRAYS["b"]
    written(tmp_path, {"a": same, "b": same.copy(), "c": same + 1, "d": same.T.copy()})
    stored = SafetensorsFolder(str(tmp_path))
    assert stored.same_content("a", "b")
    assert not stored.same_content("a", "c")
    assert not stored.same_content("a", "d")


@pytest.mark.parametrize("kept", [0, 5, 8, 60, -1])
def test_a_file_that_is_cut_off_is_refused(tmp_path, kept):
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match="cut off"):
        read_header(str(path))


@pytest.mark.parametrize(
    "header, data, message",
    [
        (b"not json", b"", "invalid JSON in header"),
        (b"[1, 2]", b"", "invalid JSON in header"),
        (b'{"a": 1, "a": 2}', b"", "invalid JSON in header"),
        pytest.param(b"[" * 100_000, b"", "invalid JSON in header", id="deep"),
        (b'{"\xff": 1}', b"", "invalid UTF-8 in header"),
        (
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},'
            b'"a": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}',
            bytes(4),
            "has two values under the name 'a'",
        ),
        ({"a": {"dtype": "F32"}}, b"", "missing field `shape`"),
        ({"a": entry([-1], 0, 4)}, b"", "invalid value: integer `-1`"),
        ({"a": entry([True], 0, 4)}, bytes(4), "invalid type: boolean"),
        ({"a": entry([1], 0, 4, "F31")}, b"", "unknown variant `F31`"),
        ({"a": entry([2], 0, 4)}, bytes(4), "invalid shape"),
        ({"a": entry([2**40, 2**40], 0, 4)}, bytes(4), "overflow"),
        ({"a": entry([1], 4, 8)}, bytes(8), "invalid offset for tensor"),
        ({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, bytes(8), "invalid offset"),
        ({"a": entry([1], 0, 4)}, bytes(5), "file not fully covered"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(tmp_path, header, data, message):
    with pytest.raises(UserError, match=message) as caught:
        read_header(str(raw_file(tmp_path, header, data)))
    assert "\n" not in str(caught.value)


def test_numbers_that_are_no_weights_are_refused(tmp_path):
    written(tmp_path, {"ids": np.arange(3), "nan": np.array([np.nan], np.float32)})
    stored = SafetensorsFolder(str(tmp_path))
    with pytest.raises(UserError, match="type I64"):
        stored.read("ids")
    with pytest.raises(UserError, match="not finite"):
        stored.read("nan")


class Malicious:
    """Writes a file where it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (self.mark, "w")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_pickles_are_refused_and_never_run(tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    mark = tmp_path / "was_run"
    (folder / name).write_bytes(pickle.dumps(Malicious(str(mark))))
    with pytest.raises(UserError, match="pickle can run code|not a safetensors file"):
        SafetensorsFolder(str(folder))
    assert not mark.exists()


def test_folders_without_weights_are_named(tmp_path):
    with pytest.raises(UserError, match="neither model.safetensors nor"):
        SafetensorsFolder(str(tmp_path))
    with pytest.raises(UserError, match="no such folder"):
        SafetensorsFolder(str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["model.safetensors", "model.safetensors.index.json"])
def test_a_device_is_not_read(tmp_path, name):
    (tmp_path / name).symlink_to("/dev/null")
    with pytest.raises(UserError, match=f"{name}: a pipe or a device"):
        SafetensorsFolder(str(tmp_path))
