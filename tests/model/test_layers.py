"""Variables and the small parts: initial weights, freezing, casts."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.model.variables import (
    ONES,
    TRUNCATED_NORMAL,
    ZEROS,
    Variable,
    dimension,
)
from tests.helpers import tiny_model
from tests.model.graphs import (
    build_only,
    encoder_features,
    initial_weights,
    make_builder,
)

WIDE = tiny_model(hidden_size=64, num_heads=4, head_size=16, intermediate_size=512)


def declared(config, **variables):
    """Variables of given names and dimensions, as `Builder.variables`: {name: (dims,
    initializer)}, dimensions as in `SIZES`."""
    return {
        name: Variable(
            name, tuple(dimension(config, dim) for dim in dims.split()), start, "pooler"
        )
        for name, (dims, start) in variables.items()
    }


def layer(config, name, inputs, outputs):
    """A dense layer."""
    return declared(
        config,
        **{
            f"{name}/kernel": (f"{inputs} {outputs}", TRUNCATED_NORMAL),
            f"{name}/bias": (outputs, ZEROS),
        },
    )


def norm(config, name, width):
    """A layer norm."""
    return declared(
        config, **{f"{name}/gamma": (width, ONES), f"{name}/beta": (width, ZEROS)}
    )


def kernels(*names):
    def outputs(build, tensors):
        for name in names:
            build.kernel(name)

    return outputs


def matrices(config, *names):
    each = ("hidden intermediate", TRUNCATED_NORMAL)
    return declared(config, **dict.fromkeys(names, each))


def drawn(*names, config=WIDE, **settings):
    variables = matrices(config, *names)
    return initial_weights(config, kernels(*names), variables=variables, **settings)


def test_a_weight_is_a_function_of_seed_and_name_alone():
    """Neither of the other variables nor of the order in which they are made."""
    both, reverse, alone = drawn("a", "b"), drawn("b", "c", "a"), drawn("b")
    np.testing.assert_array_equal(both["a"], reverse["a"])
    np.testing.assert_array_equal(both["b"], reverse["b"])
    np.testing.assert_array_equal(both["b"], alone["b"])


def test_weights_of_a_known_seed():
    """Every process draws these: nothing of Python's own hashes or `random`."""
    value = drawn("a", config=tiny_model(initializer_range=1.0), initializer_seed=5)
    expected = [-0.3362526, -0.5103416, 1.232812, 1.687982]
    np.testing.assert_allclose(value["a"][0, :4], expected, atol=1e-6)


@pytest.mark.parametrize("deviation", [0.02, 0.5])
def test_kernels_are_truncated_normal(deviation):
    config = tiny_model(
        hidden_size=64, num_heads=4, head_size=16, intermediate_size=512,
        initializer_range=deviation,
    )  # fmt: skip
    value = drawn("a", config=config)["a"] / deviation
    assert np.abs(value).max() <= 2
    # A standard normal cut off at 2: deviation sqrt(1 - 4 phi(2) / (2 Phi(2) - 1)),
    # share within 1 of 0.6827 / 0.9545; tolerances of four deviations of 32768 draws.
    assert value.mean() == pytest.approx(0, abs=4 * 0.88 / 181)
    assert value.std() == pytest.approx(0.8796, abs=0.012)
    assert np.mean(np.abs(value) < 1) == pytest.approx(0.7152, abs=0.01)


def test_biases_are_0_gammas_1_and_betas_0():
    config = tiny_model()

    def outputs(build, tensors):
        x = mtf.zeros(build.mesh, mtf.Shape([build.dims.batch, build.dims.hidden]))
        build.layer_norm(build.dense(x, "d"), "n")

    variables = layer(config, "d", "hidden", "heads") | norm(config, "n", "heads")
    weights = initial_weights(config, outputs, variables=variables)
    assert sorted(weights) == ["d/bias", "d/kernel", "n/beta", "n/gamma"]
    np.testing.assert_array_equal(weights["d/bias"], [0, 0, 0, 0])
    np.testing.assert_array_equal(weights["n/beta"], [0, 0, 0, 0])
    np.testing.assert_array_equal(weights["n/gamma"], [1, 1, 1, 1])


@pytest.mark.parametrize(
    "frozen, trained",
    [
        ((), {"bert/a", "bert/ab", "cls/a"}),
        (("bert/ab", "cls/a"), {"bert/a"}),
        # A whole name, not the start of one.
        (("bert/a",), {"bert/ab", "cls/a"}),
    ],
)
def test_frozen_variables_are_not_trainable(frozen, trained):
    names, config = ("bert/a", "bert/ab", "cls/a"), tiny_model()
    variables = matrices(config, *names)
    with tf.Graph().as_default():
        graph = build_only(config, kernels(*names), frozen=frozen, variables=variables)
    assert {v.name for v in graph.trainable_variables} == trained
    assert {v.name for v in graph.all_variables} == {"bert/a", "bert/ab", "cls/a"}


@pytest.mark.parametrize(
    ("slice_dtype", "kernel_dtype"),
    [(tf.float32, tf.float32), (tf.bfloat16, tf.bfloat16)],
)
def test_variables_are_saved_in_float32(slice_dtype, kernel_dtype):
    """Tables and kernels in float32 slices are read so: rows are cast after the lookup,
    kernels where a product needs them."""
    config = tiny_model()
    variables = layer(config, "layer", "hidden", "heads") | declared(
        config,
        table=("vocab hidden", TRUNCATED_NORMAL),
        kernel=("hidden heads", TRUNCATED_NORMAL),
        bias=("hidden", ZEROS),
    )
    with tf.Graph().as_default():
        features = encoder_features()
        build = make_builder(
            config, mtf.Mesh(mtf.Graph(), "mesh"), features, variables=variables,
            activation_dtype=tf.bfloat16, slice_dtype=slice_dtype,
        )  # fmt: skip
        dims = build.dims
        table, kernel = build.embedding("table"), build.kernel("kernel")
        bias = build.bias("bias")
        rows = mtf.zeros(build.mesh, mtf.Shape([dims.batch, dims.hidden]), tf.bfloat16)
        product = build.dense(rows, "layer")
        stored = {v.op.name: v.dtype.base_dtype for v in tf.global_variables()}
    assert (table.dtype, kernel.dtype) == (tf.float32, kernel_dtype)
    assert (bias.dtype, product.dtype) == (tf.bfloat16, tf.bfloat16)
    assert set(stored.values()) == {tf.float32}
    slices = {v.name: v.slice_dtype for v in build.mesh.graph.all_variables}
    # Vectors are float32 on the devices, too.
    assert slices["kernel"] == slices["table"] == slice_dtype
    assert slices["bias"] == slices["layer/bias"] == tf.float32
    assert build.cast(table).dtype == tf.bfloat16
