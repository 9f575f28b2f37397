"""Which gradients are kept as two factors, and the norm of all."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops.gradients import as_factored, global_norm
from decoupled.ops.weight_product import weight_product
from tests.helpers import mesh_impl, run_mesh
from tests.ops.simd_on_cpu import OneCore

BATCH, PREDICTIONS = mtf.Dimension("batch", 2), mtf.Dimension("predictions", 3)
VOCAB, WIDTH = mtf.Dimension("vocab", 96), mtf.Dimension("width", 128)
INNER = [BATCH, PREDICTIONS]


def gradient_of_table(mesh, x, weight, tied=False):
    """Of sum(tanh(x table^T) * weight) in the table."""
    table = mtf.get_variable(mesh, "table", mtf.Shape([VOCAB, WIDTH]))
    logits = weight_product(x, table, [*INNER, VOCAB])
    loss = mtf.reduce_sum(mtf.cast(mtf.tanh(logits) * weight, tf.float32))
    if tied:
        loss += mtf.reduce_sum(table)
    return mtf.gradients([loss], [table])[0]


def values():
    """x [2, 3, 128] and weight [2, 3, 96]."""
    generator = np.random.default_rng(0)
    return (
        generator.normal(size=(2, 3, 128)).astype(np.float32),
        generator.normal(size=(2, 3, 96)).astype(np.float32),
    )


def factored(mesh_shape="all:1", layout="", dtype=tf.float32, smallest=1, **changes):
    """What `as_factored` says of the table's gradient."""
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        x, weight = (
            mtf.import_tf_tensor(mesh, v, mtf.Shape([*INNER, d]))
            for v, d in zip(values(), (WIDTH, VOCAB), strict=True)
        )
        x, weight = mtf.cast(x, dtype), mtf.cast(weight, dtype)
        gradient = gradient_of_table(mesh, x, weight, **changes)
        return as_factored(gradient, mesh_impl(mesh_shape, layout), smallest)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_a_products_gradient_is_known_by_its_factors(dtype):
    """Also where the weights are cast, and so is their gradient."""
    product = factored(dtype=dtype)
    assert product.left.shape.dims == [*INNER, VOCAB]
    assert product.right.shape.dims == [*INNER, WIDTH]
    assert (product.left.dtype, product.right.dtype) == (dtype, dtype)
    assert product.shape.dims == [VOCAB, WIDTH]


def test_a_sum_of_gradients_is_no_product():
    """As that of an embedding that is both input and output."""
    assert factored(tied=True) is None


def test_small_gradients_are_made_whole():
    assert factored(smallest=96 * 128) is not None
    assert factored(smallest=96 * 128 + 1) is None
    # A processor's part counts.
    assert factored("m:2", "vocab:m", smallest=96 * 128 // 2 + 1) is None


def test_sums_over_processors_are_made_whole():
    assert factored("m:2", "vocab:m") is not None
    assert factored("m:2", "width:m") is not None
    assert factored("m:2", "batch:m") is None


def with_rows(count, implementation):
    """What `as_factored` says of a product of so many inner rows."""
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        rows = mtf.Dimension("rows", count)
        left = mtf.zeros(mesh, mtf.Shape([rows, VOCAB]))
        right = mtf.zeros(mesh, mtf.Shape([rows, WIDTH]))
        product = mtf.einsum([left, right], output_shape=[VOCAB, WIDTH])
        return as_factored(product, implementation, smallest=1)


def test_so_are_those_whose_norm_would_cost_too_much():
    """A quarter of 96 x 128 / (96 + 128) inner rows, 13.7, are as many as pay."""
    assert with_rows(13, mesh_impl()) is not None
    assert with_rows(14, mesh_impl()) is None


def test_a_tpu_makes_gradients_whole():
    shape, layout = mtf.convert_to_shape("all:1"), mtf.convert_to_layout_rules("")
    assert with_rows(2, OneCore(shape, layout)) is None


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize(
    ("mesh_shape", "layout"),
    [
        ("all:1", ""),
        ("m:2", "vocab:m"),
        ("m:2", "width:m"),
        ("d:2;m:2", "vocab:d;width:m"),
        ("d:2;m:2", "vocab:m"),
    ],
)
def test_norm_of_the_factors_is_that_of_the_product(
    dtype, mesh_shape, layout, monkeypatch
):
    # Ten columns are cast at a time.
    monkeypatch.setattr("decoupled.ops.gradients._CAST_ELEMENTS", 60)
    left, right = values()[1], values()[0]

    def build(mesh, tensors):
        pair = [mtf.cast(tensors[name], dtype) for name in ("left", "right")]
        whole = mtf.einsum(pair, output_shape=[VOCAB, WIDTH])
        product = as_factored(whole, mesh_impl(mesh_shape, layout), smallest=1)
        other = mtf.cast(tensors["other"], dtype)
        return [global_norm([product]), global_norm([product, other])]

    other = np.full(3, 20, np.float32)
    inputs = {
        "left": (left, [*INNER, VOCAB]),
        "right": (right, [*INNER, WIDTH]),
        "other": (other, [PREDICTIONS]),
    }
    norm, of_both = run_mesh(build, inputs, mesh_shape, layout)
    if dtype == tf.bfloat16:
        left, right = (
            tf.cast(tf.cast(x, dtype), tf.float32).numpy() for x in (left, right)
        )
    product = np.einsum("bpv,bpw->vw", left.astype(np.float64), right)
    expected = np.square(product).sum()
    assert norm == pytest.approx(np.sqrt(expected), rel=1e-5)
    assert of_both == pytest.approx(np.sqrt(expected + 1200), rel=1e-5)


def test_norm_of_factors_that_cancel_is_zero_and_not_nan():
    x = np.random.default_rng(1).normal(size=(1, 3, 128)).astype(np.float32)
    left = np.concatenate([x, x])
    right = np.concatenate([x, -x])
    dims = [*INNER, mtf.Dimension("rows", 128)]
    columns = [*INNER, mtf.Dimension("columns", 128)]

    def build(mesh, tensors):
        pair = [tensors["left"], tensors["right"]]
        whole = mtf.einsum(pair, output_shape=[dims[-1], columns[-1]])
        return [global_norm([as_factored(whole, mesh_impl(), smallest=1)])]

    inputs = {"left": (left, dims), "right": (right, columns)}
    [norm] = run_mesh(build, inputs)
    assert 0 <= norm < 0.2


def test_replicas_are_not_counted_twice():
    rows, columns = mtf.Dimension("rows", 2), mtf.Dimension("columns", 2)
    inputs = {
        "split": (np.array([[3, 0], [0, 0]], np.float32), [rows, columns]),
        "half": (np.array([0, 4], np.float32), [rows]),
        "whole": (np.float32(12), []),
    }

    def build(mesh, tensors):
        return [global_norm(list(tensors.values()))]

    [norm] = run_mesh(build, inputs, "d:2;m:2", "rows:d;columns:m")
    assert norm == pytest.approx(13.0)


def test_norm_of_zeros_is_zero():
    inputs = {"x": (np.zeros([3], np.float32), [mtf.Dimension("x", 3)])}
    assert run_mesh(lambda mesh, t: [global_norm([t["x"]])], inputs)[0] == 0.0
