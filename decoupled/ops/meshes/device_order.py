"""Which device of a TPU slice is which processor of a mesh; without TensorFlow.

Neighbours along the mesh's last axis are the devices of a chip, then the chips of a
line, of a rectangle, of a box. Every group of devices that add something up is thus a
regular part of the grid of chips. The compiler of v5e slices refuses other groups
("Failed to create limited ICI routing replica info table").
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np

# x, y and z of a chip, and the number of the device on the chip.
Place = tuple[int, int, int, int]


def device_order(places: Sequence[Place], mesh: Sequence[int]) -> list[int]:
    """The index, in `places`, of the device of each processor of a mesh.

    The processors are numbered row by row; `mesh` has the sizes of the mesh's axes. A
    program whose replica n is processor n then needs no knowledge of the slice.
    """
    grid = [1 + max(side) for side in zip(*places, strict=True)]
    if not math.prod(grid) == math.prod(mesh) == len(set(places)):
        raise ValueError(f"{len(places)} devices, grid {grid}, mesh {list(mesh)}")
    devices = np.empty(grid, int)
    for index, place in enumerate(places):
        devices[place] = index
    tiles = np.array(_tiles(mesh, grid))
    # Each side of the grid is cut once for each mesh axis, most finely for the last.
    cuts = devices.reshape(tiles.T.ravel())
    by_mesh_axis = np.arange(tiles.size).reshape(tiles.T.shape).T.ravel()
    return cuts.transpose(by_mesh_axis).ravel().tolist()


def _tiles(mesh: Sequence[int], grid: list[int]) -> list[list[int]]:
    """For each mesh axis, its extent along x, y, z and the devices of a chip.

    The last axis comes first. It gets the devices of a chip, then parts of the longest
    side of the grid of chips that have no place yet.
    """
    lengths, tiles = list(grid), []
    for size in reversed(mesh):
        tile = [1] * len(grid)
        for factor in _prime_factors(size):
            chip_sides = sorted(range(len(grid) - 1), key=lambda side: -lengths[side])
            sides = [len(grid) - 1, *chip_sides]
            side = next(side for side in sides if lengths[side] % factor == 0)
            lengths[side] //= factor
            tile[side] *= factor
        tiles.insert(0, tile)
    return tiles


def _prime_factors(number: int) -> Iterator[int]:
    factor = 2
    while number > 1:
        if number % factor:
            factor += 1
        else:
            yield factor
            number //= factor
