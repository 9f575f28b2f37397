"""Worker: calls of this project's SavedModels, with random weights."""

import os
import tempfile

import protocol
import synthetic
import tensorflow as tf
from random_weights import random_weights

from decoupled.configs import ModelConfig
from decoupled.exports.serving.encoder import Encoder, StoredWeights
from decoupled.exports.serving.roots import EncoderRoot
from decoupled.model.variables import Head


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds a batch's sizes (see `synthetic`), the fields of a configuration as
    "model" and "stored_as", the type of matrices."""
    model = ModelConfig(**case["model"])
    values = random_weights(model, Head(pooler=True))
    with tempfile.TemporaryDirectory() as folder:
        _save(folder, model, StoredWeights(values, case["stored_as"]))
        files = sum(file.stat().st_size for file in os.scandir(f"{folder}/variables"))
        serve = tf.saved_model.load(folder).signatures["serving_default"]
    batch = synthetic.masked_lm_batch(case)
    inputs = {k: tf.constant(v) for k, v in batch.items() if k.startswith("input_")}

    def step():
        return float(serve(**inputs)["sequence_output"].numpy().flat[0])

    return step, {
        "parameters": sum(value.size for value in values.values()),
        # Bytes of the weights' files.
        "files": files,
        "versions": protocol.versions("decoupled", "tensorflow"),
    }


def _save(folder, model, weights):
    root = EncoderRoot(Encoder(model, weights), None, None)
    tf.saved_model.save(root, folder, signatures=root.signatures())


if __name__ == "__main__":
    protocol.serve(build)
