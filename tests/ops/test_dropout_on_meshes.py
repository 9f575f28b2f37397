"""Dropout masks on every processor of a mesh, not only on the first."""

import itertools

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops.dropout import dropout
from tests.helpers import mesh_impl

ROWS, COLUMNS = mtf.Dimension("rows", 12), mtf.Dimension("columns", 12)


def masks(mesh_shape, layout_rules):
    """What each processor keeps of its slice of ones, in the mesh's order."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        seed = mtf.constant(mesh, 7, dtype=tf.int32)
        kept = dropout(mtf.ones(mesh, mtf.Shape([ROWS, COLUMNS])), 0.5, seed, "here")
        implementation = mesh_impl(mesh_shape, layout_rules)
        lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
        slices = lowering.tensors[kept].to_laid_out_tensor().all_slices
        config = tf.ConfigProto(device_count={"CPU": implementation.size})
        with tf.Session(config=config) as session:
            return session.run(slices)


def equal_pairs(found):
    """Pairs of processors whose masks are the same."""
    pairs = itertools.combinations(range(len(found)), 2)
    return [(a, b) for a, b in pairs if np.array_equal(found[a], found[b])]


@pytest.mark.parametrize(
    ("mesh_shape", "layout_rules"),
    [
        ("m:2", "rows:m"),
        ("d:2;m:2", "rows:d;columns:m"),
        ("d:2;m:2", "rows:m;columns:d"),
        ("d:3;m:2", "rows:d;columns:m"),
        ("d:2;m:3", "rows:d;columns:m"),
    ],
)
def test_every_slice_of_split_dimensions_has_a_mask_of_its_own(
    mesh_shape, layout_rules
):
    assert equal_pairs(masks(mesh_shape, layout_rules)) == []


@pytest.mark.parametrize(
    ("mesh_shape", "layout_rules", "equal"),
    [
        ("m:2", "", [(0, 1)]),
        # Processors of d:2;m:2 in order: (0, 0), (0, 1), (1, 0), (1, 1).
        ("d:2;m:2", "rows:d", [(0, 1), (2, 3)]),
        ("d:2;m:2", "rows:m", [(0, 2), (1, 3)]),
        ("d:2;m:2", "columns:m", [(0, 2), (1, 3)]),
        ("d:2;m:2", "", list(itertools.combinations(range(4), 2))),
    ],
)
def test_processors_with_the_same_slice_have_the_same_mask(
    mesh_shape, layout_rules, equal
):
    """Otherwise what should be one tensor would differ between its replicas."""
    assert equal_pairs(masks(mesh_shape, layout_rules)) == equal
