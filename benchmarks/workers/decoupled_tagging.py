"""Worker: words to tags in the graph with which this project evaluates."""

import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import protocol

from decoupled.configs import MeshConfig, ModelConfig
from decoupled.core.compat import tf
from decoupled.data.array_input_fn import evaluation_batches, longest_first
from decoupled.data.vocabulary import Vocabulary
from decoupled.runs.evaluation import evaluation_lengths
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.tagging_files import TaggedSentence
from decoupled.training.graph import build_predictions
from decoupled.training.mesh import session_config
from decoupled.training.network import Network

Run = Callable[[dict], np.ndarray]


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case is that of `benchmarks/tagging.py`; the graph is that of an evaluation of
    "files" of such sentences."""
    folder = pathlib.Path(case["folder"])
    words = json.loads((folder / "words.json").read_text(encoding="utf-8"))
    sentences = [TaggedSentence(own, None) for own in words]
    vocabulary = Vocabulary(str(folder / "pieces.model"))
    task = task_of(TASKS[case["task"]], "", case["sequence_length"])
    network = Network(
        task.network(dropout=0.0, label_smoothing=0.0),
        ModelConfig(**case["model"]),
        MeshConfig(**case["mesh"]),
    )
    sizes = task.features(vocabulary, sentences)["input_mask"].sum(1)
    lengths = evaluation_lengths(network, sizes, case["batch"], case["files"])
    run = _graph(case, network, task.graph_features, lengths)

    def step():
        features = task.features(vocabulary, sentences)
        arrays = {name: features[name] for name in task.graph_features}
        batches = evaluation_batches(arrays, case["batch"], lengths)
        found = np.concatenate([run(batch) for batch in batches])
        order = longest_first(features["input_mask"])
        best = np.empty_like(features["label_ids"])
        best[order] = found[: len(order)]
        tags = task.answers(sentences, features, {"best_labels": best})
        return checksum(tags, task.labels)

    return step, {
        "lengths": lengths,
        "versions": protocol.versions("decoupled", "tensorflow", "mesh-tensorflow"),
    }


def checksum(tags: list[list[str]], labels: list[str]) -> float:
    """Equal where all tags are."""
    flat = [labels.index(tag) for own in tags for tag in own]
    return float(np.dot(flat, np.arange(1, len(flat) + 1)))


def _graph(
    case: dict, network: Network, names: Sequence[str], lengths: Sequence[int]
) -> Run:
    """Gives the labels of a batch, int32 [batch, sequence_length]."""
    with tf.Graph().as_default():
        shape = [case["batch"], None]
        inputs = {name: tf.placeholder(tf.int32, shape) for name in names}
        outputs, lowering = build_predictions(network, inputs, lengths)
        saved = [v for v in tf.global_variables() if v.op.name != "global_step"]
        copy = lowering.copy_masters_to_slices()
        session = tf.Session(config=session_config(network.mesh))
        tf.train.Saver(saved).restore(session, f"{case['folder']}/ours/model.ckpt-0")
        session.run(copy)

    def run(features):
        given = {inputs[name]: value for name, value in features.items()}
        return session.run(outputs["best_labels"], given)

    return run


if __name__ == "__main__":
    protocol.serve(build)
