"""Softmax cross-entropy over a vocabulary that may be split across the mesh.

The stock operation builds a one-hot of [predictions, vocabulary] and walks it several
times. Here each shard gives its maximum, its sum of exponentials and, where it owns the
target, the target's logit; only [predictions] numbers cross the mesh. The arithmetic is
float32 whatever the logits' dtype.
"""

from decoupled.compat import mtf, tf


def softmax_cross_entropy(
    logits: mtf.Tensor, targets: mtf.Tensor, vocab_dim: mtf.Dimension
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Loss and hit of each position.

    Args:
      logits: float [..., vocab_dim].
      targets: int32 [...], values in [0, vocab_dim.size).
      vocab_dim: the last dimension of `logits`; any dimension may be split.

    Returns:
      losses: float32 [...], -log softmax(logits)[target], differentiable.
      hits: float32 [...], 1 where the target is the arg-max (the smallest id wins a
        tie), else 0; not differentiable.
    """
    losses, hits, _ = _CrossEntropy(logits, targets, vocab_dim).outputs
    return losses, hits


class _CrossEntropy(mtf.Operation):
    def __init__(self, logits, targets, vocab_dim):
        super().__init__([logits, targets], name="softmax_cross_entropy")
        if logits.shape.dims != targets.shape.dims + [vocab_dim]:
            raise ValueError(f"{logits.shape} is not {targets.shape} + {vocab_dim}")
        self._vocab_dim = vocab_dim
        # The third output, log of the normaliser, is kept for the gradient.
        self._outputs = [
            mtf.Tensor(self, targets.shape, tf.float32, index=i) for i in range(3)
        ]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_all_dimensions_as_splittable()
        )

    def gradient(self, grad_ys):
        logits, targets = self.inputs
        operation = _CrossEntropyGradient(
            logits, targets, self.outputs[2], grad_ys[0], self._vocab_dim
        )
        return [operation.outputs[0], None]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        logits, targets = (lowering.tensors[x] for x in self.inputs)
        axis, size, coordinate = _vocab_shard(mesh_impl, self._vocab_dim)

        def reduce_over_vocab(x, reduction):
            if axis is None:
                return x
            return mesh_impl.allreduce(x, [axis], reduction)

        shard_max, candidate = mesh_impl.slicewise(
            lambda x, c: _maximum(x, c, size), logits, coordinate
        )
        maximum = reduce_over_vocab(shard_max, "MAX")
        partial_sums, partial_targets = mesh_impl.slicewise(
            lambda x, t, m, c: _partial_sums(x, t, m, c, size),
            logits, targets, maximum, coordinate,
        )  # fmt: skip
        sums = reduce_over_vocab(partial_sums, "SUM")
        target_logits = reduce_over_vocab(partial_targets, "SUM")
        # The smallest id among the shards that hold the maximum: a maximum of
        # negatives, as meshes have no minimum.
        negative_best = mesh_impl.slicewise(
            lambda own, best, c: tf.where_v2(own >= best, -c, -_NO_ID),
            shard_max, maximum, candidate,
        )  # fmt: skip
        negative_best = reduce_over_vocab(negative_best, "MAX")
        log_z = mesh_impl.slicewise(lambda m, s: m + tf.math.log(s), maximum, sums)
        losses = mesh_impl.slicewise(lambda z, t: z - t, log_z, target_logits)
        hits = mesh_impl.slicewise(
            lambda n, t: tf.cast(tf.equal(-n, tf.cast(t, tf.float32)), tf.float32),
            negative_best, targets,
        )  # fmt: skip
        for tensor, value in zip(self.outputs, [losses, hits, log_z], strict=True):
            lowering.set_tensor_lowering(tensor, value)


class _CrossEntropyGradient(mtf.Operation):
    def __init__(self, logits, targets, log_z, dy, vocab_dim):
        super().__init__([logits, targets, log_z, dy], name="cross_entropy_gradient")
        self._vocab_dim = vocab_dim
        self._outputs = [mtf.Tensor(self, logits.shape, logits.dtype)]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        _, size, coordinate = _vocab_shard(mesh_impl, self._vocab_dim)

        def gradient(logits, targets, log_z, dy, coordinate):
            x = tf.reshape(tf.cast(logits, tf.float32), [-1, size])
            weight = tf.reshape(dy, [-1, 1])
            probabilities = tf.exp(x - tf.reshape(log_z, [-1, 1])) * weight
            row, column, own = _target_cells(targets, coordinate, size)
            update = -tf.reshape(dy, [-1]) * tf.cast(own, tf.float32)
            cells = tf.stack([row, column], axis=1)
            result = tf.tensor_scatter_nd_add(probabilities, cells, update)
            return tf.cast(tf.reshape(result, logits.shape), logits.dtype)

        inputs = [lowering.tensors[x] for x in self.inputs]
        result = mesh_impl.slicewise(gradient, *inputs, coordinate)
        lowering.set_tensor_lowering(self.outputs[0], result)


# Larger than any id, exact in float32.
_NO_ID = float(2**30)


def _vocab_shard(mesh_impl, vocab_dim):
    """(mesh axis or None, size of a shard, coordinate of each processor)."""
    axis = mesh_impl.tensor_dimension_to_mesh_axis(vocab_dim)
    if axis is None:
        return None, vocab_dim.size, 0
    size = vocab_dim.size // mesh_impl.shape[axis].size
    return axis, size, mesh_impl.laid_out_pcoord(axis)


def _maximum(logits, coordinate, size):
    """This shard's largest logit and its id in the whole vocabulary, as float32."""
    x = tf.cast(logits, tf.float32)
    offset = tf.cast(coordinate * size, tf.float32)
    best = tf.cast(tf.argmax(x, axis=-1), tf.float32)
    return tf.reduce_max(x, axis=-1), best + offset


def _partial_sums(logits, targets, maximum, coordinate, size):
    """This shard's sum of exp(logit - maximum), and its target logits (0 if none)."""
    x = tf.cast(logits, tf.float32)
    sums = tf.reduce_sum(tf.exp(x - tf.expand_dims(maximum, -1)), axis=-1)
    row, column, own = _target_cells(targets, coordinate, size)
    cells = tf.stack([row, column], axis=1)
    found = tf.gather_nd(tf.reshape(logits, [-1, size]), cells)
    found = tf.cast(found, tf.float32) * tf.cast(own, tf.float32)
    return sums, tf.reshape(found, targets.shape)


def _target_cells(targets, coordinate, size):
    """Row, column and ownership of every target in this shard's [rows, size] view."""
    flat = tf.reshape(targets, [-1])
    local = flat - coordinate * size
    own = tf.logical_and(local >= 0, local < size)
    column = tf.where_v2(own, local, tf.zeros_like(local))
    return tf.range(flat.shape[0]), column, own
