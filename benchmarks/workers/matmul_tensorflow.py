"""Worker: one matrix product of [size, size] by TensorFlow."""

import protocol
import tensorflow as tf


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "size" and "dtype"."""
    shape = [case["size"], case["size"]]
    generator = tf.random.Generator.from_seed(0)
    left, right = (
        tf.cast(generator.normal(shape), case["dtype"]) for _ in range(2)
    )  # fmt: skip

    def step():
        return float(tf.linalg.matmul(left, right)[0, 0])

    return step, {"versions": protocol.versions("tensorflow")}


if __name__ == "__main__":
    protocol.serve(build)
