"""Training in a graph of several lengths: the steps of one long graph, for less."""

import collections
import dataclasses
import functools
import re

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.data.array_input_fn import training_input_fn
from decoupled.ops.row_partitions import saved_variables
from decoupled.tasks.classification import Classification
from decoupled.tasks.qa import ExtractiveQA
from decoupled.training import lengths as lengths_module
from decoupled.training.estimator import train
from decoupled.training.events import read_scalars
from decoupled.training.graph import build_step
from decoupled.training.lengths import training_tokens_per_length
from decoupled.training.mesh import session_config
from tests.helpers import adamw, schedule, tiny_model
from tests.training.runs import (
    BODY,
    ONE_DEVICE,
    assert_equal_values,
    checkpoint_values,
    graph_config,
    run_spec,
)
from tests.training.test_lengths import (
    BATCH,
    LENGTH,
    QUESTIONS,
    TAGS,
    arrays,
    features_of,
    fill,
    mesh,
)

LENGTHS = (8, 16, LENGTH)
PAIRS = Classification("pairs", ("A", "B", "C"), LENGTH, 0.0, 0.1)
SPANS = ExtractiveQA("spans", LENGTH, 0.0, 0.1, any_length=True)
TASKS = {"pairs": PAIRS, "tags": TAGS, "spans": SPANS}
TWO = mesh("m:2", "vocab:m;heads:m;intermediate:m")
FOUR = mesh("d:2;m:2", "batch:d;vocab:m;heads:m;intermediate:m")
SPLIT_SEQUENCE = mesh("d:2;s:2", "batch:d;sequence:s")
DROPOUT = tiny_model(hidden_dropout=0.1, attention_dropout=0.1)
IN_BFLOAT16 = dataclasses.replace(
    ONE_DEVICE, activation_dtype="bfloat16", slice_dtype="bfloat16"
)


def features(task, rows=18):
    """Rows of all lengths from 3 up."""
    found = arrays(rows)
    if task is SPANS:
        return found[QUESTIONS]
    if task is PAIRS:
        labels = found[TAGS]["label_ids"][:, 0]
        names = ("input_word_ids", "input_mask", "input_type_ids")
        return {**{n: found[TAGS][n] for n in names}, "label_ids": labels}
    return found[TAGS]


def batches(task):
    """Batches whose longest rows have 20, 16, 7 and 16 tokens, cut to LENGTHS."""
    own = features(task)
    order = np.argsort(-own["input_mask"].sum(1), kind="stable")
    cut = [(order[[0, 5, 9, 17]], LENGTH), (order[[4, 6, 9, 17]], 16)]
    cut += [(order[13:17], 8), (order[[4, 7, 10, 15]], 16)]
    return [features_of(own, rows, length) for rows, length in cut]


class Steps:
    """Some steps of a graph. `losses`, `norms`, `variables`; `executed`, a counter of
    the types of operations that ran in the last step."""

    def __init__(self, config, own, lengths):
        with tf.Graph().as_default():
            step = tf.train.get_or_create_global_step()
            inputs = {
                name: tf.placeholder(
                    value.dtype,
                    [len(value), *[None] * (value.ndim - 1)]
                    if len(lengths) > 1
                    else value.shape,
                )
                for name, value in own[0].items()
            }
            lowered = build_step(config, inputs, lengths=lengths)
            initialize = tf.global_variables_initializer()
            to_slices = lowered.lowering.copy_masters_to_slices()
            to_masters = lowered.lowering.copy_slices_to_masters()
            with tf.control_dependencies([lowered.update]):
                counted = tf.assign_add(step, 1)
            fetched = (counted, lowered.loss, lowered.scalars["gradient_norm"])
            saved = {n: tf.convert_to_tensor(v) for n, v in saved_variables().items()}
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            trace = tf.RunMetadata()
            with tf.Session(config=session_config(config.network.mesh)) as session:
                session.run(initialize)
                session.run(to_slices)
                results = [
                    session.run(
                        fetched,
                        {inputs[k]: v for k, v in batch.items()},
                        options=options,
                        run_metadata=trace,
                    )
                    for batch in own
                ]
                session.run(to_masters)
                self.variables = session.run(saved)
            _, self.losses, self.norms = zip(*results, strict=True)
            labels = [
                node.timeline_label
                for device in trace.step_stats.dev_stats
                for node in device.node_stats
            ]
            # "name = Type(inputs)", oneDNN's types with a prefix
            types = [re.search(r" = (?:_Mkl)?(\w+)\(", label) for label in labels]
            self.executed = collections.Counter(t[1] for t in types if t)


def assert_same_steps(found, expected):
    """Losses, gradient norms and variables of two `Steps` are equal within rounding."""
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-5)
    # Where a gradient is nearly zero, Adam takes its rounding for a direction.
    for name, value in expected.variables.items():
        if "key/bias" not in name and "output_bias" not in name:
            np.testing.assert_allclose(
                found.variables[name], value, atol=1e-4, err_msg=name
            )


CASES = {
    "plain": {},
    "four devices": dict(mesh=FOUR),
    "microbatches": dict(accumulation=2),
    "microbatches on four": dict(accumulation=2, mesh=FOUR),
    "split sequences": dict(mesh=SPLIT_SEQUENCE),
    "adafactor": dict(optimizer=adamw(name="adafactor", weight_decay=0.0, beta1=0.0)),
}


@pytest.mark.parametrize(
    "task, case",
    [
        ("tags", "plain"),
        ("pairs", "plain"),
        ("spans", "microbatches"),
        # Updates are those of any other step: lengths have no part in them.
        pytest.param("pairs", "adafactor", marks=pytest.mark.slow),
        pytest.param("spans", "plain", marks=pytest.mark.slow),
        pytest.param("tags", "four devices", marks=pytest.mark.slow),
        pytest.param("spans", "split sequences", marks=pytest.mark.slow),
        pytest.param("tags", "microbatches on four", marks=pytest.mark.slow),
    ],
)
def test_padding_changes_no_step(task, case):
    config = graph_config(task=TASKS[task], **CASES[case])
    own = batches(TASKS[task])
    padded = [{k: fill(v) for k, v in batch.items()} for batch in own]

    short, long = Steps(config, own, LENGTHS), Steps(config, padded, (LENGTH,))

    assert_same_steps(short, long)


# All settings at once cover each of them alone.
ALONE = {
    "plain": dict(),
    # The head alone, in graphs of half the size; four devices train all.
    "two devices": dict(mesh=TWO, frozen=BODY),
    "gradient checkpointing": dict(recompute_layers=True),
    "microbatches": dict(accumulation=2),
    "four devices": dict(mesh=FOUR),
    "bfloat16": dict(mesh=IN_BFLOAT16),
    "all of them, one device": dict(
        mesh=IN_BFLOAT16, accumulation=2, recompute_layers=True
    ),
}
COVERED = {
    "plain", "gradient checkpointing", "microbatches", "bfloat16", "four devices",
}  # fmt: skip


def cases(names):
    return [
        pytest.param(name, marks=[pytest.mark.slow] if name in COVERED else [])
        for name in names
    ]


@functools.cache
def several_and_alone(case):
    """Two steps of one length, in a graph of several lengths and in one of its own."""
    config = graph_config(task=TAGS, model=DROPOUT, **ALONE[case])
    own = [b for b in batches(TAGS) if b["input_mask"].shape[1] == 16]
    assert len(own) == 2
    # Each length is a graph on every device: two lengths will do.
    lengths = LENGTHS if case == "plain" else LENGTHS[1:]
    return Steps(config, own, lengths), Steps(config, own, (16,))


@pytest.mark.parametrize("case", cases(ALONE))
def test_a_length_trains_as_it_does_alone(case):
    """With dropout, whose masks follow from seed and step, to the last bit."""
    several, alone = several_and_alone(case)

    assert several.losses == alone.losses and several.norms == alone.norms
    assert_equal_values(several.variables, alone.variables)


@pytest.mark.parametrize(
    "case", cases(name for name in ALONE if name != "four devices")
)
def test_of_several_lengths_one_runs(case):
    """Also no masks, no zeros to add gradients to and no casts of weights run."""
    several, alone = several_and_alone(case)

    for kind in (
        "MatMul", "BatchMatMulV2", "StatelessRandomUniformFullIntV2",
        "ReadVariableOp", "ResourceApplyAdam", "UnsortedSegmentSum", "L2Loss",
        "Fill", "Cast", "ZerosLike",
    ):  # fmt: skip
        # In each of the others TensorFlow computes some small constants.
        assert several.executed[kind] <= alone.executed[kind] + 4, kind
    assert alone.executed["MatMul"] > 5


def assert_a_killed_run_goes_on(folder, task, lengths, packing=None):
    """With the losses and weights of an undisturbed run."""
    config = graph_config(
        task=task, model=DROPOUT, schedule=schedule(14, 2), frozen=BODY
    )
    own = features(SPANS, rows=30)

    def from_step(start):
        return training_input_fn(own, BATCH, config.seed, start, lengths, packing)

    def run(name, **more):
        spec = run_spec(folder / name, batch_size=BATCH, save_checkpoints_steps=3)
        train(config, spec, from_step, lengths=lengths, **more)

    class Killed(Exception):
        pass

    def kill():
        raise Killed

    run("straight")
    with pytest.raises(Killed):
        run("killed", every_steps=8, then=kill)
    run("killed")

    losses = [read_scalars(str(folder / n), "loss") for n in ("straight", "killed")]
    assert losses[0] == losses[1] and sorted(losses[0]) == list(range(1, 15))
    assert_equal_values(
        *(checkpoint_values(folder / n) for n in ("straight", "killed"))
    )


def test_a_killed_run_goes_on_with_the_losses_of_an_undisturbed_one(tmp_path):
    assert_a_killed_run_goes_on(tmp_path, SPANS, LENGTHS[1:])


def test_a_length_costs_building_and_a_little_in_every_step(monkeypatch):
    small, large = tiny_model(), tiny_model(num_layers=12)
    once = training_tokens_per_length(large, steps=0, graphs=1)
    assert training_tokens_per_length(large, steps=0, graphs=3) == 3 * once
    assert training_tokens_per_length(large, steps=4000, graphs=1) == 2 * once
    assert training_tokens_per_length(small, steps=0, graphs=1) > once
    # A GPU trains on more tokens in that time.
    monkeypatch.setattr(
        lengths_module.tf.config, "list_physical_devices", lambda kind: [kind]
    )
    assert training_tokens_per_length(large, steps=0, graphs=1) > 10 * once
