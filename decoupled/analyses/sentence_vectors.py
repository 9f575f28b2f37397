"""Vectors of sentences from the layers of a trained model.

Reads a folder that `pretrain` or `finetune` wrote, or one of its checkpoints.
"""

import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled import console
from decoupled.configs import (
    MeshConfig,
    ModelConfig,
    RetrievalConfig,
    TrainingConfig,
)
from decoupled.data.vocabulary import Vocabulary
from decoupled.errors import UserError
from decoupled.model.dims import make_dims
from decoupled.tasks.pooled_layers import PooledLayers, layer_name
from decoupled.tasks.sentence_batches import (
    Tokens,
    batch_input_fn,
    tokenize,
)
from decoupled.training.checkpoints import checkpoint_step
from decoupled.training.estimator import make_estimator
from decoupled.training.graph import GraphConfig
from decoupled.training.hooks import StopOnSignal
from decoupled.training.lengths import choose_lengths, tokens_while_building
from decoupled.training.mesh import check_mesh, length_step, mesh_size
from decoupled.training.model_fn import RunSpec
from decoupled.training.saved_run import open_run


class TrainedEncoder(NamedTuple):
    """A checkpoint with what is known of it.

    checkpoint: prefix. step: of training. model: sizes. vocabulary: its pieces.
    """

    checkpoint: str
    step: int
    model: ModelConfig
    vocabulary: Vocabulary

    def layer(self, number: int) -> int:
        """A layer counted from the start: 0 to L, for -1 L.

        Raises:
          UserError: the model has no such layer.
        """
        layers = self.model.num_layers
        if not -layers - 1 <= number <= layers:
            raise UserError(
                f"RetrievalConfig.layer: {number}, but {self.checkpoint} has layers 0 "
                f"(embeddings) to {layers}"
            )
        return number if number >= 0 else layers + 1 + number


class _Bucket(NamedTuple):
    """Sentences of similar length: which ones, and the sizes of their graph."""

    rows: np.ndarray
    length: int
    batch_size: int

    @property
    def batches(self) -> int:
        """How many batches the sentences fill."""
        return -(-len(self.rows) // self.batch_size)


def open_encoder(path: str) -> TrainedEncoder:
    """Opens the folder of a run, or the prefix of a checkpoint; see `open_run`.

    Raises:
      UserError: it is no run, has no complete checkpoint, or another vocabulary than
        its own.
    """
    run = open_run(path)
    step = checkpoint_step(run.prefix)
    return TrainedEncoder(run.prefix, step, run.description.model, run.vocabulary)


def check_lengths(encoder: TrainedEncoder, config: RetrievalConfig) -> None:
    """Checks that the model has a position for every token.

    Raises:
      UserError: it has not.
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
    layer = encoder.layer(config.layer)
    vectors = np.zeros([len(texts), encoder.model.hidden_size], np.float32)
    for rows, pooled in encode_texts(encoder, texts, [layer], config, mesh):
        vectors[rows] = pooled[layer]
    return vectors


def encode_texts(
    encoder: TrainedEncoder,
    texts: Sequence[str],
    layers: Sequence[int],
    config: RetrievalConfig,
    mesh: MeshConfig,
) -> Iterator[tuple[np.ndarray, dict[int, np.ndarray]]]:
    """Encodes texts batch by batch, with progress; those of similar length together.

    Args:
      encoder: the trained model.
      texts: sentences.
      layers: from 0 to L.
      config: lengths, batches and what is pooled; its layer counts nothing here.
      mesh: where the model runs.

    Yields:
      (places in `texts` int64 [batch], layer -> float32 [batch, H]).

    Raises:
      UserError: the model has too few positions, does not fit the mesh, or gives
        numbers that are not finite.
    """
    check_lengths(encoder, config)
    tokens = tokenize(encoder.vocabulary, texts)
    buckets = _buckets(encoder.model, tokens, config, mesh)
    for bucket in buckets:
        for batch_size in (config.batch_size, bucket.batch_size):
            check_mesh(mesh, make_dims(encoder.model, batch_size, bucket.length))
    outputs = (
        batch
        for bucket in buckets
        for batch in _encode_bucket(encoder, tokens, bucket, layers, config, mesh)
    )
    total = sum(bucket.batches for bucket in buckets)
    yield from console.track(outputs, "encoding batches of sentences", total)


def _buckets(
    model: ModelConfig, tokens: Tokens, config: RetrievalConfig, mesh: MeshConfig
) -> list[_Bucket]:
    """Sentences by length; a bucket's batches are alike, so that few rows are empty."""
    lengths = tokens.lengths(config.max_sequence_length)
    longest, step = config.max_sequence_length, length_step(mesh)
    chosen = choose_lengths(lengths, longest, tokens_while_building(model), step)
    processors = mesh_size(mesh)
    places = np.searchsorted(chosen, lengths)
    buckets = []
    for place, length in enumerate(chosen):
        rows = np.flatnonzero(places == place)
        batches = -(-len(rows) // config.batch_size)
        even = -(-len(rows) // batches)
        # Any part of the mesh can split a multiple of its size.
        even = -(-even // processors) * processors
        buckets.append(_Bucket(rows, length, min(even, config.batch_size)))
    return buckets


def _encode_bucket(
    encoder, tokens: Tokens, bucket: _Bucket, layers, config: RetrievalConfig, mesh
) -> Iterator[tuple[np.ndarray, dict[int, np.ndarray]]]:
    graph = GraphConfig(
        task=PooledLayers(layers, bucket.length),
        model=encoder.model,
        mesh=mesh,
        optimizer=None,
        schedule=None,
        accumulation=1,
        seed=0,
        frozen=(),
    )
    run = RunSpec(
        os.path.dirname(encoder.checkpoint),
        _bookkeeping(bucket.batch_size),
        None,
        console.say,
        StopOnSignal(),
    )
    input_fn = batch_input_fn(
        encoder.vocabulary,
        tokens,
        bucket.rows,
        bucket.length,
        bucket.batch_size,
        config.pool_special_tokens,
    )
    predictions = make_estimator(graph, run).predict(
        input_fn, checkpoint_path=encoder.checkpoint, yield_single_examples=False
    )
    for number, batch in enumerate(predictions):
        first = number * bucket.batch_size
        rows = bucket.rows[first : first + bucket.batch_size]
        pooled = {layer: batch[layer_name(layer)][: len(rows)] for layer in layers}
        _check_finite(encoder, pooled)
        yield rows, pooled


def _check_finite(encoder, pooled):
    if not all(np.isfinite(vectors).all() for vectors in pooled.values()):
        raise UserError(
            f"{encoder.checkpoint}: gives numbers that are not finite; the training "
            "diverged, choose an earlier checkpoint"
        )


def _bookkeeping(batch_size) -> TrainingConfig:
    """What an Estimator wants to know; of it, only the batches matter to predict."""
    return TrainingConfig(
        batch_size=batch_size,
        gradient_accumulation=1,
        save_checkpoints_steps=1,
        keep_checkpoint_max=1,
        log_steps=1,
        eval_every_steps=0,
        eval_batch_size=batch_size,
        eval_sequences=0,
        seed=0,
        label_smoothing=0.0,
        recompute_layers=False,
        iterations_per_loop=1,
    )
