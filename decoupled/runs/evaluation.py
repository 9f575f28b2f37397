"""Metrics per language from one pass over several data sets.

One graph and one session serve all languages: with a mesh graph to build for each of
100 languages, the building would take longer than the evaluation.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core import files
from decoupled.training.estimator import predict
from decoupled.training.graph import GraphConfig
from decoupled.training.lengths import choose_lengths, tokens_while_building
from decoupled.training.mesh import length_step
from decoupled.training.model_fn import RunSpec


def finished_results(path: str, step: int) -> dict | None:
    """The results in a JSON file, if they are those of checkpoint `step`."""
    if not files.exists(path):
        return None
    results = files.read_json(path)
    return results if results.get("global_step") == step else None


class Part(NamedTuple):
    """One data set of an evaluation, e.g. a language.

    examples: without padding. order: int [examples], which example each row is, where
    rows come in another order than that of the data set.
    """

    name: str
    examples: int
    order: np.ndarray | None = None


def evaluation_lengths(
    graph: GraphConfig, sizes: np.ndarray, batch_size: int, count: int
) -> tuple[int, ...]:
    """The lengths of the graph that evaluates some files, as batches of like rows.

    Args:
      graph: what evaluates.
      sizes: int [rows], tokens of each row of the first file. The others are taken to
        be like it, but may hold rows of any length.
      batch_size: rows that run together. count: of files.

    Returns:
      Lengths, ascending. One alone where more would not pay.
    """
    longest = graph.task.sequence_length
    # Of each batch the longest row.
    batches = np.sort(sizes)[::-1][::batch_size]
    if count > 1:
        batches = np.append(batches, longest)
    cost = tokens_while_building(graph.model) / (batch_size * count)
    return tuple(choose_lengths(batches, longest, cost, length_step(graph.mesh)))


def predict_parts(
    graph: GraphConfig,
    run: RunSpec,
    input_fn: Callable,
    parts: Iterable[Part],
    lengths: Sequence[int] = (),
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Predictions of the newest checkpoint for each part, without the padding.

    Args:
      graph, run: what is evaluated.
      input_fn: gives the batches of all parts in order, each part's last one padded.
      parts: their names and sizes; each is read when the one before is done.
      lengths: that batches may have; none where all have the task's.

    Yields:
      (name, prediction name -> array [examples, ...]).
    """
    rows = predict(graph, run, input_fn, lengths)
    batch = run.training.eval_batch_size
    for part in parts:
        padded = -(-part.examples // batch) * batch
        own = [next(rows) for _ in range(padded)][: part.examples]
        if part.order is not None:
            own = [own[place] for place in np.argsort(part.order)]
        yield part.name, {key: np.stack([row[key] for row in own]) for key in own[0]}
    # A TPU's program ends with a batch that TPUEstimator adds. If nobody read it, the
    # session would close while the program runs.
    collections.deque(rows, maxlen=0)
