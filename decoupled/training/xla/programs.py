"""Steps and predictions as programs of XLA, exported from TensorFlow's graph.

All replicas run the same program, so one is built, with the slices of the variables on
one replica. It maps features and variables to named results and, if it trains, to the
new variables. TensorFlow computes nothing here: whoever runs the program gives the
variables their values (`decoupled.training.xla.state`). A plan adds up a program's
costs (`decoupled.planning`).
"""

import functools
import os
from collections.abc import Callable, Mapping
from typing import NamedTuple

from decoupled.configs import MeshConfig
from decoupled.core import files
from decoupled.core.compat import mtf, tensorflow, tf
from decoupled.core.errors import UserError
from decoupled.ops.meshes.replicas import ReplicaMesh, StackLayout, collectives_of_xla
from decoupled.training.graph import (
    LoweredStep,
    Network,
    TrainingGraph,
    build_predictions,
    build_step,
    logged_scalars,
)
from decoupled.training.mesh import Placement, axes_and_rules, shape_and_layout
from decoupled.training.xla.kernels import CUDNN, PLAIN, SPLASH

# The files of a folder: the program, and what its arguments and results are.
HLO, ABOUT = "step.hlo", "step.json"
_OLD_TPUS = ("TPU v2", "TPU v3")
# Those that TPUEstimator knows, too: a plan of a program holds for both.
_ESTIMATOR_TPUS = (*_OLD_TPUS, "TPU v4")
# The compiler of later TPUs casts a stack of matrices as a whole, and keeps the result
# in the vector memory, where activations have no room then.
_LATER_TPU_STACK_MIB = 1
# Splash attention fills up to 128 tokens, and cuDNN's gain is small already there.
_FEW_TOKENS = 128


class Argument(NamedTuple):
    """An argument of the program: name of a feature or variable, shape, dtype."""

    name: str
    shape: list[int]
    dtype: str


class SavedVariable(NamedTuple):
    """A variable as checkpoints have it; `initializer(shape, dtype)` makes its first
    value."""

    name: str
    shape: list[int]
    dtype: tf.DType
    initializer: Callable[..., tf.Tensor]


class Program:
    """The program of a replica. A session can run that of a single replica.

    graph: TensorFlow's. mesh: of all replicas.
    inputs: name of a feature -> placeholder.
    results: name -> tensor; of a step after its update.
    saved_variables: name -> variable in checkpoints, without the step.
    attention: the kernel that replaces its custom calls.
    lowered: the mesh graph of a step and its lowering; None for predictions.
    """

    def __init__(
        self,
        graph: tf.Graph,
        mesh: ReplicaMesh,
        inputs: dict[str, tf.Tensor],
        results: dict[str, tf.Tensor],
        variables: dict[str, SavedVariable],
        attention: str,
        lowered: LoweredStep | None = None,
    ):
        self.graph, self.mesh, self.inputs = graph, mesh, inputs
        self.results, self.saved_variables, self.lowered = results, variables, lowered
        self.attention = attention

    @functools.cached_property
    def needed_graph(self) -> tf.GraphDef:
        """The definition of all that the results need."""
        names = [tensor.op.name for tensor in self.results.values()]
        return tf.graph_util.extract_sub_graph(self.graph.as_graph_def(), names)

    @functools.cached_property
    def needed_inputs(self) -> dict[str, tf.Tensor]:
        """The inputs that the results need: predictions need no labels."""
        names = {node.name for node in self.needed_graph.node}
        return {n: x for n, x in self.inputs.items() if x.op.name in names}

    @functools.cached_property
    def variables(self) -> list[tf.Operation]:
        """The operations of the variables' handles."""
        nodes = self.needed_graph.node
        names = (node.name for node in nodes if node.op == "VarHandleOp")
        return list(map(self.graph.get_operation_by_name, names))

    def variable_arguments(self) -> list[Argument]:
        """The variables as arguments of the program."""
        return [
            Argument(
                variable.name,
                [int(dimension.size) for dimension in variable.get_attr("shape").dim],
                variable.get_attr("dtype").name,
            )
            for variable in self.variables
        ]


def attention_kernel(
    kind: str,
    device: str,
    network: Network,
    features: Mapping[str, tf.TensorSpec],
    trains: bool,
) -> tuple[str, str]:
    """The kernel that computes attention on devices of a kind, e.g. "tpu" and "TPU v3",
    and why it does.

    cuDNN's gradient has no masks of dropout as this package draws them, nor has splash
    attention's. On an H100 a step of base size took 0.97 of the time of plain products
    at 128 tokens, and 0.71 at 512. XLA gives cuDNN's gradient a fixed order of sums
    where `MeshConfig.deterministic` asks for it.
    """
    mesh, model = network.mesh, network.model
    tokens = features["input_word_ids"].shape.as_list()[1]
    _, rules = axes_and_rules(mesh)
    split_names = sorted({"sequence", "memory", "head_size"} & set(rules))
    reasons = {
        "attention_kernel is plain": mesh.attention_kernel == PLAIN,
        "CPUs have no kernel of it": kind == "cpu",
        "activations are float32": mesh.activation_dtype == "float32",
        "attention_dropout is not 0": trains and model.attention_dropout > 0,
        f"the layout splits {', '.join(split_names)}": bool(split_names),
        f"{tokens} tokens are fewer than {_FEW_TOKENS}": tokens < _FEW_TOKENS,
        f"{device} does not multiply bfloat16 in kernels": device in _OLD_TPUS,
    }
    if kind == "gpu":
        reasons |= {
            f"head_size {model.head_size} is no multiple of 8": model.head_size % 8,
            f"{tokens} is an odd number of tokens": tokens % 2,
        }
    for reason, holds in reasons.items():
        if holds:
            return PLAIN, reason
    return (CUDNN if kind == "gpu" else SPLASH), f"{tokens} tokens in bfloat16"


def training_program(
    training: TrainingGraph,
    features: Mapping[str, tf.TensorSpec],
    attention: str = PLAIN,
    device: str = "",
) -> Program:
    """Builds the step of a replica.

    `attention` is a key of `kernels.NAMES`. `device` is its kind, e.g. "TPU v3"; the
    program runs on all kinds, and "" has no device in view.
    """
    variables = {}
    with tf.Graph().as_default() as graph, collectives_of_xla():
        step = tf.train.get_or_create_global_step()
        inputs = _placeholders(features)
        mesh = replica_mesh(training.network.mesh, attention, device)
        with tf.variable_scope("", custom_getter=_placeholder_getter(variables)):
            lowered = build_step(training, inputs, Placement(mesh, None))
        scalars = logged_scalars(training, lowered)
        with tf.control_dependencies([lowered.update]):
            next_step = tf.assign_add(step, 1)
        with tf.control_dependencies([next_step]):
            results = {name: tf.identity(value) for name, value in scalars.items()}
    return Program(graph, mesh, inputs, results, variables, attention, lowered)


def prediction_program(
    network: Network,
    features: Mapping[str, tf.TensorSpec],
    attention: str = PLAIN,
    device: str = "",
) -> Program:
    """Builds the predictions of a replica, each for the whole batch."""
    variables = {}
    with tf.Graph().as_default() as graph, collectives_of_xla():
        inputs = _placeholders(features)
        mesh = replica_mesh(network.mesh, attention, device)
        with tf.variable_scope("", custom_getter=_placeholder_getter(variables)):
            placement = Placement(mesh, None)
            predictions, _ = build_predictions(network, inputs, placement)
        results = {name: tf.identity(value) for name, value in predictions.items()}
    return Program(graph, mesh, inputs, results, variables, attention)


def replica_mesh(
    config: MeshConfig, attention: str = PLAIN, device: str = ""
) -> ReplicaMesh:
    """The mesh of a program; it makes tensors in the default graph."""
    shape, layout = shape_and_layout(config)
    stack_mib = config.stack_mib
    if device.startswith("TPU") and device not in _ESTIMATOR_TPUS:
        stack_mib = min(stack_mib, _LATER_TPU_STACK_MIB)
    return ReplicaMesh(shape, layout, stack_mib * 2**20, attention != PLAIN)


def _placeholders(features):
    return {n: tf.placeholder(s.dtype, s.shape, n) for n, s in features.items()}


def _placeholder_getter(variables: dict[str, SavedVariable]) -> Callable:
    """A getter that adds the variables to save, and gives them no memory."""

    def getter(getter, name, shape, dtype, initializer=None, **settings):
        del getter, settings
        variables[name] = SavedVariable(name, list(shape), dtype, initializer)
        with mtf.utils.outside_all_rewrites():
            return tf.placeholder(dtype, shape, name)

    return getter


class ExportedProgram(NamedTuple):
    """A program in XLA's own format.

    hlo: a serialized HloModuleProto, before any optimization. Its arguments are the
      features, then the variables; its results the named ones, then the variables that
      it changes.
    results: their names. layouts: of the variables, without the step.
    cores: that run it together. attention: see `Program`.
    """

    hlo: bytes
    features: list[Argument]
    variables: list[Argument]
    results: list[str]
    layouts: list[StackLayout]
    cores: int
    attention: str = PLAIN

    def write(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        with files.atomic_write(os.path.join(folder, HLO), "wb") as file:
            file.write(self.hlo)
        about = {
            "cores": self.cores,
            "features": [list(argument) for argument in self.features],
            "variables": [list(argument) for argument in self.variables],
            "results": self.results,
            "attention": self.attention,
        }
        files.write_json(os.path.join(folder, ABOUT), about)


def export(program: Program) -> ExportedProgram:
    """Translates a program; TensorFlow 2.15 cannot if there are several replicas."""
    features = [
        Argument(name, value.shape.as_list(), value.dtype.name)
        for name, value in program.needed_inputs.items()
    ]
    return ExportedProgram(
        _translate(program),
        features,
        program.variable_arguments(),
        list(program.results),
        program.mesh.stack_layouts(),
        program.mesh.size,
        program.attention,
    )


def _translate(program):
    inputs = list(program.needed_inputs.values())
    replaced_names = {tensor.op.name for tensor in inputs}
    replaced_names |= {variable.name for variable in program.variables}
    definition = _without_nodes(program.needed_graph, replaced_names)
    values = [_empty_variable(argument) for argument in program.variable_arguments()]

    @tensorflow.function(jit_compile=True)
    def step(*features: tf.Tensor) -> list[tf.Tensor]:
        input_map = {t.name: x for t, x in zip(inputs, features, strict=True)}
        capture = tf.get_default_graph().capture
        for variable, value in zip(program.variables, values, strict=True):
            input_map[variable.outputs[0].name] = capture(value.handle)
        names = [tensor.name for tensor in program.results.values()]
        return tf.import_graph_def(definition, input_map, names, name="")

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in inputs]
    try:
        return step.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    except ValueError as error:
        if "XlaAllReduce" not in str(error):
            raise
        raise UserError(
            f"TensorFlow {tensorflow.__version__} cannot translate sums over cores "
            "into a program of XLA; 2.21 can"
        ) from None


def _empty_variable(argument: Argument) -> tensorflow.Variable:
    """A variable whose memory is reserved, but never written."""
    dtype = tf.as_dtype(argument.dtype)
    return tensorflow.Variable(tf.raw_ops.Empty(shape=argument.shape, dtype=dtype))


def _without_nodes(definition, names):
    """A graph's definition without some nodes, and without control dependencies on
    them."""
    result = tf.GraphDef(library=definition.library, versions=definition.versions)
    removed_inputs = {f"^{name}" for name in names}
    for node in definition.node:
        if node.name not in names:
            copy = result.node.add()
            copy.CopyFrom(node)
            del copy.input[:]
            copy.input.extend(name for name in node.input if name not in removed_inputs)
    return result
