"""Slices and their names; numbers per core from those per chip."""

import pytest

from decoupled.core.errors import UserError
from decoupled.planning.hardware import GIB, parse_topology


@pytest.mark.parametrize(
    "name, cores, chips, gibibytes, teraflops",
    [
        ("v2-8", 8, (2, 2), 8, 23),
        ("v2-512", 512, (16, 16), 8, 23),
        ("v3-8", 8, (2, 2), 16, 61.5),
        ("v3-128", 128, (8, 8), 16, 61.5),
        ("v3-2048", 2048, (32, 32), 16, 61.5),
        # A chip of two TensorCores is one device there.
        ("v4-8", 4, (2, 2, 1), 32, 275),
        ("v4-4096", 2048, (8, 16, 16), 32, 275),
    ],
)
def test_slices(name, cores, chips, gibibytes, teraflops):
    tpu = parse_topology(name)
    assert (tpu.cores, tpu.chips) == (cores, chips)
    assert tpu.core_hbm_bytes == gibibytes * GIB
    assert tpu.core_flops == teraflops * 1e12


@pytest.mark.parametrize(
    "name, hosts",
    [("v2-8", 1), ("v3-32", 4), ("v3-512", 64), ("v4-8", 1), ("v4-32", 4)],
)
def test_a_host_has_four_chips(name, hosts):
    assert parse_topology(name).hosts == hosts


@pytest.mark.parametrize(
    "name, said",
    [
        ("v3-7", "'v3-7' is no slice; one of v3-8, v3-32, v3-64"),
        ("v3-12", "'v3-12' is no slice; one of v3-8"),
        ("v2-1024", "'v2-1024' is no slice; one of v2-8"),
        ("v3", "'v3' is no slice; write the generation, v2, v3, v4"),
        ("tpu", "'tpu' is no slice; write the generation"),
        ("v5p-8", "v5p-8: TPUEstimator does not run on v5p"),
        ("v6e-8", "v6e-8: TPUEstimator does not run on v6e"),
        ("tpu7x-8", "tpu7x-8: TPUEstimator does not run on tpu7x"),
    ],
)
def test_what_is_no_slice(name, said):
    with pytest.raises(UserError) as refused:
        parse_topology(name)
    assert str(refused.value).startswith(f"--topology: {said}")
