"""Worker: training steps of the stock BERT of Mesh-TensorFlow, `mesh_tensorflow.bert`.

Its model, loss and optimizer are used as they ship, in float32. The output embedding is
the input embedding, of the hidden size: this BERT can neither decouple nor factorize
them. The head runs on the masked positions; there is no next-sentence loss.
"""

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
    "model" and those of an `OptimizerConfig` as "optimizer"."""
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        features = _import(mesh, synthetic.masked_lm_batch(case))
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
        loss_tensor = lowering.export_to_tf_tensor(loss)
        copy = lowering.copy_masters_to_slices()
        session = tf.Session()
        session.run(tf.global_variables_initializer())
        session.run(copy)

    def step():
        value, _ = session.run([loss_tensor, train])
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


if __name__ == "__main__":
    protocol.serve(build)
