"""The shape of a fine-tuning run's batches: packed, grouped by length, or padded.

The shape depends on the whole run, and not on the step where it resumes. Packed and
grouped batches have different orders of the examples, and that of packed batches
depends on their shape. So a run that resumes keeps way and order of its first start,
even if its mesh or its number of microbatches has changed.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.configs import FinetuningConfig, TrainingConfig
from decoupled.core import files
from decoupled.core.errors import UserError
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


class Begun(NamedTuple):
    """How a run began to make batches.

    way: one of `WAYS`. order: of packed batches, `Packing.order`; None if a version
    that did not write it began the run: its batches do not exchange examples.
    """

    way: str
    order: Rows | None


# A file in the run's folder: {"way": one of `WAYS`}, and of packed batches the shape on
# which their order depends, {"count": rows, "length": tokens of a row}.
BATCHES = "batches.json"


def write_begun(folder: str, begun: Begun) -> None:
    """Writes `BATCHES` into the folder of a run."""
    rows = begun.order._asdict() if begun.order else {}
    files.write_json(os.path.join(folder, BATCHES), {"way": begun.way, **rows})


def read_begun(folder: str) -> Begun | None:
    """What `write_begun` wrote; None if a version without this file began the run.

    Raises:
      UserError: naming the file, if it holds something else.
    """
    path = os.path.join(folder, BATCHES)
    if not files.exists(path):
        return None
    held = files.read_json(path)
    held = held if isinstance(held, dict) else {}
    anew = "delete the run's folder to train anew"
    if held.get("way") not in WAYS:
        known = ", ".join(f'"{way}"' for way in WAYS)
        raise UserError(f'{path}: "way" is not one of {known}; {anew}')
    if held["way"] != PACKED or not held.keys() & set(Rows._fields):
        return Begun(held["way"], None)
    rows = [held.get(name) for name in Rows._fields]
    if not all(type(value) is int and value > 0 for value in rows):
        raise UserError(
            f'{path}: "count" and "length" are not positive integers; {anew}'
        )
    return Begun(held["way"], Rows(*rows))


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

    @property
    def begun(self) -> Begun:
        """What a later start of the run needs to know."""
        return Begun(self.way, self.packing.order if self.packing else None)


def choose_shape(
    graph: TrainingGraph,
    config: FinetuningConfig,
    sizes: np.ndarray,
    run: RunSpec,
    graphs: int,
    begun: Begun | None = None,
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
      begun: of the run's first start; None at that start.

    Raises:
      UserError: `begun` is of other examples.
    """
    training, task = run.training, graph.network.task
    batch_size = training.batch_size
    lengths, most = (), float(task.sequence_length * batch_size)
    goes_on_packed = begun is not None and begun.way == PACKED
    if config.group_by_length and not goes_on_packed:
        longest = longest_rows(graph, sizes, training)
        # Batches are made ahead, including some after the last step.
        reachable = np.append(longest, sizes.max())
        lengths = training_lengths(graph, reachable, batch_size, graphs)
        most = mean_tokens(longest, lengths, batch_size)
    unpacked = BatchShape(task, lengths, None)
    if config.pack_sequences and (begun is None or goes_on_packed):
        made_for = _order_of(begun, sizes, run) if goes_on_packed else None
        packing = plan_for(graph, sizes, training, run.tpu is not None, made_for)
        tokens = packing.rows * packing.length
        if goes_on_packed or tokens < most:
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


def _order_of(begun: Begun, sizes: np.ndarray, run: RunSpec) -> Rows:
    """The shape on which the order of a packed run depends; see `choose_shape`."""
    # With a row for each example, no batch exchanges examples.
    order = begun.order or Rows(run.training.batch_size, int(sizes.max()))
    if order.length < sizes.max():
        raise UserError(
            f"{os.path.join(run.model_dir, BATCHES)}: the longest example has "
            f'{sizes.max()} tokens, more than its "length", {order.length}; delete the '
            "run's folder to train anew"
        )
    return order


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
    graph: TrainingGraph,
    sizes: np.ndarray,
    training: TrainingConfig,
    on_tpu: bool,
    made_for: Rows | None = None,
) -> Packing:
    """The cheapest shape of packed batches into which all batches of a run fit.

    Args:
      graph, sizes: see `choose_shape`. training: the run's batches.
      on_tpu: whether it is on a TPU.
      made_for: see `Packing`.
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
        made_for,
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
