"""One mesh graph for training and prediction of any task."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from decoupled.configs import TrainingConfig
from decoupled.core.compat import mtf, tf
from decoupled.model.dims import FLOAT_FEATURES, Dims, make_dims
from decoupled.model.heads import Forward
from decoupled.model.layers import Builder
from decoupled.training import mesh as meshes
from decoupled.training.network import Network, TrainingGraph
from decoupled.training.optimizer import apply_gradients, learning_rate
from decoupled.training.partitioned_tables import partition_large_tables

Features = dict[str, tf.Tensor]
MeshFeatures = dict[str, mtf.Tensor]


class Lowered(NamedTuple):
    """A training step in TensorFlow's terms; for loss and sums see `Forward`.

    update: operation of one optimizer step.
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
_OF_A_MICROBATCH = {
    "batch": "TrainingConfig.batch_size or TrainingConfig.gradient_accumulation"
}
_OF_AN_EVALUATION = {"batch": "TrainingConfig.eval_batch_size"}
# The feature with the index of an example in its batch.
_EXAMPLE = "example_number"


class _Context(NamedTuple):
    """What is built, and where; `training` is None where nothing is trained."""

    network: Network
    training: TrainingGraph | None
    mesh: mtf.Mesh
    implementation: mtf.MeshImpl | None


def check_graph(
    network: Network, training: TrainingConfig, frozen: Sequence[str] = ()
) -> None:
    """Checks that the mesh fits model, task and batches, before anything is run.

    Args:
      network: what is trained and predicts. training: sizes of its batches.
      frozen: names of variables that are not trained.

    Raises:
      UserError: naming the rule, the dimension, the sizes and the setting.
    """
    accumulation = training.gradient_accumulation
    of_a_step = {} if accumulation == 1 else _OF_A_MICROBATCH
    for batch, settings in (
        (training.eval_batch_size, _OF_AN_EVALUATION),
        (training.batch_size // accumulation, of_a_step),
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
    network = network._replace(model=dataclasses.replace(model, num_layers=layers))
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        context = _Context(network, None, mesh, None)
        features = {
            name: tf.placeholder(
                tf.float32 if name.endswith(FLOAT_FEATURES) else tf.int32,
                [dimension.size for dimension in layout],
            )
            for name, layout in network.task.feature_dims(dims).items()
        }
        build = dataclasses.replace(
            _builder(context, dims),
            dropout_seed=_import_scalar(context, tf.placeholder(tf.int32, [])),
            frozen=tuple(frozen),
            recompute_layers=training.recompute_layers,
        )
        forward = network.task.forward(build, _import(context, features, dims))
        variables = mesh.graph.trainable_variables
        mtf.gradients([forward.loss], [variable.value for variable in variables])
        meshes.check_tensors(network.mesh, mesh.graph)


def build_step(
    graph: TrainingGraph,
    features: Features,
    placement: meshes.Placement | None = None,
) -> Lowered:
    """Builds and lowers the graph of one training step, with dropout and update.

    Args:
      graph: what is trained, and how.
      features: name -> tf.Tensor [batch, length] or [batch], as the task declares them;
        those of packed examples are [batch, examples].
      placement: the cores of a TPU; None is this host's devices.

    Raises:
      UserError: the mesh does not fit the model or the batch.
    """
    network = graph.network
    batch, length = features["input_word_ids"].shape.as_list()
    context = _make_context(network, graph, placement)
    step = tf.train.get_or_create_global_step()
    # Microbatches add their number, so that no two of a run have equal masks.
    first = tf.cast(step, tf.int32) * batch + graph.seed * 1_000_003
    dropout_seed = _import_scalar(context, first)
    with partition_large_tables(
        network.variables, graph.optimizer, network.mesh, context.implementation
    ):
        dims = _checked_dims(network, batch // graph.accumulation, length)
        whole = make_dims(network.model, batch, length)
        imported = _import(context, network.task.prepare(features), whole)
        forward, gradients = _forward_and_gradients(
            context, dims, imported, dropout_seed
        )
        return _with_update(context, forward, gradients, step)


def _checked_dims(network, batch, length):
    dims = make_dims(network.model, batch, length)
    meshes.check_mesh(network.mesh, dims, network.task.extra_dims())
    return dims


def _with_update(
    context: _Context,
    forward: Forward,
    gradients: list[mtf.Tensor],
    step: tf.Tensor,
) -> Lowered:
    graph = context.training
    meshes.check_tensors(context.network.mesh, context.mesh.graph)
    rate = learning_rate(graph.optimizer.learning_rate, graph.schedule, step)
    declared = context.network.variables
    updates = apply_gradients(
        graph.optimizer,
        gradients,
        list(context.mesh.graph.trainable_variables),
        [name for name, v in declared.items() if v.is_decayed],
        _import_scalar(context, rate),
        _import_scalar(context, tf.cast(step + 1, tf.float32)),
        context.implementation,
        _rounding_seed(context, step),
    )
    lowering = _lowering(context)
    export = lowering.export_to_tf_tensor
    operations = [lowering.lowered_operation(op) for op in updates.operations]
    norm = export(updates.gradient_norm)
    return Lowered(
        loss=export(forward.loss),
        sums={name: export(value) for name, value in forward.sums.items()},
        update=tf.group(operations),
        scalars={"gradient_norm": norm, "learning_rate": rate},
        lowering=lowering,
        gradients=updates.gradients,
    )


def build_predictions(
    network: Network,
    features: Features,
    placement: meshes.Placement | None = None,
) -> tuple[dict[str, tf.Tensor], mtf.Lowering]:
    """Builds and lowers the graph that predicts.

    Args: see `build_step`.

    Returns:
      name -> prediction; and the lowering.

    Raises:
      UserError: the mesh does not fit the model or the batch.
    """
    context = _make_context(network, None, placement)
    tf.train.get_or_create_global_step()
    batch, length = features["input_word_ids"].shape.as_list()
    dims = _checked_dims(network, batch, length)
    imported = _import(context, network.task.prepare(features), dims)
    forward = network.task.forward(_builder(context, dims), imported)
    predictions = {k: mtf.anonymize(v) for k, v in forward.predictions.items()}
    lowering = _lowering(context)
    export = lowering.export_to_tf_tensor
    return {name: export(value) for name, value in predictions.items()}, lowering


def _make_context(network, training, placement):
    if placement is None:
        placement = meshes.Placement(meshes.make_mesh_impl(network.mesh), None)
    mesh = mtf.Mesh(mtf.Graph(), "mesh", placement.variable_placer)
    return _Context(network, training, mesh, placement.implementation)


def _import(context: _Context, features: Features, dims: Dims) -> MeshFeatures:
    layouts = context.network.task.feature_dims(dims)
    return {
        name: mtf.import_tf_tensor(context.mesh, value, mtf.Shape(layouts[name]))
        for name, value in features.items()
    }


def _import_scalar(context: _Context, value: tf.Tensor) -> mtf.Tensor:
    return mtf.import_tf_tensor(context.mesh, value, mtf.Shape([]))


def _builder(
    context: _Context, dims: Dims, dropout_seed: mtf.Tensor | None = None
) -> Builder:
    network, training = context.network, context.training
    return Builder(
        config=network.model,
        dims=dims,
        mesh=context.mesh,
        activation_dtype=tf.as_dtype(network.mesh.activation_dtype),
        # A graph that only predicts gets its weights from a checkpoint.
        initializer_seed=training.seed if training else 0,
        dropout_seed=dropout_seed,
        frozen=training.frozen if training else (),
        embedding_lookup=network.mesh.embedding_lookup,
        recompute_layers=training is not None and training.recompute_layers,
        slice_dtype=tf.as_dtype(network.mesh.slice_dtype),
    )


def _rounding_seed(context: _Context, step: tf.Tensor) -> mtf.Tensor | None:
    """One number per step for stochastic rounding; None where no weight needs it."""
    if context.network.mesh.slice_dtype == "float32":
        return None
    seed = context.training.seed * 1_000_003 % 2**30
    return _import_scalar(context, tf.cast(step, tf.int32) + seed)


def _forward_and_gradients(
    context: _Context, dims: Dims, features: MeshFeatures, dropout_seed: mtf.Tensor
) -> tuple[Forward, list[mtf.Tensor]]:
    """Loss and sums of a step, and the gradients of its trainable variables.

    Args:
      dims: of a microbatch. features: of the whole batch. dropout_seed: of the step.
    """
    task, accumulation = context.network.task, context.training.accumulation
    if accumulation == 1:
        forward = task.forward(_builder(context, dims, dropout_seed), features)
        variables = context.mesh.graph.trainable_variables
        gradients = mtf.gradients([forward.loss], [v.value for v in variables])
        return forward, gradients
    batch = mtf.Dimension("batch", dims.batch.size * accumulation)
    names = []

    def microbatch(part: MeshFeatures) -> dict[str, mtf.Tensor]:
        # Microbatch m has examples m, m + accumulation, ...
        number = -mtf.reduce_max(-part.pop(_EXAMPLE), output_shape=[])
        build = _builder(context, dims, dropout_seed + number)
        forward = task.forward(build, part)
        names[:] = forward.sums
        return {"loss": forward.loss, **forward.sums}

    # A microbatch gets nothing but its part of these tensors.
    numbered = {**features, _EXAMPLE: mtf.range(context.mesh, batch, tf.int32)}
    gradients, outputs = mtf.serialize_training_step(
        numbered, microbatch, batch, accumulation
    )
    sums = {name: outputs[name] for name in names}
    return Forward(outputs["loss"], sums, {}), gradients


def _lowering(context):
    graph = context.mesh.graph
    meshes.check_tensors(context.network.mesh, graph)
    # Stacked variables have no slice of their own for the fused optimizer.
    return mtf.Lowering(graph, {context.mesh: context.implementation}, autostack=False)
