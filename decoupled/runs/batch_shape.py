"""The shape of a fine-tuning run's packed batches.

It depends on the whole run, and not on the step where the run resumes. The order of the
examples depends on the shape, so a run that resumes keeps the order of its first start,
even if its mesh or its number of microbatches has changed.
"""

import itertools
import os

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.array_input_fn import training_order
from decoupled.data.packing import Packing, Rows, plan_packing
from decoupled.training.graph import TrainingGraph
from decoupled.training.loop import Run
from decoupled.training.mesh import length_step, rows_multiple

# A file in the run's folder: {"way": "packed"} and the shape on which the order of the
# examples depends, {"count": rows, "length": tokens of a row}.
BATCHES = "batches.json"
_PACKED = "packed"
# The cost of a token in training besides matrix products, in FLOPs of a forward pass.
# In small models this is most of the time.
_FLOPS_BESIDE_PRODUCTS = 1e7
# The cost of a score of attention besides matrix products, in the same unit: an
# estimate. XNLI's tokens took as long in rows of 88 as in rows of 128, within 3%.
_FLOPS_OF_A_SCORE = 500


def write_order(folder: str, order: Rows) -> None:
    """Writes `BATCHES` into the folder of a run."""
    files.write_json(os.path.join(folder, BATCHES), {"way": _PACKED, **order._asdict()})


def read_order(folder: str) -> Rows:
    """What `write_order` wrote at the first start of the run in `folder`."""
    path = os.path.join(folder, BATCHES)
    advice = "delete the run's folder to train anew"
    record = files.read_json(path) if files.exists(path) else {"way": "padded"}
    record = record if isinstance(record, dict) else {}
    if record.get("way") != _PACKED:
        raise UserError(
            f"{path}: the run began with batches that are not packed, which is the "
            f"one way now; finish it with the version that began it, or {advice}"
        )
    rows = [record.get(name) for name in Rows._fields]
    if not all(type(value) is int and value > 0 for value in rows):
        raise UserError(
            f'{path}: "count" and "length" are not positive integers; {advice}'
        )
    return Rows(*rows)


def plan_batches(
    graph: TrainingGraph, sizes: np.ndarray, run: Run, order: Rows | None = None
) -> Packing:
    """The cheapest shape into which all batches of a run fit; says which it is.

    `sizes` are the tokens of each example. `order` is `read_order` of a run that goes
    on; None at its first start.
    """
    network, training = graph.network, graph.training
    max_length, batch_size = int(sizes.max()), training.batch_size
    if order and order.length < max_length:
        raise UserError(
            f"{os.path.join(run.model_dir, BATCHES)}: the longest example has "
            f'{max_length} tokens, more than its "length", {order.length}; delete the '
            "run's folder to train anew"
        )

    def batches(rows: Rows):
        endless_order = training_order(batch_size, training.seed, 0, sizes, rows)
        for places in itertools.islice(endless_order, graph.schedule.train_steps):
            yield sizes[places]

    packing = plan_packing(
        batches,
        graph.schedule.train_steps,
        batch_size,
        max_length,
        length_step(network.mesh, run.on_tpu),
        rows_multiple(network.mesh, training.gradient_accumulation),
        lambda length: _token_cost(network.model, length),
        order,
    )
    real_share = sizes.mean() * batch_size / (packing.rows * packing.length)
    run.say(
        f"batches of {batch_size} examples packed into {packing.rows} rows of "
        f"{packing.length} tokens, {real_share:.0%} of them real"
    )
    return packing


def _token_cost(model: ModelConfig, length: int) -> float:
    """The cost of a token in a row of `length` tokens, in FLOPs of a forward pass."""
    weights = 4 * model.hidden_size + 2 * model.intermediate_size + 2 * length
    products = 2 * model.num_layers * model.hidden_size * weights
    scores = model.num_layers * model.num_heads * length
    return products + _FLOPS_BESIDE_PRODUCTS + scores * _FLOPS_OF_A_SCORE
