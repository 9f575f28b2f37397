"""GPUs, TPUs and JAX's packages, as the system and the packages describe themselves.

Imports neither JAX nor TensorFlow. `decoupled doctor` prints what this module finds,
and a run with --accelerator calls `check` before it starts JAX, which would compute on
the CPU or hang if something of this is wrong.
"""

import contextlib
import importlib.metadata
import os
import pathlib
import pwd
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from decoupled.core.errors import UserError, printable
from decoupled.core.installed import Requirement

# The first release of NVIDIA's driver for CUDA 13.
CUDA_13_DRIVER = 580
# Variables of the environment of a process that has only some chips of its host.
_SHARES = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES", "TPU_PROCESS_BOUNDS")
# Seconds for which the chips of a process that was killed may still be held.
_PATIENCE = 60.0
_CUDA_PACKAGES = tuple(
    f"jax-cuda{release}-{part}" for release in (12, 13) for part in ("plugin", "pjrt")
)
_LIBRARY = re.compile(r"lib(?:cublas|cudnn|nccl)\w*\.so")


def check(kind: str, say: Callable[[str], None]) -> None:
    """Checks the packages for a kind of device, and waits for a TPU that is in use."""
    if lines := mistakes(kind):
        raise UserError(f"--accelerator={kind}: {lines[0]}")
    if kind == "tpu" and not any(os.environ.get(name) for name in _SHARES):
        _wait_for_tpu(say)


def _wait_for_tpu(say):
    deadline = None
    while holders := tpu_holders():
        if deadline is None:
            deadline = time.monotonic() + _PATIENCE
            say(f"{holders[0]}; waiting for at most {_PATIENCE:.0f} s")
        elif time.monotonic() > deadline:
            raise UserError(f"--accelerator=tpu: {holders[0]}; end it or wait for it")
        time.sleep(1)


# ---- Packages ----------------------------------------------------------------------


def jax_packages() -> dict[str, str]:
    """Name and version of what is installed of JAX and its plugins."""
    names = ("jax", "jaxlib", *_CUDA_PACKAGES, "libtpu", "tensorflow-tpu")
    versions = {name: Requirement(name, "", ()).installed for name in names}
    return {name: version for name, version in versions.items() if version}


def mistakes(kind: str) -> list[str]:
    """What cannot work in the installed packages, for one kind of device."""
    packages = jax_packages()
    if "jax" not in packages:
        return []
    cuda = [name for name in _CUDA_PACKAGES if name in packages]
    lines = [
        f"{name} {packages.get(name, '(missing)')} cannot be used with jax "
        f"{packages['jax']}: {_cure(kind, packages)}"
        for name in ("jaxlib", *(cuda if kind == "gpu" else []))
        if _release(packages.get(name, "")) != _release(packages["jax"])
    ]
    if kind == "gpu" and len({name.split("-")[1] for name in cuda}) > 1:
        other = _CUDA_PACKAGES[:2] if cuda_extra() == "cuda" else _CUDA_PACKAGES[2:]
        lines.append(
            "JAX's plugins for CUDA 12 and for CUDA 13 are both installed, and it can "
            f"use one of them: pip uninstall {' '.join(other)}"
        )
    if kind == "tpu":
        lines += _mistakes_of_libtpu(packages)
    return lines


def _mistakes_of_libtpu(packages):
    if "tensorflow-tpu" in packages:
        yield (
            "tensorflow-tpu loads a libtpu of its own before JAX can: pip uninstall "
            "tensorflow-tpu; pip install --force-reinstall tensorflow"
        )
    for line in importlib.metadata.requires("jax") or []:
        limits = re.match(r"libtpu *\(?([^;)]+)", line)
        if not limits or "libtpu" not in packages:
            continue
        if not Requirement("libtpu", limits[1], ()).fits:
            yield (
                f"libtpu {packages['libtpu']} cannot be used with jax "
                f"{packages['jax']}, which needs {limits[1].strip()}: "
                f"{_cure('tpu', packages)}"
            )


def _cure(kind, packages):
    extra = {"tpu": "[tpu]", "cpu": ""}.get(kind)
    if extra is None:
        extra = "[cuda12]" if "jax-cuda12-plugin" in packages else "[cuda13]"
    return f"pip install --upgrade 'jax{extra}=={packages['jax']}'"


def _release(version):
    """The first three numbers: plugins of 0.12.0.1 are for 0.12.0."""
    return re.findall(r"\d+", version)[:3]


# ---- GPUs --------------------------------------------------------------------------


def nvidia_driver(root: str = "/") -> str | None:
    """The version of NVIDIA's driver, None if there is none or it does not say."""
    with contextlib.suppress(OSError):
        text = pathlib.Path(root, "proc/driver/nvidia/version").read_text()
        if line := re.search(r"Kernel Module(?: for \S+)? +(\d[\d.]*)", text):
            return line[1]
    return None


def cuda_extra(root: str = "/") -> str:
    """The extra whose CUDA fits the driver: "cuda" or "cuda12"."""
    driver = nvidia_driver(root)
    is_old = driver is not None and int(driver.partition(".")[0]) < CUDA_13_DRIVER
    return "cuda12" if is_old else "cuda"


def extra(kind: str) -> str:
    """The extra with which JAX comes for one kind of device."""
    return {"cpu": "xla", "tpu": "tpu_vm"}.get(kind) or cuda_extra()


def foreign_libraries(
    maps: str | None = None, packages: Sequence[str] | None = None
) -> list[str]:
    """Lines on loaded libraries of CUDA that are not those of pip's packages.

    `maps` defaults to /proc/self/maps, `packages` (folders) to sys.path.
    """
    if maps is None:
        with contextlib.suppress(OSError), open("/proc/self/maps") as file:
            maps = file.read()
    folders = [f"{os.path.realpath(path)}/" for path in packages or sys.path if path]
    mapped_paths = re.findall(r"^(?:\S+ +){5}(/.*)$", maps or "", re.MULTILINE)
    paths = {path for path in mapped_paths if _LIBRARY.match(os.path.basename(path))}
    foreign_paths = (p for p in paths if not p.startswith(tuple(folders)))
    return [f"{path} ({_loader_setting(path)})" for path in sorted(foreign_paths)]


def _loader_setting(path):
    """What made the loader choose a library, and what to do."""
    for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if entry and os.path.realpath(entry) == os.path.dirname(path):
            return "by LD_LIBRARY_PATH: unset it"
    return "by the system's own list of libraries, /etc/ld.so.conf"


# ---- TPUs --------------------------------------------------------------------------


def tpu_devices(root: str = "/") -> list[str]:
    """The device files of TPU chips, such as /dev/accel0 (to v4) and /dev/vfio/0."""
    dev = pathlib.Path(root, "dev")
    files = [*dev.glob("accel[0-9]*"), *dev.glob("vfio/[0-9]*")]
    return [f"/{path.relative_to(root)}" for path in sorted(files)]


def tpu_holders(root: str = "/") -> list[str]:
    """Lines on other processes that have opened a TPU, as far as this user sees."""
    devices = set(tpu_devices(root))
    processes = pathlib.Path(root, "proc").glob("[0-9]*") if devices else ()
    pairs = [
        (device, int(process.name), process)
        for process in processes
        if int(process.name) != os.getpid()
        for device in devices.intersection(_opened(process))
    ]
    return [
        f"{device} is used by process {pid} of {_user_and_command(process)}"
        for device, pid, process in sorted(pairs)
    ]


def _opened(process: pathlib.Path) -> Iterator[str]:
    """The paths of files that a process has opened."""
    # The process may have ended or be another user's.
    with contextlib.suppress(OSError):
        for number in os.listdir(process / "fd"):
            with contextlib.suppress(OSError):
                yield os.readlink(process / "fd" / number)


def _user_and_command(process: pathlib.Path) -> str:
    user, command = "another user", "?"
    with contextlib.suppress(OSError, KeyError):
        user = pwd.getpwuid(process.stat().st_uid).pw_name
    with contextlib.suppress(OSError):
        words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        command = printable(b" ".join(words).decode(errors="replace"))[:80]
    return f"{user}: {command}"


def stale_lock(root: str = "/") -> str:
    """A line about libtpu's lock if it is there and nobody seems to use the TPU."""
    lock = pathlib.Path(root, "tmp/libtpu_lockfile")
    if not lock.exists() or tpu_holders(root):
        return ""
    return (
        "/tmp/libtpu_lockfile is there, and no process that uses a TPU can be seen; "
        "if JAX says that the TPU is in use: rm /tmp/libtpu_lockfile"
    )
