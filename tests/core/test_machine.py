"""What a machine says of its processor, its GPUs and its memory."""

import os
import sys

import pytest

from decoupled.core import machine
from decoupled.core.machine import (
    Processor,
    available_memory,
    memory_sizes,
    processor,
    readable_bytes,
)
from tests.processes import run_python

MEMINFO = "MemTotal: 100 kB\nMemAvailable:    64 kB\nSwapFree:  16 kB\n"
FREE = 80 * 1024


@pytest.fixture
def system(tmp_path):
    """Writes files of a system below tmp_path, whose path it returns."""

    def write(own_groups="", **contents):
        (tmp_path / "proc" / "self").mkdir(parents=True)
        (tmp_path / "proc" / "meminfo").write_text(MEMINFO)
        (tmp_path / "proc" / "self" / "cgroup").write_text(own_groups)
        for folder, files in contents.items():
            below = tmp_path / "sys" / "fs" / "cgroup" / folder.replace("__", "/")
            below.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (below / name).write_text(content)
        return str(tmp_path)

    return write


def group_2(limit, used, inactive=0):
    stat = f"anon 1\ninactive_file {inactive}\nactive_file 9\ntotal_inactive_file 77\n"
    return {
        "memory.max": f"{limit}\n",
        "memory.current": f"{used}\n",
        "memory.stat": stat,
    }


def group_1(limit, used, inactive=0):
    stat = f"cache 9\ninactive_file 77\ntotal_inactive_file {inactive}\n"
    return {
        "memory.limit_in_bytes": f"{limit}\n",
        "memory.usage_in_bytes": f"{used}\n",
        "memory.stat": stat,
    }


def test_a_system_that_does_not_say(tmp_path):
    assert available_memory(str(tmp_path)) is None
    assert memory_sizes(str(tmp_path)) == {}


JOB, OLD_JOB = "0::/job\n", "12:cpu,cpuacct:/other\n4:memory:/job\n"
# How many bytes are left: the groups of a process, and what each of them says.
GROUPS = {
    "none": ("", {}, FREE),
    "nothing used": (JOB, {"job": group_2(5000, 0)}, 5000),
    "used": (JOB, {"job": group_2(5000, 4000)}, 1000),
    "used by files that can go": (JOB, {"job": group_2(5000, 4000, 1500)}, 2500),
    "version 1": (OLD_JOB, {"memory__job": group_1(5000, 4000, 1500)}, 2500),
    "the inner is the tightest": (
        "0::/a/b\n", {"a__b": group_2(5000, 4000), "a": group_2(6000, 100)}, 1000
    ),
    "the outer is the tightest": (
        "0::/a/b\n", {"a__b": group_2(6000, 100), "a": group_2(5000, 4000)}, 1000
    ),
    # The path is that of the host, which cannot be seen from inside.
    "a container": ("4:memory:/docker/01\n", {"memory": group_1(5000, 1000)}, 4000),
    "no limit": (JOB, {"job": group_2("max", 4000)}, FREE),
    "no limit in version 1": (
        "4:memory:/\n", {"memory": group_1(9223372036854771712, 4000)}, FREE
    ),
    # As after the limit was lowered.
    "more than the limit": (JOB, {"job": group_2(5000, 9000)}, 0),
    "elsewhere": ("0::/../../elsewhere\n", {"elsewhere": group_2("x", "y")}, FREE),
    "another line": ("no line of this kind\n", {}, FREE),
    "a colon alone": (":", {}, FREE),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPS)
def test_what_the_tightest_of_the_groups_around_a_process_has_left(system, name):
    own_groups, contents, left = GROUPS[name]
    assert available_memory(system(own_groups, **contents)) == left


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.00 KiB"),
        (3.5 * 2**20, "3.50 MiB"),
        (2**20 - 1, "1.00 MiB"),
        (15.2 * 2**30, "15.20 GiB"),
        (2**50, "1,024.00 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_bytes_stand_in_the_unit_that_suits_them(count, text):
    assert readable_bytes(count) == text


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of mappings")
def test_pages_of_libraries_are_released_and_read_again():
    code = """
import re
import numpy as np
from decoupled.core.machine import release_library_pages

def of_files():
    return int(re.search(r"RssFile:\\s+(\\d+)", open("/proc/self/status").read())[1])

matrix = np.arange(9.0).reshape(3, 3) + np.eye(3)
expected = np.linalg.inv(matrix)
before = of_files()
release_library_pages()
print(of_files() < before / 2)
print((np.linalg.inv(matrix) == expected).all(), np.fft.fft([1.0, 0.0]))
"""
    done = run_python(code)
    assert done.stdout == "True\nTrue [1.+0.j 1.+0.j]\n"


CORES = """processor	: 0
vendor_id	: GenuineIntel
cpu family	: 6
model		: 143
model name	: Intel(R) Xeon(R) @ 2: fast
flags		: fpu avx2 avx512f

processor	: 1
vendor_id	: Other
model name	: other
flags		: amx_bf16
"""


def described_as(root, text):
    (root / "proc").mkdir()
    (root / "proc" / "cpuinfo").write_text(text)
    return processor(str(root))


def test_the_first_core_speaks_for_all(tmp_path):
    assert described_as(tmp_path, CORES) == Processor(
        "Intel(R) Xeon(R) @ 2: fast",
        "GenuineIntel",
        frozenset({"fpu", "avx2", "avx512f"}),
        "family 6, model 143",
    )


def test_arm(tmp_path):
    result = described_as(tmp_path, "processor : 0\nFeatures : asimd bf16\n")
    assert (result.vendor, result.flags) == ("", {"asimd", "bf16"})
    assert result.name


@pytest.mark.parametrize("text", ["", "\x00\xff", "model name\n\n:\n"])
def test_one_that_does_not_say(tmp_path, text):
    result = described_as(tmp_path, text)
    assert (result.vendor, result.flags) == ("", frozenset())
    assert result.name


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    assert 1 <= machine.usable_cores() <= os.cpu_count()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    assert machine.usable_cores() == 1


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
        machine, "_NVIDIA_SMI", tool(tmp_path, f"cat <<'END'\n{listed}\nEND")
    )
    assert machine.nvidia_gpus() == 2


@pytest.mark.parametrize("text", [None, "exit 9"], ids=["no tool", "no driver"])
def test_gpus_without_the_tool_are_files_of_devices(monkeypatch, tmp_path, text):
    program = tool(tmp_path, text) if text else str(tmp_path / "missing")
    monkeypatch.setattr(machine, "_NVIDIA_SMI", program)
    monkeypatch.setattr(machine, "_DEVICES", str(tmp_path))
    assert machine.nvidia_gpus() == 0
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert machine.nvidia_gpus() == 2


@pytest.mark.parametrize(
    "flags, before, after",
    [("avx avx2", None, "1"), ("avx", None, None), ("avx avx2", "0", "0")],
)
def test_onednn_computes_where_there_is_avx2(flags, before, after, monkeypatch):
    result = Processor("", "", frozenset(flags.split()))
    monkeypatch.setattr(machine, "processor", lambda: result)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", before or "")
    if before is None:
        monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    machine.choose_kernels()
    assert os.environ.get("TF_ENABLE_ONEDNN_OPTS") == after
