"""JAX's service of several processes: a table of texts, and who is alive.

Beside `adapter` and `stablehlo`, the only module that imports JAX. Private are the
client of the service, which JAX keeps for itself, and how schedulers are found.
"""

import contextlib
import importlib.metadata
import os

import decoupled
from decoupled.core.compat import tensorflow
from decoupled.core.errors import WorkerLost
from decoupled.core.joining import Hosts
from decoupled.training.xla.adapter import (
    InBackground,
    explained,
    first_sentence,
    import_jax,
)

# After so many seconds without a sign of life a process is taken for dead.
_HEARTBEAT_SECONDS = 100


def environment(kind: str) -> dict[str, str]:
    """Packages and variables that must be equal on all hosts."""
    import_jax(kind)
    packages = ("jax", "jaxlib", "numpy", "sentencepiece", "matplotlib")
    facts = {name: _version(name) for name in packages}
    facts["tensorflow"] = tensorflow.__version__
    variables = sorted(
        name
        for name in os.environ
        if name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS") or name.startswith("NCCL_")
    )
    facts |= {name: os.environ[name] for name in variables}
    return {"decoupled": decoupled.__version__, **facts}


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def scheduled_hosts(kind: str, seconds: float) -> Hosts | None:
    """The processes that Slurm, MPI or the TPU's own description name, if any."""
    import_jax(kind)
    from jax._src import clusters

    for cluster in clusters.ClusterEnv._cluster_types:
        # Kubernetes must be asked, for which a pod may lack the rights.
        if cluster.__name__ == "K8sCluster" or cluster.opt_in_only_method:
            continue
        if not cluster.is_env_present():
            continue
        address = cluster.get_coordinator_address(60, None)
        devices = None
        local_index = cluster.get_local_process_id()
        if kind == "gpu" and local_index is not None:
            devices = (local_index,)
        count, index = cluster.get_process_count(), cluster.get_process_id()
        # One that nobody asked to join needs no service.
        return Hosts(address, count, index, seconds, devices) if count > 1 else None
    return None


class Coordination:
    """JAX's service of several processes: a table of texts, and who is alive."""

    def __init__(self, kind: str, process_group: Hosts):
        jax = import_jax(kind)
        # Ours ends the others; JAX's would abort them. Ours hears SIGTERM.
        jax.config.update("jax_enable_recoverability", True)
        jax.config.update("jax_enable_preemption_service", False)
        host, port = process_group.address
        host = f"[{host}]" if ":" in host else host
        interface = host if process_group.is_local else "[::]"
        try:
            jax.distributed.initialize(
                f"{host}:{port}",
                process_group.count,
                process_group.index,
                local_device_ids=process_group.devices,
                cluster_detection_method="deactivate",
                initialization_timeout=int(process_group.seconds),
                heartbeat_timeout_seconds=_HEARTBEAT_SECONDS,
                coordinator_bind_address=f"{interface}:{port}",
            )
        except jax.errors.JaxRuntimeError as error:
            raise WorkerLost(
                f"{process_group.coordinator}: the service of JAX cannot be reached "
                f"({first_sentence(error)})"
            ) from error
        from jax._src import distributed

        self._error = jax.errors.JaxRuntimeError
        self._jax, self._client = jax, distributed.global_state.client

    def set(self, key: str, value: str) -> None:
        """Writes a value, once for each key."""
        with self._service_errors():
            self._client.key_value_set(key, value)

    def try_set(self, key: str, value: str) -> None:
        """Writes a value if the key has none and the service answers."""
        with contextlib.suppress(self._error):
            self._client.key_value_set(key, value)

    def get(self, key: str, seconds: float) -> str:
        """Waits for a value, and hears signals meanwhile; raises TimeoutError."""
        milliseconds = int(1000 * seconds)
        work = InBackground(
            lambda: self._client.blocking_key_value_get(key, milliseconds)
        )
        while not work.done(1.0):
            pass
        with self._service_errors():
            return work.result()

    def wait_for(self, key: str) -> str | None:
        """Waits for a value; None if the service ends."""
        try:
            return self._client.blocking_key_value_get(key, 10**9)
        except self._error:
            return None

    def values_below(self, folder: str) -> list[str]:
        with self._service_errors():
            return [value for _, value in self._client.key_value_dir_get(f"{folder}/")]

    def peek(self, key: str, silent: bool = False) -> str | None:
        """The value, if there is one; with `silent`, also where nobody answers."""
        try:
            return self._client.key_value_try_get(key)
        except self._error as error:
            if silent or str(error).startswith("NOT_FOUND"):
                return None
            raise explained(error, "the service") from error

    def delete(self, folder: str) -> None:
        with self._service_errors():
            self._client.key_value_delete(f"{folder}/")

    def live_indexes(self, count: int) -> list[int] | None:
        """Who is alive, when all who are have asked; None if nobody answers."""
        try:
            return list(self._client.get_live_nodes(list(range(count))))
        except self._error:
            return None

    def close(self) -> None:
        """Leaves the service, or ends it where it is."""
        self._jax.distributed.shutdown()

    @contextlib.contextmanager
    def _service_errors(self):
        try:
            yield
        except self._error as error:
            if str(error).startswith("DEADLINE_EXCEEDED"):
                raise TimeoutError from None
            raise explained(error, "the service") from error
