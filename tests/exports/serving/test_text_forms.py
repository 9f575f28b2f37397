"""Texts and pairs of texts that a SavedModel takes; others are refused.

What takes both is in test_saved_model.py.
"""

import numpy as np
import pytest

from decoupled.core.release import tf
from decoupled.exports.serving.encoder import FEATURES
from decoupled.exports.serving.roots import Root, feature_spec, network_function, trace
from decoupled.exports.serving.text import Preprocessor, TextRoot
from tests.exports.conftest import LABELS
from tests.exports.models import texts_without_training

FIRST = ["Select the page", "Show", ""]
SECOND = ["Delete the image", "the last user name", "Change"]


class WordSums(Root):
    """A model of one variable, as fast to trace as there is; words, their order and
    segments decide its logits."""

    def __init__(self, vocabulary):
        super().__init__()
        rows = np.random.default_rng(0).normal(size=[vocabulary.size, len(LABELS)])
        self.table = tf.Variable(rows, dtype=tf.float32)
        self.variables = self.trainable_variables = [self.table]
        trace(self.__call__, feature_spec())
        trace(self.predict, feature_spec())

    @network_function
    def __call__(self, inputs, training=False):
        return self.predict(inputs)

    @network_function
    def predict(self, inputs):
        ids, mask, types = (tf.cast(inputs[name], tf.float32) for name in FEATURES)
        weights = mask * (1 + types) * tf.sqrt(1 + tf.cumsum(mask, axis=1))
        rows = tf.gather(self.table, tf.cast(ids, tf.int32))
        return {"logits": tf.einsum("bl,blr->br", weights, rows)}


@pytest.fixture(scope="module")
def saved(vocabulary, tmp_path_factory):
    """segments -> the loaded model of strings.

    They are saved together, with one preprocessor, and without training.
    """
    model, preprocessor = WordSums(vocabulary), Preprocessor(vocabulary, 16, (1, 2))
    with texts_without_training():
        roots = tf.train.Checkpoint(
            singles=TextRoot(preprocessor, model, (1,), vocabulary),
            pairs=TextRoot(preprocessor, model, (2,), vocabulary),
        )
    signatures = roots.pairs.signatures()
    assert "predict_pairs" in signatures
    assert "predict_pairs" not in roots.singles.signatures()
    folder = str(tmp_path_factory.mktemp("saved"))
    tf.saved_model.save(roots, folder, signatures=signatures)
    loaded = tf.saved_model.load(folder)
    loaded.pairs.signatures = loaded.signatures
    return {(1,): loaded.singles, (2,): loaded.pairs}


def logits(outputs):
    return outputs["logits"].numpy()


def test_a_pair_is_two_arguments(saved):
    model = saved[2,]
    expected = logits(model.signatures["predict_pairs"](
        sentences=tf.constant(FIRST), second_sentences=tf.constant(SECOND)
    ))  # fmt: skip
    for outputs in (
        model.predict(FIRST, SECOND),
        model.predict(FIRST, second_sentences=SECOND),
        model(FIRST, second_sentences=SECOND),
        model(FIRST, training=False, second_sentences=SECOND),
    ):
        np.testing.assert_allclose(logits(outputs), expected, atol=1e-5)
    assert np.abs(expected - logits(model.predict(SECOND, FIRST))).max() > 1e-3


@pytest.mark.parametrize(
    "segments, texts",
    [
        ((1,), [FIRST, SECOND]),
        ((1,), [["a", "b"]]),
        ((1,), "a text"),
        ((2,), FIRST),
        ((2,), [FIRST, SECOND]),
        # Two pairs, or first and second texts?
        ((2,), [["a", "b"], ["c", "d"]]),
    ],
)
def test_other_forms_are_refused(saved, segments, texts):
    for call in (saved[segments], saved[segments].predict):
        with pytest.raises(ValueError, match="Could not find matching concrete func"):
            call(texts)


def test_a_model_of_single_texts_refuses_second_ones(saved):
    with pytest.raises(ValueError, match="Could not find matching concrete function"):
        saved[1,].predict(FIRST, SECOND)


def test_second_texts_are_as_many_as_first_ones(saved):
    wrong = "second_sentences: not as many as sentences"
    with pytest.raises(tf.errors.InvalidArgumentError, match=wrong):
        saved[2,].signatures["predict_pairs"](
            sentences=tf.constant(FIRST), second_sentences=tf.constant(SECOND[:2])
        )
    # With sizes that are known, TensorFlow's own check comes first.
    with pytest.raises(ValueError, match="Dimensions must be equal, but are 3 and 2"):
        saved[2,].predict(FIRST, SECOND[:2])


def test_signatures_of_a_model_of_pairs_take_pairs(saved):
    pairs = {"sentences": tf.constant(FIRST), "second_sentences": tf.constant(SECOND)}
    signatures = saved[2,].signatures
    expected = logits(signatures["predict_pairs"](**pairs))
    for name in ("serving_default", "sentence_pairs", "predict"):
        np.testing.assert_allclose(
            logits(signatures[name](**pairs)), expected, atol=1e-5
        )


def test_no_pairs_have_no_predictions(saved):
    nothing = tf.constant([], tf.string)
    assert logits(saved[2,].predict(nothing, nothing)).shape == (0, 3)
