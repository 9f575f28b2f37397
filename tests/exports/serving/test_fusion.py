"""What TensorFlow's graph rewriter makes of the SavedModels on a CPU: fused kernels.

Nothing fails where a change hinders it, and only a clock would notice: hence these.
"""

import collections
import re

import pytest

from decoupled.core.release import tf
from tests.exports.conftest import FINETUNED
from tests.exports.models import model_config, random_batch

tf1 = tf.compat.v1
CONFIG = model_config()


def kernels(folder, outputs):
    """Name of each kernel that a call of `serving_default` runs -> how many times."""
    with tf.Graph().as_default(), tf1.Session() as session:
        loaded = tf1.saved_model.load(session, ["serve"], str(folder))
        signature = loaded.signature_def["serving_default"]
        batch = random_batch(CONFIG, 3, 9)
        feed = {signature.inputs[name].name: value for name, value in batch.items()}
        fetch = [signature.outputs[name].name for name in outputs]
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        metadata = tf1.RunMetadata()
        session.run(fetch, feed, options=options, run_metadata=metadata)
    labels = [
        re.search(r"= (\w+)\(", node.timeline_label)
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
    ]
    counts = collections.Counter(label[1] for label in labels if label)
    if not any(name.startswith("_Mkl") for name in counts):
        pytest.skip("this TensorFlow computes without oneDNN")
    return counts


def test_encoder_runs_fused_kernels(encoder_export):
    counts = kernels(encoder_export / "encoder", ["sequence_output", "pooled_output"])
    assert counts["_MklLayerNorm"] == 1 + 2 * CONFIG.num_layers
    # The projection, then query + key + value, attention output and two products of the
    # feed-forward part in each layer, with bias, activation and residual.
    assert counts["_MklNativeFusedMatMul"] == 1 + 4 * CONFIG.num_layers
    assert counts["_MklFusedBatchMatMulV2"] == CONFIG.num_layers
    # Left over: the sum of three embeddings, and the mask times its -1e9.
    assert (counts["AddV2"], counts["Mul"]) == (2, 1)
    assert not {"Erf", "Mean", "Square", "BiasAdd", "MatMul", "Einsum"} & set(counts)


@pytest.mark.slow
def test_classifier_runs_the_same_kernels(classifier_export):
    counts = kernels(classifier_export / "classifier", ["logits"])
    assert counts["_MklLayerNorm"] == 1 + 2 * FINETUNED.num_layers
    assert counts["_MklFusedBatchMatMulV2"] == FINETUNED.num_layers
    assert not {"Erf", "Mean", "Square", "BiasAdd"} & set(counts)
