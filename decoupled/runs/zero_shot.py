"""Answers of a fine-tuned model in many languages, from one graph and one session."""

import itertools
import os
import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from decoupled.core import gfile
from decoupled.data.array_input_fn import evaluation_input_fn, longest_first
from decoupled.runs.evaluation import Part, evaluation_lengths, predict_parts
from decoupled.runs.task_data import Features, TaskData
from decoupled.training.graph import GraphConfig
from decoupled.training.model_fn import RunSpec


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
    graph: GraphConfig,
    run: RunSpec,
    data: TaskData,
    wanted: list[tuple[str, str]],
) -> Iterator[Answers]:
    """Answers of the newest checkpoint in `run.model_dir`.

    Args:
      graph, run: what answers. data: of the task.
      wanted: splits and languages.

    Yields:
      the answers to one file, in the order of `wanted`; the next file is read and
      tokenised meanwhile.
    """
    waiting: queue.Queue[Features | None] = queue.Queue()
    files = _load_ahead(data, wanted)
    sets: Iterable[Features] = iter(waiting.get, None)
    if not run.feeds_itself:
        # All batches are written before the first prediction, and so the features of
        # all files are in memory at once.
        loaded = list(files)
        files, sets = iter(loaded), [data.for_graph(f.features) for f in loaded]
    # The file in use; none after the last one.
    current = [next(files)]
    lengths = _lengths(graph, run, current[0].features, len(wanted))

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
            # The graph's own thread waits for more.
            waiting.put(None)

    batch_size = run.training.eval_batch_size
    input_fn = evaluation_input_fn(sets, batch_size, lengths, run.evaluation_batches)
    try:
        for _, outputs in predict_parts(graph, run, input_fn, parts(), lengths):
            split, language, examples, features = current[0]
            answers = data.task.answers(examples, features, outputs)
            yield Answers(split, language, examples, answers)
    finally:
        if run.evaluation_batches is not None:
            _remove_batches(run.evaluation_batches)


def _remove_batches(path):
    """Removes the file of batches, and its folder where it holds no others."""
    if gfile.exists(path):
        gfile.remove(path)
    folder = os.path.dirname(path)
    if gfile.isdir(folder) and not gfile.listdir(folder):
        gfile.rmtree(folder)


def _lengths(graph, run, features, count):
    """The lengths of the graph; () on a TPU, whose programs have one shape."""
    if run.tpu is not None:
        return ()
    sizes = features["input_mask"].sum(1)
    return evaluation_lengths(graph, sizes, run.training.eval_batch_size, count)


def _load_ahead(data: TaskData, wanted: list[tuple[str, str]]) -> Iterable[_Loaded]:
    """Loads a file while the one before is in use.

    In a thread of its own also because this one is inside a graph as long as
    predictions come, where a data set cannot be read.
    """

    def load(split, language):
        examples = data.examples(split, language)
        return _Loaded(
            split, language, examples, data.features(split, language, examples)
        )

    return _ahead(load, wanted)


def _ahead(call: Callable, arguments: list[tuple]) -> Iterator[Any]:
    """Results of calls in order, each made while the one before is in use."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        pending = [pool.submit(call, *given) for given in arguments[:1]]
        for following in [*arguments[1:], None]:
            result = pending.pop().result()
            if following is not None:
                pending.append(pool.submit(call, *following))
            yield result
