"""AdamW in one fused pass over every variable slice.

The stock optimizer makes a dozen passes and as many temporaries per parameter. Here
TensorFlow's fused kernel reads the gradient and updates weight and moments in place.
"""

from decoupled.compat import mtf, tf


class AdamUpdate(mtf.Operation):
    """One step of bias-corrected Adam with decoupled weight decay on one variable.

    With g = gradient * scale and t the step counted from 1 (Loshchilov and Hutter
    2019, algorithm 2, as torch.optim.AdamW):
      variable -= learning_rate * weight_decay * variable
      m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
      variable -= learning_rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)

    Args:
      variable, moment, second_moment: mtf.Variable, float32, of one shape.
      gradient: float tensor of that shape.
      scale, learning_rate, step: float32 scalars.
      weight_decay, beta1, beta2, epsilon: numbers.
    """

    def __init__(
        self, variable, moment, second_moment, gradient, scale, learning_rate, step,
        *, weight_decay, beta1, beta2, epsilon,
    ):  # fmt: skip
        super().__init__([gradient, scale, learning_rate, step], name="adam_update")
        self._variables = [variable, moment, second_moment]
        self._weight_decay = weight_decay
        self._beta1, self._beta2, self._epsilon = beta1, beta2, epsilon

    @property
    def has_gradient(self):
        return False

    def lower(self, lowering):
        mesh_impl = lowering.mesh_impl(self)
        slices = [lowering.variables[v].laid_out_tensor for v in self._variables]
        inputs = [lowering.tensors[x] for x in self.inputs]
        updates = mesh_impl.slicewise(self._update_slice, *slices, *inputs)
        lowering.operations[self] = tf.group(updates.all_slices)

    def _update_slice(self, variable, m, v, gradient, scale, learning_rate, step):
        gradient = tf.cast(gradient, tf.float32) * scale
        correction = tf.sqrt(1.0 - self._beta2**step)
        # The decay must follow the gradient, whose computation reads the weight, and
        # precede the update: without this order the result depends on scheduling.
        with tf.control_dependencies([gradient]):
            if self._weight_decay:
                kept = 1.0 - learning_rate * self._weight_decay
                decay = [variable.assign(variable * kept, read_value=False)]
            else:
                decay = []
        with tf.control_dependencies(decay):
            # The kernel computes lr * sqrt(1-b2^t)/(1-b1^t) * m/(sqrt(v) + epsilon);
            # epsilon times the correction makes that torch's AdamW.
            return tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=m.handle,
                v=v.handle,
                beta1_power=self._beta1**step,
                beta2_power=self._beta2**step,
                lr=learning_rate,
                beta1=self._beta1,
                beta2=self._beta2,
                epsilon=self._epsilon * correction,
                grad=gradient,
            )
