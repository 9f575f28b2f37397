"""Dense layers, layer norms, activations and dropout in plain TensorFlow.

Weights come from a mapping of checkpoint names to arrays. Activations are matrices
[tokens, width], because one large product is faster on a CPU than many small ones.
"""

from collections.abc import Callable, Mapping

import numpy as np

from decoupled.core.release import tf

Weights = Mapping[str, np.ndarray]

ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
}


def variable(weights: Weights, name: str) -> tf.Variable:
    """A float32 variable with the checkpoint's name and value."""
    return tf.Variable(weights[name], name=name, dtype=tf.float32)


def assert_below(ids: tf.Tensor, rows: tf.Tensor | int, name: str) -> tf.Operation:
    """Fails where an int32 id is not in [0, rows), with the least and the largest id.

    A gather on a GPU would give zeros for such an id, and no error.
    """
    least, largest = tf.reduce_min(ids), tf.reduce_max(ids)
    limits = [f"{name}: ids must be 0 or more, and less than", rows]
    found = ["found the least and the largest", least, largest]
    return tf.debugging.Assert((least >= 0) & (largest < rows), limits + found)


def shaped(value: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """A tensor that is known to have the shape of another, which it has.

    TensorFlow infers shapes before anything runs. It would report two shapes that do
    not fit in its own words, and the checks would never run. It cannot look into a
    gather.
    """
    places = tf.reshape(tf.range(tf.size(like)), tf.shape(like))
    return tf.gather(tf.reshape(value, [-1]), places)


def read(source: tf.Variable) -> tf.Tensor:
    """The variable's value, in such a way that what uses it can be fused.

    The outputs of a traced function wait for each of its reads of variables. TF 2.15's
    graph rewriter fuses nothing that has an input for which others wait, so a step that
    changes nothing goes in between.
    """
    return tf.ensure_shape(source, source.shape)


class Dense(tf.Module):
    """x @ kernel + bias.

    Several layers over one input are joined side by side, in the order of `names`: one
    product instead of several. The variables are then called after `joined`.
    """

    def __init__(self, weights: Weights, *names: str, joined: str = ""):
        super().__init__()
        scope = joined or names[0]
        self.kernel, self.bias = (
            tf.Variable(
                np.concatenate([weights[f"{name}/{part}"] for name in names], axis=-1),
                name=f"{scope}/{part}",
                dtype=tf.float32,
            )
            for part in ("kernel", "bias")
        )

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """float32 [n, inputs] -> [n, outputs]."""
        return tf.nn.bias_add(tf.matmul(x, self.kernel), read(self.bias))


class LayerNorm(tf.Module):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last dimension.

    Written with a batch norm that takes each row for a channel, as Keras does: on a CPU
    the graph rewriter makes one kernel of the whole, where means, differences and
    products of their own would be seven.
    """

    def __init__(self, weights: Weights, name: str, epsilon: float):
        super().__init__()
        self.gamma = variable(weights, f"{name}/gamma")
        self.beta = variable(weights, f"{name}/beta")
        self._epsilon = epsilon

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """float32 [n, d] -> the same shape."""
        shape = tf.shape(x)
        rows = shape[:1]
        nothing = tf.constant([], x.dtype)
        normal = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(x, [1, rows[0], self.gamma.shape[0], 1]),
            scale=tf.fill(rows, 1.0),
            offset=tf.fill(rows, 0.0),
            mean=nothing,
            variance=nothing,
            epsilon=self._epsilon,
            data_format="NCHW",
            is_training=True,
        ).y
        return tf.reshape(normal, shape) * read(self.gamma) + read(self.beta)


def dropout(x: tf.Tensor, rate: float, training: bool) -> tf.Tensor:
    """Drops and rescales in training; otherwise adds nothing to the graph."""
    return tf.nn.dropout(x, rate) if training and rate else x
