"""Gathered positions against numpy, with the sequence whole and split."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.ops.gather import gather_positions
from tests.helpers import run_mesh

MESHES = [
    ("all:1", ""),
    ("m:2", "sequence:m"),
    ("m:3", "sequence:m"),
    ("m:2", "predictions:m"),
    ("d:2;m:2", "batch:d;sequence:m"),
]
BATCH, SEQUENCE = mtf.Dimension("batch", 2), mtf.Dimension("sequence", 6)
PREDICTIONS, WIDTH = mtf.Dimension("predictions", 4), mtf.Dimension("width", 3)
X = np.arange(36, dtype=np.float32).reshape(2, 6, 3)
# A repeated one, and both ends of two and of three parts.
POSITIONS = np.array([[0, 2, 3, 2], [5, 4, 1, 5]], np.int32)


def gather(positions, mesh_shape, layout_rules, dims=(BATCH, PREDICTIONS)):
    """[entries, gradient of x] for sum(entries * weights), and the weights."""
    shape = [*(dim.size for dim in dims), 3]
    weights = np.random.default_rng(0).normal(size=shape).astype(np.float32)

    def build(mesh, tensors):
        y = gather_positions(tensors["x"], tensors["positions"], SEQUENCE)
        loss = mtf.reduce_sum(y * tensors["weights"])
        return [y, *mtf.gradients([loss], [tensors["x"]])]

    inputs = {
        "x": (X, [BATCH, SEQUENCE, WIDTH]),
        "positions": (positions, list(dims)),
        "weights": (weights, [*dims, WIDTH]),
    }
    return run_mesh(build, inputs, mesh_shape, layout_rules), weights


@pytest.mark.parametrize("mesh_shape, layout_rules", MESHES[:3])
@pytest.mark.parametrize("outside", [6, 9, -1])
def test_position_outside_the_sequence_is_an_error_that_shows_it(
    mesh_shape, layout_rules, outside
):
    positions = POSITIONS.copy()
    positions[1, 3] = outside
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"= {outside} is not in \[0"
    ):
        gather(positions, mesh_shape, layout_rules)


def test_a_sequence_and_positions_on_one_axis_are_refused():
    with pytest.raises(UserError, match="rules sequence:m and predictions:m split"):
        gather(POSITIONS, "m:2", "sequence:m;predictions:m")


def test_repeated_positions_add_up_in_float32():
    """In bfloat16 a sum of ones stops growing at 256."""
    many = mtf.Dimension("predictions", 600)

    def build(mesh, tensors):
        x = mtf.cast(tensors["x"], tf.bfloat16)
        y = gather_positions(x, tensors["positions"], SEQUENCE)
        [gradient] = mtf.gradients([mtf.reduce_sum(mtf.cast(y, tf.float32))], [x])
        assert y.dtype == gradient.dtype == tf.bfloat16
        return [mtf.cast(gradient, tf.float32)]

    inputs = {
        "x": (X, [BATCH, SEQUENCE, WIDTH]),
        "positions": (np.full([2, 600], 3, np.int32), [BATCH, many]),
    }
    [gradient] = run_mesh(build, inputs)
    np.testing.assert_array_equal(gradient[:, 3], np.full([2, 3], 600))
    assert gradient.sum() == 2 * 3 * 600
