"""The TPU path, built as TPUEstimator builds it on a slice that is only described."""

import types

import pytest
from tensorflow.python.ops import summary_ops_v2
from tensorflow.python.tpu import tpu as tpu_rewriting

from decoupled.compat import estimator, mtf, tf
from decoupled.configs import MeshConfig
from decoupled.errors import UserError
from decoupled.planning.hardware import parse_topology
from decoupled.planning.topology import assign_cores
from decoupled.training import hooks
from decoupled.training.events import read_scalars
from decoupled.training.model_fn import make_model_fn
from decoupled.training.tpu import (
    TpuAddress,
    check_mesh_size,
    host_call,
    place,
    tpu_config,
)
from tests.helpers import masked_lm_features, tiny_model
from tests.training.runs import graph_config, run_spec

ADDRESS = TpuAddress("pod", None, None, None)
MESH = MeshConfig(
    "data:8;model:4", "batch:data;vocab:model", "bfloat16", "gather", "float32"
)


def context(topology="v2-32", hosts=4):
    """What TPUEstimator gives a model_fn as params["context"]."""
    tpu = parse_topology(topology)
    return types.SimpleNamespace(
        num_replicas=tpu.cores,
        num_hosts=hosts,
        device_assignment=assign_cores(tpu),
        tpu_host_placement_function=lambda host_id: f"/task:{host_id}/device:CPU:0",
    )


class Built:
    """A training spec, and the graph that it is of."""

    def __init__(self, folder):
        config = graph_config(mesh=MESH, model=tiny_model(num_layers=1))
        run = run_spec(folder, iterations_per_loop=5)._replace(tpu=ADDRESS)
        model_fn = make_model_fn(config, run)
        with tf.Graph().as_default() as self.graph:
            tf.train.get_or_create_global_step()
            specs = []

            def program():
                features = {
                    name: tf.constant(value)
                    for name, value in masked_lm_features().items()
                }
                params = {"context": context()}
                specs.append(model_fn(features, None, estimator.ModeKeys.TRAIN, params))
                with tf.control_dependencies([specs[0].train_op]):
                    return tf.identity(specs[0].loss)

            tpu_rewriting.replicate(
                program,
                inputs=[[]] * 32,
                device_assignment=context().device_assignment,
            )
            self.variables = tf.global_variables()
        self.spec = specs[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return Built(tmp_path_factory.mktemp("run"))


def test_saved_variables_live_on_all_hosts_and_no_slice_is_saved(built):
    weights = [v for v in built.variables if v.op.name != "global_step"]
    # The first host holds the compiled programs of 32 cores already.
    assert {v.device for v in weights} == {
        f"/task:{host}/device:CPU:0" for host in (1, 2, 3)
    }
    assert not [v.op.name for v in built.variables if "slice" in v.op.name]


def test_every_core_has_a_slice_of_every_variable(built):
    start = b"bert/embeddings/word_embeddings_slice_"
    slices = [
        operation
        for operation in built.graph.get_operations()
        if operation.type == "VarHandleOp"
        and operation.get_attr("shared_name").startswith(start)
    ]
    assert {s.get_attr("shape").dim[0].size for s in slices} == {48 // 4}
    devices = {tf.DeviceSpec.from_string(s.device).to_string() for s in slices}
    assert len(devices) == len(slices) == 32


def test_the_program_reduces_over_the_mesh_and_updates_in_place(built):
    types_inside = {
        operation.type
        for operation in built.graph.get_operations()
        if "_tpu_replicate" in operation.node_def.attr
    }
    assert {"CrossReplicaSum", "ResourceApplyAdam", "Einsum"} <= types_inside
    # Kernels that only a CPU has, and what TPUs do not know.
    assert not types_inside & {
        "PartitionedCall", "StatefulPartitionedCall", "Assert", "TopKV2",
        "ScatterNdNonAliasingAdd", "SaveV2", "RestoreV2",
    }  # fmt: skip


def test_hooks_restore_count_loops_and_save(built):
    kinds = [type(hook) for hook in built.spec.training_hooks]
    assert mtf.MtfRestoreHook in kinds
    assert hooks.LoopProgress in kinds
    assert hooks.Metronome not in kinds
    (saver,) = [
        h for h in built.spec.training_hooks if type(h) is hooks.SaveCheckpoints
    ]
    assert saver.loops


def test_scalars_go_to_the_host_one_per_core(built):
    write, tensors = built.spec.host_call
    assert callable(write)
    assert [t.shape.as_list() for t in tensors] == [[1]] * len(tensors)
    assert len(tensors) == 1 + len(
        ("loss", "masked_lm_accuracy", "gradient_norm", "learning_rate")
    )


def host_writes(folder, loss):
    """Runs what the host does with the loss that 4 cores send."""
    with tf.Graph().as_default():
        tf.train.create_global_step()
        write, tensors = host_call(folder, {"loss": tf.constant(0.0)}, 1)
        step = tf.zeros_like(tensors[0])
        summaries = write(tf.tile(step, [4]), tf.fill([4], loss))
        with tf.Session() as session:
            session.run(summary_ops_v2.summary_writer_initializer_op())
            session.run(summaries)


def test_the_host_writes_the_scalars(tmp_path):
    host_writes(str(tmp_path), 2.5)
    assert read_scalars(str(tmp_path), "loss") == {0: 2.5}


def test_the_host_ends_a_run_that_diverges(tmp_path):
    with pytest.raises(tf.errors.InvalidArgumentError, match="training: loss"):
        host_writes(str(tmp_path), float("nan"))


def test_the_mesh_has_every_core():
    wrong = MeshConfig("all:8", "", "float32", "gather", "float32")
    with pytest.raises(UserError, match="all:8 has 8 .* TPU has 32 cores"):
        place(wrong, context())
    check_mesh_size(wrong, 8, "the TPU")


def test_settings_with_and_without_a_tpu():
    broadcast = estimator.tpu.InputPipelineConfig.BROADCAST
    here, there = tpu_config(None, 100), tpu_config(ADDRESS, 100)
    assert (here.iterations_per_loop, here.num_cores_per_replica) == (1, None)
    assert (there.iterations_per_loop, there.num_cores_per_replica) == (100, 1)
    assert here.per_host_input_for_training == broadcast
    assert there.per_host_input_for_training == broadcast
