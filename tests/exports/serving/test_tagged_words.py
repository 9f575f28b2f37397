"""The graph lays words out in the rows of `tasks.tagging_features`."""

import numpy as np
import pytest
import tensorflow as tf

from decoupled.exports.serving.encoder import Classifier, Encoder
from decoupled.exports.serving.roots import TaggerRoot
from decoupled.exports.serving.tagged_words import TextTaggerRoot, lay_out
from decoupled.tasks.tagging import tagging_features, word_tags
from decoupled.tasks.tagging_files import TaggedSentence
from tests.exports.models import finetuned_weights, model_config
from tests.tasks.tagged_words import DIFFICULT, TEXT, small_vocabulary

LENGTH = 12
LABELS = ["A", "B", "C", "D", "E"]


def in_python(sentences, window):
    """Row sizes and (row, position) of each word, one word after the other."""
    sizes, starts = [], []
    for words in sentences:
        begin = True
        for count in words:
            first = True
            while count:
                part = min(count, window)
                if begin or sizes[-1] + part > window:
                    sizes.append(0)
                    begin = False
                if first:
                    starts.append([len(sizes) - 1, sizes[-1] + 1])
                    first = False
                sizes[-1] += part
                count -= part
    return sizes, starts


@pytest.mark.parametrize("window", [1, 2, 5, 17, 1000])
def test_a_row_takes_words_while_there_is_room(window):
    generator = np.random.default_rng(window)
    sentences = [
        generator.integers(1, 13, generator.integers(0, 20)).tolist() for _ in range(40)
    ]
    # Without words, at the end and in the middle.
    sentences += [[], [3], []]
    counts = [count for words in sentences for count in words]
    splits = np.cumsum([0, *map(len, sentences)])
    rows = lay_out(tf.constant(counts, tf.int64), tf.constant(splits, tf.int64), window)
    sizes, starts = in_python(sentences, window)
    assert rows.sizes.numpy().tolist() == sizes
    assert rows.starts.numpy().tolist() == starts


@pytest.mark.parametrize("sentences", [0, 3])
def test_no_words_make_no_rows(sentences):
    nothing = tf.constant([], tf.int64)
    rows = lay_out(nothing, tf.zeros([sentences + 1], tf.int64), 5)
    assert rows.sizes.shape == (0,)
    assert rows.starts.shape == (0, 2)


def predicted(sentences, vocabulary, config, weights):
    """The tags of words by the features and rules of fine-tuning."""
    sentences = [TaggedSentence(words, None) for words in sentences]
    features = tagging_features(vocabulary, sentences, LABELS, LENGTH)
    inputs = {n: tf.constant(v) for n, v in features.items() if n.startswith("input")}
    logits = Classifier(weights)(Encoder(config, weights)(inputs)["sequence_output"])
    best = logits.numpy().argmax(-1)
    return word_tags(sentences, features["word_starts"], best, LABELS)


def test_raw_text_has_the_tags_of_the_predictions(tmp_path):
    vocabulary = small_vocabulary(tmp_path / "pieces.model")
    config = model_config(vocab_size=vocabulary.size, num_layers=1)
    weights = finetuned_weights(config, len(LABELS))
    # More than the bias decides.
    weights["output_weights"] *= 10
    tagger = TaggerRoot(
        Encoder(config, weights), Classifier(weights), LABELS, vocabulary.path
    )
    model = TextTaggerRoot(tagger, vocabulary, LENGTH)
    sentences = [list(DIFFICULT), *(line.split() for line in TEXT)]
    expected = predicted(sentences, vocabulary, config, weights)
    outputs = model(tf.ragged.constant(sentences))
    found = [[tag.decode() for tag in tags] for tags in outputs["tags"].to_list()]
    assert found == expected
    assert len({tag for tags in found for tag in tags}) > 1
    split = model(tf.constant(TEXT))
    assert split["words"].to_list() == outputs["words"][1:].to_list()
    assert split["tags"].to_list() == outputs["tags"][1:].to_list()
    np.testing.assert_allclose(
        tf.reduce_sum(split["probabilities"].values, axis=-1), 1.0, atol=1e-5
    )
    nothing = model(tf.constant(["", " "]))
    assert nothing["tags"].to_list() == [[], []]
