"""AdamW on a TPU: one elementwise pass over each stack of slices."""

from collections.abc import Sequence

import numpy as np

from decoupled.core.compat import mtf, tf
from decoupled.ops.adam import StepNumbers, new_weights, rounded_step
from decoupled.ops.rounding import update_rounded
from decoupled.ops.stacks import slices_of, stacked


class StackedAdamUpdate(mtf.Operation):
    """One step of AdamW on the members of a stack (see `adam.step_numbers`).

    Reads, arithmetic and assignments are all that it is made of: XLA makes one kernel
    of them, which writes weights and moments where they are, and both of the ways by
    which TensorFlow brings a program to XLA know them. The MLIR bridge has no
    ResourceApplyProximalGradientDescent, by which `adam.AdamUpdate` decays weights.

    Args:
      variables, moments, second_moments: mtf.Variable, a stack each in one order, or
        one of each. The moments are float32; the weights may be bfloat16.
      gradients: float tensors of their shape.
      scale: float32 scalar that multiplies them.
      numbers: of the step.
      decayed: for each variable, whether weight decay applies.
      seed: int32 scalar that changes from step to step, where the weights are bfloat16.

    Attributes: `stacked`, the gradients that are there twice while they are stacked.
    """

    def __init__(
        self,
        variables: Sequence[mtf.Variable],
        moments: Sequence[mtf.Variable],
        second_moments: Sequence[mtf.Variable],
        gradients: Sequence[mtf.Tensor],
        scale: mtf.Tensor,
        numbers: StepNumbers,
        decayed: Sequence[bool],
        *,
        seed: mtf.Tensor | None = None,
    ):
        self._variables = list(variables)
        self._moments = [list(moments), list(second_moments)]
        self._is_rounded = variables[0].slice_dtype != tf.float32
        self._beta1, self._beta2 = numbers.beta1, numbers.beta2
        self.stacked = list(gradients) if len(gradients) > 1 else []
        self._decayed = np.array(decayed, np.float32)
        inputs = [*gradients, scale, numbers.kept, numbers.rate, numbers.epsilon]
        inputs += [seed] if self._is_rounded else []
        super().__init__(inputs, name="stacked_adam_update")
        self._outputs = []

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        count = len(self._variables)
        inputs = [lowering.tensors[x] for x in self.inputs]
        gradients, (scale, kept, rate, epsilon, *seed) = inputs[:count], inputs[count:]
        gradient = mesh_impl.slicewise(stacked, *gradients)
        slots = [slices_of(lowering, slot) for slot in self._moments]
        m, v = mesh_impl.slicewise(self._new_moments, *slots, gradient, scale)
        written = [
            mesh_impl.slicewise(_write, slot, new)
            for slot, new in zip(slots, (m, v), strict=True)
        ]
        kept = mesh_impl.slicewise(self._kept, kept)
        numbers = [m, v, kept, rate, epsilon]
        if self._is_rounded:
            done = update_rounded(
                lowering, self._variables, rounded_step, *seed, *numbers
            )
        else:
            slices = slices_of(lowering, self._variables)
            new = mesh_impl.slicewise(_step, slices, *numbers)
            done = mesh_impl.slicewise(_write, slices, new)
        lowering.operations[self] = tf.group(
            [x for each in (*written, done) for x in each.all_slices]
        )

    def _new_moments(self, m, v, gradient, scale):
        gradient = tf.cast(gradient, tf.float32) * scale
        m, v = tf.convert_to_tensor(m), tf.convert_to_tensor(v)
        # Of float32 numbers, as in the fused kernel.
        beta1, beta2 = tf.constant(self._beta1), tf.constant(self._beta2)
        m += (gradient - m) * (1.0 - beta1)
        return m, v + (tf.square(gradient) - v) * (1.0 - beta2)

    def _kept(self, kept):
        """What decay leaves of the members, of a shape that goes with the stack's."""
        if len(set(self._decayed)) == 1:
            return kept if self._decayed[0] else tf.ones([])
        shape = [-1] + [1] * self._variables[0].shape.ndims
        return tf.reshape(1.0 - self._decayed * (1.0 - kept), shape)


def _step(weights, *numbers):
    return new_weights(tf.convert_to_tensor(weights), *numbers)


def _write(slices, value):
    return slices.assign(value, read_value=False)
