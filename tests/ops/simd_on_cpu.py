"""The SIMD mesh as a program of one core, compiled for this CPU by XLA."""

import contextlib
import itertools

import numpy as np
from tensorflow.python.tpu import device_assignment, topology, training_loop

from decoupled.core.compat import mtf, tf
from decoupled.ops.meshes.simd import SimdMeshImpl
from decoupled.planning.hardware import parse_topology
from decoupled.training.graph import build_step
from decoupled.training.mesh import Placement, shape_and_layout
from tests.helpers import SESSION_CONFIG

# Stacks of tiny models' kernels.
STACK_BYTES = 2**20
# Chips of one host: 2 x 2.
_HOST_SHAPE = (2, 2, 1)


def slice_topology(tpu):
    """What a slice reports of itself: coordinates of all cores, host by host."""
    shape = (*tpu.chips, 1)[:3]
    steps = zip(shape, _HOST_SHAPE, strict=True)
    hosts = itertools.product(*(range(0, size, step) for size, step in steps))
    coordinates = [
        [
            [x + dx, y + dy, z + dz, core]
            for dx, dy, dz, core in np.ndindex(*_HOST_SHAPE, tpu.generation.cores)
        ]
        for x, y, z in hosts
    ]
    return topology.Topology(
        mesh_shape=[*shape, tpu.generation.cores],
        device_coordinates=np.array(coordinates),
    )


def assign_cores(tpu):
    """One core for every replica, as TPUEstimator assigns them."""
    return device_assignment.device_assignment(
        slice_topology(tpu), computation_shape=[1, 1, 1, 1], num_replicas=tpu.cores
    )


class WithoutProgram(SimdMeshImpl):
    """A mesh without what only a TPU's session can place; it is core 0."""

    @property
    def pnum_tensor(self):
        """Core 0."""
        with mtf.utils.outside_all_rewrites():
            return tf.constant(0)


def eight_cores(layout, logical_to_physical=None):
    """The mesh of a v2-8, data:4;model:2."""
    return WithoutProgram(
        mtf.convert_to_shape("data:4;model:2"),
        mtf.convert_to_layout_rules(layout),
        assign_cores(parse_topology("v2-8")),
        logical_to_physical or list(range(8)),
        STACK_BYTES,
    )


class OneCore(WithoutProgram):
    """A mesh whose axes all have size 1: what is reduced over them stays as it is."""

    def __init__(self, shape, layout, stack_bytes=STACK_BYTES):
        super().__init__(shape, layout, None, [0], stack_bytes)

    def slice_device(self, replica):
        """Any device."""
        return ""

    def allreduce(self, x, mesh_axes, reduction_fn_string):
        """Of one slice: the slice itself."""
        return x.to_laid_out_tensor()


@contextlib.contextmanager
def control_flow_of_tensorflow_1():
    """As `training.loop` sets it for a TPU's program."""
    tf.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.enable_control_flow_v2()


def run_compiled_loop(config, feature_sets):
    """Runs steps from initial weights in one program: the loop of a TPU's training.

    Args:
      config: of a graph on a mesh of one core.
      feature_sets: list of feature dicts, one of each step.

    Returns:
      loss of the last step, and variables: name -> array, slots and global_step
      included.
    """
    steps, lowered_steps = len(feature_sets), []

    def body(index, loss):
        del loss
        features = {
            name: tf.constant(np.stack([f[name] for f in feature_sets]))[index]
            for name in feature_sets[0]
        }
        mesh = OneCore(*shape_and_layout(config.network.mesh))
        lowered_steps.append(build_step(config, features, Placement(mesh, None)))
        with tf.control_dependencies([lowered_steps[0].update]):
            count = tf.assign_add(tf.train.get_global_step(), 1)
        with tf.control_dependencies([count]):
            return [index + 1, tf.identity(lowered_steps[0].loss)]

    def program():
        return training_loop.while_loop(lambda i, _: i < steps, body, [0, 0.0])[1:]

    with tf.Graph().as_default(), control_flow_of_tensorflow_1():
        tf.train.get_or_create_global_step()
        (loss,) = tf.xla.experimental.compile(program)
        lowering = lowered_steps[0].lowering
        to_slices = lowering.copy_masters_to_slices()
        to_masters = lowering.copy_slices_to_masters()
        with tf.Session(config=SESSION_CONFIG) as session:
            session.run(tf.global_variables_initializer())
            session.run(to_slices)
            last_loss = session.run(loss)
            session.run(to_masters)
            variables = {v.op.name: v for v in tf.global_variables()}
            return last_loss, session.run(variables)
