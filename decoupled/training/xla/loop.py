"""The loop of steps and predictions on XLA's devices; `training.loop` calls it.

TensorFlow builds the program, reads the data and saves; the devices compute. Steps run
ahead of the numbers that they return: loss and norm are read while the next step runs,
and always before a checkpoint is saved.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from decoupled.configs import MeshConfig
from decoupled.configs.hardware import Hardware
from decoupled.core import accelerators, hosts
from decoupled.core.compat import tf
from decoupled.model.variables import GLOBAL_STEP
from decoupled.training.bookkeeping import Checkpoints, Monitor, Run
from decoupled.training.checkpoint_files import CheckpointWriter
from decoupled.training.checkpoints import (
    check_resumable,
    checkpoint_step,
    plan_start,
)
from decoupled.training.graph import Network, TrainingGraph
from decoupled.training.mesh import parse_mesh_shape
from decoupled.training.xla.adapter import Array, Client, Executable, InBackground
from decoupled.training.xla.hosts import AgreedStop, moves, pauses
from decoupled.training.xla.kernels import NAMES
from decoupled.training.xla.programs import (
    attention_kernel,
    export,
    prediction_program,
    training_program,
)
from decoupled.training.xla.state import State, first_values, stored_values

# Lines of this process that are said once.
_said: set[str] = set()


def check_devices(
    hardware: Hardware, mesh: MeshConfig, say: Callable[[str], None]
) -> None:
    """Finds the devices of the mesh before anything is read or built."""
    if hardware.accelerator is not None:
        accelerators.check(hardware.accelerator, say)
        client = Client(hardware.accelerator, _sizes(mesh), say)
        precision = f"{mesh.matmul_precision} precision"
        say(f"{client.describe()}: products of float32 in {precision}")


def train_steps(
    graph: TrainingGraph, run: Run, input_fn: Callable[[], tf.data.Dataset], last: int
) -> None:
    """Trains from the folder's newest checkpoint to step `last`, and saves.

    It ends sooner, after it has saved, where `run.stop` has received a signal.
    """
    config, mesh = graph.training, graph.network.mesh
    client = Client(run.accelerator, _sizes(mesh), run.say)
    dataset = input_fn()
    kernel = _attention(client, graph.network, dataset.element_spec, trains=True)
    program = training_program(graph, dataset.element_spec, kernel)
    exported = export(program)
    checkpoint, restored = plan_start(
        run.model_dir,
        run.init_checkpoint,
        graph.network.variables,
        [*program.saved, GLOBAL_STEP],
        run.say,
        run.drawn,
    )
    if checkpoint is not None:
        source = stored_values(checkpoint)
    else:
        source = first_values(program.saved, run.init_checkpoint, set(restored))
    executable = _compile(client, exported, mesh)
    step = checkpoint_step(checkpoint)
    state = State(client, exported, source, step)
    # Devices wait for each other half a minute, and to compile may take longer.
    hosts.gather("the first step", None)

    def write(prefix: str) -> None:
        with CheckpointWriter(prefix) as writer:
            state.save(writer)

    checkpoints = Checkpoints(
        run.model_dir, config.save_checkpoints_steps, config.keep_checkpoint_max, write
    )
    monitor = Monitor(
        run.model_dir,
        {name: name for name in exported.results},
        config.log_steps,
        config.batch_size,
        graph.schedule.train_steps,
        run.say,
    )
    run.stop.begin()
    monitor.begin(step)
    unread = ended = None

    def read() -> None:
        # The check for NaN comes before anything is saved.
        at, results = unread
        names = monitor.tensors(at)
        monitor.after_steps(
            at, {name: float(np.asarray(results[name][0])) for name in names}
        )

    stop = AgreedStop(run.stop)
    with client.explained():
        asked = time.monotonic()
        for batch in _ahead(dataset, client):
            if ended is not None and ended.done(0):
                monitor.waited += time.monotonic() - max(asked, ended.result())
            results = executable.run(batch, state.arrays)
            ended = InBackground(functools.partial(_time_of, results["loss"][0]))
            if unread is not None:
                read()
                moves()
            before, step = step, step + 1
            unread = (step, results)
            ends = stop.after(step) or step == last
            if ends or checkpoints.is_due(before, step):
                read()
                unread = None
                pauses()
                checkpoints.save(step)
                ends = ends or stop.after(step)
            if ends:
                break
            asked = time.monotonic()
        else:
            raise ValueError(f"the batches end at step {step}, before step {last}")
    monitor.end()
    if step == graph.schedule.train_steps and (peak := executable.peak()):
        run.say(peak)


def predict_batches(
    network: Network, run: Run, input_fn: Callable[[], tf.data.Dataset], prefix: str
) -> Iterator[dict[str, np.ndarray]]:
    """Predictions of a checkpoint, one dict of arrays per row of a batch."""
    client = Client(run.accelerator, _sizes(network.mesh), run.say)
    dataset = input_fn()
    kernel = _attention(client, network, dataset.element_spec, trains=False)
    program = prediction_program(network, dataset.element_spec, kernel)
    exported = export(program)
    check_resumable(prefix, program.saved)
    executable = _compile(client, exported, network.mesh)
    state = State(client, exported, stored_values(prefix))
    hosts.gather("the first batch", None)
    unread = None
    for batch in _ahead(dataset, client):
        moves()
        with client.explained():
            results = executable.run(batch, state.arrays)
            rows = [] if unread is None else _rows(unread)
        pauses()
        yield from rows
        unread = results
    if unread is not None:
        with client.explained():
            rows = _rows(unread)
        yield from rows


def _sizes(mesh: MeshConfig) -> list[int]:
    return list(parse_mesh_shape(mesh.mesh_shape).values())


def _attention(
    client: Client, network: Network, features: Mapping[str, Any], trains: bool
) -> str:
    device = client.devices[0].device_kind
    kernel, reason = attention_kernel(client.kind, device, network, features, trains)
    line = f"attention by {NAMES[kernel]}: {reason}"
    if client.kind != "cpu" and line not in _said:
        _said.add(line)
        client.say(line)
    return kernel


def _compile(client: Client, exported: Any, mesh: MeshConfig) -> Executable:
    executable = client.compile(exported, mesh.deterministic, mesh.matmul_precision)
    executable.check_memory()
    return executable


def _ahead(dataset: tf.data.Dataset, client: Client) -> Iterator[dict[str, Array]]:
    """The batches on the devices, each sent before the one before it is used up."""
    sent = None
    for batch in dataset:
        features = batch[0] if isinstance(batch, tuple) else batch
        placed = {n: client.put_everywhere(x.numpy()) for n, x in features.items()}
        if sent is not None:
            yield sent
        sent = placed
    if sent is not None:
        yield sent


def _time_of(result: Array) -> float:
    """When a device has computed it."""
    result.block_until_ready()
    return time.monotonic()


def _rows(results: Mapping[str, Sequence[Array]]) -> list[dict[str, np.ndarray]]:
    values = {name: np.asarray(first) for name, (first, *_) in results.items()}
    count = len(next(iter(values.values())))
    return [{name: x[index] for name, x in values.items()} for index in range(count)]
