"""Parts of the model over given or initial weights, run once."""

import numpy as np

from decoupled.core.compat import mtf, tf
from decoupled.model.dims import make_dims, predictions_dim
from decoupled.model.embeddings import OutputEmbedding
from decoupled.model.encoder import encode
from decoupled.model.layers import Builder
from decoupled.ops.cross_entropy import softmax_cross_entropy
from tests.helpers import SESSION_CONFIG, masked_lm_features, run_mesh

SEED = 5


def make_builder(config, mesh, features, **settings):
    """A builder for batches like `features`; keywords are further fields of it."""
    batch, length = features["input_word_ids"].shape
    fields = dict(activation_dtype=tf.float32, initializer_seed=SEED)
    return Builder(
        config, make_dims(config, batch, length), mesh, **{**fields, **settings}
    )


def feature_dims(dims, features):
    """name -> [batch, sequence] or [batch, predictions]."""
    predictions = features.get("masked_lm_positions", np.zeros([0, 1])).shape[1]
    masked_dims = [dims.batch, predictions_dim(predictions)]
    token_dims = [dims.batch, dims.sequence]
    return {
        n: masked_dims if n.startswith("masked_lm") else token_dims for n in features
    }


def run_model(
    config, features, outputs, weights=None, mesh_shape="all:1", layout="", **settings
):
    """Values of `outputs`, a function (Builder, dict of mtf.Tensor) -> [mtf.Tensor]."""
    batch, length = features["input_word_ids"].shape
    dims = feature_dims(make_dims(config, batch, length), features)

    def build(mesh, tensors):
        return outputs(make_builder(config, mesh, features, **settings), tensors)

    inputs = {name: (value, dims[name]) for name, value in features.items()}
    return run_mesh(build, inputs, mesh_shape, layout, weights)


def build_only(config, outputs, features=None, **settings):
    """The mtf.Graph of `outputs` inside the current TensorFlow graph, not lowered."""
    features = features or masked_lm_features(batch_size=2)
    graph = mtf.Graph()
    builder = make_builder(config, mtf.Mesh(graph, "mesh"), features, **settings)
    dims = feature_dims(builder.dims, features)
    tensors = {
        name: mtf.import_tf_tensor(builder.mesh, value, mtf.Shape(dims[name]))
        for name, value in features.items()
    }
    outputs(builder, tensors)
    return graph


def initial_weights(config, outputs, **settings):
    """name -> value of every variable that `outputs` makes."""
    with tf.Graph().as_default():
        build_only(config, outputs, **settings)
        masters = tf.global_variables()
        with tf.Session(config=SESSION_CONFIG) as session:
            session.run(tf.global_variables_initializer())
            values = session.run(masters)
    return {v.op.name: value for v, value in zip(masters, values, strict=True)}


def random_weights(config, outputs, seed=0):
    """As `initial_weights`, but every bias, gamma and beta moves the output, too."""
    generator = np.random.default_rng(seed)
    with tf.Graph().as_default():
        variables = build_only(config, outputs).all_variables
        shapes = {v.name: v.shape.to_integer_list for v in variables}
    return {
        name: generator.normal(name.endswith("gamma"), 0.3, shape).astype(np.float32)
        for name, shape in sorted(shapes.items())
    }


def encoder_features(batch=4, seed=0):
    """Tokens, padding and two segments of `masked_lm_features`."""
    features = masked_lm_features(batch, seed=seed)
    return {n: value for n, value in features.items() if n.startswith("input")}


def masked_lm_loss(build, tensors):
    """The weighted sum of the cross-entropies at the masked positions."""
    hidden = encode(build, tensors, tensors["masked_lm_positions"])[-1]
    logits = OutputEmbedding(build).logits(hidden)
    losses, _ = softmax_cross_entropy(
        logits, tensors["masked_lm_ids"], build.dims.vocab
    )
    return mtf.reduce_sum(losses * tensors["masked_lm_weights"])


def loss_and_gradients(
    config, features, loss, weights, mesh_shape="all:1", layout="", **settings
):
    """{"loss": value of `loss`, name of a trainable variable: its gradient}.

    `loss` is a function (Builder, dict of mtf.Tensor) -> scalar mtf.Tensor.
    """
    names = ["loss"]

    def outputs(build, tensors):
        value = loss(build, tensors)
        variables = build.mesh.graph.trainable_variables
        names.extend(variable.name for variable in variables)
        return [value, *mtf.gradients([value], [v.value for v in variables])]

    values = run_model(
        config, features, outputs, weights, mesh_shape, layout, **settings
    )
    return dict(zip(names, values, strict=True))
