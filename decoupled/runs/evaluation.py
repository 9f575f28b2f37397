"""Predictions of a checkpoint for several data sets, from one graph and one session.

Building a mesh graph for each of 100 languages would take longer than evaluating them.
"""

import collections
import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
    batch = spec.batch_size
    with contextlib.closing(predict(network, spec, input_fn, lengths)) as rows:
        for part in parts:
            padded = -(-part.examples // batch) * batch
            own = [next(rows) for _ in range(padded)][: part.examples]
            if part.order is not None:
                own = [own[place] for place in np.argsort(part.order)]
            found = {key: np.stack([row[key] for row in own]) for key in own[0]}
            yield part.name, found
        # TPUEstimator adds a last batch to a TPU's program. If nobody read this batch,
        # the session would close while the program runs.
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


class FilesAhead:
    """The files of an evaluation, each loaded while the one before is in use.

    The caller and the input pipeline read from it, and each of them waits for the
    loading alone. If the pipeline waited for the caller, it could not end while the
    caller closes the session, which waits for the pipeline.

    Loading uses another thread also because the calling thread is inside a graph while
    it gets predictions, and data sets cannot be read there.

    Args:
      load: called with each of `wanted`. wanted: its arguments, in order.
    """

    def __init__(self, load: Callable[..., Any], wanted: Sequence[tuple]):
        self._load, self._wanted = load, wanted
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._lock = threading.Lock()
        self._futures: list[Future | None] = []

    def __len__(self) -> int:
        return len(self._wanted)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError(index)
        with self._lock:
            for number in range(len(self._futures), min(index + 2, len(self))):
                future = self._pool.submit(self._load, *self._wanted[number])
                self._futures.append(future)
            future = self._futures[index]
        return future.result()

    def forget(self, index: int) -> None:
        """Frees the memory of a file that is no longer needed."""
        self._futures[index] = None

    def close(self) -> None:
        """Ends the thread after the file that it loads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _feed(loaded: FilesAhead, data: TaskData) -> Iterator[Features]:
    """The features of all files, for the input pipeline."""
    for index in range(len(loaded)):
        try:
            features = loaded[index].features
        except Exception:
            # The caller meets the same error in its own thread, and shows it.
            return
        yield data.for_graph(features)


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

    def load(split, language):
        examples = data.examples(split, language)
        return _Loaded(
            split, language, examples, data.features(split, language, examples)
        )

    with contextlib.closing(FilesAhead(load, wanted)) as loaded:
        yield from _answers(network, spec, data, loaded)


def _answers(network, spec, data, loaded):
    sets: Iterable[Features] = _feed(loaded, data)
    if not spec.feeds_itself:
        # All batches are written before the first prediction, so that the features of
        # all files are in memory at once.
        sets = [data.for_graph(file.features) for file in loaded]
    lengths = _lengths(network, spec, loaded[0].features, len(loaded))
    # The number of the file that is answered.
    current = 0

    def parts():
        nonlocal current
        for current, (split, language, _, features) in enumerate(loaded):
            order = longest_first(features["input_mask"]) if lengths else None
            rows = len(features["example_index"])
            yield Part(f"{split}/{language}", rows, order)
            loaded.forget(current)

    recorded = spec.recorded_batches
    input_fn = evaluation_input_fn(sets, spec.batch_size, lengths, recorded)
    predictions = predict_parts(network, spec, input_fn, parts(), lengths)
    try:
        with contextlib.closing(predictions):
            for _, outputs in predictions:
                split, language, examples, features = loaded[current]
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
