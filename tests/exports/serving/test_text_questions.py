"""Raw questions and contexts have the answers that the evaluation finds."""

import numpy as np
import pytest
import tensorflow as tf

from decoupled.exports.serving import text_questions
from decoupled.exports.serving.encoder import Classifier, Encoder
from decoupled.exports.serving.roots import SpanRoot
from decoupled.exports.serving.text_questions import TextQuestionsRoot
from decoupled.tasks.qa_answers import best_answers
from decoupled.tasks.qa_features import question_features
from decoupled.tasks.qa_files import Question
from tests.exports.models import finetuned_weights, model_config
from tests.tasks.question_samples import SETTINGS, TEXTS, make_vocabulary

LENGTH = 40
CONFIG = model_config(vocab_size=150, num_layers=1, max_positions=LENGTH)
WEIGHTS = finetuned_weights(CONFIG, 2)


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return make_vocabulary(tmp_path_factory.mktemp("questions") / "pieces.model")


@pytest.fixture(scope="module")
def reader(vocabulary):
    """A reader of random weights, whose windows run three at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_questions, "_WINDOWS_AT_ONCE", 3)
        span_model = SpanRoot(
            Encoder(CONFIG, WEIGHTS), Classifier(WEIGHTS), vocabulary.path
        )
        return TextQuestionsRoot(span_model, vocabulary, LENGTH, SETTINGS)


def samples():
    for language, (context, *pairs) in TEXTS.items():
        for number, (text, _) in enumerate(pairs):
            for copies in (1, 3):
                name = f"{language}-{number}-{copies}"
                yield Question(name, text, " ".join([context] * copies), ())


def predicted(vocabulary, questions):
    features = question_features(vocabulary, questions, LENGTH, SETTINGS)
    inputs = {n: tf.constant(v) for n, v in features.items() if n.startswith("input")}
    output = Encoder(CONFIG, WEIGHTS)(inputs)["sequence_output"]
    logits = Classifier(WEIGHTS)(output).numpy()
    return best_answers(questions, features, logits[..., 0], logits[..., 1], SETTINGS)


def test_answers_are_those_of_the_predictions(vocabulary, reader):
    questions = list(samples())
    contexts = [question.context for question in questions]
    outputs = reader(tf.constant([q.text for q in questions]), tf.constant(contexts))
    outputs = {name: value.numpy() for name, value in outputs.items()}
    answers = [answer.decode() for answer in outputs["answer"]]
    assert answers == predicted(vocabulary, questions)
    assert len(set(answers)) > 10
    for row, context in enumerate(contexts):
        assert context[outputs["start"][row] : outputs["end"][row]] == answers[row]
        span = slice(outputs["start_byte"][row], outputs["end_byte"][row])
        assert context.encode()[span].decode() == answers[row]


def test_a_text_without_words_has_no_answer(reader):
    outputs = reader(tf.constant(["What?"] * 3), tf.constant(["", "The Elbe.", " "]))
    assert outputs["answer"][0] == b""
    assert outputs["score"][0] == -np.inf
    assert np.isfinite(outputs["score"][1])
    assert outputs["answer"][2] == b""
    assert not outputs["end"][2]


def test_no_questions_have_no_answers(reader):
    nothing = tf.constant([], tf.string)
    assert reader(nothing, nothing)["answer"].shape == (0,)


def test_questions_and_contexts_come_in_pairs(reader):
    with pytest.raises(tf.errors.InvalidArgumentError, match="not as many as contexts"):
        reader(tf.constant(["a", "b"]), tf.constant(["a"]))
