"""How many dimensions logits and embeddings use, without the matrix of all logits.

The effective rank is the exponential of the entropy of the singular values' shares (Roy
and Vetterli 2007): the width if all values are equal, and 1 if all but one are 0.

Everything is float64, because ranks depend on singular values far below the largest. No
float64 copy of a table is made: with the triangular factor R of a table W = Q R, the
singular values of W X are those of R X.
"""

from typing import Any

import numpy as np

from decoupled.core.release import tf
from decoupled.exports.interop.surgery import row_blocks
from decoupled.exports.serving.encoder import ACTIVATIONS
from decoupled.model import variables as names
from decoupled.runs.saved_run import Model


def of_logits(model: Model, hidden: np.ndarray) -> dict[str, Any]:
    """Ranks of the logits of hidden vectors, float32 [n, H].

    Each position's mean over the vocabulary is subtracted, which changes no
    probability, and then each piece's mean over the positions.

    Returns:
      `positions`; `bound`, the rank that they and the head allow; `rank`;
      `effective_rank`.
    """
    weights, config = model.weights, model.config
    table = weights[names.output_matrix(config).name]
    product = centred_triangle(_features(model, hidden)) @ centred_triangle(table).T
    values = np.linalg.svd(product, compute_uv=False)
    # Encoder and nonlinear head end with a layer norm. Its outputs sum to 0 before the
    # scale, and so have one dimension less than elements.
    width, is_linear = config.output_embedding_size, not _has_norm(model)
    feature_rank = min(width, config.hidden_size - 1) if is_linear else width - 1
    bound = min(feature_rank, len(table) - 1, max(0, len(hidden) - 1))
    # Hidden vectors are float32: a direction that they lack has about 1e-8 of the
    # largest singular value.
    largest = values.max(initial=0.0)
    return {
        "positions": len(hidden),
        "bound": bound,
        "rank": min(bound, int((values > largest * 1e-6).sum())),
        "effective_rank": effective_rank(values),
    }


def of_embeddings(model: Model) -> list[dict[str, Any]]:
    """`embedding`, `width` and `effective_rank` of each table minus its mean row."""
    entries = []
    for kind in model.embeddings:
        factor = centred_triangle(model.embedding(kind))
        rank = effective_rank(np.linalg.svd(factor, compute_uv=False))
        width = factor.shape[1]
        entries.append({"embedding": kind, "width": width, "effective_rank": rank})
    return entries


def _has_norm(model: Model) -> bool:
    return f"{names.TRANSFORM_NORM}/gamma" in model.weights


def _features(model: Model, hidden: np.ndarray) -> np.ndarray:
    """What the output embedding multiplies, float64 [n, E_out], as in `MaskedLm`."""
    config = model.config

    def weight(name):
        return model.weights[name].astype(np.float64)

    x = hidden.astype(np.float64)
    if f"{names.TRANSFORM}/kernel" in names.declare(config, names.MASKED_LM):
        x = x @ weight(f"{names.TRANSFORM}/kernel") + weight(f"{names.TRANSFORM}/bias")
    if _has_norm(model):
        x = ACTIVATIONS[config.activation](tf.constant(x)).numpy()
        scale = np.sqrt(x.var(1, keepdims=True) + config.layer_norm_epsilon)
        x = (x - x.mean(1, keepdims=True)) / scale
        gamma, beta = (weight(f"{names.TRANSFORM_NORM}/{n}") for n in ("gamma", "beta"))
        x = x * gamma + beta
    return x


def effective_rank(values: np.ndarray) -> float:
    """The effective rank by singular values; 0 if all of them are 0."""
    total = values.sum()
    if total == 0:
        return 0.0
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def centred_triangle(table: np.ndarray) -> np.ndarray:
    """The triangular factor of a QR decomposition of a table minus its mean row.

    It has the same singular values.
    """
    # The factor of [1, X] without its first row and column is that of X minus its mean.
    factor = np.zeros([0, 1 + table.shape[1]])
    for block in row_blocks(table):
        rows = np.concatenate([np.ones([len(block), 1]), block], axis=1)
        factor = np.linalg.qr(np.concatenate([factor, rows]), mode="r")
    return factor[1:, 1:]
