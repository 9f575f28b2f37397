"""The TensorFlow graph of a training step: what no comparison of results can show.

A race between an update and a read, or a slow operation, gives the right numbers most
of the time.
"""

import dataclasses
import functools

import pytest

from decoupled.core.compat import tf
from decoupled.model.variables import MASKED_LM, shapes
from tests.helpers import (
    adamw,
    operations_before,
    tiny_model,
)
from tests.training.runs import (
    BODY,
    BUT_TABLES,
    MODEL_AXIS,
    ONE_DEVICE,
    SMALL,
    built_step,
    graph_config,
    tile_everything,
)

# Without clipping, a gradient of its own is all that an update waits for.
CASES = {
    "all:1, not clipped": dict(mesh=ONE_DEVICE, optimizer=adamw(clip_norm=0.0)),
    # Gradients flow through all of the model to its table, which is used twice.
    "all:1, coupled": dict(
        mesh=ONE_DEVICE,
        model=tiny_model(num_layers=1, coupled=True, output_embedding_size=8),
        frozen=tuple(name for name in BODY if not name.endswith("word_embeddings")),
    ),
    # Keys and values are as queries are.
    "m:2, not clipped": dict(
        mesh=MODEL_AXIS,
        optimizer=adamw(clip_norm=0.0),
        model=tiny_model(**SMALL),
        frozen=tuple(name for name in BODY if "/key/" in name or "/value/" in name),
    ),
}


# Of each case: its trained variables, and those of them that are decayed. All are 6
# kernels of a layer, one between E_in and H, one in the head, and four tables.
COUNTS = {
    "all:1, not clipped": (29, 12),
    "all:1, coupled": (6, 2),
    "m:2, not clipped": (19, 8),
}

# Slices of these are float32 always.
VECTORS = tuple(
    name for name, shape in shapes(tiny_model(), MASKED_LM).items() if len(shape) == 1
)

DECAY, UPDATE = "ResourceApplyProximalGradientDescent", "ResourceApplyAdam"


class StepGraph:
    """A built training step. `weights`: the handles of slices that are updated."""

    def __init__(self, **changes):
        fields = {"model": tiny_model(num_layers=1), **changes}
        self.lowered = built_step(graph_config(**fields))
        self.all = operations_before([self.lowered.update])
        self.before_clipping = operations_before(
            [self.lowered.scalars["gradient_norm"].op]
        )
        self.weights = {op.inputs[0].op for op in self.of_type("ResourceApplyAdam")}

    def of_type(self, *types):
        return [operation for operation in self.all if operation.type in types]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("all:1, not clipped", marks=pytest.mark.slow),
        "all:1, coupled",
        "m:2, not clipped",
    ],
)
def step(request):
    step = StepGraph(**CASES[request.param])
    step.counts = COUNTS[request.param]
    return step


def reads_of(handle, operations):
    return [
        operation
        for operation in operations
        if operation.type == "ReadVariableOp" and operation.inputs[0].op is handle
    ]


def test_loss_and_gradients_read_every_weight_once(step):
    """Two reads of one step could be of two different values."""
    assert len({name_of(handle) for handle in step.weights}) == step.counts[0]
    counts = {w.name: len(reads_of(w, step.before_clipping)) for w in step.weights}

    assert {name: n for name, n in counts.items() if n != 1} == {}


def test_no_weight_changes_before_it_was_read(step):
    """Neither by the decay nor by the update itself."""
    changes = step.of_type(DECAY, UPDATE)
    assert {op.type for op in changes} == {DECAY, UPDATE}
    for change in changes:
        (read,) = reads_of(change.inputs[0].op, step.before_clipping)
        assert read in operations_before([change]), change.name


@pytest.mark.parametrize(
    "mesh", [ONE_DEVICE, pytest.param(MODEL_AXIS, marks=pytest.mark.slow)]
)
def test_no_compiled_update_comes_before_its_weight_was_read(mesh, monkeypatch):
    monkeypatch.setattr("decoupled.ops.kernels._LARGE", 1)
    narrow = dataclasses.replace(mesh, activation_dtype="bfloat16")
    step = StepGraph(mesh=narrow, optimizer=adamw(clip_norm=0.0), frozen=VECTORS)
    updates = {op.inputs[0].op: op for op in step.of_type("StatefulPartitionedCall")}
    # The six kernels of the layer and others.
    assert len({name_of(handle) for handle in updates}) > 6
    for handle, update in updates.items():
        (read,) = reads_of(handle, step.before_clipping)
        assert read in operations_before([update]), handle.name


def test_no_weight_changes_before_the_last_microbatch():
    step = StepGraph(
        mesh=ONE_DEVICE,
        gradient_accumulation=2,
        optimizer=adamw(clip_norm=0.0),
        frozen=BODY,
    )
    changes = step.of_type(DECAY, UPDATE)
    # The table, a kernel and four vectors.
    assert len(changes) == 2 * 2 + 4
    for change in changes:
        kinds = {operation.type for operation in operations_before([change])}
        assert kinds & {"While", "StatelessWhile"}, change.name


def test_the_decay_comes_before_the_update(step):
    decays = {op.inputs[0].op: op for op in step.of_type(DECAY)}
    updates = {op.inputs[0].op: op for op in step.of_type(UPDATE)}
    assert len({name_of(handle) for handle in decays}) == step.counts[1]
    for handle, decay in decays.items():
        assert decay in operations_before([updates[handle]]), decay.name


def name_of(handle):
    return handle.name.rpartition("_slice_")[0] or handle.name


def test_weights_stay_where_they_are(step):
    """An assignment would give a weight another buffer in every step."""
    assigned = {op.inputs[0].op for op in step.of_type("AssignVariableOp")}

    assert assigned & step.weights == set()


@pytest.mark.parametrize("coupled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_bfloat16_weights_are_written_after_all_reads_and_one_by_one(coupled):
    """What an update computes with is there for one weight at a time."""
    step = StepGraph(
        mesh=dataclasses.replace(ONE_DEVICE, slice_dtype="bfloat16"),
        model=tiny_model(num_layers=1, coupled=coupled, output_embedding_size=8),
        optimizer=adamw(clip_norm=0.0),
        frozen=VECTORS,
    )
    all_writes = step.of_type("AssignVariableOp")
    for write in all_writes:
        reads = set(reads_of(write.inputs[0].op, step.all))
        assert reads <= operations_before([write]), write.name
    # Those of weights, without moments: as many as there are decays with float32.
    writes = [op for op in all_writes if op.get_attr("dtype") == tf.bfloat16]
    assert len(writes) == (11 if coupled else 12)
    before = [operations_before([write]) for write in writes]
    counts = sorted(
        sum(write in operations for write in writes) for operations in before
    )
    assert counts == list(range(1, len(writes) + 1))


@functools.cache
def tiled(mesh, clip_norm):
    """A step of the head with its table in partitions, a few rows at a time."""
    with pytest.MonkeyPatch.context() as patch:
        tile_everything(patch)
        return StepGraph(mesh=mesh, optimizer=adamw(clip_norm=clip_norm), frozen=BODY)


# Of two devices without clipping, where an update waits for the least.
@pytest.mark.parametrize(
    "mesh, clip_norm",
    [(ONE_DEVICE, 1.0), (MODEL_AXIS, 0.0)],
    ids=["all:1", "m:2, not clipped"],
)
def test_partitions_change_after_all_that_reads_them(mesh, clip_norm):
    """They would be copied first while something holds what it read, in memory that
    is not there for the whole table."""
    step = tiled(mesh, clip_norm)
    changes = [
        operation
        for operation in step.of_type(DECAY, UPDATE)
        if "output_embedding" in operation.inputs[0].op.name
    ]
    # Five partitions of the table, or two of each half; a decay and an update for each.
    partitions = 4 if mesh is MODEL_AXIS else 5
    assert len(changes) == 2 * partitions
    assert len({change.inputs[0].op for change in changes}) == partitions
    for change in changes:
        before = operations_before([change])
        (read,) = reads_of(change.inputs[0].op, step.before_clipping)
        used = {op for op in users_of(read) if op in step.all}
        # Forward, and backward to what the table is multiplied with.
        assert len({op for op in used if "MatMul" in op.type}) == 2
        assert used <= before, change.name


def users_of(read):
    """What reads a variable's buffer: also through what gives it on as it is."""
    users, waiting = set(), [read]
    while waiting:
        for tensor in waiting.pop().outputs:
            for operation in tensor.consumers():
                users.add(operation)
                if operation.type in ("Identity", "Reshape", "Slice"):
                    waiting.append(operation)
    return users


def test_the_output_embeddings_gradient_is_never_whole(monkeypatch):
    """120,000 x 768 numbers that nobody needs at once; of a coupled model's they are a
    sum, which is."""
    tile_everything(monkeypatch)

    def matrices(step):
        return [
            operation
            for operation in step.of_type("MatMul")
            if operation.outputs[0].shape.as_list() == [48, 24]
        ]

    assert matrices(tiled(ONE_DEVICE, 1.0)) == []
    coupled = tiny_model(
        num_layers=1, coupled=True, output_embedding_size=24, input_embedding_size=24
    )
    step = StepGraph(mesh=ONE_DEVICE, model=coupled, frozen=BUT_TABLES)
    assert len(matrices(step)) == 1
