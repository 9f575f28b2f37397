"""Length bucketing in one graph: short rows are padded less than the longest row.

A mesh graph has static shapes, and most rows are much shorter than the longest. The
graph therefore contains the model once for each of several lengths, with the same
variables. More lengths mean less padding but a larger graph; the lengths are chosen by
the total cost. A batch runs only through the part of its own length. In training each
part has its own backward pass, and all parts share one update.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core.compat import tf

# FLOPs that two cores can compute while the graph of one length is built: a graph that
# predicts, and one that trains, including its compiled kernels. Measured with small and
# large models, in FLOPs of forward passes; a training step takes three times as many.
_FLOPS_PER_GRAPH, _FLOPS_PER_TRAINING_GRAPH = 2e11, 3.3e11
# The cost of a token in training besides matrix products, in the same unit. In small
# models this is most of the time.
_FLOPS_BESIDE_PRODUCTS = 1e7
# The cost of a score of attention besides matrix products, in the same unit: an
# estimate. XNLI's tokens took as long in rows of 88 as in rows of 128, within 3%.
_FLOPS_OF_A_SCORE = 500
# After so many steps, skipping a part has taken as long as building it: 0.05 ms a layer
# in each step against 200 ms a layer.
_STEPS_PER_GRAPH = 4000
# An estimate: a GPU trains so many times as fast as the two cores that build its graph.
_GPU_SPEED = 40

Features = dict[str, tf.Tensor]


def _flops(model: ModelConfig) -> int:
    """FLOPs of a token's products with weights in a forward pass."""
    weights = 4 * model.hidden_size + 2 * model.intermediate_size
    return 2 * model.num_layers * model.hidden_size * weights


def tokens_while_building(model: ModelConfig) -> float:
    """The tokens that two cores encode while the graph of one length is built."""
    return _FLOPS_PER_GRAPH / _flops(model)


def training_tokens_per_length(model: ModelConfig, steps: int, graphs: int) -> float:
    """The tokens that a run could train on in the time that one more length costs.

    Args:
      model: that is trained. steps: of the run.
      graphs: that it builds, one after the other.
    """
    tokens = _FLOPS_PER_TRAINING_GRAPH / (_flops(model) + _FLOPS_BESIDE_PRODUCTS)
    if tf.config.list_physical_devices("GPU"):
        tokens *= _GPU_SPEED
    return tokens * (graphs + steps / _STEPS_PER_GRAPH)


def packed_token_cost(model: ModelConfig, length: int) -> float:
    """The cost of a token in a packed row, in FLOPs of a forward pass.

    Args:
      model: that is trained. length: tokens of the row, all of which have a score.
    """
    products = 4 * model.num_layers * model.hidden_size * length
    scores = model.num_layers * model.num_heads * length
    return (
        _flops(model) + _FLOPS_BESIDE_PRODUCTS + products + scores * _FLOPS_OF_A_SCORE
    )


def choose_lengths(
    lengths: np.ndarray, longest: int, tokens_per_graph: float, step: int
) -> list[int]:
    """The lengths of graphs, ascending, that together cost the least.

    Args:
      lengths: int [rows], of each row, at most `longest`.
      longest: what rows are cut to.
      tokens_per_graph: a graph costs as much as encoding so many tokens.
      step: lengths are multiples of it, or `longest`.

    Returns:
      Lengths; every row fits into the last one.
    """
    rounded = np.minimum(-(-lengths // step) * step, longest)
    sizes, counts = np.unique(rounded, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    # cheapest[i]: cost of all rows of the first i sizes, and the lengths for it.
    cheapest: list[tuple[float, list[int]]] = [(0, [])]
    for end, size in enumerate(sizes, start=1):
        cost, chosen = min(
            (cost + (below[end] - below[start]) * size + tokens_per_graph, chosen)
            for start, (cost, chosen) in enumerate(cheapest)
        )
        cheapest.append((cost, [*chosen, int(size)]))
    return cheapest[-1][1]


def split_by_length(
    features: Features, lengths: Sequence[int]
) -> Iterator[tuple[int, Features]]:
    """The batch once for each length that it may have, with static shapes.

    With several lengths, the features come through a switch (`tf.raw_ops.Switch`):
    operations that depend on features of another length than the batch's do not run.
    `join_lengths` takes the output of the part that did.

    Args:
      features: name -> tensor [batch] or [batch, length] of unknown length; of packed
        rows all shapes are known.
      lengths: that the batch may have.

    Yields:
      (length, features of this length).
    """
    for length in lengths:
        own = features
        if len(lengths) > 1:
            is_own = tf.equal(tf.shape(features["input_word_ids"])[1], length)
            own = {
                name: tf.raw_ops.Switch(data=value, pred=is_own).output_true
                for name, value in features.items()
            }
        yield length, {name: _with_length(v, length) for name, v in own.items()}


def join_lengths(outputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """The output of the part that ran; all outputs have the same shape."""
    if len(outputs) == 1:
        return outputs[0]
    return tf.raw_ops.Merge(inputs=outputs).output


def _with_length(tensor: tf.Tensor, length: int) -> tf.Tensor:
    """A tensor [batch, length] with a static length."""
    if tensor.shape.rank == 1 or tensor.shape.is_fully_defined():
        return tensor
    # `tf.ensure_shape` would check every batch again.
    tensor = tf.identity(tensor)
    tensor.set_shape([tensor.shape[0], length])
    return tensor
