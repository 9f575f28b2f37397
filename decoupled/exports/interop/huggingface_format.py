"""transformers' models and ours: names of parameters, and config.json.

Kernels are [inputs, outputs] here and in the original TensorFlow checkpoints, and
[outputs, inputs] in PyTorch. Embeddings and output layers have the same shape in both.
"""

import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from decoupled.configs import EARLIER_VALUES, ModelConfig
from decoupled.configs.finetuning import REGRESSION
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary
from decoupled.model import variables as names
from decoupled.model.variables import Shape
from decoupled.tasks.registry import CLASSIFICATION, QUESTION_ANSWERING, TAGGING

CONFIG = "config.json"
MASKED_LM = "masked language model"

# The prefix of the dense layer and the layer norm of the MLM head.
_TRANSFORM = names.TRANSFORM.removesuffix("/dense")
_LAYER_NORM = {"gamma": "weight", "beta": "bias"}
_TASK_LAYERS = {
    CLASSIFICATION: "classifier",
    REGRESSION: "classifier",
    TAGGING: "classifier",
    QUESTION_ANSWERING: "qa_outputs",
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
# Settings of transformers that are fixed in our model, and their values.
_FIXED = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
}


class Family(NamedTuple):
    """One of transformers' architectures.

    model_type: in config.json, and the prefix of the encoder's parameters.
    name: of its classes, e.g. "RemBert" for RemBertModel.
    transform: prefix of the MLM head's dense layer and layer norm.
    output_bias: the parameter with the bias of the output embedding.
    """

    model_type: str
    name: str
    transform: str
    output_bias: str


REMBERT = Family(
    "rembert", "RemBert", "cls.predictions", "cls.predictions.decoder.bias"
)
BERT = Family("bert", "Bert", "cls.predictions.transform", "cls.predictions.bias")
FAMILIES = {family.model_type: family for family in (REMBERT, BERT)}

DECODER = "cls.predictions.decoder.weight"
DECODER_BIAS = "cls.predictions.decoder.bias"

# The end of a class's name, after the name of the family -> the head. A regression is a
# classifier with one label.
HEADS = {
    "Model": None,
    "ForMaskedLM": MASKED_LM,
    "ForSequenceClassification": CLASSIFICATION,
    "ForTokenClassification": TAGGING,
    "ForQuestionAnswering": QUESTION_ANSWERING,
}


class HuggingFaceModel(NamedTuple):
    """The model that a config.json describes.

    family: RemBERT or BERT. head: a value of `HEADS`. model: the sizes.
    labels: of a classifier or tagger, by id, if the file names them.
    task: the value of `finetuning_task`, or None.
    """

    family: Family
    head: str | None
    model: ModelConfig
    labels: list[str] | None
    task: str | None


def huggingface_name(name: str, family: Family, head: str | None) -> str:
    """The parameter that holds our variable `name` in a model with this head."""
    if name == names.OUTPUT_EMBEDDING:
        return DECODER
    if name == names.OUTPUT_BIAS:
        return family.output_bias
    if name in (names.TASK_WEIGHTS, names.TASK_BIAS):
        last = "weight" if name == names.TASK_WEIGHTS else "bias"
        return f"{_TASK_LAYERS[head]}.{last}"
    name = re.sub(r"layer_(\d+)", r"layer/\1", name)
    name = name.replace(_TRANSFORM, family.transform.replace(".", "/"))
    name = re.sub(r"^bert/", f"{family.model_type}/", name)
    *parts, last = name.split("/")
    if last.endswith("_embeddings"):
        return ".".join([*parts, last, "weight"])
    last = "weight" if last == "kernel" else _LAYER_NORM.get(last, last)
    return ".".join([*parts, last])


def is_transposed(name: str) -> bool:
    """Whether PyTorch stores the transpose of our variable `name`."""
    return name.endswith("/kernel")


def huggingface_shape(name: str, shape: Shape) -> Shape:
    """The shape of our variable in PyTorch."""
    return shape[::-1] if is_transposed(name) else shape


def canonical_names(
    found: Iterable[str], family: Family, folder: str
) -> dict[str, str]:
    """Current parameter names -> the names in a file, which may be older.

    Early BERT files use gamma and beta, and the parameters of a bare encoder lack the
    family's prefix. Position ids, which old versions saved, are not parameters.

    Raises:
      UserError: two names of the file are the same parameter.
    """
    canonical = {}
    for name in sorted(found):
        if name.endswith(".position_ids"):
            continue
        modern = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        modern = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", modern)
        if modern.startswith(("embeddings.", "encoder.", "pooler.")):
            modern = f"{family.model_type}.{modern}"
        if modern in canonical:
            raise UserError(
                f"{folder}: {canonical[modern]} and {name} are the same parameter"
            )
        canonical[modern] = name
    return canonical


def read_config(folder: str) -> HuggingFaceModel:
    """Reads config.json of a folder.

    Raises:
      UserError: it is missing, or describes a model that we do not support.
    """
    path = os.path.join(folder, CONFIG)
    if not files.exists(path):
        raise UserError(f"{folder}: no {CONFIG}; is it a folder of save_pretrained?")
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: not an object")
    family, head = _architecture(path, content)
    for key, value in _FIXED.items():
        found = content.get(key, value)
        # False, {} and null mean the same.
        if found != value and (found or value):
            raise UserError(f"{path}: {key} is {found!r}, only {value!r} is known")
    sizes = _sizes(path, content, family)
    try:
        model = ModelConfig(**sizes)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    task = content.get("finetuning_task")
    return HuggingFaceModel(
        family,
        head,
        model,
        _labels(path, content, head),
        task if isinstance(task, str) else None,
    )


def make_config(
    model: ModelConfig,
    vocabulary: Vocabulary,
    family: Family,
    head: str | None,
    labels: list[str] | None,
    task: str | None,
) -> dict[str, Any]:
    """The config.json of a model.

    Activation and epsilon are those of training, which are not always transformers'
    defaults.
    """
    head_of_class = CLASSIFICATION if head == REGRESSION else head
    suffix = next(key for key, value in HEADS.items() if value == head_of_class)
    config = {
        "architectures": [f"{family.name}{suffix}"],
        "model_type": family.model_type,
        **{theirs: getattr(model, ours) for ours, theirs in _SIZES.items()},
        "hidden_act": _TO_ACTIVATION[model.activation],
        "pad_token_id": vocabulary.pad_id,
        "bos_token_id": vocabulary.cls_id,
        "eos_token_id": vocabulary.sep_id,
        "tie_word_embeddings": family is BERT,
        "torch_dtype": "float32",
    }
    if family is REMBERT:
        config |= {
            "input_embedding_size": model.input_embedding_size,
            "output_embedding_size": model.output_embedding_size,
        }
    if labels is not None:
        config |= {
            "id2label": {str(index): label for index, label in enumerate(labels)},
            "label2id": {label: index for index, label in enumerate(labels)},
        }
    if head == REGRESSION:
        config["problem_type"] = "regression"
        config |= {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return config | ({"finetuning_task": task} if task else {})


def _architecture(path, content):
    named = content.get("model_type")
    family = FAMILIES.get(named) if isinstance(named, str) else None
    if family is None:
        raise UserError(
            f"{path}: model_type is {named!r}; known are {', '.join(FAMILIES)}"
        )
    listed = content.get("architectures") or [f"{family.name}Model"]
    if not isinstance(listed, list):
        raise UserError(f"{path}: architectures is {listed!r}, not a list of names")
    suffix = str(listed[0]).removeprefix(family.name)
    if family is BERT and suffix == "ForPreTraining":
        return family, MASKED_LM
    if suffix not in HEADS:
        known = ", ".join(family.name + name for name in HEADS)
        raise UserError(f"{path}: architecture {listed[0]!r}; known are {known}")
    return family, HEADS[suffix]


def _sizes(path, content, family):
    """The fields of a ModelConfig."""
    sizes = {}
    for ours, theirs in _SIZES.items():
        if theirs not in content:
            raise UserError(f"{path}: no {theirs}")
        sizes[ours] = content[theirs]
        if ours in _FLOATS and type(sizes[ours]) is int:
            sizes[ours] = float(sizes[ours])
    activation = content.get("hidden_act")
    # The value may be anything that JSON has, a list for example.
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
        **EARLIER_VALUES,
        "activation": ACTIVATIONS[activation],
        "mlm_transform": "dense_activation_norm",
    }


def _embedding_sizes(path, content, family, hidden):
    if family is BERT:
        return {
            "input_embedding_size": hidden,
            "output_embedding_size": hidden,
            "coupled": content.get("tie_word_embeddings", True) is not False,
        }
    for name in ("input_embedding_size", "output_embedding_size"):
        if name not in content:
            raise UserError(f"{path}: no {name}")
    return {
        "input_embedding_size": content["input_embedding_size"],
        "output_embedding_size": content["output_embedding_size"],
        "coupled": False,
    }


def _labels(path, content, head):
    listed = content.get("id2label")
    if head in (None, MASKED_LM, QUESTION_ANSWERING) or listed is None:
        return None
    if isinstance(listed, dict):
        labels = [listed.get(str(index)) for index in range(len(listed))]
        if all(isinstance(label, str) for label in labels):
            return labels
    raise UserError(f"{path}: id2label does not number labels from 0 on")
