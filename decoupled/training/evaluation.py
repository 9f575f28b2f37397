"""Metrics per language from one pass over several data sets.

One graph and one session serve all languages: with a mesh graph to build for each of
100 languages, the building would take longer than the evaluation.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from decoupled.compat import tf
from decoupled.training.estimator import predict
from decoupled.training.graph import GraphConfig
from decoupled.training.model_fn import RunSpec


class Part(NamedTuple):
    """One data set of an evaluation.

    name: e.g. a language. input_fn: gives its batches once, the last one padded.
    examples: without the padding.
    """

    name: str
    input_fn: Callable
    examples: int


def predict_parts(
    graph: GraphConfig, run: RunSpec, parts: list[Part]
) -> Iterable[tuple[str, dict[str, np.ndarray]]]:
    """Predictions of the newest checkpoint for each part, without the padding.

    Yields:
      (name, prediction name -> array [examples, ...]) in the order of `parts`.
    """

    def input_fn(params=None):
        dataset = None
        for part in parts:
            own = part.input_fn(params)
            dataset = own if dataset is None else dataset.concatenate(own)
        return dataset

    rows = predict(graph, run, input_fn)
    batch = run.training.eval_batch_size
    for part in parts:
        padded = -(-part.examples // batch) * batch
        own = [next(rows) for _ in range(padded)][: part.examples]
        yield part.name, {key: np.stack([row[key] for row in own]) for key in own[0]}


def write_scalars(folder: str, step: int, scalars: dict[str, Any]) -> None:
    """Adds scalars to an event file in `folder`, for TensorBoard."""
    values = [
        tf.Summary.Value(tag=name, simple_value=float(value))
        for name, value in scalars.items()
    ]
    # The writer refuses to work where TensorFlow runs eagerly.
    with tf.Graph().as_default():
        writer = tf.summary.FileWriter(folder)
    writer.add_summary(tf.Summary(value=values), step)
    writer.close()
