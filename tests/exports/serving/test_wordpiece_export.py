"""Exports of a BERT with WordPieces: strings in the graph, and predictions."""

import json
import pathlib
import shutil
from unittest import mock

import numpy as np
import pytest

from decoupled.core.release import tf
from decoupled.data.tokenizer_folder import TextRules, make_wordpieces
from decoupled.data.vocabulary import WordPiece
from decoupled.exports.serving.prediction import open_predictor
from decoupled.tasks.classification import pack_texts
from tests.command_line import decoupled
from tests.exports.models import (
    finetuned_weights,
    model_config,
    saving_only,
    write_empty_model,
    write_model_dir,
)

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstu"]
PIECES += [*(f"##{c}" for c in "aeinorst"), ".", ",", "the", "page"]
PIECES += [f"[unused{n}]" for n in range(48 - len(PIECES))]
TEXTS = ["The páges, the PAGE.", "", "unknown☃ [MASK] \u200bpage", "a" * 101 + " page"]


@pytest.fixture(scope="module")
def vocabulary():
    return WordPiece("x", make_wordpieces(PIECES, TextRules(True, True)))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, vocabulary):
    """The export of a classifier of single texts, and the classifier as it is made.

    The preprocessor alone is saved. Others are saved as those of SentencePiece are.
    """
    folder, made = tmp_path_factory.mktemp("task"), {}
    config, labels = model_config(num_layers=1, type_vocab_size=1), ["x", "y"]
    task = {"name": "catalogs", "labels": labels, "kind": "classification"}
    arrays = finetuned_weights(config, len(labels))
    write_model_dir(folder / "run", vocabulary, config, arrays, task)
    save = tf.saved_model.save

    def save_or_keep(root, path, signatures):
        name = pathlib.Path(path).name
        if name == "preprocessor":
            save(root, path, signatures=signatures)
        else:
            made[name] = root
            write_empty_model(path)

    with (
        mock.patch.object(tf.saved_model, "save", save_or_keep),
        saving_only("preprocessor", "classifier"),
    ):
        words = f"--model_dir={folder}/run", f"--export_dir={folder}/export"
        done = decoupled("export", *words)
    assert done.returncode == 0, done.stderr[-2000:]
    # Exports move.
    shutil.move(folder / "export", folder / "moved")
    return folder / "moved", made["classifier"]


@pytest.fixture(scope="module")
def preprocessor(classifier):
    return tf.saved_model.load(str(classifier[0] / "preprocessor"))


def test_strings_become_the_features_of_training(classifier, preprocessor, vocabulary):
    saved = preprocessor
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    length = saved(TEXTS)["input_word_ids"].shape[1]
    both = [saved.tokenize(texts) for texts in (TEXTS, TEXTS[::-1])]
    for packed, expected in (
        (saved(TEXTS), [(text,) for text in TEXTS]),
        (saved.bert_pack_inputs(both, seq_length=length), pairs),
    ):
        for name, value in pack_texts(vocabulary, expected, length).items():
            np.testing.assert_array_equal(packed[name], value)
    assert bool(saved.do_lower_case)
    [asset] = (classifier[0] / "preprocessor/assets").iterdir()
    assert asset.name == "wordpiece.json"
    assert asset.read_bytes() == vocabulary.content
    special = saved.tokenize.get_special_tokens_dict()
    assert [int(special[f"{name}_id"]) for name in ("padding", "mask")] == [0, 4]


def test_labels_from_strings_are_those_of_the_task_s_own_code(
    classifier, preprocessor, monkeypatch
):
    """Without this package, too: tests/exports/serving/test_saved_model.py."""
    folder, made = classifier
    monkeypatch.setattr(tf.saved_model, "load", lambda path: made)
    predictor = open_predictor(str(folder))
    labels = predictor.model(preprocessor(TEXTS))["label"].numpy().tolist()
    assert [row["label"].encode() for row in predictor.predict(TEXTS)] == labels
    description = json.loads((folder / "export.json").read_text())
    assert description["vocabulary"]["vocab_size"] == len(PIECES)
