"""The serving encoder: the trained network as a plain TF2 module.

The same computation as the training graph (`decoupled.model`), from the same
checkpoint, without Mesh-TensorFlow: batch and length are dynamic, and the SavedModel
made from it needs nothing but TensorFlow.
"""

from decoupled.configs import ModelConfig
from decoupled.core.release import tf
from decoupled.exports.serving import layers
from decoupled.exports.serving.layers import Dense, LayerNorm, Weights
from decoupled.model import variables as names

# Large enough that a padded key's weight underflows to 0, small enough for float32.
_MASKED = -1e9

FEATURES = ("input_word_ids", "input_mask", "input_type_ids")

Outputs = dict[str, tf.Tensor | list[tf.Tensor]]


class _Embeddings(tf.Module):
    """Word + position + type, layer norm, and E_in -> H where the two differ."""

    def __init__(self, config: ModelConfig, weights: Weights):
        super().__init__()
        self.words = layers.variable(weights, names.WORD_EMBEDDINGS)
        self.positions = layers.variable(weights, names.POSITION_EMBEDDINGS)
        self.types = layers.variable(weights, names.TYPE_EMBEDDINGS)
        self.layer_norm = LayerNorm(
            weights, names.EMBEDDING_NORM, config.layer_norm_epsilon
        )
        self.projection = None
        if config.projects_input:
            self.projection = Dense(weights, names.PROJECTION)
        self._width = config.input_embedding_size
        self._dropout = config.hidden_dropout

    def __call__(self, word_ids, type_ids, length, training):
        # A gather, not a slice: its shape is not inferred, so an input that is too long
        # meets the check of the length and its message, not a mismatch of shapes.
        x = (
            tf.gather(self.words, word_ids)
            + tf.gather(self.types, type_ids)
            + tf.gather(self.positions, tf.range(length))
        )
        x = self.layer_norm(tf.reshape(x, [-1, self._width]))
        x = layers.dropout(x, self._dropout, training)
        return x if self.projection is None else self.projection(x)


class _Attention(tf.Module):
    """Multi-head self-attention with its output layer."""

    def __init__(self, config: ModelConfig, weights: Weights, name: str):
        super().__init__()
        self.query_key_value = Dense(
            weights,
            *(f"{name}/self/{part}" for part in ("query", "key", "value")),
            joined=f"{name}/self/query_key_value",
        )
        self.output = Dense(weights, f"{name}/output/dense")
        self._heads = config.num_heads
        self._head_size = config.head_size
        self._dropout = config.attention_dropout

    def __call__(self, x, mask, training):
        shape = tf.shape(mask)
        batch, length = shape[0], shape[3]
        heads, size = self._heads, self._head_size
        joined = tf.reshape(self.query_key_value(x), [batch, length, 3, heads, size])
        query, key, value = tf.unstack(tf.transpose(joined, [2, 0, 3, 1, 4]))
        scores = tf.matmul(query, key, transpose_b=True) * size**-0.5 + mask
        shares = layers.dropout(tf.nn.softmax(scores), self._dropout, training)
        context = tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3])
        # The shape of `x`, not [-1, H]: only so is it known to be that of the residual,
        # which is then added by the product that comes next.
        return self.output(tf.reshape(context, tf.shape(x)))


class _Layer(tf.Module):
    """One post-layer-norm BERT layer."""

    def __init__(self, config: ModelConfig, weights: Weights, name: str):
        super().__init__()
        epsilon = config.layer_norm_epsilon
        self.attention = _Attention(config, weights, f"{name}/attention")
        self.attention_norm = LayerNorm(
            weights, f"{name}/attention/output/LayerNorm", epsilon
        )
        self.intermediate = Dense(weights, f"{name}/intermediate/dense")
        self.output = Dense(weights, f"{name}/output/dense")
        self.output_norm = LayerNorm(weights, f"{name}/output/LayerNorm", epsilon)
        self._activation = layers.ACTIVATIONS[config.activation]
        self._dropout = config.hidden_dropout

    def __call__(self, x, mask, training):
        attended = self.attention(x, mask, training)
        x = self.attention_norm(x + layers.dropout(attended, self._dropout, training))
        output = self.output(self._activation(self.intermediate(x)))
        return self.output_norm(x + layers.dropout(output, self._dropout, training))


class Encoder(tf.Module):
    """Token ids to vectors.

    Args:
      config: the model's sizes.
      weights: checkpoint name -> array, e.g. `CheckpointWeights`. Where it holds
        `bert/pooler`, that is the pooler (fine-tuned classifiers); otherwise there is
        none: the pre-training of this model trains no pooler, and a random one would
        only scramble the [CLS] vector.
    """

    def __init__(self, config: ModelConfig, weights: Weights):
        super().__init__()
        self.embeddings = _Embeddings(config, weights)
        self.layers = [
            _Layer(config, weights, names.layer_name(index))
            for index in range(config.num_layers)
        ]
        self.pooler = None
        if f"{names.POOLER}/kernel" in weights:
            self.pooler = Dense(weights, names.POOLER)
        self._hidden = config.hidden_size
        self._max_positions = config.max_positions
        self._rows = {
            "input_word_ids": config.vocab_size,
            "input_type_ids": config.type_vocab_size,
        }

    def __call__(self, inputs: dict[str, tf.Tensor], training: bool = False) -> Outputs:
        """Runs the network.

        Args:
          inputs: `input_word_ids`, `input_mask` (1 = real token), `input_type_ids`,
            each int32 [batch, length].
          training: whether dropout is active.

        Returns:
          float32 `sequence_output` [batch, length, H]; `pooled_output` and `default`
          [batch, H], the pooler's output or else the [CLS] vector; `encoder_outputs`, a
          list with the output of each layer, [batch, length, H].

        Raises:
          tf.errors.InvalidArgumentError: more tokens than the model has positions, an
            id without a row in its table, or inputs of different shapes.
        """
        with tf.control_dependencies(self._checks(inputs)):
            # What the first operations need waits for the checks.
            word_ids = tf.identity(inputs["input_word_ids"])
        batch, length = tf.unstack(tf.shape(word_ids))
        input_mask, type_ids = (
            layers.shaped(inputs[n], word_ids) for n in FEATURES[1:]
        )
        padded = 1.0 - tf.cast(input_mask, tf.float32)
        # Sliced last, because a factor here would be taken for that of the scores, and
        # neither would be fused with their product.
        mask = (padded * _MASKED)[:, tf.newaxis, tf.newaxis, :]
        x = self.embeddings(word_ids, type_ids, length, training)
        outputs = []
        for layer in self.layers:
            x = layer(x, mask, training)
            outputs.append(tf.reshape(x, [batch, length, self._hidden]))
        pooled = outputs[-1][:, 0]
        if self.pooler is not None:
            pooled = tf.tanh(self.pooler(pooled))
        return {
            "sequence_output": outputs[-1],
            "pooled_output": pooled,
            "default": pooled,
            "encoder_outputs": outputs,
        }

    def _checks(self, inputs):
        """Operations that fail, in our words, where the inputs are not such as ours."""
        shape = tf.shape(inputs["input_word_ids"])
        yield tf.debugging.assert_less_equal(
            shape[1],
            self._max_positions,
            message=f"input_word_ids: longer than the {self._max_positions} positions "
            "of this model; cut the input",
        )
        for name in FEATURES[1:]:
            yield tf.debugging.assert_equal(
                tf.shape(inputs[name]),
                shape,
                message=f"{name}: its shape is not that of input_word_ids",
            )
        for name, rows in self._rows.items():
            yield layers.assert_below(inputs[name], rows, name)
