"""Devices, compilation and runs of a program: what JAX is imported for.

JAX's public functions run what JAX traced. A program of TensorFlow's goes to the same
compilers and devices by four private entry points: `compiler.get_compile_options`,
`compiler.compile_or_get_cached`, `DeviceList`, and `execute_sharded` of an executable.
"""

import contextlib
import hashlib
import importlib.metadata
import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import decoupled
from decoupled.core import accelerators, endings, hosts, installed
from decoupled.core.console import duration
from decoupled.core.errors import UserError, WorkerLost, in_one_line
from decoupled.core.machine import readable_bytes
from decoupled.ops.meshes.device_order import device_order
from decoupled.training.xla.kernels import DETERMINISTIC, NAMES, PLAIN, replace
from decoupled.training.xla.programs import ExportedProgram
from decoupled.training.xla.stablehlo import to_stablehlo

# The platforms of JAX, and the extra that brings them; plain "gpu" would also try ROCm.
_PLATFORMS = {"cpu": "cpu", "gpu": "cuda,cpu", "tpu": "tpu,cpu"}
# The oldest release of JAX that was tried.
_OLDEST_RELEASE = (0, 10)
# JAX's own default: warnings and errors.
_LOG_LEVEL = "1"
# The size of all compiled programs on disk; the least used are removed.
_CACHE_BYTES = 4 * 2**30
# A compilation of so many seconds has a line; the first of a process always has one.
_LINE_SECONDS = 5.0
# Seconds between two lines while a program is compiled.
_LINE_EVERY = 60.0
# What the transports between processes report of one that is gone.
_LOSS = re.compile(
    r"[Gg]loo|NCCL|UNAVAILABLE|DEADLINE_EXCEEDED|[Cc]onnection (reset|closed|refused)"
)
_NO_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|[Oo]ut of memory|exceeds available HBM")
_MEMORY_ADVICE = (
    "TrainingConfig.recompute_layers, a larger TrainingConfig.gradient_accumulation, "
    "MeshConfig.slice_dtype = 'bfloat16' or more devices need less"
)

Array = Any


class Memory(NamedTuple):
    """Bytes of a device: arguments of a program, its temporary tensors, both with
    results and code, and what the device has; None where it does not say."""

    arguments: int
    temporary: int
    needed: int
    available: int | None

    def __str__(self) -> str:
        limit = f" of {self.available / 2**30:.1f}" if self.available else ""
        return (
            f"a device needs {self.needed / 2**30:.2f}{limit} GiB, "
            f"{self.temporary / 2**30:.2f} of them for temporary tensors"
        )


class Client:
    """The devices of a mesh, in the order of its replicas.

    kind: "cpu", "gpu" or "tpu". mesh: sizes of the mesh's axes; None is a row of all
      devices. device_kind: JAX's, e.g. "TPU v3".
    """

    # Whether this process has said what a program needs.
    _has_compiled = False

    def __init__(
        self, kind: str, mesh: Sequence[int] | None, say: Callable[[str], None]
    ):
        jax = _configure_jax(kind, mesh and math.prod(mesh))
        self.kind, self._jax, self.say = kind, jax, say
        devices = _devices(jax, kind)
        mesh = mesh or [len(devices)]
        count = math.prod(mesh)
        if count > len(devices):
            raise UserError(
                f"MeshConfig.mesh_shape: needs {count} devices, and there "
                f"{_are(len(devices), kind)}; make it smaller, e.g. "
                f"data:{len(devices)}"
            )
        if count < len(devices) and kind == "gpu":
            say(f"uses {count} of {len(devices)} devices; the rest is idle")
        self.devices = _in_order(kind, devices, mesh)
        self.device_kind = self.devices[0].device_kind
        self._check_shares(count, devices)
        self.local = [
            index
            for index, device in enumerate(self.devices)
            if device.process_index == jax.process_index()
        ]
        mesh = jax.sharding.Mesh(np.array(self.devices), ["replica"])
        self._everywhere = jax.sharding.NamedSharding(
            mesh, jax.sharding.PartitionSpec()
        )

    def _check_shares(self, count, devices):
        idle = {device.process_index for device in devices}
        idle -= {device.process_index for device in self.devices}
        if idle:
            raise UserError(
                f"MeshConfig.mesh_shape: has {count} processors, of which process "
                f"{min(idle)} would have none; use all {len(devices)} devices, or "
                "fewer processes"
            )

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Says what an error of the devices means to a user."""
        try:
            yield
        except self._jax.errors.JaxRuntimeError as error:
            raise explained(error, "the devices") from error

    def describe(self) -> str:
        return f"{len(self.devices)} x {self.device_kind}, JAX {self._jax.__version__}"

    def put(self, parts: Sequence[np.ndarray]) -> Array:
        """An array with a part for each device of this process, in their order."""
        jax = self._jax
        # Not over the memory of `parts`, into which a program would write its results.
        arrays = [
            jax.device_put(part, self.devices[index], may_alias=False)
            for part, index in zip(parts, self.local, strict=True)
        ]
        return self._join(arrays)

    def put_everywhere(self, value: np.ndarray) -> Array:
        return self.put([value] * len(self.local))

    def parts(self, array: Array) -> list[Array]:
        """What each device of this process has of an array, in their order."""
        of_device = {shard.device: shard.data for shard in array.addressable_shards}
        return [of_device[self.devices[index]] for index in self.local]

    def compile(
        self, program: ExportedProgram, deterministic: bool, precision: str
    ) -> "Executable":
        """Compiles a program, or reads it from the cache of compiled programs.

        A signal ends the process at once while the compiler works. `deterministic`:
        whether nondeterministic operations are excluded. `precision`: of products of
        float32.
        """
        start = time.monotonic()
        options = DETERMINISTIC if deterministic and self.kind == "gpu" else {}
        platform = _PLATFORMS[self.kind].split(",")[0]
        for kernel in dict.fromkeys([program.attention, PLAIN]):
            module, updated_arguments = to_stablehlo(program.hlo, precision)
            if refusal := replace(module, kernel, platform, deterministic):
                self.say(f"attention by {NAMES[PLAIN]} instead: {refusal}")
                kernel = PLAIN
            try:
                binary = self._build(module, options, start)
                break
            # Of a kernel's compiler, errors of C++ arrive as others.
            except (self._jax.errors.JaxRuntimeError, LookupError) as error:
                if kernel == PLAIN or _NO_MEMORY.search(str(error)):
                    raise explained(error, "the compiler") from error
                reason = first_sentence(error)
                self.say(f"attention by {NAMES[PLAIN]} instead: {reason}")
        executable = Executable(self, binary, program, updated_arguments)
        seconds = time.monotonic() - start
        if seconds >= _LINE_SECONDS or not Client._has_compiled:
            self.say(f"compiled in {duration(seconds)}; {executable.memory()}")
        Client._has_compiled = True
        return executable

    def _build(self, module, options, start):
        if hosts.count() > 1:
            content = module.operation.get_asm(enable_debug_info=False)
            facts = {
                "the program": hashlib.sha256(content.encode()).hexdigest(),
                "the compiler's options": str(sorted(options.items())),
                "the kind of device": self.devices[0].device_kind,
            }
            hosts.agree("compile", facts)
        work = InBackground(lambda: self._compile_module(module, options))
        try:
            while not work.done(_LINE_EVERY):
                elapsed = duration(time.monotonic() - start)
                self.say(f"compiling for {self.describe()}: {elapsed} so far")
        except BaseException:
            # Nobody can stop the compiler: the interpreter's own end would wait for its
            # threads, and crash.
            endings.end_at_once()
            raise
        return work.result()

    def _compile_module(self, module, options):
        from jax._src import compiler
        from jax._src.lib import xla_client

        devices = self.devices
        compile_options = compiler.get_compile_options(
            num_replicas=len(devices),
            num_partitions=1,
            device_assignment=np.array([[device.id] for device in devices]),
            env_options_overrides=options,
        )
        with _cached_on_each_host():
            return compiler.compile_or_get_cached(
                devices[0].client,
                module,
                np.array(devices),
                compile_options,
                [],
                xla_client.DeviceList(tuple(devices)),
            )

    def _join(self, parts):
        return self._jax.make_array_from_single_device_arrays(
            parts[0].shape, self._everywhere, parts
        )


class Executable:
    """A compiled program on the devices of a client."""

    def __init__(
        self,
        client: Client,
        executable: Any,
        program: ExportedProgram,
        updated_arguments: Mapping[int, int],
    ):
        self._client, self._executable = client, executable
        self._features = [argument.name for argument in program.features]
        self._names = program.results
        # Results come before variables, which follow the features as arguments.
        feature_count, count = len(self._features), len(self._names)
        # Index of a result -> index of the variable whose new value it is.
        self._updates = {r: a - feature_count for r, a in updated_arguments.items()}
        indexes = range(len(program.variables))
        expected = range(count, count + len(self._updates))
        in_range = all(index in indexes for index in self._updates.values())
        if sorted(self._updates) != list(expected) or not in_range:
            raise ValueError(
                f"results {sorted(updated_arguments)} are variables, "
                f"expected {list(expected)}"
            )

    def memory(self) -> Memory:
        stats = self._executable.get_compiled_memory_stats()
        parts = (
            stats.argument_size_in_bytes,
            stats.output_size_in_bytes - stats.alias_size_in_bytes,
            stats.temp_size_in_bytes,
            stats.generated_code_size_in_bytes,
        )
        device = self._client.devices[self._client.local[0]]
        limits = device.memory_stats() or {}
        return Memory(parts[0], parts[2], sum(parts), limits.get("bytes_limit"))

    def peak(self) -> str:
        """The most bytes that a device of this process has used, in words, or ""."""
        device = self._client.devices[self._client.local[0]]
        peak = (device.memory_stats() or {}).get("peak_bytes_in_use")
        return f"at most {peak / 2**30:.2f} GiB used on a device" if peak else ""

    def check_memory(self) -> None:
        memory = self.memory()
        if memory.available is not None and memory.needed > memory.available:
            raise UserError(
                f"does not fit: a device needs {memory.needed / 2**30:.1f} GiB "
                f"({memory.arguments / 2**30:.1f} of weights, slots and features, "
                f"{memory.temporary / 2**30:.1f} of other tensors) and has "
                f"{memory.available / 2**30:.1f}; {_MEMORY_ADVICE}"
            )

    def run(
        self, features: Mapping[str, Array], variables: list[Array]
    ) -> dict[str, list[Array]]:
        """Starts the program, and returns its results, which may not be there yet.

        Each has a value for every device of this process. `variables` are replaced by
        their new values; the old ones are gone.
        """
        arguments = [features[name] for name in self._features] + variables
        with self._client.explained():
            outputs = self._executable.execute_sharded(arguments)
            arrays = outputs.disassemble_into_single_device_arrays()
        for result, index in self._updates.items():
            variables[index] = self._client._join(arrays[result])
        return {name: arrays[result] for result, name in enumerate(self._names)}


def try_devices(kind: str) -> list[str]:
    """Runs a product on each device of this process, and a sum over all of them;
    returns what each device is."""
    jax = _configure_jax(kind, 2)
    jax.config.update("jax_enable_compilation_cache", False)
    local_devices = [
        device
        for device in _devices(jax, kind)
        if device.process_index == jax.process_index()
    ]
    factor = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 4096
    multiply = jax.jit(lambda x: jax.numpy.matmul(x, x, precision="highest"))
    for device in local_devices:
        product = multiply(jax.device_put(factor, device))
        if not np.allclose(product, factor @ factor, rtol=1e-5):
            raise UserError(f"{device}: its product of two matrices is wrong")
    mesh = jax.sharding.Mesh(np.array(local_devices), ["all"])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("all"))
    numbers = jax.device_put(np.arange(len(local_devices), dtype=np.float32), sharding)
    if float(jax.jit(jax.numpy.sum)(numbers)) != sum(range(len(local_devices))):
        raise UserError(f"the sum over {len(local_devices)} devices is wrong")
    return [_describe(device) for device in local_devices]


def _describe(device):
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return f"{device.device_kind}{f', {readable_bytes(limit)}' if limit else ''}"


def _devices(jax, kind):
    try:
        return jax.devices(kind)
    except RuntimeError as error:
        reason = first_sentence(error)
        packages = accelerators.jax_packages()
        if kind == "gpu" and not any("cuda" in name for name in packages):
            reason = "its plugin for CUDA is not installed"
        raise UserError(
            f"--accelerator={kind}: JAX {jax.__version__} finds no {kind.upper()} "
            f"({reason}); pip install 'decoupled[{accelerators.extra(kind)}]', and "
            "decoupled doctor shows what it finds"
        ) from None


@contextlib.contextmanager
def _cached_on_each_host():
    """JAX lets process 0 alone store programs; each host has a folder for them."""
    from jax._src import distributed

    state = distributed.global_state
    old_process_id = state.process_id
    if hosts.is_first_of_host():
        state.process_id = 0
    try:
        yield
    finally:
        state.process_id = old_process_id


def _in_order(kind, devices, mesh):
    """The device of each processor of the mesh, which must have all chips of a TPU."""
    count = math.prod(mesh)
    if kind != "tpu":
        return devices[:count]
    if count < len(devices):
        raise UserError(
            f"MeshConfig.mesh_shape: has {count} processors, and there "
            f"{_are(len(devices), kind)}; make them equal, e.g. data:{len(devices)}"
        )
    coordinates = [(*device.coords, device.core_on_chip) for device in devices]
    return [devices[index] for index in device_order(coordinates, mesh)]


def import_jax(kind: str) -> Any:
    """JAX, set to the devices of a kind, if it fits."""
    needs = f"--accelerator={kind}: needs JAX"
    install = f"pip install 'decoupled[{accelerators.extra(kind)}]'"
    if installed.lacking("jax", purpose="--accelerator"):
        if sys.version_info < (3, 11):
            install = "use Python 3.12 or newer, and there " + install
        raise UserError(f"{needs}, which is not installed; {install}")
    version = importlib.metadata.version("jax")
    if tuple(map(int, version.split(".")[:2])) < _OLDEST_RELEASE:
        oldest = ".".join(map(str, _OLDEST_RELEASE))
        raise UserError(f"{needs} {oldest} or newer, this is {version}; {install}")
    setting = os.environ.get("JAX_PLATFORMS")
    platforms = _PLATFORMS[kind]
    if setting and platforms.partition(",")[0] not in setting.split(","):
        raise UserError(
            f"--accelerator={kind}: the environment has JAX_PLATFORMS={setting}, "
            "which leaves these devices out; unset it"
        )
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == decoupled.LOG_LEVEL:
        # The package's level for TensorFlow, which is loaded. JAX's libraries read it
        # when they are loaded, and would hide why a device fails or a host is lost.
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = _LOG_LEVEL
    import jax

    jax.config.update("jax_platforms", platforms)
    return jax


def _configure_jax(kind, count):
    jax = import_jax(kind)
    settings = {
        "jax_enable_x64": True,
        "jax_compilation_cache_dir": os.environ.get("JAX_COMPILATION_CACHE_DIR")
        or _cache_folder(),
        "jax_compilation_cache_max_size": _CACHE_BYTES,
        "jax_persistent_cache_min_compile_time_secs": 1.0,
    }
    if kind == "cpu" and count is not None:
        if count % hosts.count():
            raise UserError(
                f"MeshConfig.mesh_shape: has {count} processors, which "
                f"{hosts.count()} processes cannot share evenly"
            )
        settings["jax_num_cpu_devices"] = count // hosts.count()
        if hosts.are_joined():
            settings["jax_cpu_collectives_implementation"] = "gloo"
    for name, value in settings.items():
        try:
            jax.config.update(name, value)
        except RuntimeError:
            # JAX runs already, and what it has is compared with what is needed.
            if name != "jax_num_cpu_devices":
                raise
    return jax


def _cache_folder() -> str:
    """The user's own folder of compiled programs, which run as code."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.path.join(home, "decoupled", "xla")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


class InBackground:
    """A call in a thread of its own, so that the main thread hears signals."""

    def __init__(self, call: Callable[[], Any]):
        self._call, self._outcome = call, None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self):
        try:
            self._outcome = (self._call(), None)
        except BaseException as error:
            self._outcome = (None, error)

    def done(self, seconds: float) -> bool:
        """Waits for at most so many seconds."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> Any:
        value, error = self._outcome
        if error is not None:
            raise error
        return value


def explained(error: Exception, part: str) -> Exception:
    """What a user can do about an error of XLA's; others stay as they are."""
    if _NO_MEMORY.search(str(error)):
        return UserError(
            f"{part} ran out of memory ({first_sentence(error)}); {_MEMORY_ADVICE}"
        )
    if hosts.count() > 1 and part != "the compiler" and _LOSS.search(str(error)):
        return WorkerLost(
            f"another process is gone ({in_one_line(first_sentence(error))[:200]}); "
            "run again, what is saved is kept"
        )
    if "NCCL" in str(error):
        return UserError(
            f"{part}: {first_sentence(error)}; NCCL needs memory beside JAX's own: try "
            "XLA_PYTHON_CLIENT_MEM_FRACTION=0.65, and NCCL_DEBUG=INFO says more"
        )
    return error


def first_sentence(error: Exception) -> str:
    """The first sentence of an error's message."""
    return " ".join(str(error).split()).partition(". ")[0].rstrip(".")


def _are(count, kind):
    noun = f"{kind.upper()} device"
    return f"is 1 {noun}" if count == 1 else f"are {count} {noun}s"
