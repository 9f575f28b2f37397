"""The masked-LM task on given logits: loss, sums and rows worked out by hand."""

import numpy as np
import pytest

from decoupled.configs import MaskingConfig
from decoupled.core.compat import mtf, tf
from decoupled.model.dims import make_dims, predictions_dim
from decoupled.model.layers import Builder
from decoupled.tasks import mlm
from tests.helpers import run_mesh, tiny_model

MASKING = MaskingConfig(6, 3)
TASK = mlm.MaskedLM(MASKING)
MODEL = tiny_model(vocab_size=4)
# The first of 4 pieces has half of the probability, each other one sixth.
FAVOURED = np.log(np.array([3.0, 1.0, 1.0, 1.0], np.float32))
HIT, MISS = np.log(2), np.log(6)
FEATURES = {
    "input_word_ids": np.ones([2, 6], np.int32),
    "input_mask": np.ones([2, 6], np.int32),
    "input_type_ids": np.zeros([2, 6], np.int32),
    "masked_lm_positions": np.array([[1, 2, 4], [3, 0, 0]], np.int32),
    "masked_lm_ids": np.array([[0, 1, 0], [2, 0, 0]], np.int32),
    "masked_lm_weights": np.array([[1, 1, 1], [1, 0, 0]], np.float32),
}


def prepare(features, task=TASK):
    with tf.Graph().as_default(), tf.Session() as session:
        tensors = {name: tf.constant(value) for name, value in features.items()}
        return session.run(task.prepare(tensors))


def test_the_mask_and_types_follow_from_the_ids_where_they_are_missing():
    ids = np.array([[3, 5, 9, 4, 9, 9], [3, 5, 5, 0, 5, 4]], np.int32)
    result = prepare(
        {
            "input_word_ids": ids,
            **{name: FEATURES[name] for name in FEATURES if "masked" in name},
        },
        mlm.MaskedLM(MASKING, pad_id=9),
    )
    expected = [[1, 1, 0, 1, 0, 0], [1, 1, 1, 1, 1, 1]]
    np.testing.assert_array_equal(result["input_mask"], expected)
    assert not result["input_type_ids"].any()
    given = prepare(FEATURES)
    assert given["input_mask"].dtype == result["input_mask"].dtype == np.int32
    np.testing.assert_array_equal(given["input_mask"], FEATURES["input_mask"])


def forward(monkeypatch, features, mesh_shape="all:1", layout_rules=""):
    """(loss, sums, predictions) where the model gives `FAVOURED` everywhere."""

    def encoded(build, tensors, positions):
        return [positions]

    def favoured(embedding, x):
        build = embedding._build
        vocab = mtf.Shape([build.dims.vocab])
        row = mtf.import_tf_tensor(build.mesh, FAVOURED, vocab)
        # The same row everywhere: the positions' values do not matter.
        return mtf.cast(x, tf.float32) * 0.0 + row

    monkeypatch.setattr(mlm, "encode", encoded)
    monkeypatch.setattr(mlm.OutputEmbedding, "logits", favoured)
    batch = len(features["input_word_ids"])
    dims = make_dims(MODEL, batch, MASKING.sequence_length)
    layouts = TASK.feature_dims(dims)
    names = {}

    def build(mesh, tensors):
        builder = Builder(MODEL, dims, mesh, tf.float32, 1, dropout_seed=None)
        result = TASK.forward(builder, tensors)
        names.update(sums=list(result.sums), predictions=list(result.predictions))
        return [result.loss, *result.sums.values(), *result.predictions.values()]

    inputs = {name: (value, layouts[name]) for name, value in features.items()}
    loss, *rest = run_mesh(build, inputs, mesh_shape, layout_rules)
    count = len(names["sums"])
    sums = dict(zip(names["sums"], rest[:count], strict=True))
    return loss, sums, dict(zip(names["predictions"], rest[count:], strict=True))


def test_loss_is_the_mean_over_all_masked_positions(monkeypatch):
    """Not the mean of the sequences' means, nor of the devices' ones."""
    mesh = "d:2;m:2", "batch:d;vocab:m"
    loss, sums, rows = forward(monkeypatch, prepare(FEATURES), *mesh)
    assert loss == pytest.approx((2 * HIT + 2 * MISS) / 4)
    assert sums["loss_sum"] == pytest.approx(2 * HIT + 2 * MISS)
    assert (sums["hits"], sums["weight"]) == (2, 4)
    values = {name: sums[over] / sums[by] for name, (over, by) in TASK.metrics.items()}
    assert values == {"masked_lm_accuracy": 0.5}
    np.testing.assert_allclose(rows["loss_sum"], [2 * HIT + MISS, MISS], rtol=1e-6)
    # The unused predictions of the second sequence would be hits.
    np.testing.assert_array_equal(rows["hits"], [2, 0])
    np.testing.assert_array_equal(rows["weight"], [3, 1])


def test_examples_of_weight_0_count_nothing(monkeypatch):
    features = {**FEATURES, "example_weights": np.array([0, 1], np.float32)}
    loss, sums, rows = forward(monkeypatch, prepare(features))
    assert loss == pytest.approx(MISS)
    assert (sums["hits"], sums["weight"]) == (0, 1)
    np.testing.assert_array_equal(rows["weight"], [0, 1])


def test_a_batch_of_padding_gives_zeros(monkeypatch):
    features = {**FEATURES, "example_weights": np.zeros([2], np.float32)}
    loss, sums, _ = forward(monkeypatch, prepare(features))
    assert (loss, set(sums.values())) == (0, {0})


def test_microbatches_add_up_to_the_batch(monkeypatch):
    """As weights of the mean are those of the whole batch, cut with its features."""
    prepared = prepare(FEATURES)
    loss, sums, _ = forward(monkeypatch, prepared)
    parts = [
        forward(monkeypatch, {n: value[row : row + 1] for n, value in prepared.items()})
        for row in range(2)
    ]
    assert parts[0][0] == pytest.approx((2 * HIT + MISS) / 4)
    assert parts[0][0] + parts[1][0] == pytest.approx(loss)
    for name, total in sums.items():
        assert parts[0][1][name] + parts[1][1][name] == pytest.approx(total)


def test_prepared_weights():
    prepared = prepare(FEATURES)
    np.testing.assert_allclose(prepared["loss_scale"], [0.25, 0.25], rtol=1e-6)
    assert set(prepared) == {*FEATURES, "loss_scale"}


def test_dimensions_of_its_features():
    dims = make_dims(MODEL, 2, 6)
    layouts = TASK.feature_dims(dims)
    assert set(layouts) == {*FEATURES, "loss_scale"}
    assert layouts["input_mask"] == [dims.batch, dims.sequence]
    assert layouts["masked_lm_ids"] == [dims.batch, predictions_dim(3)]
    assert TASK.extra_dims() == [mtf.Dimension("predictions", 3)]
    assert TASK.sequence_length == 6
