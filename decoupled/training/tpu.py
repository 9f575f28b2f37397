"""Training on a Cloud TPU slice: placement, session, summaries.

TPUEstimator runs the same program on every core (Mesh-TensorFlow's SIMD mesh): each
gets the whole batch and takes its own part. Weights live on the cores as slices; the
variables that are saved live on the hosts.
"""

import re

from decoupled.configs import MeshConfig
from decoupled.configs.hardware import TpuAddress
from decoupled.core.compat import estimator, mtf, tf
from decoupled.ops.meshes.device_order import device_order
from decoupled.ops.meshes.simd import SimdMeshImpl
from decoupled.training.events import start_event
from decoupled.training.mesh import Placement, check_mesh_size, shape_and_layout

# Bytes of compiled programs that the first host holds for each core (an estimate of
# Mesh-TensorFlow's).
_PROGRAM_BYTES = 300_000_000
# How the message about a loss that is infinite or NaN begins.
_DIVERGENCE = "training"


def resolver(address: TpuAddress) -> tf.distribute.cluster_resolver.TPUClusterResolver:
    """Finds the workers of a TPU; asks Google's API for a node's name."""
    return tf.distribute.cluster_resolver.TPUClusterResolver(
        address.name, zone=address.zone, project=address.project
    )


def tpu_config(
    address: TpuAddress | None, iterations_per_loop: int
) -> estimator.tpu.TPUConfig:
    """TPUEstimator's settings: the whole batch for every core, as one shard.

    Each core is a replica: `num_cores_per_replica` gives `place` its device assignment,
    and the number of replicas follows from the slice. Without a TPU a loop is one step.
    """
    broadcast = estimator.tpu.InputPipelineConfig.BROADCAST
    if address is None:
        return estimator.tpu.TPUConfig(
            iterations_per_loop=1, per_host_input_for_training=broadcast
        )
    return estimator.tpu.TPUConfig(
        iterations_per_loop=iterations_per_loop,
        num_cores_per_replica=1,
        per_host_input_for_training=broadcast,
        tpu_job_name=address.job_name,
    )


def session_config() -> tf.ConfigProto:
    """Settings without the rewriting of whole graphs (minutes for a large mesh).

    The workers of a TPU outlive the process that uses them. An isolated session, which
    is TPUEstimator's default, does not find slices of an earlier run there.
    """
    settings = tf.ConfigProto(allow_soft_placement=True, isolate_session_state=True)
    settings.graph_options.rewrite_options.disable_meta_optimizer = True
    return settings


def place(config: MeshConfig, context) -> Placement:
    """The cores of a slice, and hosts that share the saved variables evenly."""
    check_mesh_size(config, context.num_replicas, "the TPU")
    shape, layout = shape_and_layout(config)
    assignment = context.device_assignment
    hosts = [
        context.tpu_host_placement_function(host_id=host)
        for host in range(context.num_hosts)
    ]
    # The first host keeps the compiled programs; it gets fewer variables.
    used_bytes = [_PROGRAM_BYTES * context.num_replicas] + [0] * (len(hosts) - 1)
    placer = mtf.utils.BalancedVariablePlacer(hosts, used_bytes)
    mesh = SimdMeshImpl(
        shape,
        layout,
        assignment,
        logical_to_physical(shape, assignment),
        config.stack_mib * 2**20,
    )
    return Placement(mesh, placer)


def logical_to_physical(shape: mtf.Shape, assignment) -> list[int]:
    """Replica of each processor of the mesh."""
    coordinates = [
        tuple(int(x) for x in assignment.coordinates(replica, 0))
        for replica in range(assignment.num_replicas)
    ]
    return device_order(coordinates, shape.to_integer_list)


def host_call(
    folder: str,
    scalars: dict[str, tf.Tensor],
    step: tf.Tensor,
    every_steps: int,
    start: int,
):
    """Writes scalars from the host, and ends the run where one is infinite or NaN.

    The check is an Assert. TPUEstimator leaves the session open after an error of
    CheckNumerics, and the training loop would then wait for ever for the thread that
    the error has ended.

    Args:
      step: the number of the step that the scalars are of. every_steps: steps between
        summaries. start: the first step of this start of the run; TensorBoard drops
        what the folder has of it and of later steps.

    Returns:
      TPUEstimatorSpec's `host_call`: a function, and the tensors that it takes, one
      number per core each.
    """
    summary = tf.compat.v2.summary

    def write(step, *values):
        step = tf.cast(step[0], tf.int64)
        # All cores have the same number.
        values = {n: v[0] for n, v in zip(scalars, values, strict=True)}
        checks = [
            tf.raw_ops.Assert(
                condition=tf.math.is_finite(value),
                data=[f"{_DIVERGENCE}: {name} is", value, "at step", step],
            )
            for name, value in values.items()
        ]
        writer = summary.create_file_writer(folder, max_queue=0)

        def begin():
            events = [
                tf.raw_ops.ImportEvent(writer=writer._resource, event=event)
                for event in [start_event(start).SerializeToString()] * 2
            ]
            return tf.group(events)

        with tf.control_dependencies(checks):
            start_operation = tf.cond(tf.equal(step, start), begin, tf.no_op)
        with (
            tf.control_dependencies([start_operation]),
            writer.as_default(),
            summary.record_if(tf.equal(step % every_steps, 0)),
        ):
            for name, value in values.items():
                summary.scalar(name, value, step)
            return [*checks, start_operation, *tf.summary.all_v2_summary_ops()]

    step = tf.cast(step, tf.int32)
    return write, [tf.reshape(t, [1]) for t in (step, *scalars.values())]


def recorded_errors(trainer: estimator.tpu.TPUEstimator | None) -> list[Exception]:
    """The errors of all threads of a training, of which TPUEstimator raises one.

    That one may come from a thread whose session another thread's error has closed.
    """
    rendezvous = getattr(trainer, "_rendezvous", {}).values()
    records = (record for each in rendezvous for record in each._errors.values())
    return [record[1] for record in records if record]


def divergence(error: Exception) -> str | None:
    """What an error of a TPU's session says of a loss that is infinite or NaN,
    "training: loss is nan at step 7"; None where it is another error."""
    if isinstance(error, estimator.NanLossDuringTrainingError):
        return f"{_DIVERGENCE}: loss or gradient_norm is infinite or NaN"
    match = re.search(
        rf"\[({_DIVERGENCE}: \w+ is)\] \[(\S+)\] \[(at step)\] \[(\d+)\]", str(error)
    )
    return " ".join(match.groups()) if match else None
