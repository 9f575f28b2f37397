"""Pre-training with the softmax in blocks of the vocabulary: equal to that with whole
logits, on every mesh, whatever becomes of the table's gradient."""

import dataclasses
import functools

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.tasks.mlm import MaskedLM
from tests.helpers import (
    MASKING,
    SESSION_CONFIG,
    adamw,
    masked_lm_features,
    tiny_model,
)
from tests.ops.simd_on_cpu import run_compiled
from tests.training.runs import (
    BODY,
    BOTH_AXES,
    DATA_AXIS,
    MODEL_AXIS,
    ONE_DEVICE,
    Steps,
    assert_equal_values,
    build_evaluation,
    graph_config,
    largest_difference,
    run_steps,
)

STEPS = 4
WHOLE = 48
COUPLED = tiny_model(num_layers=1, coupled=True, output_embedding_size=8)
LOW_RANK = tiny_model(num_layers=1, output_embedding_rank=6)
ADAFACTOR = adamw(name="adafactor", weight_decay=0.0, beta1=0.0)
# "head" trains the head alone, in graphs of half the size.
CASES = {
    "all:1": {},
    "head": {"frozen": BODY},
    "head, m:2": {"frozen": BODY, "mesh": MODEL_AXIS},
    "head, 2 microbatches": {"frozen": BODY, "accumulation": 2},
    "d:2": {"mesh": DATA_AXIS},
    "d:2;m:2": {"mesh": BOTH_AXES},
    "coupled": {"model": COUPLED},
    "coupled, d:2;m:2": {"model": COUPLED, "mesh": BOTH_AXES},
    "low rank": {"model": LOW_RANK, "frozen": BODY},
    "low rank, m:2": {"model": LOW_RANK, "frozen": BODY, "mesh": MODEL_AXIS},
    "adafactor": {"optimizer": ADAFACTOR},
    "slices of bfloat16": {
        "mesh": dataclasses.replace(ONE_DEVICE, slice_dtype="bfloat16")
    },
    "activations of bfloat16": {
        "frozen": BODY,
        "mesh": dataclasses.replace(ONE_DEVICE, activation_dtype="bfloat16"),
    },
}


def config_of(case, block_size, smoothing=0.1, **changes):
    changes = {"model": tiny_model(num_layers=1), **CASES[case], **changes}
    task = MaskedLM(MASKING, label_smoothing=smoothing, softmax_block_size=block_size)
    return graph_config(task=task, **changes)


@pytest.fixture(autouse=True)
def everything_in_blocks(monkeypatch):
    """Blocks of 16 and of 8 pieces in each of two partitions of the table."""
    monkeypatch.setattr("decoupled.ops.row_partitions._PARTITION_ELEMENTS", 500)
    where = "decoupled.ops.linear_cross_entropy"
    for name, value in (("_SMALLEST", 1), ("_BLOCK", 1), ("_FEWEST_ROWS", 16)):
        monkeypatch.setattr(f"{where}.{name}", value)
    for name in ("_NORM_SHARE", "_NORM_SHARE_IF_SET"):
        monkeypatch.setattr(f"{where}.{name}", 1e9)
    monkeypatch.setattr(f"{where}._NARROW", 0)


@functools.cache
def steps_of(case, block_size):
    """The graph of a case, built once for all tests of this file.

    `everything_in_blocks` is in force in each, so that they build the same graph.
    """
    return Steps(config_of(case, block_size))


@functools.cache
def trained(case, block_size):
    """What `Steps.run` gives after STEPS from initial weights."""
    return steps_of(case, block_size).run(STEPS)


def alone(case):
    """The same case on one device and not in microbatches."""
    name = case.split(", ")[0]
    return "all:1" if ":" in name else name


def assert_equal_training(found, expected, tolerance=1e-5, without=()):
    one, other = (
        {name: value for name, value in run[0].items() if name not in without}
        for run in (found, expected)
    )
    difference, where = largest_difference(one, other)
    assert difference < tolerance, where
    np.testing.assert_allclose(found[1], expected[1], rtol=tolerance)
    np.testing.assert_allclose(found[2], expected[2], rtol=tolerance)


# "all:1" shows what "head" does, and these are one split more or less than another. As
# in microbatches, Adafactor and bfloat16 slices take the table's gradient whole.
SLOW = {
    "head", "d:2;m:2", "d:2", "coupled, d:2;m:2", "low rank, m:2", "adafactor",
    "slices of bfloat16",
}  # fmt: skip


def cases(names, slow):
    return [
        pytest.param(name, marks=[pytest.mark.slow] if name in slow else [])
        for name in names
    ]


@pytest.mark.parametrize("case", cases(CASES, SLOW))
def test_blocks_that_are_computed_again(case):
    expected, found = trained(alone(case), WHOLE), trained(case, 16)
    # Rounded to bfloat16, weights differ by one step where they differ. Adding the same
    # to all keys changes no attention, so the gradient of their bias is rounding alone,
    # and Adafactor makes updates of one size of whatever there is.
    keys = "bert/encoder/layer_0/attention/self/key/bias"
    assert_equal_training(
        found, expected, 1e-2 if "bfloat16" in case else 1e-5,
        without={name for name in found[0] if case == "adafactor" and keys in name},
    )  # fmt: skip


@pytest.mark.parametrize(
    "case",
    cases(
        ["all:1", "d:2;m:2", "coupled", "head, 2 microbatches"],
        {"d:2;m:2", "head, 2 microbatches"},
    ),
)
def test_blocks_that_are_kept(case):
    assert_equal_training(trained(case, 0), trained(case, WHOLE))


@pytest.mark.parametrize("block_size", [0, 16])
@pytest.mark.parametrize(
    "case", cases(["all:1", "head, m:2", "low rank"], {"low rank"})
)
def test_partitions_of_the_gradient_that_wait_for_the_update(
    case, block_size, monkeypatch
):
    """The norm is computed from the gradient itself, one partition at a time."""
    for name in ("_NORM_SHARE", "_NORM_SHARE_IF_SET"):
        monkeypatch.setattr(f"decoupled.ops.linear_cross_entropy.{name}", 0.0)
    found = Steps(config_of(case, block_size)).run(STEPS)
    assert_equal_training(found, trained(alone(case), WHOLE))


@pytest.mark.parametrize("case", cases(["all:1", "coupled"], {"coupled"}))
def test_the_program_of_a_tpu(case):
    """Compiled by XLA, with the vocabulary split over an axis of one core; whole logits
    are this host's, which test_simd.py compares with XLA's. The head alone is trained,
    if it has a table of its own."""
    changes = {
        "mesh": dataclasses.replace(MODEL_AXIS, mesh_shape="m:1"),
        "frozen": () if case == "coupled" else BODY,
    }
    features = masked_lm_features()
    whole, blocks = (config_of(case, size, **changes) for size in (WHOLE, 16))
    expected, expected_losses, _ = run_steps(whole, STEPS, [features])
    losses, found = run_compiled(blocks, features, STEPS)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    difference, where = largest_difference({n: found[n] for n in expected}, expected)
    assert difference < 1e-5, where


@pytest.mark.parametrize("block_size", [0, 16])
@pytest.mark.parametrize("case", cases(["all:1", "d:2;m:2"], {"d:2;m:2"}))
def test_runs_repeat_bit_by_bit(case, block_size):
    first, losses, norms = trained(case, block_size)
    for _ in range(2):
        again = steps_of(case, block_size).run(STEPS)
        assert_equal_values(again[0], first)
        np.testing.assert_array_equal(again[1], losses)
        np.testing.assert_array_equal(again[2], norms)


@pytest.mark.parametrize("case", cases(["all:1", "coupled", "low rank"], {"coupled"}))
def test_evaluation_reports_the_same(case):
    def evaluate(block_size):
        with tf.Graph().as_default(), tf.Session(config=SESSION_CONFIG) as session:
            features = {n: tf.constant(v) for n, v in masked_lm_features().items()}
            lowered = build_evaluation(config_of(case, block_size).network, features)
            session.run(tf.global_variables_initializer())
            return session.run((lowered.sums, lowered.predictions))

    sums, predictions = evaluate(WHOLE)
    for found in (evaluate(0), evaluate(16)):
        for name, value in sums.items():
            assert found[0][name] == pytest.approx(value, rel=1e-6)
        for name, value in predictions.items():
            np.testing.assert_allclose(found[1][name], value, rtol=1e-6)
