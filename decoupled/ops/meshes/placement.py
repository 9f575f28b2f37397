"""A mesh of virtual CPU devices, with six changes to Mesh-TensorFlow's own.

1. Every variable is read exactly once a step. `tf.cast` of a resource variable to its
   own dtype returns the variable itself, so that each consumer reads it anew, possibly
   after this step's update.
2. Contractions that are matrix products in disguise are lowered to `tf.matmul`:
   `tf.einsum` is about 1.3 times slower on a CPU.
3. A row-partitioned slice is read and multiplied partition by partition
   (`decoupled.ops.row_partitions`).
4. Matrices of bfloat16 are multiplied as float32 where that is faster
   (`bfloat16_is_slow`); sums are of float32 either way.
5. Slices have zeros as their initial values, in place of random numbers. Nobody runs
   these initializers, as slices are copied from masters, but they were a fifth of the
   time that it takes to build a graph.
6. Variables that are their own only slice share one operation that copies nothing. Two
   for each variable were a tenth of a graph's operations.
"""

import functools

from decoupled.core.compat import mtf, tf
from decoupled.core.machine import processor
from decoupled.ops.local import reshape
from decoupled.ops.row_partitions import (
    RowPartitionedTensor,
    RowPartitionedVariable,
    partitioned_product,
)

# A row of a factor with at least so many elements is long.
_LONG_ROW = 512
# A product with an embedding table has more than so many times as many columns as rows.
_MANY_COLUMNS = 4


def bfloat16_is_slow() -> bool:
    """Whether products of bfloat16 matrices take longer here than those of float32."""
    # A processor without bfloat16 instructions emulates them, and Intel's AVX-512 ones
    # are slower than those for float32: 145 against 245 GFLOP/s on two cores of a
    # Sapphire Rapids, and 52 by emulation. Intel's matrix units (AMX) and AMD's AVX-512
    # are fast. A processor that Linux does not describe as x86 is taken to be.
    cpu = processor()
    is_known = cpu.vendor and cpu.flags
    if not is_known or "amx_bf16" in cpu.flags:
        return False
    is_amd = cpu.vendor == "AuthenticAMD"
    return not (is_amd and "avx512_bf16" in cpu.flags)


class PlacementMeshImpl(mtf.placement_mesh_impl.PlacementMeshImpl):
    """The mesh implementation (see the module's docstring).

    multiplies_in_float32: whether bfloat16 matrices are multiplied in float32
    (change 4).
    """

    def __init__(self, shape, layout, devices):
        super().__init__(shape, layout, devices)
        self.multiplies_in_float32 = bfloat16_is_slow()

    class LaidOutVariable(mtf.placement_mesh_impl.PlacementMeshImpl.LaidOutVariable):
        """As in the parent, but for changes 5 and 6."""

        def __init__(self, variable, mesh_impl):
            self._variable, self._mesh_impl = variable, mesh_impl
            if self.slice_is_master:
                only_slice = [variable.get_master()]
                self._laid_out_tensor = mesh_impl.LaidOutTensor(only_slice)
                self._copy_master_to_slices = mesh_impl.copies_nothing
                self._copy_slices_to_master = mesh_impl.copies_nothing
                return
            with tf.variable_scope(
                tf.get_variable_scope(),
                initializer=tf.zeros_initializer(),
                auxiliary_name_scope=False,
            ):
                super().__init__(variable, mesh_impl)

    @functools.cached_property
    def copies_nothing(self) -> tf.Operation:
        """The copy between masters and slices that are the same variables."""
        return tf.no_op("copies_nothing")

    def slicewise(self, fn, *inputs):
        """As in the parent; a cast reads a variable once (change 1)."""
        if fn is tf.cast:
            fn = _read_once
        return super().slicewise(fn, *inputs)

    def einsum(self, equation, *slices):
        """As in the parent, but as a matrix product where possible (changes 2 to 4).

        The product of a bfloat16 and a float32 factor is bfloat16.
        """
        if len(slices) == 2 and any(
            isinstance(x, RowPartitionedTensor) for x in slices
        ):
            return partitioned_product(self.einsum, equation, *slices)
        if self.multiplies_in_float32 and tf.bfloat16 in {x.dtype for x in slices}:
            # Cast only when all factors are computed. The factors of a gradient that
            # the forward pass computes would otherwise be in memory as float32 too
            # until the backward pass.
            with tf.control_dependencies(slices):
                float32_slices = [tf.cast(x, tf.float32) for x in slices]
            return tf.cast(self.einsum(equation, *float32_slices), tf.bfloat16)
        product = matrix_product(equation, *slices) if len(slices) == 2 else None
        return tf.einsum(equation, *slices) if product is None else product


def _read_once(
    x: tf.Tensor | tf.Variable | RowPartitionedVariable, dtype: tf.DType
) -> tf.Tensor | RowPartitionedTensor:
    if isinstance(x, RowPartitionedVariable):
        return x.read().cast(dtype) if x.dtype != dtype else x.read()
    if hasattr(x, "handle"):
        x = tf.raw_ops.ReadVariableOp(resource=x.handle, dtype=x.dtype)
    return tf.cast(x, dtype)


def matrix_product(equation: str, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor | None:
    """The contraction, such as "abc,cd->abd", as one (batched) `tf.matmul` without
    transposing data; None where the indices do not group into
    [batch, rows, inner] x [batch, inner, columns]."""
    operands, output = equation.split("->")
    left, right = operands.split(",")
    batch = [i for i in left if i in right and i in output]
    inner = [i for i in left if i in right and i not in output]
    rows = [i for i in left if i not in right]
    columns = [i for i in right if i not in left]
    if set(output) != set(batch + rows + columns) or not inner:
        return None
    sizes = dict(zip(left + right, x.shape.as_list() + y.shape.as_list(), strict=True))
    # The factors in their order, or swapped: (xy)' = y'x'.
    for (l_rows, l_columns), (a, b), (u, v) in (
        ((rows, columns), (left, right), (x, y)),
        ((columns, rows), (right, left), (y, x)),
    ):
        if list(output) != batch + l_rows + l_columns:
            continue
        transpose_a = _is_transposed(a, batch, l_rows, inner)
        transpose_b = _is_transposed(b, batch, inner, l_columns)
        if transpose_a is None or transpose_b is None:
            continue
        u = _as_matrix(u, sizes, batch, l_rows, inner, transpose_a)
        v = _as_matrix(v, sizes, batch, inner, l_columns, transpose_b)
        product = _multiply(u, v, transpose_a, transpose_b)
        return reshape(product, [sizes[i] for i in output])
    return None


def _multiply(
    u: tf.Tensor, v: tf.Tensor, transpose_a: bool, transpose_b: bool
) -> tf.Tensor:
    """`tf.matmul` by the faster of its two kernels on a CPU.

    In float32, the kernel for single matrices is slow if the rows of a transposed
    factor are long: 1.7 times as long with an output embedding of width 3072 as the
    kernel for batches, which is slower in all other cases (docs/performance.md).
    """
    product = functools.partial(
        tf.matmul, transpose_a=transpose_a, transpose_b=transpose_b
    )
    if u.dtype == tf.float32 and transpose_b and not transpose_a and len(v.shape) == 2:
        rows, (columns, inner) = u.shape[0], v.shape
        if inner >= _LONG_ROW and (inner > columns or columns > _MANY_COLUMNS * rows):
            u_batch, v_batch = (reshape(x, [1, *x.shape]) for x in (u, v))
            return reshape(product(u_batch, v_batch), [rows, columns])
    return product(u, v)


def _is_transposed(
    indices: str, batch: list[str], first: list[str], second: list[str]
) -> bool | None:
    """False if `indices` is batch + first + second, True if it is batch + second +
    first, else None."""
    if list(indices) == batch + first + second:
        return False
    if list(indices) == batch + second + first:
        return True
    return None


def _as_matrix(
    tensor: tf.Tensor,
    sizes: dict[str, int],
    batch: list[str],
    first: list[str],
    second: list[str],
    swaps: bool,
) -> tf.Tensor:
    def size(indices):
        return int(tf.TensorShape([sizes[i] for i in indices]).num_elements())

    matrix = [size(second), size(first)] if swaps else [size(first), size(second)]
    return reshape(tensor, ([size(batch)] if batch else []) + matrix)
