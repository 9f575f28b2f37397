"""Exported sentence vectors are those of `decoupled retrieve`, without the project."""

import functools
import json

import numpy as np
import pytest

from decoupled.analyses.models import layer_vectors
from decoupled.core.release import tf
from decoupled.exports.serving.encoder import FEATURES
from decoupled.tasks.classification import pack_texts
from tests.analyses.sentences import ENGLISH, OTHER_LANGUAGES, open_model, retrieval
from tests.command_line import decoupled, mistake
from tests.exports.models import (
    finetuned_weights,
    model_config,
    saving_only,
    write_model_dir,
)

LENGTH = 16
TEXTS = [*ENGLISH, "", *OTHER_LANGUAGES]


def export(model_dir, target, *flags, **settings):
    """Runs the command; `settings` are those of retrieval."""
    settings = {"max_sequence_length": LENGTH, **settings}
    done = decoupled(
        "export",
        f"--model_dir={model_dir}",
        f"--export_dir={target}",
        "--sentence_vectors",
        *flags,
        *(f"--gin_param=RetrievalConfig.{n} = {v!r}" for n, v in settings.items()),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@functools.cache
def load(target, name):
    return tf.saved_model.load(str(target / name))


def vectors(target, texts=TEXTS):
    model = load(target, "text_sentence_encoder")
    return model(tf.constant(texts))["sentence_vector"].numpy()


@pytest.fixture(scope="module")
def reader_dir(vocabulary, tmp_path_factory):
    """A model that answers questions, whose windows would be too long for it."""
    config = model_config(num_layers=1)
    weights = finetuned_weights(config, 2)
    weights = {name: v for name, v in weights.items() if "pooler" not in name}
    task = {"name": "xquad", "kind": "question answering", "labels": []}
    folder = tmp_path_factory.mktemp("reader")
    return write_model_dir(folder, vocabulary, config, weights, task)


@pytest.fixture(scope="module")
def classifier_dir(vocabulary, tmp_path_factory):
    """A classifier of two layers, with a pooler."""
    config = model_config()
    task = {"name": "catalogs", "labels": ["a", "b"]}
    folder = tmp_path_factory.mktemp("classifier")
    weights = finetuned_weights(config, 2)
    return write_model_dir(folder, vocabulary, config, weights, task)


@pytest.fixture(scope="module")
def exported(classifier_dir, reader_dir, tmp_path_factory):
    """(kind of model, layer, special tokens) -> folders of model and export."""
    model_dirs = {"classifier": classifier_dir, "reader": reader_dir}

    @functools.cache
    def once(kind, layer, special):
        target = tmp_path_factory.mktemp("exported") / "out"
        settings = dict(layer=layer, pool_special_tokens=special, batch_size=2)
        of_texts = ["text_sentence_encoder"] if kind == "classifier" else []
        with saving_only("sentence_encoder", *of_texts):
            done = export(model_dirs[kind], target, **settings)
        assert "text_sentence_encoder')" in done.stdout
        assert "RetrievalConfig.batch_size = 2 has no effect: an exp" in done.stdout
        return model_dirs[kind], target

    return once


@pytest.mark.parametrize(
    "kind, layer, special", [("classifier", -2, False), ("reader", 0, True)]
)
def test_vectors_are_those_that_retrieve_compares(exported, kind, layer, special):
    model_dir, target = exported(kind, layer, special)
    model = open_model(model_dir)
    if kind == "classifier":
        name, exported_vectors = "text_sentence_encoder", vectors(target)
    else:
        name = "sentence_encoder"
        packed = pack_texts(model.vocabulary, [(text,) for text in TEXTS], LENGTH)
        features = {name: tf.constant(packed[name]) for name in FEATURES}
        exported_vectors = load(target, name)(features)["sentence_vector"].numpy()
    config = retrieval(
        layer=layer, pool_special_tokens=special, max_sequence_length=LENGTH
    )
    expected = layer_vectors(model, TEXTS, config)
    np.testing.assert_allclose(exported_vectors, expected, atol=2e-5)
    assert special == bool(exported_vectors[TEXTS.index("")].any())
    described = json.loads((target / "export.json").read_text())
    assert described["kind"] == "sentence_encoder"
    assert described["answers"] is None and described["labels"] is None
    number = 1 if layer == -2 else 0
    chosen = {"layer": number, "pool_special_tokens": special}
    assert described["sentence_vectors"] == chosen
    assert described["sequence_length"] == LENGTH
    # Layers above it are left out, as are pooler and head.
    encoder = load(target, name)
    names = [variable.name for variable in encoder.variables]
    layers = {name.split("layer_")[1][0] for name in names if "layer_" in name}
    assert layers == {str(index) for index in range(number)}
    assert not [n for n in names if "pooler" in n or "classifier" in n]


def test_a_reader_of_sentences_has_no_settings_of_answers(reader_dir, tmp_path):
    line = mistake(
        "export", f"--model_dir={reader_dir}", f"--export_dir={tmp_path}/no",
        "--sentence_vectors", "--max_answer_length=3",
    )  # fmt: skip
    assert "--max_answer_length: is for models that answer questions" in line


def test_ids_and_signatures_give_the_same(exported):
    _, target = exported("classifier", -2, False)
    preprocessor = load(target, "text_sentence_encoder").preprocessor
    packed = preprocessor(tf.constant(TEXTS))
    model = load(target, "sentence_encoder")
    signature = model.signatures["serving_default"](**packed)
    assert set(signature) == {"sentence_vector", "default"}
    for outputs in (model(packed), signature):
        np.testing.assert_allclose(
            outputs["sentence_vector"], vectors(target), atol=1e-5
        )


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--gin_param=RetrievalConfig.layer = 3"], "RetrievalConfig.layer: 3, but "),
        # It is read, though it has a line for a single task.
        (["--gin_file=tasks/retrieval.gin"], "RetrievalConfig.layer: 8, but "),
        (["--mlm"], "--mlm: sentence vectors need no MLM head"),
        (["--gin_param=RetrievalConfig.centre = True"], "RetrievalConfig.centre: an "),
        (["--centre_on=lines.txt"], "--centre_on is gone (CHANGELOG.md); subtract the"),
        (
            ["--gin_param=RetrievalConfig.long_sentences = 'windows'"],
            "RetrievalConfig.long_sentences: an export cuts long sentences",
        ),
        (
            ["--nosentence_vectors", "--gin_param=RetrievalConfig.layer = 1"],
            "are for --sentence_vectors",
        ),
    ],
)
def test_what_contradicts_is_refused_and_nothing_is_written(
    pretrained_dir, tmp_path, flags, message
):
    folders = (f"--model_dir={pretrained_dir}", f"--export_dir={tmp_path / 'out'}")
    assert message in mistake("export", *folders, "--sentence_vectors", *flags)
    assert not (tmp_path / "out").exists()
