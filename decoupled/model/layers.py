"""The small parts: variables, dense layers, layer norm, activations, dropout."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from decoupled.configs import ModelConfig
from decoupled.core.compat import mtf, tf
from decoupled.model import variables as names
from decoupled.model.dims import Dims
from decoupled.ops.bias import add_bias, gelu, gelu_tanh, relu
from decoupled.ops.dropout import dropout
from decoupled.ops.normalization import layer_norm
from decoupled.ops.row_partitions import truncated_normal
from decoupled.ops.weight_product import weight_product


@dataclasses.dataclass(frozen=True)
class Builder:
    """What every part of the model needs to build itself.

    activation_dtype: of the tensors between layers.
    initializer_seed: initial weights are a pure function of it and their name, so that
      models that differ in one part share the others' initial weights.
    dropout_seed: int32 scalar that changes every step; None switches all dropout off.
    frozen: names of variables that are not trained.
    recompute_layers: gradient checkpointing.
    slice_dtype: of the variables on the devices; those that are saved are float32.
    names_attention: attention is an operation that whoever compiles the graph replaces.
    variables: by name; `with_head` adds those of a head.
    """

    config: ModelConfig
    dims: Dims
    mesh: mtf.Mesh
    activation_dtype: tf.DType
    initializer_seed: int
    dropout_seed: mtf.Tensor | None = None
    frozen: tuple[str, ...] = ()
    recompute_layers: bool = False
    slice_dtype: tf.DType = tf.float32
    names_attention: bool = False
    variables: Mapping[str, names.Variable] | None = None

    def __post_init__(self):
        if self.variables is None:
            encoder = names.declare(self.config, names.NO_HEAD)
            object.__setattr__(self, "variables", encoder)

    def with_head(self, head: names.Head) -> "Builder":
        return dataclasses.replace(self, variables=names.declare(self.config, head))

    @property
    def training(self) -> bool:
        return self.dropout_seed is not None

    def variable(self, name: str, dtype: tf.DType = tf.float32) -> mtf.Tensor:
        """A declared variable, saved in float32 and read as `dtype`.

        Vectors (biases, layer norms' gamma and beta) are float32 on the devices too:
        they are 0.1% of RemBERT's weights, and two bfloat16 values near 1, as gammas
        are, differ by 0.008.
        """
        variable = self.variables[name]
        slice_dtype = self.slice_dtype if len(variable.dims) > 1 else tf.float32
        return mtf.get_variable(
            self.mesh,
            name,
            mtf.Shape([mtf.Dimension(*dim) for dim in variable.dims]),
            dtype=mtf.VariableDType(tf.float32, slice_dtype, dtype),
            initializer=self._initializer(variable),
            trainable=name not in self.frozen,
        )

    def kernel(self, name: str) -> mtf.Tensor:
        """The matrix of a `weight_product`, which casts float32 slices."""
        is_float32 = self.slice_dtype == tf.float32
        return self.variable(name, tf.float32 if is_float32 else self.activation_dtype)

    def embedding(self, name: str) -> mtf.Tensor:
        """A table, read as float32."""
        # Rows are cast after the lookup, so that no step casts the whole table.
        return self.variable(name)

    def bias(self, name: str) -> mtf.Tensor:
        return self.variable(name, self.activation_dtype)

    def has_dense(self, name: str) -> bool:
        return f"{name}/kernel" in self.variables

    def dense(self, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """x @ kernel + bias: [..., inputs] -> [..., outputs]."""
        return add_bias(*self.product_and_bias(x, name))

    def product_and_bias(
        self, x: mtf.Tensor, name: str
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """x @ kernel, and the bias, for an operation that adds the bias itself."""
        kernel, bias = self.kernel(f"{name}/kernel"), self.bias(f"{name}/bias")
        shape = [*x.shape.dims[:-1], kernel.shape.dims[-1]]
        return weight_product(x, kernel, shape), bias

    def dense_activation(self, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """The activation of x @ kernel + bias."""
        return ACTIVATIONS[self.config.activation](*self.product_and_bias(x, name))

    def layer_norm(self, x: mtf.Tensor, name: str) -> mtf.Tensor:
        """Layer norm over the last dimension, with float32 gamma and beta."""
        gamma, beta = self.variable(f"{name}/gamma"), self.variable(f"{name}/beta")
        return layer_norm(x, gamma, beta, self.config.layer_norm_epsilon)

    def dropout(self, x: mtf.Tensor, rate: float, name: str) -> mtf.Tensor:
        """Dropout in training; `x` itself elsewhere."""
        return dropout(x, rate, self.dropout_seed, name)

    def cast(self, x: mtf.Tensor) -> mtf.Tensor:
        return mtf.cast(x, self.activation_dtype)

    def _initializer(self, variable: names.Variable) -> Callable:
        if variable.initializer == names.ZEROS:
            return tf.zeros_initializer()
        if variable.initializer == names.ONES:
            return tf.ones_initializer()
        is_identity = variable.initializer == names.IDENTITY
        seed = names.initial_seed(variable.name, self.initializer_seed)
        deviation = self.config.initializer_range * variable.scale

        def initialize(
            shape: list[int], dtype: tf.DType = tf.float32, partition_info: Any = None
        ) -> tf.Tensor:
            del dtype
            first_row = partition_info.var_offset[0] if partition_info else 0
            if is_identity:
                return tf.eye(first_row + shape[0], shape[1])[first_row:]
            return truncated_normal(shape, seed, deviation, first_row)

        return initialize


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}
