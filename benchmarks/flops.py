"""Matmul FLOPs of a step of model and head, from the configuration.

Counted, two for each multiplication with its addition: the products of activations
with weight matrices (E_in -> H, query, key, value, attention output, both feed-forward
layers, the head's transform and its output table) and the two products of attention.
Not counted: lookups, biases, activations, layer norms, softmax, the loss and the
optimizer. The backward pass counts twice the forward pass: one product for the gradient
of each of the two factors.
"""

from benchmarks.sizes import Batch
from decoupled.configs import ModelConfig


def encoder_flops(
    model: ModelConfig, sequences: int, length: int, outputs: int | None = None
) -> int:
    """FLOPs of a forward pass of the encoder over [sequences, length] tokens.

    For `outputs` tokens of a sequence, or all, the last layer computes more than keys
    and values.
    """
    tokens = sequences * length
    hidden = model.hidden_size
    flops = (model.num_layers - 1) * _layer_flops(model, sequences, length, length)
    flops += _layer_flops(model, sequences, length, outputs or length)
    if model.input_embedding_size != hidden:
        flops += _product(tokens, model.input_embedding_size, hidden)
    return flops


def _layer_flops(model, sequences, length, outputs):
    hidden = model.hidden_size
    return (
        2 * _product(sequences * length, hidden, hidden)
        + 2 * _product(sequences * outputs, hidden, hidden)
        + 2 * sequences * _product(outputs, hidden, length)
        + 2 * _product(sequences * outputs, hidden, model.intermediate_size)
    )


def transform_flops(model: ModelConfig, positions: int) -> int:
    """FLOPs of a forward pass of the masked-LM head before its output table."""
    hidden, output = model.hidden_size, model.output_embedding_size
    if model.mlm_transform == "projection" and hidden == output:
        return 0
    return _product(positions, hidden, output)


def logits_flops(model: ModelConfig, positions: int) -> int:
    """FLOPs of a forward pass of the output table, at so many positions in all."""
    return _product(positions, model.output_embedding_size, model.vocab_size)


def training_flops(forward_flops: int) -> int:
    """FLOPs of a training step, forward and backward."""
    return 3 * forward_flops


def pretraining_flops(
    model: ModelConfig, batch: Batch, devices: int = 1, whole: bool = False
) -> int:
    """FLOPs of a pre-training step; the head runs at the masked positions.

    They are those of all devices, over which the vocabulary, and nothing else, is
    split. Each runs the whole encoder. With `whole`, the last layer is computed for all
    tokens.
    """
    positions = batch.sequences * batch.predictions
    outputs = None if whole else batch.predictions
    everywhere = encoder_flops(model, batch.sequences, batch.length, outputs)
    everywhere += transform_flops(model, positions)
    return training_flops(devices * everywhere + logits_flops(model, positions))


def _product(rows, inner, columns):
    return 2 * rows * inner * columns
