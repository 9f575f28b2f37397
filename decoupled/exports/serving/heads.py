"""What may sit on the serving encoder: the MLM head, and the last layers of tasks."""

from decoupled.configs import ModelConfig
from decoupled.core.release import tf
from decoupled.exports.serving import layers
from decoupled.exports.serving.encoder import Encoder
from decoupled.exports.serving.layers import Dense, LayerNorm, Weights
from decoupled.model import variables as names


class MaskedLm(tf.Module):
    """Scores of every piece at given positions (the decoupled output embedding).

    Args:
      config: the model's sizes.
      weights: checkpoint name -> array.
      encoder: where the head is coupled, its word embeddings are the output embedding,
        one variable for both uses.
    """

    def __init__(self, config: ModelConfig, weights: Weights, encoder: Encoder):
        super().__init__()
        self.transform, self.layer_norm = None, None
        self._activation = layers.ACTIVATIONS[config.activation]
        declared = names.declare(config, names.MASKED_LM)
        if f"{names.TRANSFORM}/kernel" in declared:
            self.transform = Dense(weights, names.TRANSFORM)
        if f"{names.TRANSFORM_NORM}/gamma" in declared:
            self.layer_norm = LayerNorm(
                weights, names.TRANSFORM_NORM, config.layer_norm_epsilon
            )
        self.matrices = [
            encoder.embeddings.words
            if matrix.role is names.Role.INPUT_EMBEDDING
            else layers.variable(weights, matrix.name)
            for matrix in names.output_matrices(config)
        ]
        self.bias = layers.variable(weights, names.OUTPUT_BIAS)
        self._hidden, self._vocab = config.hidden_size, config.vocab_size

    def __call__(self, sequence_output: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """float32 [batch, length, H], int32 [batch, p] -> logits [batch, p, V]."""
        length = tf.shape(sequence_output)[1]
        inside = layers.assert_below(positions, length, "masked_lm_positions")
        with tf.control_dependencies([inside]):
            x = tf.gather(sequence_output, positions, batch_dims=1)
        x = tf.reshape(x, [-1, self._hidden])
        if self.transform is not None:
            x = self.transform(x)
        if self.layer_norm is not None:
            x = self.layer_norm(self._activation(x))
        for matrix in self.matrices:
            x = tf.matmul(x, matrix, transpose_b=True)
        logits = tf.nn.bias_add(x, self.bias)
        shape = tf.shape(positions)
        return tf.reshape(logits, [shape[0], shape[1], self._vocab])


class Classifier(tf.Module):
    """Scores of the classes: of a text from the pooled vector, or of every token."""

    def __init__(self, weights: Weights):
        super().__init__()
        self.output_weights = layers.variable(weights, names.TASK_WEIGHTS)
        self.output_bias = layers.variable(weights, names.TASK_BIAS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """float32 [..., H] -> logits [..., labels]."""
        labels, hidden = self.output_weights.shape
        flat = tf.reshape(x, [-1, hidden])
        logits = tf.matmul(flat, self.output_weights, transpose_b=True)
        logits = tf.nn.bias_add(logits, self.output_bias)
        logits = tf.reshape(logits, tf.concat([tf.shape(x)[:-1], [labels]], axis=0))
        return tf.ensure_shape(logits, [*x.shape[:-1], labels])
