"""Original TensorFlow checkpoints: names, shapes, slots, and what is left over."""

import json

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.exports.interop.from_original import from_original, match_by_shape
from decoupled.model.variables import MASKED_LM, NO_HEAD, shapes
from decoupled.runs.saved_run import open_model
from decoupled.training.checkpoint_files import CheckpointFile
from tests.exports.models import (
    model_config,
    pretrained_weights,
    random_arrays,
    train_sentencepiece,
    write_checkpoint,
)

CONFIG = model_config()
# As nobody knows what the released checkpoint calls them.
RELEASED = {
    "cls/predictions/output_embedding": "output_embedding/table",
    "cls/predictions/output_bias": "cls/predictions/logits/bias",
    "cls/predictions/transform/dense/kernel": "cls/head/projection/kernel",
    "cls/predictions/transform/dense/bias": "cls/head/projection/bias",
    "cls/predictions/transform/LayerNorm/gamma": "cls/head/layer_norm/scale",
    "cls/predictions/transform/LayerNorm/beta": "cls/head/layer_norm/bias",
}


def convert(tmp_path, vocabulary, arrays, allowed=(), config=CONFIG):
    checkpoint = write_checkpoint(str(tmp_path / "original.ckpt"), arrays, 40)
    target = tmp_path / "converted"
    report = from_original(checkpoint, str(target), config, vocabulary.path, allowed)
    return target, report


def values(folder):
    stored = CheckpointFile(f"{folder}/model.ckpt-40")
    tensors = {n: stored.read_tensor(n) for n in stored.shapes if n != "global_step"}
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def test_encoder_and_head_are_taken_over_bit_by_bit(tmp_path, vocabulary):
    arrays = pretrained_weights(CONFIG)
    target, report = convert(tmp_path, vocabulary, arrays)
    converted = values(target)
    assert set(converted) == set(arrays)
    assert all(np.array_equal(converted[n], arrays[n]) for n in arrays)
    assert (report["unused"], report["unset"], report["renamed"]) == ([], [], {})
    trained = open_model(str(target))
    assert trained.config == CONFIG
    assert trained.weights.global_step == 40
    trained.weights.check(trained.config, MASKED_LM)
    written = json.loads((target / "conversion.json").read_text())
    assert written["parameters"] == sum(value.size for value in arrays.values())


def test_unknown_names_of_the_head_are_found_by_shape(tmp_path, vocabulary):
    arrays = pretrained_weights(CONFIG)
    renamed = {RELEASED.get(name, name): value for name, value in arrays.items()}
    target, report = convert(tmp_path, vocabulary, renamed)
    assert report["renamed"] == {theirs: ours for ours, theirs in RELEASED.items()}
    converted = values(target)
    assert all(np.array_equal(converted[n], arrays[n]) for n in arrays)


def test_slots_are_kept_where_both_are_there(tmp_path, vocabulary):
    arrays = pretrained_weights(CONFIG)
    table, ours = RELEASED["cls/predictions/output_embedding"], "bert/embeddings"
    arrays[table] = arrays.pop("cls/predictions/output_embedding")
    slots = {
        f"{name}/{slot}": np.full_like(arrays[name], number)
        for number, name in enumerate([table, f"{ours}/word_embeddings"], start=1)
        for slot in ("adam_m", "adam_v")
    }
    half = f"{ours}/position_embeddings"
    slots[f"{half}/adam_m"] = np.ones_like(arrays[half])
    target, report = convert(tmp_path, vocabulary, arrays | slots)
    assert report["optimizer_slots"] == 4
    converted = values(target)
    assert np.all(converted["cls/predictions/output_embedding/adam_m"] == 1)
    assert np.all(converted[f"{ours}/word_embeddings/adam_v"] == 2)
    assert f"{half}/adam_m" not in converted


def test_an_encoder_alone_is_complete(tmp_path, vocabulary):
    arrays = {n: v for n, v in pretrained_weights(CONFIG).items() if "cls/" not in n}
    target, report = convert(tmp_path, vocabulary, arrays)
    assert report["encoder_only"]
    assert set(values(target)) == set(arrays)


def test_names_left_over_are_an_error_unless_allowed(tmp_path, vocabulary):
    arrays = pretrained_weights(CONFIG)
    arrays["cls/seq_relationship/output_weights"] = np.ones((2, 8), np.float32)
    with pytest.raises(UserError, match="no use for cls/seq_relationship/output_w"):
        convert(tmp_path, vocabulary, arrays)
    assert not (tmp_path / "converted").exists()
    with pytest.raises(UserError, match="'cls/nothing' is no variable without use"):
        convert(tmp_path, vocabulary, arrays, ["cls/seq_relationship/*", "cls/nothing"])
    _, report = convert(tmp_path, vocabulary, arrays, ["cls/seq_relationship/*"])
    assert report["unused"] == ["cls/seq_relationship/output_weights"]


def test_variables_without_values_are_drawn_anew_where_that_is_allowed(
    tmp_path, vocabulary
):
    arrays = pretrained_weights(CONFIG)
    kernel = arrays.pop("bert/encoder/layer_1/output/dense/kernel")
    gamma = arrays.pop("bert/encoder/layer_1/output/LayerNorm/gamma")
    with pytest.raises(UserError, match="no values for bert/encoder/layer_1/output/L"):
        convert(tmp_path, vocabulary, arrays)
    target, report = convert(
        tmp_path, vocabulary, arrays, ["bert/encoder/layer_1/output/*"]
    )
    assert len(report["unset"]) == 2
    drawn = values(target)
    assert np.all(drawn["bert/encoder/layer_1/output/LayerNorm/gamma"] == 1)
    new = drawn["bert/encoder/layer_1/output/dense/kernel"]
    assert new.shape == kernel.shape and gamma.shape == (8,)
    assert 0.01 < new.std() < 0.03  # initializer_range 0.02, cut at two deviations
    assert np.abs(new).max() <= 0.04


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_layers": 3}, "no values for bert/encoder/layer_2"),
        ({"num_layers": 1}, "no use for bert/encoder/layer_1"),
        ({"intermediate_size": 14}, r"has shape \[8, 12\], .* makes it \[8, 14\]"),
        ({"max_positions": 25}, r"position_embeddings has shape \[24, 6\]"),
        ({"vocab_size": 40}, "48 pieces, the model has 40"),
    ],
)
def test_sizes_that_contradict_the_checkpoint_are_refused(
    tmp_path, vocabulary, changes, message
):
    with pytest.raises(UserError, match=message):
        convert(
            tmp_path,
            vocabulary,
            pretrained_weights(CONFIG),
            config=model_config(**changes),
        )
    assert not (tmp_path / "converted").exists()


def masked_lm_shapes():
    encoder = shapes(CONFIG, NO_HEAD)
    whole = shapes(CONFIG, MASKED_LM)
    return {name: shape for name, shape in whole.items() if name not in encoder}


def test_two_names_of_one_shape_are_not_guessed_between():
    head = masked_lm_shapes()
    weights = {"x/one": (48, 10), "x/two": (48, 10)}
    with pytest.raises(UserError, match="x/one and x/two could each be cls/pred"):
        match_by_shape("here", head, weights)


def test_roles_tell_variables_of_one_shape_apart():
    head = masked_lm_shapes()
    weights = {
        "h/norm/beta": (10,),
        "h/norm/gamma": (10,),
        "h/projection/bias": (10,),
        "bert/other": (48, 10),
    }
    assert match_by_shape("here", head, weights) == {
        "cls/predictions/transform/LayerNorm/beta": "h/norm/beta",
        "cls/predictions/transform/LayerNorm/gamma": "h/norm/gamma",
        "cls/predictions/transform/dense/bias": "h/projection/bias",
    }


def test_nothing_is_overwritten(tmp_path, vocabulary):
    (tmp_path / "converted").mkdir()
    (tmp_path / "converted" / "mine").touch()
    with pytest.raises(UserError, match="converted: exists; choose a new folder"):
        convert(tmp_path, vocabulary, random_arrays({"a": (1,)}))


def test_files_beside_a_checkpoint_are_compared(tmp_path, vocabulary):
    arrays = pretrained_weights(CONFIG)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    with pytest.raises(UserError, match="--vocabulary: .* is not .*vocab.txt"):
        convert(tmp_path, vocabulary, arrays)
    (tmp_path / "vocab.txt").unlink()
    config = tmp_path / "bert_config.json"
    for content, message in (
        ({"num_attention_heads": 4}, "num_attention_heads is 4, but 2 in the model"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu', but 'gelu'"),
        (["relu"], "not an object"),
    ):
        config.write_text(json.dumps(content))
        with pytest.raises(UserError, match=message):
            convert(tmp_path, vocabulary, arrays)
    config.write_text('{"num_attention_heads": 2, "hidden_dropout_prob": 0.3}')
    train_sentencepiece(str(tmp_path / "sentencepiece.model"), vocab_size=47)
    with pytest.raises(UserError, match="--vocabulary: .* is not "):
        convert(tmp_path, vocabulary, arrays)
    assert not (tmp_path / "converted").exists()


def test_a_smaller_vocabulary_must_be_the_checkpoints_own(tmp_path, vocabulary):
    config = model_config(vocab_size=50)
    arrays = pretrained_weights(config)
    with pytest.raises(UserError, match="48 pieces, the model has 50 rows; only"):
        convert(tmp_path, vocabulary, arrays, config=config)
    (tmp_path / "sentencepiece.model").write_bytes(vocabulary.content)
    _, report = convert(tmp_path, vocabulary, arrays, config=config)
    assert report["notes"] == [
        "48 pieces, 50 rows of embeddings: no text uses the last rows"
    ]
