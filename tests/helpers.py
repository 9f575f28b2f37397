"""Runs mesh functions on virtual CPU devices and gives numpy back."""

import numpy as np

from decoupled.configs import (
    MaskingConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
)
from decoupled.core.compat import mtf, tf
from decoupled.ops.meshes.placement import PlacementMeshImpl

SESSION_CONFIG = tf.ConfigProto(
    device_count={"CPU": 4},
    intra_op_parallelism_threads=1,
    inter_op_parallelism_threads=2,
)
# As in the package's own sessions: rewriting a graph takes longer than running it once.
SESSION_CONFIG.graph_options.rewrite_options.disable_meta_optimizer = True


def starting_from(values):
    """An initializer of these values, and of blocks of their rows."""
    values = np.asarray(values, np.float32)

    def initialize(shape, dtype=tf.float32, partition_info=None):
        assert dtype == tf.float32
        first_row = partition_info.var_offset[0] if partition_info else 0
        return tf.constant(values[first_row : first_row + shape[0]])

    return initialize


def mesh_impl(mesh_shape="all:1", layout_rules=""):
    """A mesh over as many virtual CPU devices as the shape has processors."""
    shape = mtf.convert_to_shape(mesh_shape)
    devices = [f"cpu:{i}" for i in range(shape.size)] if shape.size > 1 else [""]
    return PlacementMeshImpl(shape, mtf.convert_to_layout_rules(layout_rules), devices)


def run_mesh(
    build, inputs, mesh_shape="all:1", layout_rules="", weights=None, make_impl=None
):
    """Builds a function of mesh tensors, lowers it, runs it once.

    Args:
      build: function (mesh, dict of mtf.Tensor) -> list of mtf.Tensor.
      inputs: name -> (numpy array, list of mtf.Dimension).
      mesh_shape, layout_rules: strings as in a gin file.
      weights: optional dict, variable name -> numpy array.
      make_impl: from shape and layout to another implementation of the mesh.

    Returns:
      A list of numpy arrays.
    """
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        tensors = {
            name: mtf.import_tf_tensor(mesh, tf.constant(value), mtf.Shape(dims))
            for name, (value, dims) in inputs.items()
        }
        outputs = [mtf.anonymize(t) for t in build(mesh, tensors)]
        impl = (make_impl or mesh_impl)(mesh_shape, layout_rules)
        lowering = mtf.Lowering(graph, {mesh: impl}, autostack=False)
        fetches = [lowering.export_to_tf_tensor(t) for t in outputs]
        copy = lowering.copy_masters_to_slices()
        with tf.Session(config=SESSION_CONFIG) as session:
            _initialize(session, weights or {})
            session.run(copy)
            return session.run(fetches)


def _initialize(session, weights):
    """Gives variables their values of `weights`, or else their initial values."""
    variables = tf.global_variables()
    values = {
        variable.initializer.inputs[1]: weights[variable.op.name]
        for variable in variables
        if variable.op.name in weights
    }
    session.run([variable.initializer for variable in variables], values)


def tiny_model(**changes):
    """A model of a few thousand parameters; keywords change single fields."""
    fields = dict(
        vocab_size=48,
        input_embedding_size=8,
        output_embedding_size=24,
        coupled=False,
        hidden_size=16,
        num_layers=1,
        num_heads=4,
        head_size=4,
        intermediate_size=32,
        max_positions=20,
        activation="gelu",
        layer_norm_epsilon=1e-6,
        initializer_range=0.1,
        mlm_transform="dense_activation_norm",
    )
    return ModelConfig(**{**fields, **changes})


def tiny_training(**changes):
    """Bookkeeping for runs of a few steps."""
    fields = dict(
        batch_size=8,
        save_checkpoints_steps=10,
        keep_checkpoint_max=3,
        log_steps=1,
        eval_batch_size=8,
        eval_sequences=0,
        seed=3,
        iterations_per_loop=1,
    )
    return TrainingConfig(**{**fields, **changes})


def adamw(**changes):
    """The optimizer of Table 14 with a rate for tiny models."""
    return OptimizerConfig(**{"learning_rate": 1e-2, **changes})


def adamw_step(w, m, v, g, step, rate, *, weight_decay, beta1, beta2, epsilon):
    """A step of AdamW by numpy: Loshchilov and Hutter 2019, algorithm 2.

    Args:
      w, m, v: the weights and their moments before the step. g: the gradient.
      step: counted from 1 on. All others are settings.

    Returns:
      w, m and v after the step.
    """
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g**2
    w = w - rate * weight_decay * w
    denominator = np.sqrt(v / (1 - beta2**step)) + epsilon
    return w - rate * m / (1 - beta1**step) / denominator, m, v


def operations_before(operations):
    """All that must run before these operations, and themselves."""
    ancestors, queue = set(), list(operations)
    while queue:
        operation = queue.pop()
        if operation not in ancestors:
            ancestors.add(operation)
            queue += [x.op for x in operation.inputs] + operation.control_inputs
    return ancestors


def schedule(
    train_steps=20, warmup_steps=4, decay="linear", decay_steps=None, final_share=0.0
):
    """A schedule of a few steps."""
    return ScheduleConfig(train_steps, warmup_steps, decay, decay_steps, final_share)


MASKING = MaskingConfig(sequence_length=12, max_predictions=4)


def masked_lm_features(batch_size=8, seed=0):
    """Random MLM features with padding, two segments and unused predictions, for the
    vocabulary of `tiny_model`."""
    rng = np.random.default_rng(seed)
    length, predictions = MASKING.sequence_length, MASKING.max_predictions
    mask = np.ones([batch_size, length], np.int32)
    mask[1::2, length - 3 :] = 0
    weights = np.ones([batch_size, predictions], np.float32)
    weights[2::3, -1] = 0
    types = np.zeros([batch_size, length], np.int32)
    types[:, length // 2 :] = 1

    def integers(high, width):
        return rng.integers(0, high, [batch_size, width]).astype(np.int32)

    return {
        "input_word_ids": integers(48, length) * mask,
        "input_mask": mask,
        "input_type_ids": types,
        "masked_lm_positions": np.sort(integers(length - 3, predictions)),
        "masked_lm_ids": integers(48, predictions),
        "masked_lm_weights": weights,
    }


def constant_input_fn(features, repeat=True):
    """An input_fn that gives one batch, for ever or once."""

    def input_fn(params=None):
        del params
        dataset = tf.data.Dataset.from_tensors(features)
        return dataset.repeat() if repeat else dataset

    return input_fn
