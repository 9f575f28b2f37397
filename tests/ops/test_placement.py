"""Contractions as matrix products, and variables that are read once."""

import itertools

import numpy as np
import pytest
import tensorflow as tf2

from decoupled.compat import mtf, tf
from decoupled.ops.placement import matrix_product
from tests.helpers import mesh_impl

SIZES = dict(zip("abcde", (2, 3, 4, 5, 6), strict=True))


def equations():
    """Every contraction of two tensors of up to three of the indices abcd."""
    shapes = [p for n in (1, 2, 3) for p in itertools.permutations("abcd", n)]
    generator = np.random.default_rng(0)
    for _ in range(400):
        left, right = (shapes[generator.integers(len(shapes))] for _ in range(2))
        shared = [i for i in left if i in right]
        if not shared:
            continue
        kept = [i for i in dict.fromkeys(left + right) if generator.random() < 0.6]
        alone = [i for i in left + right if (i in left) != (i in right)]
        output = list(dict.fromkeys([*kept, *alone]))
        if generator.random() < 0.3:
            output = list(generator.permutation(output))
        yield f"{''.join(left)},{''.join(right)}->{''.join(output)}"


def test_products_equal_numpy_s_einsum():
    generator, taken = np.random.default_rng(1), 0
    for equation in equations():
        operands = equation.split("->")[0].split(",")
        x, y = (
            generator.normal(size=[SIZES[i] for i in operand]).astype(np.float32)
            for operand in operands
        )
        product = matrix_product(equation, tf2.constant(x), tf2.constant(y))
        if product is None:
            continue
        taken += 1
        expected = np.einsum(equation, x, y)
        np.testing.assert_allclose(product, expected, atol=1e-4, err_msg=equation)
    assert taken > 40


@pytest.mark.parametrize(
    "equation",
    [
        "abc,cd->abd",  # a dense layer
        "abd,cd->abc",  # its gradient for the input
        "abc,abd->cd",  # and for the kernel
        "abc,dc->abd",  # logits against an embedding
        "abc,acd->abd",  # a batch of products
    ],
)
def test_the_model_s_contractions_need_no_einsum(equation):
    operands = equation.split("->")[0].split(",")
    x, y = (tf2.ones([SIZES[i] for i in operand]) for operand in operands)
    assert matrix_product(equation, x, y) is not None


@pytest.mark.parametrize("equation", ["abc,dbc->adb", "ab,ab->ab", "abc,adc->bda"])
def test_what_needs_a_transpose_or_no_sum_is_left_to_einsum(equation):
    operands = equation.split("->")[0].split(",")
    x, y = (tf2.ones([SIZES[i] for i in operand]) for operand in operands)
    assert matrix_product(equation, x, y) is None


@pytest.mark.parametrize("mesh_shape, reads", [("all:1", 1), ("m:2", 2)])
def test_a_variable_is_read_once_per_processor(mesh_shape, reads):
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        dims = [mtf.Dimension("rows", 4)]
        w = mtf.get_variable(
            mesh, "w", mtf.Shape(dims), initializer=tf.zeros_initializer()
        )
        total = mtf.reduce_sum(w * w + mtf.square(w))
        gradient = mtf.gradients([total], [w])[0]
        implementation = mesh_impl(mesh_shape, "rows:m")
        lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
        ancestors = set()
        for tensor in (total, gradient):
            _collect(lowering.export_to_tf_tensor(tensor).op, ancestors)
    read = [op for op in ancestors if op.type == "ReadVariableOp"]
    assert len(read) == reads


def _collect(operation, found):
    if operation in found:
        return
    found.add(operation)
    for tensor in operation.inputs:
        _collect(tensor.op, found)
