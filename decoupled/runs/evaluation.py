"""Predictions of a checkpoint for several data sets, from one graph and one session.

Building a mesh graph for each of 100 languages would take longer than evaluating them.
"""

import collections
import contextlib
import functools
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import MeshConfig
from decoupled.core.errors import Terminated
from decoupled.core.processes import handled
from decoupled.data.array_input_fn import evaluation_input_fn
from decoupled.data.packing import Packing, plan_rows, unpack
from decoupled.runs.task_data import Features, TaskData
from decoupled.training.graph import Network
from decoupled.training.loop import Run, predict
from decoupled.training.mesh import length_step, split_rows

# Tokens of the shortest examples, on average: a packed row holds no more examples.
_SHORTEST_EXAMPLE = 8


def dtype_settings(mesh: MeshConfig) -> dict[str, str]:
    """The settings of a mesh on which predictions depend, without those that a run
    keeps (`run_folder.claim`)."""
    names = ("activation_dtype", "slice_dtype")
    return {f"MeshConfig.{name}": getattr(mesh, name) for name in names}


def ends_with_a_line(evaluation: Callable) -> Callable:
    """The function, in which SIGTERM raises `Terminated`; see `endings`.

    In training it saves first. Elsewhere it ends the process without a word.
    """

    @functools.wraps(evaluation)
    def evaluate(*arguments, **options):
        with handled(_end, [signal.SIGTERM]):
            return evaluation(*arguments, **options)

    return evaluate


def _end(number, frame):
    raise Terminated("SIGTERM: in an evaluation; run again to repeat it")


class AnsweredFile(NamedTuple):
    """The examples of a file, and the task's answer to each."""

    split: str
    language: str
    examples: list[Any]
    answers: list[Any]


class _LoadedFile(NamedTuple):
    split: str
    language: str
    examples: list[Any]
    features: Features

    @property
    def sizes(self) -> np.ndarray:
        """Tokens of each window."""
        return self.features["input_mask"].sum(1)

    def plan(self, packing: Packing) -> list[list[int]]:
        """The windows of each packed row."""
        return plan_rows(self.sizes, packing.length, packing.examples)


class FilesAhead:
    """The files of an evaluation, each loaded while the one before is in use.

    The caller and the input pipeline read from it, and each of them waits for the
    loading alone. If the pipeline waited for the caller, it could not end while the
    caller closes the session, which waits for the pipeline.

    Loading uses another thread also because the calling thread is inside a graph while
    it gets predictions, and data sets cannot be read there. `load` is called with each
    of `names`, in order.
    """

    def __init__(self, load: Callable[..., Any], names: Sequence[tuple]):
        self._load, self._names = load, names
        self._pool = ThreadPoolExecutor(max_workers=1)
        self._lock = threading.Lock()
        self._futures: list[Future | None] = []

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError(index)
        with self._lock:
            for number in range(len(self._futures), min(index + 2, len(self))):
                future = self._pool.submit(self._load, *self._names[number])
                self._futures.append(future)
            future = self._futures[index]
        return future.result()

    def forget(self, index: int) -> None:
        self._futures[index] = None

    def close(self) -> None:
        """Ends the thread after the file that it loads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def answer_languages(
    network: Network,
    run: Run,
    batch_size: int,
    data: TaskData,
    names: list[tuple[str, str]],
    checkpoint: str | None = None,
) -> Iterator[AnsweredFile]:
    """Yields the answers of a checkpoint of the run, by default the newest, to each
    file.

    The files have splits and languages. The next one is read and tokenised while one is
    answered. A batch has about `batch_size` examples.
    """
    on_tpu = run.on_tpu

    def load(split, language):
        examples = data.examples(split, language)
        features = data.features(split, language, examples)
        return _LoadedFile(split, language, examples, features)

    with contextlib.closing(FilesAhead(load, names)) as loaded_files:
        sizes = loaded_files[0].features["input_mask"].sum(1)
        packing = prediction_packing(network, batch_size, sizes, on_tpu)
        network = network._replace(task=network.task.packed(packing.examples))
        input_fn = evaluation_input_fn(_feed(loaded_files, data, packing), packing)
        rows = predict(network, run, batch_size, input_fn, checkpoint)
        yield from _answer_files(network.task, rows, data, loaded_files, packing)


def prediction_packing(
    network: Network, batch_size: int, sizes: np.ndarray, on_tpu: bool = False
) -> Packing:
    """The shape of the batches of a network that predicts, about `batch_size` examples
    in each. `sizes` are the tokens of each example of the first file."""
    step = length_step(network.mesh, on_tpu)
    length = -(-network.task.sequence_length // step) * step
    rows = -(-batch_size * int(sizes.sum()) // (len(sizes) * length))
    rows = split_rows(network.mesh, rows)
    return Packing(rows, length, -(-length // _SHORTEST_EXAMPLE), steps=0)


def _answer_files(task, rows, data, loaded_files, packing):
    with contextlib.closing(rows):
        for number, file in enumerate(loaded_files):
            plan = file.plan(packing)
            outputs = unpack(
                list(itertools.islice(rows, len(plan))),
                plan,
                file.sizes,
                task.predicts_tokens,
                task.sequence_length,
            )
            answers = data.task.answers(file.examples, file.features, outputs)
            yield AnsweredFile(file.split, file.language, file.examples, answers)
            loaded_files.forget(number)
        # TPUEstimator adds a last batch to a TPU's program. If nobody read this batch,
        # the session would close while the program runs.
        collections.deque(rows, maxlen=0)


def _feed(
    loaded_files: FilesAhead, data: TaskData, packing: Packing
) -> Iterator[tuple[Features, list[list[int]]]]:
    for index in range(len(loaded_files)):
        try:
            file = loaded_files[index]
        except BaseException:
            # The caller meets the same error in its own thread, and shows it.
            return
        yield data.for_graph(file.features), file.plan(packing)
