"""Memory: what this machine or this container has left, and bytes in readable units.

Linux says what is free in the whole machine. A container, a batch system or systemd
limits groups of processes ("control groups", of version 1 or 2) further; what a group
has left is its limit without what its processes use. Files that the system keeps in
memory count as used there, although it gives the inactive ones up when asked.
"""

import contextlib
import ctypes
import os
import re
from collections.abc import Iterator
from typing import NamedTuple


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


# In /proc/self/smaps: the addresses of a library's part that cannot be written to, and
# that has no page of its own, as one that relocation has written to does.
_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) r-[x-]p .*\.so[.0-9]*\n(?:\w+:.*\n)*?Anonymous: +0 kB$",
    re.MULTILINE,
)
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


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


def available_memory(root: str = "/") -> int | None:
    """Bytes that a new process can have, swap included where no group limits it.

    Args:
      root: where /proc and /sys are.

    Returns:
      None where the system does not say, which is not Linux then.
    """
    content = _content(os.path.join(root, "proc/meminfo"))
    numbers = dict(re.findall(r"^(\w+): +(\d+) kB", content, re.MULTILINE))
    if "MemAvailable" not in numbers:
        return None
    free = 1024 * (int(numbers["MemAvailable"]) + int(numbers.get("SwapFree", 0)))
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
        with open(path, encoding="utf-8") as handle:
            return handle.read()
    except OSError:
        return ""
