"""Training on packed rows: the steps of padded rows, in one shape and for less."""

import dataclasses

import numpy as np
import pytest

from decoupled.data.packing import Packing, pack, pack_batch
from decoupled.tasks.classification import Regression
from tests.helpers import adamw
from tests.training.runs import (
    ONE_DEVICE,
    graph_config,
)
from tests.training.test_lengths import BATCH, LENGTH, mesh
from tests.training.test_training_lengths import (
    PAIRS,
    SPANS,
    TASKS,
    Steps,
    assert_a_killed_run_goes_on,
    assert_same_steps,
    features,
)

NUMBERS = Regression("numbers", LENGTH, 0.0)
# Any example of `features` fits; the mesh can split rows and length.
PACKING = Packing(4, 24, 4, steps=14)
FOUR = mesh("d:2;m:2", "batch:d;vocab:m;heads:m;intermediate:m")
SPLIT_SEQUENCE = mesh("s:2", "sequence:s")
SPLIT_MEMORY = mesh("d:2;s:2", "batch:d;memory:s")
CASES = {
    "plain": {},
    "four devices": dict(mesh=FOUR),
    "split sequences": dict(mesh=SPLIT_SEQUENCE),
    "split memory": dict(mesh=SPLIT_MEMORY),
    "microbatches": dict(accumulation=2),
    "gradient checkpointing": dict(recompute_layers=True),
    "one-hot": dict(mesh=dataclasses.replace(ONE_DEVICE, embedding_lookup="one_hot")),
}


def padded_batches(task):
    """Two batches of full length, of examples of 3 to 20 tokens."""
    if task is not NUMBERS:
        own = features(task)
    else:
        own = dict(features(PAIRS))
        own["targets"] = own.pop("label_ids").astype(np.float32) - 0.7
    order = np.argsort(-own["input_mask"].sum(1), kind="stable")
    chosen = (order[[0, 5, 11, 17]], order[[4, 6, 9, 16]])
    return [{name: array[rows] for name, array in own.items()} for rows in chosen]


def packed_like(batches):
    packed = [pack_batch(batch, PACKING) for batch in batches]
    # Rows do hold several examples.
    assert all(
        len(pack(batch["input_mask"].sum(1), PACKING.length)) < BATCH
        for batch in batches
    )
    return packed


@pytest.mark.parametrize(
    "kind, case",
    [
        ("tags", "plain"),
        ("pairs", "plain"),
        ("spans", "plain"),
        ("numbers", "plain"),
        ("pairs", "split sequences"),
        ("spans", "microbatches"),
        pytest.param("pairs", "gradient checkpointing", marks=pytest.mark.slow),
        pytest.param("tags", "one-hot", marks=pytest.mark.slow),
        pytest.param("tags", "four devices", marks=pytest.mark.slow),
        pytest.param("spans", "four devices", marks=pytest.mark.slow),
        pytest.param("spans", "split sequences", marks=pytest.mark.slow),
        pytest.param("pairs", "split memory", marks=pytest.mark.slow),
        pytest.param("pairs", "microbatches", marks=pytest.mark.slow),
    ],
)
def test_packing_changes_no_step(kind, case):
    """Neither losses nor gradients: no example sees another one of its row."""
    task = {**TASKS, "numbers": NUMBERS}[kind]
    settings = {"optimizer": adamw(clip_norm=0.0), **CASES[case]}
    own = padded_batches(task)
    config = graph_config(task=task, **settings)
    padded = Steps(config, own, (LENGTH,))
    config = graph_config(task=task.packed(PACKING.examples), **settings)
    packed = Steps(config, packed_like(own), (PACKING.length,))

    assert_same_steps(packed, padded)


def test_a_killed_packed_run_goes_on_with_the_losses_of_an_undisturbed_one(tmp_path):
    task = SPANS.packed(PACKING.examples)
    assert_a_killed_run_goes_on(tmp_path, task, (PACKING.length,), PACKING)
