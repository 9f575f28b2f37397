"""Worker: calls of this project's SavedModels, with random weights."""

import os
import tempfile

import numpy as np
import protocol
import synthetic
import tensorflow as tf

from decoupled.configs import ModelConfig
from decoupled.exports.serving.encoder import Encoder, StoredWeights
from decoupled.exports.serving.roots import EncoderRoot
from decoupled.model.variables import Head, shapes


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds a batch's sizes (see `synthetic`), the fields of a configuration as
    "model" and "stored_as", the type of matrices."""
    values = _random_weights(case)
    with tempfile.TemporaryDirectory() as folder:
        _save(folder, case, values)
        files = sum(file.stat().st_size for file in os.scandir(f"{folder}/variables"))
        serve = tf.saved_model.load(folder).signatures["serving_default"]
    inputs = {k: tf.constant(v) for k, v in synthetic.token_batch(case).items()}

    def step():
        return float(serve(**inputs)["sequence_output"].numpy().flat[0])

    return step, {
        "parameters": sum(value.size for value in values.values()),
        # Bytes of the weights' files.
        "files": files,
        "versions": protocol.versions("decoupled", "tensorflow"),
    }


def _random_weights(case):
    model = ModelConfig(**case["model"])
    head = Head(pooler=True, labels=0)
    generator = np.random.default_rng(0)
    return {
        name: np.ones(shape, np.float32)
        if name.endswith("gamma")
        else generator.normal(0, model.initializer_range, shape).astype(np.float32)
        for name, shape in shapes(model, head).items()
    }


def _save(folder, case, values):
    weights = StoredWeights(values, case["stored_as"])
    root = EncoderRoot(Encoder(ModelConfig(**case["model"]), weights), None, None)
    tf.saved_model.save(root, folder, signatures=root.signatures())


if __name__ == "__main__":
    protocol.serve(build)
