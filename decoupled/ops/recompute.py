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
    """function(x), whose inner tensors are recomputed in the backward pass."""
    return mtf.ops.custom_gradient(function, _gradients, [x])


def _gradients(
    explicit_inputs: Sequence[mtf.Tensor],
    all_inputs: Sequence[mtf.Tensor],
    forward_operations: Sequence[mtf.Operation],
    outputs: Sequence[mtf.Tensor],
    output_grads: Sequence[mtf.Tensor],
) -> list[mtf.Tensor]:
    del explicit_inputs
    graph = forward_operations[0].graph
    inner = {t for operation in forward_operations for t in operation.outputs}
    tensors = {t for operation in forward_operations for t in operation.inputs}
    outer_tensors = [
        tensor
        for tensor in sorted(tensors - inner, key=lambda tensor: tensor.name)
        if not isinstance(tensor.operation, mtf.ops.Variable)
    ]
    delayed_tensors = After(outer_tensors, output_grads).outputs
    replacements = dict(zip(outer_tensors, delayed_tensors, strict=False))
    clones, copies = graph.clone_operations(forward_operations, replacements)
    return mtf.gradients(
        [copies[tensor] for tensor in outputs],
        [replacements.get(tensor, tensor) for tensor in all_inputs],
        grad_ys=delayed_tensors[len(outer_tensors) :],
        operations=clones,
    )


class After(mtf.Operation):
    """Tensors that are available once some signals are computed.

    Outputs: the tensors, then the signals. What comes later must read the signals from
    here too: XLA removes from a barrier what nothing reads, and with it the order.
    """

    def __init__(self, tensors: Sequence[mtf.Tensor], signals: Sequence[mtf.Tensor]):
        super().__init__([*tensors, *signals], name="after")
        self._signals = len(signals)
        self._outputs = [
            mtf.Tensor(self, x.shape, x.dtype, index=index)
            for index, x in enumerate(self.inputs)
        ]

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)

        def delay(*values: tf.Tensor) -> tuple[tf.Tensor, ...]:
            if not mesh_impl.supports_control_dependencies:
                return barrier(*values)
            count = len(values) - self._signals
            signals = values[count:]
            return *(identity_after(x, *signals) for x in values[:count]), *signals

        results = mesh_impl.slicewise(
            delay, *(lowering.tensors[t] for t in self.inputs)
        )
        for tensor, result in zip(self.outputs, results, strict=True):
            lowering.set_tensor_lowering(tensor, result)


def identity_after(x: tf.Tensor, *signals: tf.Tensor) -> tf.Tensor:
    """`x`, available once the signals are computed."""
    with tf.control_dependencies(signals):
        return tf.identity(x)


def barrier(*tensors: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The tensors, available once all of them are computed, also under XLA."""
    # XLA ignores control dependencies, and would merge two equal computations.
    return tuple(gen_xla_ops.xla_optimization_barrier(input=tensors))
