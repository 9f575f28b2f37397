"""What a processor says of itself."""

import os

import pytest

from decoupled import processor
from decoupled.processor import Processor

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
