"""The network once more, in eager TensorFlow and float64, written from the definitions.

Independent of the package: only names of variables and fields of the config are shared.
No mesh, no fused kernels; a `tf.GradientTape` differentiates it.
"""

import math

import numpy as np
import tensorflow as tf


def _activation(name, x):
    if name == "relu":
        return tf.maximum(x, 0)
    if name == "gelu":
        return x * 0.5 * (1 + tf.math.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + tf.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Reference:
    """The model over `weights`: name -> array, or float64 tensor that a tape watches.

    encode() and masked_lm() give arrays, all else tensors.
    """

    def __init__(self, config, weights):
        self.config = config
        self.weights = {
            name: value if tf.is_tensor(value) else np.asarray(value, np.float64)
            for name, value in weights.items()
        }

    def dense(self, x, name):
        return x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]

    def layer_norm(self, x, name):
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean((x - mean) ** 2, -1, keepdims=True)
        normal = (x - mean) / tf.sqrt(variance + self.config.layer_norm_epsilon)
        return normal * self.weights[f"{name}/gamma"] + self.weights[f"{name}/beta"]

    def attention(self, x, token_mask, name):
        """x [batch, length, H], token_mask bool [batch, length]; head by head."""
        query, key, value = (
            self.dense(x, f"{name}/self/{part}") for part in ("query", "key", "value")
        )
        size, contexts = self.config.head_size, []
        for head in range(self.config.num_heads):
            columns = slice(head * size, (head + 1) * size)
            scores = tf.matmul(
                query[..., columns], key[..., columns], transpose_b=True
            ) / math.sqrt(size)
            shares = tf.nn.softmax(tf.where(token_mask[:, None, :], scores, -np.inf))
            contexts.append(shares @ value[..., columns])
        return self.dense(tf.concat(contexts, -1), f"{name}/output/dense")

    def layers(self, batch):
        """Outputs of all layers, each [batch, length, H]."""
        tables = [
            self.weights[f"bert/embeddings/{kind}_embeddings"]
            for kind in ("word", "position", "token_type")
        ]
        ids, token_mask = batch["input_word_ids"], batch["input_mask"].astype(bool)
        x = tf.gather(tables[0], ids) + tf.gather(tables[2], batch["input_type_ids"])
        x = self.layer_norm(x + tables[1][: ids.shape[1]], "bert/embeddings/LayerNorm")
        if "bert/encoder/embedding_hidden_mapping_in/kernel" in self.weights:
            x = self.dense(x, "bert/encoder/embedding_hidden_mapping_in")
        outputs = []
        for index in range(self.config.num_layers):
            layer = f"bert/encoder/layer_{index}"
            x = x + self.attention(x, token_mask, f"{layer}/attention")
            x = self.layer_norm(x, f"{layer}/attention/output/LayerNorm")
            inner = self.dense(x, f"{layer}/intermediate/dense")
            inner = _activation(self.config.activation, inner)
            x = x + self.dense(inner, f"{layer}/output/dense")
            x = self.layer_norm(x, f"{layer}/output/LayerNorm")
            outputs.append(x)
        return outputs

    def logits(self, sequence_output, positions):
        """[batch, length, H], int [batch, p] -> [batch, p, V]."""
        x = tf.gather(sequence_output, positions, batch_dims=1)
        transform = "cls/predictions/transform"
        if f"{transform}/dense/kernel" in self.weights:
            x = self.dense(x, f"{transform}/dense")
        if self.config.mlm_transform == "dense_activation_norm":
            x = _activation(self.config.activation, x)
            x = self.layer_norm(x, f"{transform}/LayerNorm")
        factor = self.weights.get("cls/predictions/output_embedding_factor")
        if factor is not None:
            x = tf.matmul(x, factor, transpose_b=True)
        table = self.weights[
            "bert/embeddings/word_embeddings"
            if self.config.coupled
            else "cls/predictions/output_embedding"
        ]
        bias = self.weights["cls/predictions/output_bias"]
        return tf.matmul(x, table, transpose_b=True) + bias

    def losses(self, batch):
        """Cross-entropy at each masked position, [batch, p]."""
        logits = self.logits(self.layers(batch)[-1], batch["masked_lm_positions"])
        return tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch["masked_lm_ids"], logits
        )

    def encode(self, batch):
        """As `layers`."""
        return [layer.numpy() for layer in self.layers(batch)]

    def masked_lm(self, sequence_output, positions):
        """As `logits`."""
        return self.logits(sequence_output, positions).numpy()
