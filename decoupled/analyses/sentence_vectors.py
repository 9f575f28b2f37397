"""Vectors of sentences from the layers of a trained model.

Reads a folder that `pretrain` or `finetune` wrote, or one of its checkpoints.
"""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.configs import (
    MeshConfig,
    ModelConfig,
    RetrievalConfig,
)
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary
from decoupled.model.dims import make_dims
from decoupled.runs.saved_run import open_run
from decoupled.tasks.pooling import (
    Batch,
    PooledLayers,
    Tokens,
    batch_input_fn,
    layer_name,
    tokenize,
)
from decoupled.training.checkpoints import checkpoint_step
from decoupled.training.estimator import make_estimator
from decoupled.training.lengths import choose_lengths, tokens_while_building
from decoupled.training.mesh import check_mesh, length_step, mesh_size
from decoupled.training.model_fn import PredictionSpec
from decoupled.training.network import Network

_LENGTH = "RetrievalConfig.max_sequence_length"
# The settings that the sizes of the mesh's dimensions come from.
_SETTINGS = {
    "batch": "RetrievalConfig.batch_size",
    "sequence": _LENGTH,
    "memory": _LENGTH,
}


class TrainedEncoder(NamedTuple):
    """A checkpoint with its configuration.

    checkpoint: prefix. step: of training. model: sizes. vocabulary: its pieces.
    """

    checkpoint: str
    step: int
    model: ModelConfig
    vocabulary: Vocabulary

    def layer(self, config: RetrievalConfig) -> int:
        """The configured layer, 0 to L; see `RetrievalConfig.layer_of`."""
        return config.layer_of(self.model.num_layers, self.checkpoint)


def open_encoder(path: str) -> TrainedEncoder:
    """Opens the folder of a run, or the prefix of a checkpoint; see `open_run`.

    Raises:
      UserError: it is no run, has no complete checkpoint, or its vocabulary is not the
        one of the training.
    """
    run = open_run(path)
    step = checkpoint_step(run.prefix)
    return TrainedEncoder(run.prefix, step, run.description.model, run.vocabulary)


def check_lengths(encoder: TrainedEncoder, config: RetrievalConfig) -> None:
    """Checks that the model has a position for every token.

    Raises:
      UserError: the model has too few positions.
    """
    if config.max_sequence_length > encoder.model.max_positions:
        raise UserError(
            f"RetrievalConfig.max_sequence_length: {config.max_sequence_length}, but "
            f"the model of {encoder.checkpoint} has max_positions = "
            f"{encoder.model.max_positions}; set it to that or less"
        )


def layer_vectors(
    encoder: TrainedEncoder,
    texts: Sequence[str],
    config: RetrievalConfig,
    mesh: MeshConfig,
) -> np.ndarray:
    """float32 [texts, H]: the mean over each text's tokens in the configured layer.

    Raises:
      UserError: the model has no such layer, too few positions, or does not fit the
        mesh.
    """
    layer = encoder.layer(config)
    vectors = np.zeros([len(texts), encoder.model.hidden_size], np.float32)
    for rows, pooled in encode_texts(encoder, texts, [layer], config, mesh):
        vectors[rows] += pooled[layer]
    return vectors


def encode_texts(
    encoder: TrainedEncoder,
    texts: Sequence[str],
    layers: Sequence[int],
    config: RetrievalConfig,
    mesh: MeshConfig,
) -> Iterator[tuple[np.ndarray, dict[int, np.ndarray]]]:
    """Encodes texts in batches of similar length, with progress.

    One graph and one session serve all lengths.

    Args:
      encoder: the trained model.
      texts: sentences.
      layers: from 0 to L.
      config: lengths, batches and pooling; its layer is ignored here.
      mesh: where the model runs.

    Yields:
      (indices in `texts` int64 [n], each once, layer -> float32 [n, H]). A text that
      was divided into windows may occur again in other batches; its vectors add up to
      the mean over its tokens.

    Raises:
      UserError: the model has too few positions, does not fit the mesh, or gives values
        that are not finite.
    """
    check_lengths(encoder, config)
    if not texts:
        return
    tokens = tokenize(encoder.vocabulary, texts)
    owners, shares = None, None
    if config.long_sentences == "windows":
        tokens, owners = tokens.windows(config.max_sequence_length)
        shares = _shares(tokens, owners, config)
    batch_size = _batch_size(len(tokens.ends), config, mesh)
    batches = _batches(encoder.model, tokens, config, mesh, batch_size)
    lengths = sorted({batch.length for batch in batches})
    for length in lengths:
        for size in (config.batch_size, batch_size):
            dims = make_dims(encoder.model, size, length)
            check_mesh(mesh, dims, settings=_SETTINGS)
    input_fn = batch_input_fn(
        encoder.vocabulary, tokens, batches, batch_size, config.pool_special_tokens
    )
    estimator = _estimator(encoder, layers, mesh, lengths, batch_size)
    outputs = estimator.predict(
        input_fn, checkpoint_path=encoder.checkpoint, yield_single_examples=False
    )
    tracked = console.track(outputs, "encoding batches of sentences", len(batches))
    for batch, found in zip(batches, tracked, strict=True):
        count = len(batch.rows)
        pooled = {layer: found[layer_name(layer)][:count] for layer in layers}
        _check_finite(encoder, pooled)
        if shares is None:
            yield batch.rows, pooled
            continue
        places, which = np.unique(owners[batch.rows], return_inverse=True)
        # [texts, windows], the share of each window in its text.
        parts = np.zeros([len(places), count], np.float32)
        parts[which, np.arange(count)] = shares[batch.rows]
        yield places, {layer: parts @ vectors for layer, vectors in pooled.items()}


def _shares(tokens: Tokens, owners: np.ndarray, config: RetrievalConfig) -> np.ndarray:
    """float32 [windows], the share of its text's pooled tokens in each window."""
    pieces = np.diff(tokens.ends, prepend=0)
    # [CLS] and [SEP]; an empty text has a share of 1.
    pooled = np.maximum(1, pieces + 2 * config.pool_special_tokens)
    totals = np.bincount(owners, pooled)[owners]
    return (pooled / totals).astype(np.float32)


def _batch_size(sentences: int, config: RetrievalConfig, mesh: MeshConfig) -> int:
    """The size of equal batches, so that the last one has few empty rows."""
    batches = -(-sentences // config.batch_size)
    even = -(-sentences // batches)
    processors = mesh_size(mesh)
    # Every dimension of the mesh can split a multiple of its size.
    return min(config.batch_size, -(-even // processors) * processors)


def _batches(
    model: ModelConfig,
    tokens: Tokens,
    config: RetrievalConfig,
    mesh: MeshConfig,
    batch_size: int,
) -> list[Batch]:
    """Batches of sentences of similar length, the longest first.

    The length of a batch is that of its longest sentence, rounded up to one of the few
    lengths that the graph is built for.
    """
    longest = config.max_sequence_length
    sizes = tokens.lengths(longest)
    order = np.argsort(-sizes, kind="stable")
    rows = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    needed = sizes[[own[0] for own in rows]]
    cost = tokens_while_building(model) / batch_size
    lengths = choose_lengths(needed, longest, cost, length_step(mesh))
    places = np.searchsorted(lengths, needed)
    return [Batch(own, lengths[i]) for own, i in zip(rows, places, strict=True)]


def _estimator(encoder, layers, mesh, lengths, batch_size):
    task = PooledLayers(layers, lengths[-1])
    network = Network(task, encoder.model, mesh)
    spec = PredictionSpec(os.path.dirname(encoder.checkpoint), batch_size)
    return make_estimator(network, spec, lengths)


def _check_finite(encoder, pooled):
    if not all(np.isfinite(vectors).all() for vectors in pooled.values()):
        raise UserError(
            f"{encoder.checkpoint}: gives numbers that are not finite; the training "
            "diverged, choose an earlier checkpoint"
        )
