"""The only import of Mesh-TensorFlow and of the estimator, after the repairs they need.

tensorflow-estimator 2.15.0 and mesh-tensorflow 0.1.21 are the last releases. Both are
pure Python, and run with later releases of TensorFlow than they were made for. The name
of each repair below says which release removed something. A repair does nothing if the
original still exists, and its replacement cannot be called.

The names that the package uses from TensorFlow's private modules come from here too. TF
2 behaviour stays on, so that variables are resource variables, whose reads and writes
the update of a step orders (`decoupled.ops.adam`).
"""

# ruff: noqa: E402
import contextlib
import importlib.util
import sys
import types

import gin

# Imported before the rest of TensorFlow: it checks the release and silences the import.
import decoupled.core.release  # noqa: F401
from decoupled.core.machine import release_library_pages

# isort: split
import tensorflow
import tensorflow.compat.v1 as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.python.framework import ops, tensor_conversion_registry
from tensorflow.python.tpu import tpu as tpu_rewriting
from tensorflow.python.training.saver import BulkSaverBuilder
from tensorflow.python.util import tf_export

# Modules that TensorFlow 2.16 removed and the estimator imports. This package calls
# nothing of them: they serve distribution strategies, the embeddings of TPUs, and a
# hook that `training.loop` turns off.
REMOVED = (
    "tensorflow.python.distribute.estimator_training",
    "tensorflow.python.tpu.session_support",
    "tensorflow.python.tpu.tpu_embedding",
    "tensorflow.python.tpu.tpu_embedding_gradient",
)


class _Removed:
    """A function or class that TensorFlow removed; calling it raises an error."""

    def __new__(cls, *arguments, **keywords):
        del arguments, keywords
        raise NotImplementedError(
            f"{cls.__module__}.{cls.__name__}: TensorFlow {tf.__version__} has none; "
            "TensorFlow 2.15 is the last that has"
        )


class _RemovedModule(types.ModuleType):
    """Has every name that is imported from it."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        removed_class = type(name, (_Removed,), {"__module__": self.__name__})
        setattr(self, name, removed_class)
        return removed_class


def _modules_that_2_16_removed():
    for name in REMOVED:
        if importlib.util.find_spec(name) is None:
            sys.modules[name] = _RemovedModule(name)


def _register_of_conversions_that_2_13_moved():
    """Mesh-TensorFlow registers its type of variable through its old name."""
    if not hasattr(ops, "register_tensor_conversion_function"):
        ops.register_tensor_conversion_function = (
            tensor_conversion_registry.register_tensor_conversion_function
        )


def _names_of_exports_that_2_16_removed():
    """The estimator sets the public name of each of its classes as an attribute, which
    TensorFlow lists by package."""
    if not hasattr(tf_export, "ESTIMATOR_API_NAME"):
        tf_export.ESTIMATOR_API_NAME = name = "estimator"
        for table, suffix in (
            (tf_export.API_ATTRS, ""),
            (tf_export.API_ATTRS_V1, "_v1"),
        ):
            table[name] = tf_export._Attributes(
                f"_{name}_api_names{suffix}", f"_{name}_api_constants{suffix}"
            )


def _estimator_that_2_16_removed():
    """Mesh-TensorFlow imports `tensorflow.compat.v1.estimator`."""
    if not hasattr(tf, "estimator"):
        tf.estimator = estimator


class _Unused(type):
    """The type of a class whose every attribute is the class itself."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class _Keras(metaclass=_Unused):
    """Replaces Keras while the estimator defines classes that nothing here uses."""


@contextlib.contextmanager
def _without_keras():
    """The estimator's ready-made models name classes of Keras, whose import takes as
    long as TensorFlow's. If Keras is already imported, they get the real classes."""
    if "keras" in sys.modules:
        yield
        return
    # All of them import it when they are first used.
    names = ("keras", "losses", "metrics", "optimizers", "initializers")
    places = [(tf, "keras"), *((tensorflow, name) for name in names)]
    lazy_modules = [(module, name, getattr(module, name)) for module, name in places]
    for module, name in places:
        setattr(module, name, _Keras)
    try:
        yield
    finally:
        for module, name, value in lazy_modules:
            setattr(module, name, value)


_modules_that_2_16_removed()
_register_of_conversions_that_2_13_moved()
_names_of_exports_that_2_16_removed()

with _without_keras():
    import tensorflow_estimator.python.estimator.api._v1.estimator as estimator

_estimator_that_2_16_removed()

# Mesh-TensorFlow registers its functions with gin, which a command locks after it has
# read its settings.
with gin.unlock_config():
    import mesh_tensorflow as mtf

# The libraries of TensorFlow 2.21 would take 0.2 GB more memory than those of 2.15.
release_library_pages()

__all__ = [
    "BulkSaverBuilder",
    "estimator",
    "gen_xla_ops",
    "mtf",
    "tf",
    "tpu_rewriting",
]
