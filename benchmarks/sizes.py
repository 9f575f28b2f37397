"""The sizes of measured models: the reference, and smaller ones."""

import dataclasses
from typing import Any, NamedTuple

from decoupled.configs import ModelConfig, OptimizerConfig
from decoupled.launch import gin_files

DTYPES = ("float32", "bfloat16")

# BERT-base with the decoupled embeddings of the paper's Table 3 and its multilingual
# vocabulary. No dropout, so that every framework computes the same.
REFERENCE = ModelConfig(
    input_embedding_size=128,
    coupled=False,
    activation="gelu",
    mlm_transform="dense_activation_norm",
)
QUICK = dataclasses.replace(
    REFERENCE,
    vocab_size=1024,
    input_embedding_size=16,
    output_embedding_size=48,
    hidden_size=32,
    num_layers=2,
    num_heads=2,
    head_size=16,
    intermediate_size=64,
    max_positions=64,
)
# in_small of gin/sweeps/reproduce.gin: what sweeps of sizes train on a laptop.
MINI = dataclasses.replace(
    REFERENCE,
    vocab_size=4000,
    input_embedding_size=48,
    output_embedding_size=96,
    hidden_size=96,
    num_layers=3,
    num_heads=6,
    head_size=16,
    intermediate_size=384,
    max_positions=32,
)
# A narrow encoder, whose weights are outweighed by activations or the softmax.
NARROW = dataclasses.replace(
    REFERENCE, hidden_size=256, num_heads=4, intermediate_size=1024
)
ADAMW = OptimizerConfig(learning_rate=1e-4)


class Batch(NamedTuple):
    """Sequences in a batch, tokens in a sequence, masked positions in a sequence."""

    sequences: int
    length: int
    predictions: int


REFERENCE_BATCH = Batch(sequences=8, length=128, predictions=20)
NARROW_BATCH = Batch(sequences=32, length=128, predictions=20)
MINI_BATCH = Batch(sequences=256, length=32, predictions=5)
QUICK_BATCH = Batch(sequences=2, length=16, predictions=4)


def batch_fields(model: ModelConfig, batch: Batch) -> dict[str, int]:
    """The fields of a case that `benchmarks/workers/synthetic.py` reads."""
    return {
        "vocab_size": model.vocab_size,
        "batch": batch.sequences,
        "sequence_length": batch.length,
        "predictions": batch.predictions,
    }


def shipped_model(gin_file: str) -> ModelConfig:
    """A model of gin/models."""
    return gin_files.configure(ModelConfig, [f"models/{gin_file}.gin"], [])


def pretraining_case(model: ModelConfig, batch: Batch, dtype: str) -> dict[str, Any]:
    """The case of a worker of any framework."""
    return {
        **batch_fields(model, batch),
        "model": dataclasses.asdict(model),
        "optimizer": dataclasses.asdict(ADAMW),
        "dtype": dtype,
    }
