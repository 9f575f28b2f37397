"""AdamW by elementwise operations: where slices are bfloat16, and on TPUs.

The fused kernel (`decoupled.ops.adam`) updates float32 variables only. A TPU's compiler
does not support all operations that it is used with.
"""

from collections.abc import Sequence

import numpy as np

from decoupled.core.compat import mtf, tf
from decoupled.ops.adam import StepScalars, new_moments, new_weights
from decoupled.ops.meshes.simd import Slices
from decoupled.ops.meshes.stacks import slices_of, stacked
from decoupled.ops.rounding import rounded, update_rounded

_rounded_step = rounded(new_weights)


class ElementwiseAdamUpdate(mtf.Operation):
    """One step of AdamW on the members of a stack (see `adam.step_scalars`).

    The update consists of reads, arithmetic and assignments only. XLA compiles them
    into one kernel, which writes weights and moments in place, and both of TensorFlow's
    bridges to XLA support them. The MLIR bridge does not support
    ResourceApplyProximalGradientDescent, by which `adam.AdamUpdate` decays weights.

    bfloat16 weights are rounded stochastically (`decoupled.ops.rounding`).

    Args:
      variables, moments, second_moments: the members of three stacks in the same
        order, or one variable each. The moments are float32.
      gradients: float, of their shape, and whole. scale: float32 scalar that multiplies
        them.
      decayed: for each variable, whether weight decay applies. multipliers: for each,
        by what the learning rate is multiplied.
      seed: int32 scalar that changes from step to step, where the weights are bfloat16.
      before: an update of bfloat16 weights that this one waits for. A chain of updates
        holds the temporaries of one variable at a time.

    Attributes: `stacked`, the gradients that exist twice in memory while they are
    stacked. Of bfloat16 weights, the output is a dummy scalar for ordering.
    """

    def __init__(
        self,
        variables: Sequence[mtf.Variable],
        moments: Sequence[mtf.Variable],
        second_moments: Sequence[mtf.Variable],
        gradients: Sequence[mtf.Tensor],
        scale: mtf.Tensor,
        scalars: StepScalars,
        decayed: Sequence[bool],
        multipliers: Sequence[float],
        *,
        seed: mtf.Tensor | None = None,
        before: "ElementwiseAdamUpdate | None" = None,
    ):
        self._variables = list(variables)
        self._moments = [list(moments), list(second_moments)]
        self._beta1, self._beta2 = scalars.beta1, scalars.beta2
        self.stacked = list(gradients) if len(gradients) > 1 else []
        self._multipliers = np.array(multipliers, np.float32)
        self._decayed = np.array(decayed, np.float32) * self._multipliers
        self._is_rounded = variables[0].slice_dtype != tf.float32
        inputs = [*gradients, scale, scalars.kept, scalars.rate, scalars.epsilon]
        if self._is_rounded:
            inputs += [seed, *([] if before is None else before.outputs)]
        super().__init__(inputs, name="elementwise_adam_update")
        dummy = [mtf.Tensor(self, mtf.Shape([]), tf.float32)]
        self._outputs = dummy if self._is_rounded else []

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        count = len(self._variables)
        inputs = [lowering.tensors[x] for x in self.inputs]
        gradients, (scale, kept, rate, epsilon, *rest) = inputs[:count], inputs[count:]
        gradient = mesh_impl.slicewise(stacked, *gradients)
        slots = [slices_of(lowering, slot) for slot in self._moments]
        m, v = mesh_impl.slicewise(
            self._new_moments, *slots, gradient, scale, *rest[1:]
        )
        written = [
            mesh_impl.slicewise(_write, slot, new)
            for slot, new in zip(slots, (m, v), strict=True)
        ]
        kept = mesh_impl.slicewise(self._kept, kept)
        rate = mesh_impl.slicewise(self._rate, rate)
        operands = [m, v, kept, rate, epsilon]
        if self._is_rounded:
            done = update_rounded(
                lowering, self._variables, _rounded_step, rest[0], *operands
            )
            lowering.set_tensor_lowering(self.outputs[0], done)
        else:
            slices = slices_of(lowering, self._variables)
            new = mesh_impl.slicewise(_step, slices, *operands)
            done = mesh_impl.slicewise(_write, slices, new)
        lowering.operations[self] = tf.group(
            [x for each in (*written, done) for x in each.all_slices]
        )

    def _new_moments(
        self,
        m: Slices | tf.Variable,
        v: Slices | tf.Variable,
        gradient: tf.Tensor,
        scale: tf.Tensor,
        *before: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies(before):
            gradient = tf.cast(gradient, tf.float32) * scale
        m, v = tf.convert_to_tensor(m), tf.convert_to_tensor(v)
        return new_moments(m, v, gradient, self._beta1, self._beta2)

    def _kept(self, kept: tf.Tensor) -> tf.Tensor:
        """`StepScalars.kept` for each member at its own rate, and 1 for members without
        weight decay."""
        if not self._decayed.any():
            return tf.ones([])
        if np.all(self._decayed == 1):
            return kept
        return 1.0 - self._of_each(self._decayed) * (1.0 - kept)

    def _rate(self, rate: tf.Tensor) -> tf.Tensor:
        """`StepScalars.rate` for each member."""
        if np.all(self._multipliers == 1):
            return rate
        return self._of_each(self._multipliers) * rate

    def _of_each(self, numbers: np.ndarray) -> np.ndarray:
        """A number for each member, in a shape that broadcasts to the stack's."""
        if len(numbers) == 1:
            return numbers[0]
        return numbers.reshape([-1] + [1] * self._variables[0].shape.ndims)


def _step(slices: Slices, *operands: tf.Tensor) -> tf.Tensor:
    return new_weights(tf.convert_to_tensor(slices), *operands)


def _write(slices: Slices | tf.Variable, value: tf.Tensor) -> tf.Operation:
    return slices.assign(value, read_value=False)
