"""What the real TPUEstimator builds for slices that are only described."""

import dataclasses
import functools

import pytest
from tensorflow.python.framework import kernels

from decoupled.configs import MeshConfig
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.tasks.classification import Classification
from decoupled.tasks.qa import ExtractiveQA
from decoupled.tasks.tagging import Tagging
from decoupled.training.loop import StepHook
from tests.exports.models import pretrained_weights, write_checkpoint
from tests.helpers import MASKING, constant_input_fn, masked_lm_features, tiny_model
from tests.training.described_tpu import build
from tests.training.runs import (
    BODY,
    BUT_TABLES,
    SMALL,
    graph_config,
    head_features,
)

LENGTH, BATCH = MASKING.sequence_length, 8
RULES = "batch:data;vocab:model;heads:model;intermediate:model"
HEADS = {
    "classification": Classification("topics", ("a", "b"), LENGTH, 0.1),
    "tagging": Tagging("tags", ("A", "B", "C"), LENGTH, 0.1),
    "questions": ExtractiveQA("questions", LENGTH, 0.1),
}
# What TPUEstimator itself adds, which only a TPU's own compiler knows, and nodes that
# the program's boundary is made of.
OF_A_TPU = {
    "CrossReplicaSum", "AllToAll", "CollectivePermute", "InfeedDequeueTuple",
    "OutfeedEnqueueTuple", "TPUReplicateMetadata", "TPUReplicatedInput",
    "TPUReplicatedOutput", "TPUCompilationResult",
}  # fmt: skip
# Version 1 control flow, which TensorFlow makes functional before it compiles.
CONTROL_FLOW = {"Enter", "Exit", "NextIteration", "Merge", "Switch", "LoopCond"}


def mesh(cores, slices="float32"):
    shape = f"data:{cores // 2};model:2"
    return MeshConfig(shape, RULES, "bfloat16", slices, 128)


def config(cores=8, slices="float32", **changes):
    # Few variables; the tables differ in their shapes, and so share no stack.
    sizes = {**SMALL, "output_embedding_size": 24}
    model = tiny_model(hidden_dropout=0.1, attention_dropout=0.1, **sizes)
    return graph_config(**{"model": model, "mesh": mesh(cores, slices), **changes})


def input_of(mode, features):
    return constant_input_fn(features, repeat=mode == "train")


def pretraining_features(rows=BATCH):
    """What hosts send of a batch: the ids, and the masked positions."""
    features = masked_lm_features(rows)
    return {
        name: features[name]
        for name in features
        if name not in ("input_mask", "input_type_ids")
    }


def built_train(folder, graph=None, rows=BATCH, **more):
    features = pretraining_features(rows)
    return build(
        "train", graph or config(), input_of("train", features), folder, **more
    )


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    return built_train(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def four_hosts(tmp_path_factory):
    """Training of the head on a slice of 16 cores."""
    described = dict(slice_type="v5litepod-16", hosts=4, batch_size=32)
    folder = tmp_path_factory.mktemp("four_hosts")
    return built_train(folder, config(16, frozen=BODY), rows=32, **described)


@pytest.fixture(scope="module")
def other_settings(tmp_path_factory):
    """Training of bfloat16 slices in microbatches, with gradient checkpointing, on a
    slice of four cores. Gradients flow through all of the model to its two tables."""
    settings = dict(gradient_accumulation=2, recompute_layers=True)
    graph = config(4, "bfloat16", frozen=BUT_TABLES, **settings)
    folder = tmp_path_factory.mktemp("other_settings")
    return built_train(folder, graph, slice_type="v4-8")


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """The checkpoint of another run, which fine-tuning starts from."""
    prefix = str(tmp_path_factory.mktemp("first") / "model.ckpt")
    return write_checkpoint(prefix, pretrained_weights(config().network.model), 1)


@functools.cache
def compiles(name):
    """Whether XLA has a kernel for a type of operation, by its registry.

    XLA's kernels for CPUs stand for a TPU's: most are registered for all devices at
    once. What a TPU alone refuses stays unseen.
    """
    if name in OF_A_TPU or name in CONTROL_FLOW or name == "VarHandleOp":
        return True
    return any(
        kernel.device_type == "XLA_CPU_JIT"
        for kernel in kernels.get_registered_kernels_for_op(name).kernel
    )


@pytest.fixture(scope="module")
def xla():
    """XLA's kernels are registered with the first program that it compiles."""
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.xla.experimental.compile(lambda: tf.ones([2]) + 1.0))


def test_the_registry_knows_what_xla_cannot_compile(xla):
    assert compiles("Einsum")
    assert not compiles("StringJoin")
    assert not compiles("PyFunc")


@pytest.mark.parametrize(
    "mode, name",
    [
        ("train", "pretraining"),
        ("predict", "tagging"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("predict", "pretraining"),
                ("train", "classification"),
                ("train", "tagging"),
                ("train", "questions"),
                ("predict", "classification"),
                ("predict", "questions"),
            )
        ),
    ],
)
def test_every_task_and_mode_is_built_and_all_hooks_begin(
    mode, name, tmp_path, xla, training, pretrained
):
    task = HEADS.get(name)
    if (mode, task) == ("train", None):
        program = training
    else:
        # Pre-training trains the body: here the head alone, in graphs of half the size.
        changes = {"task": task, "frozen": BODY} if task else {}
        features = head_features(task) if task else pretraining_features()
        program = build(
            mode, config(**changes), input_of(mode, features), tmp_path,
            init_checkpoint=pretrained,
        )  # fmt: skip
    assert mtf.MtfRestoreHook in [type(hook) for hook in program.hooks]
    # All slices are in the outer graph: 8 of every stack, and of its moments.
    names = {op.name.rpartition("_slice_")[0] for op in program.slices()}
    assert len(program.slices()) == 8 * len(names)
    assert any("/adam_m" in name for name in names) == (mode == "train")
    assert "bert/embeddings/word_embeddings" in names
    assert not [name for name in program.program_types() if not compiles(name)]
    assert "While" not in program.program_types()


@pytest.mark.parametrize("rules", ["", "labels:model"])
def test_a_layout_that_splits_nothing_is_refused_by_name(rules, tmp_path):
    """TPUEstimator's own message would be "CrossShardOptimizer must be used"."""
    nothing = dataclasses.replace(mesh(8), mesh_shape="model:8", layout_rules=rules)
    with pytest.raises(UserError, match="^MeshConfig.layout_rules: .* 8 processors"):
        built_train(tmp_path, config(mesh=nothing, frozen=BODY))


def test_hosts_get_the_features_once_and_give_back_scalars(training):
    (received,) = training.operations("InfeedDequeueTuple")
    (sent,) = training.operations("OutfeedEnqueueTuple")
    shapes = [t.shape.as_list() for t in received.outputs]
    wide, predicted = [BATCH, LENGTH], [BATCH, MASKING.max_predictions]
    # The mask and the types of the tokens are computed from the ids.
    assert sorted(shapes) == sorted([wide] + [predicted] * 3)
    scalars = ("loss", "masked_lm_accuracy", "gradient_norm", "learning_rate")
    assert [t.shape.as_list() for t in sent.inputs] == [[1]] * (1 + len(scalars))


def test_the_program_reduces_over_the_mesh_and_updates_each_stack_once(training):
    types = training.program_types()
    assert {"CrossReplicaSum", "Einsum"} <= set(types)
    # One assignment of each, and that of the global step. The MLIR bridge has none of
    # some of the operations that update a variable in a way of their own.
    stacks = len(training.slices()) // 8
    assert types["AssignVariableOp"] == stacks
    assert types["AssignAddVariableOp"] == 1
    assert not [t for t in types if t.startswith(("ResourceApply", "ResourceScatter"))]
    # Input and output of files stay with the hosts.
    assert not {"SaveV2", "RestoreV2", "Assert"} & set(types)


def test_no_slice_is_a_variable_that_is_saved(training):
    names = [v.op.name for v in training.graph.get_collection("variables")]
    assert "bert/embeddings/word_embeddings" in names
    assert not [name for name in names if "_slice_" in name]


def test_no_hook_saves_what_the_cores_have_not_copied_back(training):
    kinds = [type(hook).__name__ for hook in training.hooks]
    assert "GracefulShutdownHook" not in kinds
    (saver,) = [h for h in training.hooks if isinstance(h, StepHook)]
    # A step whose loss is NaN ends the run before it is saved.
    assert kinds.index("NanTensorHook") < training.hooks.index(saver)


def test_control_flow_is_as_before_when_a_program_is_built(training):
    assert tf.control_flow_v2_enabled()


@pytest.mark.parametrize(
    "built, cores, hosts", [("four_hosts", 16, 4), ("other_settings", 4, 1)]
)
def test_slices_of_several_hosts_and_of_other_generations(built, cores, hosts, request):
    program = request.getfixturevalue(built)
    devices = {op.device for op in program.slices()}
    assert len(devices) == cores
    tasks = {tf.DeviceSpec.from_string(device).task for device in devices}
    assert len(tasks) == hosts
    saved = [v for v in program.graph.get_collection("variables") if "bert" in v.name]
    homes = {tf.DeviceSpec.from_string(v.device).task for v in saved}
    # The first host of several holds the compiled programs, and no variables.
    assert homes == (set(range(1, hosts)) if hosts > 1 else {0})


def test_a_program_of_other_settings_is_built(other_settings, xla):
    assert other_settings.slices()
    assert not [name for name in other_settings.program_types() if not compiles(name)]


def test_everything_that_a_barrier_orders_is_read_behind_it(other_settings):
    """XLA removes from a barrier what nothing reads, and with it the order of a
    recomputed layer after the gradient that it waits for."""
    barriers = other_settings.operations("XlaOptimizationBarrier")
    assert barriers
    for operation in barriers:
        assert all(output.consumers() for output in operation.outputs), operation.name
