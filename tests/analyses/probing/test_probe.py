"""The probe finds what was planted, and not what was shuffled.

Labels without vectors: by hand.
"""

import dataclasses

import numpy as np
import pytest

from decoupled.analyses.probing.frozen_vectors import ProbingData, Sentence
from decoupled.analyses.probing.probe import (
    Probe,
    train_probe,
    word_lookup,
)
from decoupled.analyses.probing.task_files import Example, Target
from decoupled.configs.analyses import ProbeSettings
from decoupled.core.release import tf

SETTINGS = ProbeSettings(
    max_tokens=None,
    projection_size=16,
    hidden_size=32,
    dropout=0.1,
    learning_rate=1e-2,
    clip_norm=5.0,
    batch_size=16,
    train_steps=60,
    eval_every_steps=30,
    halve_after=1,
    stop_after=3,
    seed=0,
)
LAYERS, WIDTH, CLASSES, PIECES = 3, 8, 4, 6


def planted(seed, layer=1, second=False, shuffled=False, sentences=120):
    """Spans of one or two pieces; a piece's class is its largest of four numbers in one
    layer, and a target has the class of its (second) span's first piece.
    """
    generator = np.random.default_rng(seed)
    classes = generator.integers(0, CLASSES, [sentences, PIECES])
    vectors = generator.normal(size=[sentences, PIECES, LAYERS, WIDTH])
    vectors[:, :, layer, :CLASSES] += 4 * np.eye(CLASSES)[classes]
    starts = generator.integers(0, PIECES, [2, sentences, 3])
    spans = [np.stack([s, s + 1], -1).reshape(-1, 2) for s in starts]
    rows = np.repeat(np.arange(sentences), 3)
    labels = classes[rows, spans[int(second)][:, 0]]
    if shuffled:
        labels = generator.permutation(labels)
    ends = np.arange(sentences + 1) * PIECES
    spans = np.stack(spans[: 2 if second else 1], 1).reshape(sentences, 3, -1, 2)
    ids = [[(int(label),) for label in of] for of in labels.reshape(sentences, 3)]
    rows = [
        Sentence(ends[i], ends[i + 1], spans[i], ids[i], [(i, n) for n in range(3)])
        for i in range(sentences)
    ]
    flat = vectors.reshape(-1, LAYERS, WIDTH).astype(np.float16)
    return ProbingData(flat, rows, CLASSES, 0)


def train(settings=SETTINGS, **kind):
    data = {"train": planted(0, **kind), "dev": planted(1, **kind)}
    return train_probe(data | {"test": planted(2, **kind)}, settings, "probe")


@pytest.fixture(scope="module")
def found():
    return train()


def test_a_planted_signal_is_found_in_its_layer(found):
    assert found.scores["dev"]["f1"] > 0.95
    assert found.scores["test"]["f1"] > 0.95
    assert found.scores["test"]["targets"] == 360
    assert found.hits.shape == (360,) and found.hits.mean() > 0.95
    assert sum(found.mix) == pytest.approx(1)
    assert found.mix[1] == max(found.mix) > 0.5


def test_a_shuffled_signal_is_not_found_and_training_ends_where_dev_rests():
    settings = dataclasses.replace(
        SETTINGS, train_steps=10**6, eval_every_steps=20, stop_after=2
    )
    shuffled = train(settings, shuffled=True)
    # Four classes: no better than to say one of them, or none.
    assert shuffled.scores["test"]["f1"] < 0.35
    assert shuffled.steps < 10**4


def test_the_same_seed_gives_the_same_numbers(found):
    again = train()
    np.testing.assert_array_equal(again.hits, found.hits)
    assert again._replace(hits=None) == found._replace(hits=None)


def test_pooling_and_layers_by_hand():
    probe = Probe(2, 2, 1, 1, dataclasses.replace(SETTINGS, dropout=0.0))
    kernel, bias = probe.projections[0]
    kernel.assign(np.eye(2, 16))
    score, _ = probe.attention[0]
    score.assign(np.eye(16, 1) * np.log(3))
    probe.mix_weights.assign([np.log(3.0), 0.0])
    probe.mix_scale.assign(2.0)
    captured = {}
    probe._drop = lambda x, step, place: captured.setdefault(place, x)
    # 2 * (3/4 of the first layer + 1/4 of the second): [1, 0], [0, 4], [8, 8].
    vectors = np.array([[[0.5, 0], [0.5, 0]], [[0, 2], [0, 2]], [[4, 4], [4, 4]]])
    vectors[0] = [[0, 0], [2, 0]]
    rows, owners = np.array([0, 1, 2]), np.array([0, 0, 1])
    logits = probe(
        tf.constant(vectors, tf.float32),
        ((tf.constant(rows, tf.int32), tf.constant(owners, tf.int32)),),
    )
    assert logits.shape == (2, 1)
    pooled = captured[0].numpy()
    # Scores ln 3 * 1 and 0: shares 3/4 and 1/4 of [1, 0] and [0, 4].
    np.testing.assert_allclose(pooled[:, :2], [[0.75, 1], [8, 8]], rtol=1e-5)
    assert not pooled[:, 2:].any()
    hidden, output = probe.hidden, probe.output
    expected = np.tanh(pooled @ hidden[0].numpy()) @ output[0].numpy()
    np.testing.assert_allclose(logits, expected, rtol=1e-5)


def tagged(text):
    """A sentence of word/TAG."""
    pairs = [pair.split("/") for pair in text.split()]
    targets = [Target((i, i + 1), None, (tag,)) for i, (_, tag) in enumerate(pairs)]
    return Example([word for word, _ in pairs], targets)


TRAIN = [tagged("a/DET run/NOUN"), tagged("run/VERB run/VERB run/VERB fast/ADV")]
TEST = [tagged("fast/ADJ run/NOUN"), tagged("new/VERB run/VERB a/DET")]


def test_words_are_looked_up_and_new_ones_have_the_most_frequent_label():
    every = [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    f1, hits = word_lookup(TRAIN, TEST, every)
    assert hits.tolist() == [False, False, True, True, True]
    assert f1 == 0.6


def test_only_targets_within_the_length_are_scored():
    assert word_lookup(TRAIN, TEST, [(0, 1), (1, 2)])[1].tolist() == [False, True]


def test_a_word_without_labels_is_looked_up_as_a_new_one():
    targets = [Target((0, 1), None, ()), Target((1, 2), None, ("thing",))]
    examples = [Example(["page", "image"], targets)]
    f1, _ = word_lookup(examples, examples, [(0, 0), (0, 1)])
    assert f1 == pytest.approx(2 / 3)


def test_pairs_are_looked_up_and_then_the_first_word():
    def related(first, second, label):
        return Example([first, second], [Target((0, 1), (1, 2), (label,))])

    train = [
        related("dogs", "bark", "nsubj"),
        related("dogs", "feed", "obj"),
        related("dogs", "see", "obj"),
        related("loud", "bark", "advmod"),
    ]
    test = [
        related("dogs", "bark", "nsubj"),
        related("dogs", "sleep", "obj"),
        # Unknown: obj is the most frequent, though "bark" is known as the second.
        related("seals", "bark", "obj"),
    ]
    _, hits = word_lookup(train, test, [(0, 0), (1, 0), (2, 0)])
    assert hits.all()
