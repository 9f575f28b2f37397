"""Contractions as matrix products, and variables that are read once."""

import itertools

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.core.machine import Processor
from decoupled.core.release import tf as tf2
from decoupled.ops.meshes.placement import (
    bfloat16_is_slow,
    matrix_product,
)
from tests.helpers import mesh_impl, operations_before

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


def kinds_of_operations(equation_dims, output_names):
    """(types of the operations in a lowered contraction, its value, numpy's)."""
    dims = {name: mtf.Dimension(name, SIZES[name]) for name in "abcde"}
    generator = np.random.default_rng(3)
    arrays = [
        generator.normal(size=[SIZES[i] for i in names]).astype(np.float32)
        for names in equation_dims
    ]
    with tf.Graph().as_default() as tensorflow_graph:
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        tensors = [
            mtf.import_tf_tensor(mesh, array, mtf.Shape([dims[i] for i in names]))
            for array, names in zip(arrays, equation_dims, strict=True)
        ]
        y = mtf.einsum(tensors, output_shape=[dims[i] for i in output_names])
        lowering = mtf.Lowering(graph, {mesh: mesh_impl()}, autostack=False)
        value = lowering.export_to_tf_tensor(y)
        kinds = {operation.type for operation in tensorflow_graph.get_operations()}
        with tf.Session() as session:
            result = session.run(value)
    equation = f"{','.join(equation_dims)}->{output_names}"
    return kinds, result, np.einsum(equation, *arrays)


@pytest.mark.parametrize(
    "operands, output, used, unused",
    [
        (("abc", "cd"), "abd", "MatMul", "Einsum"),
        (("abc", "acd"), "abd", "BatchMatMulV2", "Einsum"),
        (("abc", "dbc"), "adb", "Einsum", "MatMul"),
        (("ab", "bc", "cd"), "ad", "Einsum", "MatMul"),
    ],
)
def test_meshes_multiply_matrices_where_they_can(operands, output, used, unused):
    kinds, result, expected = kinds_of_operations(operands, output)
    assert used in kinds
    assert unused not in kinds
    np.testing.assert_allclose(result, expected, atol=1e-5)


@pytest.mark.parametrize("mesh_shape, reads", [("all:1", 1), ("m:2", 2)])
def test_variables_are_read_once_per_processor_and_slices_not_drawn(mesh_shape, reads):
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        dims = [mtf.Dimension("rows", 4)]
        w, u = (
            mtf.get_variable(
                mesh, name, mtf.Shape(dims), initializer=tf.zeros_initializer()
            )
            for name in "wu"
        )
        total = mtf.reduce_sum(w * w * u + mtf.square(w) - mtf.square(u))
        gradients = mtf.gradients([total], [w, u])
        implementation = mesh_impl(mesh_shape, "rows:m")
        lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
        results = [lowering.export_to_tf_tensor(x).op for x in (total, *gradients)]
    read = [op for op in operations_before(results) if op.type == "ReadVariableOp"]
    variables = {op.inputs[0].op for op in read}
    assert len(variables) == len(read) == 2 * reads
    kinds = [op.type for op in results[0].graph.get_operations()]
    assert not [kind for kind in kinds if "Random" in kind]
    # Masters that are slices need no copies.
    assert (kinds.count("NoOp") == 1) == (reads == 1)


@pytest.mark.parametrize("multiplies_in_float32", [False, True])
def test_products_of_bfloat16_are_bfloat16(multiplies_in_float32, monkeypatch):
    """Rounded once, from sums in float32, by whatever they are computed."""
    monkeypatch.setattr(
        "decoupled.ops.meshes.placement.bfloat16_is_slow", lambda: multiplies_in_float32
    )
    generator = np.random.default_rng(3)
    x, y = (generator.normal(size=(8, 300)).astype(np.float32) for _ in range(2))
    with tf.Graph().as_default() as graph, tf.Session() as session:
        pair = [tf.cast(tf.constant(v), tf.bfloat16) for v in (x, y)]
        product = mesh_impl().einsum("ab,cb->ac", *pair)
        exact = tf.matmul(*[tf.cast(v, tf.float32) for v in pair], transpose_b=True)
        result, expected = session.run(
            [
                tf.cast(product, tf.float32),
                tf.cast(tf.cast(exact, tf.bfloat16), "float32"),
            ]
        )
        kinds = {
            o.inputs[0].dtype for o in graph.get_operations() if o.type == "MatMul"
        }
    assert product.dtype == tf.bfloat16
    np.testing.assert_allclose(result, expected, rtol=2**-7)
    assert (tf.bfloat16 in kinds) != multiplies_in_float32


CASES = {
    "Sapphire Rapids whose AMX is hidden": ("GenuineIntel", "avx512_bf16", True),
    "Sapphire Rapids": ("GenuineIntel", "avx512_bf16 amx_bf16 amx_tile", False),
    "Zen 5": ("AuthenticAMD", "avx2 avx512_bf16", False),
    "Zen 3": ("AuthenticAMD", "avx2", True),
    "Haswell": ("GenuineIntel", "avx2", True),
}


def described_as(monkeypatch, vendor, flags):
    described = Processor("a model", vendor, frozenset(flags.split()))
    monkeypatch.setattr("decoupled.ops.meshes.placement.processor", lambda: described)


@pytest.mark.parametrize("case", CASES)
def test_known_processors(monkeypatch, case):
    vendor, flags, is_slow = CASES[case]
    described_as(monkeypatch, vendor, f"fpu {flags}")
    assert bfloat16_is_slow() == is_slow
