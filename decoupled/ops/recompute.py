"""Gradient checkpointing: a part of the model is computed again in the backward pass.

It differs from `mtf.recompute_grad` in two points. Control dependencies or XLA's
optimization barrier delay the second computation. `mtf.recompute_grad` adds a term to
the inputs, which changes them where they are tiny; here the gradients are exactly those
without recomputation. And dropout masks are recomputed too, as they are functions of
their seed.
"""

from collections.abc import Callable, Sequence

from decoupled.core.compat import gen_xla_ops, mtf, tf


def recompute(function: Callable, x: mtf.Tensor) -> mtf.Tensor:
    """function(x); its inner tensors are recomputed in the backward pass.

    Args:
      function: maps one tensor to one tensor; may read variables and other tensors.
      x: float tensor.
    """
    return mtf.ops.custom_gradient(function, _gradients, [x])


def _gradients(
    explicit_inputs: Sequence[mtf.Tensor],
    all_inputs: Sequence[mtf.Tensor],
    forward_operations: Sequence[mtf.Operation],
    outputs: Sequence[mtf.Tensor],
    output_grads: Sequence[mtf.Tensor],
) -> list[mtf.Tensor]:
    """The gradients of `all_inputs`; called by Mesh-TensorFlow."""
    del explicit_inputs
    graph = forward_operations[0].graph
    inside = {t for operation in forward_operations for t in operation.outputs}
    read = {t for operation in forward_operations for t in operation.inputs}
    held = {
        tensor: After(tensor, output_grads[0]).outputs[0]
        for tensor in sorted(read - inside, key=lambda tensor: tensor.name)
        if not isinstance(tensor.operation, mtf.ops.Variable)
    }
    cloned, copies = graph.clone_operations(forward_operations, held)
    return mtf.gradients(
        [copies[tensor] for tensor in outputs],
        [held.get(tensor, tensor) for tensor in all_inputs],
        grad_ys=output_grads,
        operations=cloned,
    )


class After(mtf.Operation):
    """`x` itself, available once `signal` is computed; for XLA and for TensorFlow."""

    def __init__(self, x: mtf.Tensor, signal: mtf.Tensor):
        super().__init__([x, signal], name="after")
        self._outputs = [mtf.Tensor(self, x.shape, x.dtype)]

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        ordered = mesh_impl.supports_control_dependencies
        x, signal = (lowering.tensors[t] for t in self.inputs)
        result = mesh_impl.slicewise(
            identity_after if ordered else behind_barrier, x, signal
        )
        lowering.set_tensor_lowering(self.outputs[0], result)


def identity_after(x: tf.Tensor, signal: tf.Tensor) -> tf.Tensor:
    """`x`, available once `signal` is computed."""
    with tf.control_dependencies([signal]):
        return tf.identity(x)


def behind_barrier(x: tf.Tensor, signal: tf.Tensor) -> tf.Tensor:
    """`x`, available once `signal` is computed, in a program that XLA compiles."""
    # XLA ignores control dependencies and would merge two equal computations.
    return gen_xla_ops.xla_optimization_barrier(input=[x, signal])[0]
