"""Processors of a mesh on the devices of a slice."""

import random

import pytest

from decoupled.ops.meshes.device_order import device_order


def places(x, y, z=1, devices=1):
    """The devices of a slice, in no order."""
    every = [
        (i, j, k, n)
        for i in range(x) for j in range(y) for k in range(z) for n in range(devices)
    ]  # fmt: skip
    random.Random(x).shuffle(every)
    return every


@pytest.mark.parametrize(
    "grid, mesh, first",
    [
        # Two of a chip; squares of v5e; lines of a cube; one axis; a mesh of one.
        ((8, 8, 1, 2), (64, 2), [(0, 0, 0, 0), (0, 0, 0, 1)]),
        ((16, 16), (64, 4), [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ((4, 8, 8), (128, 2), [(0, 0, 0), (0, 1, 0)]),
        ((2, 4), (8,), [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]),
        ((1, 1), (1, 1), [(0, 0)]),
        # Sizes that are no powers of 2.
        ((16, 16, 24), (2048, 3), [(0, 0, 0), (0, 0, 1), (0, 0, 2)]),
        ((2, 3), (6, 1), [(0, 0), (0, 1), (0, 2), (1, 0)]),
    ],
)
def test_neighbours_of_the_mesh_are_neighbours_on_the_slice(grid, mesh, first):
    devices = places(*grid)
    order = device_order(devices, mesh)
    assert sorted(order) == list(range(len(devices)))
    result = [devices[index] for index in order[: len(first)]]
    assert result == [(*place, 0, 0)[:4] for place in first]


def test_every_group_is_a_regular_part_of_the_grid():
    """It has each of its x with each of its y."""
    devices = places(16, 16)
    order = device_order(devices, (32, 8))
    for group in [order[8 * n : 8 * n + 8] for n in range(32)] + [
        order[n::8] for n in range(8)
    ]:
        x, y = ({devices[index][side] for index in group} for side in (0, 1))
        assert len(x) * len(y) == len(group)


@pytest.mark.parametrize(
    "devices, mesh",
    [
        (places(2, 2), (2, 4)),
        (places(2, 2)[1:], (3,)),
        ([(0, 0, 0, 0)] * 2, (2,)),
    ],
)
def test_a_mesh_has_a_processor_for_each_device_of_a_whole_grid(devices, mesh):
    with pytest.raises(ValueError, match=f"^{len(devices)} devices"):
        device_order(devices, mesh)
