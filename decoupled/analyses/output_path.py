"""The masked-LM head as a map from a hidden vector to logits, with its derivative.

  logits(h) = W f(h) + b

W [V, r] is the last matrix of the output embedding, and f(h) [r] is everything before
it: the projection H -> E_out, an activation and a layer norm if the head has them, and
the other factor of an output embedding of low rank. `MaskedLm` computes the same in
float32. This module uses float64, because ranks depend on singular values far below the
largest. The Jacobian of the logits is W J with J = f'(h) [r, H]. It is the same at
every h unless the head has an activation.

Nothing of size V x V, and no float64 copy of W, is ever made. With the triangular
factor R of W = Q R, the norms and singular values of W X are those of R X.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core.release import tf
from decoupled.exports.serving.encoder import ACTIVATIONS, Weights
from decoupled.model import variables as names

_BLOCK_ROWS = 8192
_TINY = np.finfo(np.float64).tiny


class PassedOn(NamedTuple):
    """How much of the gradients g of the logits reaches the encoder, each [n].

    Let A [V, H] be the Jacobian of the logits with respect to the hidden vector. Then
    the encoder gets A'g.

    share: |P g|^2 / |g|^2, where P is the orthogonal projection onto the column space
      of A. The rest of g is lost: no change of the hidden vector has this effect.
    cosine: of g and A A'g. The latter is the change of the logits if the hidden vector
      takes a small step along its own gradient. At most sqrt(share), and less if A
      stretches some directions more than others.
    norm_ratio: |A'g| / (s |g|), where s is the largest singular value of A; at most
      sqrt(share).
    rank: numerical, of A; int.
    """

    share: np.ndarray
    cosine: np.ndarray
    norm_ratio: np.ndarray
    rank: np.ndarray


class OutputPath:
    """The head of one model.

    Args:
      config: the model's sizes.
      weights: checkpoint name -> array.

    Attributes:
      is_linear: whether the head has no activation.
      bound: an upper bound on the rank of the centred logits of any number of
        positions: min(H - 1, r) for a linear head, min(E_out - 1, r) otherwise. The
        encoder and a head with an activation end with a layer norm. Its outputs sum to
        0 before the scale, so they have one dimension less than elements.
    """

    def __init__(self, config: ModelConfig, weights: Weights):
        declared = names.declare(config, names.MASKED_LM)

        def read(name):
            return weights[name].astype(np.float64) if name in declared else None

        self._kernel = read(f"{names.TRANSFORM}/kernel")
        self._kernel_bias = read(f"{names.TRANSFORM}/bias")
        self._gamma = read(f"{names.TRANSFORM_NORM}/gamma")
        self._beta = read(f"{names.TRANSFORM_NORM}/beta")
        self._epsilon = config.layer_norm_epsilon
        self._activation = ACTIVATIONS[config.activation]
        *factors, table = names.output_matrices(config)
        self._factors = [weights[matrix.name].astype(np.float64) for matrix in factors]
        self._table = weights[table.name]
        self._bias = weights[names.OUTPUT_BIAS].astype(np.float64)
        self._hidden = config.hidden_size
        self._triangle = triangle(block for _, block in self._blocks())
        self.is_linear = self._gamma is None
        width = config.output_embedding_size
        before = min(width, self._hidden - 1) if self.is_linear else width - 1
        self.bound = min(before, self._table.shape[1])
        self._decomposed = None

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """[n, H] -> float64 [n, V]."""
        features = self._features(hidden)
        found = np.empty([len(hidden), len(self._table)])
        for rows, block in self._blocks():
            found[:, rows] = features @ block.T
        return found + self._bias

    def loss_gradients(self, hidden: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The gradients of the loss by the logits: softmax minus one at the target.

        Args:
          hidden: [n, H]. targets: int [n], the pieces that were masked.

        Returns:
          float64 [n, V]; each row sums to 0.
        """
        found = self.logits(hidden)
        found -= found.max(1, keepdims=True)
        np.exp(found, out=found)
        found /= found.sum(1, keepdims=True)
        found[np.arange(len(found)), targets] -= 1
        return found

    def passed_on(self, hidden: np.ndarray, gradients: np.ndarray) -> PassedOn:
        """How much of the gradients of the logits reaches the encoder.

        Args:
          hidden: [n, H], the vectors at which the head is differentiated.
          gradients: float64 [n, V].
        """
        by_features = np.zeros([len(gradients), self._table.shape[1]])
        for rows, block in self._blocks():
            by_features += gradients[:, rows] @ block
        norms = np.maximum(np.linalg.norm(gradients, axis=1), _TINY)
        found = []
        for jacobian, gradient, norm in zip(
            self._jacobians(hidden), by_features, norms, strict=True
        ):
            image, singular, right, rank = self._decompose(jacobian)
            reaching = jacobian.T @ gradient
            within = (right[:rank] @ reaching) / singular[:rank]
            moved = np.linalg.norm(image @ reaching)
            found.append(
                (
                    (np.linalg.norm(within) / norm) ** 2,
                    (reaching @ reaching) / np.maximum(moved * norm, _TINY),
                    np.linalg.norm(reaching) / np.maximum(singular[0] * norm, _TINY),
                    rank,
                )
            )
        return PassedOn(*(np.array(column) for column in zip(*found, strict=True)))

    def spectrum(self, hidden: np.ndarray) -> np.ndarray:
        """The singular values of the centred logits of many positions.

        Each position's mean over the vocabulary is subtracted from the logits [n, V],
        which changes no probability, and then each piece's mean over the positions.

        Args:
          hidden: [n, H], at least two positions.

        Returns:
          float64 [at most r], largest first; all others are exactly 0.
        """
        features = triangle(
            self._features(hidden[start : start + _BLOCK_ROWS])
            for start in range(0, len(hidden), _BLOCK_ROWS)
        )
        product = features[1:, 1:] @ self._triangle[1:, 1:].T
        return np.linalg.svd(product, compute_uv=False)

    def _features(self, hidden: np.ndarray) -> np.ndarray:
        """f(h) of [n, H], float64 [n, r]."""
        x = hidden.astype(np.float64)
        if self._kernel is not None:
            x = x @ self._kernel + self._kernel_bias
        if not self.is_linear:
            normal, _ = self._normal(self._activation(tf.constant(x)).numpy())
            x = normal * self._gamma + self._beta
        for factor in self._factors:
            x = x @ factor.T
        return x

    def _jacobians(self, hidden: np.ndarray) -> Iterator[np.ndarray]:
        """f'(h) of each row of [n, H], float64 [r, H]."""
        kernel = np.eye(self._hidden) if self._kernel is None else self._kernel
        if self.is_linear:
            whole = self._behind(kernel.T)
            yield from (whole for _ in hidden)
            return
        before = tf.constant(hidden.astype(np.float64) @ kernel + self._kernel_bias)
        with tf.GradientTape() as tape:
            tape.watch(before)
            activated = self._activation(before)
        slopes = tape.gradient(activated, before).numpy()
        normals, scales = self._normal(activated.numpy())
        for slope, normal, scale in zip(slopes, normals, scales, strict=True):
            changes = slope[:, np.newaxis] * kernel.T
            # The layer norm ignores the mean and the length of its input.
            changes -= changes.mean(0)
            changes -= np.outer(normal, normal @ changes) / len(normal)
            yield self._behind(changes * (self._gamma / scale)[:, np.newaxis])

    def _normal(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(x - mean) / deviation, and the deviation, [n, 1], of [n, E_out]."""
        deviation = np.sqrt(x.var(1, keepdims=True) + self._epsilon)
        return (x - x.mean(1, keepdims=True)) / deviation, deviation

    def _behind(self, jacobian: np.ndarray) -> np.ndarray:
        """Multiplies [E_out, H] by the factors before W."""
        for factor in self._factors:
            jacobian = factor @ jacobian
        return jacobian

    def _decompose(self, jacobian: np.ndarray):
        """R J, its singular values and right vectors, and its rank.

        R is that of the table itself, without subtracting its mean row.
        """
        if self._decomposed is not None:
            return self._decomposed
        image = self._triangle[:, 1:] @ jacobian
        _, singular, right = np.linalg.svd(image, full_matrices=False)
        # The tolerance of numpy's matrix_rank for the whole [V, H] matrix.
        precision = len(self._table) * np.finfo(np.float64).eps
        rank = int((singular > singular[0] * precision).sum())
        found = (image, singular, right, rank)
        if self.is_linear:
            self._decomposed = found
        return found

    def _blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yields the table in chunks of its rows, each copied to float64."""
        for start in range(0, len(self._table), _BLOCK_ROWS):
            rows = slice(start, start + _BLOCK_ROWS)
            yield rows, self._table[rows].astype(np.float64)


def triangle(blocks: Iterable[np.ndarray]) -> np.ndarray:
    """The triangular factor R of a QR decomposition of [1, X], computed in blocks.

    Because of the column of ones, one pass serves two matrices. R without its first
    column has the norms and singular values of X. Without its first row as well, it has
    those of X minus its mean row.

    Args:
      blocks: the rows of X, float64 [n, width] each.

    Returns:
      float64 [min(rows, 1 + width), 1 + width].
    """
    held = None
    for block in blocks:
        rows = np.concatenate([np.ones([len(block), 1]), block], axis=1)
        if held is not None:
            rows = np.concatenate([held, rows])
        held = np.linalg.qr(rows, mode="r")
    return held


def rank_of(spectrum: np.ndarray) -> int:
    """The number of singular values of logits above the rounding error.

    Hidden vectors are float32. A direction that they lack has about 1e-8 of the largest
    singular value; the threshold is 1e-6 of it.
    """
    return int((spectrum > spectrum[0] * 1e-6).sum())
