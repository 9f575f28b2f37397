"""The only import of Mesh-TensorFlow, after the shim that it needs under TF 2.15.

mesh-tensorflow 0.1.21 registers its variable type through a function that TF 2.15 moved
to another module (tensorflow/mesh issues 392 and 396). Only the core is imported:
`mesh_tensorflow.transformer` and `.bert` pull in packages that are not needed here.

TF 2 behaviour stays on, so that variables are resource variables: under reference
variables the stock Mesh-TF optimizer races with the reads of the same step.
"""

from tensorflow.python.framework import ops, tensor_conversion_registry

ops.register_tensor_conversion_function = (
    tensor_conversion_registry.register_tensor_conversion_function
)

import gin  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
import tensorflow_estimator.python.estimator.api._v1.estimator as estimator  # noqa: E402

# Mesh-TensorFlow registers functions of its own with gin, which a command has locked
# after reading its settings.
with gin.unlock_config():
    import mesh_tensorflow as mtf

__all__ = ["estimator", "mtf", "tf"]
