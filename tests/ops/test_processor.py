"""Whether a processor multiplies bfloat16 matrices fast, by its own description."""

import pytest

from decoupled.compat import tf
from decoupled.ops import processor
from decoupled.ops.placement import PlacementMeshImpl

CASES = {
    "Sapphire Rapids whose AMX is hidden": ("GenuineIntel", "avx512_bf16", True),
    "Sapphire Rapids": ("GenuineIntel", "avx512_bf16 amx_bf16 amx_tile", False),
    "Zen 5": ("AuthenticAMD", "avx2 avx512_bf16", False),
    "Zen 3": ("AuthenticAMD", "avx2", True),
    "Haswell": ("GenuineIntel", "avx2", True),
}


@pytest.fixture(autouse=True)
def forget():
    """What other tests have found, and what these find."""
    processor._described.cache_clear()
    yield
    processor._described.cache_clear()


def described_as(monkeypatch, tmp_path, text):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    monkeypatch.setattr(processor, "_DESCRIPTION", str(path))


@pytest.mark.parametrize("case", CASES)
def test_known_processors(monkeypatch, tmp_path, case):
    vendor, flags, is_slow = CASES[case]
    core = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name : x: y\nflags\t\t: fpu"
    other = "\n\nprocessor\t: 1\nvendor_id\t: Other\nflags\t: amx_bf16\n"
    described_as(monkeypatch, tmp_path, f"{core} {flags}{other}")
    assert processor.bfloat16_is_slow() == is_slow


@pytest.mark.parametrize("text", ["", "processor : 0\nFeatures : asimd\n", "\x00\xff"])
def test_one_that_does_not_say_is_taken_to_be_fast(monkeypatch, tmp_path, text):
    described_as(monkeypatch, tmp_path, text)
    assert not processor.bfloat16_is_slow()


def test_no_description(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "_DESCRIPTION", str(tmp_path / "none"))
    assert not processor.bfloat16_is_slow()


def test_gpus_are_fast(monkeypatch, tmp_path):
    described_as(monkeypatch, tmp_path, "vendor_id : GenuineIntel\nflags : avx2\n")
    assert processor.bfloat16_is_slow()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"])
    assert not processor.bfloat16_is_slow()


@pytest.mark.parametrize(
    ("devices", "expected"),
    [([""], True), (["cpu:0"], True), (["/job:worker/task:0/device:GPU:0"], False)],
)
def test_what_meshes_make_of_it(monkeypatch, devices, expected):
    """Workers' processors are taken to be of this one's kind."""
    monkeypatch.setattr("decoupled.ops.placement.bfloat16_is_slow", lambda: True)
    mesh = PlacementMeshImpl("all:1", "", devices)
    assert mesh.multiplies_in_float32 == expected
