"""The shape of a fine-tuning run's batches: packed, grouped by length, or padded.

The shape depends on the whole run, and not on the step where it resumes. Packed and
grouped batches have different orders of the examples. So a run that resumes keeps the
way of its first start, even if its mesh or its number of microbatches has changed.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.configs import FinetuningConfig, TrainingConfig
from decoupled.data.array_input_fn import training_order
from decoupled.data.packing import Packing, Rows, plan_packing
from decoupled.tasks.task import Task
from decoupled.training.lengths import (
    choose_lengths,
    packed_token_cost,
    training_tokens_per_length,
)
from decoupled.training.mesh import length_step, rows_multiple
from decoupled.training.model_fn import RunSpec
from decoupled.training.network import TrainingGraph

# The ways to make batches.
PACKED, GROUPED, PADDED = "packed", "grouped by length", "padded"
WAYS = (PACKED, GROUPED, PADDED)


class BatchShape(NamedTuple):
    """How a run trains on its examples.

    task: that reads the batches.
    lengths: of the graph, ascending; () if all batches have the task's length.
    packing: of packed rows, or None.
    """

    task: Task
    lengths: tuple[int, ...]
    packing: Packing | None

    @property
    def way(self) -> str:
        """One of `WAYS`."""
        if self.packing:
            return PACKED
        return GROUPED if self.lengths else PADDED


def choose_shape(
    graph: TrainingGraph,
    config: FinetuningConfig,
    sizes: np.ndarray,
    run: RunSpec,
    graphs: int,
    begun: str | None = None,
) -> BatchShape:
    """The shape that the settings ask for; says which it is.

    Batches are not packed if that saves no tokens. No packed row is shorter than the
    longest example, and the number of rows is a multiple of the parts that mesh and
    microbatches split them into, so that a few short examples can need more packed rows
    than they fill.

    Args:
      graph: of the run. config: its settings. run: where it trains.
      sizes: int [rows], tokens of each row of the training set.
      graphs: number of graphs that the run builds; it builds one after each evaluation.
      begun: the way of the run's first start, one of `WAYS`; None at that start.
    """
    training, task = run.training, graph.network.task
    batch_size = training.batch_size
    lengths, most = (), float(task.sequence_length * batch_size)
    if config.group_by_length and begun != PACKED:
        longest = longest_rows(graph, sizes, training)
        # Batches are made ahead, including some after the last step.
        reachable = np.append(longest, sizes.max())
        lengths = training_lengths(graph, reachable, batch_size, graphs)
        most = mean_tokens(longest, lengths, batch_size)
    unpacked = BatchShape(task, lengths, None)
    if config.pack_sequences and begun in (None, PACKED):
        on_tpu = run.tpu is not None
        packing = plan_for(graph, sizes, training, on_tpu)
        tokens = packing.rows * packing.length
        if begun == PACKED or tokens < most or (lengths and tokens == most):
            real = sizes.mean() * batch_size / tokens
            run.say(
                f"batches of {batch_size} examples packed into {packing.rows} "
                f"rows of {packing.length} tokens, {real:.0%} of them real"
            )
            packed = task.packed(packing.examples)
            return BatchShape(packed, (packing.length,), packing)
        parts = rows_multiple(graph.network.mesh, training.gradient_accumulation)
        multiple = f", a multiple of {parts} for mesh and microbatches," * (parts > 1)
        run.say(
            f"batches are not packed: they would need {packing.rows} rows{multiple} of "
            f"{packing.length} tokens, as no row is shorter than the longest example; "
            f"{unpacked.way}, a batch has {most:.0f} tokens"
        )
    if lengths:
        shown = ", ".join(map(str, lengths))
        run.say(f"batches of like length, padded to {shown} tokens")
    return unpacked


def longest_rows(
    graph: TrainingGraph, sizes: np.ndarray, training: TrainingConfig
) -> np.ndarray:
    """int [steps], tokens of the longest row of each of a run's batches, if these are
    not packed. graph, sizes: see `choose_shape`. training: the run's batches."""
    batches = _batches(graph, sizes, training)
    return np.array([rows.max() for rows in batches])


def training_lengths(
    graph: TrainingGraph, longest: np.ndarray, batch_size: int, graphs: int
) -> tuple[int, ...]:
    """The lengths of the graph that trains with length bucketing, ascending.

    A short run has few lengths: another length must save more time than its part of the
    graph takes to build.

    Args:
      graph, graphs: see `choose_shape`. longest: int, of each batch that the graph may
        get, the tokens of its longest row. batch_size: rows of a batch.
    """
    network = graph.network
    cost = training_tokens_per_length(network.model, graph.schedule.train_steps, graphs)
    limit, step = network.task.sequence_length, length_step(network.mesh)
    return tuple(choose_lengths(longest, limit, cost / batch_size, step))


def mean_tokens(longest: np.ndarray, lengths: Sequence[int], batch_size: int) -> float:
    """Tokens of an average batch with length bucketing, padding included.

    Args:
      longest: from `longest_rows`. lengths: that batches are padded to, ascending.
      batch_size: rows of a batch.
    """
    padded = np.array(lengths)[np.searchsorted(lengths, longest)]
    return float(padded.mean() * batch_size)


def plan_for(
    graph: TrainingGraph, sizes: np.ndarray, training: TrainingConfig, on_tpu: bool
) -> Packing:
    """The cheapest shape of packed batches into which all batches of a run fit.

    Args:
      graph, sizes: see `choose_shape`. training: the run's batches.
      on_tpu: whether it is on a TPU.
    """
    network = graph.network
    return plan_packing(
        lambda rows: _batches(graph, sizes, training, rows),
        graph.schedule.train_steps,
        training.batch_size,
        int(sizes.max()),
        length_step(network.mesh, on_tpu),
        rows_multiple(network.mesh, training.gradient_accumulation),
        lambda length: packed_token_cost(network.model, length),
    )


def _batches(
    graph: TrainingGraph,
    sizes: np.ndarray,
    training: TrainingConfig,
    packed: Rows | None = None,
) -> Iterator[np.ndarray]:
    """The tokens of the examples of each of a run's batches; see `training_order`."""
    order = training_order(
        len(sizes), training.batch_size, graph.seed, 0, sizes, packed
    )
    for rows in itertools.islice(order, graph.schedule.train_steps):
        yield sizes[rows]
