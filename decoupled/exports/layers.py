"""Dense layers, layer norms, activations and dropout in plain TensorFlow.

Weights come from a mapping of checkpoint names to arrays. Activations are matrices
[tokens, width], because one large product is faster on a CPU than many small ones.
"""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

Weights = Mapping[str, np.ndarray]

ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
}


def variable(weights: Weights, name: str) -> tf.Variable:
    """A float32 variable with the checkpoint's name and value."""
    return tf.Variable(weights[name], name=name, dtype=tf.float32)


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
        return tf.nn.bias_add(tf.matmul(x, self.kernel), self.bias)


class LayerNorm(tf.Module):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last dimension."""

    def __init__(self, weights: Weights, name: str, epsilon: float):
        super().__init__()
        self.gamma = variable(weights, f"{name}/gamma")
        self.beta = variable(weights, f"{name}/beta")
        self._epsilon = epsilon

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """float32 [..., d] -> the same shape."""
        centered = x - tf.reduce_mean(x, axis=-1, keepdims=True)
        variance = tf.reduce_mean(tf.square(centered), axis=-1, keepdims=True)
        return (
            centered * tf.math.rsqrt(variance + self._epsilon) * self.gamma + self.beta
        )


def dropout(x: tf.Tensor, rate: float, training: bool) -> tf.Tensor:
    """Drops and rescales in training; otherwise adds nothing to the graph."""
    return tf.nn.dropout(x, rate) if training and rate else x
