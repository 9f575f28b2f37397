"""Worker: words to tags in the graph with which this project evaluates."""

import json
import pathlib
from collections.abc import Callable

import numpy as np
import protocol

from decoupled.compat import tf
from decoupled.configs import MeshConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from decoupled.data.vocabulary import Vocabulary
from decoupled.tasks.tagged_sentences import TaggedSentence
from decoupled.tasks.tagging_task import TaggingTask
from decoupled.training.graph import GraphConfig, build_graph
from decoupled.training.mesh import session_config

UNUSED = OptimizerConfig("adamw", 1e-4, 0.0, 0.9, 0.999, 1e-6, 0.0)

Run = Callable[[dict], np.ndarray]


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case is that of `benchmarks/tagging_case.py` and "lengths": one graph for
    each, a row goes to the shortest that it fits into."""
    folder = pathlib.Path(case["folder"])
    words = json.loads((folder / "words.json").read_text(encoding="utf-8"))
    sentences = [TaggedSentence(own, None) for own in words]
    vocabulary = Vocabulary(str(folder / "pieces.model"))
    task = TaggingTask(case["task"], case["sequence_length"])

    graphs = {length: _graph(case, length) for length in case["lengths"]}

    def step():
        features = task.features(vocabulary, sentences)
        sizes = features["input_mask"].sum(1)
        best = np.zeros_like(features["label_ids"])
        below = 0
        for length, run in graphs.items():
            rows = np.flatnonzero((sizes > below) & (sizes <= length))
            for start in range(0, len(rows), case["batch"]):
                part = rows[start : start + case["batch"]]
                best[part, :length] = run(
                    {n: features[n][part, :length] for n in task.graph_features}
                )
            below = length
        tags = task.answers(sentences, features, {"best_labels": best})
        return checksum(tags, task.labels)

    return step, {
        "versions": protocol.versions("decoupled", "tensorflow", "mesh-tensorflow"),
    }


def checksum(tags: list[list[str]], labels: list[str]) -> float:
    """Equal where all tags are."""
    flat = [labels.index(tag) for own in tags for tag in own]
    return float(np.dot(flat, np.arange(1, len(flat) + 1)))


def _graph(case: dict, length: int) -> Run:
    """Runs rows, at most a batch, of this length."""
    task = TaggingTask(case["task"], length)
    config = GraphConfig(
        task=task.network(dropout=0.0, label_smoothing=0.0),
        model=ModelConfig(**case["model"]),
        mesh=MeshConfig(**case["mesh"]),
        optimizer=UNUSED,
        schedule=ScheduleConfig(train_steps=1, warmup_steps=0, decay="constant"),
        accumulation=1,
        seed=0,
        frozen=(),
    )
    with tf.Graph().as_default():
        shape = [case["batch"], length]
        inputs = {name: tf.placeholder(tf.int32, shape) for name in task.graph_features}
        lowered = build_graph(config, inputs, training=False)
        saved = [v for v in tf.global_variables() if v.op.name != "global_step"]
        copy = lowered.lowering.copy_masters_to_slices()
        session = tf.Session(config=session_config(config.mesh))
        tf.train.Saver(saved).restore(session, f"{case['folder']}/ours/model.ckpt-0")
        session.run(copy)

    def run(features):
        count = len(features["word_starts"])
        missing = [(0, case["batch"] - count), (0, 0)]
        given = {inputs[name]: np.pad(v, missing) for name, v in features.items()}
        return session.run(lowered.predictions["best_labels"], given)[:count]

    return run


if __name__ == "__main__":
    protocol.serve(build)
