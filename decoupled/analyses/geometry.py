"""How much does an output embedding pass on, and how many dimensions do logits use?

Measures pre-trained models:

  gradient    the share of the loss's gradient with respect to the logits that the
              output embedding passes on to the encoder (Godey and Artzi 2026, arXiv
              2603.10145), beside that of a random map of its rank
  logits      their rank and effective rank, beside the rank that the head allows
  embeddings  the effective rank of every table (Roy and Vetterli 2007)

  decoupled analyze geometry --model_dir=runs/coupled --model_dir=runs/e_out_3072 \\
      --corpus_dir=corpus --output_dir=results

--corpus_dir is a folder that build_corpus wrote. Its held-out text is masked in the
same way for all models of a vocabulary.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from decoupled.analyses.models import (
    batches,
    layer_encoder,
    measure_each,
    open_models,
    with_masks,
)
from decoupled.analyses.output import Picture, Table, by_model
from decoupled.configs import ModelConfig
from decoupled.configs.analyses import GeometrySettings
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.corpora.corpus import Corpus
from decoupled.data.masking import mask_sequences
from decoupled.data.sequences import EVAL, chunks
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.interop.surgery import row_blocks
from decoupled.exports.serving.encoder import ACTIVATIONS, Weights
from decoupled.model import variables as names
from decoupled.runs.saved_run import Model

Arrays = dict[str, np.ndarray]

# Elements of the logits' gradients that are in memory at a time: 128 MB of float64.
_BLOCK_VALUES = 2**24


def run(flags: Any, settings: GeometrySettings) -> dict[str, Any]:
    """The result of the command's flags."""
    length = settings.masking.sequence_length
    models = open_models(flags.model_dir, masked_lm=True, length=length)
    return measure(models, Corpus(flags.corpus_dir), settings)


def measure(
    models: Sequence[Model], corpus: Corpus, settings: GeometrySettings
) -> dict[str, Any]:
    """All measures of all models.

    Returns:
      `corpus` (fingerprint), `settings`; of each model `sequences`, `predictions` (how
      many were read), `gradient` (`positions`; the means over them of `share` and
      `rank`; `random_share`), `logits` (`bound`, `rank`, `effective_rank`) and
      `embeddings` (`embedding`, `width`, `effective_rank`).
    """
    texts: dict[str, Arrays] = {}

    def of_model(model):
        key = model.vocabulary.fingerprint
        if key not in texts:
            texts[key] = masked_text(corpus, model.vocabulary, settings)
        return _measure_model(model, texts[key], settings), {}

    return {
        "analysis": "geometry",
        "corpus": corpus.fingerprint,
        "settings": dataclasses.asdict(settings),
        **measure_each(models, of_model),
    }


def masked_text(
    corpus: Corpus, vocabulary: Vocabulary, settings: GeometrySettings
) -> Arrays:
    """The first held-out sequences of every language, masked: the result of
    `mask_sequences` and `with_masks`."""
    length = settings.masking.sequence_length
    needed = settings.sequences * (length - 2)
    parts = [tf.zeros([0, length], tf.int32)]
    for language in corpus.languages(EVAL):
        documents, tokens = [], 0
        for document in corpus.documents(EVAL, language):
            encoded = vocabulary.encode_batch(document)
            if ids := list(itertools.chain.from_iterable(encoded)):
                documents.append(ids)
                tokens += len(ids)
            if tokens >= needed:
                break
        if documents:
            ragged = tf.ragged.constant(documents, tf.int32)
            parts.append(chunks(ragged, length, vocabulary)[: settings.sequences])
    plain = tf.concat(parts, 0)
    if plain.shape[0] < 2:
        raise UserError(
            f"{corpus.folder}: no two sequences of held-out text (split {EVAL!r}); "
            "give a corpus that has more"
        )
    numbers = tf.range(plain.shape[0], dtype=tf.int64)
    masked = mask_sequences(plain, numbers, settings.seed, settings.masking, vocabulary)
    return with_masks({k: v.numpy() for k, v in masked.items()}, vocabulary)


def _measure_model(
    model: Model, arrays: Arrays, settings: GeometrySettings
) -> dict[str, Any]:
    parts = []
    encode = layer_encoder(model)
    description = f"{model.name}: running the encoder"
    for batch in batches(arrays, settings.batch_size, description):
        last = encode(batch)[-1].numpy()
        rows, places = np.nonzero(batch["masked_lm_weights"])
        hidden = last[rows, batch["masked_lm_positions"][rows, places]]
        parts.append((hidden, batch["masked_lm_ids"][rows, places]))
    vectors, pieces = (np.concatenate(part) for part in zip(*parts, strict=True))
    path = OutputPath(model.config, model.weights)
    values = path.spectrum(vectors)
    return {
        "sequences": len(arrays["input_mask"]),
        "predictions": len(pieces),
        "gradient": path.gradient(vectors, pieces, settings.gradients, model.name),
        "logits": {
            "bound": path.bound,
            # Hidden vectors are float32: a direction that they lack has about 1e-8 of
            # the largest singular value.
            "rank": int((values > values[0] * 1e-6).sum()),
            "effective_rank": effective_rank(values),
        },
        "embeddings": [
            {
                "embedding": kind,
                "width": table.shape[1],
                "effective_rank": effective_rank(centred_values(table)),
            }
            for kind, table in ((k, model.embedding(k)) for k in model.embeddings)
        ],
    }


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
        self._kernel, self._kernel_bias, self._gamma, self._beta = (
            weights[name].astype(np.float64) if name in declared else None
            for name in (
                *(f"{names.TRANSFORM}/{part}" for part in ("kernel", "bias")),
                *(f"{names.TRANSFORM_NORM}/{part}" for part in ("gamma", "beta")),
            )
        )
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
        spec = tf.TensorSpec([1, config.hidden_size], tf.float64)
        self._jacobian = tf.function(self._features_jacobian, [spec], autograph=False)

    def gradient(
        self, hidden: np.ndarray, targets: np.ndarray, positions: int, name: str
    ) -> dict[str, Any]:
        """Means over positions that are evenly spaced, and so cover all languages."""
        count, vocab = min(positions, len(hidden)), len(self._table)
        places = np.linspace(0, len(hidden) - 1, count).round().astype(int)
        starts = range(0, count, max(1, _BLOCK_VALUES // vocab))
        parts = []
        for start in console.track(starts, f"{name}: following gradients"):
            some = places[start : start + starts.step]
            gradients = self.loss_gradients(hidden[some], targets[some])
            parts.append(self.passed_on(hidden[some], gradients))
        shares, ranks = (np.concatenate(part) for part in zip(*parts, strict=True))
        return {
            "positions": count,
            "share": float(shares.mean()),
            "rank": float(ranks.mean()),
            "random_share": float(ranks.mean()) / vocab,
        }

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
        parts = [features @ block.T for block in row_blocks(self._table)]
        return np.concatenate(parts, axis=1) + self._bias

    def passed_on(
        self, hidden: np.ndarray, gradients: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """How much of the gradients g of the logits, float64 [n, V], reaches the
        encoder.

        Let A [V, H] be the Jacobian of the logits with respect to `hidden`, [n, H].
        The encoder gets A'g. The part of g that is orthogonal to the columns of A is
        lost: no change of the hidden vector has this effect.

        Returns:
          shares |P g|^2 / |g|^2, [n], where P is the orthogonal projection onto the
          column space of A; numerical ranks of A, [n].
        """
        by_features, start = 0.0, 0
        for block in row_blocks(self._table):
            by_features += gradients[:, start : start + len(block)] @ block
            start += len(block)
        norms = np.linalg.norm(gradients, axis=1)
        # The tolerance of numpy's matrix_rank for the whole [V, H] matrix.
        precision = len(self._table) * np.finfo(np.float64).eps
        shares, ranks = [], []
        for vector, gradient, norm in zip(hidden, by_features, norms, strict=True):
            # A head without activation has the same Jacobian everywhere.
            if not ranks or not self._is_linear:
                jacobian = self._jacobian(tf.constant(vector[None], tf.float64)).numpy()
                # R of the table itself, without subtracting its mean row.
                image = self._triangle[:, 1:] @ jacobian
                _, singular, right = np.linalg.svd(image, full_matrices=False)
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

    def _features_jacobian(self, hidden: tf.Tensor) -> tf.Tensor:
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
    for block in row_blocks(table):
        rows = np.concatenate([np.ones([len(block), 1]), block], axis=1)
        factor = np.linalg.qr(np.concatenate([factor, rows]), mode="r")
    return factor


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """A row for each model or embedding."""
    rows, ranks = [], []
    for model in result["models"]:
        gradient, logits = model["gradient"], model["logits"]
        rows.append(
            [
                *(model["name"], model["hidden_size"], model["output_embedding_size"]),
                f"{100 * gradient['share']:.2f}",
                f"{100 * gradient['random_share']:.2f}",
                *(logits["rank"], logits["bound"], f"{logits['effective_rank']:.1f}"),
            ]
        )
        ranks += [[model["name"], *entry.values()] for entry in model["embeddings"]]
    title = (
        "Gradient of the loss by the logits that reaches the encoder, and the logits"
    )
    columns = ["model", "H", "E_out", "share, %", "random, %", "rank", "at most"]
    yield Table(title, [*columns, "effective rank"], rows)
    title = "Effective rank of the embeddings without their mean row"
    yield Table(title, ["model", "embedding", "E", "effective rank"], ranks)


def picture(result: dict[str, Any]) -> Picture:
    """The gradient that arrives, and the effective rank of the logits."""
    models = result["models"]
    shares = {
        "output embedding": [100 * m["gradient"]["share"] for m in models],
        "random map of its rank": [100 * m["gradient"]["random_share"] for m in models],
    }
    ranks = {"logits": [model["logits"]["effective_rank"] for model in models]}
    panels = [
        by_model(models, shares, "gradient that reaches the encoder, %"),
        by_model(models, ranks, "effective rank of logits"),
    ]
    panels = [panel._replace(from_zero=True) for panel in panels]
    return Picture("What an output embedding passes on", [panels])
