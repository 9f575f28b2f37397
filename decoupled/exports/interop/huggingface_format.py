"""transformers' models and ours: architectures, and names of parameters.

Kernels are [inputs, outputs] here and in the original TensorFlow checkpoints, and
[outputs, inputs] in PyTorch. Embeddings and output layers have the same shape in both.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from decoupled.configs.finetuning import (
    CLASSIFICATION,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
)
from decoupled.core.errors import UserError
from decoupled.model import variables as names
from decoupled.model.variables import Shape

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


class Family(NamedTuple):
    """One of transformers' architectures.

    model_type: in config.json, and the prefix of the encoder's parameters.
    name: of its classes, e.g. "RemBert" for RemBertModel.
    transform: prefix of the MLM head's dense layer and layer norm.
    output_bias: the parameter with the bias of the output embedding.
    classifier_dropout: the setting of dropout before the layer of a task.
    """

    model_type: str
    name: str
    transform: str
    output_bias: str
    classifier_dropout: str


REMBERT = Family(
    "rembert",
    "RemBert",
    "cls.predictions",
    "cls.predictions.decoder.bias",
    "classifier_dropout_prob",
)
BERT = Family(
    "bert",
    "Bert",
    "cls.predictions.transform",
    "cls.predictions.bias",
    "classifier_dropout",
)
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
    parameters: Iterable[str], family: Family, folder: str
) -> dict[str, str]:
    """Current parameter names -> the names in a file, which may be older.

    Early BERT files use gamma and beta, and the parameters of a bare encoder lack the
    family's prefix. Position ids, which old versions saved, are not parameters.

    Raises:
      UserError: two names of the file are the same parameter.
    """
    canonical = {}
    for name in sorted(parameters):
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
