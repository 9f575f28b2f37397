"""Worker: calls of this project's SavedModels, with random weights."""

import os
import tempfile

import numpy as np
import protocol
import synthetic
import tensorflow as tf

from decoupled.configs import ModelConfig
from decoupled.exports.serving.encoder import Classifier, Encoder
from decoupled.exports.serving.roots import ClassifierRoot, EncoderRoot
from decoupled.exports.serving.stored import FLOAT32, StoredWeights
from decoupled.model.variables import Head, shapes


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds a batch's sizes (see `synthetic`), the fields of a configuration as
    "model", "kind" ("encoder" or "classifier"), "labels", "stored_as", the type of
    matrices, float32 where it is missing, and "signature", of a classifier."""
    values = _random_weights(case)
    with tempfile.TemporaryDirectory() as folder:
        _save(folder, case, values)
        files = sum(file.stat().st_size for file in os.scandir(f"{folder}/variables"))
        signature = case.get("signature", "serving_default")
        serve = tf.saved_model.load(folder).signatures[signature]
    batch = synthetic.classification_batch(case)
    inputs = {k: tf.constant(v) for k, v in batch.items() if k != "label_ids"}
    output = {"encoder": "sequence_output", "classifier": "logits"}[case["kind"]]

    def step():
        return float(serve(**inputs)[output].numpy().flat[0])

    return step, {
        "parameters": sum(value.size for value in values.values()),
        # Bytes of the weights' files.
        "files": files,
        "versions": protocol.versions("decoupled", "tensorflow"),
    }


def _random_weights(case):
    """Name -> float32 array."""
    model = ModelConfig(**case["model"])
    labels = 0 if case["kind"] == "encoder" else case["labels"]
    head = Head(pooler=True, labels=labels)
    generator = np.random.default_rng(0)
    return {
        name: np.ones(shape, np.float32)
        if name.endswith("gamma")
        else generator.normal(0, model.initializer_range, shape).astype(np.float32)
        for name, shape in shapes(model, head).items()
    }


def _save(folder, case, values):
    vocabulary = os.path.join(folder, "vocabulary")
    with open(vocabulary, "wb"):
        pass
    weights = StoredWeights(values, case.get("stored_as", FLOAT32))
    encoder = Encoder(ModelConfig(**case["model"]), weights)
    if case["kind"] == "encoder":
        root = EncoderRoot(encoder, None, vocabulary)
    else:
        names = [str(label) for label in range(case["labels"])]
        root = ClassifierRoot(encoder, Classifier(values), names, vocabulary)
    tf.saved_model.save(root, folder, signatures=root.signatures())


if __name__ == "__main__":
    protocol.serve(build)
