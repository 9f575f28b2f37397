"""AdamW in one fused pass over every variable slice.

The stock optimizer makes a dozen passes and as many temporaries per parameter. Here
TensorFlow's fused kernel reads the gradient and updates weight and moments in place.

A row-partitioned slice (`decoupled.ops.row_blocks`) is updated a partition at a time.
Of a factored gradient, only one or two partitions exist at any moment. They are still
in the processor's cache between the matrix product that makes them and the update: a
large output embedding is trained without a buffer of its size beside the weights and
the two moments.
"""

from typing import NamedTuple

from decoupled.core.compat import mtf, tf
from decoupled.ops.product_gradient import ProductGradient
from decoupled.ops.rounding import read_slice, rounded, update_rounded
from decoupled.ops.row_blocks import RowVariable
from decoupled.ops.tiles import Tile, in_two_lanes, slice_along


class StepNumbers(NamedTuple):
    """What the updates of all variables of a step share.

    beta1, beta2: the numbers. The others are float32 scalars of the mesh:
    learning_rate; beta1_power, beta2_power: beta^t; epsilon: times sqrt(1 - beta2^t);
    rate: learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t); kept: what weight decay
    leaves of a weight; penalty: of the proximal step that leaves as much.
    """

    beta1: float
    beta2: float
    learning_rate: mtf.Tensor
    beta1_power: mtf.Tensor
    beta2_power: mtf.Tensor
    epsilon: mtf.Tensor
    rate: mtf.Tensor
    kept: mtf.Tensor
    penalty: mtf.Tensor


def step_numbers(
    learning_rate: mtf.Tensor,
    step: mtf.Tensor,
    *,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
) -> StepNumbers:
    """The scalars of a step.

    Bias-corrected Adam with decoupled weight decay is, with g = gradient * scale and t
    the step counted from 1 (Loshchilov and Hutter 2019, algorithm 2, as
    torch.optim.AdamW):
      variable -= learning_rate * weight_decay * variable
      m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
      variable -= learning_rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
    The kernels compute the last line as rate * m / (sqrt(v) + epsilon), which is equal
    with `StepNumbers.rate` and `StepNumbers.epsilon`.

    Args:
      learning_rate, step: float32 scalars, the step counted from 1.
      weight_decay, beta1, beta2, epsilon: numbers.
    """

    def numbers(rate, step):
        beta1_power, beta2_power = beta1**step, beta2**step
        correction = tf.sqrt(1.0 - beta2_power)
        decay = rate * weight_decay
        return (
            beta1_power,
            beta2_power,
            epsilon * correction,
            rate * correction / (1.0 - beta1_power),
            1.0 - decay,
            decay / (1.0 - decay) / _NOTHING,
        )

    scalars = _Scalars([learning_rate, step], numbers, 6).outputs
    return StepNumbers(beta1, beta2, learning_rate, *scalars)


class _Scalars(mtf.Operation):
    def __init__(self, inputs, function, count):
        super().__init__(inputs, name="step_numbers")
        self._function = function
        self._outputs = [
            mtf.Tensor(self, mtf.Shape([]), tf.float32, index=index)
            for index in range(count)
        ]

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        inputs = [lowering.tensors[x] for x in self.inputs]
        values = lowering.mesh_impl(self).slicewise(self._function, *inputs)
        for tensor, value in zip(self.outputs, values, strict=True):
            lowering.set_tensor_lowering(tensor, value)


class AdamUpdate(mtf.Operation):
    """One step of AdamW on one variable (see `step_numbers`).

    Args:
      variable, moment, second_moment: mtf.Variable, float32, of one shape.
      gradient: float tensor of that shape, or its factors.
      scale: float32 scalar that multiplies it.
      numbers: of the step.
      is_decayed: whether weight decay applies.
      after: a tensor that is there once nothing else of the step will read the
        variable, needed for a gradient in factors: the norm of all gradients. What is
        read is never written to, but copied first, a block of rows or a whole slice.
    """

    def __init__(
        self, variable, moment, second_moment, gradient, scale, numbers, is_decayed,
        *, after=None,
    ):  # fmt: skip
        self._is_product = isinstance(gradient, ProductGradient)
        gradient = [*gradient] if self._is_product else [gradient]
        inputs = [
            scale, numbers.learning_rate, numbers.beta1_power, numbers.beta2_power,
            numbers.epsilon, numbers.penalty, *([] if after is None else [after]),
        ]  # fmt: skip
        super().__init__([*gradient, *inputs], name="adam_update")
        self._variables = [variable, moment, second_moment]
        self._beta1, self._beta2 = numbers.beta1, numbers.beta2
        self._is_decayed = is_decayed

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        self._decay = _decay_on_gpu if mesh_impl.on_gpus else _decay
        slices = [lowering.variables[v].laid_out_tensor for v in self._variables]
        inputs = [lowering.tensors[x] for x in self.inputs]
        if self._is_product:
            left, right, *inputs = inputs
            wide = mesh_impl.multiplies_in_float32
            gradient = mesh_impl.slicewise(_Product, left, right, wide)
        else:
            whole, *inputs = inputs
            gradient = mesh_impl.slicewise(_Whole, whole)
        updates = mesh_impl.slicewise(self._update_slice, *slices, gradient, *inputs)
        lowering.operations[self] = tf.group(updates.all_slices)

    def _update_slice(self, variable, m, v, gradient, scale, *numbers):
        if not isinstance(variable, RowVariable):
            return self._update([variable, m, v], gradient.whole(), scale, *numbers)

        def update(block):
            tile, *variables = block
            return [self._update(variables, gradient.rows(tile), scale, *numbers)]

        blocks = [variable.tiles, variable.parts, m.parts, v.parts]
        return tf.group(in_two_lanes(update, list(zip(*blocks, strict=True))))

    def _update(
        self, variables, gradient, scale, learning_rate, beta1_power, beta2_power,
        epsilon, penalty, *after,
    ):  # fmt: skip
        variable, m, v = variables
        gradient = tf.cast(gradient, tf.float32) * scale
        # The decay must follow the gradient, whose computation reads the weight, and
        # precede the update: without this order the result depends on scheduling.
        with tf.control_dependencies([gradient, *after]):
            decay = []
            if self._is_decayed:
                decay = [self._decay(variable, gradient, penalty)]
        with tf.control_dependencies([*decay, *after]):
            return tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=beta1_power,
                beta2_power=beta2_power,
                lr=learning_rate,
                beta1=self._beta1,
                beta2=self._beta2,
                epsilon=epsilon,
                grad=gradient,
            )


class _Whole:
    """A slice of a gradient."""

    def __init__(self, gradient):
        self._gradient = gradient

    def whole(self):
        return self._gradient

    def rows(self, tile):
        return slice_along(self._gradient, 0, tile)


class _Product:
    """The same as left^T x right, [..., rows] and [..., columns].

    is_wide: multiplied as float32.
    """

    def __init__(self, left, right, is_wide):
        left, right = (tf.reshape(x, [-1, x.shape[-1]]) for x in (left, right))
        self._dtype = tf.float32 if is_wide else left.dtype
        self._left, self._right = left, tf.cast(right, self._dtype)

    def whole(self):
        return self.rows(Tile(0, self._left.shape[1]))

    def rows(self, tile):
        left = tf.cast(slice_along(self._left, 1, tile), self._dtype)
        return tf.matmul(left, self._right, transpose_a=True)


# Multiplies a gradient away: the product is far below the last bit of any weight that
# is not itself below 1e-20.
_NOTHING = 1e-30


def _decay(variable, gradient, penalty):
    """variable /= 1 + penalty * _NOTHING, in place.

    Assigning the product would need a second buffer as large as the variable, and move
    the variable in memory in every step, which fragments TensorFlow's pool (0.6 GB of
    5.1 with an output embedding of 120000 x 768). The proximal step of an L2 penalty
    (Duchi and Singer 2009) divides in place; its gradient step is made to vanish.
    """
    return tf.raw_ops.ResourceApplyProximalGradientDescent(
        var=variable.handle,
        alpha=_NOTHING,
        l1=0.0,
        l2=penalty,
        delta=gradient,
    )


def _decay_on_gpu(variable, gradient, penalty):
    """The same by a gradient step of the weight itself, as of an L2 penalty.

    TensorFlow has the proximal step for CPUs only, and would silently move the weight,
    its moments and the whole update there. This step needs a copy of the weight.
    """
    del gradient
    factor = penalty * _NOTHING
    return tf.raw_ops.ResourceApplyGradientDescent(
        var=variable.handle, alpha=factor / (1.0 + factor), delta=read_slice(variable)
    )


class RoundedAdamUpdate(mtf.Operation):
    """The same step for bfloat16 slices of weights (see `decoupled.ops.rounding`).

    The moments are float32 and updated first, in place; then one kernel makes the new
    weights of them and of the old ones.

    Args:
      variable, moment, second_moment, gradient, scale, numbers, is_decayed: as for
        `AdamUpdate`, but the variable's slices are bfloat16.
      seed: int32 scalar that changes from step to step.
      before: the update of another variable that this one waits for, or None. So what
        an update computes with is there for one variable at a time.
    """

    def __init__(
        self, variable, moment, second_moment, gradient, scale, numbers, is_decayed,
        *, seed, before,
    ):  # fmt: skip
        waits = [] if before is None else before.outputs
        inputs = [
            gradient, scale, numbers.kept, numbers.rate, numbers.epsilon, seed, *waits
        ]  # fmt: skip
        super().__init__(inputs, name="rounded_adam_update")
        self._variable, self._moments = variable, [moment, second_moment]
        self._beta1, self._beta2 = numbers.beta1, numbers.beta2
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
            lowering, [self._variable], rounded_step, seed, m, v, kept, rate, epsilon
        )
        lowering.set_tensor_lowering(self.outputs[0], done)
        lowering.operations[self] = tf.group(done.all_slices)

    def _update_moments(self, m, v, gradient, scale, *before):
        with tf.control_dependencies(before):
            gradient = tf.cast(gradient, tf.float32) * scale
        # Of float32 numbers, as in the fused kernel.
        beta1, beta2 = tf.constant(self._beta1), tf.constant(self._beta2)
        change = (gradient - read_slice(m)) * (1.0 - beta1)
        m_done = tf.raw_ops.AssignAddVariableOp(resource=m.handle, value=change)
        change = (tf.square(gradient) - read_slice(v)) * (1.0 - beta2)
        v_done = tf.raw_ops.AssignAddVariableOp(resource=v.handle, value=change)
        with tf.control_dependencies([m_done, v_done]):
            return read_slice(m), read_slice(v)


def new_weights(weights, m, v, kept, rate, epsilon):
    """The last line of `step_numbers`, of the moments after the step."""
    return weights * kept - rate * m / (tf.sqrt(v) + epsilon)


rounded_step = rounded(new_weights)
