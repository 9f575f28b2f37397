"""The topology that a slice would report."""

import pytest

from decoupled.core.compat import mtf
from decoupled.planning.hardware import parse_topology
from decoupled.planning.program import assign_cores, slice_topology
from decoupled.training.tpu import logical_to_physical


@pytest.mark.parametrize("name", ["v2-8", "v3-64", "v4-16"])
def test_every_core_has_coordinates_of_its_own(name):
    tpu = parse_topology(name)
    topology = slice_topology(tpu)
    found = {tuple(c) for host in topology.device_coordinates for c in host}
    assert len(found) == tpu.cores == topology.num_tasks * topology.num_tpus_per_task
    assert topology.num_tpus_per_task == 4 * tpu.generation.cores
    assert max(found) == tuple(size - 1 for size in topology.mesh_shape)


def chips_of_groups(name, mesh_shape, size):
    """For each group of `size` neighbours of the mesh, its chips."""
    assignment = assign_cores(parse_topology(name))
    order = logical_to_physical(mtf.convert_to_shape(mesh_shape), assignment)
    assert sorted(order) == list(range(len(order)))
    places = [tuple(assignment.coordinates(replica, 0)) for replica in order]
    return [
        {place[:3] for place in places[i : i + size]}
        for i in range(0, len(places), size)
    ]


def test_two_cores_that_split_a_model_are_of_one_chip():
    groups = chips_of_groups("v3-32", "data:16;model:2", 2)
    assert {len(chips) for chips in groups} == {1}
