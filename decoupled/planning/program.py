"""Builds the training program of a TPU slice as TPUEstimator does, without a TPU.

The graph is built inside `tpu.replicate`, for a described topology (`slice_topology`).
It is the graph that a TPU would get. All cores run the same program, so that a plan
needs it only once, with the slices of the variables on one core.
"""

import itertools
from typing import NamedTuple

import numpy as np

from decoupled.configs import MaskingConfig
from decoupled.core.compat import device_assignment, mtf, tf, topology, tpu_rewriting
from decoupled.ops.meshes.simd import SimdMeshImpl
from decoupled.planning.hardware import Slice
from decoupled.training.graph import Lowered, TrainingGraph, build_step
from decoupled.training.mesh import Placement, shape_and_layout
from decoupled.training.tpu import (
    check_mesh_size,
    logical_to_physical,
    stack_bytes,
)

# Chips of one host: 2 x 2.
_HOST = (2, 2, 1)


def slice_topology(tpu: Slice) -> topology.Topology:
    """Coordinates of all cores, host by host."""
    shape = (*tpu.chips, 1)[:3]
    steps = zip(shape, _HOST, strict=True)
    hosts = itertools.product(*(range(0, size, step) for size, step in steps))
    coordinates = [
        [
            [x + dx, y + dy, z + dz, core]
            for dx, dy, dz, core in np.ndindex(*_HOST, tpu.generation.cores)
        ]
        for x, y, z in hosts
    ]
    return topology.Topology(
        mesh_shape=[*shape, tpu.generation.cores],
        device_coordinates=np.array(coordinates),
    )


def assign_cores(tpu: Slice) -> device_assignment.DeviceAssignment:
    """One core for every replica, as TPUEstimator assigns them."""
    return device_assignment.device_assignment(
        slice_topology(tpu), computation_shape=[1, 1, 1, 1], num_replicas=tpu.cores
    )


class Program(NamedTuple):
    """The program that a core runs in a step.

    graph: TensorFlow's, of one core. lowered: the mesh graph and its lowering.
    mesh: of the whole slice.
    """

    graph: tf.Graph
    lowered: Lowered
    mesh: "OneCoreMesh"

    @property
    def infeed_bytes(self) -> int:
        """Bytes of features that a host gets in a step: the whole batch."""
        (infeed,) = (
            op for op in self.graph.get_operations() if op.type == "InfeedDequeueTuple"
        )
        return sum(t.shape.num_elements() * t.dtype.size for t in infeed.outputs)


class OneCoreMesh(SimdMeshImpl):
    """The whole mesh, but only with the slices of core 0."""

    class Stack(SimdMeshImpl.Stack):
        """Slices without copies, because nothing runs."""

        copies = False

    def replicas(self) -> list[int]:
        """Core 0."""
        return [0]

    @property
    def pnum_tensor(self):
        """The number of core 0 in the mesh."""
        if self._pnum_tensor is None:
            with mtf.utils.outside_all_rewrites():
                self._pnum_tensor = tf.raw_ops.TPUReplicatedInput(
                    inputs=[tf.constant(self.p2l(0))]
                )
        return self._pnum_tensor

    def group_of_core(self, replicas: list[int]) -> list[tuple[int, ...]]:
        """Coordinates, [x, y, z, core], of the cores of a group."""
        coordinates = self.device_assignment.coordinates
        return [tuple(coordinates(replica, 0)) for replica in replicas]


def build_program(
    training: TrainingGraph, masking: MaskingConfig, tpu: Slice, batch_size: int
) -> Program:
    """Builds the program of a pre-training step.

    Args:
      training: what is trained, and how; its mesh must have as many processors as
        `tpu` has cores.
      masking: lengths of the features.
      tpu: the slice.
      batch_size: sequences per step over the whole mesh.

    Raises:
      UserError: mesh, model, batch and slice do not fit each other.
    """
    mesh_config = training.network.mesh
    check_mesh_size(mesh_config, tpu.cores, tpu.name)
    with tf.Graph().as_default() as graph:
        tf.train.get_or_create_global_step()
        assignment = assign_cores(tpu)
        shape, layout = shape_and_layout(mesh_config)
        mesh = OneCoreMesh(
            shape,
            layout,
            assignment,
            logical_to_physical(shape, assignment),
            stack_bytes(mesh_config),
        )
        built = []

        def step():
            features = _infeed(feature_specs(masking, batch_size))
            built.append(build_step(training, features, Placement(mesh, None)))
            with tf.control_dependencies([built[0].update]):
                return tf.identity(built[0].loss)

        with tf.variable_scope("", custom_getter=_without_values):
            tpu_rewriting.replicate(step, inputs=[[]])
    return Program(graph, built[0], mesh)


def feature_specs(masking: MaskingConfig, batch_size: int) -> dict[str, tf.TensorSpec]:
    """The features of a pre-training step, [batch, ...], as hosts send them."""
    names = {
        "input_word_ids": (tf.int32, masking.sequence_length),
        **dict.fromkeys(
            ("masked_lm_positions", "masked_lm_ids"),
            (tf.int32, masking.max_predictions),
        ),
        "masked_lm_weights": (tf.float32, masking.max_predictions),
    }
    return {
        name: tf.TensorSpec([batch_size, width], dtype)
        for name, (dtype, width) in names.items()
    }


def _infeed(specs):
    values = tf.raw_ops.InfeedDequeueTuple(
        dtypes=[spec.dtype for spec in specs.values()],
        shapes=[spec.shape for spec in specs.values()],
    )
    return dict(zip(specs, values, strict=True))


def _without_values(getter, name, shape, dtype, **settings):
    # The saved copy of a mesh variable gets neither memory nor initial values.
    del getter, settings
    with mtf.utils.outside_all_rewrites():
        return tf.placeholder(dtype, shape, name)
