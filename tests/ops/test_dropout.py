"""Dropout: its rate, and masks that are a function of seed, name and slice."""

import zlib

import numpy as np
import tensorflow as tf2

from decoupled.core.compat import mtf, tf
from decoupled.ops.dropout import dropout
from tests.helpers import run_mesh

ROWS, COLUMNS = mtf.Dimension("rows", 64), mtf.Dimension("columns", 64)
ONES = np.ones([64, 64], np.float32)


def drop(seed=7, name="here", rate=0.25, mesh_shape="all:1", layout_rules=""):
    def build(mesh, tensors):
        number = mtf.constant(mesh, seed, dtype=tf.int32)
        return [dropout(tensors["x"], rate, number, name)]

    inputs = {"x": (ONES, [ROWS, COLUMNS])}
    return run_mesh(build, inputs, mesh_shape, layout_rules)[0]


def test_a_mask_is_a_function_of_seed_and_name():
    np.testing.assert_array_equal(drop(), drop())
    for other in (drop(seed=8), drop(name="there")):
        assert 0.3 < np.mean((other == 0) != (drop() == 0)) < 0.45


def test_a_mask_is_the_same_in_every_process():
    """Python's own hash of a name is not."""
    pair = [7, zlib.crc32(b"here") % 2**30]
    expected = tf2.random.stateless_uniform([64, 64], pair) >= 0.25
    np.testing.assert_array_equal(drop() != 0, expected)


def test_the_gradient_has_the_same_mask():
    def build(mesh, tensors):
        seed = mtf.constant(mesh, 3, dtype=tf.int32)
        y = dropout(tensors["x"], 0.5, seed, "here")
        return [y, *mtf.gradients([mtf.reduce_sum(y)], [tensors["x"]])]

    y, gradient = run_mesh(build, {"x": (ONES, [ROWS, COLUMNS])})
    np.testing.assert_array_equal(y, gradient)
