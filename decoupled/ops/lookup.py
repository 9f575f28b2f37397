"""Embedding lookup that gathers rows instead of multiplying by a one-hot matrix.

`mtf.gather` builds a [tokens, vocabulary] one-hot. Here each processor gathers the rows
of its own vocabulary shard, puts zeros for the rest, and an all-reduce over the mesh
axis that splits the vocabulary adds the shards up. The gradient is summed into the
local shard only.
"""

from decoupled.compat import mtf, tf


def embedding_lookup(
    table: mtf.Tensor, ids: mtf.Tensor, vocab_dim: mtf.Dimension
) -> mtf.Tensor:
    """Rows of `table`.

    Args:
      table: float [vocab_dim, ...]; `vocab_dim` is its first dimension.
      ids: int32 of any shape, values in [0, vocab_dim.size). On a CPU another value
        ends the step with an error that shows it.
      vocab_dim: the dimension that is looked up; any dimension may be split.

    Returns:
      [ids' dimensions, table's other dimensions], of the table's dtype.
    """
    return _Lookup(table, ids, vocab_dim).outputs[0]


def _shard(mesh_impl, vocab_dim):
    """(mesh axis that splits the vocabulary or None, rows per shard)."""
    axis = mesh_impl.tensor_dimension_to_mesh_axis(vocab_dim)
    parts = 1 if axis is None else mesh_impl.shape[axis].size
    return axis, vocab_dim.size // parts


class _Lookup(mtf.Operation):
    def __init__(self, table, ids, vocab_dim):
        super().__init__([table, ids], name="embedding_lookup")
        if table.shape.dims[0] != vocab_dim:
            raise ValueError(f"{table.shape} does not start with {vocab_dim}")
        self._vocab_dim = vocab_dim
        shape = mtf.Shape(ids.shape.dims + table.shape.dims[1:])
        self._outputs = [mtf.Tensor(self, shape, table.dtype)]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_all_dimensions_as_splittable()
        )

    def gradient(self, grad_ys):
        table, ids = self.inputs
        operation = _LookupGradient(ids, grad_ys[0], table.shape, self._vocab_dim)
        return [operation.outputs[0], None]

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        table, ids = (lowering.tensors[x] for x in self.inputs)
        axis, rows = _shard(mesh_impl, self._vocab_dim)
        if axis is None:
            result = mesh_impl.slicewise(tf.gather, table, ids)
        else:
            result = self._lower_sharded(mesh_impl, table, ids, axis, rows)
        lowering.set_tensor_lowering(self.outputs[0], result)

    def _lower_sharded(self, mesh_impl, table, ids, axis, rows):
        def gather_own(table_slice, ids_slice, coordinate):
            local = ids_slice - coordinate * rows
            own = tf.logical_and(local >= 0, local < rows)
            known = tf.logical_and(ids_slice >= 0, ids_slice < self._vocab_dim.size)
            # An id outside the whole vocabulary lies outside every shard, too, and goes
            # in unchanged: tf.gather itself refuses it on a CPU, and shows it.
            inside = tf.where_v2(own, local, tf.zeros_like(local))
            index = tf.where_v2(known, inside, ids_slice)
            found = tf.gather(table_slice, index)
            depth = len(table_slice.shape) - 1
            mask = tf.reshape(own, own.shape.as_list() + [1] * depth)
            return tf.where_v2(mask, found, tf.zeros_like(found))

        part = mesh_impl.slicewise(
            gather_own, table, ids, mesh_impl.laid_out_pcoord(axis)
        )
        return _lazy_sum(mesh_impl, part, [axis])


class _LookupGradient(mtf.Operation):
    def __init__(self, ids, dy, table_shape, vocab_dim):
        super().__init__([ids, dy], name="embedding_lookup_gradient")
        self._vocab_dim = vocab_dim
        self._outputs = [mtf.Tensor(self, table_shape, dy.dtype)]
        self._splittable_dims, self._unsplittable_dims = (
            self._initialize_all_dimensions_as_splittable()
        )

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        ids, dy = self.inputs
        axis, rows = _shard(mesh_impl, self._vocab_dim)
        coordinate = 0 if axis is None else mesh_impl.laid_out_pcoord(axis)

        def scatter_own(ids_slice, dy_slice, coordinate):
            local = tf.reshape(ids_slice - coordinate * rows, [-1])
            # Negative segments are dropped: rows of other shards.
            own = tf.where_v2(local < rows, local, -tf.ones_like(local))
            width = dy_slice.shape.as_list()[len(ids_slice.shape) :]
            flat = tf.reshape(dy_slice, [local.shape[0]] + width)
            return tf.math.unsorted_segment_sum(flat, own, rows)

        part = mesh_impl.slicewise(
            scatter_own, lowering.tensors[ids], lowering.tensors[dy], coordinate
        )
        axes = {mesh_impl.tensor_dimension_to_mesh_axis(d) for d in ids.shape.dims}
        result = _lazy_sum(mesh_impl, part, sorted(axes - {None}))
        lowering.set_tensor_lowering(self.outputs[0], result)


def _lazy_sum(mesh_impl, part, axes):
    if not axes:
        return part
    return mtf.ops.LazyAllreduceSum(mesh_impl, part, axes)
