"""This machine: its processor, GPUs and memory, as the system describes them.

Needs nothing but Python.

Linux says what memory is free in the whole machine. A container, a batch system or
systemd limits groups of processes ("control groups", of version 1 or 2) further; what a
group has left is its limit without what its processes use. Files that the system keeps
in memory count as used there, although it gives the inactive ones up where memory is
short.
"""

import contextlib
import ctypes
import functools
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

_DEVICES = "/dev"
# NVIDIA's tool, and how long it may take where its driver hangs.
_NVIDIA_SMI, _SECONDS = "nvidia-smi", 20
# Instruction sets that the speed of training depends on.
_FEATURES = "avx avx2 fma avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile".split()
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
# In /proc/self/smaps: the addresses of a library's part that cannot be written to, and
# that has no page of its own, as one that relocation has written to does.
_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p .*\.so[.0-9]*\n(?:\w+:.*\n)*?Anonymous: +0 kB$",
    re.MULTILINE,
)


class Processor(NamedTuple):
    """name: of the model. vendor: such as "AuthenticAMD", "" where unknown. flags: its
    instruction sets as Linux names them; none where it does not."""

    name: str
    vendor: str
    flags: frozenset[str]

    def features(self) -> list[str]:
        """The instruction sets that the speed of training depends on."""
        return [name for name in _FEATURES if name in self.flags]

    def multiplies_bfloat16(self) -> bool:
        """Whether it has instructions that multiply matrices of bfloat16."""
        return not self.flags.isdisjoint(("avx512_bf16", "amx_bf16"))


@functools.cache
def processor(root: str = "/") -> Processor:
    """The first core, to which the others of a machine are alike.

    Args:
      root: where /proc is.
    """
    found = {}
    for line in _content(os.path.join(root, "proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    return Processor(
        found.get("model name") or platform.processor() or platform.machine(),
        found.get("vendor_id", ""),
        # An ARM core has "Features".
        frozenset(found.get("flags", found.get("Features", "")).split()),
    )


def usable_cores() -> int:
    """Cores that this process may use, which a container or taskset can limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def nvidia_gpus() -> int:
    """GPUs of NVIDIA that this process may use, whether or not TensorFlow can.

    A line of `nvidia-smi -L` each; where that tool is missing, a device file each.
    """
    try:
        done = subprocess.run(
            [_NVIDIA_SMI, "-L"], capture_output=True, text=True, timeout=_SECONDS
        )
        if done.returncode == 0:
            return sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    except (OSError, subprocess.TimeoutExpired):
        pass
    return len(list(pathlib.Path(_DEVICES).glob("nvidia[0-9]*")))


class _Version(NamedTuple):
    """A version of control groups: its folder, and the names of its files and lines."""

    folder: str
    limit: str
    used: str
    inactive: str


_VERSIONS = {
    "1": _Version(
        "sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
    "2": _Version("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
}


def readable_bytes(count: float, digits: int = 2) -> str:
    """Bytes in the unit that suits them: "512 bytes", "3.50 MiB", "15.20 GiB".

    Args:
      digits: behind the point.
    """
    value, unit = float(count), 0
    # A number that rounds to 1024 belongs to the next unit.
    while round(abs(value), digits) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.{digits if unit else 0}f} {_UNITS[unit]}"


def release_library_pages() -> None:
    """Takes the pages of shared libraries out of this process that it only reads.

    Loading TensorFlow 2.21 reads some 400 MB of its libraries, and training half of
    them again: the system maps these pages anew, from its cache of files, where they
    are used. Pages that this process has written to stay. Linux only; elsewhere nothing
    happens.
    """
    # linux/mman.h: the next access reads the file again.
    dont_need = 4
    with contextlib.suppress(OSError), open("/proc/self/smaps") as maps:
        found = _MAPPING.findall(maps.read())
        libc = ctypes.CDLL(None)
        for first, last in found:
            start = int(first, 16)
            size = ctypes.c_size_t(int(last, 16) - start)
            libc.madvise(ctypes.c_void_p(start), size, dont_need)


def choose_kernels() -> None:
    """Has TensorFlow take oneDNN's kernels on every x86 processor with AVX2.

    By itself it takes them where there is AVX-512 VNNI. On an EPYC without it they
    compute steps of training in 0.82 of the time, in less memory (docs/performance.md).
    TF_ENABLE_ONEDNN_OPTS=0 turns them off.
    """
    if "avx2" in processor().flags:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def memory_sizes(root: str = "/") -> dict[str, int]:
    """Entries of /proc/meminfo in bytes, such as MemTotal; none where it is not Linux.

    Args:
      root: where /proc is.
    """
    content = _content(os.path.join(root, "proc/meminfo"))
    found = re.findall(r"^(\w+): +(\d+) kB$", content, re.MULTILINE)
    return {name: 1024 * int(size) for name, size in found}


def available_memory(root: str = "/") -> int | None:
    """Bytes that a new process can have, swap included where no group limits it.

    Args:
      root: where /proc and /sys are.

    Returns:
      None where the system does not say, which is not Linux then.
    """
    sizes = memory_sizes(root)
    if "MemAvailable" not in sizes:
        return None
    free = sizes["MemAvailable"] + sizes.get("SwapFree", 0)
    return min([free, *_left_in_groups(root)])


def _left_in_groups(root: str) -> Iterator[int]:
    """What each limited group that this process belongs to has left."""
    for version, own in _own_groups(_content(os.path.join(root, "proc/self/cgroup"))):
        names = _VERSIONS[version]
        folder = os.path.join(root, names.folder)
        # The limits of all groups around a group hold, too. Inside a container the
        # outer ones are not there, and its own may stand where the outermost would.
        parts = [part for part in own.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            left = _left(os.path.join(folder, *parts[:depth]), names)
            if left is not None:
                yield left


def _own_groups(content: str) -> Iterator[tuple[str, str]]:
    """(version, path) of each group, of lines such as "4:memory:/a" and "0::/a"."""
    for line in content.splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0" and not controllers:
            yield "2", path
        elif "memory" in controllers.split(","):
            yield "1", path


def _left(folder: str, names: _Version) -> int | None:
    """A group's limit without what cannot be given up; None where it has no limit."""
    limit = _content(os.path.join(folder, names.limit)).strip()
    used = _content(os.path.join(folder, names.used)).strip()
    # "max" stands for no limit.
    if not (limit.isdigit() and used.isdigit()):
        return None
    lines = _content(os.path.join(folder, "memory.stat"))
    inactive = re.search(rf"^{names.inactive} (\d+)$", lines, re.MULTILINE)
    given_up = int(inactive[1]) if inactive else 0
    return max(0, int(limit) - max(0, int(used) - given_up))


def _content(path: str) -> str:
    """The text of a file of the system; "" where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""
