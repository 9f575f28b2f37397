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

# Lines that this process has printed, each of them once.
_printed_lines: set[str] = set()


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
    graph: TrainingGraph, run: Run, input_fn: Callable[[], tf.data.Dataset], end: int
) -> None:
    """Trains from the folder's newest checkpoint to step `end`, and saves.

    It ends sooner, after it has saved, if `run.stop` has received a signal.
    """
    config, mesh = graph.training, graph.network.mesh
    client = Client(run.accelerator, _sizes(mesh), run.say)
    dataset = input_fn()
    kernel = _attention(client, graph.network, dataset.element_spec, trains=True)
    program = training_program(graph, dataset.element_spec, kernel, client.device_kind)
    exported_program = export(program)
    checkpoint, restored_names = plan_start(
        run.model_dir,
        run.init_checkpoint,
        graph.network.variables,
        [*program.saved_variables, GLOBAL_STEP],
        run.say,
        run.drawn_names,
    )
    if checkpoint is not None:
        source = stored_values(checkpoint)
    else:
        source = first_values(
            program.saved_variables, run.init_checkpoint, set(restored_names)
        )
    executable = _compile(client, exported_program, mesh)
    step = checkpoint_step(checkpoint)
    state = State(client, exported_program, source, step)
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
        {name: name for name in exported_program.results},
        config.log_steps,
        config.batch_size,
        graph.schedule.train_steps,
        run.say,
    )
    run.stop.begin()
    monitor.begin(step)
    step_results = completion = None

    def read() -> None:
        # The check for NaN comes before anything is saved.
        read_step, results = step_results
        names = monitor.tensors(read_step)
        monitor.after_steps(
            read_step, {name: float(np.asarray(results[name][0])) for name in names}
        )

    stop = AgreedStop(run.stop)
    with client.explained():
        request_time = time.monotonic()
        for batch in _batches(dataset, client):
            if completion is not None and completion.done(0):
                idle_start = max(request_time, completion.result())
                monitor.waited_seconds += time.monotonic() - idle_start
            results = executable.run(batch, state.arrays)
            loss = results["loss"][0]
            completion = InBackground(functools.partial(_completion_time, loss))
            if step_results is not None:
                read()
                moves()
            old_step, step = step, step + 1
            step_results = (step, results)
            is_last = stop.after(step) or step == end
            if is_last or checkpoints.is_due(old_step, step):
                read()
                step_results = None
                pauses()
                checkpoints.save(step)
                is_last = is_last or stop.after(step)
            if is_last:
                break
            request_time = time.monotonic()
        else:
            raise ValueError(f"the batches end at step {step}, before step {end}")
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
    program = prediction_program(
        network, dataset.element_spec, kernel, client.device_kind
    )
    exported_program = export(program)
    check_resumable(prefix, program.saved_variables)
    executable = _compile(client, exported_program, network.mesh)
    state = State(client, exported_program, stored_values(prefix))
    hosts.gather("the first batch", None)
    last_results = None
    for batch in _batches(dataset, client):
        moves()
        with client.explained():
            results = executable.run(batch, state.arrays)
            rows = [] if last_results is None else _rows(last_results)
        pauses()
        yield from rows
        last_results = results
    if last_results is not None:
        with client.explained():
            rows = _rows(last_results)
        yield from rows


def _sizes(mesh: MeshConfig) -> list[int]:
    return list(parse_mesh_shape(mesh.mesh_shape).values())


def _attention(
    client: Client, network: Network, features: Mapping[str, Any], trains: bool
) -> str:
    kernel, reason = attention_kernel(
        client.kind, client.device_kind, network, features, trains
    )
    line = f"attention by {NAMES[kernel]}: {reason}"
    if client.kind != "cpu" and line not in _printed_lines:
        _printed_lines.add(line)
        client.say(line)
    return kernel


def _compile(client: Client, exported: Any, mesh: MeshConfig) -> Executable:
    executable = client.compile(exported, mesh.deterministic, mesh.matmul_precision)
    executable.check_memory()
    return executable


def _batches(dataset: tf.data.Dataset, client: Client) -> Iterator[dict[str, Array]]:
    """The batches on the devices, each sent before the one before it is used up."""
    last_arrays = None
    for batch in dataset:
        features = batch[0] if isinstance(batch, tuple) else batch
        arrays = {n: client.put_everywhere(x.numpy()) for n, x in features.items()}
        if last_arrays is not None:
            yield last_arrays
        last_arrays = arrays
    if last_arrays is not None:
        yield last_arrays


def _completion_time(result: Array) -> float:
    """The time when a device has computed `result`."""
    result.block_until_ready()
    return time.monotonic()


def _rows(results: Mapping[str, Sequence[Array]]) -> list[dict[str, np.ndarray]]:
    values = {name: np.asarray(first) for name, (first, *_) in results.items()}
    count = len(next(iter(values.values())))
    return [{name: x[index] for name, x in values.items()} for index in range(count)]
