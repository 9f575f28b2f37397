"""Folders of transformers, written and read without it: names, settings, refusals.

Whether transformers computes the same with them is tested in tests/interop.
"""

import json
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from decoupled.core.errors import UserError
from decoupled.data.vocabulary import open_vocabulary
from decoupled.exports.interop import huggingface
from decoupled.exports.interop.huggingface import from_huggingface, to_huggingface
from decoupled.model import variables as names
from decoupled.model.variables import MASKED_LM
from decoupled.runs import run_folder
from decoupled.runs.saved_run import open_model
from tests.command_line import decoupled
from tests.exports.models import (
    finetuned_weights,
    model_config,
    pretrained_weights,
    write_model_dir,
)
from tests.vocabularies import xlm_r_folder

SPANS = {"name": "xquad", "labels": [], "kind": "question answering"}
TAGS = {"name": "panx", "labels": ["O", "B-PER"], "kind": "tagging"}
COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
COUPLED = {"coupled": True, "input_embedding_size": 8, "output_embedding_size": 8}


def trained(folder, vocabulary, arrays=None, task=None, **changes):
    """A folder of a run; returns (folder, checkpoint)."""
    config = model_config(**changes)
    arrays = pretrained_weights(config) if arrays is None else arrays
    write_model_dir(folder, vocabulary, config, arrays, task)
    return str(folder), open_model(str(folder)).weights.path


def headed_weights(task, **changes):
    arrays = finetuned_weights(model_config(**changes), len(task["labels"]) or 2)
    return {name: value for name, value in arrays.items() if "pooler" not in name}


def write(tmp_path, vocabulary, encoder_only=False, **choices):
    """to_huggingface of a trained folder; returns its target."""
    folder, prefix = trained(tmp_path / "trained", vocabulary, **choices)
    to_huggingface(folder, prefix, str(tmp_path / "hf"), encoder_only)
    return tmp_path / "hf"


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def rewrite(folder, **changes):
    """Changes entries of config.json; None takes one away."""
    content = config_of(folder) | changes
    content = {key: value for key, value in content.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(content))


def read(folder, tmp_path, allowed=(), vocabulary=None):
    return from_huggingface(str(folder), str(tmp_path / "ours"), vocabulary, allowed)


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory, vocabulary):
    """A RemBertForMaskedLM; not to be changed."""
    return write(tmp_path_factory.mktemp("masked_lm"), vocabulary)


@pytest.fixture
def folder(masked_lm, tmp_path):
    """A copy of it."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in masked_lm.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    return copy


def test_names_are_those_of_rembert(masked_lm):
    arrays, tensors = (
        pretrained_weights(model_config()),
        load_file(masked_lm / "model.safetensors"),
    )
    layer = "rembert.encoder.layer.1"
    for theirs, ours in {
        "rembert.embeddings.word_embeddings.weight": "bert/embeddings/word_embeddings",
        "rembert.embeddings.LayerNorm.bias": "bert/embeddings/LayerNorm/beta",
        f"{layer}.attention.output.dense.bias": (
            "bert/encoder/layer_1/attention/output/dense/bias"
        ),
        "cls.predictions.decoder.weight": "cls/predictions/output_embedding",
        "cls.predictions.decoder.bias": "cls/predictions/output_bias",
        "cls.predictions.LayerNorm.weight": "cls/predictions/transform/LayerNorm/gamma",
    }.items():
        assert np.array_equal(tensors.pop(theirs), arrays[ours]), theirs
    for theirs, ours in {
        "rembert.encoder.embedding_hidden_mapping_in.weight": (
            "bert/encoder/embedding_hidden_mapping_in/kernel"
        ),
        f"{layer}.intermediate.dense.weight": (
            "bert/encoder/layer_1/intermediate/dense/kernel"
        ),
        "cls.predictions.dense.weight": "cls/predictions/transform/dense/kernel",
    }.items():
        assert np.array_equal(tensors[theirs], arrays[ours].T), theirs
    assert len(load_file(masked_lm / "model.safetensors")) == len(arrays)


def test_files_of_a_folder(masked_lm, vocabulary):
    assert sorted(path.name for path in masked_lm.iterdir()) == [
        "config.json",
        "model.safetensors",
        "sentencepiece.model",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (masked_lm / "sentencepiece.model").read_bytes() == vocabulary.content


@pytest.mark.parametrize(
    "ours, theirs",
    [("gelu", "gelu"), ("gelu_tanh", "gelu_new"), ("relu", "relu")],
)
def test_settings_are_those_of_training(tmp_path, vocabulary, ours, theirs):
    folder = write(
        tmp_path, vocabulary, activation=ours, layer_norm_epsilon=1e-5, num_layers=1
    )
    config = config_of(folder)
    assert config["architectures"] == ["RemBertForMaskedLM"]
    assert config["model_type"] == "rembert"
    assert config["hidden_act"] == theirs
    assert config["layer_norm_eps"] == 1e-5
    assert config["input_embedding_size"] == 6
    assert config["output_embedding_size"] == 10
    assert config["num_hidden_layers"] == 1
    assert config["tie_word_embeddings"] is False
    assert (config["bos_token_id"], config["eos_token_id"]) == (3, 4)


def test_a_conversion_there_and_back_changes_nothing(masked_lm, tmp_path):
    report = read(masked_lm, tmp_path)
    model = open_model(str(tmp_path / "ours"))
    arrays = pretrained_weights(model_config())
    assert model.config == model_config()
    assert set(model.weights) == set(arrays)
    assert model.weights.global_step == 0
    assert all(np.array_equal(model.weights[n], arrays[n]) for n in arrays)
    assert report["unused"] == report["unset"] == []
    model.weights.check(model.config, MASKED_LM)


@pytest.mark.parametrize(
    "changes, task, architecture",
    [
        (COUPLED, None, "BertForMaskedLM"),
        (COUPLED, TAGS, "BertForTokenClassification"),
        ({}, TAGS, "RemBertForTokenClassification"),
        ({}, SPANS, "RemBertForQuestionAnswering"),
        (COUPLED | {"input_embedding_size": 6, "output_embedding_size": 6}, SPANS,
         "RemBertForQuestionAnswering"),
        ({"input_embedding_size": 8}, None, "RemBertForMaskedLM"),
    ],
)  # fmt: skip
def test_architecture_of_each_kind_of_model(
    tmp_path, vocabulary, changes, task, architecture
):
    arrays = headed_weights(task, **changes) if task else None
    target = write(tmp_path, vocabulary, arrays=arrays, task=task, **changes)
    assert config_of(target)["architectures"] == [architecture]
    read(target, tmp_path)
    before = open_model(str(tmp_path / "trained"), verify=False).weights
    after = open_model(str(tmp_path / "ours"), verify=False).weights
    assert set(before.shapes) == set(after.shapes)
    for name in set(before.shapes) - {"global_step"}:
        assert np.array_equal(before[name], after[name]), name
    assert run_folder.read(str(tmp_path / "ours")).task == task


def test_xlm_r_comes_and_goes_with_two_more_positions(tmp_path):
    sentences = ["the quick brown fox jumps over the lazy dog"] * 9
    pieces = open_vocabulary(str(xlm_r_folder(tmp_path / "pieces", sentences)))
    sizes = COUPLED | {"type_vocab_size": 1, "vocab_size": pieces.size}
    target = write(tmp_path, pieces, **sizes)
    config = config_of(target)
    assert config["architectures"] == ["XLMRobertaForMaskedLM"]
    assert (config["max_position_embeddings"], config["pad_token_id"]) == (26, 1)
    tensors = load_file(target / "model.safetensors")
    positions = tensors["roberta.embeddings.position_embeddings.weight"]
    arrays = pretrained_weights(model_config(**sizes))
    assert np.array_equal(positions[2:], arrays["bert/embeddings/position_embeddings"])
    assert not positions[:2].any()
    read(target, tmp_path)
    weights = open_model(str(tmp_path / "ours")).weights
    assert all(np.array_equal(weights[name], arrays[name]) for name in arrays)
    # Two token types are BERT's; the MLM head of XLM-R has one activation.
    other = tmp_path / "other"
    write(other, pieces, **sizes | {"type_vocab_size": 2})
    assert config_of(other / "hf")["architectures"] == ["BertForMaskedLM"]
    with pytest.raises(UserError, match="XLM-R always has 'gelu'.*--encoder_only"):
        write(tmp_path / "tanh", pieces, **sizes, activation="gelu_tanh")


def test_a_model_of_one_type_gets_no_types_of_pairs(tmp_path, vocabulary):
    """transformers would look for the embedding of type 1."""
    for types, inputs in ((1, []), (2, ["token_type_ids"])):
        hf = write(tmp_path / str(types), vocabulary, **COUPLED, type_vocab_size=types)
        given = json.loads((hf / "tokenizer_config.json").read_text())
        assert given["model_input_names"] == ["input_ids", *inputs, "attention_mask"]


def test_parameters_are_counted_as_converted(tmp_path, vocabulary):
    """Of the converted model: its own rows, and what is initialised."""
    target = write(tmp_path, vocabulary, **COUPLED)
    for name in ("sentencepiece.model", *COMPANIONS):
        (target / name).unlink()
    rewrite(target, vocab_size=53, bos_token_id=None, eos_token_id=None)
    tensors = load_file(target / "model.safetensors")
    for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.bias"):
        tensors[name] = np.concatenate([tensors[name], tensors[name][:5]])
    del tensors["bert.embeddings.token_type_embeddings.weight"]
    save_file(tensors, target / "model.safetensors")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(48))]
    (target / "vocab.txt").write_text("\n".join(words))
    unset = "bert/embeddings/token_type_embeddings"
    report = read(target, tmp_path, [unset])
    model = open_model(str(tmp_path / "ours"))
    sizes = [np.prod(shape) for shape in names.shapes(model.config, MASKED_LM).values()]
    assert report["parameters"] == sum(sizes)
    assert report["variables"] == len(sizes)
    assert report["unset"] == [unset]


def test_a_written_projection_is_counted(tmp_path, vocabulary):
    folder, prefix = trained(tmp_path / "t", vocabulary, input_embedding_size=8)
    written = to_huggingface(folder, prefix, str(tmp_path / "hf"), encoder_only=False)
    tensors = load_file(tmp_path / "hf" / "model.safetensors")
    assert written["tensors"] == len(tensors)
    assert written["parameters"] == sum(value.size for value in tensors.values())


@pytest.mark.parametrize(
    "theirs, ours",
    [("../a/b", "_a_b"), ("a\\b\n", "a_b_"), ("..", "converted"), (None, "converted")],
)
def test_any_name_of_a_task_can_be_read_back(tmp_path, vocabulary, theirs, ours):
    folder = write(tmp_path, vocabulary, arrays=headed_weights(TAGS), task=TAGS)
    rewrite(folder, finetuning_task=theirs)
    read(folder, tmp_path)
    assert run_folder.read(str(tmp_path / "ours")).task == TAGS | {"name": ours}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"mlm_transform": "projection"}, "plain projection of the paper"),
        (
            COUPLED | {"input_embedding_size": 6, "output_embedding_size": 6},
            "transformers has no such BERT or RemBERT",
        ),
    ],
)
def test_heads_that_transformers_does_not_have_are_refused(
    tmp_path, vocabulary, changes, message
):
    with pytest.raises(UserError, match=f"{message}.*--encoder_only"):
        write(tmp_path, vocabulary, **changes)
    assert not (tmp_path / "hf").exists()
    folder = str(tmp_path / "trained")
    written = to_huggingface(folder, None, str(tmp_path / "hf"), encoder_only=True)
    assert written["architecture"] == "RemBertModel"
    assert "cls/predictions/output_bias" in written["left_out"]


def test_checkpoints_of_another_model_are_not_written(tmp_path, vocabulary):
    arrays = pretrained_weights(model_config(num_layers=3))
    with pytest.raises(UserError, match="layer_2.* is not part of the model"):
        write(tmp_path, vocabulary, arrays=arrays)
    assert not (tmp_path / "hf").exists()


def test_what_training_needs_besides_stays_behind(tmp_path, vocabulary):
    arrays = pretrained_weights(model_config())
    gamma = "bert/embeddings/LayerNorm/gamma"
    slots = [f"{gamma}/adam_m", f"{gamma}/adam_v", f"{gamma}_slot_vr"]
    arrays |= {name: np.ones(6, np.float32) for name in slots}
    folder, prefix = trained(tmp_path / "trained", vocabulary, arrays=arrays)
    written = to_huggingface(folder, prefix, str(tmp_path / "hf"), encoder_only=False)
    assert written["left_out"] == []
    assert written["tensors"] == len(arrays) - 3


def test_old_names_and_bare_encoders_are_known(tmp_path, vocabulary):
    target = write(tmp_path, vocabulary, encoder_only=True, **COUPLED)
    tensors = load_file(target / "model.safetensors")
    old = {
        name.removeprefix("bert.")
        .replace("LayerNorm.weight", "LayerNorm.gamma")
        .replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in tensors.items()
    }
    old["embeddings.position_ids"] = np.arange(24)[None]
    save_file(old, target / "model.safetensors")
    report = read(target, tmp_path)
    assert report["variables"] == len(tensors)
    assert report["unused"] == []


def test_tied_names_may_both_be_there_if_they_agree(tmp_path, vocabulary):
    target = write(tmp_path, vocabulary, **COUPLED)
    tensors = load_file(target / "model.safetensors")
    words = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = words
    tensors["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"]
    save_file(tensors, target / "model.safetensors")
    read(target, tmp_path)
    tensors["cls.predictions.decoder.weight"] = words + 1
    save_file(tensors, target / "model.safetensors")
    with pytest.raises(UserError, match="ties cls.predictions.decoder.weight to"):
        from_huggingface(str(target), str(tmp_path / "other"), None, [])


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "xyz"}, "model_type is 'xyz'; known are rembert, bert, xlm-r"),
        ({"model_type": "albert"}, "albert', whose layers share their weights; known"),
        ({"model_type": "roberta"}, "roberta', whose tokenizer is a byte-level BPE"),
        ({"model_type": "distilbert"}, "distilbert', which has no token types"),
        ({"model_type": "deberta-v2"}, "deberta-v2', which adds relative positions"),
        (
            {"architectures": ["RemBertForCausalLM"]},
            "architecture 'RemBertForCausalLM'",
        ),
        ({"architectures": 7}, "architectures is 7, not a list of names"),
        ({"hidden_act": ["gelu"]}, r"hidden_act is \['gelu'\]; known are gelu"),
        ({"model_type": ["bert"]}, r"model_type is \['bert'\]; known are rembert"),
        ({"hidden_size": 9}, "hidden_size 9 is not a multiple of 2"),
        ({"hidden_size": "8"}, "hidden_size is '8'"),
        ({"num_hidden_layers": None}, "no num_hidden_layers"),
        ({"num_hidden_layers": 3}, "no values for bert/encoder/layer_2"),
        ({"num_hidden_layers": 10**8}, "is 100000000, which no model can have"),
        ({"num_hidden_layers": 1}, "no use for rembert.encoder.layer.1"),
        ({"vocab_size": 50}, r"has shape \[48, 6\], config.json makes it \[50, 6\]"),
        ({"vocab_size": 40}, "48 pieces, but config.json says vocab_size 40"),
        ({"intermediate_size": 16}, r"has shape \[12, 8\], .* makes it \[16, 8\]"),
        ({"input_embedding_size": -6}, "input_embedding_size"),
        ({"architectures": ["RemBertForTokenClassification"]}, "no classifier.weight"),
        ({"architectures": ["RemBertModel"]}, "no use for cls.predictions"),
    ],
)
def test_a_config_that_contradicts_weights_or_model_is_refused(
    folder, tmp_path, changes, message
):
    rewrite(folder, **changes)
    with pytest.raises(UserError, match=message) as error:
        read(folder, tmp_path)
    assert "\n" not in str(error.value)
    # The message names the file once.
    assert str(error.value).count(str(folder)) == 1
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("theirs", ["gelu_accurate", "gelu_python_tanh", "gelu_fast"])
def test_other_names_of_an_activation_are_known(folder, tmp_path, theirs):
    rewrite(folder, hidden_act=theirs)
    read(folder, tmp_path)
    described = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert described["model"]["activation"] == "gelu_tanh"


def test_a_name_left_over_may_be_allowed(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.seq_relationship.weight"] = np.ones((2, 8), np.float32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match="no use for cls.seq_relationship.weight"):
        read(folder, tmp_path)
    report = read(folder, tmp_path, allowed=["cls.seq_relationship.*"])
    assert report["unused"] == ["cls.seq_relationship.weight"]


def test_weights_that_are_not_finite_leave_nothing_behind(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.decoder.bias"][3] = np.inf
    save_file(tensors, folder / "model.safetensors")
    before = set(tmp_path.iterdir())
    with pytest.raises(
        UserError, match="decoder.bias holds values that are not finite"
    ):
        read(folder, tmp_path)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("direction", ["to", "from"])
def test_a_full_disk_is_one_line_and_leaves_nothing(
    masked_lm, tmp_path, vocabulary, small_disk, direction
):
    target = small_disk / "out"
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 80_000)
    with pytest.raises(UserError) as caught:
        if direction == "to":
            source = trained(tmp_path / "run", vocabulary)
            to_huggingface(*source, str(target), False)
        else:
            from_huggingface(str(masked_lm), str(target), None, [])
    assert str(caught.value) == f"{target}: cannot write (No space left on device)"
    assert list(small_disk.iterdir()) == [filler]


def test_files_that_appear_while_it_writes_are_kept(tmp_path, vocabulary, monkeypatch):
    target = tmp_path / "out"
    target.mkdir()
    source = trained(tmp_path / "run", vocabulary)

    def write_tokenizer(*arguments):
        (target / "theirs.txt").write_text("not ours")

    monkeypatch.setattr(huggingface, "write_tokenizer", write_tokenizer)
    with pytest.raises(UserError, match="out: exists; choose a new folder"):
        to_huggingface(*source, str(target), False)
    assert (target / "theirs.txt").read_text() == "not ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_a_link_to_an_empty_folder_is_refused(tmp_path, vocabulary):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    source = trained(tmp_path / "run", vocabulary)
    with pytest.raises(UserError, match="out: exists; choose a new folder"):
        to_huggingface(*source, str(tmp_path / "out"), False)
    assert (tmp_path / "out").is_symlink()


def test_a_projection_of_equal_widths_is_kept_unless_it_is_the_identity(
    tmp_path, vocabulary
):
    target = write(tmp_path, vocabulary, input_embedding_size=8)
    tensors = load_file(target / "model.safetensors")
    kernel = tensors["rembert.encoder.embedding_hidden_mapping_in.weight"]
    assert np.array_equal(kernel, np.eye(8))
    read(target, tmp_path)
    model = run_folder.read(str(tmp_path / "ours")).model
    assert not model.project_equal_widths
    kernel[0, 1] = 0.5
    save_file(tensors, target / "model.safetensors")
    from_huggingface(str(target), str(tmp_path / "other"), None, [])
    assert run_folder.read(str(tmp_path / "other")).model.project_equal_widths
    weights = open_model(str(tmp_path / "other"), verify=False).weights
    name = "bert/encoder/embedding_hidden_mapping_in/kernel"
    assert np.array_equal(weights[name], kernel.T)


def test_a_folder_with_tokenizer_json_alone_needs_its_vocabulary(
    folder, tmp_path, vocabulary
):
    (folder / "sentencepiece.model").unlink()
    with pytest.raises(UserError, match="name the sentencepiece.model that it was"):
        read(folder, tmp_path)
    read(folder, tmp_path, vocabulary=vocabulary.path)
    assert (tmp_path / "ours" / "sentencepiece.model").read_bytes() == (
        vocabulary.content
    )


def test_rows_of_wordpieces_are_kept(tmp_path, vocabulary):
    target = write(tmp_path, vocabulary, **COUPLED)
    for name in ("sentencepiece.model", *COMPANIONS):
        (target / name).unlink()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "s", "##e"]
    words += [f"unused{index}" for index in range(48 - len(words))]
    (target / "vocab.txt").write_text("\n".join(words) + "\n")
    rewrite(target, bos_token_id=None, eos_token_id=None)
    with pytest.raises(UserError, match="has its own tokenizer"):
        read(target, tmp_path, vocabulary=vocabulary.path)
    read(target, tmp_path)
    model = open_model(str(tmp_path / "ours"), verify=False)
    assert model.vocabulary.path == f"{tmp_path}/ours/wordpiece.json"
    assert model.vocabulary.encode("Se?") == [5, 6, 1]
    assert model.description.vocabulary_kind == "WordPiece"
    arrays = pretrained_weights(model_config(**COUPLED))
    for name in ("bert/embeddings/word_embeddings", "cls/predictions/output_bias"):
        assert np.array_equal(model.weights[name], arrays[name])


def test_sizes_are_written_as_gin(masked_lm, tmp_path):
    read(masked_lm, tmp_path)
    lines = (tmp_path / "ours" / "model.gin").read_text().splitlines()
    assert lines[0].startswith("# The sizes of ")
    assert "ModelConfig.input_embedding_size = 6" in lines
    assert "ModelConfig.activation = 'gelu'" in lines
    assert len(lines) == 2 + len(vars(model_config()))


def test_neither_torch_nor_transformers_is_needed(masked_lm, tmp_path, monkeypatch):
    # Whoever imports one of them gets an ImportError.
    for name in "torch transformers tokenizers".split():
        monkeypatch.setitem(sys.modules, name, None)
    folders = (f"--hf_dir={masked_lm}", f"--model_dir={tmp_path}/ours")
    result = decoupled("convert", "from_hf", *folders)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "RemBert (masked language model), " in result.stdout
