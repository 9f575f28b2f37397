"""The small parts: variables, dense layers, layer norm, activations, dropout."""

import dataclasses
import zlib

from decoupled.configs import ModelConfig
from decoupled.core.compat import mtf, tf
from decoupled.model.dims import Dims
from decoupled.ops.activations import gelu, gelu_tanh, relu
from decoupled.ops.bias import add_bias
from decoupled.ops.dropout import dropout
from decoupled.ops.initial_values import truncated_normal
from decoupled.ops.layer_norm import layer_norm
from decoupled.ops.lookup import embedding_lookup, one_hot_lookup
from decoupled.ops.weight_product import weight_product


@dataclasses.dataclass(frozen=True)
class Builder:
    """What every part of the model needs to build itself.

    config, dims: sizes. mesh: where variables live.
    activation_dtype: of the tensors between layers.
    initializer_seed: initial weights are a pure function of it and their name, so that
      models that differ in one part share the others' initial weights.
    dropout_seed: int32 scalar that changes every step; None switches all dropout off.
    frozen: variables whose names start with one of these are not trained.
    embedding_lookup: how rows are looked up, a name of `LOOKUPS`.
    recompute_layers: the inside of each encoder layer is computed again in the backward
      pass instead of kept.
    slice_dtype: of the variables on the devices; those that are saved are float32.
    """

    config: ModelConfig
    dims: Dims
    mesh: mtf.Mesh
    activation_dtype: tf.DType
    initializer_seed: int
    dropout_seed: mtf.Tensor | None = None
    frozen: tuple[str, ...] = ()
    embedding_lookup: str = "gather"
    recompute_layers: bool = False
    slice_dtype: tf.DType = tf.float32

    @property
    def training(self) -> bool:
        """Whether this is the graph of a training step."""
        return self.dropout_seed is not None

    def variable(self, name, shape, initializer, dtype=None):
        """A float32 variable, read as `dtype` (default: float32).

        Vectors (biases, layer norms' gamma and beta) are float32 on the devices too:
        of RemBERT's weights they are 0.1%, and gammas near 1 have steps of 0.008 in
        bfloat16.
        """
        slices = self.slice_dtype if len(shape) > 1 else tf.float32
        return mtf.get_variable(
            self.mesh,
            name,
            mtf.Shape(shape),
            dtype=mtf.VariableDType(tf.float32, slices, dtype or tf.float32),
            initializer=initializer,
            trainable=not name.startswith(self.frozen) if self.frozen else True,
        )

    def kernel(self, name, shape):
        """A variable drawn from a truncated normal of the configured deviation.

        Float32 slices read as float32; `weight_product` casts them where it needs them.
        """
        whole = self.slice_dtype == tf.float32
        dtype = tf.float32 if whole else self.activation_dtype
        return self.variable(name, shape, self._truncated_normal(name), dtype)

    def embedding(self, name, shape):
        """As `kernel`, but read as float32: rows are cast after the lookup, which
        spares a cast of the whole table in every step."""
        return self.variable(name, shape, self._truncated_normal(name))

    def bias(self, name, shape, dtype=None):
        """A variable of zeros."""
        return self.variable(
            name, shape, tf.zeros_initializer(), dtype or self.activation_dtype
        )

    def lookup(self, table, ids, dim):
        """Rows of `table` [dim, ...]: [ids' dimensions, ...]."""
        return LOOKUPS[self.embedding_lookup](table, ids, dim)

    def dense(self, x, name, input_dim, output_dim):
        """x @ kernel + bias: [..., input_dim] -> [..., output_dim]."""
        return add_bias(*self.product_and_bias(x, name, input_dim, output_dim))

    def product_and_bias(self, x, name, input_dim, output_dim):
        """x @ kernel, and the bias: for what adds it in a pass of its own."""
        kernel = self.kernel(f"{name}/kernel", [input_dim, output_dim])
        bias = self.bias(f"{name}/bias", [output_dim])
        return weight_product(x, kernel, x.shape.dims[:-1] + [output_dim]), bias

    def activated(self, x, name, input_dim, output_dim):
        """The configured activation of `dense`."""
        product, bias = self.product_and_bias(x, name, input_dim, output_dim)
        return ACTIVATIONS[self.config.activation](product, bias)

    def layer_norm(self, x, name):
        """Layer norm over the last dimension, with float32 gamma and beta."""
        dim = x.shape.dims[-1]
        gamma = self.variable(f"{name}/gamma", [dim], tf.ones_initializer())
        beta = self.variable(f"{name}/beta", [dim], tf.zeros_initializer())
        return layer_norm(x, gamma, beta, self.config.layer_norm_epsilon)

    def dropout(self, x, rate, name):
        """Dropout in training; `x` itself elsewhere."""
        return dropout(x, rate, self.dropout_seed, name)

    def cast(self, x):
        """`x` in the activation dtype."""
        return mtf.cast(x, self.activation_dtype)

    def _truncated_normal(self, name):
        seed = [self.initializer_seed, zlib.crc32(name.encode("utf-8")) & 0x7FFFFFFF]
        deviation = self.config.initializer_range

        def initialize(shape, dtype=tf.float32, partition_info=None):
            del dtype
            first_row = partition_info.var_offset[0] if partition_info else 0
            return truncated_normal(shape, seed, deviation, first_row)

        return initialize


LOOKUPS = {"gather": embedding_lookup, "one_hot": one_hot_lookup}
ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}
