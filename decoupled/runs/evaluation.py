"""Predictions of a checkpoint for several data sets, from one graph and one session.

Building a mesh graph for each of 100 languages would take longer than evaluating them.
"""

import collections
import itertools
import os
import queue
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import gfile
from decoupled.data.array_input_fn import evaluation_input_fn, longest_first
from decoupled.runs.task_data import Features, TaskData
from decoupled.training.estimator import predict
from decoupled.training.lengths import choose_lengths, tokens_while_building
from decoupled.training.mesh import length_step
from decoupled.training.model_fn import PredictionSpec
from decoupled.training.network import Network


class Part(NamedTuple):
    """One data set of an evaluation, e.g. a language.

    examples: their number, without padding. order: int [examples], the example of each
    row, if rows do not come in the order of the data set.
    """

    name: str
    examples: int
    order: np.ndarray | None = None


def evaluation_lengths(
    network: Network, sizes: np.ndarray, batch_size: int, count: int
) -> tuple[int, ...]:
    """The lengths of the graph that evaluates some files with length bucketing.

    Args:
      network: what evaluates.
      sizes: int [rows], tokens of each row of the first file. The other files are
        assumed to have similar lengths, but may contain rows of any length.
      batch_size: rows that run together. count: of files.

    Returns:
      Lengths, ascending. One length if more would not pay.
    """
    longest = network.task.sequence_length
    # The longest row of each batch.
    batches = np.sort(sizes)[::-1][::batch_size]
    if count > 1:
        batches = np.append(batches, longest)
    cost = tokens_while_building(network.model) / (batch_size * count)
    return tuple(choose_lengths(batches, longest, cost, length_step(network.mesh)))


def predict_parts(
    network: Network,
    spec: PredictionSpec,
    input_fn: Callable,
    parts: Iterable[Part],
    lengths: Sequence[int] = (),
) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Predictions of the newest checkpoint for each part, without the padding.

    Args:
      network, spec: what predicts and where.
      input_fn: gives the batches of all parts in order, each part's last one padded.
      parts: their names and sizes; each is read when the one before is done.
      lengths: of batches; empty if all batches have the task's length.

    Yields:
      (name, prediction name -> array [examples, ...]).
    """
    rows = predict(network, spec, input_fn, lengths)
    batch = spec.batch_size
    for part in parts:
        padded = -(-part.examples // batch) * batch
        own = [next(rows) for _ in range(padded)][: part.examples]
        if part.order is not None:
            own = [own[place] for place in np.argsort(part.order)]
        yield part.name, {key: np.stack([row[key] for row in own]) for key in own[0]}
    # TPUEstimator adds a last batch to a TPU's program. If nobody read this batch, the
    # session would close while the program runs.
    collections.deque(rows, maxlen=0)


class Answers(NamedTuple):
    """The examples of a file, and the task's answer to each."""

    split: str
    language: str
    examples: list[Any]
    answers: list[Any]


class _Loaded(NamedTuple):
    split: str
    language: str
    examples: list[Any]
    features: Features


def answer_languages(
    network: Network,
    spec: PredictionSpec,
    data: TaskData,
    wanted: list[tuple[str, str]],
) -> Iterator[Answers]:
    """Answers of the newest checkpoint in `spec.model_dir`.

    The next file is read and tokenised while one is answered.

    Args:
      network, spec: what answers and where. data: of the task.
      wanted: splits and languages of the files.

    Yields:
      the answers to each file, in the order of `wanted`.
    """
    waiting: queue.Queue[Features | None] = queue.Queue()
    files = _load_ahead(data, wanted)
    sets: Iterable[Features] = iter(waiting.get, None)
    if not spec.feeds_itself:
        # All batches are written before the first prediction, so that the features of
        # all files are in memory at once.
        loaded = list(files)
        files, sets = iter(loaded), [data.for_graph(f.features) for f in loaded]
    # The file in use; none after the last one.
    current = [next(files)]
    lengths = _lengths(network, spec, current[0].features, len(wanted))

    def parts():
        try:
            while current:
                split, language, _, features = current[0]
                waiting.put(data.for_graph(features))
                order = longest_first(features["input_mask"]) if lengths else None
                rows = len(features["example_index"])
                yield Part(f"{split}/{language}", rows, order)
                current[:] = itertools.islice(files, 1)
        finally:
            # Ends the input pipeline, which waits for another file.
            waiting.put(None)

    recorded = spec.recorded_batches
    input_fn = evaluation_input_fn(sets, spec.batch_size, lengths, recorded)
    try:
        for _, outputs in predict_parts(network, spec, input_fn, parts(), lengths):
            split, language, examples, features = current[0]
            answers = data.task.answers(examples, features, outputs)
            yield Answers(split, language, examples, answers)
    finally:
        if recorded is not None:
            _remove_batches(recorded)


def _remove_batches(path):
    """Removes the file of batches, and its folder if that is empty then."""
    if gfile.exists(path):
        gfile.remove(path)
    folder = os.path.dirname(path)
    if gfile.isdir(folder) and not gfile.listdir(folder):
        gfile.rmtree(folder)


def _lengths(network, spec, features, count):
    """The lengths of the graph; () on a TPU, whose programs have one shape."""
    if spec.tpu is not None:
        return ()
    sizes = features["input_mask"].sum(1)
    return evaluation_lengths(network, sizes, spec.batch_size, count)


def _load_ahead(data: TaskData, wanted: list[tuple[str, str]]) -> Iterable[_Loaded]:
    """Loads each file while the one before is in use.

    It uses another thread also because the calling thread is inside a graph while it
    gets predictions, and data sets cannot be read there.
    """

    def load(split, language):
        examples = data.examples(split, language)
        return _Loaded(
            split, language, examples, data.features(split, language, examples)
        )

    return _ahead(load, wanted)


def _ahead(call: Callable, arguments: list[tuple]) -> Iterator[Any]:
    """Results of calls in order; each is computed while the one before is in use."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        pending = [pool.submit(call, *given) for given in arguments[:1]]
        for following in [*arguments[1:], None]:
            result = pending.pop().result()
            if following is not None:
                pending.append(pool.submit(call, *following))
            yield result
