"""Metrics per language from one pass over several data sets.

One graph and one session serve all languages: with a mesh graph to build for each of
100 languages, the building would take longer than the evaluation.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from decoupled.compat import tf
from decoupled.training.estimator import predict
from decoupled.training.graph import GraphConfig
from decoupled.training.model_fn import RunSpec


class Part(NamedTuple):
    """One data set of an evaluation, e.g. a language; `examples` without padding."""

    name: str
    examples: int


def predict_parts(
    graph: GraphConfig, run: RunSpec, input_fn: Callable, parts: list[Part]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Predictions of the newest checkpoint for each part, without the padding.

    Args:
      graph, run: what is evaluated.
      input_fn: gives the batches of all parts in order, each part's last one padded.
      parts: their names and sizes.

    Yields:
      (name, prediction name -> array [examples, ...]).
    """
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


def read_scalars(folder: str, tag: str) -> dict[int, float]:
    """step -> value of one scalar, from all event files directly in `folder`.

    Where a run was resumed, later files win.
    """
    values = {}
    for path in sorted(tf.io.gfile.glob(f"{folder}/events.out.tfevents.*")):
        for event in tf.train.summary_iterator(path):
            for value in event.summary.value:
                if value.tag == tag:
                    values[event.step] = value.simple_value
    return values
