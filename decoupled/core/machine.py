"""This machine: its processor, GPUs and memory, as the system describes them.

This module needs only Python.

Linux reports the free memory of the whole machine. A container, a batch system or
systemd can limit groups of processes further ("control groups", version 1 or 2). The
free memory of a group is its limit minus the memory that its processes use. Cached
files count as used there, although the system drops inactive ones if memory is short.
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
# NVIDIA's tool, and its time limit in seconds, as its driver may hang.
_NVIDIA_SMI, _SECONDS = "nvidia-smi", 20
# Instruction sets that the speed of training depends on.
_FEATURES = "avx avx2 fma avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile".split()
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
# In /proc/self/smaps: the addresses of a part of a library that is not writable and has
# no private page, as a part that relocation has written to would have.
_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p .*\.so[.0-9]*\n(?:\w+:.*\n)*?Anonymous: +0 kB$",
    re.MULTILINE,
)


class Processor(NamedTuple):
    """name: of the model. vendor: such as "AuthenticAMD", "" if unknown. flags: its
    instruction sets by Linux's names; empty on other systems. generation: such as
    "family 26, model 2", which tells processors of one name apart; "" if unknown."""

    name: str
    vendor: str
    flags: frozenset[str]
    generation: str = ""

    def description(self) -> str:
        """Its name with its generation."""
        return ", ".join(filter(None, (self.name, self.generation)))

    def features(self) -> list[str]:
        """The instruction sets that the speed of training depends on."""
        return [name for name in _FEATURES if name in self.flags]

    def multiplies_bfloat16(self) -> bool:
        """Whether it has instructions for products of bfloat16 matrices."""
        return not self.flags.isdisjoint(("avx512_bf16", "amx_bf16"))


@functools.cache
def processor(root: str = "/") -> Processor:
    """The processor, as its first core describes it in /proc below `root`."""
    core = {}
    for line in _content(os.path.join(root, "proc/cpuinfo")).splitlines():
        name, _, value = line.partition(":")
        core.setdefault(name.strip(), value.strip())
    generation = ""
    if "cpu family" in core and "model" in core:
        generation = f"family {core['cpu family']}, model {core['model']}"
    return Processor(
        core.get("model name") or platform.processor() or platform.machine(),
        core.get("vendor_id", ""),
        # An ARM core has "Features".
        frozenset(core.get("flags", core.get("Features", "")).split()),
        generation,
    )


def usable_cores() -> int:
    """The number of cores for this process, which a container or taskset may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def nvidia_gpus() -> int:
    """The number of NVIDIA GPUs, also of those that no library here can use.

    It is the number of lines of `nvidia-smi -L` or, without that tool, of device files.
    """
    try:
        process = subprocess.run(
            [_NVIDIA_SMI, "-L"], capture_output=True, text=True, timeout=_SECONDS
        )
        if process.returncode == 0:
            return sum(line.startswith("GPU ") for line in process.stdout.splitlines())
    except (OSError, subprocess.TimeoutExpired):
        pass
    return nvidia_devices()


def nvidia_devices() -> int:
    """The number of device files of NVIDIA GPUs."""
    return len(list(pathlib.Path(_DEVICES).glob("nvidia[0-9]*")))


class _Version(NamedTuple):
    """A version of control groups: its folder, and the names of its files and lines."""

    folder: str
    limit: str
    usage: str
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
    """Bytes in a suitable unit: "512 bytes", "3.50 MiB", "15.20 GiB"."""
    value, unit = float(count), 0
    # A number that rounds to 1024 belongs to the next unit.
    while round(abs(value), digits) >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:,.{digits if unit else 0}f} {_UNITS[unit]}"


def release_library_pages() -> None:
    """Removes the read-only pages of shared libraries from this process's memory.

    Loading TensorFlow 2.21 reads some 400 MB of its libraries, and training needs only
    half of them. Linux maps the needed pages again from its file cache.
    """
    # linux/mman.h: the next access reads the file again.
    dont_need = 4
    with contextlib.suppress(OSError), open("/proc/self/smaps") as maps:
        mappings = _MAPPING.findall(maps.read())
        libc = ctypes.CDLL(None)
        for first, last in mappings:
            start = int(first, 16)
            size = ctypes.c_size_t(int(last, 16) - start)
            libc.madvise(ctypes.c_void_p(start), size, dont_need)


def choose_kernels() -> None:
    """Makes TensorFlow use oneDNN's kernels on every x86 processor with AVX2."""
    # By default it does so only with AVX-512 VNNI. Without VNNI, they reduce the time
    # of a step to 0.82 (docs/performance.md). TF_ENABLE_ONEDNN_OPTS=0 turns them off.
    if "avx2" in processor().flags:
        os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")


def memory_sizes(root: str = "/") -> dict[str, int]:
    """Entries of /proc/meminfo in bytes, such as MemTotal; empty on other systems."""
    content = _content(os.path.join(root, "proc/meminfo"))
    entries = re.findall(r"^(\w+): +(\d+) kB$", content, re.MULTILINE)
    return {name: 1024 * int(size) for name, size in entries}


def available_memory(root: str = "/") -> int | None:
    """Bytes available to a new process, including swap if no group limits it.

    None if the system does not report it, that is, on other systems than Linux.
    """
    sizes = memory_sizes(root)
    if "MemAvailable" not in sizes:
        return None
    free = sizes["MemAvailable"] + sizes.get("SwapFree", 0)
    return min([free, *_free_in_groups(root)])


def _free_in_groups(root: str) -> Iterator[int]:
    for version, group in _cgroups(_content(os.path.join(root, "proc/self/cgroup"))):
        names = _VERSIONS[version]
        folder = os.path.join(root, names.folder)
        # The limits of all outer groups hold as well. Inside a container the outer
        # groups are invisible, and the container's own group may be at the path of the
        # root.
        parts = [part for part in group.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            free_bytes = _free_in_group(os.path.join(folder, *parts[:depth]), names)
            if free_bytes is not None:
                yield free_bytes


def _cgroups(content: str) -> Iterator[tuple[str, str]]:
    """(version, path) of each group, from lines such as "4:memory:/a" and "0::/a"."""
    for line in content.splitlines():
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0" and not controllers:
            yield "2", path
        elif "memory" in controllers.split(","):
            yield "1", path


def _free_in_group(folder: str, names: _Version) -> int | None:
    """A group's limit minus the memory that cannot be freed; None without a limit."""
    limit = _content(os.path.join(folder, names.limit)).strip()
    usage = _content(os.path.join(folder, names.usage)).strip()
    # "max" stands for no limit.
    if not (limit.isdigit() and usage.isdigit()):
        return None
    lines = _content(os.path.join(folder, "memory.stat"))
    inactive = re.search(rf"^{names.inactive} (\d+)$", lines, re.MULTILINE)
    freeable_bytes = int(inactive[1]) if inactive else 0
    return max(0, int(limit) - max(0, int(usage) - freeable_bytes))


def _content(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""
