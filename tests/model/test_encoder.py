"""The encoder at some positions, and what padding may not do.

Self-attention: scaling, padding, heads, against numbers worked out by hand. Against
numpy: test_gradients.py, and all layers in tests/exports/serving.
"""

import functools
import math

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.model.encoder import attention, attention_bias, encode
from decoupled.ops.gather import gather_positions
from tests.helpers import masked_lm_features, tiny_model
from tests.model.graphs import (
    build_only,
    encoder_features,
    random_weights,
    run_model,
)


def all_layers(build, tensors):
    encoded = encode(build, tensors)
    return [encoded.output, *encoded.layers]


class AtSomePositions:
    """The last layer at a few positions, and gradients of all weights."""

    def __init__(self):
        self.config = tiny_model(num_layers=2)
        self.weights = random_weights(self.config, all_layers)

    def run(self, positions_given, *mesh, **settings):
        """positions_given: to the encoder; otherwise read from all tokens' layer."""
        outputs = functools.partial(self._outputs, positions_given=positions_given)
        features = masked_lm_features(batch_size=4)
        return run_model(
            self.config, features, outputs, self.weights, *mesh, **settings
        )

    @staticmethod
    def _outputs(build, tensors, positions_given):
        positions = tensors["masked_lm_positions"]
        if positions_given:
            encoded = encode(build, tensors, positions)
            output = encoded.output
        else:
            encoded = encode(build, tensors)
            output = gather_positions(encoded.output, positions, build.dims.sequence)
        assert len(encoded.layers) == 2
        variables = build.mesh.graph.trainable_variables
        gradients = mtf.gradients(
            [mtf.reduce_sum(mtf.square(output))], [v.value for v in variables]
        )
        return [encoded.layers[0], output, *gradients]


@pytest.fixture(scope="module")
def at_some_positions():
    """The model, and what all tokens' last layer holds there."""
    model = AtSomePositions()
    return model, model.run(False)


@pytest.mark.parametrize(
    "mesh, layout, recompute_layers",
    [
        ("all:1", "", False),
        ("all:1", "", True),
        ("m:2", "heads:m;intermediate:m", True),
        pytest.param("m:2", "hidden:m", False, marks=pytest.mark.slow),
    ],
)
def test_the_last_layer_at_some_positions(
    at_some_positions, mesh, layout, recompute_layers
):
    model, expected = at_some_positions
    result = model.run(True, mesh, layout, recompute_layers=recompute_layers)
    for value, by_gather in zip(result, expected, strict=True):
        np.testing.assert_allclose(value, by_gather, rtol=1e-4, atol=1e-4)


def test_the_input_of_the_first_layer_is_given_too():
    """A post-norm layer whose two parts add nothing only normalises its input."""
    config, features = tiny_model(), encoder_features()

    def outputs(build, tensors):
        encoded = encode(build, tensors)
        return [encoded.embedded, encoded.layers[0]]

    weights = random_weights(config, all_layers)
    for name in weights:
        if name.endswith(("output/dense/kernel", "output/dense/bias", "beta")):
            weights[name] *= 0
        if name.endswith("gamma"):
            weights[name] = np.ones_like(weights[name])
    weights["bert/embeddings/LayerNorm/beta"] += 0.5
    embedded, first = run_model(config, features, outputs, weights)
    mean, deviation = embedded.mean(-1, keepdims=True), embedded.std(-1, keepdims=True)
    np.testing.assert_allclose(first, (embedded - mean) / deviation, atol=2e-4)
    assert np.abs(embedded - first).max() > 0.1


def test_padding_changes_nothing_but_padding():
    """Other pieces, other types and more of them leave every real token's bits."""
    config, features = tiny_model(), encoder_features()
    weights = random_weights(config, all_layers)
    real = features["input_mask"].astype(bool)
    other = {
        "input_mask": features["input_mask"],
        "input_word_ids": np.where(real, features["input_word_ids"], 40),
        "input_type_ids": np.where(real, features["input_type_ids"], 0),
    }
    first, second = (
        np.stack(run_model(config, batch, all_layers, weights))
        for batch in (features, other)
    )
    np.testing.assert_array_equal(first[:, real], second[:, real])
    assert np.abs(first[:, ~real] - second[:, ~real]).max() > 1e-2


def test_names_and_shapes_are_those_of_the_released_checkpoint():
    with tf.Graph().as_default():
        variables = build_only(tiny_model(num_layers=1), all_layers).all_variables
    layer = "bert/encoder/layer_0"
    norm = {"gamma": [16], "beta": [16]}
    square = {"kernel": [16, 16], "bias": [16]}
    blocks = {
        "bert/embeddings": {
            "word_embeddings": [48, 8],
            "position_embeddings": [20, 8],
            "token_type_embeddings": [2, 8],
        },
        "bert/embeddings/LayerNorm": {"gamma": [8], "beta": [8]},
        "bert/encoder/embedding_hidden_mapping_in": {"kernel": [8, 16], "bias": [16]},
        f"{layer}/attention/self/query": square,
        f"{layer}/attention/self/key": square,
        f"{layer}/attention/self/value": square,
        f"{layer}/attention/output/dense": square,
        f"{layer}/attention/output/LayerNorm": norm,
        f"{layer}/intermediate/dense": {"kernel": [16, 32], "bias": [32]},
        f"{layer}/output/dense": {"kernel": [32, 16], "bias": [16]},
        f"{layer}/output/LayerNorm": norm,
    }
    expected = {
        f"{b}/{n}": shape for b, block in blocks.items() for n, shape in block.items()
    }
    assert {v.name: v.shape.to_integer_list for v in variables} == expected


def test_bfloat16_layers_are_near_float32():
    config, features = tiny_model(num_layers=1), encoder_features()
    weights = random_weights(config, all_layers)
    dtypes = []

    def outputs(build, tensors):
        (layer,) = encode(build, tensors).layers
        dtypes.append(layer.dtype)
        return [mtf.cast(layer, tf.float32)]

    exact = run_model(config, features, outputs, weights)[0]
    coarse = run_model(config, features, outputs, weights, activation_dtype=tf.bfloat16)
    assert dtypes == [tf.float32, tf.bfloat16]
    difference = np.abs(coarse[0] - exact)
    # A bfloat16 has 8 bits; the values are of order 1.
    assert 1e-4 < difference.mean() < 2e-2


NAME = "bert/encoder/layer_0/attention"
PARTS = ("self/query", "self/key", "self/value", "output/dense")


def attend(x):
    """Attention over the fixed array x [batch, sequence, hidden]."""

    def outputs(build, tensors):
        dims = [build.dims.batch, build.dims.sequence, build.dims.hidden]
        fixed = mtf.import_tf_tensor(
            build.mesh, tf.constant(x, tf.float32), mtf.Shape(dims)
        )
        bias = attention_bias(build, tensors["input_mask"])
        return [attention(build, fixed, fixed, bias, NAME)]

    return outputs


def heads_of(heads, size):
    return tiny_model(
        hidden_size=heads * size, num_heads=heads, head_size=size, num_layers=1
    )


def features(mask):
    zeros = np.zeros_like(mask)
    return {"input_word_ids": zeros, "input_mask": mask, "input_type_ids": zeros}


def identity_weights(size):
    """Query, key, value and output are x itself."""
    weights = {
        f"{NAME}/{part}/kernel": np.eye(size, dtype=np.float32) for part in PARTS
    }
    return weights | {f"{NAME}/{p}/bias": np.zeros(size, np.float32) for p in PARTS}


def run_identity(config, x, mask):
    x, mask = np.array(x, np.float32), np.array(mask, np.int32)
    weights = identity_weights(config.hidden_size)
    return run_model(config, features(mask), attend(x), weights)[0]


def share(score, other):
    """Softmax of two scores, the first's."""
    return 1 / (1 + math.exp(other - score))


def test_the_scale_is_of_a_head_not_of_the_whole_width():
    """Two heads of size 1: the first attends by 2 * 2 / 1, the second by 0."""
    output = run_identity(heads_of(2, 1), [[[2, 0], [0, 6]]], [[1, 1]])
    first, second = 2 * share(4, 0), 6 * share(0, 0)
    np.testing.assert_allclose(output[0, 0], [first, second], atol=1e-6)
    # The second token: its first head is even, its second scores 0 and 36.
    np.testing.assert_allclose(output[0, 1], [1, 6 * share(36, 0)], atol=1e-6)


def test_a_sequence_of_padding_alone_gives_numbers():
    output = run_identity(heads_of(1, 2), [[[1, 0], [3, 0]]], [[0, 0]])
    assert np.isfinite(output).all()


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_scores_of_any_size_do_not_outweigh_the_mask(dtype):
    """A key on padding with a score of 8e5 / sqrt(2); real scores are near 0."""
    x = np.array([[[2, 0], [4e5, 0]]], np.float32)

    def outputs(build, tensors):
        dims = [build.dims.batch, build.dims.sequence, build.dims.hidden]
        fixed = mtf.import_tf_tensor(build.mesh, tf.constant(x), mtf.Shape(dims))
        bias = attention_bias(build, tensors["input_mask"])
        fixed = build.cast(fixed)
        y = attention(build, fixed, fixed, bias, NAME)
        return [mtf.cast(y, tf.float32)]

    results = run_model(
        heads_of(1, 2), features(np.array([[1, 0]], np.int32)), outputs,
        identity_weights(2), activation_dtype=dtype,
    )  # fmt: skip
    np.testing.assert_array_equal(results[0][0, 0], [2, 0])


def test_the_bias_is_0_for_real_tokens_and_far_below_for_padding():
    mask = np.array([[1, 0, 1], [1, 1, 0]], np.int32)

    def outputs(build, tensors):
        bias = attention_bias(build, tensors["input_mask"])
        assert bias.shape.dimension_names == ["batch", "memory"]
        return [bias]

    results = run_model(tiny_model(), features(mask), outputs)
    np.testing.assert_allclose(results[0], [[0, -1e9, 0], [0, 0, -1e9]])


def test_no_gradient_flows_to_padding_from_real_tokens():
    config, inputs = heads_of(4, 4), encoder_features()
    real = inputs["input_mask"].astype(bool)
    x = np.random.default_rng(3).normal(size=[4, 12, 16]).astype(np.float32)
    weights = random_weights(config, attend(x[:2]))

    def outputs(build, tensors):
        dims = [build.dims.batch, build.dims.sequence, build.dims.hidden]
        fixed = mtf.import_tf_tensor(build.mesh, tf.constant(x), mtf.Shape(dims))
        bias = attention_bias(build, tensors["input_mask"])
        y = attention(build, fixed, fixed, bias, NAME)
        kept = mtf.cast(tensors["input_mask"], tf.float32)
        return mtf.gradients([mtf.reduce_sum(mtf.square(y) * kept)], [fixed])

    gradient = run_model(config, inputs, outputs, weights)[0]
    np.testing.assert_array_equal(gradient[~real], 0)
    assert np.abs(gradient[real]).max() > 1e-2
