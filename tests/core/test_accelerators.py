"""GPUs, TPUs and JAX's packages: read from folders that stand for a machine's."""

import os
import pwd
import sys

# Loaded before the installed packages are replaced.
import packaging.specifiers  # noqa: F401
import pytest

from decoupled.core import accelerators
from decoupled.core.errors import UserError

NEEDED = "libtpu==0.0.48.*; extra == 'tpu'"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes the given packages the only ones that are installed."""

    def make(**versions):
        for name, version in versions.items():
            folder = tmp_path / f"{name}-{version}.dist-info"
            folder.mkdir()
            needs = f"Requires-Dist: {NEEDED}\n" if name == "jax" else ""
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
            (folder / "METADATA").write_text(text)
        library = [path for path in sys.path if "-packages" not in path]
        monkeypatch.setattr("sys.path", [str(tmp_path), *library])

    return make


def cuda(release, version):
    parts = ("plugin", "pjrt")
    return {f"jax_cuda{release}_{part}": version for part in parts}


JAX = {"jax": "0.11.2", "jaxlib": "0.11.2"}


@pytest.mark.parametrize(
    "kind, packages",
    [
        ("cpu", {}),
        ("gpu", JAX),
        ("gpu", JAX | cuda(13, "0.11.2.1")),
        ("tpu", JAX | {"libtpu": "0.0.48.1"}),
        # What another kind of device would not bear.
        ("cpu", JAX | cuda(12, "0.10.0") | cuda(13, "0.11.2") | {"libtpu": "0.1"}),
        ("gpu", JAX | {"tensorflow_tpu": "2.20.0"}),
    ],
)
def test_packages_that_fit(install, kind, packages):
    install(**packages)
    assert accelerators.mistakes(kind) == []
    accelerators.check(kind, print)


@pytest.mark.parametrize(
    "kind, packages, said",
    [
        (
            "cpu",
            {"jax": "0.11.2", "jaxlib": "0.10.2"},
            "jaxlib 0.10.2 cannot be used with jax 0.11.2: pip install --upgrade "
            "'jax==0.11.2'",
        ),
        ("cpu", {"jax": "0.11.2"}, "jaxlib (missing) cannot be used with jax"),
        (
            "gpu",
            JAX | cuda(13, "0.11.1"),
            "jax-cuda13-plugin 0.11.1 cannot be used with jax 0.11.2: pip install "
            "--upgrade 'jax[cuda13]==0.11.2'",
        ),
        (
            "gpu",
            JAX | cuda(12, "0.11.2") | {"jax_cuda12_pjrt": "0.11.0"},
            "jax-cuda12-pjrt 0.11.0 cannot .* 'jax[cuda12]==0.11.2'",
        ),
        (
            "gpu",
            JAX | cuda(12, "0.11.2") | cuda(13, "0.11.2"),
            "both installed, .* pip uninstall jax-cuda12-plugin jax-cuda12-pjrt",
        ),
        (
            "tpu",
            JAX | {"libtpu": "0.0.47"},
            "libtpu 0.0.47 cannot be used with jax 0.11.2, which needs ==0.0.48.*: pip "
            "install --upgrade 'jax[tpu]==0.11.2'",
        ),
        ("tpu", JAX | {"tensorflow_tpu": "2.20.0"}, "pip uninstall tensorflow-tpu; "),
    ],
)
def test_packages_that_do_not_fit(install, kind, packages, said):
    install(**packages)
    with pytest.raises(UserError) as refused:
        accelerators.check(kind, print)
    message = str(refused.value)
    assert message.startswith(f"--accelerator={kind}: ")
    assert all(part in message for part in said.split(".*"))


@pytest.mark.parametrize(
    "line, release, fits",
    [
        ("NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu", "535.129.03", "cuda12"),
        (
            "NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build",
            "580.65.06",
            "cuda",
        ),
        ("something else", None, "cuda"),
        (None, None, "cuda"),
    ],
)
def test_the_release_of_the_driver_chooses_the_extra(tmp_path, line, release, fits):
    if line is not None:
        folder = tmp_path / "proc" / "driver" / "nvidia"
        folder.mkdir(parents=True)
        (folder / "version").write_text(f"NVRM version: {line}\nGCC version: 12.3\n")
    assert accelerators.nvidia_driver(tmp_path) == release
    assert accelerators.cuda_extra(tmp_path) == fits


def test_libraries_from_outside_of_the_packages(tmp_path, monkeypatch):
    inside, outside, system = (tmp_path / n for n in ("site", "cuda lib", "system"))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/elsewhere::{outside}")
    paths = (
        inside / "nvidia" / "cu13" / "lib" / "libcublas.so.13",
        outside / "libcublasLt.so.12",
        outside / "libcublasLt.so.12",
        system / "libcudnn_ops.so.9",
        system / "libc.so.6",
    )
    maps = "".join(f"7f00-7f01 r-xp 00000000 08:01 12345   {path}\n" for path in paths)
    maps += "7f02-7f03 rw-p 00000000 00:00 0\n7f04-7f05 rw-p 00000000 00:00 0  [heap]\n"
    assert accelerators.foreign_libraries(maps, ["", str(inside)]) == [
        f"{outside}/libcublasLt.so.12 (by LD_LIBRARY_PATH: unset it)",
        f"{system}/libcudnn_ops.so.9 (by the system's own list of libraries, "
        "/etc/ld.so.conf)",
    ]
    assert accelerators.foreign_libraries() == []


@pytest.fixture
def machine(tmp_path):
    """A machine with TPUs; returns a function that adds a process."""
    (tmp_path / "dev" / "vfio").mkdir(parents=True)
    for name in ("accel0", "vfio/0", "vfio/vfio"):
        (tmp_path / "dev" / name).touch()

    def add(pid, *opened, command=b"python\0-m\0x\x1b\0"):
        descriptors = tmp_path / "proc" / str(pid) / "fd"
        descriptors.mkdir(parents=True)
        (descriptors.parent / "cmdline").write_bytes(command)
        for number, path in enumerate(opened):
            (descriptors / str(number)).symlink_to(path)

    return add


def test_who_uses_a_tpu(machine, tmp_path):
    machine(12, "/dev/null", "/dev/vfio/vfio")
    machine(7, "/dev/null", "/dev/accel0", "/dev/vfio/0")
    machine(os.getpid(), "/dev/accel0")
    (tmp_path / "proc" / "8").mkdir()
    assert accelerators.tpu_devices(tmp_path) == ["/dev/accel0", "/dev/vfio/0"]
    user = pwd.getpwuid(os.getuid()).pw_name
    assert accelerators.tpu_holders(tmp_path) == [
        rf"{device} is used by process 7 of {user}: python -m x\x1b"
        for device in ("/dev/accel0", "/dev/vfio/0")
    ]


def test_a_lock_that_is_left(machine, tmp_path):
    assert accelerators.stale_lock(tmp_path) == ""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "libtpu_lockfile").touch()
    assert "rm /tmp/libtpu_lockfile" in accelerators.stale_lock(tmp_path)
    machine(7, "/dev/accel0")
    assert accelerators.stale_lock(tmp_path) == ""


def test_a_tpu_that_is_in_use_is_waited_for(install, monkeypatch):
    install()
    for name in accelerators._SHARES:
        monkeypatch.delenv(name, raising=False)
    holder = "/dev/accel0 is used by process 7 of ann: python x"
    states, lines = [[holder], [holder], []], []
    monkeypatch.setattr(accelerators, "tpu_holders", lambda: states.pop(0))
    monkeypatch.setattr(accelerators.time, "sleep", lambda seconds: None)
    accelerators.check("tpu", lines.append)
    assert lines == [f"{holder}; waiting for at most 60 s"] and not states

    monkeypatch.setattr(accelerators, "_PATIENCE", -1.0)
    monkeypatch.setattr(accelerators, "tpu_holders", lambda: [holder])
    with pytest.raises(UserError, match="=tpu: /dev/accel0 is used by process 7 of"):
        accelerators.check("tpu", print)
    # A process that takes some chips of a host may have others beside it.
    monkeypatch.setenv("TPU_VISIBLE_CHIPS", "0")
    accelerators.check("tpu", print)
