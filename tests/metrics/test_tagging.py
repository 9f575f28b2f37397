"""Scores of tags. Expected values are those of seqeval 0.0.12 and 1.2.2."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupled.metrics.tagging import (
    entity_scores,
    part_of_speech_scores,
    run_scores,
    spans,
)

THIRD, TWO_THIRDS = 33.33333333333333, 66.66666666666666
# Sentences, parted by "/"; labels, predictions, F1, precision and recall.
ENTITIES = [
    (
        "B-PER I-PER O / I-LOC I-LOC B-LOC",
        "B-PER O O / B-LOC I-LOC B-LOC",
        (TWO_THIRDS, TWO_THIRDS, TWO_THIRDS),
    ),
    ("B-PER I-LOC I-LOC", "B-PER B-LOC I-LOC", (100, 100, 100)),
    ("B-PER B-PER", "B-PER I-PER", (0, 0, 0)),
    ("I-PER I-PER", "B-PER I-PER", (100, 100, 100)),
    ("B-ORG / I-ORG", "B-ORG / B-ORG", (100, 100, 100)),
    ("B-ORG O B-LOC", "B-ORG O O", (TWO_THIRDS, 100, 50)),
    ("O B-ORG", "O O", (0, 0, 0)),
    ("O O", "O O", (0, 0, 0)),
]
# Labels, predictions, F1 of 0.0.12, F1 of 1.2.2, accuracy.
PARTS_OF_SPEECH = [
    (
        "ADJ DET VERB AUX NOUN ADJ SCONJ / CONJ ART X",
        "ADJ CONJ VERB AUX NOUN ADJ SCONJ / CONJ SCONJ X",
        (80, 77.77777777777779, 80),
    ),
    ("NOUN NOUN VERB", "NOUN NOUN NOUN", (0, 0, TWO_THIRDS)),
    ("SYM SYM NOUN", "SYM SYM SYM", (TWO_THIRDS, TWO_THIRDS, TWO_THIRDS)),
    ("SCONJ INTJ INTJ X", "INTJ INTJ SCONJ X", (THIRD, 0, 50)),
    ("X", "X", (100, 0, 100)),
    (
        "DET NOUN / NOUN VERB",
        "DET NOUN / NOUN NOUN",
        (57.142857142857, 57.142857142857, 75),
    ),
    ("PROPN PROPN _ X", "PROPN NOUN _ X", (57.142857142857, 0, 75)),
    ("NOUN", "VERB", (0, 0, 0)),
]
TAGS = "NOUN X SYM SCONJ INTJ _ O B-PER I-PER I-LOC E-LOC S-ORG".split()


def sentences(text):
    return [sentence.split() for sentence in text.split("/")]


@pytest.mark.parametrize("labels, predictions, expected", ENTITIES)
def test_entities(labels, predictions, expected):
    expected = dict(zip(("f1", "precision", "recall"), expected, strict=True))
    pair = sentences(labels), sentences(predictions)
    assert entity_scores(*pair) == pytest.approx(expected, abs=1e-9)
    assert run_scores(*pair) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("labels, predictions, expected", PARTS_OF_SPEECH)
def test_parts_of_speech_by_every_rule(labels, predictions, expected):
    scores = part_of_speech_scores(sentences(labels), sentences(predictions))
    f1, f1_new, accuracy = expected
    assert scores["f1"] == pytest.approx(f1, abs=1e-9)
    assert scores["f1_seqeval_1_2_2"] == pytest.approx(f1_new, abs=1e-9)
    assert scores["accuracy"] == pytest.approx(accuracy, abs=1e-9)
    assert list(scores) == ["f1", "precision", "recall", "accuracy", "f1_seqeval_1_2_2"]


def test_spans_are_numbered_through_all_sentences():
    found = list(spans(sentences("NOUN NOUN X / X SYM SYM / B-PER I-PER E-PER I-PER")))
    assert found == [
        ("NOUN", 0, 1),
        ("X", 2, 2),
        ("X", 4, 4),
        ("SYM", 5, 5),
        ("SYM", 6, 6),
        ("PER", 8, 10),
        ("PER", 11, 11),
    ]


@given(st.lists(st.lists(st.sampled_from(TAGS), min_size=1), min_size=1))
def test_right_predictions_are_full_marks(labels):
    some = any(tag != "O" for sentence in labels for tag in sentence)
    assert run_scores(labels, labels)["f1"] == (100.0 if some else 0.0)


def test_lengths_must_match():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        part_of_speech_scores([["X", "X"]], [["X"]])
    with pytest.raises(ValueError, match="inconsistent"):
        entity_scores([["O", "O"]], [["O"]])
    for scores in (part_of_speech_scores, entity_scores):
        with pytest.raises(ValueError, match="no "):
            scores([], [])


def test_real_parts_of_speech_with_every_tenth_noun_a_verb(data_dir):
    path = os.path.join(data_dir, "xtreme/udpos/test-en.tsv")
    with open(path, encoding="utf-8") as handle:
        blocks = handle.read().strip().split("\n\n")
    labels = [[line.split("\t")[1] for line in block.split("\n")] for block in blocks]
    nouns = 0
    predictions = []
    for sentence in labels:
        predictions.append([])
        for tag in sentence:
            nouns += tag == "NOUN"
            wrong = tag == "NOUN" and nouns % 10 == 0
            predictions[-1].append("VERB" if wrong else tag)
    assert part_of_speech_scores(labels, predictions) == pytest.approx(
        {
            "f1": 97.92722838991207,
            "precision": 97.8079733367517,
            "recall": 98.04677460806991,
            "accuracy": 98.3581732685104,
            "f1_seqeval_1_2_2": 97.92527566641687,
        },
        abs=1e-9,
    )
