"""What is trained, and the mesh graph of a training step or of predictions."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from decoupled.configs import (
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    ScheduleConfig,
    TrainingConfig,
)
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.model.dims import FLOAT_FEATURES, Dims, make_dims
from decoupled.model.heads import Forward
from decoupled.model.layers import Builder
from decoupled.model.variables import Variable, by_pattern, declare
from decoupled.ops.weight_product import GradientCast
from decoupled.tasks.objectives import make_objective
from decoupled.tasks.task import Task
from decoupled.training import mesh as meshes
from decoupled.training.events import PERCENT
from decoupled.training.optimizer import apply_gradients, learning_rate
from decoupled.training.partitioned_tables import partition_large_tables

Tensors = dict[str, tf.Tensor]
MeshTensors = dict[str, mtf.Tensor]


class Network(NamedTuple):
    """What a graph needs to predict, besides the features.

    task: with its head. model: sizes of the encoder. mesh: its shape and layout.
    """

    task: Task
    model: ModelConfig
    mesh: MeshConfig

    @property
    def variables(self) -> Mapping[str, Variable]:
        return declare(self.model, self.task.head)


class TrainingGraph(NamedTuple):
    """What a graph needs to train a network.

    training: of the run, whose seed is that of initial weights, dropout and stochastic
      rounding. frozen: names of variables that are not trained.
    """

    network: Network
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    training: TrainingConfig
    frozen: tuple[str, ...] = ()


def rates_of(network: Network, optimizer: OptimizerConfig) -> dict[str, float]:
    """Name of a variable -> by what its learning rate is multiplied, if by anything."""
    return by_pattern("OptimizerConfig.rates", optimizer.rates, network.variables)


def frozen_by_rates(network: Network, optimizer: OptimizerConfig) -> tuple[str, ...]:
    """The names of the variables whose rate is 0, so that they are not trained."""
    frozen = tuple(n for n, rate in rates_of(network, optimizer).items() if rate == 0)
    if len(frozen) == len(network.variables):
        raise UserError("OptimizerConfig.rates: all rates are 0; nothing is trained")
    return frozen


def pretraining_graph(config: PretrainConfig, pad_id: int = 0) -> TrainingGraph:
    """The graph of a pre-training run; `pad_id` as for `make_objective`."""
    network = Network(make_objective(config, pad_id), config.model, config.mesh)
    return TrainingGraph(
        network=network,
        optimizer=config.optimizer,
        schedule=config.schedule,
        training=config.training,
        frozen=frozen_by_rates(network, config.optimizer),
    )


class LoweredStep(NamedTuple):
    """A training step in TensorFlow's terms; for loss and sums see `Forward`.

    scalars: name -> float32 scalar to log.
    lowering: for the hooks that copy between saved variables and mesh slices.
    gradients: of the trainable variables; see `Updates`.
    """

    loss: tf.Tensor
    sums: dict[str, tf.Tensor]
    update: tf.Operation
    scalars: dict[str, tf.Tensor]
    lowering: mtf.Lowering
    gradients: list[mtf.Tensor]


# The settings of a batch's size, if it is not the batch of a training step.
_MICROBATCH_SETTINGS = {
    "batch": "TrainingConfig.batch_size or TrainingConfig.gradient_accumulation"
}
_EVALUATION_SETTINGS = {"batch": "TrainingConfig.eval_batch_size"}


class _MeshGraph(NamedTuple):
    """A mesh graph while it is built; `training_graph` is None if it only predicts."""

    network: Network
    training_graph: TrainingGraph | None
    mesh: mtf.Mesh
    implementation: mtf.MeshImpl | None

    def checked_dims(self, batch: int, length: int) -> Dims:
        dims = make_dims(self.network.model, batch, length)
        task = self.network.task
        meshes.check_mesh(self.network.mesh, dims, task.extra_dims())
        return dims

    def import_features(self, features: Tensors, dims: Dims) -> MeshTensors:
        layouts = self.network.task.feature_dims(dims)
        return {
            name: mtf.import_tf_tensor(self.mesh, value, mtf.Shape(layouts[name]))
            for name, value in features.items()
        }

    def import_scalar(self, value: tf.Tensor) -> mtf.Tensor:
        return mtf.import_tf_tensor(self.mesh, value, mtf.Shape([]))

    def builder(self, dims: Dims, dropout_seed: mtf.Tensor | None = None) -> Builder:
        graph, mesh = self.training_graph, self.network.mesh
        return Builder(
            config=self.network.model,
            dims=dims,
            mesh=self.mesh,
            activation_dtype=tf.as_dtype(mesh.activation_dtype),
            # A graph that only predicts gets its weights from a checkpoint.
            initializer_seed=graph.training.seed if graph else 0,
            dropout_seed=dropout_seed,
            frozen=graph.frozen if graph else (),
            recompute_layers=bool(graph and graph.training.recompute_layers),
            slice_dtype=tf.as_dtype(mesh.slice_dtype),
            names_attention=getattr(self.implementation, "names_attention", False),
        )

    def lower(self) -> mtf.Lowering:
        """Checks all tensors, and makes TensorFlow operations of the graph."""
        meshes.check_tensors(self.network.mesh, self.mesh.graph)
        # Stacked variables have no slice of their own for the fused optimizer.
        return mtf.Lowering(
            self.mesh.graph, {self.mesh: self.implementation}, autostack=False
        )


def check_graph(
    network: Network, training: TrainingConfig, frozen: Sequence[str] = ()
) -> None:
    """Checks that the mesh fits model, task and batches, before anything is run."""
    accumulation = training.gradient_accumulation
    step_settings = {} if accumulation == 1 else _MICROBATCH_SETTINGS
    for batch, settings in (
        (training.eval_batch_size, _EVALUATION_SETTINGS),
        (training.batch_size // accumulation, step_settings),
    ):
        dims = make_dims(network.model, batch, network.task.sequence_length)
        meshes.check_mesh(network.mesh, dims, network.task.extra_dims(), settings)
    if meshes.mesh_size(network.mesh) > 1:
        _check_layout(network, training, frozen, dims)


def _check_layout(network, training, frozen, dims):
    """Builds the mesh graph of a step and checks every tensor in it.

    The graph is not lowered, so that the check needs no devices and little time. The
    model has at most two layers, as further layers have tensors of the same dimensions.
    """
    model = network.model
    layers = min(model.num_layers, 2)
    network = network._replace(model=model.with_layers(layers))
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        mesh_graph = _MeshGraph(network, None, mesh, None)
        features = {
            name: tf.placeholder(
                tf.float32 if name.endswith(FLOAT_FEATURES) else tf.int32,
                [dimension.size for dimension in layout],
            )
            for name, layout in network.task.feature_dims(dims).items()
        }
        build = dataclasses.replace(
            mesh_graph.builder(dims),
            dropout_seed=mesh_graph.import_scalar(tf.placeholder(tf.int32, [])),
            frozen=tuple(frozen),
            recompute_layers=training.recompute_layers,
        )
        inputs = mesh_graph.import_features(features, dims)
        forward = network.task.forward(build, inputs)
        variables = mesh.graph.trainable_variables
        mtf.gradients([forward.loss], [variable.value for variable in variables])
        meshes.check_tensors(network.mesh, mesh.graph)


def build_step(
    graph: TrainingGraph,
    features: Tensors,
    placement: meshes.Placement | None = None,
) -> LoweredStep:
    """Builds and lowers the graph of one training step, with dropout and update.

    `features` are [batch, length] or [batch], as the task declares them; those of
    packed examples are [batch, examples]. `placement`: the cores of a TPU; None is this
    host's devices.
    """
    network, training = graph.network, graph.training
    batch, length = features["input_word_ids"].shape.as_list()
    mesh_graph = _begin_graph(network, graph, placement)
    step = tf.train.get_or_create_global_step()
    # Microbatches add their number, so that no two of a phase have equal masks. The
    # seed is wrapped to an int32.
    seed = (training.seed * 1_000_003 + 2**31) % 2**32 - 2**31
    first_seed = tf.cast(step, tf.int32) * batch + seed
    dropout_seed = mesh_graph.import_scalar(first_seed)
    with partition_large_tables(
        network.variables, network.mesh, mesh_graph.implementation
    ):
        dims = mesh_graph.checked_dims(batch // training.gradient_accumulation, length)
        batch_dims = make_dims(network.model, batch, length)
        inputs = mesh_graph.import_features(network.task.prepare(features), batch_dims)
        forward, gradients = _forward_and_gradients(
            mesh_graph, dims, inputs, dropout_seed
        )
        return _with_update(mesh_graph, forward, gradients, step)


def _with_update(
    mesh_graph: _MeshGraph,
    forward: Forward,
    gradients: list[mtf.Tensor],
    step: tf.Tensor,
) -> LoweredStep:
    graph = mesh_graph.training_graph
    meshes.check_tensors(mesh_graph.network.mesh, mesh_graph.mesh.graph)
    rate = learning_rate(graph.optimizer.learning_rate, graph.schedule, step)
    declared_variables = mesh_graph.network.variables
    updates = apply_gradients(
        graph.optimizer,
        gradients,
        list(mesh_graph.mesh.graph.trainable_variables),
        [name for name, v in declared_variables.items() if v.is_decayed],
        rates_of(mesh_graph.network, graph.optimizer),
        mesh_graph.import_scalar(rate),
        mesh_graph.import_scalar(tf.cast(step + 1, tf.float32)),
        mesh_graph.implementation,
        _rounding_seed(mesh_graph, step),
    )
    lowering = mesh_graph.lower()
    export = lowering.export_to_tf_tensor
    operations = [lowering.lowered_operation(op) for op in updates.operations]
    norm = export(updates.gradient_norm)
    return LoweredStep(
        loss=export(forward.loss),
        sums={name: export(value) for name, value in forward.sums.items()},
        update=tf.group(operations),
        scalars={"gradient_norm": norm, "learning_rate": rate},
        lowering=lowering,
        gradients=updates.gradients,
    )


def logged_scalars(graph: TrainingGraph, lowered: LoweredStep) -> dict[str, tf.Tensor]:
    """name -> float32 scalar to log: loss, metrics, norm of the gradient, rate."""
    sums = lowered.sums
    metrics = {
        # The unit is in the name: earlier versions logged shares.
        f"{name}{PERCENT}": 100.0 * sums[numerator] / tf.maximum(sums[denominator], 1.0)
        for name, (numerator, denominator) in graph.network.task.metrics.items()
    }
    return {"loss": lowered.loss, **metrics, **lowered.scalars}


def build_predictions(
    network: Network,
    features: Tensors,
    placement: meshes.Placement | None = None,
) -> tuple[dict[str, tf.Tensor], mtf.Lowering]:
    """Builds and lowers the graph that predicts, from features as for `build_step`."""
    mesh_graph = _begin_graph(network, None, placement)
    batch, length = features["input_word_ids"].shape.as_list()
    dims = mesh_graph.checked_dims(batch, length)
    inputs = mesh_graph.import_features(network.task.prepare(features), dims)
    forward = network.task.forward(mesh_graph.builder(dims), inputs)
    predictions = {k: mtf.anonymize(v) for k, v in forward.predictions.items()}
    lowering = mesh_graph.lower()
    export = lowering.export_to_tf_tensor
    return {name: export(value) for name, value in predictions.items()}, lowering


def _begin_graph(network, training_graph, placement):
    if placement is None:
        placement = meshes.Placement(meshes.make_mesh_impl(network.mesh), None)
    mesh = mtf.Mesh(mtf.Graph(), "mesh", placement.variable_placer)
    tf.train.get_or_create_global_step()
    return _MeshGraph(network, training_graph, mesh, placement.implementation)


def _rounding_seed(mesh_graph: _MeshGraph, step: tf.Tensor) -> mtf.Tensor | None:
    """One number per step for stochastic rounding; None where no weight needs it."""
    if mesh_graph.network.mesh.slice_dtype == "float32":
        return None
    seed = mesh_graph.training_graph.training.seed * 1_000_003 % 2**30
    return mesh_graph.import_scalar(tf.cast(step, tf.int32) + seed)


def _forward_and_gradients(
    mesh_graph: _MeshGraph, dims: Dims, features: MeshTensors, dropout_seed: mtf.Tensor
) -> tuple[Forward, list[mtf.Tensor]]:
    """`dims` are those of a microbatch, `features` those of the whole batch."""
    task = mesh_graph.network.task
    accumulation = mesh_graph.training_graph.training.gradient_accumulation
    if accumulation == 1:
        forward = task.forward(mesh_graph.builder(dims, dropout_seed), features)
        variables = mesh_graph.mesh.graph.trainable_variables
        gradients = mtf.gradients([forward.loss], [v.value for v in variables])
        return forward, gradients
    batch = mtf.Dimension("batch", dims.batch.size * accumulation)
    microbatches = mtf.Dimension("microbatch", accumulation)
    names = []

    def microbatch(number: mtf.Tensor) -> list[mtf.Tensor]:
        # Microbatch m has examples m, m + accumulation, ...
        part = {
            name: mtf.gather(
                mtf.replace_dimensions(feature, batch, [dims.batch, microbatches]),
                *(number, microbatches),
            )
            for name, feature in features.items()
        }
        forward = task.forward(mesh_graph.builder(dims, dropout_seed + number), part)
        variables = mesh_graph.mesh.graph.trainable_variables
        gradients = mtf.gradients([forward.loss], [v.value for v in variables])
        names[:] = forward.sums
        # A sum of many bfloat16 gradients would stop growing.
        casts = [GradientCast(x, tf.float32).outputs[0] for x in gradients]
        return [number + 1, forward.loss, *forward.sums.values(), *casts]

    _, loss, *outputs = mtf.while_loop(
        lambda number: mtf.less(number, accumulation),
        microbatch,
        [mtf.constant(mesh_graph.mesh, 0, dtype=tf.int32)],
        has_accumulators=True,
    )
    sums = dict(zip(names, outputs, strict=False))
    return Forward(loss, sums, {}), outputs[len(names) :]
