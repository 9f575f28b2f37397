"""Attention as one operation, for programs that another compiler gets.

The program calls it by name (XLA's custom call), and `decoupled.training.xla.kernels`
puts a function of the device in its place. No session of TensorFlow can run it, and a
call that nobody replaced fails in the compiler with its name:

  decoupled.attention           query, key, value, queries, memory
                                -> heads, log_sum
  decoupled.attention_gradient  query, key, value, queries, memory, heads, log_sum,
                                d_heads -> d_query, d_key, d_value

query, heads [batch, heads, tokens, size]; key, value [batch, heads, memory, size], all
of the activation dtype. queries int32 [batch, tokens] and memory int32 [batch, memory]
are the number of each token's example: a query attends to the memory of equal numbers,
of which there must be one at least. log_sum float32 [batch, heads, tokens]: the
logarithm of the sum of the exponentials of the scores. The call's backend_config is
JSON: "version", of this contract; "scale", which the scores are multiplied by.
"""

import json
from collections.abc import Callable
from typing import Any

from decoupled.core.compat import gen_xla_ops, mtf, tf
from decoupled.ops.local import Spec, mesh_op

VERSION = 1


def attention_by_name(
    query: mtf.Tensor,
    key: mtf.Tensor,
    value: mtf.Tensor,
    queries: mtf.Tensor,
    memory: mtf.Tensor,
    scale: float,
) -> mtf.Tensor:
    """softmax(query x key * scale) x value, like `query`; see the module.

    Each device must have whole sequences and whole heads. Numbers get no gradient.
    """

    def backward(operation: mtf.Operation, d_heads: mtf.Tensor, *_: Any) -> list:
        inputs = [*operation.inputs, *operation.outputs, d_heads]
        lower = _call("decoupled.attention_gradient", scale, inputs[:3])
        name = "attention_by_name_gradient"
        return [*mesh_op(name, lower, inputs, inputs[:3]), None, None]

    log_sum = Spec(mtf.Shape(query.shape.dims[:-1]), tf.float32)
    inputs, outputs = [query, key, value, queries, memory], [query, log_sum]
    lower = _call("decoupled.attention", scale, outputs)
    return mesh_op("attention_by_name", lower, inputs, outputs, backward)[0]


def _call(target: str, scale: float, outputs: list[mtf.Tensor | Spec]) -> Callable:
    def lower(mesh_impl: mtf.MeshImpl, *inputs: Any) -> Any:
        shapes = [mesh_impl.slice_shape(output.shape) for output in outputs]

        def call(*slices: tf.Tensor) -> tuple[tf.Tensor, ...]:
            results = gen_xla_ops.xla_custom_call_v2(
                operands=slices,
                call_target_name=target,
                backend_config=json.dumps({"version": VERSION, "scale": scale}),
                has_side_effect=False,
                result_dtypes=[output.dtype for output in outputs],
                result_shapes=shapes,
            )
            return tuple(results)

        # Partial sums of gradients are added up before the call.
        sums = [x.to_laid_out_tensor() for x in inputs]
        return mesh_impl.slicewise(call, *sums)

    return lower
