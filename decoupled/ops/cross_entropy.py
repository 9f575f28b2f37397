"""Softmax cross-entropy over a vocabulary that may be split across the mesh.

The stock operation builds a one-hot of [predictions, vocabulary] and reads it several
times. Here each shard gives its maximum, its normaliser and, where it owns the target,
the target's logit; only [predictions] values cross the mesh. The arithmetic is float32
whatever the logits' dtype.

On a CPU the whole pass needs one float32 buffer of the logits' size: the softmax
overwrites the logits (or their float32 copy), and the gradient overwrites the softmax.
No exponential is computed twice. Programs of XLA keep nothing of that size but the
logits, in their own dtype: whoever reads exponentials computes them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.ops.local import Spec, local_index, mesh_op, shard_of
from decoupled.ops.meshes.placement import PlacementMeshImpl


def softmax_cross_entropy(
    logits: mtf.Tensor,
    targets: mtf.Tensor,
    vocab_dim: mtf.Dimension,
    *,
    weights: mtf.Tensor | None = None,
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """The differentiable -log softmax(logits)[target] of each position, and 1 where the
    target is the arg-max, else 0, float32 [...].

    Of equal logits the smallest id wins. Any dimension of `logits`, float
    [..., vocab_dim], may be split. On a CPU a target that is no index ends the step
    with an error that shows it. `weights`, float32 [...], multiply both results.
    """
    if logits.shape.dims != targets.shape.dims + [vocab_dim]:
        raise ValueError(f"{logits.shape} is not {targets.shape} + {vocab_dim}")
    positions = Spec(targets.shape, tf.float32)
    # The gradient needs two more results, whose product is the softmax over the whole
    # vocabulary (`_Kernels.exponentials`).
    outputs = [positions, positions, Spec(logits.shape, tf.float32), positions]
    losses, correct, *_ = mesh_op(
        "softmax_cross_entropy",
        functools.partial(_lower, vocab_dim),
        [logits, targets],
        outputs,
        functools.partial(_backward, vocab_dim),
    )
    if weights is None:
        return losses, correct
    return losses * weights, correct * weights


def _lower(
    vocab_dim: mtf.Dimension, mesh_impl: mtf.MeshImpl, logits: Any, targets: Any
) -> list:
    axis, size, coordinate = shard_of(mesh_impl, vocab_dim)
    kernels = _kernels_of(mesh_impl)

    def over_vocab(x: Any, reduction: str) -> Any:
        return x if axis is None else mesh_impl.allreduce(x, [axis], reduction)

    def shard_pass(
        logits: tf.Tensor, targets: tf.Tensor, coordinate: tf.Tensor | int
    ) -> tuple[tf.Tensor, ...]:
        """What one device computes from its [..., size] logits: the exponentials and
        their log_scale (`_Kernels.exponentials`), the largest logit and its id in the
        whole vocabulary, the log of the sum of exp(logit - largest), and the target's
        logit, or 0 if another device has it."""
        x = tf.reshape(tf.cast(logits, tf.float32), [-1, size])
        maximum, column = kernels.row_maximum(x)
        cells, is_here = _target_cells(targets, coordinate, size, vocab_dim.size)
        target_logit = tf.gather_nd(x, cells) * tf.cast(is_here, tf.float32)
        # After every other read of the logits, so that these may be overwritten.
        with tf.control_dependencies([maximum, target_logit]):
            exponentials, log_scale, log_sum = kernels.exponentials(x, maximum, column)
        candidate = tf.cast(column + coordinate * size, tf.float32)
        values = [log_scale, maximum, candidate, log_sum, target_logit]
        return tf.reshape(exponentials, logits.shape), *[
            tf.reshape(x, targets.shape) for x in values
        ]

    exponentials, log_scale, shard_max, candidate, shard_log_sum, target_logit = (
        mesh_impl.slicewise(shard_pass, logits, targets, coordinate)
    )
    # Logs of sums of exp(logit - maximum), so that small losses keep their digits.
    maximum = over_vocab(shard_max, "MAX")

    def exp_from_maximum(log: Any) -> Any:
        return mesh_impl.slicewise(
            lambda s, m, log: tf.exp(s - m + log), shard_max, maximum, log
        )

    sums = over_vocab(exp_from_maximum(shard_log_sum), "SUM")
    losses = mesh_impl.slicewise(
        lambda m, p, s: m - p + tf.math.log(s),
        maximum, over_vocab(target_logit, "SUM"), sums,
    )  # fmt: skip
    scale = mesh_impl.slicewise(lambda e, s: e / s, exp_from_maximum(log_scale), sums)
    correct = _correct_predictions(
        mesh_impl, axis, shard_max, maximum, candidate, targets
    )
    return [losses, correct, exponentials, scale]


def _backward(
    vocab_dim: mtf.Dimension, operation: mtf.Operation, dy: mtf.Tensor, *_: Any
) -> list:
    logits, targets = operation.inputs
    _, _, exponentials, scale = operation.outputs

    def lower(mesh_impl: mtf.MeshImpl, *slices: Any) -> list:
        _, size, coordinate = shard_of(mesh_impl, vocab_dim)
        add_at = _kernels_of(mesh_impl).add_at

        def gradient(
            exponentials: tf.Tensor,
            scale: tf.Tensor,
            targets: tf.Tensor,
            dy: tf.Tensor,
            coordinate: tf.Tensor | int,
        ) -> tf.Tensor:
            factor = tf.reshape(scale * dy, [-1, 1])
            result = tf.reshape(exponentials, [-1, size]) * factor
            dy = tf.reshape(dy, [-1])
            cells, is_here = _target_cells(targets, coordinate, size, vocab_dim.size)
            update = -dy * tf.cast(is_here, tf.float32)
            result = tf.reshape(add_at(result, cells, update), exponentials.shape)
            return tf.cast(result, logits.dtype)

        return [mesh_impl.slicewise(gradient, *slices, coordinate)]

    inputs = [exponentials, scale, targets, dy]
    return [*mesh_op("cross_entropy_gradient", lower, inputs, [logits]), None]


# Larger than any id, exact in float32.
_NO_ID = float(2**30)


def _correct_predictions(
    mesh_impl: mtf.MeshImpl,
    axis: int | None,
    shard_max: Any,
    maximum: Any,
    candidate: Any,
    targets: Any,
) -> Any:
    """1 where a target is the arg-max, else 0. Each device has the largest logit of its
    part, `shard_max`, and its id, `candidate`; `maximum` is that of all parts."""
    # The smallest id among the shards that hold the maximum: a maximum of negatives,
    # as meshes have no minimum.
    best_id = mesh_impl.slicewise(
        lambda s, m, c: tf.where_v2(s >= m, -c, -_NO_ID),
        shard_max, maximum, candidate,
    )  # fmt: skip
    if axis is not None:
        best_id = mesh_impl.allreduce(best_id, [axis], "MAX")

    def is_target(best_id: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
        best_id = tf.reshape(best_id, targets.shape)
        return tf.cast(tf.equal(-best_id, tf.cast(targets, tf.float32)), tf.float32)

    return mesh_impl.slicewise(is_target, best_id, targets)


def _row_maximum(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Largest element of each row of [rows, size] and its index, both [rows, 1]."""
    return tf.math.top_k(x, 1)


def _row_maximum_by_reduction(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    index = tf.argmax(x, axis=-1, output_type=tf.int32)
    return tf.reduce_max(x, axis=-1, keepdims=True), tf.expand_dims(index, 1)


def _target_cells(
    targets: tf.Tensor, coordinate: tf.Tensor | int, size: int, vocab_size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """[row, column] of each target in this shard's [rows, size] view, and ownership."""
    flat_targets = tf.reshape(targets, [-1])
    column, is_here = local_index(flat_targets, coordinate, size, vocab_size)
    return tf.stack([tf.range(flat_targets.shape[0]), column], axis=1), is_here


def _softmax(x: tf.Tensor, maximum: tf.Tensor, column: tf.Tensor) -> tuple:
    del maximum
    softmax = tf.nn.softmax(x)
    # The largest probability is exp(0) over that sum.
    log_sum = -tf.math.log(tf.gather(softmax, column, batch_dims=1))
    return softmax, log_sum, log_sum


def _exponentials(x: tf.Tensor, maximum: tf.Tensor, column: tf.Tensor) -> tuple:
    del column
    exponentials = tf.exp(x - maximum)
    log_sum = tf.math.log(tf.reduce_sum(exponentials, axis=-1, keepdims=True))
    return exponentials, tf.zeros_like(log_sum), log_sum


def _add_at_in_place(x: tf.Tensor, cells: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    return tf.raw_ops.ScatterNdNonAliasingAdd(input=x, indices=cells, updates=updates)


def _add_where_equal(x: tf.Tensor, cells: tf.Tensor, updates: tf.Tensor) -> tf.Tensor:
    is_cell = tf.equal(tf.range(x.shape[1]), cells[:, 1:])
    return x + tf.where_v2(is_cell, tf.expand_dims(updates, 1), 0.0)


class _Kernels(NamedTuple):
    """Kernels that TensorFlow's executor and XLA need in different versions.

    row_maximum: from [rows, size] to the largest element of each row and its index.
    exponentials: from these three to exp(logit - maximum) / scale, and of each row
      log(scale) and the log of the sum of exp(logit - maximum).
    add_at: x [rows, size] with values [rows] added at indices [rows, 2].
    """

    row_maximum: Callable
    exponentials: Callable
    add_at: Callable


# TensorFlow's own kernels find the largest in one pass, divide by the sum and add in
# place. XLA would sort for `top_k`, write quotients, and copy for an addition at an
# index; it computes plain exponentials and comparisons where it reads them.
_HOST = _Kernels(_row_maximum, _softmax, _add_at_in_place)
_XLA = _Kernels(_row_maximum_by_reduction, _exponentials, _add_where_equal)


def _kernels_of(mesh_impl: mtf.MeshImpl) -> _Kernels:
    return _HOST if isinstance(mesh_impl, PlacementMeshImpl) else _XLA
