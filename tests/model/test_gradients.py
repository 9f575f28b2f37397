"""Loss and gradients, on one device and whatever dimension is split, against the
definitions in float64; and what must have no gradient."""

import numpy as np
import pytest

from decoupled.core.compat import mtf
from decoupled.core.release import tf as tf2
from decoupled.model.dims import NAMES
from decoupled.model.encoder import encode
from decoupled.model.heads import cls_positions, sequence_logits
from tests.exports.reference import Reference
from tests.helpers import masked_lm_features, tiny_model
from tests.model.graphs import (
    encoder_features,
    loss_and_gradients,
    masked_lm_loss,
    random_weights,
)

FEATURES = masked_lm_features(batch_size=4)
MODELS = {
    "decoupled": {},
    "coupled, tanh": {
        "coupled": True,
        "output_embedding_size": 8,
        "activation": "gelu_tanh",
    },
    "no projections, relu": {
        "input_embedding_size": 16,
        "output_embedding_size": 16,
        "mlm_transform": "projection",
        "activation": "relu",
        "num_heads": 2,
        "head_size": 8,
        "layer_norm_epsilon": 0.1,
    },
    "two layers": {"num_layers": 2, "input_embedding_size": 20},
}
ONE, TWO_BY_TWO = ("all:1", ""), ("d:2;m:2", "batch:d;vocab:m;heads:m;intermediate:m")
# On one device, or split where only that model can be; all else in the longer tests.
# Six steps of two layers are in tests/training/test_against_eager.py.
LAYOUTS = {
    "decoupled": ("m:2", "output_embedding:m"),
    "coupled, tanh": TWO_BY_TWO,
    "no projections, relu": ONE,
}
OTHERS = [
    *(
        ("decoupled", "m:2", f"{name}:m")
        for name in NAMES
        if name not in ("labels", "pooled", "output_embedding")
    ),
    ("coupled, tanh", "m:2", "input_embedding:m"),
    ("two layers", *ONE),
    *((name, *TWO_BY_TWO) for name in ("decoupled", "two layers")),
]


@pytest.fixture(scope="module")
def expected():
    """Name of a model -> its weights, loss and gradients by the definitions."""
    made = {}

    def of(name):
        if name not in made:
            config = tiny_model(**{"num_layers": 1, **MODELS[name]})
            weights = random_weights(config, masked_lm_loss)
            made[name] = (config, weights, by_definition(config, weights))
        return made[name]

    return of


def by_definition(config, weights):
    """`masked_lm_loss` and its gradients in float64."""
    tensors = {n: tf2.constant(value, tf2.float64) for n, value in weights.items()}
    with tf2.GradientTape() as tape:
        tape.watch(tensors)
        losses = Reference(config, tensors).losses(FEATURES)
        loss = tf2.reduce_sum(losses * FEATURES["masked_lm_weights"])
    gradients = tape.gradient(loss, tensors)
    arrays = {n: tf2.convert_to_tensor(g).numpy() for n, g in gradients.items()}
    return {"loss": loss.numpy(), **arrays}


def check(values, expected):
    assert values.keys() == expected.keys()
    for name, value in expected.items():
        # A key's bias adds the same number to all scores of a query: its gradient is
        # 0 but for rounding, whose size is that of the gradient of its kernel.
        scale = np.abs(expected[name.replace("key/bias", "key/kernel")]).max()
        assert scale > 1e-2
        np.testing.assert_allclose(
            values[name] / scale, value / scale, atol=1e-5, rtol=0, err_msg=name
        )


@pytest.mark.parametrize(
    "name, mesh, layout",
    [
        *((name, *layout) for name, layout in LAYOUTS.items()),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS),
    ],
)
def test_loss_and_gradients_are_those_of_the_definitions(expected, name, mesh, layout):
    config, weights, by_hand = expected(name)
    values = loss_and_gradients(config, FEATURES, masked_lm_loss, weights, mesh, layout)
    check(values, by_hand)


@pytest.mark.parametrize(
    "split",
    [
        "labels",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("pooled", "sequence")),
    ],
)
def test_a_classifier_is_the_same_whatever_is_split(split):
    def loss(build, tensors):
        cls = encode(build, tensors, cls_positions(build))[-1]
        logits = sequence_logits(build, cls, 4, dropout=0.0)
        return mtf.reduce_sum(mtf.square(logits))

    config = tiny_model(input_embedding_size=16)
    arguments = config, encoder_features(batch=4), loss, random_weights(config, loss)
    whole = loss_and_gradients(*arguments)
    check(loss_and_gradients(*arguments, "m:2", f"{split}:m"), whole)
