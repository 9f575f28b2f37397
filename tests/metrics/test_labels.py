"""Scores of tags. Expected values are those of seqeval 0.0.12 and 1.2.2.

seqeval 1.2.2 itself scores random tags beside the project's code; of 0.0.12 there are
tables of values.
"""

import os
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval import metrics

from decoupled.metrics.labels import (
    accuracy,
    entity_scores,
    part_of_speech_scores,
    set_scores,
    spans,
)
from tests.processes import run_python

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
TAGS = "NOUN X SYM SCONJ INTJ _ O B-PER I-PER I-LOC E-LOC S-ORG B I B-A-B".split()


def tag_pairs(tags):
    """Labels and predictions of the same lengths, malformed ones among them."""
    words = st.lists(st.tuples(*[st.sampled_from(tags)] * 2), min_size=1, max_size=9)
    return st.lists(words, min_size=1, max_size=4).map(
        lambda sentences: tuple(
            [[pair[side] for pair in sentence] for sentence in sentences]
            for side in (0, 1)
        )
    )


def seqeval_scores(labels, predictions):
    """F1, precision and recall in percent, as seqeval 1.2.2 gives them."""
    measures = metrics.f1_score, metrics.precision_score, metrics.recall_score
    with warnings.catch_warnings():
        # About tags that are no entity's, and a precision of nothing.
        warnings.simplefilter("ignore")
        return [100 * measure(labels, predictions) for measure in measures]


def sentences(text):
    return [sentence.split() for sentence in text.split("/")]


@pytest.mark.parametrize("labels, predictions, expected", ENTITIES)
def test_entities(labels, predictions, expected):
    expected = dict(zip(("f1", "precision", "recall"), expected, strict=True))
    pair = sentences(labels), sentences(predictions)
    assert set_scores(*map(spans, pair)) == pytest.approx(expected, abs=1e-9)
    assert entity_scores(*pair) == pytest.approx(expected, abs=1e-9)


@given(tag_pairs(TAGS))
def test_default_rules_are_those_of_seqeval_for_tags_of_all_kinds(pair):
    ours = list(entity_scores(*pair).values())
    assert ours == pytest.approx(seqeval_scores(*pair), abs=1e-9)


def test_tags_are_scored_with_python_alone():
    """A fine-tuned tagger is scored after its training: no package may be missing."""
    code = (
        "import sys\n"
        "from decoupled.xtreme.official import score_language\n"
        "score_language('panx', 'en', [['B-LOC']], [['B-LOC']])\n"
        "score_language('udpos', 'en', [['NOUN']], [['NOUN']])\n"
        "packages = {name.split('.')[0] for name in sys.modules}\n"
        "print(*packages & {'seqeval', 'sklearn', 'scipy', 'pandas'})\n"
    )
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("\n", "")


@pytest.mark.parametrize("labels, predictions, expected", PARTS_OF_SPEECH)
def test_parts_of_speech_by_every_rule(labels, predictions, expected):
    scores = part_of_speech_scores(sentences(labels), sentences(predictions))
    f1, f1_new, accuracy = expected
    assert scores["f1"] == pytest.approx(f1, abs=1e-9)
    assert scores["f1_seqeval_1_2_2"] == pytest.approx(f1_new, abs=1e-9)
    assert scores["accuracy"] == pytest.approx(accuracy, abs=1e-9)
    assert list(scores) == ["f1", "precision", "recall", "accuracy", "f1_seqeval_1_2_2"]


def test_spans_are_numbered_through_all_sentences():
    result = list(spans(sentences("NOUN NOUN X / X SYM SYM / B-PER I-PER E-PER I-PER")))
    assert result == [
        ("NOUN", 0, 1),
        ("X", 2, 2),
        ("X", 4, 4),
        ("SYM", 5, 5),
        ("SYM", 6, 6),
        ("PER", 8, 10),
        ("PER", 11, 11),
    ]


def test_lengths_must_match():
    for scores in (part_of_speech_scores, entity_scores):
        with pytest.raises(ValueError, match="inconsistent lengths"):
            scores([["X", "X"], ["X"]], [["X"], ["X", "X"]])
        with pytest.raises(ValueError, match="no sentences|0 labels"):
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


@pytest.mark.parametrize(
    "labels, predictions, expected",
    [
        ("neutral", "neutral", 100.0),
        ("neutral entailment neutral", "neutral neutral neutral", 66.66666666666666),
        ("0 1", "1 0", 0.0),
        ("10", "010", 0.0),
    ],
)
def test_share_of_equal_strings(labels, predictions, expected):
    result = accuracy(labels.split(), predictions.split())
    assert result == {"accuracy": pytest.approx(expected, abs=1e-12)}


@pytest.mark.parametrize("labels, predictions", [(["a"], ["a", "a"]), ([], [])])
def test_counts_must_match(labels, predictions):
    with pytest.raises(ValueError, match="labels"):
        accuracy(labels, predictions)


GOLD = [("de-1", "en-7"), ("de-2", "en-8"), ("de-3", "en-9"), ("de-4", "en-1")]


@pytest.mark.parametrize(
    "predictions, f1, precision, recall",
    [
        (GOLD, 100, 100, 100),
        (GOLD[::-1] + GOLD, 100, 100, 100),
        (GOLD[:1] + [("de-2", "en-9")], 100 / 3, 50, 25),
        (GOLD[:3] + [("de-9", "en-9")] * 3, 75, 75, 75),
        ([tuple(reversed(pair)) for pair in GOLD], 0, 0, 0),
        ([], 0, 0, 0),
    ],
)
def test_sets_of_pairs(predictions, f1, precision, recall):
    expected = {"f1": f1, "precision": precision, "recall": recall}
    assert set_scores(GOLD, predictions) == pytest.approx(expected, abs=1e-12)
