"""What a processor says of itself."""

import os

import pytest

from decoupled.core import processor
from decoupled.core.processor import Processor

CORES = """processor	: 0
vendor_id	: GenuineIntel
model name	: Intel(R) Xeon(R) @ 2: fast
flags		: fpu avx2 avx512f

processor	: 1
vendor_id	: Other
model name	: other
flags		: amx_bf16
"""


@pytest.fixture(autouse=True)
def forget():
    """What other tests have found, and what these find."""
    processor.processor.cache_clear()
    yield
    processor.processor.cache_clear()


def described_as(monkeypatch, tmp_path, text):
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    monkeypatch.setattr(processor, "_DESCRIPTION", str(path))
    return processor.processor()


def test_the_first_core_speaks_for_all(monkeypatch, tmp_path):
    assert described_as(monkeypatch, tmp_path, CORES) == Processor(
        "Intel(R) Xeon(R) @ 2: fast",
        "GenuineIntel",
        frozenset({"fpu", "avx2", "avx512f"}),
    )


def test_arm(monkeypatch, tmp_path):
    found = described_as(
        monkeypatch, tmp_path, "processor : 0\nFeatures : asimd bf16\n"
    )
    assert (found.vendor, found.flags) == ("", {"asimd", "bf16"})
    assert found.name


@pytest.mark.parametrize("text", ["", "\x00\xff", "model name\n\n:\n"])
def test_one_that_does_not_say(monkeypatch, tmp_path, text):
    found = described_as(monkeypatch, tmp_path, text)
    assert (found.vendor, found.flags) == ("", frozenset())
    assert found.name


def test_no_description(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "_DESCRIPTION", str(tmp_path / "none"))
    assert processor.processor().flags == frozenset()


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    assert 1 <= processor.usable_cores() <= os.cpu_count()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    assert processor.usable_cores() == 1


def tool(folder, text):
    """A stand-in for nvidia-smi."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_gpus_are_those_that_the_driver_s_tool_lists(monkeypatch, tmp_path):
    listed = (
        "GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 1g.5gb Device 0\nGPU 1: NVIDIA A100"
    )
    monkeypatch.setattr(
        processor, "_NVIDIA_SMI", tool(tmp_path, f"cat <<'END'\n{listed}\nEND")
    )
    assert processor.nvidia_gpus() == 2


@pytest.mark.parametrize("text", [None, "exit 9"], ids=["no tool", "no driver"])
def test_gpus_without_the_tool_are_files_of_devices(monkeypatch, tmp_path, text):
    program = tool(tmp_path, text) if text else str(tmp_path / "missing")
    monkeypatch.setattr(processor, "_NVIDIA_SMI", program)
    monkeypatch.setattr(processor, "_DEVICES", str(tmp_path))
    assert processor.nvidia_gpus() == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert processor.nvidia_gpus() == 2
