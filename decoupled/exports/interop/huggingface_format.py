"""transformers' models and ours: architectures, and names of parameters.

Kernels are [inputs, outputs] here and in the original TensorFlow checkpoints, and
[outputs, inputs] in PyTorch. Embeddings and output layers have the same shape in both.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

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

_LAYER_NORM = {"gamma": "weight", "beta": "bias"}


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
_TOKEN_LAYERS = {TAGGING: "classifier", QUESTION_ANSWERING: "qa_outputs"}


def huggingface_name(name: str, family: Family, head: str | None) -> str:
    """The parameter that holds our variable `name` in a model with this head."""
    if name == names.OUTPUT_EMBEDDING:
        return f"{family.decoder}.weight"
    if name == names.OUTPUT_BIAS:
        return family.output_bias
    is_classifier = head in (CLASSIFICATION, REGRESSION)
    if name in (names.TASK_WEIGHTS, names.TASK_BIAS):
        layer = family.classifier if is_classifier else _TOKEN_LAYERS[head]
        return f"{layer}.{'weight' if name == names.TASK_WEIGHTS else 'bias'}"
    layer, _, last = name.rpartition("/")
    if last.endswith("_embeddings"):
        layer, last = name, "kernel"
    last = "weight" if last == "kernel" else _LAYER_NORM.get(last, last)
    renamed = {names.TRANSFORM: family.dense, names.TRANSFORM_NORM: family.norm}
    if is_classifier and family.classifier_pooler:
        renamed[names.POOLER] = family.classifier_pooler
    if layer not in renamed:
        layer = re.sub(r"^bert/", f"{family.prefix}/", layer)
        layer = re.sub(r"/layer_(\d+)", r"/layer/\1", layer).replace("/", ".")
    return f"{renamed.get(layer, layer)}.{last}"


def huggingface_shape(name: str, shape: Shape, family: Family) -> Shape:
    """The shape of our variable in PyTorch."""
    if name == names.POSITION_EMBEDDINGS:
        return (shape[0] + family.unused_positions, *shape[1:])
    return shape[::-1] if name.endswith("/kernel") else shape


def our_value(name: str, stored: np.ndarray, family: Family) -> np.ndarray:
    """A view of a parameter in the shape of our variable `name`."""
    if name == names.POSITION_EMBEDDINGS:
        return stored[family.unused_positions :]
    return stored.T if name.endswith("/kernel") else stored


def huggingface_value(name: str, value: np.ndarray, family: Family) -> np.ndarray:
    """The reverse of `our_value`; unused positions are zero, as padding's is there."""
    if name == names.POSITION_EMBEDDINGS:
        return np.pad(value, [(family.unused_positions, 0), (0, 0)])
    return value.T if name.endswith("/kernel") else value


def canonical_names(
    parameters: Iterable[str], family: Family, folder: str
) -> dict[str, str]:
    """Current parameter names -> the names in a file, which may be older.

    Early BERT files use gamma and beta, and the parameters of a bare encoder lack the
    family's prefix. Position ids, which old versions saved, are not parameters.
    """
    canonical = {}
    for name in sorted(parameters):
        if name.endswith(".position_ids"):
            continue
        modern = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        modern = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", modern)
        if modern.startswith(("embeddings.", "encoder.", "pooler.")):
            modern = f"{family.prefix}.{modern}"
        if modern in canonical:
            raise UserError(
                f"{folder}: {canonical[modern]} and {name} are the same parameter"
            )
        canonical[modern] = name
    return canonical
