"""The serving encoder and its heads: trained networks as plain TensorFlow 2 modules.

SavedModels, `decoupled fill_mask`, `decoupled retrieve` and all analyses of a model's
vectors and predictions run this network, which computes the same as the mesh graph of
training (`decoupled.model`). There are two reasons for a second implementation: a
SavedModel must run with nothing but TensorFlow, and batch and length are dynamic here.
`tests/exports/serving/test_training_graph.py` compares the two.

Activations are matrices [tokens, width], because one large product is faster on a CPU
than many small ones.

Matrices may be stored in fewer bits than float32, for smaller files and memory.
Activations and sums stay float32: a lookup converts the rows that it reads, and a
product its matrix at each call. With 8 bits, values are integers from -127 to 127. Each
row of a table, and each column of a kernel, has a float32 scale, its largest magnitude
/ 127, which is applied after the product.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.model import variables as names

Weights = Mapping[str, np.ndarray]
Outputs = dict[str, tf.Tensor | list[tf.Tensor]]

FEATURES = ("input_word_ids", "input_mask", "input_type_ids")
ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_tanh": lambda x: tf.nn.gelu(x, approximate=True),
    "relu": tf.nn.relu,
}

# Large enough that a padded key's weight underflows to 0, small enough for float32.
_MASKED = -1e9

# The types of the matrices of a SavedModel.
FLOAT32 = "float32"
INT8 = "int8"
STORED_AS = (FLOAT32, "bfloat16", "float16", INT8)
_INT8_LIMIT = 127


def variable(weights: Weights, name: str) -> tf.Variable:
    """A float32 variable with the checkpoint's name and value."""
    return tf.Variable(weights[name], name=name, dtype=tf.float32)


def assert_below(ids: tf.Tensor, rows: tf.Tensor | int, name: str) -> tf.Operation:
    """Fails if an int32 id is not in [0, rows); shows the least and the largest id.

    A gather on a GPU would give zeros for such an id, and no error.
    """
    least, largest = tf.reduce_min(ids), tf.reduce_max(ids)
    limits = [f"{name}: ids must be 0 or more, and less than", rows]
    extremes = ["found the least and the largest", least, largest]
    return tf.debugging.Assert((least >= 0) & (largest < rows), limits + extremes)


def reshape_like(value: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """`value` reshaped to the shape of `like`."""
    # TensorFlow would report mismatched shapes before our checks, which name the
    # mistake. It cannot infer the shape of a gather.
    places = tf.reshape(tf.range(tf.size(like)), tf.shape(like))
    return tf.gather(tf.reshape(value, [-1]), places)


def read(source: tf.Variable) -> tf.Tensor:
    """The variable's value, read such that operations on it can be fused."""
    # TF 2.15's graph rewriter does not fuse an operation if others wait for one of its
    # inputs, and a traced function's outputs wait for all of its reads of variables. An
    # operation that changes nothing is therefore put in between.
    return tf.ensure_shape(source, source.shape)


class StoredWeights(Mapping[str, np.ndarray]):
    """Weights, and one of `STORED_AS`, the type of their matrices in a SavedModel."""

    def __init__(self, weights: Weights, stored_as: str):
        self._weights, self.stored_as = weights, stored_as

    def __getitem__(self, name: str) -> np.ndarray:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


class Matrix(tf.Module):
    """A float32 matrix, stored in another type if the weights are `StoredWeights`.

    Only float32 can be trained. `scale_of` is 0 for a table, whose rows have a scale
    each, and 1 for a kernel, whose columns have one.
    """

    def __init__(
        self, weights: Weights, value: np.ndarray, name: str, scale_of: int = 0
    ):
        super().__init__()
        stored_as = getattr(weights, "stored_as", FLOAT32)
        self.scale = None
        if stored_as != FLOAT32:
            limit = tf.as_dtype(FLOAT32 if stored_as == INT8 else stored_as).max
            if not np.abs(value).max(initial=0.0) <= limit:
                raise UserError(
                    f"--weights: {name} has a value that is not finite in {stored_as}; "
                    "export float32, or an earlier checkpoint if the training diverged"
                )
        if stored_as == INT8:
            peaks = np.abs(value).max(axis=1 - scale_of, keepdims=True)
            scale = np.where(peaks > 0, peaks, 1.0).astype(np.float32) / _INT8_LIMIT
            value = np.rint(value / scale).astype(np.int8)
            self.scale = tf.Variable(
                scale.ravel(), trainable=False, name=f"{name}/scale"
            )
        self.value = tf.Variable(
            value,
            name=name,
            dtype=tf.as_dtype(stored_as),
            trainable=stored_as == FLOAT32,
        )

    def rows(self, ids: tf.Tensor) -> tf.Tensor:
        """Rows of a table, int [...] -> float32 [..., columns]."""
        rows = tf.gather(self.value, ids)
        if self.scale is None:
            return _float32(rows)
        return _float32(rows) * tf.gather(self.scale, ids)[..., tf.newaxis]

    def times(self, x: tf.Tensor) -> tf.Tensor:
        """x @ a kernel, float32 [n, rows] -> [n, columns]."""
        return self._scaled(tf.matmul(x, self._matrix()))

    def times_transposed(self, x: tf.Tensor) -> tf.Tensor:
        """x @ a table's transpose, float32 [n, columns] -> [n, rows]."""
        return self._scaled(tf.matmul(x, self._matrix(), transpose_b=True))

    def _matrix(self):
        return self.value if self.value.trainable else _float32(self.value)

    def _scaled(self, product):
        return product if self.scale is None else product * self.scale


def _float32(x: tf.Tensor | tf.Variable) -> tf.Tensor:
    return tf.cast(x, tf.float32)


class Dense(tf.Module):
    """x @ kernel + bias.

    Several layers over the same input can be joined in the order of `names`: one
    product instead of several. The variables are then named after `joined`.
    """

    def __init__(self, weights: Weights, *names: str, joined: str = ""):
        super().__init__()
        scope = joined or names[0]
        kernel, bias = (
            np.concatenate([weights[f"{name}/{part}"] for name in names], axis=-1)
            for part in ("kernel", "bias")
        )
        self.kernel = Matrix(weights, kernel, f"{scope}/kernel", scale_of=1)
        self.bias = tf.Variable(bias, name=f"{scope}/bias", dtype=tf.float32)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.bias_add(self.kernel.times(x), read(self.bias))


class LayerNorm(tf.Module):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over the last dimension.

    A batch norm with a channel for each row is one kernel on a CPU, as in Keras;
    separate means, differences and products would be seven.
    """

    def __init__(self, weights: Weights, name: str, epsilon: float):
        super().__init__()
        self.gamma = variable(weights, f"{name}/gamma")
        self.beta = variable(weights, f"{name}/beta")
        self._epsilon = epsilon

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        shape = tf.shape(x)
        rows = shape[:1]
        no_values = tf.constant([], x.dtype)
        result = tf.raw_ops.FusedBatchNormV3(
            x=tf.reshape(x, [1, rows[0], self.gamma.shape[0], 1]),
            scale=tf.fill(rows, 1.0),
            offset=tf.fill(rows, 0.0),
            mean=no_values,
            variance=no_values,
            epsilon=self._epsilon,
            data_format="NCHW",
            is_training=True,
        ).y
        return tf.reshape(result, shape) * read(self.gamma) + read(self.beta)


def dropout(x: tf.Tensor, rate: float, training: bool) -> tf.Tensor:
    """Dropout in training; elsewhere it adds nothing to the graph."""
    return tf.nn.dropout(x, rate) if training and rate else x


class _Embeddings(tf.Module):
    """Word + position + type, layer norm, and E_in -> H where the two differ."""

    def __init__(self, config: ModelConfig, weights: Weights):
        super().__init__()
        self.words, self.positions, self.types = (
            Matrix(weights, weights[name], name)
            for name in (
                names.WORD_EMBEDDINGS,
                names.POSITION_EMBEDDINGS,
                names.TYPE_EMBEDDINGS,
            )
        )
        self.layer_norm = LayerNorm(
            weights, names.EMBEDDING_NORM, config.layer_norm_epsilon
        )
        self.projection = None
        if config.projects_input:
            self.projection = Dense(weights, names.PROJECTION)
        self._width = config.input_embedding_size
        self._dropout = config.hidden_dropout

    def __call__(
        self,
        word_ids: tf.Tensor,
        type_ids: tf.Tensor,
        length: tf.Tensor,
        training: bool,
    ) -> tf.Tensor:
        """int32 [batch, length] twice -> float32 [batch * length, H]."""
        # A gather, not a slice: its shape is not inferred, so that the check of the
        # length reports an input that is too long, and not a mismatch of shapes.
        x = (
            self.words.rows(word_ids)
            + self.types.rows(type_ids)
            + self.positions.rows(tf.range(length))
        )
        x = self.layer_norm(tf.reshape(x, [-1, self._width]))
        x = dropout(x, self._dropout, training)
        return x if self.projection is None else self.projection(x)


class _Attention(tf.Module):
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

    def __call__(
        self, x: tf.Tensor, rows: tf.Tensor, mask: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """[batch * length, H], mask [batch, 1, 1, length] -> the shape of `rows`.

        `rows` are those of `x` that attend: all, or the first of each sequence, [batch,
        H].
        """
        shape = tf.shape(mask)
        batch, length = shape[0], shape[3]
        heads, size = self._heads, self._head_size
        parts = tf.reshape(self.query_key_value(x), [batch, length, 3, heads, size])
        query, key, value = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        if rows is not x:
            query = query[:, :, :1]
        scores = tf.matmul(query, key, transpose_b=True) * size**-0.5 + mask
        shares = dropout(tf.nn.softmax(scores), self._dropout, training)
        context = tf.transpose(tf.matmul(shares, value), [0, 2, 1, 3])
        # With the rows of the residual, not [-1, ...]: the shape is then known to equal
        # that of the residual, and the next product can add the residual itself.
        return self.output(tf.reshape(context, tf.shape(rows)))


class _Layer(tf.Module):
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
        self._activation = ACTIVATIONS[config.activation]
        self._dropout = config.hidden_dropout

    def __call__(
        self,
        x: tf.Tensor,
        mask: tf.Tensor,
        training: bool,
        rows: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """[batch * length, H], mask [batch, 1, 1, length] -> [batch * length, H].

        `rows`, [batch, H], are those of first tokens, if only these are computed.
        """
        rows = x if rows is None else rows
        context = self.attention(x, rows, mask, training)
        x = self.attention_norm(rows + dropout(context, self._dropout, training))
        output = self.output(self._activation(self.intermediate(x)))
        return self.output_norm(x + dropout(output, self._dropout, training))


class Encoder(tf.Module):
    """Token ids to vectors.

    It has a pooler if the weights do, as those of fine-tuned classifiers. Pre-training
    trains none, and a random one would only scramble the [CLS] vector. `up_to`: only
    the layers up to this one, 0 to L, and no pooler; None is all.
    """

    def __init__(self, config: ModelConfig, weights: Weights, up_to: int | None = None):
        super().__init__()
        self.embeddings = _Embeddings(config, weights)
        self.layers = [
            _Layer(config, weights, names.layer_name(index))
            for index in range(config.num_layers if up_to is None else up_to)
        ]
        self.pooler = None
        if up_to is None and f"{names.POOLER}/kernel" in weights:
            self.pooler = Dense(weights, names.POOLER)
        self._hidden = config.hidden_size
        self._max_positions = config.max_positions
        self._rows = {
            "input_word_ids": config.vocab_size,
            "input_type_ids": config.type_vocab_size,
            # Other numbers would drown the scores of attention.
            "input_mask": 2,
        }

    def __call__(self, inputs: dict[str, tf.Tensor], training: bool = False) -> Outputs:
        """Runs the network on `FEATURES`, int32 [batch, length].

        `training` activates dropout. `pooled_output` is the pooler's output or else the
        [CLS] vector. The graph fails for impossible ids, lengths and shapes.
        """
        _, *layers = self.hidden_states(inputs, training)
        vector = self._pool(self._first_rows(layers[-1]))
        return {
            "sequence_output": layers[-1],
            "pooled_output": vector,
            "default": vector,
            "encoder_outputs": layers,
        }

    def pooled_output(self, inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        """`pooled_output` of `__call__`; computes the last layer only at [CLS]."""
        x, mask = self._embed(inputs, training=False)
        *layers, last_layer = self.layers
        for layer in layers:
            x = layer(x, mask, training=False)
        rows = self._first_rows(self._by_sequence(x, mask))
        return self._pool(last_layer(x, mask, training=False, rows=rows))

    def hidden_states(
        self, inputs: dict[str, tf.Tensor], training: bool = False
    ) -> list[tf.Tensor]:
        """The input embedding after its projection to H, and the output of every layer,
        float32 [batch, length, H] each."""
        x, mask = self._embed(inputs, training)
        states = [x]
        for layer in self.layers:
            x = layer(x, mask, training)
            states.append(x)
        return [self._by_sequence(x, mask) for x in states]

    def _embed(self, inputs, training):
        """The input embedding [batch * length, H], and the mask of the layers."""
        with tf.control_dependencies(self._checks(inputs)):
            # The first operations depend on this tensor, and so wait for the checks.
            word_ids = tf.identity(inputs["input_word_ids"])
        length = tf.shape(word_ids)[1]
        input_mask, type_ids = (reshape_like(inputs[n], word_ids) for n in FEATURES[1:])
        padding = 1.0 - tf.cast(input_mask, tf.float32)
        # The slice comes last: the graph rewriter would take a last factor for that of
        # the scores, and would fuse neither with their product.
        mask = (padding * _MASKED)[:, tf.newaxis, tf.newaxis, :]
        return self.embeddings(word_ids, type_ids, length, training), mask

    def _by_sequence(self, x, mask):
        """[batch * length, H] -> [batch, length, H]."""
        shape = tf.shape(mask)
        return tf.reshape(x, [shape[0], shape[3], self._hidden])

    def _first_rows(self, x):
        """[batch, length, H] -> [batch, H], the first of each sequence."""
        # Not x[:, 0]: TensorFlow would report a length of 0 in its own words.
        return tf.reshape(x[:, :1], [-1, self._hidden])

    def _pool(self, rows):
        return rows if self.pooler is None else tf.tanh(self.pooler(rows))

    def _checks(self, inputs: dict[str, tf.Tensor]) -> Iterator[tf.Operation]:
        """Operations that fail, with our messages, if inputs are invalid."""
        shape = tf.shape(inputs["input_word_ids"])
        yield tf.debugging.Assert(
            (shape[1] > 0) | (shape[0] == 0), ["input_word_ids: has no tokens", shape]
        )
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
            yield assert_below(inputs[name], rows, name)


class MaskedLm(tf.Module):
    """Scores of every piece at given positions (the decoupled output embedding).

    The word embeddings of a coupled model's `encoder` are also its output embedding, as
    one variable.
    """

    def __init__(self, config: ModelConfig, weights: Weights, encoder: Encoder):
        super().__init__()
        self.transform, self.layer_norm = None, None
        self._activation = ACTIVATIONS[config.activation]
        variables = names.declare(config, names.MASKED_LM)
        if f"{names.TRANSFORM}/kernel" in variables:
            self.transform = Dense(weights, names.TRANSFORM)
        if f"{names.TRANSFORM_NORM}/gamma" in variables:
            self.layer_norm = LayerNorm(
                weights, names.TRANSFORM_NORM, config.layer_norm_epsilon
            )
        name = names.OUTPUT_EMBEDDING
        self.matrix = (
            encoder.embeddings.words
            if config.coupled
            else Matrix(weights, weights[name], name)
        )
        self.bias = variable(weights, names.OUTPUT_BIAS)
        self._hidden, self._vocab = config.hidden_size, config.vocab_size

    def __call__(self, sequence_output: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """float32 [batch, length, H], int32 [batch, p] -> logits [batch, p, V]."""
        length = tf.shape(sequence_output)[1]
        check = assert_below(positions, length, "masked_lm_positions")
        with tf.control_dependencies([check]):
            x = tf.gather(sequence_output, positions, batch_dims=1)
        x = tf.reshape(x, [-1, self._hidden])
        if self.transform is not None:
            x = self.transform(x)
        if self.layer_norm is not None:
            x = self.layer_norm(self._activation(x))
        logits = tf.nn.bias_add(self.matrix.times_transposed(x), self.bias)
        shape = tf.shape(positions)
        return tf.reshape(logits, [shape[0], shape[1], self._vocab])


class Classifier(tf.Module):
    """Scores of the classes: of a text from the pooled vector, or of every token."""

    def __init__(self, weights: Weights):
        super().__init__()
        self.output_weights = variable(weights, names.TASK_WEIGHTS)
        self.output_bias = variable(weights, names.TASK_BIAS)

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """float32 [..., H] -> logits [..., labels]."""
        labels, hidden = self.output_weights.shape
        rows = tf.reshape(x, [-1, hidden])
        logits = tf.matmul(rows, self.output_weights, transpose_b=True)
        logits = tf.nn.bias_add(logits, self.output_bias)
        logits = tf.reshape(logits, tf.concat([tf.shape(x)[:-1], [labels]], axis=0))
        return tf.ensure_shape(logits, [*x.shape[:-1], labels])
