"""The masked-LM head as a map from hidden vectors to logits, and spectra of tables."""

from collections.abc import Iterable

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core.release import tf
from decoupled.exports.serving.encoder import ACTIVATIONS, Weights
from decoupled.model import variables as names

_BLOCK_ROWS = 8192


class OutputPath:
    """The masked-LM head as a map from a hidden vector to logits, W f(h) + b.

    W [V, r] is the last matrix of the output embedding, and f everything before it: the
    projection H -> E_out, an activation and a layer norm if the head has them, and the
    other factor of an output embedding of low rank. `MaskedLm` computes the same in
    float32. This class uses float64, because ranks depend on singular values far below
    the largest. No float64 copy of W is made: with the triangular factor R of W = Q R,
    the norms and singular values of W X are those of R X.

    Attributes:
      bound: an upper bound on the rank of the centred logits. The encoder and a head
        with an activation end with a layer norm, whose outputs sum to 0 before the
        scale and so have one dimension less than elements.
    """

    def __init__(self, config: ModelConfig, weights: Weights):
        declared = names.declare(config, names.MASKED_LM)

        def read(name):
            return weights[name].astype(np.float64) if name in declared else None

        self._kernel = read(f"{names.TRANSFORM}/kernel")
        self._kernel_bias = read(f"{names.TRANSFORM}/bias")
        self._gamma = read(f"{names.TRANSFORM_NORM}/gamma")
        self._beta = read(f"{names.TRANSFORM_NORM}/beta")
        self._config = config
        *factors, table = names.output_matrices(config)
        self._factors = [weights[matrix.name].astype(np.float64) for matrix in factors]
        self._table = weights[table.name]
        self._bias = weights[names.OUTPUT_BIAS].astype(np.float64)
        self._triangle = triangle(self._table)
        self._is_linear = self._gamma is None
        width = config.output_embedding_size
        before = min(width, config.hidden_size - 1) if self._is_linear else width - 1
        self.bound = min(before, self._table.shape[1])
        self._jacobian = tf.function(
            self._features_and_jacobian,
            [tf.TensorSpec([1, config.hidden_size], tf.float64)],
            autograph=False,
        )

    def loss_gradients(self, hidden: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The gradients of the loss by the logits: softmax minus one at the target."""
        logits = self.logits(hidden)
        logits -= logits.max(1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(1, keepdims=True)
        logits[np.arange(len(logits)), targets] -= 1
        return logits

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        """[n, H] -> float64 [n, V]."""
        features = self._features(tf.constant(hidden, tf.float64)).numpy()
        parts = [features @ block.T for block in _blocks(self._table)]
        return np.concatenate(parts, axis=1) + self._bias

    def passed_on(
        self, hidden: np.ndarray, gradients: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """How much of the gradients g of the logits, [n, V], reaches the encoder.

        Let A [V, H] be the Jacobian of the logits with respect to `hidden`, [n, H].
        The encoder gets A'g. The part of g that is orthogonal to the columns of A is
        lost: no change of the hidden vector has this effect. `gradients` are float64.

        Returns:
          shares |P g|^2 / |g|^2, [n], where P is the orthogonal projection onto the
          column space of A; numerical ranks of A, [n].
        """
        by_features, start = 0.0, 0
        for block in _blocks(self._table):
            by_features += gradients[:, start : start + len(block)] @ block
            start += len(block)
        norms = np.linalg.norm(gradients, axis=1)
        # The tolerance of numpy's matrix_rank for the whole [V, H] matrix.
        precision = len(self._table) * np.finfo(np.float64).eps
        shares, ranks, decomposed = [], [], None
        for vector, gradient, norm in zip(hidden, by_features, norms, strict=True):
            # A head without activation has the same Jacobian everywhere.
            if decomposed is None or not self._is_linear:
                jacobian = self._jacobian(tf.constant(vector[None], tf.float64)).numpy()
                # R of the table itself, without subtracting its mean row.
                image = self._triangle[:, 1:] @ jacobian
                decomposed = np.linalg.svd(image, full_matrices=False)
                _, singular, right = decomposed
                rank = int((singular > singular[0] * precision).sum())
            within = (right[:rank] @ (jacobian.T @ gradient)) / singular[:rank]
            shares.append((np.linalg.norm(within) / norm) ** 2 if norm else 0.0)
            ranks.append(rank)
        return np.array(shares), np.array(ranks)

    def spectrum(self, hidden: np.ndarray) -> np.ndarray:
        """The singular values of the doubly centred logits of `hidden` [n, H]."""
        features = triangle(self._features(tf.constant(hidden, tf.float64)).numpy())
        product = features[1:, 1:] @ self._triangle[1:, 1:].T
        return np.linalg.svd(product, compute_uv=False)

    def _features(self, x: tf.Tensor) -> tf.Tensor:
        """f(h) of float64 [n, H], [n, r]."""
        if self._kernel is not None:
            x = x @ self._kernel + self._kernel_bias
        if not self._is_linear:
            x = ACTIVATIONS[self._config.activation](x)
            mean, variance = tf.nn.moments(x, [1], keepdims=True)
            scale = tf.sqrt(variance + self._config.layer_norm_epsilon)
            x = (x - mean) / scale * self._gamma + self._beta
        for factor in self._factors:
            x = x @ factor.T
        return x

    def _features_and_jacobian(self, hidden: tf.Tensor) -> tf.Tensor:
        """f'(h) of float64 [1, H], [r, H]."""
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            features = self._features(hidden)
        return tape.batch_jacobian(features, hidden)[0]


def effective_rank(values: np.ndarray) -> float:
    """exp of the entropy of the singular values' shares (Roy and Vetterli 2007).

    It is the width if all values are equal, 1 if all but one are 0, and 0 for zeros.
    """
    total = values.sum()
    if total == 0:
        return 0.0
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def centred_values(table: np.ndarray) -> np.ndarray:
    """The singular values of a table [rows, E] minus its mean row."""
    return np.linalg.svd(triangle(table)[1:, 1:], compute_uv=False)


def triangle(table: np.ndarray) -> np.ndarray:
    """The triangular factor R of a QR decomposition of [1, X], X being a table.

    R without its first column has the norms and singular values of X. Without its
    first row as well, it has those of X minus its mean row.
    """
    factor = np.zeros([0, 1 + table.shape[1]])
    for block in _blocks(table):
        rows = np.concatenate([np.ones([len(block), 1]), block], axis=1)
        factor = np.linalg.qr(np.concatenate([factor, rows]), mode="r")
    return factor


def _blocks(table: np.ndarray) -> Iterable[np.ndarray]:
    """The table in chunks of its rows, each copied to float64."""
    for start in range(0, len(table), _BLOCK_ROWS):
        yield table[start : start + _BLOCK_ROWS].astype(np.float64)
