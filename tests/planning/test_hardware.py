"""Names of slices, and memory and peak rate of a device from those of its chip."""

import pytest

from decoupled.planning.hardware import GENERATIONS, GIB, parse_topology
from tests.refusals import refusal


@pytest.mark.parametrize(
    "name, topology, cores, hosts, gibibytes, teraflops",
    [
        ("v2-8", "v2:2x2", 8, 1, 8, 23),
        ("v2-512", "v2:16x16", 512, 64, 8, 23),
        ("v3-128", "v3:8x8", 128, 16, 16, 61.5),
        ("v3-2048", "v3:32x32", 2048, 256, 16, 61.5),
        # A chip of two TensorCores is one device there.
        ("v4-8", "v4:2x2x1", 4, 1, 32, 275),
        ("v4-4096", "v4:8x16x16", 2048, 512, 32, 275),
        ("v5p-128", "v5p:4x4x4", 64, 16, 95, 459),
        # Names count chips, by Google's name and by the usual one.
        ("v5litepod-8", "v5e:2x4", 8, 1, 16, 197),
        ("v5e-16", "v5e:4x4", 16, 4, 16, 197),
        ("v5litepod-256", "v5e:16x16", 256, 64, 16, 197),
        ("v6e-1", "v6e:1x1", 1, 1, 32, 918),
        ("v6e-8", "v6e:2x4", 8, 1, 32, 918),
        # A chip is two devices.
        ("tpu7x-8", "tpu7x:2x2x1", 8, 1, 96, 1153.5),
        ("tpu7x-128", "tpu7x:4x4x4", 128, 16, 96, 1153.5),
        # GPUs of a host: slices, hosts and cards.
        ("h100-8", "1x1x8", 8, 1, 84_942_979_072 / GIB, 989),
    ],
)
def test_slices(name, topology, cores, hosts, gibibytes, teraflops):
    tpu = parse_topology(name)
    assert (tpu.topology, tpu.cores, tpu.hosts) == (topology, cores, hosts)
    assert tpu.core_hbm_bytes == gibibytes * GIB
    assert tpu.core_flops == teraflops * 1e12


def test_a_card_may_have_a_hyphen_in_its_name(monkeypatch):
    monkeypatch.setitem(GENERATIONS, "a100-80gb", GENERATIONS["h100"])
    gpu = parse_topology("a100-80gb-8")
    assert (gpu.version, gpu.topology, gpu.cores) == ("a100-80gb", "1x1x8", 8)


def test_what_a_program_has_of_a_device():
    """JAX takes three quarters of a GPU; products of float32 are slower."""
    gpu, tpu = parse_topology("h100-8"), parse_topology("v5e-1")
    assert gpu.program_bytes == 0.75 * gpu.core_hbm_bytes
    assert tpu.program_bytes == tpu.core_hbm_bytes
    for dtype, precision, *teraflops in (
        ("bfloat16", "highest", 989, 197),
        ("float32", "highest", 67, 197 / 6),
        ("float32", "high", 494.5, 197 / 3),
        ("float32", "default", 494.5, 197),
    ):
        peaks = [device.core_flops_in(dtype, precision) for device in (gpu, tpu)]
        assert peaks == pytest.approx([1e12 * peak for peak in teraflops])


@pytest.mark.parametrize(
    "name, said",
    [
        ("v3-7", "'v3-7' is no slice; one of v3-8, v3-32, v3-64"),
        ("v3-12", "'v3-12' is no slice; one of v3-8"),
        ("v2-1024", "'v2-1024' is no slice; one of v2-8"),
        ("v5litepod-2", "'v5litepod-2' is no slice; one of v5litepod-1, v5litepod-4"),
        ("v5p-4", "'v5p-4' is no slice; one of v5p-8, v5p-16"),
        ("v3", "'v3' is no slice; write the generation, v2, v3, v4, v5e, v5p, v6e,"),
        ("v3-\u00b2", "'v3-\u00b2' is no slice; write the generation"),
        ("a100-8", "'a100-8' is no slice; write the generation"),
    ],
)
def test_what_is_no_slice(name, said):
    assert refusal(parse_topology, name).startswith(f"--topology: {said}")
