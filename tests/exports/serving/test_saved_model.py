"""SavedModels as others meet them: a moved folder, a fresh process, TF Hub, the CLI."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from unittest import mock

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.exports.serving import roots
from decoupled.exports.serving.encoder import Encoder, MaskedLm
from decoupled.exports.serving.roots import EncoderRoot
from decoupled.exports.serving.saved_model import export, open_saved_model
from tests.exports.conftest import FINETUNED, LABELS
from tests.exports.models import (
    VOCABULARY_SIZE,
    finetuned_weights,
    model_and_task,
    model_config,
    pretrained_weights,
    random_batch,
    saving_only,
    write_empty_model,
    write_model_dir,
)
from tests.exports.reference import Reference

TEXTS = ["Select the blue page", "", "Show the hidden image and 3 other objects"]
CONFIG = model_config()


def constants(batch):
    return {name: tf.constant(value) for name, value in batch.items()}


def run_python(folder, *arguments):
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def run_elsewhere(script, folder, *arguments):
    """Runs a script in a fresh interpreter that sees neither this project nor its path.

    -I ignores PYTHONPATH, the working directory and the user's site; the working
    directory is the export's.
    """
    blocked = (
        "import sys\nsys.modules.update({'decoupled': None, 'mesh_tensorflow': None})\n"
    )
    return run_python(folder, "-I", "-c", blocked + script, *map(str, arguments))


# Runs a script without what imports of TensorFlow and its operations for texts load
# beside them, which takes as long as they do. Beside TensorFlow 2.15, tensorflow_text
# imports tensorflow_hub, which needs Keras.
ALONE = """
import runpy, sys, types
names = "keras.src.optimizers", "tf_keras.src.optimizers", "jax"
sys.modules.update(dict.fromkeys(names))
import tensorflow
for name in names:
    del sys.modules[name]
layers = "tensorflow_text.python.keras"
sys.modules[layers] = types.ModuleType(layers)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def text_encoder(encoder_export):
    return tf.saved_model.load(str(encoder_export / "text_encoder"))


@pytest.fixture(scope="module")
def text_classifier(classifier_export):
    return tf.saved_model.load(str(classifier_export / "text_classifier"))


def test_encoder_computes_what_the_checkpoint_says(encoder):
    reference = Reference(CONFIG, pretrained_weights(CONFIG))
    for batch, length in [(1, 24), (5, 7)]:
        features = random_batch(CONFIG, batch, length)
        outputs = encoder(constants(features))
        assert set(outputs) == {
            "sequence_output",
            "pooled_output",
            "default",
            "encoder_outputs",
        }
        expected = reference.encode(features)
        for ours, theirs in zip(outputs["encoder_outputs"], expected, strict=True):
            assert ours.dtype == tf.float32
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        # Without a pooler it is the vector of [CLS].
        for name in ("pooled_output", "default"):
            np.testing.assert_array_equal(
                outputs[name], outputs["sequence_output"][:, 0]
            )


def test_mlm_gives_the_scores_of_every_piece(encoder):
    features = random_batch(CONFIG, 2, 9)
    positions = np.array([[1, 4], [2, 0]], np.int32)
    reference = Reference(CONFIG, pretrained_weights(CONFIG))
    expected = reference.masked_lm(reference.encode(features)[-1], positions)

    inputs = constants(features | {"masked_lm_positions": positions})
    outputs = encoder.mlm(inputs)
    np.testing.assert_allclose(outputs["mlm_logits"], expected, rtol=1e-5, atol=1e-5)
    assert outputs["sequence_output"].shape == (2, 9, 8)
    signature = encoder.signatures["mlm"](**inputs)
    np.testing.assert_allclose(signature["mlm_logits"], expected, rtol=1e-5, atol=1e-5)


def test_signature_has_the_names_of_the_callable(encoder):
    features = constants(random_batch(CONFIG, 3, 6))
    outputs = encoder.signatures["serving_default"](**features)
    assert set(outputs) == {"sequence_output", "pooled_output", "default"}
    np.testing.assert_allclose(
        outputs["sequence_output"], encoder(features)["sequence_output"], atol=2e-6
    )


def test_attributes_of_a_hub_encoder(encoder, vocabulary):
    # 5 of the embeddings, 2 of the projection, and 12 in each of the two layers, where
    # query, key and value are joined.
    assert len(encoder.variables) == len(encoder.trainable_variables) == 5 + 2 + 2 * 12
    assert len(encoder.mlm.trainable_variables) == len(encoder.variables) + 6
    assert list(encoder.regularization_losses) == []
    assert not encoder.do_lower_case.numpy()
    asset = encoder.sp_model_file.asset_path.numpy().decode()
    assert tf.io.gfile.GFile(asset, "rb").read() == vocabulary.content


def test_training_applies_dropout(encoder):
    features = constants(random_batch(CONFIG, 2, 6))
    plain = encoder(features, training=False)["pooled_output"]
    np.testing.assert_array_equal(encoder(features)["pooled_output"], plain)
    dropped = encoder(features, training=True)["pooled_output"]
    assert np.abs(dropped - plain).max() > 1e-3


def test_too_long_an_input_is_refused_by_name(encoder):
    with pytest.raises(tf.errors.InvalidArgumentError, match="24 positions"):
        encoder(constants(random_batch(CONFIG, 1, 25)))


def changed(name, row, column, value):
    features = random_batch(CONFIG, 2, 6)
    features[name][row, column] = value
    return features


def with_shape(name, batch, length):
    return random_batch(CONFIG, 2, 6) | {name: np.zeros([batch, length], np.int32)}


@pytest.mark.parametrize(
    "features, message",
    [
        (changed("input_word_ids", 1, 2, 48), r"input_word_ids: ids must be .*\[48\]"),
        (changed("input_word_ids", 0, 0, -1), r"input_word_ids: ids must be .*\[-1\]"),
        (changed("input_type_ids", 1, 5, 2), r"input_type_ids: ids must be .*\[2\]"),
        (changed("input_mask", 1, 1, 2), r"input_mask: ids must be .*\[2\]"),
        (changed("input_mask", 0, 0, -1), r"input_mask: ids must be .*\[-1\]"),
        (random_batch(CONFIG, 2, 0), r"input_word_ids: has no tokens\] \[2 0\]"),
        (with_shape("input_mask", 2, 5), "input_mask: its shape is not that of"),
        (with_shape("input_mask", 1, 6), "input_mask: its shape is not that of"),
        (with_shape("input_type_ids", 2, 7), "input_type_ids: its shape is not"),
    ],
)
def test_inputs_that_are_not_such_as_ours_are_named(encoder, features, message):
    for call in (encoder, encoder.signatures["serving_default"]):
        inputs = constants(features)
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            call(**inputs) if call is not encoder else call(inputs)


@pytest.mark.parametrize("length", [0, 5])
def test_no_rows_have_no_vectors(encoder, length):
    outputs = encoder(constants(with_shape("input_mask", 0, length) | {
        name: np.zeros([0, length], np.int32)
        for name in ("input_word_ids", "input_type_ids")
    }))  # fmt: skip
    assert outputs["pooled_output"].shape == (0, 8)


def test_positions_outside_of_the_sequence_are_named(encoder):
    features = random_batch(CONFIG, 2, 6)
    positions = np.array([[1], [6]], np.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="masked_lm_positions: "):
        encoder.mlm(constants(features | {"masked_lm_positions": positions}))


def test_text_encoder_is_preprocessor_then_encoder(preprocessor, encoder, text_encoder):
    for pair in (
        {"sentences": TEXTS},
        {"sentences": TEXTS[:1]},
        {"sentences": TEXTS, "second_sentences": TEXTS[::-1]},
    ):
        apart = encoder(preprocessor(**pair))
        together = text_encoder(**pair)
        np.testing.assert_allclose(
            together["pooled_output"], apart["pooled_output"], atol=2e-6
        )
        real = together["input_mask"].numpy().astype(bool)
        np.testing.assert_allclose(
            together["sequence_output"].numpy()[real],
            apart["sequence_output"][:, : real.shape[1]].numpy()[real],
            atol=2e-6,
        )


def test_text_encoder_is_as_long_as_the_longest_text(text_encoder):
    assert text_encoder([""])["sequence_output"].shape == (1, 2, 8)
    assert text_encoder(["9" * 500, "a"])["sequence_output"].shape == (2, 16, 8)
    assert text_encoder(tf.constant([], tf.string))["pooled_output"].shape == (0, 8)


def test_text_signatures_take_strings(text_encoder):
    one = text_encoder.signatures["serving_default"](sentences=tf.constant(TEXTS))
    np.testing.assert_array_equal(
        one["pooled_output"], text_encoder(TEXTS)["pooled_output"]
    )
    two = text_encoder.signatures["sentence_pairs"](
        sentences=tf.constant(TEXTS), second_sentences=tf.constant(TEXTS[::-1])
    )
    np.testing.assert_array_equal(
        two["pooled_output"],
        text_encoder(TEXTS, second_sentences=TEXTS[::-1])["pooled_output"],
    )


def test_classifier_gives_the_label_of_the_largest_logit(classifier_export):
    classifier = tf.saved_model.load(str(classifier_export / "classifier"))
    weights = finetuned_weights(FINETUNED, len(LABELS))
    features = random_batch(FINETUNED, 6, 9)
    reference = Reference(FINETUNED, weights)
    cls = reference.encode(features)[-1][:, 0]
    pooled = np.tanh(reference.dense(cls, "bert/pooler/dense"))
    logits = pooled @ weights["output_weights"].T + weights["output_bias"]
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)

    outputs = classifier(constants(features))
    np.testing.assert_allclose(outputs["logits"], logits, atol=1e-5)
    np.testing.assert_array_equal(outputs["default"], outputs["logits"])
    np.testing.assert_allclose(outputs["probabilities"], shares, atol=1e-5)
    expected = [LABELS[i] for i in logits.argmax(-1)]
    assert [label.decode() for label in outputs["label"].numpy()] == expected
    assert [label.decode() for label in classifier.labels().numpy()] == LABELS
    alone = classifier.encoder(constants(features))
    np.testing.assert_allclose(alone["pooled_output"], pooled, atol=1e-5)


def test_text_classifier_names_a_label_for_each_text(text_classifier):
    outputs = text_classifier(TEXTS)
    assert outputs["logits"].shape == (3, 3)
    assert {label.decode() for label in outputs["label"].numpy()} <= set(LABELS)
    served = text_classifier.signatures["serving_default"](tf.constant(TEXTS))
    np.testing.assert_array_equal(served["label"], outputs["label"])


def test_predict_gives_the_head_alone(text_classifier):
    """The same numbers but for rounding, as one row is multiplied instead of many."""
    outputs, alone = text_classifier(TEXTS), text_classifier.predict(TEXTS)
    assert set(alone) == {"logits", "default", "probabilities", "label"}
    for name in ("logits", "probabilities"):
        np.testing.assert_allclose(alone[name], outputs[name], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(alone["label"], outputs["label"])
    pairs = [TEXTS, TEXTS[::-1]]
    served = text_classifier.signatures["predict_pairs"](
        sentences=tf.constant(pairs[0]), second_sentences=tf.constant(pairs[1])
    )
    assert set(served) == set(alone)
    np.testing.assert_allclose(
        served["logits"],
        text_classifier.predict(*pairs)["logits"],
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_model_of_texts_and_pairs_takes_a_pair_in_two_arguments(text_classifier):
    """Models of one form alone are refused others in test_text_forms.py."""
    rows = [["a", "b"], ["c", "d"]]
    for texts in (rows, tf.constant(rows), [TEXTS, TEXTS[::-1]]):
        for call in (text_classifier, text_classifier.predict):
            with pytest.raises(ValueError, match="Could not find matching concrete f"):
                call(texts)


def tables(folder):
    """Shapes of all variables with as many rows as the vocabulary has pieces."""
    reader = tf.train.load_checkpoint(str(folder / "variables/variables"))
    shapes = reader.get_variable_to_shape_map().values()
    return sorted(tuple(shape) for shape in shapes if VOCABULARY_SIZE in shape)


def test_without_mlm_no_output_embedding_is_inside(
    small_dir, encoder_export, tmp_path, monkeypatch
):
    def save(root, path, signatures):
        # Of a SavedModel, the variables alone.
        assert not hasattr(root, "mlm") and list(signatures) == ["serving_default"]
        write_empty_model(path)
        root.write(f"{path}/variables/variables")

    monkeypatch.setattr(tf.saved_model, "save", save)
    export_to(tmp_path / "out", small_dir, "encoder")
    assert tables(tmp_path / "out" / "encoder") == [(VOCABULARY_SIZE, 6)]
    assert tables(encoder_export / "encoder") == [
        (VOCABULARY_SIZE,),
        (VOCABULARY_SIZE, 6),
        (VOCABULARY_SIZE, 10),
    ]


def test_a_coupled_head_shares_the_variable(vocabulary):
    config = model_config(num_layers=1, coupled=True, output_embedding_size=6)
    weights = pretrained_weights(config)
    encoder = Encoder(config, weights)
    with mock.patch.object(roots, "trace"):
        encoder = EncoderRoot(encoder, MaskedLm(config, weights, encoder), vocabulary)
    # The transform's four and the bias, no second table.
    assert len(encoder.mlm.variables) == len(encoder.variables) + 5
    shapes = sorted(tuple(variable.shape) for variable in encoder.mlm.variables)
    of_pieces = [shape for shape in shapes if VOCABULARY_SIZE in shape]
    assert of_pieces == [(VOCABULARY_SIZE,), (VOCABULARY_SIZE, 6)]


def test_description_says_what_is_inside(encoder_export, classifier_export, vocabulary):
    described = json.loads((encoder_export / "export.json").read_text())
    assert described["kind"] == "encoder"
    assert described["mlm"] is True
    assert described["checkpoint"] == {"name": "model.ckpt-7", "global_step": 7}
    assert described["vocabulary"]["fingerprint"] == vocabulary.fingerprint
    assert described["model"]["hidden_size"] == 8
    assert set(described["bytes"]) == {"preprocessor", "encoder", "text_encoder"}
    described = json.loads((classifier_export / "export.json").read_text())
    assert described["labels"] == LABELS
    assert set(described["bytes"]) == {
        "preprocessor",
        "classifier",
        "text_classifier",
    }


@pytest.fixture
def trained_encoder(encoder):
    """The encoder, whose weights are set back afterwards."""
    before = [weight.numpy() for weight in encoder.trainable_variables]
    yield encoder
    for weight, value in zip(encoder.trainable_variables, before, strict=True):
        weight.assign(value)


def test_a_layer_learns_through_the_encoder(trained_encoder, preprocessor):
    """As a layer of TF Hub, which calls a model with `training` and reads
    `trainable_variables`: tensorflow/hub, docs/common_saved_model_apis/text.md."""
    encoder = trained_encoder
    packed = preprocessor(TEXTS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(encoder(packed, training=True)["pooled_output"] ** 2)
    gradients = tape.gradient(loss, encoder.trainable_variables)
    before = encoder(packed)["pooled_output"].numpy()
    for weight, gradient in zip(encoder.trainable_variables, gradients, strict=True):
        gradient = tf.convert_to_tensor(gradient)
        assert np.all(np.isfinite(gradient)) and np.any(gradient), weight.name
        weight.assign_sub(0.01 * gradient)
    assert np.abs(encoder(packed)["pooled_output"] - before).max() > 1e-3
    with tf.GradientTape() as tape:
        positions = tf.ones([len(TEXTS), 1], tf.int32)
        outputs = encoder.mlm(packed | {"masked_lm_positions": positions})
        loss = tf.reduce_sum(outputs["mlm_logits"] ** 2)
    assert None not in tape.gradient(loss, encoder.mlm.trainable_variables)


@pytest.mark.slow
def test_encoder_loads_where_there_is_only_tensorflow(encoder_export, encoder):
    output = run_elsewhere(
        "sys.modules['tensorflow_text'] = None\n"
        "import tensorflow as tf\n"
        "encoder = tf.saved_model.load('encoder')\n"
        "ones = tf.ones([2, 5], tf.int32)\n"
        "names = ('input_word_ids', 'input_mask', 'input_type_ids')\n"
        "pooled = encoder({name: ones for name in names})['pooled_output']\n"
        "print(*pooled.numpy().ravel().tolist())\n",
        encoder_export,
    )
    ones = np.ones((2, 5), np.int32)
    names = ("input_word_ids", "input_mask", "input_type_ids")
    expected = encoder(constants(dict.fromkeys(names, ones)))["pooled_output"]
    actual = np.array(output.split(), float).reshape(2, 8)
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_text_classifier_loads_without_this_project(classifier_export, text_classifier):
    # Imported, it would load Keras into the tests' own process.
    script = find_spec("decoupled.exports.serving.run_text_model").origin
    words = (script, "text_classifier", *TEXTS)
    output = run_python(classifier_export, "-I", "-c", ALONE, *words)
    assert "loaded: none" in output
    labels = [label.decode() for label in text_classifier(TEXTS)["label"].numpy()]
    assert [line.split()[0] for line in output.splitlines()[: len(TEXTS)]] == labels


def saved_model_cli(folder, *arguments):
    """The command-line tool of TensorFlow, which imports nothing else."""
    cli = "tensorflow.python.tools.saved_model_cli"
    return run_python(folder, "-m", cli, *arguments)


@pytest.mark.slow
def test_stock_saved_model_cli_runs_the_encoder(encoder_export, encoder, tmp_path):
    features = {
        "input_word_ids": [[3, 7, 8, 4]],
        "input_mask": [[1, 1, 1, 1]],
        "input_type_ids": [[0, 0, 0, 0]],
    }
    inputs = ";".join(f"{name}={value}" for name, value in features.items())
    saved_model_cli(
        encoder_export,
        *("run", "--dir=encoder", "--tag_set=serve"),
        *("--signature_def=serving_default", f"--input_exprs={inputs}"),
        f"--outdir={tmp_path}",
    )
    actual = np.load(tmp_path / "pooled_output.npy", allow_pickle=False)
    arrays = {name: np.array(value, np.int32) for name, value in features.items()}
    expected = encoder(constants(arrays))["pooled_output"]
    np.testing.assert_allclose(actual, expected, atol=1e-6)


@pytest.mark.slow
def test_stock_saved_model_cli_shows_names_and_dynamic_shapes(encoder_export):
    shown = saved_model_cli(encoder_export, "show", "--dir=encoder", "--all")
    for name in ("input_word_ids", "input_mask", "input_type_ids"):
        assert f"inputs['{name}'] tensor_info:\n        dtype: DT_INT32" in shown
    assert "outputs['sequence_output'] tensor_info" in shown
    assert "shape: (-1, -1, 8)" in shown


def export_to(target, model_dir, *saved, overwrite=False):
    """An export without MLM head, which saves the models of these names."""
    with saving_only(*saved):
        export(
            *model_and_task(model_dir),
            str(target),
            sequence_length=16,
            mlm=False,
            overwrite=overwrite,
        )


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_something_else_is_never_replaced(
    pretrained_dir, tmp_path, overwrite
):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not an earlier export"):
        export_to(tmp_path, pretrained_dir, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_target_below_a_file_is_refused(pretrained_dir, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="file: cannot write here"):
        export_to(tmp_path / "file" / "out", pretrained_dir)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_target_that_tensorflow_cannot_read_is_refused(pretrained_dir, tmp_path):
    with pytest.raises(UserError, match=r"takes \[ in the name of a folder"):
        export_to(tmp_path / "out[1]", pretrained_dir)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_dir(vocabulary, tmp_path):
    """A run with one layer and one segment type."""
    config = model_config(num_layers=1, type_vocab_size=1)
    weights = pretrained_weights(config)
    return write_model_dir(tmp_path / "run", vocabulary, config, weights)


def test_an_empty_folder_is_filled_and_an_export_replaced_only_when_asked(
    small_dir, tmp_path, monkeypatch
):
    saved, names = {}, ("preprocessor", "encoder", "text_encoder")

    def save(root, path, signatures):
        # Saving itself is tested elsewhere, and takes seconds.
        saved[os.path.basename(path)] = list(signatures)
        write_empty_model(path)

    monkeypatch.setattr(tf.saved_model, "save", save)
    target = tmp_path / "exports" / "out"
    target.mkdir(parents=True)
    export_to(f"{target}/", small_dir, *names)
    assert json.loads((target / "export.json").read_text())["kind"] == "encoder"
    assert {path.name for path in target.iterdir()} == {"export.json", *saved}
    # One type embedding: there is no second segment to offer.
    assert saved["text_encoder"] == ["serving_default"]

    (target / "export.json").write_text("{}")
    with pytest.raises(UserError, match="--overwrite"):
        export_to(target, small_dir)
    assert (target / "export.json").read_text() == "{}"
    export_to(target, small_dir, overwrite=True)
    assert json.loads((target / "export.json").read_text())["kind"] == "encoder"
    assert [path.name for path in target.parent.iterdir()] == ["out"]


def test_an_earlier_export_with_files_of_others_stays(small_dir, tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "export.json").write_text("{}")
    (target / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="holds notes.txt, which no export wrote"):
        export_to(target, small_dir, overwrite=True)
    assert (target / "notes.txt").read_text() == "mine"


def test_a_full_disk_is_one_line_and_leaves_nothing(small_dir, small_disk):
    (small_disk / "out").mkdir()
    (small_disk / "out" / "export.json").write_text("{}")
    with pytest.raises(UserError) as caught:
        export_to(small_disk / "out", small_dir, "encoder", overwrite=True)
    assert str(caught.value) == (
        f"{small_disk}/out: cannot write (No space left on device)"
    )
    assert [path.name for path in small_disk.iterdir()] == ["out"]
    assert (small_disk / "out" / "export.json").read_text() == "{}"


def test_a_failure_leaves_nothing_behind(small_dir, tmp_path, monkeypatch):
    def fail(*arguments, **keywords):
        raise OSError("disk full")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    folder = tmp_path / "exports"
    with pytest.raises(UserError, match=r"exports/out: cannot write \(disk full\)"):
        export_to(folder / "out", small_dir, "encoder")
    assert list(folder.iterdir()) == []


def test_a_saved_model_is_called_a_program_before_it_is_loaded(tmp_path, capsys):
    with pytest.raises(UserError, match="holds no SavedModel"):
        open_saved_model(str(tmp_path))
    assert capsys.readouterr().out == (
        f"{tmp_path}: a SavedModel runs as a program; load it only from a source that "
        "you trust\n"
    )
