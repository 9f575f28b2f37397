"""The program of a pre-training step for a TPU slice or GPUs, without any.

A plan adds up its costs; `jax_step.py` compiles it with the compiler of Cloud TPUs or
XLA's for GPUs, in a Python of its own.
"""

import os
import pathlib
import signal
import subprocess
from typing import Any, NamedTuple

from decoupled.configs import MaskingConfig, PretrainConfig
from decoupled.core import files
from decoupled.core.compat import tf
from decoupled.core.console import say
from decoupled.core.errors import UserError
from decoupled.planning.hardware import Topology
from decoupled.training.graph import TrainingGraph, pretraining_graph
from decoupled.training.mesh import check_mesh_size
from decoupled.training.xla.kernels import NAMES, PLAIN
from decoupled.training.xla.programs import (
    Program,
    attention_kernel,
    export,
    training_program,
)

# In a program's folder: coordinates of the devices, in the order of its replicas.
PLACES = "places.json"
_SCRIPT = pathlib.Path(__file__).with_name("jax_step.py")
# Module that has the compiler, its package, and how to get both.
_TPUS = (
    "libtpu", "libtpu",
    "python -m venv compiler && compiler/bin/pip install 'jax[tpu]'",
)  # fmt: skip
_GPUS = (
    "jax_plugins.xla_cuda13", "jax-cuda13-plugin",
    "python -m venv cuda && cuda/bin/pip install 'jax[cuda13]'",
)  # fmt: skip


def feature_specs(masking: MaskingConfig, batch_size: int) -> dict[str, tf.TensorSpec]:
    """The features of a pre-training step, [batch, ...], as hosts send them."""
    tokens = [batch_size, masking.sequence_length]
    predictions = [batch_size, masking.max_predictions]
    return {
        "input_word_ids": tf.TensorSpec(tokens, tf.int32),
        "masked_lm_positions": tf.TensorSpec(predictions, tf.int32),
        "masked_lm_ids": tf.TensorSpec(predictions, tf.int32),
        "masked_lm_weights": tf.TensorSpec(predictions, tf.float32),
    }


def build_program(
    training: TrainingGraph,
    features: dict[str, tf.TensorSpec],
    tpu: Topology,
    attention: str = PLAIN,
) -> Program:
    """Builds the step of a core of the slice."""
    check_mesh_size(training.network.mesh, tpu.cores, tpu.name)
    return training_program(training, features, attention, tpu.device_kind)


class CompiledStep(NamedTuple):
    """Bytes of a core as the compiler reserves them.

    arguments: weights, slots and features; None if the program does not fit.
    needed: with all other tensors and the program itself.
    available: what a core has, if the program does not fit; the compiler says it only
    then.
    compiler: its name and release. seconds: of the compilation. attention: the kernel.
    traffic: see `decoupled.planning.traffic`; None if the program does not fit a TPU.
    """

    arguments: int | None
    needed: int
    available: int | None
    compiler: str
    seconds: float
    attention: str | None = None
    traffic: dict[str, Any] | None = None

    @property
    def fits(self) -> bool:
        """Whether a core holds the step."""
        return self.available is None


def check_compiler(python: str, tpu: Topology) -> None:
    """Checks that an interpreter has the compiler, before anything is built."""
    module, package, advice = _GPUS if tpu.generation.card else _TPUS
    question = (
        "from importlib.util import find_spec\n"
        f"assert find_spec('jax') and find_spec({module!r})"
    )
    try:
        answer = subprocess.run([python, "-c", question], capture_output=True)
    except OSError as error:
        raise UserError(f"--compiler: {python}: {error.strerror}") from None
    if answer.returncode:
        raise UserError(
            f"--compiler: {python}: lacks jax or {package}; an environment with both: "
            f"{advice}"
        )


def compile_step(python: str, run: PretrainConfig, tpu: Topology) -> CompiledStep:
    """Compiles the step of a run for a slice or GPUs, as they would run it with
    --accelerator, by a Python that has their compiler.
    """
    specs = feature_specs(run.masking, run.training.batch_size)
    graph = pretraining_graph(run)
    kind = "gpu" if tpu.generation.card else "tpu"
    kernel, reason = attention_kernel(
        kind, tpu.device_kind, graph.network, specs, trains=True
    )
    say(f"attention by {NAMES[kernel]}: {reason}")
    with files.scratch_folder() as folder:
        program = build_program(graph, specs, tpu, kernel)
        export(program).write(folder)
        places = tpu.places(program.mesh.shape.to_integer_list)
        files.write_json(os.path.join(folder, PLACES), places)
        say(f"compiling for {tpu.name}; a model of 32 layers takes 2 to 6 minutes")
        process = subprocess.run(
            [
                python, str(_SCRIPT), folder, f"--topology={tpu.name}",
                f"--precision={run.mesh.matmul_precision}",
            ],
            capture_output=True, text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
    lines, code = process.stdout.splitlines(), process.returncode
    if code < 0:
        raise UserError(
            f"--compiler: {tpu.name}: was killed by {signal.Signals(-code).name}; a "
            "large model needs up to 14 GB of this machine's memory"
        )
    if code or not lines:
        output = process.stderr.strip().splitlines() or [f"exit code {code}"]
        raise UserError(f"--compiler: {tpu.name}: {output[-1]}")
    answer = files.parse_json(lines[-1])
    return CompiledStep(**{name: answer.get(name) for name in CompiledStep._fields})
