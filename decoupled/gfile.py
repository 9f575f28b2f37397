"""`tf.io.gfile` and the error it raises, without importing TensorFlow before its use.

A command answers `--help` and mistakes in its flags at once this way: importing
TensorFlow takes seconds.

    gfile.isdir(path)       tf.io.gfile.isdir(path)
    except gfile.OpError    except tf.errors.OpError
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import tensorflow as tf

    return getattr(tf.errors if name.endswith("Error") else tf.io.gfile, name)
