"""Pre-training once more: eager TensorFlow, float64, written from the definitions.

Independent of the package: only names of variables and fields of the configs are
shared. No mesh, no fused kernels, gradients by `tf.GradientTape`.
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


class Network:
    """The masked-LM loss of a batch, of `weights`: name -> float64 tensor."""

    def __init__(self, config, weights):
        self._config, self._weights = config, weights

    def _dense(self, x, name):
        return x @ self._weights[f"{name}/kernel"] + self._weights[f"{name}/bias"]

    def _norm(self, x, name):
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean((x - mean) ** 2, -1, keepdims=True)
        normal = (x - mean) / tf.sqrt(variance + self._config.layer_norm_epsilon)
        return normal * self._weights[f"{name}/gamma"] + self._weights[f"{name}/beta"]

    def _attention(self, x, mask, name):
        config, (batch, length, _) = self._config, x.shape

        def heads(part):
            y = self._dense(x, f"{name}/self/{part}")
            y = tf.reshape(y, [batch, length, config.num_heads, config.head_size])
            return tf.transpose(y, [0, 2, 1, 3])

        scores = heads("query") @ tf.transpose(heads("key"), [0, 1, 3, 2])
        scores = scores / math.sqrt(config.head_size)
        scores = tf.where(mask[:, None, None, :] == 1, scores, -np.inf)
        context = tf.transpose(tf.nn.softmax(scores) @ heads("value"), [0, 2, 1, 3])
        joined = tf.reshape(context, [batch, length, config.hidden_size])
        return self._dense(joined, f"{name}/output/dense")

    def _encode(self, batch):
        tables = [
            self._weights[f"bert/embeddings/{kind}_embeddings"]
            for kind in ("word", "position", "token_type")
        ]
        words, types = batch["input_word_ids"], batch["input_type_ids"]
        x = tf.gather(tables[0], words) + tf.gather(tables[2], types)
        x = self._norm(x + tables[1][: words.shape[1]], "bert/embeddings/LayerNorm")
        if self._config.input_embedding_size != self._config.hidden_size:
            x = self._dense(x, "bert/encoder/embedding_hidden_mapping_in")
        for index in range(self._config.num_layers):
            layer = f"bert/encoder/layer_{index}"
            x += self._attention(x, batch["input_mask"], f"{layer}/attention")
            x = self._norm(x, f"{layer}/attention/output/LayerNorm")
            inner = self._dense(x, f"{layer}/intermediate/dense")
            inner = _activation(self._config.activation, inner)
            x = self._norm(
                x + self._dense(inner, f"{layer}/output/dense"),
                f"{layer}/output/LayerNorm",
            )
        return x

    def loss(self, batch):
        """Mean over the masked positions of weight 1, a float64 scalar."""
        x = tf.gather(self._encode(batch), batch["masked_lm_positions"], batch_dims=1)
        transform = "cls/predictions/transform"
        if f"{transform}/dense/kernel" in self._weights:
            x = self._dense(x, f"{transform}/dense")
        if self._config.mlm_transform == "dense_activation_norm":
            x = _activation(self._config.activation, x)
            x = self._norm(x, f"{transform}/LayerNorm")
        factor = self._weights.get("cls/predictions/output_embedding_factor")
        if factor is not None:
            x = tf.matmul(x, factor, transpose_b=True)
        word = self._weights["bert/embeddings/word_embeddings"]
        table = self._weights.get("cls/predictions/output_embedding", word)
        logits = tf.matmul(x, table, transpose_b=True)
        logits += self._weights["cls/predictions/output_bias"]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            batch["masked_lm_ids"], logits
        )
        weights = batch["masked_lm_weights"].astype(np.float64)
        return tf.reduce_sum(losses * weights) / weights.sum()


def _rate(peak, schedule, step):
    """Linear warm-up from 0, then linear decay to 0."""
    if step < schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    if schedule.decay == "constant":
        return peak
    left = schedule.train_steps - step
    return peak * left / (schedule.train_steps - schedule.warmup_steps)


def _is_decayed(name):
    return name.split("/")[-1] not in ("bias", "output_bias", "gamma", "beta")


def train(model, optimizer, schedule, weights, batches, frozen=()):
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) with clipping by global norm.

    Args:
      model, optimizer, schedule: configs.
      weights: name -> initial array. batches: one dict of features per step.
      frozen: names of variables that stay as they are.

    Returns:
      (name -> float64 array, slots included; losses; gradient norms).
    """
    x = {name: np.array(value, np.float64) for name, value in weights.items()}
    names = [name for name in x if name not in frozen]
    m, v = ({name: np.zeros_like(x[name]) for name in names} for _ in range(2))
    losses, norms = [], []
    for step, batch in enumerate(batches):
        tensors = {name: tf.constant(value) for name, value in x.items()}
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = Network(model, tensors).loss(batch)
        found = tape.gradient(loss, {name: tensors[name] for name in names})
        g = {name: tf.convert_to_tensor(value).numpy() for name, value in found.items()}
        norm = math.sqrt(sum((value**2).sum() for value in g.values()))
        scale = min(1.0, optimizer.clip_norm / norm) if optimizer.clip_norm else 1.0
        rate = _rate(optimizer.learning_rate, schedule, step)
        losses.append(float(loss))
        norms.append(norm)
        for name in names:
            b1, b2, t = optimizer.beta1, optimizer.beta2, step + 1
            m[name] = b1 * m[name] + (1 - b1) * g[name] * scale
            v[name] = b2 * v[name] + (1 - b2) * (g[name] * scale) ** 2
            if _is_decayed(name):
                x[name] *= 1 - rate * optimizer.weight_decay
            corrected = np.sqrt(v[name] / (1 - b2**t)) + optimizer.epsilon
            x[name] -= rate * m[name] / (1 - b1**t) / corrected
    for name in names:
        x |= {f"{name}/adam_m": m[name], f"{name}/adam_v": v[name]}
    return x, losses, norms
