"""Worker: training steps of the stock BERT of Mesh-TensorFlow, `mesh_tensorflow.bert`.

Its model, loss and optimizer are used as they ship in float32; what bfloat16 takes,
`bfloat16_activations` says. The output embedding is the input embedding, of the hidden
size: this BERT can neither decouple nor factorize them. The head runs on the masked
positions; there is no next-sentence loss.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import protocol
import synthetic
from tensorflow.python.framework import ops, tensor_conversion_registry

# mesh-tensorflow 0.1.21 registers its variables through a function that TensorFlow 2.15
# moved to another module.
ops.register_tensor_conversion_function = (
    tensor_conversion_registry.register_tensor_conversion_function
)

import mesh_tensorflow as mtf  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from mesh_tensorflow.bert import bert, optimization  # noqa: E402

TRAIN_STEPS = 100_000


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds a batch's sizes (see `synthetic`), the fields of a `ModelConfig` as
    "model", those of an `OptimizerConfig` as "optimizer", and "dtype"."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        features = _import(mesh, synthetic.masked_lm_batch(case))
        if case["dtype"] == "bfloat16":
            with bfloat16_activations():
                loss = _loss(case, features)
            updates = _bfloat16_updates(case, loss)
        else:
            loss = _loss(case, features)
            _, updates = optimization.create_optimizer(
                loss, case["optimizer"]["learning_rate"], TRAIN_STEPS, 0
            )
        implementation = mtf.placement_mesh_impl.PlacementMeshImpl(
            mtf.convert_to_shape("all:1"), mtf.convert_to_layout_rules(""), [""]
        )
        lowering = mtf.Lowering(graph, {mesh: implementation})
        updates = [lowering.lowered_operation(update) for update in updates]
        updates.append(tf.assign_add(tf.train.get_or_create_global_step(), 1))
        train = tf.group(updates)
        exported = lowering.export_to_tf_tensor(loss)
        copy = lowering.copy_masters_to_slices()
        session = tf.Session()
        session.run(tf.global_variables_initializer())
        session.run(copy)

    def step():
        value, _ = session.run([exported, train])
        return float(value)

    return step, {
        "parameters": sum(v.shape.size for v in graph.trainable_variables),
        "versions": protocol.versions("tensorflow", "mesh-tensorflow"),
    }


def _import(mesh, arrays):
    dataset = tf.data.Dataset.from_tensors(arrays).repeat()
    features = tf.data.make_one_shot_iterator(dataset).get_next()
    sequences, length = arrays["input_word_ids"].shape
    predictions = arrays["masked_lm_ids"].shape[1]
    batch = mtf.Dimension("batch", sequences)
    dims = {
        length: mtf.Dimension("seq", length),
        predictions: mtf.Dimension("max_pred_seq", predictions),
    }
    return {
        name: mtf.import_tf_tensor(mesh, value, [batch, dims[value.shape[1]]])
        for name, value in features.items()
    }


def _loss(case, features):
    sizes = case["model"]
    config = bert.BertConfig(
        vocab_size=sizes["vocab_size"],
        d_model=sizes["hidden_size"],
        max_position_embeddings=sizes["max_positions"],
        num_blocks=sizes["num_layers"],
        layer_output_dropout_prob=sizes["hidden_dropout"],
        attention_num_heads=sizes["num_heads"],
        attention_probs_dropout_prob=sizes["attention_dropout"],
        feedforward_intermediate_size=sizes["intermediate_size"],
        type_vocab_size=sizes["type_vocab_size"],
        initializer_range=sizes["initializer_range"],
    )
    model = bert.BertModel(
        config,
        is_training=True,
        input_ids=features["input_word_ids"],
        input_mask=features["input_mask"],
        token_type_ids=features["input_type_ids"],
    )
    loss, _, _ = model.get_masked_lm_output(
        features["masked_lm_positions"],
        features["masked_lm_ids"],
        features["masked_lm_weights"],
    )
    return mtf.anonymize(loss)


@contextlib.contextmanager
def bfloat16_activations() -> Iterator[None]:
    """Activations in bfloat16, for which this BERT has no setting.

    It is built as Mesh-TensorFlow builds its own transformer in this case: float32
    weights, each cast once a step, and a float32 loss.
    """
    dtype = mtf.VariableDType(tf.float32, tf.float32, tf.bfloat16)
    get_variable = mtf.get_variable
    cross_entropy = mtf.layers.softmax_cross_entropy_with_logits

    def get_cast_variable(*arguments, **keywords):
        return get_variable(*arguments, **{**keywords, "dtype": dtype})

    def float32_cross_entropy(logits, *arguments, **keywords):
        return cross_entropy(mtf.cast(logits, tf.float32), *arguments, **keywords)

    with (
        mock.patch.object(mtf, "get_variable", get_cast_variable),
        # Used for the attention mask, which is added to bfloat16 scores.
        mock.patch.object(mtf, "to_float", lambda x: mtf.cast(x, tf.bfloat16)),
        mock.patch.object(
            mtf.layers, "softmax_cross_entropy_with_logits", float32_cross_entropy
        ),
    ):
        yield


def _bfloat16_updates(case, loss):
    # As `optimization.create_optimizer`, which cannot clip bfloat16 gradients. Nor can
    # the optimizer decay a weight that is read as bfloat16: it saves that pass here.
    config = case["optimizer"]
    variables = loss.mesh.graph.trainable_variables
    gradients = mtf.gradients([loss], [v.outputs[0] for v in variables])
    gradients = [None if g is None else mtf.to_float(g) for g in gradients]
    limit = mtf.constant(loss.mesh, config["clip_norm"], dtype=tf.float32)
    gradients, _ = optimization.clip_by_global_norm(gradients, limit)
    optimizer = mtf.optimize.AdamWeightDecayOptimizer(
        learning_rate=config["learning_rate"],
        weight_decay_rate=0.0,
        beta_1=config["beta1"],
        beta_2=config["beta2"],
        epsilon=config["epsilon"],
    )
    return optimizer.apply_grads(gradients, variables)


if __name__ == "__main__":
    protocol.serve(build)
