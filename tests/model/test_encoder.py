"""What padding may not do.

Self-attention: padding, against numbers worked out by hand. The encoder, also at some
positions, against the definitions: test_gradients.py, and all layers in
tests/exports/serving.
"""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.model.encoder import attention, attention_bias, encode
from tests.helpers import tiny_model
from tests.model.graphs import (
    encoder_features,
    random_weights,
    run_model,
)


def all_layers(build, tensors):
    encoded = encode(build, tensors)
    return [encoded[-1], *encoded]


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


NAME = "bert/encoder/layer_0/attention"
PARTS = ("self/query", "self/key", "self/value", "output/dense")


def attend(x):
    """Attention over the fixed array x [batch, sequence, hidden]."""

    def outputs(build, tensors):
        dims = [build.dims.batch, build.dims.sequence, build.dims.hidden]
        fixed = mtf.import_tf_tensor(build.mesh, tf.constant(x), mtf.Shape(dims))
        fixed = build.cast(fixed)
        bias = attention_bias(build, tensors["input_mask"])
        return [mtf.cast(attention(build, fixed, fixed, bias, NAME), tf.float32)]

    return outputs


ONE_HEAD = tiny_model(hidden_size=2, num_heads=1, head_size=2, num_layers=1)


def run_identity(x, mask, **settings):
    """With query, key, value and output that are x itself."""
    x, mask = np.array(x, np.float32), np.array(mask, np.int32)
    weights = {f"{NAME}/{part}/kernel": np.eye(2, dtype=np.float32) for part in PARTS}
    weights |= {f"{NAME}/{part}/bias": np.zeros(2, np.float32) for part in PARTS}
    zeros = np.zeros_like(mask)
    features = {"input_word_ids": zeros, "input_mask": mask, "input_type_ids": zeros}
    return run_model(ONE_HEAD, features, attend(x), weights, **settings)[0]


def test_a_sequence_of_padding_alone_gives_numbers():
    output = run_identity([[[1, 0], [3, 0]]], [[0, 0]])
    assert np.isfinite(output).all()


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_scores_of_any_size_do_not_outweigh_the_mask(dtype):
    """A key on padding with a score of 8e5 / sqrt(2); real scores are near 0."""
    x = [[[2, 0], [4e5, 0]]]
    output = run_identity(x, [[1, 0]], activation_dtype=dtype)
    np.testing.assert_array_equal(output[0, 0], [2, 0])
