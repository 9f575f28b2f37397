"""The program of a training step on one core of a TPU slice, without a TPU.

Loop, infeed and outfeed are left out. A plan adds up its costs, and
`decoupled.planning.hlo` compiles it.
"""

import functools
import itertools

import numpy as np

from decoupled.configs import MaskingConfig, MeshConfig
from decoupled.core.compat import device_assignment, tf, topology
from decoupled.ops.meshes.replicas import ReplicaMesh
from decoupled.planning.hardware import Slice
from decoupled.training.graph import TrainingGraph
from decoupled.training.mesh import shape_and_layout
from decoupled.training.tpu import check_mesh_size, logical_to_physical, stack_bytes
from decoupled.training.xla.programs import Program, training_program

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


class OneCoreMesh(ReplicaMesh):
    """The replicas of a slice, with the coordinates of their cores."""

    def group_of_core(self, replicas: list[int]) -> list[tuple[int, ...]]:
        """Coordinates, [x, y, z, core], of the cores of a group."""
        coordinates = self.device_assignment.coordinates
        return [tuple(coordinates(replica, 0)) for replica in replicas]


def build_program(
    training: TrainingGraph,
    features: dict[str, tf.TensorSpec],
    tpu: Slice | None = None,
) -> Program:
    """Builds the step of a core, of the slice or, without one, a single core.

    The mesh has as many processors as the slice has cores, or one.

    Raises:
      UserError: mesh, model, batch and slice do not fit each other.
    """
    make_mesh = functools.partial(one_core_mesh, training.network.mesh, tpu)
    return training_program(training, features, make_mesh)


def one_core_mesh(config: MeshConfig, tpu: Slice | None) -> OneCoreMesh:
    """The mesh of a slice, or of a single core."""
    shape, layout = shape_and_layout(config)
    if tpu is None:
        check_mesh_size(config, 1, "one core")
        return OneCoreMesh(shape, layout, [0], stack_bytes(config))
    check_mesh_size(config, tpu.cores, tpu.name)
    cores = assign_cores(tpu)
    order = logical_to_physical(shape, cores)
    return OneCoreMesh(shape, layout, order, stack_bytes(config), cores)
