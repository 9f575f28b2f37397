"""Whether a processor multiplies bfloat16 matrices fast, by its own description."""

import pytest

from decoupled.core.compat import tf
from decoupled.core.processor import Processor
from decoupled.ops.bfloat16_speed import bfloat16_is_slow
from decoupled.ops.placement import PlacementMeshImpl

CASES = {
    "Sapphire Rapids whose AMX is hidden": ("GenuineIntel", "avx512_bf16", True),
    "Sapphire Rapids": ("GenuineIntel", "avx512_bf16 amx_bf16 amx_tile", False),
    "Zen 5": ("AuthenticAMD", "avx2 avx512_bf16", False),
    "Zen 3": ("AuthenticAMD", "avx2", True),
    "Haswell": ("GenuineIntel", "avx2", True),
}


def described_as(monkeypatch, vendor, flags):
    described = Processor("a model", vendor, frozenset(flags.split()))
    monkeypatch.setattr("decoupled.ops.bfloat16_speed.processor", lambda: described)


@pytest.mark.parametrize("case", CASES)
def test_known_processors(monkeypatch, case):
    vendor, flags, is_slow = CASES[case]
    described_as(monkeypatch, vendor, f"fpu {flags}")
    assert bfloat16_is_slow() == is_slow


@pytest.mark.parametrize(("vendor", "flags"), [("", ""), ("", "asimd"), ("Other", "")])
def test_one_that_does_not_say_is_taken_to_be_fast(monkeypatch, vendor, flags):
    described_as(monkeypatch, vendor, flags)
    assert not bfloat16_is_slow()


def test_gpus_are_fast(monkeypatch):
    described_as(monkeypatch, "GenuineIntel", "avx2")
    assert bfloat16_is_slow()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"])
    assert not bfloat16_is_slow()


@pytest.mark.parametrize(
    ("devices", "expected"),
    [([""], True), (["cpu:0"], True), (["/job:worker/task:0/device:GPU:0"], False)],
)
def test_what_meshes_make_of_it(monkeypatch, devices, expected):
    """Workers' processors are taken to be of this one's kind."""
    monkeypatch.setattr("decoupled.ops.placement.bfloat16_is_slow", lambda: True)
    mesh = PlacementMeshImpl("all:1", "", devices)
    assert mesh.multiplies_in_float32 == expected
