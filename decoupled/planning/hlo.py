"""A training step in XLA's own format, for compilers and devices outside TensorFlow.

`decoupled/planning/jax_step.py` reads it, in a Python of its own. Here it compiles the
step with the compiler of Cloud TPUs, without a TPU.
"""

import os
import pathlib
import subprocess
from typing import NamedTuple

from decoupled.configs import PretrainConfig
from decoupled.core import files
from decoupled.core.compat import tensorflow, tf
from decoupled.core.console import say
from decoupled.core.errors import UserError
from decoupled.planning.hardware import Slice
from decoupled.planning.program import Argument, Program, build_program, feature_specs
from decoupled.training.graph import pretraining_graph

# Of a folder: the program, and what its arguments are.
HLO, ABOUT = "step.hlo", "step.json"
_SCRIPT = pathlib.Path(__file__).with_name("jax_step.py")
ADVICE = "python -m venv compiler && compiler/bin/pip install 'jax[tpu]'"


class CoreProgram(NamedTuple):
    """A program of one core.

    hlo: a serialized HloModuleProto, before any optimization. Its arguments are the
    features, then the variables. Its results are the loss, float32 []; the norm of the
    gradient, float32 []; and the variables after the step.
    cores: that run it together.
    """

    hlo: bytes
    features: list[Argument]
    variables: list[Argument]
    cores: int

    def write(self, folder: str) -> None:
        """Writes the program to a folder, which it creates."""
        os.makedirs(folder, exist_ok=True)
        with files.atomic_write(os.path.join(folder, HLO), "wb") as file:
            file.write(self.hlo)
        about = {
            "cores": self.cores,
            "features": [list(argument) for argument in self.features],
            "variables": [list(argument) for argument in self.variables],
        }
        files.write_json(os.path.join(folder, ABOUT), about)


def export(program: Program) -> CoreProgram:
    """Translates a program.

    Raises:
      UserError: there are several cores, and this TensorFlow cannot translate sums
        over them (2.15).
    """
    features = [
        Argument(name, value.shape.as_list(), value.dtype.name)
        for name, value in program.inputs.items()
    ]
    hlo = _translated(program)
    return CoreProgram(hlo, features, program.described(), program.mesh.size)


def _translated(program):
    inputs = list(program.inputs.values())
    replaced = {tensor.op.name for tensor in inputs}
    replaced |= {variable.name for variable in program.variables}
    definition = _without(program.needed, replaced)
    values = [_without_value(argument) for argument in program.described()]

    @tensorflow.function(jit_compile=True)
    def step(*features: tf.Tensor) -> list[tf.Tensor]:
        mapped = {t.name: x for t, x in zip(inputs, features, strict=True)}
        capture = tf.get_default_graph().capture
        for variable, value in zip(program.variables, values, strict=True):
            mapped[variable.outputs[0].name] = capture(value.handle)
        names = [tensor.name for tensor in program.results]
        return tf.import_graph_def(definition, mapped, names, name="")

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    try:
        return step.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    except ValueError as error:
        if "XlaAllReduce" not in str(error):
            raise
        raise UserError(
            f"TensorFlow {tensorflow.__version__} cannot translate sums over cores "
            "for the compiler of TPUs; 2.21 can"
        ) from None


def _without_value(argument: Argument) -> tensorflow.Variable:
    """A variable whose memory is reserved, but never written."""
    dtype = tf.as_dtype(argument.dtype)
    return tensorflow.Variable(tf.raw_ops.Empty(shape=argument.shape, dtype=dtype))


def _without(definition, names):
    """A graph's definition without some nodes, and without control dependencies on
    them."""
    rest = tf.GraphDef(library=definition.library, versions=definition.versions)
    removed = {f"^{name}" for name in names}
    for node in definition.node:
        if node.name not in names:
            copy = rest.node.add()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(name for name in node.input if name not in removed)
    return rest


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
        export(build_program(pretraining_graph(run), specs, tpu)).write(folder)
        say(f"compiling for {tpu.name}; a model of 32 layers takes some 3 minutes")
        done = subprocess.run(
            [python, str(_SCRIPT), folder, f"--topology={tpu.topology}"],
            capture_output=True, text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        output = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise UserError(f"--compiler: {tpu.name}: {output[-1]}")
    answer = files.parse_json(lines[-1])
    return Compiled(**{name: answer.get(name) for name in Compiled._fields})
