"""What our variables are called in transformers' RemBERT and BERT.

Kernels are [inputs, outputs] here and in the original TensorFlow checkpoints, the
reverse in PyTorch; embeddings and output layers are the same in both.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from decoupled.core.errors import UserError
from decoupled.exports.interop.safetensors_files import Shape
from decoupled.model import variables as names
from decoupled.tasks.registry import CLASSIFICATION, QUESTION_ANSWERING, TAGGING

MASKED_LM = "masked language model"

# Dense layer and layer norm of the MLM head begin so.
_TRANSFORM = names.TRANSFORM.removesuffix("/dense")
_LAYER_NORM = {"gamma": "weight", "beta": "bias"}
_TASK_LAYERS = {
    CLASSIFICATION: "classifier",
    TAGGING: "classifier",
    QUESTION_ANSWERING: "qa_outputs",
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

# What stands behind the family's name in the name of a class -> the head.
HEADS = {
    "Model": None,
    "ForMaskedLM": MASKED_LM,
    "ForSequenceClassification": CLASSIFICATION,
    "ForTokenClassification": TAGGING,
    "ForQuestionAnswering": QUESTION_ANSWERING,
}


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
    """Whether PyTorch keeps our variable `name` the other way round."""
    return name.endswith("/kernel")


def huggingface_shape(name: str, shape: Shape) -> Shape:
    """The shape that our variable has there."""
    return shape[::-1] if is_transposed(name) else shape


def canonical_names(
    found: Iterable[str], family: Family, folder: str
) -> dict[str, str]:
    """Today's parameter names -> the names in a file, which may be older.

    Early BERT files say gamma and beta, and a bare encoder's parameters lack the
    family's prefix. Position ids, which old versions saved, are no parameters.

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
