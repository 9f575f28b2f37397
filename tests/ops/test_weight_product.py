"""Products with weights that are cast where they are needed."""

import functools

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops.weight_product import weight_product
from tests.helpers import run_mesh

BATCH, TOKENS = mtf.Dimension("batch", 2), mtf.Dimension("tokens", 5)
ROWS, COLUMNS = mtf.Dimension("rows", 40), mtf.Dimension("columns", 24)
# Mesh, layout, and rows of weights that are cast at once: few, or more than there are.
CASES = [
    ("all:1", "", 10**6),
    ("all:1", "", 1),
    ("m:2", "rows:m", 1),
    ("d:2;m:2", "batch:d;columns:m", 1),
]


def numbers(seed, *shape):
    """Whole numbers, so that sums are exact in float32 and in bfloat16."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def run(product, dtype, mesh_shape, layout, out=ROWS):
    """(y, gradient of x, gradient of the weights) of sum(y * weight)."""
    inner = COLUMNS if out == ROWS else ROWS
    inputs = {
        "x": (numbers(0, 2, 5, inner.size), [BATCH, TOKENS, inner]),
        "weight": (numbers(1, 2, 5, out.size), [BATCH, TOKENS, out]),
    }

    def build(mesh, tensors):
        weights = mtf.get_variable(mesh, "weights", mtf.Shape([ROWS, COLUMNS]))
        x = mtf.cast(tensors["x"], dtype)
        y = product(x, weights, [BATCH, TOKENS, out])
        loss = mtf.reduce_sum(mtf.cast(y, tf.float32) * tensors["weight"])
        gradients = mtf.gradients([loss], [x, weights])
        assert [g.dtype for g in gradients] == [dtype, tf.float32]
        return [mtf.cast(z, tf.float32) for z in (y, *gradients)]

    return run_mesh(build, inputs, mesh_shape, layout, {"weights": numbers(2, 40, 24)})


def cast_at_once(x, weights, shape):
    return mtf.einsum([x, mtf.cast(weights, x.dtype)], output_shape=shape)


@functools.cache
def by_one_cast(out):
    """Exact, so the same whatever multiplies."""
    return run(cast_at_once, tf.bfloat16, "all:1", "", out)


@pytest.fixture(params=[False, True], ids=["as bfloat16", "as float32"], autouse=True)
def multiplies_in_float32(request, monkeypatch):
    """Both kinds of processors."""
    monkeypatch.setattr(
        "decoupled.ops.meshes.placement.bfloat16_is_slow", lambda: request.param
    )
    return request.param


@pytest.mark.parametrize("out", [ROWS, COLUMNS], ids=lambda dim: dim.name)
@pytest.mark.parametrize(("mesh_shape", "layout", "tile"), CASES)
def test_values_and_gradients_are_those_of_one_cast(
    mesh_shape, layout, out, tile, monkeypatch
):
    monkeypatch.setattr("decoupled.ops.weight_product._TILE", tile)
    result = run(weight_product, tf.bfloat16, mesh_shape, layout, out)
    expected = by_one_cast(out)
    for value, right in zip(result, expected, strict=True):
        np.testing.assert_array_equal(value, right)
    assert np.abs(expected[0]).max() > 5
