"""One mesh graph for training, evaluation and prediction of any task."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from decoupled.configs import (
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
)
from decoupled.core.compat import mtf, tf
from decoupled.model.dims import FLOAT_FEATURES, make_dims
from decoupled.model.heads import Forward
from decoupled.model.layers import Builder
from decoupled.model.variables import Variable, declare
from decoupled.training import mesh as meshes
from decoupled.training.lengths import join_lengths, split_by_length
from decoupled.training.optimizer import apply_gradients, learning_rate
from decoupled.training.partitioned_tables import partition_large_tables

DROPOUT_SEED = "dropout_seed"


class Lowered(NamedTuple):
    """A graph in TensorFlow's terms; see `Forward`.

    update: operation of one optimizer step, training only.
    scalars: name -> float32 scalar to log, training only.
    lowering: for the hooks that copy between saved variables and mesh slices.
    gradients: of the trainable variables, as the optimizer takes them.
    """

    loss: tf.Tensor
    sums: dict[str, tf.Tensor]
    predictions: dict[str, tf.Tensor]
    update: tf.Operation | None
    scalars: dict[str, tf.Tensor]
    lowering: mtf.Lowering
    gradients: list[mtf.Tensor]


class GraphConfig(NamedTuple):
    """All that shapes a graph but the features.

    task: a `decoupled.tasks.task.Task`.
    seed: of initial weights and dropout. accumulation: microbatches per step.
    frozen: names of variables that are not trained.
    recompute_layers: the backward pass computes the inside of every layer again.
    """

    task: Any
    model: ModelConfig
    mesh: MeshConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    accumulation: int
    seed: int
    frozen: tuple[str, ...]
    recompute_layers: bool = False

    @property
    def variables(self) -> Mapping[str, Variable]:
        """What the graph has to train or to hold fixed, by name; no slots."""
        return declare(self.model, self.task.head)


# What the size of the batch comes from, where that is not the batch of a step.
_OF_A_MICROBATCH = {
    "batch": "TrainingConfig.batch_size or TrainingConfig.gradient_accumulation"
}
_OF_AN_EVALUATION = {"batch": "TrainingConfig.eval_batch_size"}


class _Context(NamedTuple):
    config: GraphConfig
    mesh: mtf.Mesh
    training: bool
    implementation: mtf.MeshImpl


def check_graph(config: GraphConfig, training: TrainingConfig) -> None:
    """Checks that the mesh fits model, task and batches, before anything is run.

    Raises:
      UserError: naming the rule, the dimension, the sizes and the setting.
    """
    accumulation = training.gradient_accumulation
    of_a_step = {} if accumulation == 1 else _OF_A_MICROBATCH
    for batch, settings in (
        (training.eval_batch_size, _OF_AN_EVALUATION),
        (training.batch_size // accumulation, of_a_step),
    ):
        dims = make_dims(config.model, batch, config.task.sequence_length)
        meshes.check_mesh(config.mesh, dims, config.task.extra_dims(), settings)
    if config.mesh.layout_rules:
        _check_layout(config, dims)


def _check_layout(config, dims):
    """Builds the mesh graph of a step and looks at every tensor in it.

    It is not lowered, so that it needs no devices and little time. Two layers have all
    tensors that more have.
    """
    layers = min(config.model.num_layers, 2)
    config = config._replace(model=dataclasses.replace(config.model, num_layers=layers))
    layouts = {**config.task.feature_dims(dims), DROPOUT_SEED: [dims.batch]}
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        features = {
            name: tf.placeholder(
                tf.float32 if name.endswith(FLOAT_FEATURES) else tf.int32,
                [dimension.size for dimension in layout],
            )
            for name, layout in layouts.items()
        }
        context = _Context(config, mesh, True, None)
        forward = _forward(context, dims, _import(context, features, dims))
        variables = mesh.graph.trainable_variables
        mtf.gradients([forward.loss], [variable.value for variable in variables])
        meshes.check_conflicts(config.mesh, mesh.graph)


def build_graph(
    config: GraphConfig,
    features: dict,
    training: bool,
    placement: meshes.Placement | None = None,
) -> Lowered:
    """Builds and lowers the graph of one step.

    Args:
      config: task, model, mesh and optimizer.
      features: name -> tf.Tensor of static shape, as the task declares them.
      training: with dropout, gradients and update.
      placement: the cores of a TPU; None is this host's devices.

    Returns:
      The lowered graph.

    Raises:
      UserError: the mesh does not fit the model or the batch.
    """
    features = config.task.prepare(features)
    batch = features["input_word_ids"].shape.as_list()[0]
    microbatch = batch // config.accumulation if training else batch
    length = config.task.sequence_length
    dims = make_dims(config.model, microbatch, length)
    meshes.check_mesh(config.mesh, dims, config.task.extra_dims())
    context = _make_context(config, training, placement)
    step = tf.train.get_or_create_global_step()
    if training:
        # Distinct for each step and microbatch; see `_dropout_seed`.
        first = tf.cast(step, tf.int32) * batch
        features = {**features, DROPOUT_SEED: first + tf.range(batch)}
    imported = _import(context, features, make_dims(config.model, batch, length))
    if not training:
        forward = _forward(context, dims, imported)
        return _lower(context, forward, None)
    with partition_large_tables(
        config.variables, config.optimizer, config.mesh, context.implementation
    ):
        return _build_training(context, dims, imported, step)


def _build_training(context, dims, imported, step):
    config = context.config
    forward, gradients, variables = _forward_and_gradients(context, dims, imported)
    meshes.check_conflicts(config.mesh, context.mesh.graph)
    rate = learning_rate(config.optimizer.learning_rate, config.schedule, step)
    updates = apply_gradients(
        config.optimizer,
        gradients,
        variables,
        [name for name, v in config.variables.items() if v.is_decayed],
        _import_scalar(context, rate),
        _import_scalar(context, tf.cast(step + 1, tf.float32)),
        context.implementation,
        _rounding_seed(context, step),
    )
    lowered = _lower(context, forward, updates)
    return lowered._replace(scalars={**lowered.scalars, "learning_rate": rate})


def build_predictions(
    config: GraphConfig,
    features: dict,
    lengths: Sequence[int],
    placement: meshes.Placement | None = None,
) -> tuple[dict[str, tf.Tensor], mtf.Lowering]:
    """Builds and lowers the graph that predicts batches of several lengths.

    Args:
      config: task, model and mesh.
      features: name -> tf.Tensor [batch, length] or [batch], as the task declares them;
        the length is one of `lengths`, none above the task's.
      lengths: that a batch may have.
      placement: the cores of a TPU, where only one length is possible.

    Returns:
      name -> prediction, as long as the task's sequences with zeros behind shorter
      ones; the lowering.

    Raises:
      UserError: the mesh does not fit the model or the batch.
    """
    context = _make_context(config, False, placement)
    tf.train.get_or_create_global_step()
    parts = []
    for length, own in split_by_length(features, lengths):
        own = config.task.prepare(own)
        batch = own["input_word_ids"].shape.as_list()[0]
        dims = make_dims(config.model, batch, length)
        meshes.check_mesh(config.mesh, dims, config.task.extra_dims())
        found = _forward(context, dims, _import(context, own, dims)).predictions
        # Dimensions lose their names with their layout.
        parts.append({k: (mtf.anonymize(v), v.shape) for k, v in found.items()})
    lowering = _lowering(context)

    def exported(prediction, shape):
        value = lowering.export_to_tf_tensor(prediction)
        return _filled_up(value, shape, config.task.sequence_length)

    joined = {
        name: join_lengths([exported(*part[name]) for part in parts])
        for name in parts[0]
    }
    return joined, lowering


def _filled_up(value, shape, length):
    """A prediction with zeros to the full length, where it has one value a token."""
    missing = [
        (0, length - dim.size if dim.name == "sequence" else 0) for dim in shape.dims
    ]
    return tf.pad(value, missing) if any(after for _, after in missing) else value


def _make_context(config, training, placement):
    if placement is None:
        placement = meshes.Placement(meshes.make_mesh_impl(config.mesh), None)
    mesh = mtf.Mesh(mtf.Graph(), "mesh", placement.variable_placer)
    return _Context(config, mesh, training, placement.implementation)


def _import(context, features, dims):
    layouts = context.config.task.feature_dims(dims)
    layouts[DROPOUT_SEED] = [dims.batch]
    return {
        name: mtf.import_tf_tensor(context.mesh, value, mtf.Shape(layouts[name]))
        for name, value in features.items()
    }


def _import_scalar(context, value):
    return mtf.import_tf_tensor(context.mesh, value, mtf.Shape([]))


def _forward(context, dims, features):
    config = context.config
    features = dict(features)
    seed = features.pop(DROPOUT_SEED, None)
    build = Builder(
        config=config.model,
        dims=dims,
        mesh=context.mesh,
        activation_dtype=tf.as_dtype(config.mesh.activation_dtype),
        initializer_seed=config.seed,
        dropout_seed=_dropout_seed(config, seed) if context.training else None,
        frozen=config.frozen,
        embedding_lookup=config.mesh.embedding_lookup,
        recompute_layers=config.recompute_layers and context.training,
        slice_dtype=tf.as_dtype(config.mesh.slice_dtype),
    )
    return config.task.forward(build, features)


def _dropout_seed(config, seeds):
    # One number per microbatch: its first example's place in the run.
    smallest = -mtf.reduce_max(-seeds, output_shape=[])
    return smallest + config.seed * 1_000_003


def _rounding_seed(context, step):
    """One number per step for stochastic rounding; None where no weight needs it."""
    if context.config.mesh.slice_dtype == "float32":
        return None
    seed = context.config.seed * 1_000_003 % 2**30
    return _import_scalar(context, tf.cast(step, tf.int32) + seed)


def _forward_and_gradients(context, dims, features):
    if context.config.accumulation == 1:
        forward = _forward(context, dims, features)
        variables = list(context.mesh.graph.trainable_variables)
        gradients = mtf.gradients([forward.loss], [v.value for v in variables])
        return forward, gradients, variables
    return _accumulate(context, dims, features)


def _accumulate(context, dims, features):
    names = []

    def microbatch(part):
        forward = _forward(context, dims, part)
        names[:] = forward.sums
        return {"loss": forward.loss, **forward.sums}

    batch = mtf.Dimension("batch", dims.batch.size * context.config.accumulation)
    gradients, outputs = mtf.serialize_training_step(
        features, microbatch, batch, context.config.accumulation
    )
    sums = {name: outputs[name] for name in names}
    variables = list(context.mesh.graph.trainable_variables)
    return Forward(outputs["loss"], sums, {}), gradients, variables


def _lowering(context):
    graph = context.mesh.graph
    meshes.check_conflicts(context.config.mesh, graph)
    # Stacked variables have no slice of their own for the fused optimizer.
    return mtf.Lowering(graph, {context.mesh: context.implementation}, autostack=False)


def _lower(context, forward, updates):
    predictions = {}
    if not context.training:
        predictions = {k: mtf.anonymize(v) for k, v in forward.predictions.items()}
    lowering = _lowering(context)
    export = lowering.export_to_tf_tensor
    update, scalars, gradients = None, {}, []
    if updates:
        operations = [lowering.lowered_operation(op) for op in updates.operations]
        update = tf.group(operations)
        scalars = {"gradient_norm": export(updates.gradient_norm)}
        gradients = updates.gradients
    return Lowered(
        loss=export(forward.loss),
        sums={name: export(value) for name, value in forward.sums.items()},
        predictions={name: export(value) for name, value in predictions.items()},
        update=update,
        scalars=scalars,
        lowering=lowering,
        gradients=gradients,
    )
