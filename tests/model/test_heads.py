"""Initial weights of tied and untied heads, and the places of dropout.

What heads compute is compared with the definitions in test_gradients.py and in
tests/exports/serving.
"""

import dataclasses

import numpy as np

from decoupled.core.compat import mtf, tf
from decoupled.model.embeddings import OutputEmbedding
from decoupled.model.encoder import encode
from decoupled.model.heads import (
    cls_positions,
    sequence_logits,
)
from tests.helpers import tiny_model
from tests.model.graphs import (
    build_only,
    initial_weights,
)

TABLE = "cls/predictions/output_embedding"


def masked_lm(build, tensors):
    encoded = encode(build, tensors, tensors["masked_lm_positions"])[-1]
    return [OutputEmbedding(build).logits(encoded)]


def test_tied_and_untied_graphs_differ_in_the_table_only():
    """Equal seeds give all that they share equal initial weights."""
    tied, untied = (
        initial_weights(tiny_model(coupled=coupled, output_embedding_size=8), masked_lm)
        for coupled in (True, False)
    )
    assert set(untied) - set(tied) == {TABLE}
    assert set(tied) - set(untied) == set()
    for name, value in tied.items():
        np.testing.assert_array_equal(untied[name], value, err_msg=name)
    words = untied["bert/embeddings/word_embeddings"]
    assert np.abs(np.corrcoef(words.ravel(), untied[TABLE].ravel())[0, 1]) < 0.2


def classifier(labels=3, dropout=0.0):
    def outputs(build, tensors):
        cls = encode(build, tensors, cls_positions(build))[-1]
        return [sequence_logits(build, cls, labels, dropout)]

    return outputs


def in_training(build, seed):
    """The builder with this dropout seed."""
    number = mtf.constant(build.mesh, seed, dtype=tf.int32)
    return dataclasses.replace(build, dropout_seed=number)


def test_every_dropout_of_the_model_has_a_mask_of_its_own(monkeypatch):
    """Equal names would give equal masks in different places."""
    config = tiny_model(num_layers=2, hidden_dropout=0.1, attention_dropout=0.1)
    names = []
    monkeypatch.setattr(
        "decoupled.model.layers.dropout",
        lambda x, rate, seed, name: names.append(name) or x,
    )

    def outputs(build, tensors):
        classifier(dropout=0.1)(in_training(build, 1), tensors)

    with tf.Graph().as_default():
        build_only(config, outputs)
    # Embeddings and classifier; weights and two residuals of each layer.
    assert len(names) == 1 + 1 + 2 * 3
    assert len(set(names)) == len(names)
