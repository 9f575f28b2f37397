"""A training step in XLA's own format, for compilers and devices outside TensorFlow.

The step is the one that a core of a TPU runs, loop, infeed and outfeed left out: a
program that maps features and variables to the loss, the norm of the gradient and the
new variables. `decoupled/planning/jax_step.py` reads it.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from decoupled.core import files
from decoupled.core.compat import gen_xla_ops, mtf, tensorflow, tf
from decoupled.core.errors import UserError
from decoupled.planning.hardware import Slice
from decoupled.planning.program import OneCoreMesh, assign_cores
from decoupled.training.graph import build_step
from decoupled.training.mesh import Placement, shape_and_layout
from decoupled.training.network import TrainingGraph
from decoupled.training.tpu import check_mesh_size, logical_to_physical, stack_bytes

# Of a folder: the program, and what its arguments are.
HLO, ABOUT = "step.hlo", "step.json"


class Argument(NamedTuple):
    """An argument of the program: name of a feature or variable, shape, dtype."""

    name: str
    shape: list[int]
    dtype: str


class Step(NamedTuple):
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


class _Mesh(OneCoreMesh):
    """The mesh of a slice in a program that knows its core by XLA's replica number."""

    def slice_device(self, replica):
        """Anywhere."""
        return ""

    @property
    def pnum_tensor(self):
        """The number of the core in the mesh."""
        if self._pnum_tensor is None:
            with mtf.utils.outside_all_rewrites():
                places = tf.constant([self.p2l(core) for core in range(self.size)])
                # A session, which may run a single core, has no replica number.
                core = gen_xla_ops.xla_replica_id() if self.size > 1 else 0
                self._pnum_tensor = tf.gather(places, core)
        return self._pnum_tensor


class StepGraph(NamedTuple):
    """The graph of a core's step. A session can run it for a single core.

    needed: the definition of all that the results need. inputs: name of a feature ->
    placeholder. results: loss and norm of the gradient, after the update.
    variables: operations of the variables' handles. cores: of the mesh.
    """

    graph: tf.Graph
    needed: tf.GraphDef
    inputs: dict[str, tf.Tensor]
    results: list[tf.Tensor]
    variables: list[tf.Operation]
    cores: int

    def described(self) -> list[Argument]:
        """The variables as arguments of the program."""
        return [
            Argument(
                variable.name,
                [int(dimension.size) for dimension in variable.get_attr("shape").dim],
                variable.get_attr("dtype").name,
            )
            for variable in self.variables
        ]

    def export(self) -> Step:
        """Translates the graph.

        Raises:
          UserError: there are several cores, and this TensorFlow cannot translate sums
            over them (2.15).
        """
        features = [
            Argument(name, value.shape.as_list(), value.dtype.name)
            for name, value in self.inputs.items()
        ]
        return Step(self._translate(), features, self.described(), self.cores)

    def _translate(self):
        inputs = list(self.inputs.values())
        given = [*(tensor.op for tensor in inputs), *self.variables]
        definition = _without(self.needed, {operation.name for operation in given})
        values = [_without_value(argument) for argument in self.described()]

        @tensorflow.function(jit_compile=True)
        def step(*features: tf.Tensor) -> list[tf.Tensor]:
            mapped = {t.name: x for t, x in zip(inputs, features, strict=True)}
            capture = tf.get_default_graph().capture
            for variable, value in zip(self.variables, values, strict=True):
                mapped[variable.outputs[0].name] = capture(value.handle)
            wanted = [tensor.name for tensor in self.results]
            return tf.import_graph_def(definition, mapped, wanted, name="")

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


def build_step_graph(
    training: TrainingGraph,
    features: dict[str, tf.TensorSpec],
    tpu: Slice | None = None,
) -> StepGraph:
    """Builds the step of a core.

    Args:
      training: what is trained, and how; its mesh has as many processors as `tpu` has
        cores, or one.
      features: name -> of a batch.
      tpu: the slice, or None for a single core.

    Raises:
      UserError: mesh, model, batch and slice do not fit each other.
    """
    with tf.Graph().as_default() as graph, _collectives_of_xla():
        step = tf.train.get_or_create_global_step()
        inputs = {n: tf.placeholder(s.dtype, s.shape, n) for n, s in features.items()}
        mesh = _make_mesh(training.network.mesh, tpu)
        lowered = build_step(training, inputs, Placement(mesh, None))
        with tf.control_dependencies([lowered.update]):
            counted = tf.assign_add(step, 1)
        with tf.control_dependencies([counted]):
            results = [
                tf.identity(lowered.loss),
                tf.identity(lowered.scalars["gradient_norm"]),
            ]
    needed = tf.graph_util.extract_sub_graph(
        graph.as_graph_def(), [tensor.op.name for tensor in results]
    )
    variables = [
        graph.get_operation_by_name(node.name)
        for node in needed.node
        if node.op == "VarHandleOp"
    ]
    return StepGraph(graph, needed, inputs, results, variables, mesh.size)


def _make_mesh(config, tpu):
    shape, layout = shape_and_layout(config)
    if tpu is None:
        check_mesh_size(config, 1, "one core")
        return _Mesh(shape, layout, None, [0], stack_bytes(config))
    check_mesh_size(config, tpu.cores, tpu.name)
    cores = assign_cores(tpu)
    order = logical_to_physical(shape, cores)
    return _Mesh(shape, layout, cores, order, stack_bytes(config))


@contextlib.contextmanager
def _collectives_of_xla() -> Iterator[None]:
    """The sums over cores as XLA's own operation. TensorFlow leaves the translation of
    a TPU's operation to the runtime of TPUs."""

    def all_reduce(x: tf.Tensor, groups: list[list[int]], name: str | None = None):
        del name
        if len(groups[0]) == 1:
            return x
        return gen_xla_ops.xla_all_reduce(
            input=x, group_assignment=groups, reduce_op="Add", mode="CrossReplica"
        )

    operations = mtf.simd_mesh_impl.tpu_ops
    of_a_tpu, operations.cross_replica_sum = operations.cross_replica_sum, all_reduce
    try:
        yield
    finally:
        operations.cross_replica_sum = of_a_tpu


def _without_value(argument: Argument) -> tensorflow.Variable:
    """A variable whose memory is reserved, but never written."""
    dtype = tf.as_dtype(argument.dtype)
    return tensorflow.Variable(tf.raw_ops.Empty(shape=argument.shape, dtype=dtype))


def _without(definition, names):
    """A graph's definition without some nodes, and without control dependencies on
    them."""
    found = tf.GraphDef(library=definition.library, versions=definition.versions)
    removed = {f"^{name}" for name in names}
    for node in definition.node:
        if node.name not in names:
            copy = found.node.add()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(name for name in node.input if name not in removed)
    return found
