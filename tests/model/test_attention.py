"""Self-attention: scaling, padding, heads, against numbers worked out by hand."""

import math

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.model.attention import attention, attention_bias
from tests.exports.reference import Reference
from tests.helpers import tiny_model
from tests.model.graphs import encoder_features, random_weights, run_model

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


def test_scores_are_divided_by_the_root_of_the_head_size():
    """One head of size 4: 2 . 2 = 4 becomes 4 / sqrt(4) = 2, and 2 . 0 = 0."""
    found = run_identity(heads_of(1, 4), [[[2, 0, 0, 0], [0, 0, 0, 0]]], [[1, 1]])
    np.testing.assert_allclose(found[0, 0], [2 * share(2, 0), 0, 0, 0], atol=1e-6)
    # All scores of a zero query are 0.
    np.testing.assert_allclose(found[0, 1], [1, 0, 0, 0], atol=1e-6)


def test_the_scale_is_of_a_head_not_of_the_whole_width():
    """Two heads of size 1: the first attends by 2 * 2 / 1, the second by 0."""
    found = run_identity(heads_of(2, 1), [[[2, 0], [0, 6]]], [[1, 1]])
    first, second = 2 * share(4, 0), 6 * share(0, 0)
    np.testing.assert_allclose(found[0, 0], [first, second], atol=1e-6)
    # The second token: its first head is even, its second scores 0 and 36.
    np.testing.assert_allclose(found[0, 1], [1, 6 * share(36, 0)], atol=1e-6)


def test_padding_has_no_share():
    found = run_identity(heads_of(1, 2), [[[1, 0], [0, 1], [50, 50]]], [[1, 1, 0]])
    own, other = share(1 / math.sqrt(2), 0), share(0, 1 / math.sqrt(2))
    np.testing.assert_allclose(found[0, 0], [own, other], atol=1e-6)
    np.testing.assert_allclose(found[0, 1], [other, own], atol=1e-6)


def test_a_sequence_of_padding_alone_gives_numbers():
    found = run_identity(heads_of(1, 2), [[[1, 0], [3, 0]]], [[0, 0]])
    assert np.isfinite(found).all()


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

    found = run_model(
        heads_of(1, 2), features(np.array([[1, 0]], np.int32)), outputs,
        identity_weights(2), activation_dtype=dtype,
    )  # fmt: skip
    np.testing.assert_array_equal(found[0][0, 0], [2, 0])


def test_the_bias_is_0_for_real_tokens_and_far_below_for_padding():
    mask = np.array([[1, 0, 1], [1, 1, 0]], np.int32)

    def outputs(build, tensors):
        bias = attention_bias(build, tensors["input_mask"])
        assert bias.shape.dimension_names == ["batch", "memory"]
        return [bias]

    found = run_model(tiny_model(), features(mask), outputs)
    np.testing.assert_allclose(found[0], [[0, -1e9, 0], [0, 0, -1e9]])


@pytest.mark.parametrize("heads, size", [(1, 16), (4, 4), (2, 8)])
def test_any_number_of_heads_against_numpy(heads, size):
    config, inputs = heads_of(heads, size), encoder_features()
    x = np.random.default_rng(3).normal(size=[4, 12, 16])
    weights = random_weights(config, attend(x[:2]))
    found = run_model(config, inputs, attend(x), weights)[0]
    reference = Reference(config, weights)
    real = inputs["input_mask"].astype(bool)
    wanted = reference.attention(x, real, NAME)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_what_stands_on_padding_never_reaches_a_real_token():
    """Neither through its key nor through its value: the bits are the same."""
    config, inputs = heads_of(4, 4), encoder_features()
    real = inputs["input_mask"].astype(bool)
    generator = np.random.default_rng(3)
    x = generator.normal(size=[4, 12, 16])
    weights = random_weights(config, attend(x[:2]))
    other = np.where(real[:, :, np.newaxis], x, generator.normal(size=x.shape) * 9)
    first, second = (
        run_model(config, inputs, attend(y), weights)[0] for y in (x, other)
    )
    np.testing.assert_array_equal(first[real], second[real])
    assert np.abs(first[~real] - second[~real]).max() > 1e-2


def test_no_gradient_flows_to_padding_from_real_tokens():
    config, inputs = heads_of(4, 4), encoder_features()
    real = inputs["input_mask"].astype(bool)
    x = np.random.default_rng(3).normal(size=[4, 12, 16]).astype(np.float32)
    weights = random_weights(config, attend(x[:2]))

    def outputs(build, tensors):
        dims = [build.dims.batch, build.dims.sequence, build.dims.hidden]
        given = mtf.import_tf_tensor(build.mesh, tf.constant(x), mtf.Shape(dims))
        bias = attention_bias(build, tensors["input_mask"])
        y = attention(build, given, given, bias, NAME)
        kept = mtf.cast(tensors["input_mask"], tf.float32)
        return mtf.gradients([mtf.reduce_sum(mtf.square(y) * kept)], [given])

    gradient = run_model(config, inputs, outputs, weights)[0]
    np.testing.assert_array_equal(gradient[~real], 0)
    assert np.abs(gradient[real]).max() > 1e-2
