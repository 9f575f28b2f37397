"""The masked-LM head, coupled and decoupled, and the sequence classifier."""

import dataclasses

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.model.embeddings import OutputEmbedding
from decoupled.model.encoder import encode
from decoupled.model.heads import (
    cls_positions,
    sequence_logits,
    token_logits,
)
from tests.exports.reference import Reference
from tests.helpers import masked_lm_features, tiny_model
from tests.model.graphs import (
    build_only,
    encoder_features,
    initial_weights,
    random_weights,
    run_model,
)

TABLE = "cls/predictions/output_embedding"
TRANSFORM = "cls/predictions/transform"
COUPLED = {"coupled": True, "output_embedding_size": 8}
PROJECTION = {"mlm_transform": "projection"}
MODELS = {
    "decoupled": {},
    "decoupled, relu": {"activation": "relu"},
    "decoupled, low rank": {"output_embedding_rank": 5},
    "coupled": COUPLED,
    "decoupled, projection": PROJECTION,
    "coupled, projection": {**COUPLED, **PROJECTION},
    "decoupled, projection, E_out = H": {**PROJECTION, "output_embedding_size": 16},
    "decoupled, dense, E_out = H": {"output_embedding_size": 16},
}


def masked_lm(build, tensors):
    encoded = encode(build, tensors, tensors["masked_lm_positions"]).output
    return [OutputEmbedding(build).logits(encoded)]


def head_variables(changes):
    """Names and shapes of the variables of the head only."""
    weights = random_weights(tiny_model(**changes), masked_lm)
    return {n: v.shape for n, v in weights.items() if n.startswith("cls/")}


@pytest.mark.parametrize("name", MODELS)
def test_masked_lm_logits_are_what_numpy_computes(name):
    config = tiny_model(num_layers=1, **MODELS[name])
    features = masked_lm_features(batch_size=3)
    weights = random_weights(config, masked_lm)
    logits = run_model(config, features, masked_lm, weights)[0]

    reference = Reference(config, weights)
    expected = reference.masked_lm(
        reference.encode(features)[-1], features["masked_lm_positions"]
    )
    assert logits.shape == (3, 4, 48)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("changes, width", [({}, 24), (COUPLED, 8)])
def test_variables_of_dense_activation_norm(changes, width):
    table = {} if changes else {TABLE: (48, width)}
    assert head_variables(changes) == {
        f"{TRANSFORM}/dense/kernel": (16, width),
        f"{TRANSFORM}/dense/bias": (width,),
        f"{TRANSFORM}/LayerNorm/gamma": (width,),
        f"{TRANSFORM}/LayerNorm/beta": (width,),
        **table,
        "cls/predictions/output_bias": (48,),
    }


def test_variables_of_the_plain_projection():
    assert head_variables(PROJECTION) == {
        f"{TRANSFORM}/dense/kernel": (16, 24),
        f"{TRANSFORM}/dense/bias": (24,),
        TABLE: (48, 24),
        "cls/predictions/output_bias": (48,),
    }
    assert head_variables({**PROJECTION, "output_embedding_size": 16}) == {
        TABLE: (48, 16),
        "cls/predictions/output_bias": (48,),
    }


def test_variables_of_an_output_embedding_of_low_rank():
    """The table [V, R] comes after a matrix [R, E_out], which has no bias."""
    whole, factorised = head_variables({}), head_variables({"output_embedding_rank": 5})
    assert factorised == whole | {TABLE: (48, 5), f"{TABLE}_factor": (5, 24)}


def test_two_factors_compute_what_their_product_does():
    features = masked_lm_features(batch_size=2)
    factorised = tiny_model(num_layers=1, output_embedding_rank=5)
    weights = random_weights(factorised, masked_lm)
    product = weights[TABLE] @ weights[f"{TABLE}_factor"]
    whole = {**weights, TABLE: product}
    del whole[f"{TABLE}_factor"]
    np.testing.assert_allclose(
        run_model(factorised, features, masked_lm, weights)[0],
        run_model(tiny_model(num_layers=1), features, masked_lm, whole)[0],
        rtol=1e-5, atol=2e-5,
    )  # fmt: skip


@pytest.mark.parametrize("transform", ["dense_activation_norm", "projection"])
def test_tied_and_untied_graphs_differ_in_the_table_only(transform):
    """Equal seeds give all that they share equal initial weights."""
    sizes = dict(output_embedding_size=8, mlm_transform=transform)
    tied = initial_weights(tiny_model(coupled=True, **sizes), masked_lm)
    untied = initial_weights(tiny_model(coupled=False, **sizes), masked_lm)
    assert set(untied) - set(tied) == {TABLE}
    assert set(tied) - set(untied) == set()
    for name, value in tied.items():
        np.testing.assert_array_equal(untied[name], value, err_msg=name)
    words = untied["bert/embeddings/word_embeddings"]
    assert np.abs(np.corrcoef(words.ravel(), untied[TABLE].ravel())[0, 1]) < 0.2


def test_an_untied_model_with_equal_tables_computes_what_a_tied_one_does():
    features = masked_lm_features(batch_size=2)
    tied = tiny_model(num_layers=1, **COUPLED)
    untied = tiny_model(num_layers=1, **{**COUPLED, "coupled": False})
    weights = random_weights(tied, masked_lm)
    copy = {**weights, TABLE: weights["bert/embeddings/word_embeddings"]}
    np.testing.assert_array_equal(
        run_model(tied, features, masked_lm, weights)[0],
        run_model(untied, features, masked_lm, copy)[0],
    )


@pytest.mark.parametrize("changes", [{}, COUPLED])
def test_the_width_of_the_output_changes_no_weight_of_the_encoder(changes):
    """Models that differ in the output embedding only start from one encoder."""
    small = initial_weights(tiny_model(**changes), masked_lm)
    large = initial_weights(tiny_model(output_embedding_size=40), masked_lm)
    encoder = {name for name in small if name.startswith("bert/")}
    assert encoder == {name for name in large if name.startswith("bert/")}
    for name in encoder:
        np.testing.assert_array_equal(small[name], large[name], err_msg=name)


def classifier(labels=3, dropout=0.0):
    def outputs(build, tensors):
        cls = encode(build, tensors, cls_positions(build)).output
        return [sequence_logits(build, cls, labels, dropout)]

    return outputs


def test_sequence_logits_are_what_numpy_computes():
    config, features = tiny_model(num_layers=1), encoder_features()
    weights = random_weights(config, classifier())
    logits = run_model(config, features, classifier(), weights)[0]

    reference = Reference(config, weights)
    cls = reference.encode(features)[-1][:, 0]
    pooled = np.tanh(reference.dense(cls, "bert/pooler/dense"))
    expected = pooled @ weights["output_weights"].T + weights["output_bias"]
    assert logits.shape == (4, 3)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_variables_of_the_classifier():
    weights = random_weights(tiny_model(), classifier(labels=5))
    encoder = random_weights(tiny_model(), lambda b, t: [encode(b, t).output])
    shapes = {n: v.shape for n, v in weights.items() if n not in encoder}
    assert shapes == {
        "bert/pooler/dense/kernel": (16, 16),
        "bert/pooler/dense/bias": (16,),
        "output_weights": (5, 16),
        "output_bias": (5,),
    }


def test_sequence_logits_are_float32_whatever_the_activations_are():
    def outputs(build, tensors):
        (logits,) = classifier()(build, tensors)
        assert logits.dtype == tf.float32
        return [logits]

    run_model(
        tiny_model(num_layers=1), encoder_features(), outputs,
        activation_dtype=tf.bfloat16,
    )  # fmt: skip


def in_training(build, seed):
    """The builder with this dropout seed."""
    number = mtf.constant(build.mesh, seed, dtype=tf.int32)
    return dataclasses.replace(build, dropout_seed=number)


def test_classifier_dropout_zeroes_pooled_entries_in_training_only():
    """With weights that pick pooled entries, logits are 0 or doubled at rate 0.5."""
    config, features = tiny_model(num_layers=1), encoder_features(batch=16)
    weights = random_weights(config, classifier(labels=16))
    weights["output_weights"] = np.eye(16, dtype=np.float32)
    weights["output_bias"] = np.zeros(16, np.float32)

    def logits(build, tensors):
        dropping, still = classifier(16, dropout=0.5), classifier(16)
        return [
            *dropping(build, tensors),
            *still(build, tensors),
            *dropping(in_training(build, 1), tensors),
        ]

    same, still, dropped = run_model(config, features, logits, weights)
    np.testing.assert_array_equal(same, still)
    zero = dropped == 0
    np.testing.assert_allclose(dropped[~zero], 2 * still[~zero], rtol=1e-5)
    # Four deviations of 256 draws.
    assert zero.mean() == pytest.approx(0.5, abs=4 * 0.5 / 16)


def test_every_dropout_of_the_model_has_a_mask_of_its_own():
    """Equal names would give equal masks in different places."""
    config = tiny_model(num_layers=2, hidden_dropout=0.1, attention_dropout=0.1)

    def outputs(build, tensors):
        classifier(dropout=0.1)(in_training(build, 1), tensors)

    with tf.Graph().as_default():
        operations = build_only(config, outputs).operations
    salts = [o._salt for o in operations if o.name.startswith("dropout_mask")]
    # Embeddings and classifier; weights and two residuals of each layer.
    assert len(salts) == 1 + 1 + 2 * 3
    assert len(set(salts)) == len(salts)


def tagger(labels=3, dropout=0.0):
    def outputs(build, tensors):
        encoded = encode(build, tensors).output
        return [token_logits(build, encoded, labels, dropout)]

    return outputs


def test_token_logits_are_what_numpy_computes():
    config, features = tiny_model(num_layers=1), encoder_features()
    weights = random_weights(config, tagger())
    logits = run_model(config, features, tagger(), weights)[0]

    encoded = Reference(config, weights).encode(features)[-1]
    expected = encoded @ weights["output_weights"].T + weights["output_bias"]
    assert logits.shape == (4, 12, 3)
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_variables_of_the_tagger():
    weights = random_weights(tiny_model(), tagger(labels=5))
    encoder = random_weights(tiny_model(), lambda b, t: [encode(b, t).output])
    shapes = {n: v.shape for n, v in weights.items() if n not in encoder}
    assert shapes == {"output_weights": (5, 16), "output_bias": (5,)}


def test_tagger_dropout_zeroes_entries_in_training_only():
    """As for the classifier."""
    config, features = tiny_model(num_layers=1), encoder_features()
    weights = random_weights(config, tagger(labels=16))
    weights["output_weights"] = np.eye(16, dtype=np.float32)
    weights["output_bias"] = np.zeros(16, np.float32)

    def logits(build, tensors):
        dropping, still = tagger(16, dropout=0.5), tagger(16)
        return [
            *dropping(build, tensors),
            *still(build, tensors),
            *dropping(in_training(build, 1), tensors),
        ]

    same, still, dropped = run_model(config, features, logits, weights)
    np.testing.assert_array_equal(same, still)
    zero = dropped == 0
    np.testing.assert_allclose(dropped[~zero], 2 * still[~zero], rtol=1e-5)
    # Four deviations of 768 draws.
    assert zero.mean() == pytest.approx(0.5, abs=4 * 0.5 / 768**0.5)
