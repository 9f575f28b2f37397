"""Shows what is installed, what this machine has, and what the extras are for.

Needs only Python itself, so that it can also explain an installation that does not
work. Prints the installed and the required packages, processor, memory and disk,
whether TensorFlow computes, what GPUs and TPUs there are and whether JAX computes on
them, and the packages that each extra lacks. The exit code is 0 if training, evaluation
and export can run, and 1 otherwise.

Example:
  decoupled doctor
"""

import collections
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
from typing import Any

import decoupled
from decoupled.core import accelerators, endings
from decoupled.core.errors import UserError, printable
from decoupled.core.installed import CHECKOUT, EXTRAS, Requirement, requirements
from decoupled.core.machine import (
    available_memory,
    memory_sizes,
    nvidia_gpus,
    processor,
    readable_bytes,
    usable_cores,
)

PACKAGE = pathlib.Path(__file__).parent.parent
SUPPORTED = ((3, 10), (3, 14))
TPU_VARIABLES = (
    "TPU_NAME",
    "TPU_ACCELERATOR_TYPE",
    "TPU_WORKER_ID",
    "TPU_WORKER_HOSTNAMES",
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
)
# Seconds that TensorFlow or JAX may take.
_SECONDS = 180
# Lines of stderr that are shown where a device fails.
_LOG_LINES = 4
# Run by another interpreter: a TensorFlow built for another processor crashes it.
PROBE = """
import json
from decoupled.core.compat import mtf, tf, estimator
import gin, sentencepiece, tensorflow_text
total = tf.linalg.trace(tf.ones([2, 2])).numpy()
assert total == 2.0, total
print(json.dumps({"release": tf.__version__}))
"""
# As in a run, TensorFlow is imported first, so that JAX finds its libraries loaded.
JAX_PROBE = """
import json, sys
import decoupled.core.compat
from decoupled.core.accelerators import foreign_libraries
from decoupled.core.errors import UserError
from decoupled.training.xla.adapter import try_devices
answer = {"devices": [], "error": ""}
try:
    answer["devices"] = try_devices(sys.argv[1])
except Exception as error:
    answer["error"] = " ".join(str(error).split()) or repr(error)
print(json.dumps({**answer, "foreign": foreign_libraries()}))
"""


def main() -> int:
    """Prints the report; returns the exit code."""
    endings.call_command("decoupled doctor")
    words = sys.argv[2:]
    if {"-h", "-help", "--help"} & set(words):
        print(__doc__.strip())
        return 0
    if words:
        raise UserError(f"{words[0]!r}: takes no flags and no words")
    packages = requirements()
    report_python()
    report_packages(packages)
    report_machine()
    can_compute = report_core()
    report_accelerators()
    report_commands(packages, can_compute)
    return 0 if can_compute else 1


def report_python() -> None:
    """Prints the version of the project and of Python."""
    lowest, limit = SUPPORTED
    is_supported = lowest <= sys.version_info[:2] < limit
    use = f"use Python 3.{lowest[1]} to 3.{limit[1] - 1}"
    remark = "" if is_supported else f"  <- not supported: {use}"
    print(f"decoupled {decoupled.__version__} in {PACKAGE}")
    print(f"Python {platform.python_version()} in {sys.prefix}{remark}")


def report_packages(packages: list[Requirement]) -> None:
    """Prints each requirement, what is installed, and what is wrong with it."""
    print("\nPackages: installed (required)")
    if not packages:
        print("  unknown: decoupled is not installed; run make install")
    for package in packages:
        extras = f" [{','.join(package.extras)}]" if package.extras else ""
        name = package.name + extras
        limits = package.limits or "any"
        remark = "" if package.fits else "  <- another version is required"
        if package.installed is None:
            remark = "  <- missing"
        print(f"  {name:32} {package.installed or '-':12} ({limits}){remark}")
    versions = {package.name: package.installed for package in packages}
    core, text = versions.get("tensorflow"), versions.get("tensorflow-text")
    if core and text and core.split(".")[:2] != text.split(".")[:2]:
        print(
            f"  tensorflow-text {text} cannot be loaded beside tensorflow {core}: pip "
            f"install 'tensorflow-text=={'.'.join(core.split('.')[:2])}.*'"
        )


def report_machine() -> None:
    """Prints processor, memory and disk."""
    print("\nMachine")
    print(f"  {'system':12} {platform.platform()}")
    cpu = processor()
    print(f"  {'processor':12} {cpu.description()}, {usable_cores()} cores usable")
    print(f"  {'features':12} {' '.join(cpu.features()) or 'unknown'}")
    memory, free_bytes = "unknown", available_memory()
    if free_bytes is not None:
        total = memory_sizes()["MemTotal"]
        memory = f"{readable_bytes(total)}, {readable_bytes(free_bytes)} available"
    print(f"  {'memory':12} {memory}")
    temporary = os.getenv("TMPDIR", "/tmp")
    for name, folder in (("here", os.getcwd()), ("temporary", temporary)):
        try:
            state = f"{readable_bytes(shutil.disk_usage(folder).free)} free in"
        except OSError as error:
            state = f"cannot be used ({error.strerror}):"
        print(f"  {'disk, ' + name:12} {state} {folder}")


def report_core() -> bool:
    """Prints whether TensorFlow and Mesh-TensorFlow can compute; True if they can."""
    print("\nTensorFlow and Mesh-TensorFlow (some seconds)", flush=True)
    try:
        print(f"  TensorFlow {probe(PROBE)['release']} computes, on the CPU")
    except RuntimeError as error:
        print(f"  do not work: {error}")
        return False
    return True


def report_accelerators() -> None:
    """Prints GPUs and TPUs, JAX's packages, and whether JAX computes on the devices."""
    print("\nJAX, for --accelerator (some seconds)", flush=True)
    gpus, driver = nvidia_gpus(), accelerators.nvidia_driver()
    gpu = "none of NVIDIA"
    if gpus or driver:
        gpu = (
            f"{gpus} of NVIDIA, driver {driver or 'of unknown release'}: the extra "
            f"{accelerators.cuda_extra()} fits"
        )
    print(f"  {'GPU':12} {gpu}")
    chips, holders = accelerators.tpu_devices(), accelerators.tpu_holders()
    variables = [f"{n}={os.environ[n]}" for n in TPU_VARIABLES if os.getenv(n)]
    tpu = ", ".join([*variables, *chips]) or "none: no variable and no device"
    print(f"  {'TPU':12} {tpu}")
    for line in filter(None, (*holders, chips and accelerators.stale_lock())):
        print(f"  {'':12} {line}")
    packages = accelerators.jax_packages()
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    print(f"  {'packages':12} {versions or 'none'}")
    devices_of = {"gpu": gpus or driver, "tpu": chips}
    kinds = [kind for kind, devices in devices_of.items() if devices] or ["cpu"]
    lines = [line for kind in kinds for line in accelerators.mistakes(kind)]
    for line in dict.fromkeys(lines):
        print(f"  {'':12} {line}")
    for kind in kinds:
        if "jax" not in packages:
            extra = f"[{accelerators.extra(kind)}]"
            cure = f"pip install 'decoupled{extra}', or in a checkout '.{extra}'"
            print(f"  {kind:12} needs JAX: {cure}")
        elif kind != "tpu" or not holders:
            _report_devices(kind)


def _report_devices(kind):
    try:
        result = probe(JAX_PROBE, kind)
    except RuntimeError as error:
        result = {"error": str(error), "devices": [], "foreign": [], "log": []}
    if result["error"]:
        print(f"  {kind:12} does not work: {result['error']}")
        for line in result["log"]:
            print(f"  {'':12} {line}")
    for device, count in collections.Counter(result["devices"]).items():
        print(f"  {kind:12} {count} x {device}: compiles and computes")
    for line in result["foreign"]:
        print(f"  {'':12} used instead of JAX's own: {line}")


def probe(code: str, *arguments: str) -> dict[str, Any]:
    """JSON that code prints in another process, and `log`, its last lines of stderr.

    Raises:
      RuntimeError: it failed; the message is its last line, or its exit status.
    """
    paths = [str(CHECKOUT), os.getenv("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "TF_CPP_MIN_LOG_LEVEL": decoupled.LOG_LEVEL,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    try:
        run = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"no answer in {_SECONDS} seconds") from error
    if run.returncode < 0:
        reason = f"the interpreter was ended by signal {-run.returncode}"
        if -run.returncode == signal.SIGILL:
            reason += (
                "; this TensorFlow may be built for another processor (it needs AVX)"
            )
        raise RuntimeError(reason)
    if run.returncode:
        lines = run.stderr.strip().splitlines() or [f"exit code {run.returncode}"]
        raise RuntimeError(lines[-1].removeprefix("decoupled.core.errors.UserError: "))
    log = [printable(line)[:200] for line in run.stderr.splitlines()[-_LOG_LINES:]]
    return {**json.loads(run.stdout.splitlines()[-1]), "log": log}


def report_commands(packages: list[Requirement], can_compute: bool) -> None:
    """Prints whether commands can run, and what those with an extra lack."""
    print("\nCommands")
    missing = [package for package in packages if not package.installed]
    core = ", ".join(package.name for package in missing if not package.extras)
    if not can_compute:
        core = core or "TensorFlow and Mesh-TensorFlow to work (see above)"
    if core:
        print(f"  all but doctor need {core}: {_cure()}")
    else:
        print("  all can run, some of them with an extra:")
    for extra, purpose in EXTRAS.items():
        names = ", ".join(entry.name for entry in missing if extra in entry.extras)
        state = f"needs {names}: {_cure(extra)}" if names else "installed"
        print(f"  {f'[{extra}]':10} {purpose}: {state}")


def _cure(extra=""):
    if (CHECKOUT / "Makefile").exists():
        return "make install"
    return f"pip install 'decoupled{extra and f'[{extra}]'}'"
