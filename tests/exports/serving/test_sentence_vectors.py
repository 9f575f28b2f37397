"""Exported sentence vectors are those of `decoupled retrieve`, without the project."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401, registers the operations of text_sentence_encoder

from decoupled.analyses.sentence_vectors import layer_vectors, open_encoder
from tests.analyses.sentences import ENGLISH, ONE_DEVICE, OTHERS, retrieval
from tests.command_line import decoupled, mistake
from tests.exports.models import finetuned_weights, model_config, write_model_dir

LENGTH = 16
TEXTS = [*ENGLISH, "", *OTHERS]


def export(model_dir, target, **settings):
    """Runs the command; `centre_on` is its flag, all else settings of retrieval."""
    flags = [f"--centre_on={settings['centre_on']}"] if "centre_on" in settings else []
    settings = {**settings, "centre": bool(flags)}
    settings.pop("centre_on", None)
    done = decoupled(
        "export",
        f"--model_dir={model_dir}",
        f"--export_dir={target}",
        f"--sequence_length={LENGTH}",
        "--sentence_vectors",
        *flags,
        *(f"--gin_param=RetrievalConfig.{n} = {v!r}" for n, v in settings.items()),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def vectors(target, texts=TEXTS):
    model = tf.saved_model.load(str(target / "text_sentence_encoder"))
    return model(tf.constant(texts))["sentence_vector"].numpy()


def expected(model_dir, layer, special):
    config = retrieval(
        layer=layer, pool_special_tokens=special, max_sequence_length=LENGTH
    )
    return layer_vectors(open_encoder(model_dir), TEXTS, config, ONE_DEVICE)


@pytest.mark.parametrize("layer, special", [(-1, True), (1, False), (0, True)])
def test_vectors_are_those_that_retrieve_compares(
    pretrained_dir, tmp_path, layer, special
):
    target = tmp_path / "out"
    done = export(pretrained_dir, target, layer=layer, pool_special_tokens=special)
    assert "text_sentence_encoder')" in done.stdout
    found = vectors(target)
    np.testing.assert_allclose(
        found, expected(pretrained_dir, layer, special), atol=2e-5
    )
    assert special == bool(found[TEXTS.index("")].any())
    described = json.loads((target / "export.json").read_text())
    assert described["kind"] == "sentence_encoder"
    number = layer if layer >= 0 else 2
    assert described["sentence_vectors"] == {
        "layer": number, "pool_special_tokens": special, "centre_on": ""
    }  # fmt: skip
    # Layers above it are left out.
    encoder = tf.saved_model.load(str(target / "sentence_encoder"))
    layers = {v.name.split("layer_")[1][0] for v in encoder.variables
              if "layer_" in v.name}  # fmt: skip
    assert layers == {str(index) for index in range(number)}


def test_a_finetuned_model_loses_pooler_and_head(finetuned_dir, tmp_path):
    target = tmp_path / "out"
    export(finetuned_dir, target, layer=2)
    encoder = tf.saved_model.load(str(target / "sentence_encoder"))
    names = [variable.name for variable in encoder.variables]
    assert not [n for n in names if "pooler" in n or "classifier" in n]
    np.testing.assert_allclose(
        vectors(target), expected(finetuned_dir, 2, True), atol=2e-5
    )


def test_a_reader_gives_vectors_as_well(tmp_path, vocabulary):
    """Its windows, too long for this model, are not made."""
    config = model_config()
    weights = finetuned_weights(config, 2)
    weights = {name: v for name, v in weights.items() if "pooler" not in name}
    reader = write_model_dir(
        str(tmp_path / "reader"), vocabulary.model_bytes, vocabulary.fingerprint,
        config, weights, {"name": "xquad", "kind": "question answering", "labels": []},
    )  # fmt: skip
    export(reader, tmp_path / "out", layer=1)
    assert np.isfinite(vectors(tmp_path / "out")).all()
    described = json.loads((tmp_path / "out/export.json").read_text())
    assert described["answers"] is None and described["labels"] is None
    line = mistake(
        "export", f"--model_dir={reader}", f"--export_dir={tmp_path}/no",
        "--sentence_vectors", "--max_answer_length=3",
    )  # fmt: skip
    assert "--max_answer_length: is for models that answer questions" in line


def test_sentences_are_as_long_as_those_of_retrieve(pretrained_dir, tmp_path):
    words = [
        "--sentence_vectors",
        "--gin_param=RetrievalConfig.max_sequence_length = 5",
    ]
    folders = f"--model_dir={pretrained_dir}", f"--export_dir={tmp_path}/out"
    assert decoupled("export", *folders, *words).returncode == 0
    described = json.loads((tmp_path / "out/export.json").read_text())
    assert described["sequence_length"] == 5


def test_the_mean_of_other_sentences_is_subtracted(pretrained_dir, tmp_path):
    lines = tmp_path / "lines.txt"
    # More than a batch, an empty line between.
    lines.write_text("\n".join([*ENGLISH, "", *ENGLISH * 30]) + "\n", encoding="utf-8")
    export(pretrained_dir, tmp_path / "plain", layer=1)
    export(pretrained_dir, tmp_path / "centred", layer=1, centre_on=lines)
    mean = vectors(tmp_path / "plain", ENGLISH).astype(np.float64).mean(0)
    assert np.abs(mean).max() > 0.01
    np.testing.assert_allclose(
        vectors(tmp_path / "centred"), vectors(tmp_path / "plain") - mean, atol=1e-5
    )
    described = json.loads((tmp_path / "centred/export.json").read_text())
    assert described["centred_on_sentences"] == 31 * len(ENGLISH)


def test_ids_and_signatures_give_the_same(pretrained_dir, tmp_path):
    target = tmp_path / "out"
    export(pretrained_dir, target, layer=1, pool_special_tokens=False)
    packed = tf.saved_model.load(str(target / "preprocessor"))(tf.constant(TEXTS))
    model = tf.saved_model.load(str(target / "sentence_encoder"))
    signature = model.signatures["serving_default"](**packed)
    assert set(signature) == {"sentence_vector", "default"}
    for found in (model(packed)["sentence_vector"], signature["sentence_vector"]):
        np.testing.assert_allclose(found, vectors(target), atol=1e-5)


@pytest.mark.parametrize(
    "more, message",
    [
        (["--gin_param=RetrievalConfig.layer = 3"], "RetrievalConfig.layer: 3, but "),
        (["--mlm"], "--mlm: sentence vectors need no MLM head"),
        (["--gin_param=RetrievalConfig.centre = True"], "--centre_on: name a file of"),
        (["--centre_on=lines.txt"], "--centre_on: name a file of sentences"),
        (
            ["--gin_param=RetrievalConfig.long_sentences = 'windows'"],
            "RetrievalConfig.long_sentences: an export cuts long sentences",
        ),
        (
            ["--gin_param=RetrievalConfig.centre = True", "--centre_on={folder}/empty"],
            "{folder}/empty: holds no sentence to centre vectors on",
        ),
        (
            ["--gin_param=RetrievalConfig.centre = True", "--centre_on={folder}/none"],
            "{folder}/none: ",
        ),
    ],
)
def test_what_contradicts_is_refused_and_nothing_is_written(
    pretrained_dir, tmp_path, more, message
):
    (tmp_path / "empty").write_text("\n \n")
    line = mistake(
        "export",
        f"--model_dir={pretrained_dir}",
        f"--export_dir={tmp_path / 'out'}",
        "--sentence_vectors",
        *(word.format(folder=tmp_path) for word in more),
    )
    assert message.format(folder=tmp_path) in line
    assert not (tmp_path / "out").exists()


def test_settings_without_sentence_vectors_are_refused(pretrained_dir, tmp_path):
    line = mistake(
        "export",
        f"--model_dir={pretrained_dir}",
        f"--export_dir={tmp_path / 'out'}",
        "--gin_param=RetrievalConfig.layer = 1",
    )
    assert "are for --sentence_vectors" in line
