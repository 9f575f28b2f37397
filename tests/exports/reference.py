"""The network once more in plain numpy and float64, written from the definitions.

Independent of the package: only names of variables and fields of the config are shared.
"""

import math

import numpy as np

_erf = np.vectorize(math.erf)


def _activation(name, x):
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return x * 0.5 * (1 + _erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


class Reference:
    """encode() and masked_lm() over a dict of weights."""

    def __init__(self, config, weights):
        self.config = config
        self.weights = {n: w.astype(np.float64) for n, w in weights.items()}

    def dense(self, x, name):
        return x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]

    def layer_norm(self, x, name):
        mean = x.mean(-1, keepdims=True)
        deviation = np.sqrt(x.var(-1, keepdims=True) + self.config.layer_norm_epsilon)
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        return (x - mean) / deviation * gamma + beta

    def attention(self, x, real, name):
        """One sequence: x [length, H], real bool [length]; head by head."""
        query, key, value = (
            self.dense(x, f"{name}/self/{part}") for part in ("query", "key", "value")
        )
        size, contexts = self.config.head_size, []
        for head in range(self.config.num_heads):
            columns = slice(head * size, (head + 1) * size)
            scores = query[:, columns] @ key[:, columns].T / math.sqrt(size)
            shares = np.exp(scores - scores.max()) * real
            shares /= shares.sum(-1, keepdims=True)
            contexts.append(shares @ value[:, columns])
        return self.dense(np.concatenate(contexts, -1), f"{name}/output/dense")

    def encode(self, batch):
        """Outputs of all layers, each [batch, length, H]."""
        rows = zip(
            batch["input_word_ids"],
            batch["input_type_ids"],
            batch["input_mask"].astype(bool),
            strict=True,
        )
        layers = (self._row(*row) for row in rows)
        return [np.stack(layer) for layer in zip(*layers, strict=True)]

    def _row(self, ids, types, real):
        tables, embeddings = self.weights, "bert/embeddings"
        x = tables[f"{embeddings}/word_embeddings"][ids]
        x = x + tables[f"{embeddings}/position_embeddings"][: len(ids)]
        x = x + tables[f"{embeddings}/token_type_embeddings"][types]
        x = self.layer_norm(x, f"{embeddings}/LayerNorm")
        if self.config.input_embedding_size != self.config.hidden_size:
            x = self.dense(x, "bert/encoder/embedding_hidden_mapping_in")
        outputs = []
        for index in range(self.config.num_layers):
            layer = f"bert/encoder/layer_{index}"
            x = x + self.attention(x, real, f"{layer}/attention")
            x = self.layer_norm(x, f"{layer}/attention/output/LayerNorm")
            inner = self.dense(x, f"{layer}/intermediate/dense")
            inner = _activation(self.config.activation, inner)
            x = x + self.dense(inner, f"{layer}/output/dense")
            x = self.layer_norm(x, f"{layer}/output/LayerNorm")
            outputs.append(x)
        return outputs

    def masked_lm(self, sequence_output, positions):
        """[batch, length, H], int [batch, p] -> logits [batch, p, V]."""
        x = np.take_along_axis(sequence_output, positions[:, :, np.newaxis], axis=1)
        transform = "cls/predictions/transform"
        if f"{transform}/dense/kernel" in self.weights:
            x = self.dense(x, f"{transform}/dense")
        if self.config.mlm_transform == "dense_activation_norm":
            x = self.layer_norm(
                _activation(self.config.activation, x), f"{transform}/LayerNorm"
            )
        factor = self.weights.get("cls/predictions/output_embedding_factor")
        if factor is not None:
            x = x @ factor.T
        table = self.weights[
            "bert/embeddings/word_embeddings"
            if self.config.coupled
            else "cls/predictions/output_embedding"
        ]
        return x @ table.T + self.weights["cls/predictions/output_bias"]
