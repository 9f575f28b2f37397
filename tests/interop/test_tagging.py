"""Identical weights in transformers' RemBertForTokenClassification tag identically."""

import numpy as np
import pytest

from decoupled.core.compat import mtf
from decoupled.core.release import tf
from decoupled.model.encoder import encode
from decoupled.model.heads import token_logits
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.tagging_files import TaggedSentence
from tests.helpers import tiny_model
from tests.interop.reference import NEEDS_TRANSFORMERS, run_reference
from tests.model.graphs import random_weights, run_model
from tests.tasks.tagged_words import DIFFICULT, TEXT, small_vocabulary

pytestmark = NEEDS_TRANSFORMERS

LENGTH = 20
MODEL = tiny_model(vocab_size=150, layer_norm_epsilon=1e-12)
TASK = task_of(TASKS["udpos"], "", LENGTH)


def test_logits_loss_gradients_and_tags(tmp_path):
    labels = TASK.labels
    sentences = [TaggedSentence(list(DIFFICULT), None)]
    sentences += [TaggedSentence(line.split(), None) for line in TEXT]
    sentences = [
        s._replace(tags=[labels[len(word) % 18] for word in s.words]) for s in sentences
    ]
    vocabulary = small_vocabulary(tmp_path / "pieces.model")
    features = TASK.features(vocabulary, sentences)
    network = TASK.network(dropout=0.0)
    inputs = network.prepare({n: tf.constant(features[n]) for n in TASK.graph_features})
    inputs = {name: value.numpy() for name, value in inputs.items()}
    scale = inputs.pop("loss_scale")[0]
    weights = random_weights(
        MODEL, lambda b, t: [token_logits(b, encode(b, t)[-1], len(labels), 0.0)]
    )
    names = []

    def outputs(build, tensors):
        number = mtf.constant(build.mesh, scale, [build.dims.batch], tf.float32)
        result = network.forward(build, {**tensors, "loss_scale": number})
        variables = build.mesh.graph.trainable_variables
        names[:] = [variable.name for variable in variables]
        gradients = mtf.gradients([result.loss], [v.value for v in variables])
        return [result.loss, result.predictions["best_labels"], *gradients]

    loss, best, *gradients = run_model(MODEL, inputs, outputs, weights)
    expected = run_reference(weights, MODEL, inputs)
    assert float(loss) == pytest.approx(expected["loss"], abs=1e-5)
    np.testing.assert_array_equal(best, expected["logits"].argmax(-1))
    assert set(names) == set(weights)
    for name, gradient in zip(names, gradients, strict=True):
        theirs = expected["gradients"][name]
        np.testing.assert_allclose(gradient, theirs, atol=1e-5, err_msg=name)
    tags = TASK.answers(sentences, features, {"best_labels": best})
    assert [len(row) for row in tags] == [len(s.words) for s in sentences]
