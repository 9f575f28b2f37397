"""The shape of a fine-tuning run's batches: packed, grouped by length, or padded.

The shape depends on the whole run, and not on the step where it resumes.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from decoupled.configs import FinetuningConfig, TrainingConfig
from decoupled.data.array_input_fn import training_order
from decoupled.data.packing import Packing, plan_packing
from decoupled.tasks.task import Task
from decoupled.training.lengths import (
    choose_lengths,
    packed_token_cost,
    training_tokens_per_length,
)
from decoupled.training.mesh import length_step, rows_multiple
from decoupled.training.model_fn import RunSpec
from decoupled.training.network import TrainingGraph


class BatchShape(NamedTuple):
    """How a run trains on its examples.

    task: that reads the batches.
    lengths: of the graph, ascending; () if all batches have the task's length.
    packing: of packed rows, or None.
    """

    task: Task
    lengths: tuple[int, ...]
    packing: Packing | None


def choose_shape(
    graph: TrainingGraph,
    config: FinetuningConfig,
    sizes: np.ndarray,
    run: RunSpec,
    graphs: int,
) -> BatchShape:
    """The shape that the settings ask for; says which it is.

    Batches are not packed if length bucketing leaves less padding. The number of packed
    rows is a multiple of the parts that mesh and microbatches split them into, and no
    row is shorter than the longest example, so that a few short examples can need more
    packed rows than they fill.

    Args:
      graph: of the run. config: its settings. run: where it trains.
      sizes: int [rows], tokens of each row of the training set.
      graphs: number of graphs that the run builds; it builds one after each evaluation.
    """
    training, task = run.training, graph.network.task
    if config.pack_sequences:
        packing = plan_for(graph, sizes, training, on_tpu=run.tpu is not None)
        tokens = packing.rows * packing.length
        grouped = tokens
        if config.group_by_length:
            grouped = grouped_tokens(graph, sizes, training)
        if tokens <= grouped:
            real = sizes.mean() * training.batch_size / tokens
            run.say(
                f"batches of {training.batch_size} examples packed into {packing.rows} "
                f"rows of {packing.length} tokens, {real:.0%} of them real"
            )
            packed = task.packed(packing.examples)
            return BatchShape(packed, (packing.length,), packing)
        run.say(
            f"batches are not packed: with this mesh and number of microbatches they "
            f"need {packing.rows} rows of {packing.length} tokens; grouped by length, "
            f"a batch has {grouped:.0f} tokens"
        )
    if not config.group_by_length:
        return BatchShape(task, (), None)
    lengths = training_lengths(graph, sizes, training, graphs)
    shown = ", ".join(map(str, lengths))
    run.say(f"batches of like length, padded to {shown} tokens")
    return BatchShape(task, lengths, None)


def training_lengths(
    graph: TrainingGraph, sizes: np.ndarray, training: TrainingConfig, graphs: int
) -> tuple[int, ...]:
    """The lengths of the graph that trains with length bucketing, ascending.

    A short run has few lengths: another length must save more time than its part of the
    graph takes to build.

    Args:
      graph, sizes, graphs: see `choose_shape`. training: the run's batches.
    """
    network = graph.network
    # Batches are made ahead, including some after the last step.
    longest = [rows.max() for rows in _batches(graph, sizes, training)] + [sizes.max()]
    cost = training_tokens_per_length(network.model, graph.schedule.train_steps, graphs)
    limit, step = network.task.sequence_length, length_step(network.mesh)
    chosen = choose_lengths(np.array(longest), limit, cost / training.batch_size, step)
    return tuple(chosen)


def grouped_tokens(
    graph: TrainingGraph, sizes: np.ndarray, training: TrainingConfig
) -> float:
    """Tokens of an average batch with length bucketing, in a graph of all lengths.

    Args:
      graph, sizes: see `choose_shape`. training: the run's batches.
    """
    longest = np.array([rows.max() for rows in _batches(graph, sizes, training)])
    step = length_step(graph.network.mesh)
    return float((-(-longest // step) * step).mean() * training.batch_size)


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
        list(_batches(graph, sizes, training, balanced=True)),
        int(sizes.max()),
        length_step(network.mesh, on_tpu),
        rows_multiple(network.mesh, training.gradient_accumulation),
        lambda length: packed_token_cost(network.model, length),
    )


def _batches(
    graph: TrainingGraph,
    sizes: np.ndarray,
    training: TrainingConfig,
    balanced: bool = False,
) -> Iterator[np.ndarray]:
    """The tokens of the examples of each of a run's batches; see `training_order`."""
    order = training_order(
        len(sizes), training.batch_size, graph.seed, 0, sizes, balanced
    )
    for rows in itertools.islice(order, graph.schedule.train_steps):
        yield sizes[rows]
