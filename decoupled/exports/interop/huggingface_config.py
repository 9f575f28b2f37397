"""config.json of transformers, read and written, and the architectures that are known.

Every setting of BertConfig, RemBertConfig and XLMRobertaConfig is read, has only one
value here, or has no effect on what a model computes. A setting that none of these
lists has is named to the user.
"""

import os
import re
from typing import Any, NamedTuple

from decoupled.configs import ModelConfig
from decoupled.configs.finetuning import (
    CLASSIFICATION,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
)
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.labels import check_labels
from decoupled.data.vocabulary import Vocabulary
from decoupled.runs.run_folder import check_size

CONFIG = "config.json"
MASKED_LM = "masked language model"


class Family(NamedTuple):
    """One of transformers' architectures.

    name: of its classes, e.g. "RemBert" for RemBertModel. prefix: of the encoder's
    parameters. dense, norm, decoder, output_bias: the parts of the MLM head.
    classifier: the last layer of a classifier of texts.
    classifier_pooler: the layer before it; None where it is the encoder's pooler.
    classifier_dropout: the setting of dropout before the layer of a task.
    unused_positions: rows of the position table before that of the first token.
    """

    model_type: str
    name: str
    prefix: str
    dense: str
    norm: str
    decoder: str
    output_bias: str
    classifier_dropout: str
    classifier: str = "classifier"
    classifier_pooler: str | None = None
    unused_positions: int = 0


REMBERT = Family(
    "rembert",
    "RemBert",
    "rembert",
    "cls.predictions.dense",
    "cls.predictions.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.decoder.bias",
    "classifier_dropout_prob",
)
BERT = Family(
    "bert",
    "Bert",
    "bert",
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
    "classifier_dropout",
)
# Its positions are numbered from the id of padding, 1, on: padding has that number, and
# the first token the next one.
XLM_R = Family(
    "xlm-roberta",
    "XLMRoberta",
    "roberta",
    "lm_head.dense",
    "lm_head.layer_norm",
    "lm_head.decoder",
    "lm_head.bias",
    "classifier_dropout",
    classifier="classifier.out_proj",
    classifier_pooler="classifier.dense",
    unused_positions=2,
)
FAMILIES = {family.model_type: family for family in (REMBERT, BERT, XLM_R)}

# The end of a class's name, after the name of the family -> the head. A regression is a
# classifier with one label.
HEADS = {
    "Model": None,
    "ForMaskedLM": MASKED_LM,
    "ForSequenceClassification": CLASSIFICATION,
    "ForTokenClassification": TAGGING,
    "ForQuestionAnswering": QUESTION_ANSWERING,
}

# transformers' names of the activation functions that we have. Names of the same
# function differ only in rounding.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_TO_ACTIVATION = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
_FLOATS = (
    "hidden_dropout", "attention_dropout", "layer_norm_epsilon", "initializer_range",
)  # fmt: skip
# Settings that change what a model computes, and their only value in our models.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": {},
    "directionality": "bidi",
    "pooler_type": "first_token_transform",
    # Layers of different sizes, weights in few bits, code in the folder.
    "per_layer_config": {},
    "quantization_config": {},
    "auto_map": {},
}
# The same for settings of XLM-R: its positions follow the id of padding.
_FIXED_XLM_R = {"type_vocab_size": 1, "pad_token_id": 1}
_READ_ELSEWHERE = (
    "architectures", "model_type", "hidden_act", "input_embedding_size",
    "output_embedding_size", "embedding_size", "head_dim", "attention_head_size",
    "tie_word_embeddings", "problem_type", "num_labels", "_num_labels", "id2label",
    "label2id", "classifier_dropout", "classifier_dropout_prob", "finetuning_task",
    "pad_token_id", "bos_token_id", "eos_token_id",
)  # fmt: skip
# Settings that do not change what a model computes. Each line says why.
_WITHOUT_EFFECT = frozenset((
    # What transformers returns beside the result.
    "output_hidden_states", "output_attentions", "return_dict", "use_return_dict",
    # Speed and memory.
    "use_cache", "output_past", "chunk_size_feed_forward", "gradient_checkpointing",
    "torchscript",
    "attn_implementation", "_attn_implementation", "_attn_implementation_autoset",
    # Weights of every type become float32.
    "torch_dtype", "dtype", "use_bfloat16",
    # Where the file comes from.
    "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
    # The files of the tokenizer are read instead.
    "tokenizer_class", "sep_token_id",
    # BertPooler reads the hidden size only; these are in multilingual BERT's file.
    "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head",
    # Examples of use, and loss functions of another library.
    "task_specific_params", "prefix", "tf_legacy_loss",
    # For models that generate text.
    "tie_encoder_decoder", "decoder_start_token_id", "max_length", "min_length",
    "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature",
    "diversity_penalty", "top_k", "top_p", "typical_p", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens",
))  # fmt: skip
# model_type -> how it differs from the models that are known.
_OTHER_MODELS = {
    "albert": "whose layers share their weights",
    "camembert": "whose pieces do not have the ids of its sentencepiece.bpe.model",
    "deberta": "which adds relative positions to the attention",
    "deberta-v2": "which adds relative positions to the attention",
    "distilbert": "which has no token types and other names of weights",
    "electra": "which is trained as a discriminator and has other heads",
    "eurobert": "which has rotary positions and gated feed-forward layers",
    "modernbert": "which has rotary positions and layer norms before each layer",
    "mpnet": "which has relative positions",
    "nomic_bert": "which has rotary positions",
    "roberta": "whose tokenizer is a byte-level BPE",
    "xlm": "which adds the embedding of a language",
    "xlm-roberta-xl": "which has layer norms before each layer",
}
# transformers' problem_type -> the kind of a task.
_PROBLEMS = {
    "regression": REGRESSION,
    "single_label_classification": CLASSIFICATION,
}


class HuggingFaceModel(NamedTuple):
    """The model that a config.json describes.

    family: RemBERT, BERT or XLM-R. model: the sizes.
    head: a value of `HEADS`, or a regression.
    labels: of a classifier or tagger, by id; else None.
    task: the value of `finetuning_task`, or None.
    classifier_dropout: the rate before the layer of a task; None without a task.
    special_ids: id of padding, [CLS] and [SEP], in this order; None where unknown.
    notes: what the user should know about settings that are not used.
    """

    family: Family
    head: str | None
    model: ModelConfig
    labels: list[str] | None
    task: str | None
    classifier_dropout: float | None
    special_ids: tuple[Any, Any, Any]
    notes: list[str]


def read_config(folder: str) -> HuggingFaceModel:
    """Reads config.json of a folder."""
    path = os.path.join(folder, CONFIG)
    if not files.exists(path):
        raise UserError(f"{folder}: no {CONFIG}; is it a folder of save_pretrained?")
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: not an object")
    family, head = _architecture(path, content)
    for key, value in _FIXED.items():
        # False, {} and null mean the same.
        if (setting := content.get(key)) and setting != value:
            raise UserError(f"{path}: {key} is {setting!r}, only {value!r} is known")
    if family is XLM_R:
        _check_xlm_r(path, content, head)
    sizes = _sizes(path, content, family)
    try:
        model = ModelConfig(**sizes)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    notes = []
    labels = _labels(path, content, head, notes)
    head = _kind(path, content, head, labels, notes)
    task = content.get("finetuning_task")
    known_settings = {*_SIZES.values(), *_FIXED, *_READ_ELSEWHERE, *_WITHOUT_EFFECT}
    if unknown_settings := sorted(set(content) - known_settings):
        notes.append(f"{CONFIG}: not known and not used: {', '.join(unknown_settings)}")
    return HuggingFaceModel(
        family=family,
        head=head,
        model=model,
        labels=None if head == REGRESSION else labels,
        task=task if isinstance(task, str) else None,
        classifier_dropout=_classifier_dropout(path, content, family, head, notes),
        special_ids=tuple(
            content.get(f"{name}_token_id") for name in ("pad", "bos", "eos")
        ),
        notes=notes,
    )


def make_config(
    model: ModelConfig,
    vocabulary: Vocabulary,
    family: Family,
    head: str | None,
    labels: list[str] | None,
    task: str | None,
    classifier_dropout: float | None = None,
) -> dict[str, Any]:
    """The config.json of a model, with all settings of its training."""
    head_of_class = CLASSIFICATION if head == REGRESSION else head
    suffix = next(key for key, value in HEADS.items() if value == head_of_class)
    config = {
        "architectures": [f"{family.name}{suffix}"],
        "model_type": family.model_type,
        **_transformers_sizes(model, family),
        "hidden_act": _TO_ACTIVATION[model.activation],
        "pad_token_id": vocabulary.pad_id,
        "bos_token_id": vocabulary.cls_id,
        "eos_token_id": vocabulary.sep_id,
        "tie_word_embeddings": family is not REMBERT,
        "torch_dtype": "float32",
        # Without a version, 4.57.3 warns that the ids of a large vocabulary are wrong.
        "transformers_version": "4.57.0",
    }
    if family is REMBERT:
        config |= {
            "input_embedding_size": model.input_embedding_size,
            "output_embedding_size": model.output_embedding_size,
        }
    if labels is not None:
        labels = check_labels(labels, "the model")
        config |= {
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
        }
    if head == REGRESSION:
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    for problem, kind in _PROBLEMS.items():
        if head == kind:
            config["problem_type"] = problem
    if classifier_dropout is not None:
        config[family.classifier_dropout] = classifier_dropout
    return config | ({"finetuning_task": task} if task else {})


def original_settings(model: ModelConfig) -> dict[str, Any]:
    """What the config.json of an original BERT says of a model's function."""
    # Its "gelu" may be either form: releases of the code differ.
    sizes = _transformers_sizes(model, BERT)
    sizes = {key: sizes[key] for name, key in _SIZES.items() if name not in _FLOATS}
    return sizes | {"hidden_act": model.activation.removesuffix("_tanh")}


def _transformers_sizes(model, family):
    sizes = {key: getattr(model, name) for name, key in _SIZES.items()}
    sizes["max_position_embeddings"] += family.unused_positions
    return sizes


def _architecture(path, content):
    model_type = content.get("model_type")
    # The value may be anything that JSON has, a list for example.
    key = model_type if isinstance(model_type, str) else None
    family = FAMILIES.get(key)
    if family is None:
        difference = f", {_OTHER_MODELS[key]}" if key in _OTHER_MODELS else ""
        raise UserError(
            f"{path}: model_type is {model_type!r}{difference}; known are "
            f"{', '.join(FAMILIES)}"
        )
    classes = content.get("architectures") or [f"{family.name}Model"]
    if not isinstance(classes, list):
        raise UserError(f"{path}: architectures is {classes!r}, not a list of names")
    suffix = str(classes[0]).removeprefix(family.name)
    if family is BERT and suffix == "ForPreTraining":
        return family, MASKED_LM
    if suffix not in HEADS:
        known = ", ".join(family.name + name for name in HEADS)
        raise UserError(f"{path}: architecture {classes[0]!r}; known are {known}")
    return family, HEADS[suffix]


def _check_xlm_r(path, content, head):
    for key, value in _FIXED_XLM_R.items():
        if (setting := content.get(key, value)) != value:
            raise UserError(f"{path}: {key} is {setting!r}, only {value!r} is known")
    activation = content.get("hidden_act")
    if head == MASKED_LM and activation not in ("gelu", "gelu_python"):
        raise UserError(
            f"{path}: hidden_act is {activation!r}, but the MLM head of XLM-R always "
            "has 'gelu'; here both have one activation"
        )


def _sizes(path, content, family):
    sizes = {}
    for name, key in _SIZES.items():
        if key not in content:
            raise UserError(f"{path}: no {key}")
        sizes[name] = content[key]
        check_size(path, key, sizes[name])
        if name in _FLOATS and type(sizes[name]) is int:
            sizes[name] = float(sizes[name])
    if type(sizes["max_positions"]) is int:
        sizes["max_positions"] -= family.unused_positions
    activation = content.get("hidden_act")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise UserError(
            f"{path}: hidden_act is {activation!r}; known are {', '.join(ACTIVATIONS)}"
        )
    hidden, heads = sizes["hidden_size"], sizes["num_heads"]
    for name in ("hidden_size", "num_heads"):
        if type(sizes[name]) is not int or sizes[name] < 1:
            raise UserError(f"{path}: {_SIZES[name]} is {sizes[name]!r}")
    if hidden % heads:
        raise UserError(f"{path}: hidden_size {hidden} is not a multiple of {heads}")
    widths = _embedding_sizes(path, content, family, hidden)
    return {
        **sizes,
        **widths,
        "head_size": hidden // heads,
        "activation": ACTIVATIONS[activation],
        "mlm_transform": "dense_activation_norm",
    }


def _embedding_sizes(path, content, family, hidden):
    tying = content.get("tie_word_embeddings", family is not REMBERT)
    if type(tying) is not bool:
        raise UserError(f"{path}: tie_word_embeddings is {tying!r}, not true or false")
    if tying and family is REMBERT:
        raise UserError(
            f"{path}: tie_word_embeddings is True, but RemBERT's input and output "
            "embedding are two tables; set it to false if the weights have both"
        )
    for name, size in (
        ("embedding_size", content.get("input_embedding_size", hidden)),
        ("head_dim", hidden // content["num_attention_heads"]),
        ("attention_head_size", hidden // content["num_attention_heads"]),
    ):
        if content.get(name, size) not in (size, None):
            raise UserError(
                f"{path}: {name} is {content[name]!r}, but the other sizes make it "
                f"{size}"
            )
    if family is not REMBERT:
        return {
            "input_embedding_size": hidden,
            "output_embedding_size": hidden,
            "coupled": tying,
        }
    for name in ("input_embedding_size", "output_embedding_size"):
        if name not in content:
            raise UserError(f"{path}: no {name}")
    return {
        "input_embedding_size": content["input_embedding_size"],
        "output_embedding_size": content["output_embedding_size"],
        "coupled": False,
    }


def _kind(path, content, head, labels, notes):
    """The kind of a classifier, according to problem_type; other heads as they are."""
    if head == TAGGING and len(labels) == 1:
        raise UserError(f"{path}: there is one label; a tagger has two or more")
    if head != CLASSIFICATION:
        return head
    problem, count = content.get("problem_type"), len(labels)
    if problem is None:
        if count != 1:
            return CLASSIFICATION
        notes.append(
            f"{CONFIG}: one label and no problem_type: a regression, as for "
            "transformers; its number is the logit, without a sigmoid"
        )
        return REGRESSION
    kind = _PROBLEMS.get(problem) if isinstance(problem, str) else None
    if kind is None:
        raise UserError(
            f"{path}: problem_type is {problem!r}, which is not known here; known are "
            f"{', '.join(_PROBLEMS)}"
        )
    if kind == REGRESSION and count != 1:
        raise UserError(
            f"{path}: problem_type is 'regression' with {count} outputs; only one is "
            "known"
        )
    if kind == CLASSIFICATION and count == 1:
        raise UserError(
            f"{path}: problem_type is {problem!r}, but there is one label; a "
            "classification has two or more"
        )
    return kind


def _classifier_dropout(path, content, family, head, notes):
    """The rate in transformers: by default the hidden layers', and 0.1 for RemBERT."""
    rate = content.get(family.classifier_dropout)
    if head in (None, MASKED_LM, QUESTION_ANSWERING):
        if rate is not None:
            notes.append(
                f"{CONFIG}: {family.classifier_dropout} is not used; fine-tuning has "
                "FinetuningConfig.classifier_dropout"
            )
        return None
    default_rate = 0.1 if family is REMBERT else content["hidden_dropout_prob"]
    rate = default_rate if rate is None else rate
    if type(rate) not in (int, float) or not 0 <= rate < 1:
        raise UserError(f"{path}: {family.classifier_dropout} is {rate!r}")
    return float(rate)


def _labels(path, content, head, notes):
    """The labels by id, by default transformers' two; None for heads without labels."""
    if head in (None, MASKED_LM, QUESTION_ANSWERING):
        return None
    id2label = content.get("id2label")
    count = content.get("num_labels", content.get("_num_labels"))
    if count is not None and (type(count) is not int or count < 1):
        raise UserError(f"{path}: num_labels is {count!r}")
    if id2label is None:
        return [f"LABEL_{index}" for index in range(count or 2)]
    if not isinstance(id2label, dict) or not id2label:
        raise UserError(f"{path}: id2label does not number labels from 0 on")
    labels = {}
    for key, label in id2label.items():
        if not re.fullmatch(r"[0-9]{1,9}", key) or int(key) in labels:
            raise UserError(f"{path}: id2label does not number labels from 0 on: {key}")
        labels[int(key)] = label
    if missing := [index for index in range(len(labels)) if index not in labels]:
        raise UserError(f"{path}: id2label has no label of id {missing[0]}")
    if count not in (None, len(labels)):
        raise UserError(
            f"{path}: num_labels is {count}, but id2label has {len(labels)} labels"
        )
    ordered_labels = (labels[index] for index in range(len(labels)))
    labels = check_labels(ordered_labels, f"{path}: id2label")
    _check_label_ids(path, content.get("label2id"), labels, notes)
    return labels


def _check_label_ids(path, label2id, labels, notes):
    """label2id must not give a label another id than id2label."""
    ids = {label: index for index, label in enumerate(labels)}
    if label2id in (None, {}):
        return
    if not isinstance(label2id, dict):
        raise UserError(f"{path}: label2id is not an object")
    for label, index in label2id.items():
        if label in ids and str(index) != str(ids[label]):
            raise UserError(
                f"{path}: label {label!r} has id {ids[label]} in id2label and "
                f"{index!r} in label2id"
            )
    if label2id.keys() != ids.keys():
        notes.append(f"{CONFIG}: id2label is used; label2id has other labels")
