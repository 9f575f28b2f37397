"""Attention's heads, split from the columns of a projection and joined again.

Heads come before tokens, so that what follows, and its gradient, are products of
matrices as they lie in memory. Splitting adds the projection's bias in the same pass.
"""

from decoupled.core.compat import mtf, tf
from decoupled.ops.bias import bias_gradient
from decoupled.ops.compiled import compiled_where_large


def split_heads(
    x: mtf.Tensor, bias: mtf.Tensor, heads: mtf.Dimension, head_size: mtf.Dimension
) -> mtf.Tensor:
    """x + bias, its columns as heads.

    Args:
      x: float [batch, ..., columns], head index major; columns are split as `heads` is.
      bias: [columns], of x's dtype.
      heads, head_size: whose sizes make the columns.

    Returns:
      [batch, heads, ..., head_size].
    """
    return _SplitHeads([x, bias], heads, head_size).outputs[0]


def merge_heads(x: mtf.Tensor, columns: mtf.Dimension) -> mtf.Tensor:
    """[batch, heads, ..., head_size] to [batch, ..., columns], head index major."""
    return _MergeHeads(x, columns).outputs[0]


class _SplitHeads(mtf.Operation):
    def __init__(self, inputs, heads, head_size):
        super().__init__(inputs, name="split_heads")
        self._head_size = head_size.size
        batch, *tokens, _ = inputs[0].shape.dims
        shape = mtf.Shape([batch, heads, *tokens, head_size])
        self._outputs = [mtf.Tensor(self, shape, inputs[0].dtype)]

    def gradient(self, grad_ys):
        dx = merge_heads(grad_ys[0], self.inputs[0].shape.dims[-1])
        return [dx, bias_gradient(dx)][: len(self.inputs)]

    def lower(self, lowering):
        inputs = [lowering.tensors[t] for t in self.inputs]
        function = _split if len(inputs) == 1 else _split_with_bias
        mesh_impl, shape = lowering.mesh_impl(self), self.outputs[0].shape
        y = mesh_impl.slicewise(function, *inputs, self._head_size)
        # Columns are whole heads: where these are split within, each keeps its part.
        axis = mesh_impl.tensor_dimension_to_mesh_axis(shape.dims[-1])
        if axis is not None:
            y = mesh_impl.allsplit(y, axis, shape.ndims - 1)
        lowering.set_tensor_lowering(self.outputs[0], y)


class _MergeHeads(mtf.Operation):
    def __init__(self, x, columns):
        super().__init__([x], name="merge_heads")
        batch, _, *tokens, _ = x.shape.dims
        shape = mtf.Shape([batch, *tokens, columns])
        self._outputs = [mtf.Tensor(self, shape, x.dtype)]

    def gradient(self, grad_ys):
        _, heads, *_, head_size = self.inputs[0].shape.dims
        return _SplitHeads(grad_ys, heads, head_size).outputs

    def lower(self, lowering):
        mesh_impl, shape = lowering.mesh_impl(self), self.inputs[0].shape
        x = lowering.tensors[self.inputs[0]]
        axis = mesh_impl.tensor_dimension_to_mesh_axis(shape.dims[-1])
        if axis is not None:
            x = mesh_impl.allconcat(x.to_laid_out_tensor(), axis, shape.ndims - 1)
        y = mesh_impl.slicewise(_merged, x)
        lowering.set_tensor_lowering(self.outputs[0], y)


@compiled_where_large
def _split(x, head_size):
    batch, *tokens, columns = x.shape.as_list()
    y = tf.reshape(x, [batch, *tokens, columns // head_size, head_size])
    last = len(tokens) + 2
    return tf.transpose(y, [0, last - 1, *range(1, last - 1), last])


@compiled_where_large
def _split_with_bias(x, bias, head_size):
    return _split.python_function(x + bias, head_size)


def _merged(x):
    batch, heads, *tokens, head_size = x.shape.as_list()
    y = tf.transpose(x, [0, *range(2, len(tokens) + 2), 1, len(tokens) + 2])
    return tf.reshape(y, [batch, *tokens, heads * head_size])
