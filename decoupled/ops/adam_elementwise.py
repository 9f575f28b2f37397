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
from decoupled.ops.rounding import read_slice, rounded, update_rounded

_rounded_step = rounded(new_weights)


class RoundedAdamUpdate(mtf.Operation):
    """One step of AdamW on a variable with bfloat16 slices, by stochastic rounding.

    The moments are float32 and are updated first, in place. One kernel then computes
    the new weights from the moments and the old weights (`decoupled.ops.rounding`).

    Args:
      variable, moment, second_moment, gradient, scale, scalars, is_decayed: as for
        `adam.AdamUpdate`, but the variable's slices are bfloat16, and the gradient is
        whole.
      seed: int32 scalar that changes from step to step.
      before: the update of another variable that this one waits for, or None. A chain
        of updates holds the temporaries of one variable at a time.

    Its output is a dummy tensor for ordering: a scalar.
    """

    def __init__(
        self,
        variable: mtf.Variable,
        moment: mtf.Variable,
        second_moment: mtf.Variable,
        gradient: mtf.Tensor,
        scale: mtf.Tensor,
        scalars: StepScalars,
        is_decayed: bool,
        *,
        seed: mtf.Tensor,
        before: "RoundedAdamUpdate | None",
    ):
        waits = [] if before is None else before.outputs
        inputs = [
            gradient, scale, scalars.kept, scalars.rate, scalars.epsilon, seed, *waits
        ]  # fmt: skip
        super().__init__(inputs, name="rounded_adam_update")
        self._variable, self._moments = variable, [moment, second_moment]
        self._beta1, self._beta2 = scalars.beta1, scalars.beta2
        self._is_decayed = is_decayed
        self._outputs = [mtf.Tensor(self, mtf.Shape([]), tf.float32)]

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        moments = [lowering.variables[v].laid_out_tensor for v in self._moments]
        gradient, scale, kept, rate, epsilon, seed, *before = (
            lowering.tensors[x] for x in self.inputs
        )
        m, v = mesh_impl.slicewise(
            self._update_moments, *moments, gradient, scale, *before
        )
        kept = kept if self._is_decayed else 1.0
        done = update_rounded(
            lowering, [self._variable], _rounded_step, seed, m, v, kept, rate, epsilon
        )
        lowering.set_tensor_lowering(self.outputs[0], done)
        lowering.operations[self] = tf.group(done.all_slices)

    def _update_moments(
        self,
        m: tf.Variable,
        v: tf.Variable,
        gradient: tf.Tensor,
        scale: tf.Tensor,
        *before: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies(before):
            gradient = tf.cast(gradient, tf.float32) * scale
        # In float32, as in the fused kernel.
        beta1, beta2 = tf.constant(self._beta1), tf.constant(self._beta2)
        change = (gradient - read_slice(m)) * (1.0 - beta1)
        m_done = tf.raw_ops.AssignAddVariableOp(resource=m.handle, value=change)
        change = (tf.square(gradient) - read_slice(v)) * (1.0 - beta2)
        v_done = tf.raw_ops.AssignAddVariableOp(resource=v.handle, value=change)
        with tf.control_dependencies([m_done, v_done]):
            return read_slice(m), read_slice(v)


class StackedAdamUpdate(mtf.Operation):
    """One step of AdamW on the members of a stack (see `adam.step_scalars`).

    The update consists of reads, arithmetic and assignments only. XLA compiles them
    into one kernel, which writes weights and moments in place, and both of TensorFlow's
    bridges to XLA support them. The MLIR bridge does not support
    ResourceApplyProximalGradientDescent, by which `adam.AdamUpdate` decays weights.

    Args:
      variables, moments, second_moments: the members of three stacks in the same
        order, or one variable each. The moments are float32; the weights may be
        bfloat16.
      gradients: float, of their shape.
      scale: float32 scalar that multiplies them.
      scalars: of the step.
      decayed: for each variable, whether weight decay applies.
      seed: int32 scalar that changes from step to step, where the weights are bfloat16.

    Attributes: `stacked`, the gradients that exist twice in memory while they are
    stacked.
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
        *,
        seed: mtf.Tensor | None = None,
    ):
        self._variables = list(variables)
        self._moments = [list(moments), list(second_moments)]
        self._is_rounded = variables[0].slice_dtype != tf.float32
        self._beta1, self._beta2 = scalars.beta1, scalars.beta2
        self.stacked = list(gradients) if len(gradients) > 1 else []
        self._decayed = np.array(decayed, np.float32)
        inputs = [*gradients, scale, scalars.kept, scalars.rate, scalars.epsilon]
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
        operands = [m, v, kept, rate, epsilon]
        if self._is_rounded:
            done = update_rounded(
                lowering, self._variables, _rounded_step, *seed, *operands
            )
        else:
            slices = slices_of(lowering, self._variables)
            new = mesh_impl.slicewise(_step, slices, *operands)
            done = mesh_impl.slicewise(_write, slices, new)
        lowering.operations[self] = tf.group(
            [x for each in (*written, done) for x in each.all_slices]
        )

    def _new_moments(
        self, m: Slices, v: Slices, gradient: tf.Tensor, scale: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        gradient = tf.cast(gradient, tf.float32) * scale
        m, v = tf.convert_to_tensor(m), tf.convert_to_tensor(v)
        return new_moments(m, v, gradient, self._beta1, self._beta2)

    def _kept(self, kept: tf.Tensor) -> tf.Tensor:
        """`StepScalars.kept` for each member, and 1 for members without weight decay;
        its shape broadcasts to the stack's."""
        if len(set(self._decayed)) == 1:
            return kept if self._decayed[0] else tf.ones([])
        shape = [-1] + [1] * self._variables[0].shape.ndims
        return tf.reshape(1.0 - self._decayed * (1.0 - kept), shape)


def _step(slices: Slices, *operands: tf.Tensor) -> tf.Tensor:
    return new_weights(tf.convert_to_tensor(slices), *operands)


def _write(slices: Slices, value: tf.Tensor) -> tf.Operation:
    return slices.assign(value, read_value=False)
