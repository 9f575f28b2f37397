"""Dropout: its rate, and masks that are a function of seed, name and slice."""

import itertools
import zlib

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.core.release import tf as tf2
from decoupled.ops.dropout import dropout
from tests.helpers import mesh_impl, run_mesh

ROWS, COLUMNS = mtf.Dimension("rows", 64), mtf.Dimension("columns", 64)
ONES = np.ones([64, 64], np.float32)
SMALL_ROWS, SMALL_COLUMNS = mtf.Dimension("rows", 12), mtf.Dimension("columns", 12)


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


def masks(mesh_shape, layout_rules):
    """What each processor keeps of its slice of ones, in the mesh's order."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        seed = mtf.constant(mesh, 7, dtype=tf.int32)
        kept = dropout(
            mtf.ones(mesh, mtf.Shape([SMALL_ROWS, SMALL_COLUMNS])), 0.5, seed, "here"
        )
        implementation = mesh_impl(mesh_shape, layout_rules)
        lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
        slices = lowering.tensors[kept].to_laid_out_tensor().all_slices
        config = tf.ConfigProto(device_count={"CPU": implementation.size})
        with tf.Session(config=config) as session:
            return session.run(slices)


def equal_pairs(masks):
    """Pairs of processors whose masks are the same."""
    pairs = itertools.combinations(range(len(masks)), 2)
    return [(a, b) for a, b in pairs if np.array_equal(masks[a], masks[b])]


@pytest.mark.parametrize(
    ("mesh_shape", "layout_rules", "equal"),
    [
        ("m:2", "", [(0, 1)]),
        # Processors of d:2;m:2 in order: (0, 0), (0, 1), (1, 0), (1, 1).
        ("d:2;m:2", "rows:d", [(0, 1), (2, 3)]),
        ("d:2;m:2", "rows:m", [(0, 2), (1, 3)]),
        ("d:2;m:2", "", list(itertools.combinations(range(4), 2))),
        ("d:2;m:2", "rows:d;columns:m", []),
        ("d:3;m:2", "rows:d;columns:m", []),
        ("d:2;m:3", "rows:d;columns:m", []),
    ],
)
def test_processors_with_the_same_slice_and_no_others_have_the_same_mask(
    mesh_shape, layout_rules, equal
):
    """Otherwise what should be one tensor would differ between its replicas."""
    assert equal_pairs(masks(mesh_shape, layout_rules)) == equal
