"""Matrices of a SavedModel in fewer bits than float32, for smaller files and memory.

Activations and sums stay float32. A lookup converts the rows that it reads, and a
product converts its matrix at each call.

With 8 bits, values are integers from -127 to 127. Each row of a table, and each column
of a kernel, has a float32 scale: its largest magnitude / 127. The scale is applied
after the product, which changes the result only by rounding.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from decoupled.core.errors import UserError
from decoupled.core.release import tf

Weights = Mapping[str, np.ndarray]

FLOAT32 = "float32"
INT8 = "int8"
STORED_AS = (FLOAT32, "bfloat16", "float16", INT8)
_LARGEST = 127


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
            most = tf.as_dtype(FLOAT32 if stored_as == INT8 else stored_as).max
            if not np.abs(value).max(initial=0.0) <= most:
                raise UserError(
                    f"--weights: {name} has a value that is not finite in {stored_as}; "
                    "export float32, or an earlier checkpoint if the training diverged"
                )
        if stored_as == INT8:
            largest = np.abs(value).max(axis=1 - scale_of, keepdims=True)
            scale = np.where(largest > 0, largest, 1.0).astype(np.float32) / _LARGEST
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
        return self._scaled(tf.matmul(x, self._whole()))

    def times_transposed(self, x: tf.Tensor) -> tf.Tensor:
        """x @ a table's transpose, float32 [n, columns] -> [n, rows]."""
        return self._scaled(tf.matmul(x, self._whole(), transpose_b=True))

    def _whole(self):
        return self.value if self.value.trainable else _float32(self.value)

    def _scaled(self, product):
        return product if self.scale is None else product * self.scale


def _float32(x: tf.Tensor | tf.Variable) -> tf.Tensor:
    return tf.cast(x, tf.float32)
