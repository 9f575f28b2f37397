"""Checkpoints that are written in parts are those that TensorFlow's Saver reads."""

import os

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.training import checkpoint_files
from decoupled.training.checkpoint_files import (
    ALIGNMENT,
    CheckpointFile,
    CheckpointWriter,
    aligned_empty,
)
from decoupled.training.xla.state import Slice, stored_values
from tests.exports.models import write_checkpoint

VALUES = {
    "bert/a": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bert/b": np.array([1.5, -2], np.float32),
    "cls/c": np.full((5, 2), 7, np.float32),
}


def write(folder, values=VALUES, step=3):
    prefix = os.path.join(folder, f"model.ckpt-{step}")
    with CheckpointWriter(prefix) as writer:
        for name, value in values.items():
            writer.add(name, value)
        writer.add("global_step", np.int64(step))
    return prefix


@pytest.mark.parametrize("limit, parts", [(1 << 28, 1), (1, 4)])
def test_a_saver_restores_it(tmp_path, monkeypatch, limit, parts):
    monkeypatch.setattr(checkpoint_files, "_SHARD_BYTES", limit)
    prefix = write(str(tmp_path))
    names = sorted(os.listdir(tmp_path))
    assert names[-1] == "model.ckpt-3.index"
    assert len(names) == parts + 1
    reader = tf.train.load_checkpoint(prefix)
    assert reader.get_tensor("global_step") == 3
    for name, value in VALUES.items():
        assert np.array_equal(reader.get_tensor(name), value)


def test_reads_what_a_saver_wrote(tmp_path):
    prefix = write_checkpoint(str(tmp_path / "model.ckpt"), VALUES, 11)
    stored = CheckpointFile(prefix)
    assert stored.shapes == {n: v.shape for n, v in VALUES.items()} | {
        "global_step": ()
    }
    assert stored.global_step == 11
    for name, value in VALUES.items():
        assert np.array_equal(stored[name], value)


def test_reads_values_while_a_graph_is_built(tmp_path):
    stored = CheckpointFile(write(str(tmp_path)))
    with tf.Graph().as_default():
        assert stored.global_step == 3
        np.testing.assert_array_equal(stored["bert/a"], VALUES["bert/a"])


def test_tensors_and_arrays_of_any_memory_are_taken(tmp_path):
    values = {
        "tensor": tf.constant([1.0, 2.0]),
        "transposed": VALUES["bert/a"].T,
        "shifted": np.arange(9, dtype=np.float32)[1:],
        "scalar": np.float32(4),
    }
    stored = CheckpointFile(write(str(tmp_path), values))
    for name, value in values.items():
        assert np.array_equal(stored[name], np.asarray(value))


def test_a_later_change_of_the_array_does_not_matter_once_it_is_written(tmp_path):
    value = aligned_empty((2,))
    value[:] = 1
    prefix = write(str(tmp_path), {"a": value})
    value[:] = 2
    assert CheckpointFile(prefix)["a"].tolist() == [1, 1]


@pytest.mark.parametrize("damage", ["index", "data"])
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    prefix = write(str(tmp_path))
    path = f"{prefix}.index" if damage == "index" else f"{prefix}.data-00000-of-00001"
    content = bytearray(open(path, "rb").read())
    content[2] ^= 255
    open(path, "wb").write(content)
    with pytest.raises(UserError, match="model.ckpt-3: cannot read") as caught:
        CheckpointFile(prefix)["bert/a"]
    assert str(caught.value).endswith(
        "; restore it, or name an earlier one (convert: with --checkpoint)"
    )


def test_only_the_slices_that_are_needed_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "_SHARD_BYTES", 16)
    whole, prefix = VALUES["bert/a"], str(tmp_path / "model.ckpt-3")
    halves = [Slice(whole.shape, (0, first), (3, 2)) for first in (0, 2)]
    with CheckpointWriter(prefix) as writer:
        for half in halves:
            writer.add("bert/a", half.part_of(whole), half.spec)
    values = stored_values(prefix)
    for half, read in zip(halves, values("bert/a", halves), strict=True):
        np.testing.assert_array_equal(read, half.part_of(whole))
    tmp_path.joinpath("model.ckpt-3.data-00001-of-00002").write_bytes(bytes(24))
    [read] = values("bert/a", halves[:1])
    np.testing.assert_array_equal(read, whole[:, :2])
    with pytest.raises(UserError, match="cannot read bert/a"):
        list(values("bert/a", halves))


def test_weights_must_be_finite_floats(tmp_path):
    values = {"nan": np.array([np.nan], np.float32), "ids": np.arange(3)}
    stored = CheckpointFile(write(str(tmp_path), values))
    with pytest.raises(UserError, match="nan holds values that are not finite"):
        stored["nan"]
    with pytest.raises(UserError, match="ids is int64"):
        stored["ids"]


def test_an_error_leaves_no_checkpoint(tmp_path):
    prefix = str(tmp_path / "model.ckpt-3")
    with pytest.raises(RuntimeError), CheckpointWriter(prefix) as writer:
        writer.add("a", VALUES["bert/a"])
        raise RuntimeError
    assert not os.path.exists(f"{prefix}.index")


def test_memory_is_aligned_for_tensorflow():
    for shape in ((1,), (3, 5), (17, 33)):
        value = aligned_empty(shape)
        assert value.shape == shape and value.dtype == np.float32
        assert value.ctypes.data % ALIGNMENT == 0
