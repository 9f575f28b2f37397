"""MLM accuracy of each layer, and what fine-tuning leaves."""

import json

import numpy as np
import pytest

from decoupled.analyses import drift
from decoupled.analyses.drift import Pair
from decoupled.analyses.models import open_models
from decoupled.configs import MaskingConfig
from decoupled.configs.analyses import DriftSettings
from decoupled.core.errors import UserError
from decoupled.data.masking import mask_sequences
from decoupled.metrics.similarity import CrossMoments
from decoupled.tasks.classification import pack_texts
from tests.analyses.tiny_runs import MASKING, texts_of, write_finetuned_run, write_run
from tests.exports.models import model_config, pretrained_weights
from tests.exports.reference import Reference

SETTINGS = DriftSettings(MASKING, max_texts=100, batch_size=4, seed=3)
TEXTS = [
    "Select the blue page",
    "Delete the last user name and 3 other objects",
    "Show the image",
    "Change the hidden password and 7 other objects now",
    "the page and the image",
]


def cka(first, second):
    moments = CrossMoments(first.shape[1], second.shape[1])
    moments.add(first, second)
    return moments.cka()


@pytest.fixture(scope="module")
def tuned_dir(vocabulary, tmp_path_factory):
    """Fine-tuned from `pretrained_dir`, with one of its two layers, which moved."""
    weights = {
        name: value * (2 if "layer_0/output/dense" in name else 1)
        for name, value in pretrained_weights(model_config(num_layers=1)).items()
        if not name.startswith("cls/")
    }
    folder = tmp_path_factory.mktemp("runs") / "tuned"
    return write_finetuned_run(folder, vocabulary, weights, num_layers=1)


def test_accuracy_of_each_layer_is_that_of_the_network_in_numpy(pretrained_dir):
    [model] = open_models([pretrained_dir])
    result = drift.measure([Pair(model, None)], TEXTS, SETTINGS)
    [found] = result["models"]
    reference = Reference(model.config, {n: model.weights[n] for n in model.weights})
    batch = pack_texts(model.vocabulary, [(text,) for text in TEXTS], 16)
    numbers = np.arange(len(TEXTS), dtype=np.int64)
    masked = mask_sequences(
        batch["input_word_ids"], numbers, 3, MASKING, model.vocabulary
    )
    masked = {name: value.numpy() for name, value in masked.items()}
    weights = masked["masked_lm_weights"]
    assert found["predictions"] == weights.sum() > 15
    layers = reference.encode(batch | {"input_word_ids": masked["input_word_ids"]})
    for layer, output in enumerate(layers, start=1):
        logits = reference.masked_lm(output, masked["masked_lm_positions"])
        right = (logits.argmax(-1) == masked["masked_lm_ids"]) * weights
        entry = found["layers"][layer]
        assert entry["layer"] == layer
        assert entry["masked_lm_accuracy"] == pytest.approx(right.sum() / weights.sum())
    assert set(found["layers"][0]) == {"layer", "masked_lm_accuracy"}


def test_a_head_that_knows_one_layer_guesses_from_it(vocabulary, tmp_path):
    """Where a bias says "the" always, the share of masked "the" is the accuracy."""
    the = vocabulary.piece_to_id("the")
    bias = np.zeros(48, np.float32)
    bias[the] = 1000
    folder = write_run(
        tmp_path / "run", vocabulary, weights={"cls/predictions/output_bias": bias}
    )
    [model] = open_models([folder], masked_lm=True)
    [found] = drift.measure([Pair(model, None)], ["the the the"] * 4, SETTINGS)[
        "models"
    ]
    ids = vocabulary.encode("the the the")
    assert ids.count(the) == 3
    batch = pack_texts(vocabulary, [("the the the",)] * 4, 16)
    masked = mask_sequences(
        batch["input_word_ids"], np.arange(4), 3, MASKING, vocabulary
    )
    weights = masked["masked_lm_weights"].numpy()
    share = ((masked["masked_lm_ids"].numpy() == the) * weights).sum() / weights.sum()
    assert [e["masked_lm_accuracy"] for e in found["layers"]] == pytest.approx(
        [share] * 3
    )


def test_a_model_and_itself(pretrained_dir, vocabulary, tmp_path):
    model, same = open_models([pretrained_dir, f"{pretrained_dir}/model.ckpt-7"])
    [found] = drift.measure([Pair(model, same)], TEXTS, SETTINGS)["models"]
    assert found["finetuned"]["name"] == "pretrained/model.ckpt-7"
    for entry in found["layers"]:
        assert entry["cka"] == pytest.approx(1)
        assert entry["cosine"] == pytest.approx(1, abs=1e-5)
        assert entry["finetuned_masked_lm_accuracy"] == entry["masked_lm_accuracy"]


def test_fine_tuned_layers_drift_and_dropped_ones_have_no_numbers(
    pretrained_dir, tuned_dir, vocabulary, tmp_path, capsys
):
    model, tuned = open_models([pretrained_dir, tuned_dir])
    pairs = [Pair(model, tuned)]
    result = drift.measure(pairs, TEXTS, SETTINGS)
    json.dumps(result, allow_nan=False)
    [found] = result["models"]
    embedded, first, last = found["layers"]
    assert found["tokens"] == sum(
        min(len(ids), 14) + 2 for ids in vocabulary.encode_batch(TEXTS)
    )
    # Fine-tuning moved nothing below the first layer's last product.
    assert embedded["cka"] == pytest.approx(1)
    assert 0 < first["cka"] < 0.999
    assert last["cka"] is last["cosine"] is last["finetuned_masked_lm_accuracy"] is None
    assert last["masked_lm_accuracy"] is not None
    drift.show(result)
    assert "linear CKA" in capsys.readouterr().out
    _, svg = drift.plot(result, str(tmp_path / "plot"))
    assert {"pretrained", "tuned, pre-trained head"} <= set(texts_of(svg))


def test_cka_of_layers_is_that_of_all_their_tokens(pretrained_dir, tuned_dir):
    models = open_models([pretrained_dir, tuned_dir])
    [found] = drift.measure([Pair(*models)], TEXTS, SETTINGS)["models"]
    batch = pack_texts(models[0].vocabulary, [(text,) for text in TEXTS], 16)
    real = batch["input_mask"].astype(bool)
    before, after = (
        Reference(m.config, {n: m.weights[n] for n in m.weights}).encode(batch)[0][real]
        for m in models
    )
    assert found["layers"][1]["cka"] == pytest.approx(cka(before, after), abs=1e-5)
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    cosine = ((before * after).sum(1) / lengths).mean()
    assert found["layers"][1]["cosine"] == pytest.approx(cosine, abs=1e-5)


def test_too_few_positions(pretrained_dir):
    [model] = open_models([pretrained_dir])
    masking = MaskingConfig(32, 5, 0.3, 0.8, 0.1)
    settings = SETTINGS._replace(masking=masking)
    with pytest.raises(UserError, match="sequence_length: 32, but pretrained has max_"):
        drift.measure([Pair(model, None)], TEXTS, settings)


@pytest.mark.parametrize(
    "values", [dict(max_texts=0), dict(batch_size=2.5), dict(seed=-1)]
)
def test_settings_that_cannot_work(values):
    with pytest.raises(UserError, match=f"drift.{next(iter(values))}: "):
        drift.measure([], TEXTS, SETTINGS._replace(**values))


def test_another_hidden_size_is_another_model(pretrained_dir, vocabulary, tmp_path):
    folder = write_finetuned_run(
        tmp_path / "other", vocabulary, hidden_size=12, num_heads=3
    )
    pair = Pair(*open_models([pretrained_dir, folder]))
    with pytest.raises(UserError, match="other: has hidden_size = 12, .* has 8"):
        drift.measure([pair], TEXTS, SETTINGS)


def test_texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("one\n\n two\nthree\n")
    assert drift.read_texts([str(path)], 2) == ["one", " two"]
    path.write_text("\n")
    with pytest.raises(UserError, match="texts.txt: no text"):
        drift.read_texts([str(path)], 2)
