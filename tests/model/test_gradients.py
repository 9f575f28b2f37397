"""The loss's gradient against differences of the loss itself, in float64."""

import numpy as np
import pytest

from tests.exports.reference import Reference
from tests.helpers import masked_lm_features, tiny_model
from tests.model.graphs import loss_and_gradients, masked_lm_loss, random_weights

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
    },
    "output embedding of low rank": {"output_embedding_rank": 5},
}
FEATURES = masked_lm_features(batch_size=2)


def reference_loss(config, weights):
    """`masked_lm_loss` in float64."""
    losses = Reference(config, weights).losses(FEATURES).numpy()
    return (losses * FEATURES["masked_lm_weights"]).sum()


def difference(config, weights, name, index, step=1e-5):
    """Central difference of the loss along one entry of one variable."""
    losses = []
    for change in (step, -step):
        moved = weights[name].astype(np.float64)
        moved[index] += change
        losses.append(reference_loss(config, {**weights, name: moved}))
    return (losses[0] - losses[1]) / (2 * step)


@pytest.fixture(scope="module", params=MODELS)
def case(request):
    """(config, weights, loss and gradients of the mesh graph)."""
    config = tiny_model(**MODELS[request.param])
    weights = random_weights(config, masked_lm_loss)
    return (
        config, weights, loss_and_gradients(config, FEATURES, masked_lm_loss, weights)
    )  # fmt: skip


def test_the_loss_is_that_of_the_reference(case):
    config, weights, found = case
    assert (FEATURES["masked_lm_weights"] == 0).sum() == 0
    assert found["loss"] == pytest.approx(reference_loss(config, weights), rel=1e-6)


def test_every_variable_has_a_gradient(case):
    _, weights, found = case
    assert found.keys() == weights.keys() | {"loss"}


def test_gradients_are_differences_of_the_loss(case):
    """At a random entry of every variable, among those of a large gradient."""
    config, weights, found = case
    generator = np.random.default_rng(1)
    for name, weight in weights.items():
        gradient = found[name]
        entries = np.argsort(-np.abs(gradient), axis=None)[: max(weight.size // 2, 1)]
        index = np.unravel_index(generator.choice(entries), weight.shape)
        wanted = difference(config, weights, name, index)
        assert gradient[index] == pytest.approx(wanted, rel=1e-4, abs=1e-5), (
            f"{name}[{index}]"
        )


def test_only_rows_that_real_tokens_read_have_a_gradient():
    """Of the input's tables; of the output's table, every row has one."""
    config = tiny_model(num_layers=1)
    weights = random_weights(config, masked_lm_loss)
    ids, mask = FEATURES["input_word_ids"], FEATURES["input_mask"]
    # Padding is piece 0, and nothing else is.
    features = {**FEATURES, "input_word_ids": np.maximum(ids, 1) * mask}
    found = loss_and_gradients(config, features, masked_lm_loss, weights)

    def rows(name):
        return set(np.flatnonzero(np.abs(found[name]).max(axis=1)))

    assert rows("bert/embeddings/word_embeddings") == set(np.maximum(ids, 1)[mask == 1])
    assert rows("bert/embeddings/position_embeddings") == set(range(12))
    assert rows("bert/embeddings/token_type_embeddings") == {0, 1}
    assert rows("cls/predictions/output_embedding") == set(range(48))


def test_predictions_of_weight_0_have_no_gradient():
    config = tiny_model(num_layers=1)
    weights = random_weights(config, masked_lm_loss)
    features = masked_lm_features(batch_size=3)
    assert (features["masked_lm_weights"] == 0).sum() == 1
    unused = features["masked_lm_weights"] == 0
    other = {**features, "masked_lm_ids": features["masked_lm_ids"] ^ unused}
    found, same = (
        loss_and_gradients(config, given, masked_lm_loss, weights)
        for given in (features, other)
    )
    assert (other["masked_lm_ids"] != features["masked_lm_ids"]).any()
    for name, value in found.items():
        np.testing.assert_allclose(same[name], value, atol=1e-5, err_msg=name)


def test_frozen_variables_get_no_gradient_and_change_no_other():
    config = tiny_model(num_layers=1)
    weights = random_weights(config, masked_lm_loss)
    gone = {n for n in weights if "/embeddings/" in n or "output_bias" in n}
    assert len(gone) == 6
    free, frozen = (
        loss_and_gradients(config, FEATURES, masked_lm_loss, weights, frozen=names)
        for names in ((), gone)
    )
    assert frozen.keys() == free.keys() - gone
    for name, value in frozen.items():
        np.testing.assert_allclose(
            value, free[name], rtol=1e-5, atol=1e-5, err_msg=name
        )
