"""The TPU path, built as TPUEstimator builds it on a slice that is only described."""

import types

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    EventAccumulator,
)
from tensorflow.python.ops import summary_ops_v2

from decoupled.configs import MeshConfig
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.planning.hardware import parse_topology
from decoupled.training.events import read_scalars
from decoupled.training.mesh import check_mesh_size
from decoupled.training.tpu import (
    divergence,
    host_call,
    place,
    session_config,
)
from tests.ops.simd_on_cpu import assign_cores
from tests.training.runs import write_events


def context(topology="v2-32", hosts=4):
    """What TPUEstimator gives a model_fn as params["context"]."""
    tpu = parse_topology(topology)
    return types.SimpleNamespace(
        num_replicas=tpu.cores,
        num_hosts=hosts,
        device_assignment=assign_cores(tpu),
        tpu_host_placement_function=lambda host_id: f"/task:{host_id}/device:CPU:0",
    )


def host_writes(folder, loss):
    """Runs what the host does with the loss of step 7 that 4 cores send."""
    with tf.Graph().as_default():
        step = tf.train.create_global_step()
        write, tensors = host_call(folder, {"loss": tf.constant(0.0)}, step, 1, start=7)
        assert [t.shape.as_list() for t in tensors] == [[1], [1]]
        summaries = write(tf.fill([4], 7), tf.fill([4], loss))
        with tf.Session() as session:
            session.run(summary_ops_v2.summary_writer_initializer_op())
            session.run(summaries)


def test_the_host_writes_scalars_and_drops_steps_that_were_lost(tmp_path):
    """An earlier start was killed after step 9; the run goes on with step 7."""
    losses = {step: step for step in (5, 6, 7, 8, 9)}
    write_events(tmp_path, 4, losses, 1700000000, rate=1.0)
    host_writes(str(tmp_path), 2.5)
    assert read_scalars(str(tmp_path), "loss") == {5: 5.0, 6: 6.0, 7: 2.5}
    assert list(read_scalars(str(tmp_path), "rate")) == [5, 6]
    shown = EventAccumulator(str(tmp_path))
    shown.Reload()
    assert [event.step for event in shown.Tensors("loss")] == [5, 6, 7]
    assert [event.step for event in shown.Tensors("rate")] == [5, 6]


def test_the_host_ends_a_run_that_diverges(tmp_path):
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        host_writes(str(tmp_path), float("nan"))
    assert divergence(raised.value) == "training: loss is nan at step 7"
    assert divergence(tf.errors.InvalidArgumentError(None, None, "other")) is None


def test_the_mesh_has_every_core():
    wrong = MeshConfig("all:8", "")
    with pytest.raises(UserError, match="all:8 has 8 .* TPU has 32 cores"):
        place(wrong, context())
    check_mesh_size(wrong, 8, "the TPU")


def test_a_session_finds_no_slices_of_an_earlier_run():
    """The workers of a TPU outlive the process that talks to them."""
    assert session_config().isolate_session_state
