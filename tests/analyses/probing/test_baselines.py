"""Labels without vectors: by hand."""

import numpy as np
import pytest

from decoupled.analyses.probing.baselines import majority, scored_targets, word_lookup
from decoupled.analyses.probing.frozen_vectors import ProbingData
from decoupled.analyses.probing.probe import Score
from decoupled.analyses.probing.task_files import Example, Target


def tagged(text):
    """A sentence of word/TAG."""
    pairs = [pair.split("/") for pair in text.split()]
    targets = [Target((i, i + 1), None, (tag,)) for i, (_, tag) in enumerate(pairs)]
    return Example([word for word, _ in pairs], targets)


def scored(places):
    nothing = np.zeros(0)
    return ProbingData(nothing, nothing, (), [], nothing, 0, places, 0)


TRAIN = [tagged("a/DET run/NOUN"), tagged("run/VERB run/VERB run/VERB fast/ADV")]
TEST = [tagged("fast/ADJ run/NOUN"), tagged("new/VERB run/VERB a/DET")]


def test_words_are_looked_up_and_new_ones_have_the_most_frequent_label():
    every = scored([(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)])
    found = word_lookup(TRAIN, TEST, every)
    assert found.hits.tolist() == [False, False, True, True, True]
    assert found.score == Score(0.6, 0.6, 0.6, 5)


def test_only_targets_within_the_length_are_scored():
    data = scored([(0, 1), (1, 2)])
    assert word_lookup(TRAIN, TEST, data).hits.tolist() == [False, True]
    assert scored_targets(TEST, data) == [TEST[0].targets[1], TEST[1].targets[2]]


def test_the_most_frequent_label():
    found = majority(TRAIN, TEST[0].targets + TEST[1].targets)
    # VERB is 3 of 6 in training and 2 of 5 here.
    assert found.hits.tolist() == [False, False, True, True, False]
    assert found.score == Score(0.4, 0.4, 0.4, 5)


def test_several_labels_of_a_target():
    both = [Target((0, 1), None, ("VERB", "MODAL"))]
    # One right of one said and two there.
    assert majority(TRAIN, both).score.f1 == pytest.approx(2 / 3)


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
    found = word_lookup(train, test, scored([(0, 0), (1, 0), (2, 0)]))
    assert found.hits.all()
