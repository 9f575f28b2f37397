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


def encoder_flops(model: ModelConfig, sequences: int, length: int, outputs: int) -> int:
    """FLOPs of a forward pass of the encoder over [sequences, length] tokens.

    For `outputs` tokens of a sequence, the last layer computes more than keys and
    values.
    """
    flops = (model.num_layers - 1) * _layer_flops(model, sequences, length, length)
    flops += _layer_flops(model, sequences, length, outputs)
    if model.projects_input:
        tokens = sequences * length
        flops += _product(tokens, model.input_embedding_size, model.hidden_size)
    return flops


def _layer_flops(model, sequences, length, outputs):
    hidden = model.hidden_size
    return (
        2 * _product(sequences * length, hidden, hidden)
        + 2 * _product(sequences * outputs, hidden, hidden)
        + 2 * sequences * _product(outputs, hidden, length)
        + 2 * _product(sequences * outputs, hidden, model.intermediate_size)
    )


def head_flops(model: ModelConfig, positions: int) -> int:
    """FLOPs of a forward pass of the masked-LM head, at so many positions in all."""
    width = model.output_embedding_size
    flops = _product(positions, width, model.vocab_size)
    if model.projects_output:
        flops += _product(positions, model.hidden_size, width)
    return flops


def pretraining_flops(model: ModelConfig, batch: Batch, whole: bool = False) -> int:
    """FLOPs of a pre-training step; the head runs at the masked positions.

    With `whole`, the last layer is computed for all tokens.
    """
    outputs = batch.length if whole else batch.predictions
    forward_flops = encoder_flops(model, batch.sequences, batch.length, outputs)
    forward_flops += head_flops(model, batch.sequences * batch.predictions)
    return 3 * forward_flops


def _product(rows, inner, columns):
    return 2 * rows * inner * columns
