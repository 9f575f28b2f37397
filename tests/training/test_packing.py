"""Packed rows: the steps and predictions of padded rows, in one shape and for less."""

import dataclasses

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.data.packing import Packing, pack, pack_batch, plan_rows, unpack
from decoupled.tasks.classification import Classification, Regression
from decoupled.tasks.qa import ExtractiveQA
from decoupled.tasks.tagging import Tagging
from decoupled.training.graph import build_predictions
from decoupled.training.mesh import session_config
from tests.helpers import adamw
from tests.training.runs import (
    BODY,
    ONE_DEVICE,
    graph_config,
    run_steps,
)

LENGTH, BATCH = 20, 4
# Any example of `features` fits; the mesh can split rows and length.
PACKING = Packing(4, 24, 4, steps=14)
TASKS = {
    "tags": Tagging("tags", ("A", "B", "C"), LENGTH, 0.0),
    "pairs": Classification("pairs", ("A", "B", "C"), LENGTH, 0.0),
    "spans": ExtractiveQA("spans", LENGTH, 0.0),
    "numbers": Regression("numbers", LENGTH, 0.0),
}


def mesh(shape, rules):
    return dataclasses.replace(ONE_DEVICE, mesh_shape=shape, layout_rules=rules)


# Gradients flow through all of the model; its tables, its kernels and the head are
# trained, in graphs of half the size.
VECTORS = tuple(
    name for name in BODY if "/kernel" not in name and not name.endswith("_embeddings")
)
CASES = {
    "plain": {},
    "no vectors": dict(frozen=VECTORS),
    "four devices": dict(
        mesh=mesh("d:2;m:2", "batch:d;vocab:m;heads:m;intermediate:m")
    ),
    "split sequences": dict(mesh=mesh("s:2", "sequence:s")),
    "split memory": dict(mesh=mesh("d:2;s:2", "batch:d;memory:s")),
    "microbatches": dict(gradient_accumulation=2),
    "head alone, microbatches": dict(gradient_accumulation=2, frozen=BODY),
    "gradient checkpointing": dict(recompute_layers=True),
    "head alone": dict(frozen=BODY),
}


def features(kind, examples=18):
    """Examples of all lengths from 3 to 20 tokens."""
    generator = np.random.default_rng(0)
    sizes = generator.permutation(np.arange(examples) % (LENGTH - 2) + 3)
    mask = (np.arange(LENGTH) < sizes[:, np.newaxis]).astype(np.int32)

    def integers(high, *shape):
        return generator.integers(0, high, shape).astype(np.int32)

    of_kinds = {
        "tags": {"word_starts": mask, "label_ids": integers(3, examples, LENGTH)},
        "pairs": {"label_ids": integers(3, examples)},
        "spans": {
            f"{end}_positions": integers(3, examples) for end in ("start", "end")
        },
        "numbers": {"targets": integers(3, examples).astype(np.float32) - 0.7},
    }
    return {
        "input_word_ids": integers(48, examples, LENGTH) * mask,
        "input_mask": mask,
        "input_type_ids": integers(2, examples, LENGTH) * mask,
        **of_kinds[kind],
    }


def padded_batches(kind):
    """Two batches of full length."""
    arrays = features(kind)
    order = np.argsort(-arrays["input_mask"].sum(1), kind="stable")
    chosen = (order[[0, 5, 11, 17]], order[[4, 6, 9, 16]])
    return [{name: array[rows] for name, array in arrays.items()} for rows in chosen]


@pytest.mark.parametrize(
    "kind, case",
    [
        ("tags", "head alone"),
        ("pairs", "no vectors"),
        ("spans", "head alone, microbatches"),
        # Read at the first token of each example, as pairs are.
        pytest.param("numbers", "head alone", marks=pytest.mark.slow),
        pytest.param("pairs", "plain", marks=pytest.mark.slow),
        pytest.param("pairs", "split sequences", marks=pytest.mark.slow),
        pytest.param("pairs", "gradient checkpointing", marks=pytest.mark.slow),
        pytest.param("tags", "four devices", marks=pytest.mark.slow),
        pytest.param("spans", "four devices", marks=pytest.mark.slow),
        pytest.param("spans", "split sequences", marks=pytest.mark.slow),
        pytest.param("pairs", "split memory", marks=pytest.mark.slow),
        pytest.param("pairs", "microbatches", marks=pytest.mark.slow),
    ],
)
def test_packing_changes_no_step(kind, case):
    """Neither losses nor gradients: no example sees another one of its row."""
    task = TASKS[kind]
    settings = {"optimizer": adamw(clip_norm=0.0), **CASES[case]}
    padded = padded_batches(kind)
    packed = [pack_batch(batch, PACKING) for batch in padded]
    # Rows do hold several examples.
    for batch in padded:
        assert len(pack(batch["input_mask"].sum(1), PACKING.length)) < BATCH
    expected = run_steps(graph_config(task=task, **settings), 2, padded)
    config = graph_config(task=task.packed(PACKING.examples), **settings)
    variables, *scalars = run_steps(config, 2, packed)
    np.testing.assert_allclose(scalars, expected[1:], rtol=1e-5)
    # Where a gradient is nearly zero, Adam takes its rounding for a direction.
    for name, value in expected[0].items():
        if "key/bias" not in name and "output_bias" not in name:
            np.testing.assert_allclose(variables[name], value, atol=1e-4, err_msg=name)


def predictions(task, batch, placed):
    """Of initial weights, which are the same in every graph."""
    network = graph_config(task=task, mesh=placed).network
    with tf.Graph().as_default():
        inputs = {name: tf.constant(value) for name, value in batch.items()}
        outputs, lowering = build_predictions(network, inputs)
        initialize = tf.global_variables_initializer()
        copy = lowering.copy_masters_to_slices()
        with tf.Session(config=session_config(placed)) as session:
            session.run(initialize)
            session.run(copy)
            return session.run(outputs)


@pytest.mark.parametrize(
    "kind, case",
    [
        ("tags", "plain"),
        ("pairs", "plain"),
        ("spans", "plain"),
        pytest.param("spans", "split sequences", marks=pytest.mark.slow),
        pytest.param("numbers", "plain", marks=pytest.mark.slow),
    ],
)
def test_packing_changes_no_prediction(kind, case):
    task, placed = TASKS[kind], CASES[case].get("mesh", ONE_DEVICE)
    arrays = features(kind)
    sizes = arrays["input_mask"].sum(1)
    plan = plan_rows(sizes, PACKING.length, PACKING.examples)
    packing = PACKING._replace(rows=len(plan))
    packed = task.packed(packing.examples)
    outputs = predictions(packed, pack_batch(arrays, packing), placed)
    rows = [{k: v[row] for k, v in outputs.items()} for row in range(len(plan))]
    unpacked = unpack(rows, plan, sizes, task.predicts_tokens, LENGTH)
    for name, expected in predictions(task, arrays, placed).items():
        assert unpacked[name].shape == expected.shape
        if task.predicts_tokens:
            assert not (unpacked[name] * (1 - arrays["input_mask"])).any()
            expected = expected * arrays["input_mask"]
        np.testing.assert_allclose(unpacked[name], expected, atol=2e-6, err_msg=name)
