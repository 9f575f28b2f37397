"""Whatever dimension is split, loss and gradients are those of one device."""

import numpy as np
import pytest

from decoupled.compat import mtf, tf
from decoupled.model.dims import NAMES, make_dims, predictions_dim
from decoupled.model.encoder import encode
from decoupled.model.heads import masked_lm_logits
from decoupled.model.layers import Builder
from decoupled.ops.cross_entropy import softmax_cross_entropy
from tests.helpers import MASKING, masked_lm_features, run_mesh, tiny_model

# Labels and the pooler belong to classifiers.
SPLIT = [name for name in NAMES if name not in ("labels", "pooled")]
TWO_BY_TWO = "batch:d;vocab:m;heads:m;intermediate:m"


def loss_and_gradients(config, mesh_shape, layout_rules):
    """{"loss": ..., variable name: its gradient}."""
    features = masked_lm_features(batch_size=4)
    dims = make_dims(config, 4, MASKING.sequence_length)
    masked = predictions_dim(MASKING.max_predictions)
    inputs = {
        name: (
            value,
            [dims.batch, masked if name.startswith("masked") else dims.sequence],
        )
        for name, value in features.items()
    }
    names = []

    def build(mesh, tensors):
        builder = Builder(config, dims, mesh, tf.float32, initializer_seed=5)
        encoded = encode(builder, tensors)
        logits = masked_lm_logits(
            builder, encoded.output, tensors["masked_lm_positions"]
        )
        losses, _ = softmax_cross_entropy(logits, tensors["masked_lm_ids"], dims.vocab)
        loss = mtf.reduce_mean(losses)
        variables = mesh.graph.trainable_variables
        names[:] = ["loss", *(variable.name for variable in variables)]
        return [loss, *mtf.gradients([loss], [v.value for v in variables])]

    values = run_mesh(build, inputs, mesh_shape, layout_rules)
    return dict(zip(names, values, strict=True))


@pytest.fixture(scope="module", params=[False, True], ids=["decoupled", "coupled"])
def case(request):
    config = tiny_model(
        coupled=request.param, output_embedding_size=8 if request.param else 24
    )
    return config, loss_and_gradients(config, "all:1", "")


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in found.items():
        wanted = expected[name]
        # The gradient of a key's bias is 0 but for rounding: hence the floor.
        scale = max(np.abs(wanted).max(), 1e-3)
        np.testing.assert_allclose(value / scale, wanted / scale, atol=1e-5)


@pytest.mark.parametrize("name", SPLIT)
def test_one_dimension_split(case, name):
    config, expected = case
    assert_same(loss_and_gradients(config, "m:2", f"{name}:m"), expected)


def test_batch_and_model_split(case):
    config, expected = case
    assert_same(loss_and_gradients(config, "d:2;m:2", TWO_BY_TWO), expected)


def test_the_gradient_is_that_of_finite_differences(case):
    """Along one random direction of every variable at once."""
    config, expected = case
    variables = [name for name in expected if name != "loss"]
    generator = np.random.default_rng(0)
    direction = {n: generator.normal(size=expected[n].shape) for n in variables}
    slope = sum((expected[name] * direction[name]).sum() for name in variables)
    start = initial_weights(config)
    step = 1e-3
    losses = [
        loss_with(config, {n: start[n] + sign * step * direction[n] for n in variables})
        for sign in (1, -1)
    ]
    assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(slope, rel=2e-2)


def initial_weights(config):
    """name -> the values that `initializer_seed=5` draws."""
    dims = make_dims(config, 1, 4)
    weights = {}
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        builder = Builder(config, dims, mesh, tf.float32, initializer_seed=5)
        ids = mtf.zeros(mesh, mtf.Shape([dims.batch, dims.sequence]), tf.int32)
        names = ("input_word_ids", "input_mask", "input_type_ids")
        encoded = encode(builder, dict.fromkeys(names, ids))
        positions = mtf.zeros(
            mesh, mtf.Shape([dims.batch, predictions_dim(1)]), tf.int32
        )
        masked_lm_logits(builder, encoded.output, positions)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for variable in tf.global_variables():
                weights[variable.op.name] = session.run(variable)
    return weights


def loss_with(config, weights):
    features = masked_lm_features(batch_size=4)
    dims = make_dims(config, 4, MASKING.sequence_length)
    masked = predictions_dim(MASKING.max_predictions)

    def build(mesh, tensors):
        builder = Builder(config, dims, mesh, tf.float32, initializer_seed=5)
        encoded = encode(builder, tensors)
        logits = masked_lm_logits(
            builder, encoded.output, tensors["masked_lm_positions"]
        )
        losses, _ = softmax_cross_entropy(logits, tensors["masked_lm_ids"], dims.vocab)
        return [mtf.reduce_mean(losses)]

    inputs = {
        name: (
            value,
            [dims.batch, masked if name.startswith("masked") else dims.sequence],
        )
        for name, value in features.items()
    }
    return float(run_mesh(build, inputs, weights=weights)[0])


def test_models_differ_in_the_table_only():
    """Coupled and decoupled share names, and the initial weights of all else."""
    coupled = initial_weights(tiny_model(coupled=True, output_embedding_size=8))
    decoupled = initial_weights(tiny_model(output_embedding_size=8))
    table = "cls/predictions/output_embedding"
    assert set(decoupled) - set(coupled) == {table}
    assert set(coupled) <= set(decoupled)
    for name, value in coupled.items():
        np.testing.assert_array_equal(value, decoupled[name], err_msg=name)
    word = decoupled["bert/embeddings/word_embeddings"]
    assert (word != decoupled[table]).any()


def test_initial_weights_have_the_configured_deviation():
    weights = initial_weights(tiny_model(initializer_range=0.1))
    kernel = weights["bert/encoder/layer_0/intermediate/dense/kernel"]
    # A normal cut off at two deviations has 0.88 of its deviation.
    assert kernel.std() == pytest.approx(0.088, rel=0.1)
    assert np.abs(kernel).max() <= 0.2
    assert (weights["bert/embeddings/LayerNorm/gamma"] == 1).all()
    assert (weights["cls/predictions/output_bias"] == 0).all()
