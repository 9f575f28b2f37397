"""A training step, compiled with the compiler of Cloud TPUs, without a TPU.

`decoupled/planning/jax_step.py` does it, in a Python of its own.
"""

import os
import pathlib
import subprocess
from typing import NamedTuple

from decoupled.configs import PretrainConfig
from decoupled.core import files
from decoupled.core.console import say
from decoupled.core.errors import UserError
from decoupled.planning.hardware import Slice
from decoupled.planning.program import build_program, feature_specs
from decoupled.training.graph import pretraining_graph
from decoupled.training.xla.programs import export

# Of a program's folder: coordinates of the devices, in the order of its replicas.
PLACES = "places.json"
_SCRIPT = pathlib.Path(__file__).with_name("jax_step.py")
ADVICE = "python -m venv compiler && compiler/bin/pip install 'jax[tpu]'"


class Compiled(NamedTuple):
    """Bytes of a core as the compiler reserves them.

    arguments: weights, slots and features; None if the program does not fit.
    needed: with all other tensors and the program itself.
    available: what a core has, if the program does not fit; the compiler says it only
    then.
    compiler: its name and release. seconds: of the compilation.
    """

    arguments: int | None
    needed: int
    available: int | None
    compiler: str
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether a core holds the step."""
        return self.available is None


def check_compiler(python: str) -> None:
    """Checks that an interpreter has the compiler, before anything is built.

    Raises:
      UserError: there is no such interpreter, or it lacks a package.
    """
    question = (
        "from importlib.util import find_spec\n"
        "assert find_spec('jax') and find_spec('libtpu')"
    )
    try:
        answer = subprocess.run([python, "-c", question], capture_output=True)
    except OSError as error:
        raise UserError(f"--compiler: {python}: {error.strerror}") from None
    if answer.returncode:
        raise UserError(
            f"--compiler: {python}: lacks jax or libtpu; an environment with both: "
            f"{ADVICE}"
        )


def compile_step(python: str, run: PretrainConfig, tpu: Slice) -> Compiled:
    """Compiles the step of a run for a slice, by a Python that has jax and libtpu.

    Raises:
      UserError: mesh, model, batch and slice do not fit each other, or the compiler
        refuses the program.
    """
    specs = feature_specs(run.masking, run.training.batch_size)
    with files.scratch_folder() as folder:
        program = build_program(pretraining_graph(run), specs, tpu)
        export(program).write(folder)
        places = tpu.places(program.mesh.shape.to_integer_list)
        files.write_json(os.path.join(folder, PLACES), places)
        say(f"compiling for {tpu.name}; a model of 32 layers takes some 3 minutes")
        done = subprocess.run(
            [
                python, str(_SCRIPT), folder, f"--topology={tpu.topology}",
                f"--precision={run.mesh.matmul_precision}",
            ],
            capture_output=True, text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        output = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"--compiler: {tpu.name}: {output[-1]}")
    answer = files.parse_json(lines[-1])
    return Compiled(**{name: answer.get(name) for name in Compiled._fields})
