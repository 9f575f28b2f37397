"""Cross-entropy over the output embedding, one block of the vocabulary at a time.

Logits of the whole vocabulary, [predictions, V], are never computed at once. The
forward pass computes the logits of one block of pieces at a time. It adds up exp(logit
- largest logit so far) (Milakov and Gimelshein 2018) and, in training, the gradient of
the hidden vectors. This gradient is a sum over the pieces too, like the output of
attention (Dao et al. 2022). The gradient of the table needs the exponentials again.
They are either kept, which takes as much memory as the logits, or recomputed. With
`Blocks.apart`, this gradient has no buffer of its own: each of its blocks takes the
place of exponentials that were kept. With `Blocks.pairs`, the update computes it one
block at a time, so that nothing of the table's size exists beside weights and moments.
Where the vocabulary is split, each device has its own blocks; the forward pass moves
nothing larger than [predictions, E_out] over the mesh.
"""

import functools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.ops.cross_entropy import correct_predictions, kernels_of
from decoupled.ops.gradients import BlockGradient, SquaredNorm
from decoupled.ops.meshes.placement import PlacementMeshImpl
from decoupled.ops.shared import check_separate, lazy_sum, shard_of
from decoupled.ops.softmax_blocks import BiasGradient, SoftmaxSlice

# Logits on a device with fewer elements (512 MB) are computed as a whole: logits of
# 160 MB did not raise the peak memory of a step (docs/performance.md).
_SMALLEST = 128_000_000
# Most elements of a block's logits, and of its rows of the table.
_BLOCK, _BLOCK_WEIGHTS = 4_000_000, 8_000_000
# Fewest rows of a block; smaller blocks would make many small products.
_FEWEST_ROWS = 1024
# Recomputing the logits costs E_out / 2 FLOPs for each byte that is not kept. Up to
# this width, that takes no longer than writing the byte and reading it again.
_NARROW = 256
# Most FLOPs of the products of pairs of positions ([predictions, predictions] for each
# piece), as a share of those of the table's gradient. The share is larger if the user
# sets a block size, because memory then matters more than time.
_NORM_SHARE, _NORM_SHARE_IF_SET = 0.25, 1.0


class Blocks(NamedTuple):
    """How a cross-entropy is computed.

    size: most pieces of a block. `row_partitions.row_tiles` rounds it down to a
    multiple of 16, and no block spans two partitions of the table.
    kept: whether the exponentials of all blocks stay in memory from the forward pass to
    the update, instead of being recomputed.
    apart: whether the update takes the gradient of the table one partition at a time.
    pairs: whether the norm of this gradient comes from products of pairs of positions,
    which the forward pass computes. The update then computes one partition after the
    other. Otherwise all of them are computed for the norm, and kept for the update.
    """

    size: int
    kept: bool
    apart: bool = False
    pairs: bool = False


def choose_blocks(
    mesh_impl: mtf.MeshImpl | None,
    x: mtf.Shape,
    table: mtf.Shape,
    block_size: int,
    *,
    apart: bool,
) -> Blocks | None:
    """Decides whether a cross-entropy is computed in blocks or over whole logits.

    1. Whole logits, if the table's columns are split over the mesh, as each block would
       need an all-reduce; or if `block_size` is at least the size of the vocabulary. If
       `block_size` is 0, whole logits also on TPUs and GPUs, where blocks take 25% to
       56% longer, and if the logits on a device take less than 512 MB.
    2. Otherwise, if `block_size` is not 0, blocks of so many pieces at most, which are
       recomputed.
    3. Otherwise, on CPUs, blocks of some 16 MB of logits, or of E_out pieces if those
       are more. In training they are recomputed if the table has at most 256 columns,
       and kept if it is wider: recomputing costs E_out / 2 GFLOP for each gigabyte that
       is not kept.

    A block of fewer pieces would waste memory if it is kept. Its exponentials
    [positions, pieces] would take the place of a product [positions, E_out] that is no
    longer needed, and TensorFlow's allocator does not split such a place unless it is
    at least twice as large as what it is to hold.

    Args:
      mesh_impl: that the graph will run on. None, if it is not known, chooses whole
        logits.
      x: shape of the hidden vectors, [..., E_out]. table: [V, E_out].
      block_size: `TrainingConfig.softmax_block_size`.
      apart: whether the optimizer can take the gradient of a table one partition at a
        time.

    Returns:
      The blocks of a device, or None for whole logits.
    """
    vocab, columns = table.dims
    if mesh_impl is None or block_size >= vocab.size:
        return None
    if mesh_impl.tensor_dimension_to_mesh_axis(columns) is not None:
        return None
    on_cpus = isinstance(mesh_impl, PlacementMeshImpl) and not mesh_impl.on_gpus
    inner = mtf.Shape(x.dims[:-1])
    positions = mesh_impl.slice_size(inner)
    rows, width = mesh_impl.slice_shape(table)
    if not block_size and (not on_cpus or positions * rows < _SMALLEST):
        return None
    share = _NORM_SHARE_IF_SET if block_size else _NORM_SHARE
    affordable = positions <= share * rows * width / (rows + width)
    apart = apart and on_cpus and not _is_split(mesh_impl, inner)
    pairs = apart and affordable
    if block_size:
        return Blocks(min(block_size, rows), False, apart, pairs)
    size = max(min(_BLOCK // positions, _BLOCK_WEIGHTS // width), _FEWEST_ROWS, width)
    return Blocks(min(size, rows), width > _NARROW, apart, pairs)


def _is_split(mesh_impl: mtf.MeshImpl, shape: mtf.Shape) -> bool:
    axes = map(mesh_impl.tensor_dimension_to_mesh_axis, shape.dims)
    return any(axis is not None for axis in axes)


def linear_cross_entropy(
    x: mtf.Tensor,
    table: mtf.Tensor,
    bias: mtf.Tensor,
    targets: mtf.Tensor,
    blocks: Blocks,
    *,
    training: bool,
    label_smoothing: float = 0.0,
) -> tuple[mtf.Tensor, mtf.Tensor]:
    """Loss of each position, and whether its prediction is correct.

    The results equal `softmax_cross_entropy` of the logits x table^T + bias.

    Args:
      x: float [..., E_out]. table: float [V, E_out]. Any dimension but E_out may be
        split, but V and a dimension of x must not be split over the same mesh axis.
      bias: float [V].
      targets: int32 [...]; see `softmax_cross_entropy`.
      blocks: from `choose_blocks`.
      training: whether the losses are differentiated in x, table and bias.
      label_smoothing: see `softmax_cross_entropy`.

    Returns:
      losses, correct: float32 [...]; see `softmax_cross_entropy`.
    """
    operation = _LinearCrossEntropy(
        [x, table, bias, targets], blocks, training, label_smoothing
    )
    return operation.output["losses"], operation.output["correct"]


# Outputs of float32 [...]. The gradient needs the last three: the largest logit of the
# whole vocabulary, the sum of exp(logit - largest), and the gradient of the target's
# logit, to which it adds -s / V.
_OF_POSITIONS = ("losses", "correct", "largest", "total", "of_target")


class _LinearCrossEntropy(mtf.Operation):
    """See `linear_cross_entropy`.

    Attributes:
      output: name -> mtf.Tensor. Beside `_OF_POSITIONS`, in training: "of_x", the
        gradient of x for a loss of weight 1; if `Blocks.pairs`, "pairs", the inner
        products of the logits' gradients of all pairs of positions; and if
        `Blocks.kept`, "kept", the exponentials.
      workspace: tensors that exist while a block is computed.
    """

    def __init__(
        self,
        inputs: Sequence[mtf.Tensor],
        blocks: Blocks,
        training: bool,
        smoothing: float,
    ):
        super().__init__(inputs, name="linear_cross_entropy")
        x, table, bias, targets = inputs
        self.vocab, columns = table.shape.dims
        positions = targets.shape
        if x.shape.dims != [*positions.dims, columns]:
            raise ValueError(f"{x.shape} is not {positions} + {columns}")
        if bias.shape.dims != [self.vocab]:
            raise ValueError(f"{bias.shape} is not {self.vocab}")
        self.blocks, self.smoothing = blocks, smoothing
        outputs = dict.fromkeys(_OF_POSITIONS, (positions, tf.float32))
        if training:
            outputs["of_x"] = (x.shape, x.dtype)
        if training and blocks.pairs:
            pairs = [mtf.Dimension(f"{n}_position", positions.size) for n in "ab"]
            outputs["pairs"] = (mtf.Shape(pairs), tf.float32)
        if training and blocks.kept:
            logits = mtf.Shape([*positions.dims, self.vocab])
            outputs["kept"] = (logits, tf.float32)
        self.output = {
            name: mtf.Tensor(self, shape, dtype, index=index)
            for index, (name, (shape, dtype)) in enumerate(outputs.items())
        }
        self._outputs = list(self.output.values())
        self.workspace = _workspace(self, positions, blocks)

    def gradient(self, grad_ys):
        dy = grad_ys[0]
        of_x = _Weighted(self.output["of_x"], dy).outputs[0]
        return [of_x, *_TableGradients(self, dy).outputs, None]

    def check_layout(self, mesh_impl):
        """Also called before anything is lowered (`training.mesh.check_tensors`)."""
        check_separate(mesh_impl, self.vocab, self.inputs[3].shape.dims)

    def slices(self, lowering: mtf.Lowering) -> Any:
        """Laid-out `SoftmaxSlice`."""
        mesh_impl = lowering.mesh_impl(self)
        x, table, bias, targets = self.inputs
        wide = x.dtype == tf.float32 or getattr(
            mesh_impl, "multiplies_in_float32", False
        )
        make = functools.partial(
            SoftmaxSlice,
            vocab_size=self.vocab.size,
            block_size=self.blocks.size,
            smoothing=self.smoothing,
            dtype=tf.float32 if wide else x.dtype,
            kernels=kernels_of(mesh_impl),
        )
        inputs = [lowering.tensors[t] for t in self.inputs]
        coordinate = shard_of(mesh_impl, self.vocab).coordinate
        return mesh_impl.slicewise(make, *inputs, coordinate)

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        self.check_layout(mesh_impl)
        axis = shard_of(mesh_impl, self.vocab).axis
        x, _, _, targets = (lowering.tensors[t] for t in self.inputs)
        wanted = {"kept", "pairs", "of_x"} & set(self.output)
        own = mesh_impl.slicewise(
            lambda part: part.forward(wanted), self.slices(lowering)
        )

        def over_vocab(sums: Any, name: str, reduction: str = "SUM") -> Any:
            value = mesh_impl.slicewise(operator.itemgetter(name), sums)
            return (
                value if axis is None else mesh_impl.allreduce(value, [axis], reduction)
            )

        largest = over_vocab(own, "largest", "MAX")
        sums = mesh_impl.slicewise(_under, own, largest)
        target, others = over_vocab(own, "target"), over_vocab(sums, "others")
        mean = over_vocab(own, "mean") if self.smoothing else target
        results = mesh_impl.slicewise(
            self._results, largest, target, others, mean, targets
        )
        computed = ("losses", "largest", "total", "of_target")
        values = dict(zip(computed, results, strict=True))
        own_largest, candidate = mesh_impl.slicewise(
            operator.itemgetter("largest", "candidate"), own
        )
        values["correct"] = correct_predictions(
            mesh_impl, axis, own_largest, largest, candidate, targets
        )
        rest = (values["total"], values["of_target"])
        if "of_x" in self.output:
            part = mesh_impl.slicewise(self._of_x, sums, *rest, x)
            values["of_x"] = lazy_sum(mesh_impl, part, [axis])
        if "pairs" in self.output:
            products, at_targets = (
                over_vocab(sums, name) for name in ("products", "at_targets")
            )
            values["pairs"] = mesh_impl.slicewise(
                self._pairs, products, at_targets, *rest, targets
            )
        if "kept" in self.output:
            values["kept"] = mesh_impl.slicewise(operator.itemgetter("kept"), own)
        for name, tensor in self.output.items():
            lowering.set_tensor_lowering(tensor, values[name])

    def _results(
        self,
        largest: tf.Tensor,
        target: tf.Tensor,
        others: tf.Tensor,
        mean: tf.Tensor,
        targets: tf.Tensor,
    ) -> tuple[tf.Tensor, ...]:
        total = others + tf.exp(target - largest)
        expected = target
        if self.smoothing:
            expected = (1.0 - self.smoothing) * target + self.smoothing * mean
        losses = largest - expected + tf.math.log(total)
        of_target = self.smoothing - others / total
        found = (losses, largest, total, of_target)
        return tuple(tf.reshape(value, targets.shape) for value in found)

    def _of_x(
        self,
        sums: dict[str, tf.Tensor],
        total: tf.Tensor,
        of_target: tf.Tensor,
        x: tf.Tensor,
    ) -> tf.Tensor:
        result = sums["weighted"] / _column(total)
        result += sums["target_rows"] * _column(of_target)
        if self.smoothing:
            result -= sums["all_rows"] * (self.smoothing / self.vocab.size)
        return tf.cast(tf.reshape(result, x.shape), x.dtype)

    def _pairs(
        self,
        products: tf.Tensor,
        at_targets: tf.Tensor,
        total: tf.Tensor,
        of_target: tf.Tensor,
        targets: tf.Tensor,
    ) -> tf.Tensor:
        """For each pair of positions, the inner product of their logits' gradients.

        The sum over the vocabulary has three parts: pieces that are the target of
        neither position, of one, and of both.
        """
        total, of_target, targets = map(_column, (total, of_target, targets))
        one = at_targets / total * tf.transpose(of_target)
        same = tf.cast(tf.equal(targets, tf.transpose(targets)), tf.float32)
        both = same * of_target * tf.transpose(of_target)
        neither = products / total / tf.transpose(total)
        # Smoothing subtracts the same value everywhere, and a position's gradients add
        # up to 0.
        even = self.smoothing**2 / self.vocab.size
        return neither + one + tf.transpose(one) + both - even


def _column(x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(x, [-1, 1])


def _under(sums: dict[str, tf.Tensor], largest: tf.Tensor) -> dict[str, tf.Tensor]:
    """A device's sums of exponentials, relative to the largest logit of all devices."""
    scale = tf.exp(sums["largest"] - largest)
    names = {"others", "weighted", "products", "at_targets"} & set(sums)
    scaled = {name: sums[name] * scale for name in names}
    if "products" in names:
        scaled["products"] *= tf.transpose(scale)
    return {**sums, **scaled}


def _workspace(
    operation: mtf.Operation, positions: mtf.Shape, blocks: Blocks
) -> list[mtf.Tensor]:
    """The logits and the exponentials of a block."""
    of_block = mtf.Shape([*positions.dims, mtf.Dimension("block", blocks.size)])
    return [mtf.Tensor(operation, of_block, tf.float32, index=i) for i in range(2)]


class _Weighted(mtf.Operation):
    """x [..., d] times weights [...], in x's dtype."""

    def __init__(self, x: mtf.Tensor, weights: mtf.Tensor):
        super().__init__([x, weights], name="linear_cross_entropy_gradient")
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    def lower(self, lowering):
        def multiply(x: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
            y = tf.cast(x, tf.float32) * weights[..., tf.newaxis]
            return tf.cast(y, x.dtype)

        inputs = [lowering.tensors[t] for t in self.inputs]
        result = lowering.mesh_impl(self).slicewise(multiply, *inputs)
        lowering.set_tensor_lowering(self.outputs[0], result)


class _TableGradients(mtf.Operation):
    """Outputs: the gradients of table and bias.

    If `Blocks.apart`, they are lowered to a `TableGradient` and its `BiasGradient`,
    whose values are computed only when they are read.
    """

    def __init__(self, forward: _LinearCrossEntropy, dy: mtf.Tensor):
        own = [forward.output[name] for name in ("largest", "total", "of_target")]
        kept = [forward.output["kept"]] if forward.blocks.kept else []
        super().__init__([*forward.inputs, dy, *own, *kept], name="table_gradients")
        self.forward, self.dy = forward, dy
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=index)
            for index, x in enumerate(forward.inputs[1:3])
        ]
        self.workspace = _workspace(self, dy.shape, forward.blocks)

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        values = [lowering.tensors[t] for t in self.inputs[4:]]
        if not self.forward.blocks.kept:
            values.append(None)
        made = mesh_impl.slicewise(
            lambda part, *values: part.gradient(*values),
            self.forward.slices(lowering), *values,
        )  # fmt: skip
        if self.forward.blocks.apart:
            results = [made, mesh_impl.slicewise(BiasGradient, made)]
        else:
            axes = [
                mesh_impl.tensor_dimension_to_mesh_axis(d) for d in self.dy.shape.dims
            ]
            wholes = mesh_impl.slicewise(lambda g: g.wholes(), made)
            results = [
                self._summed(mesh_impl, part, axes, tensor.dtype)
                for part, tensor in zip(wholes, self.outputs, strict=True)
            ]
        for tensor, value in zip(self.outputs, results, strict=True):
            lowering.set_tensor_lowering(tensor, value)

    def _summed(
        self, mesh_impl: mtf.MeshImpl, part: Any, axes: list[int], dtype: tf.DType
    ) -> Any:
        """The sum of the devices' parts over mesh axes. Like `GradientCast`, it moves
        the narrower dtype, unless it is in a loop over microbatches."""
        if part.tensor_list[0].dtype == dtype:
            return lazy_sum(mesh_impl, part, axes)
        if self not in self.graph.operations:
            return lazy_sum(mesh_impl, mesh_impl.slicewise(tf.cast, part, dtype), axes)
        return mesh_impl.slicewise(tf.cast, lazy_sum(mesh_impl, part, axes), dtype)


def as_blocks(gradient: mtf.Tensor) -> BlockGradient | None:
    """A gradient that is made one block at a time, with its norm; None for others."""
    operation = gradient.operation
    if not isinstance(operation, _TableGradients) or not operation.forward.blocks.apart:
        return None
    if operation.forward.blocks.pairs:
        norms = _SquaredNorms(operation.forward, operation.dy).outputs
        norm = norms[operation.outputs.index(gradient)]
    else:
        of_slice = operator.methodcaller("squared_norm")
        norm = SquaredNorm([gradient], gradient.shape, of_slice).outputs[0]
    return BlockGradient(gradient, norm)


class _SquaredNorms(mtf.Operation):
    """Outputs: the squared norms of the gradients of table and bias, from pairs."""

    def __init__(self, forward: _LinearCrossEntropy, dy: mtf.Tensor):
        inputs = [forward.output["pairs"], dy, forward.inputs[0]]
        super().__init__(inputs, name="squared_norms")
        self._outputs = [
            mtf.Tensor(self, mtf.Shape([]), tf.float32, index=i) for i in range(2)
        ]

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        inputs = [lowering.tensors[t] for t in self.inputs]
        norms = lowering.mesh_impl(self).slicewise(_squared_norms, *inputs)
        for tensor, value in zip(self.outputs, norms, strict=True):
            lowering.set_tensor_lowering(tensor, value)


def _squared_norms(
    pairs: tf.Tensor, dy: tf.Tensor, x: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """The squared norms of the gradients of table and bias, from pairs of positions.

    Each gradient is a sum over positions, so that its squared norm is a sum over all
    pairs of them. A sum that rounding makes negative is taken as 0.
    """
    dy, x = _column(dy), tf.cast(tf.reshape(x, [-1, x.shape[-1]]), tf.float32)
    pairs = pairs * dy * tf.transpose(dy)
    of_table = tf.reduce_sum(pairs * tf.matmul(x, x, transpose_b=True))
    return tf.maximum(of_table, 0.0), tf.maximum(tf.reduce_sum(pairs), 0.0)
