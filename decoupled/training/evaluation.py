"""Metrics per language from one pass over several data sets.

One graph and one session serve all languages: with a mesh graph to build for each of
100 languages, the building would take longer than the evaluation.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from decoupled import files
from decoupled.training.estimator import predict
from decoupled.training.graph import GraphConfig
from decoupled.training.model_fn import RunSpec


def finished_results(path: str, step: int) -> dict | None:
    """The results in a JSON file, if they are those of checkpoint `step`."""
    if not files.exists(path):
        return None
    results = files.read_json(path)
    return results if results.get("global_step") == step else None


class Part(NamedTuple):
    """One data set of an evaluation, e.g. a language; `examples` without padding."""

    name: str
    examples: int


def predict_parts(
    graph: GraphConfig, run: RunSpec, input_fn: Callable, parts: Iterable[Part]
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Predictions of the newest checkpoint for each part, without the padding.

    Args:
      graph, run: what is evaluated.
      input_fn: gives the batches of all parts in order, each part's last one padded.
      parts: their names and sizes; each is asked for when the one before is done.

    Yields:
      (name, prediction name -> array [examples, ...]).
    """
    rows = predict(graph, run, input_fn)
    batch = run.training.eval_batch_size
    for part in parts:
        padded = -(-part.examples // batch) * batch
        own = [next(rows) for _ in range(padded)][: part.examples]
        yield part.name, {key: np.stack([row[key] for row in own]) for key in own[0]}
