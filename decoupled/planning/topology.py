"""The topology that a TPU slice would report, without a TPU."""

import itertools

import numpy as np

from decoupled.core.compat import device_assignment, topology
from decoupled.planning.hardware import Slice

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
