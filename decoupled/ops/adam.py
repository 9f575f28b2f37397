"""AdamW in place, in few passes over every variable slice.

The stock optimizer makes a dozen passes and as many temporaries per parameter.
`AdamUpdate` is for CPUs: TensorFlow's fused kernels decay the weight and update weight
and moments. A large bfloat16 gradient is applied by one kernel that XLA compiles, which
reads and writes half as many bytes. A row-partitioned slice
(`decoupled.ops.row_partitions`) is updated one partition at a time. Only one or two
partitions of a factored gradient exist at any moment, and they are still in the
processor's cache between the product that makes them and the update. So a large output
embedding needs no buffer of its size beside the weights and the two moments.

`ElementwiseAdamUpdate` is for bfloat16 slices, which the fused kernel does not update,
and for TPUs and other devices of XLA, whose compilers do not support that kernel.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.core.compat import mtf, tf
from decoupled.ops.gradients import FactoredGradient, Gradient
from decoupled.ops.kernels import compiled, is_large
from decoupled.ops.local import before_cast, mesh_op, scalar
from decoupled.ops.meshes.simd import Slices, slices_of, stack_tensors
from decoupled.ops.rounding import rounded, update_rounded
from decoupled.ops.row_partitions import (
    RowPartitionedVariable,
    Tile,
    slice_along,
    two_at_a_time,
)


class StepScalars(NamedTuple):
    """The scalars that the updates of all variables of a step share.

    Those of the mesh are float32. beta1_power, beta2_power: beta^t.
    epsilon: times sqrt(1 - beta2^t).
    rate: learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t). decay_factor: by which
    weight decay multiplies a weight; penalty: of the proximal step that does the same.
    """

    beta1: float
    beta2: float
    learning_rate: mtf.Tensor
    beta1_power: mtf.Tensor
    beta2_power: mtf.Tensor
    epsilon: mtf.Tensor
    rate: mtf.Tensor
    decay_factor: mtf.Tensor
    penalty: mtf.Tensor


def step_scalars(
    learning_rate: mtf.Tensor,
    step: mtf.Tensor,
    *,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> StepScalars:
    """The scalars of a step.

    Bias-corrected Adam with decoupled weight decay is, with g = gradient * scale and t
    the step counted from 1 (Loshchilov and Hutter 2019, algorithm 2, as
    torch.optim.AdamW):
      variable -= learning_rate * weight_decay * variable
      m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
      variable -= learning_rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    The kernels compute the last line as rate * m / (sqrt(v) + epsilon), which is equal
    with `StepScalars.rate` and `StepScalars.epsilon`.
    """

    def compute(rate: tf.Tensor, step: tf.Tensor) -> tuple[tf.Tensor, ...]:
        beta1_power, beta2_power = beta1**step, beta2**step
        correction = tf.sqrt(1.0 - beta2_power)
        decay = rate * weight_decay
        return (
            beta1_power,
            beta2_power,
            epsilon * correction,
            rate * correction / (1.0 - beta1_power),
            1.0 - decay,
            decay / (1.0 - decay) / _TINY,
        )

    def lower(mesh_impl: mtf.MeshImpl, *slices: Any) -> Sequence:
        return mesh_impl.slicewise(compute, *slices)

    scalars = mesh_op("step_scalars", lower, [learning_rate, step], [learning_rate] * 6)
    return StepScalars(beta1, beta2, learning_rate, *scalars)


def new_moments(
    m: tf.Tensor, v: tf.Tensor, gradient: tf.Tensor, beta1: float, beta2: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """The second line of the formula in `step_scalars`, given the scaled gradient; all
    float32."""
    # In float32, as in TensorFlow's fused kernel.
    rate1, rate2 = (1.0 - tf.constant(beta, tf.float32) for beta in (beta1, beta2))
    m += (gradient - m) * rate1
    return m, v + (tf.square(gradient) - v) * rate2


def new_weights(
    weights: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    decay_factor: tf.Tensor,
    rate: tf.Tensor,
    epsilon: tf.Tensor,
) -> tf.Tensor:
    """The first and last line of the formula in `step_scalars`."""
    return weights * decay_factor - rate * m / (tf.sqrt(v) + epsilon)


class AdamUpdate(mtf.Operation):
    """One step of AdamW on one float32 variable (see `step_scalars`).

    `scale` multiplies the gradient. The update waits for `signal`, which is computed
    after every other read of the variable in this step, such as the norm of all
    gradients. A factored gradient needs it: TensorFlow copies a partition that is still
    read before updating it.
    """

    def __init__(
        self,
        variable: mtf.Variable,
        moment: mtf.Variable,
        second_moment: mtf.Variable,
        gradient: Gradient,
        scale: mtf.Tensor,
        scalars: StepScalars,
        is_decayed: bool,
        *,
        signal: mtf.Tensor | None = None,
    ):
        self._is_factored = isinstance(gradient, FactoredGradient)
        gradient = [*gradient] if self._is_factored else [gradient]
        inputs = [scale, *scalars[2:], *([] if signal is None else [signal])]
        super().__init__([*gradient, *inputs], name="adam_update")
        self._variables = [variable, moment, second_moment]
        self._beta1, self._beta2 = scalars.beta1, scalars.beta2
        self._is_decayed = is_decayed

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        slices = [lowering.variables[v].laid_out_tensor for v in self._variables]
        inputs = [lowering.tensors[x] for x in self.inputs]
        if self._is_factored:
            left, right, *inputs = inputs
            is_wide = mesh_impl.multiplies_in_float32
            rows = mesh_impl.slicewise(_rows_of_product, left, right, is_wide)
        else:
            gradient, *inputs = inputs
            rows = mesh_impl.slicewise(_rows_of, gradient)
        updates = mesh_impl.slicewise(self._update_slice, *slices, rows, *inputs)
        lowering.operations[self] = tf.group(updates.all_slices)

    def _update_slice(
        self,
        variable: tf.Variable | RowPartitionedVariable,
        m: tf.Variable | RowPartitionedVariable,
        v: tf.Variable | RowPartitionedVariable,
        gradient_rows: Callable[[Tile | None], tf.Tensor],
        *scalars: tf.Tensor,
    ) -> tf.Operation:
        if not isinstance(variable, RowPartitionedVariable):
            return self._update([variable, m, v], gradient_rows(None), *scalars)

        def update(partition: tuple) -> list[tf.Operation]:
            tile, *variables = partition
            return [self._update(variables, gradient_rows(tile), *scalars)]

        columns = [variable.tiles, *(x.partitions for x in (variable, m, v))]
        return tf.group(two_at_a_time(update, list(zip(*columns, strict=True))))

    def _update(
        self,
        variables: Sequence[tf.Variable],
        gradient: tf.Tensor,
        scale: tf.Tensor,
        *inputs: tf.Tensor,
    ) -> tf.Operation:
        count = len(StepScalars._fields) - 2
        scalars = StepScalars(self._beta1, self._beta2, *inputs[:count])
        operand = before_cast(gradient, tf.bfloat16)
        is_bfloat16 = operand.dtype == tf.bfloat16
        if is_bfloat16 and is_large(operand):
            update = self._update_in_one_pass
        else:
            operand, update = gradient, self._update_in_passes
        return update(variables, operand, scale, scalars, inputs[count:])

    def _update_in_one_pass(self, variables, gradient, scale, scalars, signals):
        decay_factor = scalars.decay_factor if self._is_decayed else scalar(1.0)
        kernel = _compiled_update(self._beta1, self._beta2)
        with tf.control_dependencies(signals):
            handles = [variable.handle for variable in variables]
            update = kernel(
                *handles, gradient, scale, decay_factor, scalars.rate, scalars.epsilon
            )
        return update.op

    def _update_in_passes(self, variables, gradient, scale, scalars, signals):
        variable, m, v = variables
        gradient = tf.cast(gradient, tf.float32) * scale
        # Before the control dependencies below, so that variables share these nodes.
        beta1, beta2 = scalar(self._beta1), scalar(self._beta2)
        # The decay must follow the gradient, whose computation reads the weight, and
        # precede the update: without this order the result depends on scheduling.
        with tf.control_dependencies([gradient, *signals]):
            decay = []
            if self._is_decayed:
                decay = [_decay(variable, gradient, scalars.penalty)]
        with tf.control_dependencies([*decay, *signals]):
            return tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=scalars.beta1_power,
                beta2_power=scalars.beta2_power,
                lr=scalars.learning_rate,
                beta1=beta1,
                beta2=beta2,
                epsilon=scalars.epsilon,
                grad=gradient,
            )


@functools.cache
def _compiled_update(beta1: float, beta2: float) -> Callable[..., tf.Tensor]:
    """A kernel that updates a weight and its moments by the handles of their variables.

    XLA writes the results into the variables' buffers if nothing else holds these,
    which is so after the last read of a step.
    """

    def update(
        variable: tf.Tensor,
        m: tf.Tensor,
        v: tf.Tensor,
        gradient: tf.Tensor,
        scale: tf.Tensor,
        decay_factor: tf.Tensor,
        rate: tf.Tensor,
        epsilon: tf.Tensor,
    ) -> tf.Tensor:
        handles = variable, m, v
        old = [tf.raw_ops.ReadVariableOp(resource=x, dtype=tf.float32) for x in handles]
        weights, *moments = (tf.ensure_shape(x, gradient.shape) for x in old)
        gradient = tf.cast(gradient, tf.float32) * scale
        moments = new_moments(*moments, gradient, beta1, beta2)
        weights = new_weights(weights, *moments, decay_factor, rate, epsilon)
        for handle, value in zip(handles, (weights, *moments), strict=True):
            tf.raw_ops.AssignVariableOp(resource=handle, value=value)
        return scale

    return compiled(update)


def _rows_of(gradient: tf.Tensor) -> Callable[[Tile | None], tf.Tensor]:
    """The rows of a slice of a gradient; of None, all of them."""
    return lambda tile: slice_along(gradient, 0, tile) if tile else gradient


def _rows_of_product(
    left: tf.Tensor, right: tf.Tensor, is_wide: bool
) -> Callable[[Tile | None], tf.Tensor]:
    """As `_rows_of`, of left^T x right, multiplied in float32 if `is_wide`."""
    left, right = (tf.reshape(x, [-1, x.shape[-1]]) for x in (left, right))
    dtype = tf.float32 if is_wide else left.dtype
    right = tf.cast(right, dtype)

    def rows(tile: Tile | None) -> tf.Tensor:
        part = slice_along(left, 1, tile or Tile(0, left.shape[1]))
        return tf.matmul(tf.cast(part, dtype), right, transpose_a=True)

    return rows


# Multiplies a gradient that must have no effect: the product is far below the last bit
# of any weight above 1e-20.
_TINY = 1e-30


def _decay(
    variable: tf.Variable, gradient: tf.Tensor, penalty: tf.Tensor
) -> tf.Operation:
    """variable /= 1 + penalty * _TINY, in place.

    Assigning the decayed value would take a second buffer, and move the variable in
    every step, which fragments TensorFlow's memory pool (0.6 GB of 5.1 with an output
    embedding of 120000 x 768). The proximal step of an L2 penalty (Duchi and Singer
    2009) divides in place. Its gradient step is scaled by `_TINY` and has no effect.
    """
    return tf.raw_ops.ResourceApplyProximalGradientDescent(
        var=variable.handle,
        alpha=_TINY,
        l1=0.0,
        l2=penalty,
        delta=gradient,
    )


_rounded_step = rounded(new_weights)


class ElementwiseAdamUpdate(mtf.Operation):
    """One step of AdamW on the members of a stack (see `step_scalars`).

    The update consists of reads, arithmetic and assignments only, which XLA compiles
    into one kernel that writes weights and moments in place. bfloat16 weights are
    rounded stochastically (`decoupled.ops.rounding`); the output is then a dummy scalar
    for ordering.

    Args:
      variables, moments, second_moments: the members of three stacks in the same
        order, or one variable each. The moments are float32.
      are_decayed, multipliers: for each variable, whether weight decay applies, and by
        what the learning rate is multiplied.
      seed: int32 scalar that changes from step to step, where the weights are bfloat16.
      previous: an update of bfloat16 weights that this one waits for. A chain of
        updates holds the temporaries of one variable at a time.
    """

    def __init__(
        self,
        variables: Sequence[mtf.Variable],
        moments: Sequence[mtf.Variable],
        second_moments: Sequence[mtf.Variable],
        gradients: Sequence[mtf.Tensor],
        scale: mtf.Tensor,
        scalars: StepScalars,
        are_decayed: Sequence[bool],
        multipliers: Sequence[float],
        *,
        seed: mtf.Tensor | None = None,
        previous: "ElementwiseAdamUpdate | None" = None,
    ):
        self._variables = list(variables)
        self._moments = [list(moments), list(second_moments)]
        self._beta1, self._beta2 = scalars.beta1, scalars.beta2
        # These exist twice in memory while they are stacked.
        self.stacked_gradients = list(gradients) if len(gradients) > 1 else []
        self._multipliers = np.array(multipliers, np.float32)
        self._decay_multipliers = np.array(are_decayed, np.float32) * self._multipliers
        self._is_rounded = variables[0].slice_dtype != tf.float32
        numbers = [scale, scalars.decay_factor, scalars.rate, scalars.epsilon]
        inputs = [*gradients, *numbers]
        if self._is_rounded:
            inputs += [seed, *([] if previous is None else previous.outputs)]
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
        gradients, inputs = inputs[:count], inputs[count:]
        scale, decay_factor, rate, epsilon, *others = inputs
        gradient = mesh_impl.slicewise(stack_tensors, *gradients)
        slots = [slices_of(lowering, slot) for slot in self._moments]
        m, v = mesh_impl.slicewise(
            self._new_moments, *slots, gradient, scale, *others[1:]
        )
        writes = [
            mesh_impl.slicewise(_write, slot, value)
            for slot, value in zip(slots, (m, v), strict=True)
        ]
        decay_factor = mesh_impl.slicewise(self._decay_factor, decay_factor)
        rate = mesh_impl.slicewise(self._rate, rate)
        operands = [m, v, decay_factor, rate, epsilon]
        if self._is_rounded:
            write = update_rounded(
                lowering, self._variables, _rounded_step, others[0], *operands
            )
            lowering.set_tensor_lowering(self.outputs[0], write)
        else:
            slices = slices_of(lowering, self._variables)
            value = mesh_impl.slicewise(_step, slices, *operands)
            write = mesh_impl.slicewise(_write, slices, value)
        lowering.operations[self] = tf.group(
            [x for each in (*writes, write) for x in each.all_slices]
        )

    def _new_moments(
        self,
        m: Slices | tf.Variable,
        v: Slices | tf.Variable,
        gradient: tf.Tensor,
        scale: tf.Tensor,
        *signals: tf.Tensor,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.control_dependencies(signals):
            gradient = tf.cast(gradient, tf.float32) * scale
        m, v = tf.convert_to_tensor(m), tf.convert_to_tensor(v)
        return new_moments(m, v, gradient, self._beta1, self._beta2)

    def _decay_factor(self, factor: tf.Tensor) -> tf.Tensor:
        """`StepScalars.decay_factor` of each member at its rate; 1 without decay."""
        if not self._decay_multipliers.any():
            return tf.ones([])
        if np.all(self._decay_multipliers == 1):
            return factor
        return 1.0 - self._per_member(self._decay_multipliers) * (1.0 - factor)

    def _rate(self, rate: tf.Tensor) -> tf.Tensor:
        if np.all(self._multipliers == 1):
            return rate
        return self._per_member(self._multipliers) * rate

    def _per_member(self, numbers: np.ndarray) -> np.ndarray:
        """A number for each member, in a shape that broadcasts to the stack's."""
        if len(numbers) == 1:
            return numbers[0]
        return numbers.reshape([-1] + [1] * self._variables[0].shape.ndims)


def _step(slices: Slices, *operands: tf.Tensor) -> tf.Tensor:
    return new_weights(tf.convert_to_tensor(slices), *operands)


def _write(slices: Slices | tf.Variable, value: tf.Tensor) -> tf.Operation:
    return slices.assign(value, read_value=False)
