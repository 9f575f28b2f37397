"""Exported taggers and readers answer raw text as `finetune` predicts, on real data."""

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's operation)

from decoupled.commands.finetune import run_finetuning
from decoupled.configs import (
    FinetuningConfig,
    MeshConfig,
    QuestionAnsweringConfig,
    VocabularyConfig,
)
from decoupled.configs.finetuning import FinetuneConfig
from decoupled.data.vocabulary_training import train_vocabulary
from decoupled.exports.serving import run_text_model
from decoupled.exports.serving.saved_model import export
from decoupled.exports.trained_model import open_trained_model
from decoupled.tasks import qa
from decoupled.tasks.qa_answers import best_answers, best_spans, span_text
from tests.exports.models import model_config, pretrained_weights, write_model_dir
from tests.helpers import adamw, tiny_training

pytestmark = pytest.mark.slow

LENGTH = 64
# float32 rounds the logits of the reader by less; each path is as far from those in
# float64 as from the other.
ROUNDING = 1e-4
# Windows are so short that most contexts need several.
SETTINGS = QuestionAnsweringConfig(
    max_question_length=14, doc_stride=20, max_answer_length="auto", n_best=7
)


def head(source, target, sentences):
    """The first sentences of a file of tagged words."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(source, encoding="utf-8") as file:
        blocks = file.read().split("\n\n")
    target.write_text("\n\n".join(blocks[:sentences]) + "\n\n", encoding="utf-8")


def first_paragraphs(source, target, articles):
    """A file of questions with the first two paragraphs of the first articles."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(source, encoding="utf-8") as file:
        content = json.load(file)
    content["data"] = content["data"][:articles]
    for article in content["data"]:
        article["paragraphs"] = article["paragraphs"][:2]
    target.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data_dir):
    """A little of the data, and a model of random weights with a vocabulary of it."""
    folder = tmp_path_factory.mktemp("text_tasks")
    real, data = f"{data_dir}/xtreme", folder / "data"
    for split, count in (("train", 80), ("test", 120)):
        name = f"udpos/{split}-en.tsv"
        head(f"{real}/{name}", data / name, count)
    name = "squad/train-v1.1.json"
    first_paragraphs(f"{real}/{name}", data / name, 8)
    texts = []
    for language in ("en", "hi", "zh"):
        name = f"xquad/xquad.{language}.json"
        first_paragraphs(f"{real}/{name}", data / name, 12)
        for article in json.loads((data / name).read_text())["data"]:
            for paragraph in article["paragraphs"]:
                texts.append(paragraph["context"])
                texts += [question["question"] for question in paragraph["qas"]]
    config = VocabularyConfig(1500, 0.99, False, 10**6, 10**9, 16)
    vocabulary = train_vocabulary(texts, str(folder / "pieces.model"), config)
    sizes = model_config(
        vocab_size=vocabulary.size,
        max_positions=LENGTH + 10,
        input_embedding_size=16,
        hidden_size=32,
        head_size=16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    write_model_dir(
        str(folder / "pretrained"),
        vocabulary.model_bytes,
        vocabulary.fingerprint,
        sizes,
        pretrained_weights(sizes),
    )
    return folder


def tune(folder, task):
    """Fine-tunes, predicts and exports; returns the run's folder."""
    config = FinetuneConfig(
        FinetuningConfig(8.0, LENGTH, 0.0, 0, False, 0.1, (), "none", False, False),
        MeshConfig("all:1", "", "float32", "gather", "float32", 128),
        adamw(learning_rate=1e-3),
        tiny_training(),
        SETTINGS,
    )
    places = (str(folder / name) for name in ("data", "pretrained", task))
    arguments = (config, task, *places)
    run_finetuning(*arguments, "train")
    run_finetuning(*arguments, "predict")
    trained = open_trained_model(str(folder / task))
    export(
        trained,
        str(folder / task / "export"),
        sequence_length=trained.default_length,
        mlm=False,
        overwrite=False,
    )
    return folder / task


@pytest.fixture(scope="module")
def tagger(folder):
    return tune(folder, "udpos")


@pytest.fixture(scope="module")
def evaluations():
    """What `best_answers` got from the predictions of `reader`, file by file."""
    return []


@pytest.fixture(scope="module")
def reader(folder, evaluations):
    def recorded(*arguments):
        evaluations.append(arguments)
        return best_answers(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qa, "best_answers", recorded)
        return tune(folder, "xquad")


def load(run, name):
    return tf.saved_model.load(str(run / "export" / name))


def decoded(ragged):
    return [[item.decode() for item in row] for row in ragged.to_list()]


def tagged_file(path):
    """Lines of columns, sentence by sentence."""
    blocks = path.read_text(encoding="utf-8").split("\n\n")
    return [
        [line.split("\t") for line in block.split("\n")] for block in blocks if block
    ]


def test_a_tagger_gives_raw_text_the_tags_of_the_predictions(folder, tagger):
    model = load(tagger, "text_tagger")
    gold = tagged_file(folder / "data/udpos/test-en.tsv")
    words = [[line[0] for line in sentence] for sentence in gold]
    written = tagged_file(tagger / "predictions/udpos/test-en.tsv")
    expected = [[line[0] for line in sentence] for sentence in written]
    outputs = model([" ".join(sentence) for sentence in words])
    assert decoded(outputs["words"]) == words
    assert decoded(outputs["tags"]) == expected
    as_words = model(tf.ragged.constant(words))
    assert decoded(as_words["tags"]) == expected
    assert as_words["logits"].shape[2] == 18
    # The training has an effect, and some sentences need several rows.
    assert len({tag for tags in expected for tag in tags}) > 3


def test_a_tagger_takes_sentences_longer_than_a_row(tagger):
    model = load(tagger, "text_tagger")
    text = "Natural language processing is fun . " * 40
    outputs = model([text, "", "One more ."])
    assert outputs["tags"].row_lengths().numpy().tolist() == [240, 0, 3]
    alone = model(["One more ."])
    assert decoded(alone["tags"])[0] == decoded(outputs["tags"])[2]
    nothing = model(tf.constant([], tf.string))
    assert nothing["tags"].nrows() == 0


def test_signatures_of_a_tagger_give_flat_words(tagger):
    model = load(tagger, "text_tagger")
    texts = tf.constant(["The cat sat .", "", "So it goes ."])
    flat = model.signatures["serving_default"](sentences=texts)
    assert flat["row_splits"].numpy().tolist() == [0, 4, 4, 8]
    expected = model(texts)["tags"].values
    np.testing.assert_array_equal(flat["tags"], expected)
    again = model.signatures["words"](
        words=flat["words"], row_splits=flat["row_splits"]
    )
    np.testing.assert_array_equal(again["tags"], expected)


def test_a_tagger_of_ids_names_a_label_for_every_piece(tagger):
    model, preprocessor = load(tagger, "tagger"), load(tagger, "preprocessor")
    packed = preprocessor(["The cat sat"])
    outputs = model(packed)
    assert outputs["logits"].shape == (1, LENGTH, 18)
    labels = model.labels().numpy()
    best = labels[outputs["logits"].numpy().argmax(-1)]
    np.testing.assert_array_equal(outputs["label"], best)
    starts = np.zeros([1, LENGTH], np.int32)
    starts[0, [1, 3]] = 1
    signature = model.signatures["word_starts"]
    served = signature(**packed, word_starts=tf.constant(starts))["label"].numpy()
    assert (served[starts == 0] == b"").all()
    np.testing.assert_array_equal(served[starts == 1], best[starts == 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="word_starts: its shape"):
        model({**packed, "word_starts": tf.constant(starts[:, 1:])})


def questions_of(path):
    for article in json.loads(path.read_text())["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                yield question["id"], question["question"], paragraph["context"]


def logits_of_windows(model, features):
    """float32 [2, windows, length]: starts and ends, of the model inside `text_qa`."""
    names = ("input_word_ids", "input_mask", "input_type_ids")
    outputs = []
    for first in range(0, len(features["input_mask"]), 32):
        rows = slice(first, first + 32)
        found = model({name: tf.constant(features[name][rows]) for name in names})
        outputs.append(np.stack([found["start_logits"], found["end_logits"]]))
    return np.concatenate(outputs, axis=1)


def best_of_questions(features, logits, settings, most):
    """int [questions, 3]: window, first and last piece of the evaluation's choice."""
    spans = best_spans(features, *logits, settings, most)
    owner = features["example_index"]
    best = []
    for number in range(owner[-1] + 1):
        rows = np.flatnonzero(owner == number)
        row = rows[spans[rows, 2].argmax()]
        best.append([row, *spans[row, :2]])
    return np.array(best, int)


def scores_of(spans, logits):
    """float64 [questions]."""
    windows, firsts, lasts = spans.T
    starts, ends = logits.astype(np.float64)
    return starts[windows, firsts] + ends[windows, lasts]


@pytest.mark.parametrize("language", ["en", "hi", "zh"])
def test_a_reader_gives_raw_text_the_answers_of_the_predictions(
    folder, reader, evaluations, language
):
    """All of them, but where float32 decides between spans that are equally good."""
    model = load(reader, "text_qa")
    found = list(questions_of(folder / f"data/xquad/xquad.{language}.json"))
    ids, asked, contexts = zip(*found, strict=True)
    path = reader / f"predictions/xquad/test-{language}.json"
    predicted = json.loads(path.read_text(encoding="utf-8"))
    outputs = {n: v.numpy() for n, v in model(asked, contexts).items()}
    answers = [answer.decode() for answer in outputs["answer"]]
    for row, context in enumerate(contexts):
        start, end = outputs["start"][row], outputs["end"][row]
        assert context[start:end] == answers[row]
        first, last = outputs["start_byte"][row], outputs["end_byte"][row]
        assert context.encode()[first:last].decode() == answers[row]

    def texts(spans):
        return [
            span_text(question, features, *span)
            for question, span in zip(questions, spans, strict=True)
        ]

    # The evaluation's windows, limits and choice, with the logits of each of the two.
    questions, features, *logits, settings, most = next(
        e for e in evaluations if [q.context for q in e[0]] == list(contexts)
    )
    evaluated = np.stack(logits)
    exported = logits_of_windows(model.model, features)
    np.testing.assert_allclose(exported, evaluated, rtol=0, atol=ROUNDING)
    ours = best_of_questions(features, evaluated, settings, most)
    theirs = best_of_questions(features, exported, settings, most)
    assert texts(ours) == [predicted[identifier] for identifier in ids]
    assert texts(theirs) == answers
    np.testing.assert_allclose(outputs["score"], scores_of(theirs, exported), 1e-6)
    # Where the choices differ, rounding has moved two scores of two logits each.
    different = (ours != theirs).any(axis=1)
    assert different.sum() <= 1
    for logits in (evaluated, exported):
        gaps = scores_of(ours, logits) - scores_of(theirs, logits)
        assert np.abs(gaps).max() <= 4 * np.abs(exported - evaluated).max()
    # The model has learned something: it is surer of some answers than of others, which
    # do not all begin a context.
    assert np.ptp(outputs["score"]) > 1
    assert len(set(outputs["start"].tolist())) > 10


def test_a_reader_takes_contexts_of_any_length(reader):
    model = load(reader, "text_qa")
    texts = ["", "  ", "One word.", "The answer is here. " * 500]
    outputs = model(["What is it?"] * 4, texts)
    assert outputs["answer"][0] == b""
    assert outputs["score"][0] == -np.inf
    for text, answer in zip(texts, outputs["answer"].numpy(), strict=True):
        assert answer.decode() in text
    assert np.isfinite(outputs["score"][2:]).all()
    alone = model(["What is it?"], texts[2:3])
    assert alone["answer"][0] == outputs["answer"][2]
    empty = tf.constant([], tf.string)
    assert model(empty, empty)["answer"].shape == (0,)


def test_questions_and_contexts_come_in_pairs(reader):
    served = load(reader, "text_qa").signatures["serving_default"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not as many as contexts"):
        served(questions=tf.constant(["a", "b"]), contexts=tf.constant(["a"]))


def test_a_reader_of_ids_gives_both_logits(reader):
    model, preprocessor = load(reader, "span_model"), load(reader, "preprocessor")
    packed = preprocessor([["What?"], ["The context."]])
    outputs = model.signatures["serving_default"](**packed)
    assert outputs["start_logits"].shape == outputs["end_logits"].shape == (1, LENGTH)
    both = np.stack([outputs["start_logits"], outputs["end_logits"]], axis=-1)
    weights = open_trained_model(str(reader)).weights
    expected = (
        outputs["sequence_output"].numpy() @ weights["output_weights"].T
        + weights["output_bias"]
    )
    np.testing.assert_allclose(both, expected, atol=1e-4)


def test_export_says_how_answers_were_chosen(reader):
    described = json.loads((reader / "export" / "export.json").read_text())
    assert described["kind"] == "span_model"
    assert described["sequence_length"] == LENGTH
    answers = described["answers"]
    assert answers.pop("max_characters") > 20
    assert answers == {
        "max_question_length": 14,
        "doc_stride": 20,
        "max_answer_length": None,
        "n_best": 7,
    }


@pytest.mark.parametrize(
    "task, name, texts, shown",
    [
        ("udpos", "text_tagger", ["The cat sat ."], "The/"),
        ("xquad", "text_qa", ["Who sat?", "The cat sat."], "characters "),
    ],
)
def test_a_process_with_tensorflow_alone_runs_them(request, task, name, texts, shown):
    run = request.getfixturevalue({"udpos": "tagger", "xquad": "reader"}[task])
    command = [sys.executable, "-I", run_text_model.__file__, run / "export" / name]
    result = subprocess.run(
        [*map(str, command), *texts],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert shown in result.stdout
    assert "modules of the training code that were loaded: none" in result.stdout
