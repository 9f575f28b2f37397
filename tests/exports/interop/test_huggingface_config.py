"""Settings of a config.json that change what a model computes: honoured or refused."""

import json

import pytest

from decoupled.core.errors import UserError
from decoupled.exports.interop.huggingface_config import (
    BERT,
    REMBERT,
    XLM_R,
    make_config,
    read_config,
)
from decoupled.runs import run_folder
from tests.exports.models import (
    finetuned_weights,
    model_config,
    write_model_dir,
)

CLASSIFIER = ["BertForSequenceClassification"]
TAGGER = ["BertForTokenClassification"]
COUPLED = {"coupled": True, "input_embedding_size": 8, "output_embedding_size": 8}


@pytest.fixture
def described(tmp_path, vocabulary):
    """read_config of a BERT's config.json with changes; None removes an entry."""

    def read(**changes):
        model = model_config(**COUPLED)
        content = make_config(model, vocabulary, BERT, None, None, None) | changes
        content = {key: value for key, value in content.items() if value is not None}
        (tmp_path / "config.json").write_text(json.dumps(content))
        return read_config(str(tmp_path))

    return read


@pytest.mark.parametrize(
    "changes, head, labels",
    [
        ({"problem_type": "regression", "id2label": {"0": "x"}}, "regression", None),
        ({"id2label": {"0": "x"}}, "regression", None),
        ({"problem_type": "single_label_classification"}, "classification",
         ["LABEL_0", "LABEL_1"]),
        ({"num_labels": 3}, "classification", ["LABEL_0", "LABEL_1", "LABEL_2"]),
        ({"id2label": {"1": "b", "0": "a"}}, "classification", ["a", "b"]),
        ({"id2label": {"0": " a", "1": "b "}}, "classification", ["a", "b"]),
    ],
)  # fmt: skip
def test_kinds_and_labels_of_classifiers(described, changes, head, labels):
    result = described(architectures=CLASSIFIER, **changes)
    assert (result.head, result.labels) == (head, labels)


@pytest.mark.parametrize("ids", [{"b": 1, "a": 0}, {"a": "0", "b": "1"}, {}])
def test_label2id_with_the_same_labels_is_no_news(described, ids):
    names = {"0": "a", "1": "b"}
    assert described(architectures=CLASSIFIER, id2label=names, label2id=ids).notes == []


def test_one_label_without_problem_type_is_said_to_be_a_regression(described):
    result = described(architectures=CLASSIFIER, id2label={"0": "x"})
    assert "without a sigmoid" in result.notes[0]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"problem_type": "multi_label_classification"},
         "problem_type is 'multi_label_classification'"),
        ({"problem_type": "multi_label_classification", "id2label": {"0": "a"}},
         "problem_type is 'multi_label_classification'"),
        ({"problem_type": "regression", "num_labels": 5}, "regression' with 5 outputs"),
        ({"problem_type": "regression"}, "regression' with 2 outputs"),
        ({"problem_type": "single_label_classification", "num_labels": 1},
         "there is one label"),
        ({"problem_type": ["regression"]}, r"problem_type is \['regression'\]"),
        ({"num_labels": 3, "id2label": {"0": "a", "1": "b"}}, "num_labels is 3"),
        ({"num_labels": "2"}, "num_labels is '2'"),
        ({"id2label": {"0": "a", "2": "c"}}, "no label of id 1"),
        ({"id2label": {"0": "a", "00": "c"}}, "does not number labels.*00"),
        ({"id2label": {"0": "a", "x": "c"}}, "does not number labels.*x"),
        ({"id2label": ["a", "b"]}, "does not number labels"),
        ({"id2label": {"0": "a", "1": 7}}, "label 7 is not a text"),
        ({"id2label": {"0": "a", "1": "a"}}, "'a' occurs twice"),
        ({"id2label": {"0": "caf\u00e9", "1": "cafe\u0301"}}, "look the same"),
        ({"id2label": {"0": "a", "1": " "}}, "shows no character"),
        ({"id2label": {"0": "a", "1": "b\nc"}}, "control character"),
        ({"id2label": {"0": "a", "1": "b"}, "label2id": {"a": 1, "b": 0}},
         "label 'a' has id 0 in id2label and 1 in label2id"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("architectures", [CLASSIFIER, TAGGER])
def test_other_problems_and_labels_are_refused(
    described, changes, message, architectures
):
    if architectures == TAGGER and "problem_type" in changes:
        # transformers' taggers do not read it.
        problem = {"problem_type": changes["problem_type"]}
        assert described(architectures=TAGGER, **problem).head == "tagging"
        return
    with pytest.raises(UserError, match=message) as error:
        described(architectures=architectures, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("changes", [{"id2label": {"0": "a"}}, {"num_labels": 1}])
def test_a_tagger_of_one_label_is_refused(described, changes):
    with pytest.raises(UserError, match="config.json: there is one label; a tagger"):
        described(architectures=TAGGER, **changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"position_embedding_type": "relative_key_query"}, "only 'absolute'"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is True"),
        ({"add_cross_attention": True}, "add_cross_attention is True"),
        ({"cross_attention_hidden_size": 8}, "cross_attention_hidden_size is 8"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"directionality": "left"}, "directionality is 'left'"),
        ({"pooler_type": "mean"}, "pooler_type is 'mean'"),
        ({"per_layer_config": {"1": {"hidden_act": "relu"}}}, "per_layer_config"),
        ({"quantization_config": {"load_in_8bit": True}}, "quantization_config"),
        ({"auto_map": {"AutoModel": "x.Model"}}, "auto_map"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu'"),
        ({"embedding_size": 4}, "embedding_size is 4, but the other sizes make it 8"),
        ({"head_dim": 8}, "head_dim is 8"),
        ({"attention_head_size": 2}, "attention_head_size is 2"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1"),
        ({"layer_norm_eps": "1e-12"}, "layer_norm_epsilon"),
        ({"model_type": "rembert", "architectures": ["RemBertForMaskedLM"],
          "tie_word_embeddings": True}, "two tables"),
        ({"architectures": CLASSIFIER, "classifier_dropout": 1.5},
         "classifier_dropout is 1.5"),
    ],
)  # fmt: skip
def test_settings_that_change_the_function_are_refused(described, changes, message):
    with pytest.raises(UserError, match=message) as error:
        described(**changes)
    assert "\n" not in str(error.value)


def test_xlm_r_positions_begin_after_padding(tmp_path, vocabulary):
    model = model_config(**COUPLED, type_vocab_size=1, max_positions=24)
    content = make_config(model, vocabulary, XLM_R, "masked language model", None, None)
    content["pad_token_id"] = 1
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    assert content["architectures"] == ["XLMRobertaForMaskedLM"]
    assert content["max_position_embeddings"] == 26
    described = read_config(str(tmp_path))
    assert (described.family, described.model) == (XLM_R, model)
    for name, value, message in (
        ("type_vocab_size", 2, "type_vocab_size is 2, only 1 is known"),
        ("pad_token_id", 0, "pad_token_id is 0, only 1 is known"),
        ("hidden_act", "gelu_new", "MLM head of XLM-R always has 'gelu'"),
        ("max_position_embeddings", 2, "max_positions"),
        ("max_position_embeddings", "26", "max_positions"),
    ):
        path.write_text(json.dumps(content | {name: value}))
        with pytest.raises(UserError, match=message):
            read_config(str(tmp_path))


def test_settings_without_effect_are_accepted_and_others_named(described):
    result = described(
        use_cache=True,
        torch_dtype="float16",
        chunk_size_feed_forward=2,
        pooler_fc_size=768,
        position_embedding_type="absolute",
        embedding_size=8,
        head_dim=4,
        rotary_base=10_000,
        alibi=True,
    )
    assert result.notes == ["config.json: not known and not used: alibi, rotary_base"]


@pytest.mark.parametrize(
    "family, setting, given, expected",
    [
        (BERT, "classifier_dropout", 0.3, 0.3),
        (BERT, "classifier_dropout", None, 0.1),
        (REMBERT, "classifier_dropout_prob", 0.2, 0.2),
        (REMBERT, "classifier_dropout_prob", None, 0.1),
    ],
)
def test_dropout_before_the_head(
    tmp_path, vocabulary, family, setting, given, expected
):
    kinds = COUPLED if family is BERT else {}
    content = make_config(
        model_config(**kinds), vocabulary, family, "classification", ["a", "b"], None
    )
    content |= {} if given is None else {setting: given}
    (tmp_path / "config.json").write_text(json.dumps(content))
    assert read_config(str(tmp_path)).classifier_dropout == expected


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForQuestionAnswering"])
def test_a_dropout_that_no_head_has_is_said_to_be_unused(described, head):
    result = described(architectures=[f"Bert{head}"], classifier_dropout=0.3)
    assert result.classifier_dropout is None
    assert result.notes == [
        "config.json: classifier_dropout is not used; fine-tuning has "
        "FinetuningConfig.classifier_dropout"
    ]


@pytest.mark.parametrize(
    "changes, setting",
    [(COUPLED, "classifier_dropout"), ({}, "classifier_dropout_prob")],
)
def test_a_round_trip_keeps_problem_type_and_dropout(
    tmp_path, vocabulary, changes, setting
):
    from decoupled.exports.interop.huggingface import from_huggingface, to_huggingface

    model = model_config(**changes)
    task = {"name": "x", "labels": ["a", "b"], "kind": "classification"}
    folder = write_model_dir(
        tmp_path / "trained",
        vocabulary,
        model,
        finetuned_weights(model, 2),
        task,
        {"classifier_dropout": 0.25},
    )
    to_huggingface(folder, None, str(tmp_path / "hf"), False)
    first = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert first["problem_type"] == "single_label_classification"
    assert first[setting] == 0.25
    assert first["hidden_dropout_prob"] == 0.1
    from_huggingface(str(tmp_path / "hf"), str(tmp_path / "ours"), None, [])
    assert run_folder.classifier_dropout(str(tmp_path / "ours")) == 0.25
    to_huggingface(str(tmp_path / "ours"), None, str(tmp_path / "again"), False)
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == first


def test_labels_that_transformers_would_mix_up_are_not_written(vocabulary):
    labels = ["a", "a"]
    with pytest.raises(UserError, match="occurs twice"):
        make_config(model_config(), vocabulary, REMBERT, "classification", labels, None)


def test_an_encoder_has_no_settings_of_a_task(vocabulary):
    content = make_config(model_config(), vocabulary, REMBERT, None, None, None)
    assert not {"problem_type", "classifier_dropout_prob", "id2label"} & set(content)
