"""Worker: words to tags in the graph with which this project evaluates."""

import json
import pathlib
from collections.abc import Callable, Sequence

import numpy as np
import protocol

from decoupled.configs import MeshConfig, ModelConfig
from decoupled.core.compat import tf
from decoupled.data.array_input_fn import evaluation_batches
from decoupled.data.packing import Packing, plan_rows, unpack
from decoupled.data.vocabulary import open_vocabulary
from decoupled.runs.evaluation import prediction_packing
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.tagging_files import TaggedSentence
from decoupled.training.graph import Network, build_predictions
from decoupled.training.mesh import session_config

Run = Callable[[dict], np.ndarray]


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case is that of `benchmarks/tagging.py`."""
    folder = pathlib.Path(case["folder"])
    words = json.loads((folder / "words.json").read_text(encoding="utf-8"))
    sentences = [TaggedSentence(sentence, None) for sentence in words]
    vocabulary = open_vocabulary(str(folder / "pieces.model"))
    task = task_of(TASKS[case["task"]], "", case["sequence_length"])
    network = Network(
        task.network(dropout=0.0, label_smoothing=0.0),
        ModelConfig(**case["model"]),
        MeshConfig(**case["mesh"]),
    )
    sizes = task.features(vocabulary, sentences)["input_mask"].sum(1)
    packing = prediction_packing(network, case["batch"], sizes)
    network = network._replace(task=network.task.packed(packing.examples))
    run = _graph(case, network, packing, task.graph_features)

    def step():
        features = task.features(vocabulary, sentences)
        arrays = {name: features[name] for name in task.graph_features}
        sizes = features["input_mask"].sum(1)
        plan = plan_rows(sizes, packing.length, packing.examples)
        batches = evaluation_batches([(arrays, plan)], packing)
        rows = [{"best_labels": row} for batch in batches for row in run(batch)]
        outputs = unpack(rows[: len(plan)], plan, sizes, True, case["sequence_length"])
        tags = task.answers(sentences, features, outputs)
        return checksum(tags, task.labels)

    return step, {
        "versions": protocol.versions("decoupled", "tensorflow", "mesh-tensorflow"),
    }


def checksum(tags: list[list[str]], labels: list[str]) -> float:
    """Equal where all tags are."""
    flat = [labels.index(tag) for sentence in tags for tag in sentence]
    return float(np.dot(flat, np.arange(1, len(flat) + 1)))


def _graph(case: dict, network: Network, packing: Packing, names: Sequence[str]) -> Run:
    """Gives the labels of a batch, int32 [rows, length]."""
    with tf.Graph().as_default():
        shape = [packing.rows, packing.length]
        names = (*names, "position_ids")
        inputs = {name: tf.placeholder(tf.int32, shape) for name in names}
        outputs, lowering = build_predictions(network, inputs)
        saved = [v for v in tf.global_variables() if v.op.name != "global_step"]
        copy = lowering.copy_masters_to_slices()
        session = tf.Session(config=session_config(network.mesh))
        tf.train.Saver(saved).restore(session, f"{case['folder']}/ours/model.ckpt-0")
        session.run(copy)

    def run(features):
        feed = {inputs[name]: value for name, value in features.items()}
        return session.run(outputs["best_labels"], feed)

    return run


if __name__ == "__main__":
    protocol.serve(build)
