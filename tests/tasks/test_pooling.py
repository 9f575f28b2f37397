"""Means over tokens, layer by layer: recomputed in numpy, and what is not built."""

from typing import NamedTuple

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.core.compat import tf
from decoupled.exports.serving.encoder import Encoder
from decoupled.tasks import pooling as batches
from decoupled.tasks.pooling import PooledLayers, layer_name
from decoupled.training.mesh import session_config
from decoupled.training.network import Network
from tests.exports.models import model_config, pretrained_weights, random_batch
from tests.training.runs import build_evaluation

CONFIG = model_config()
WEIGHTS = pretrained_weights(CONFIG)
LENGTH = 9


def features():
    """A batch with padding and two segments; not all real tokens count."""
    batch = random_batch(CONFIG, 4, LENGTH)
    pooled = batch["input_mask"].copy()
    pooled[:, 0] = 0
    pooled[2] = 0
    return {**batch, "pooled_tokens": pooled}


def build(layers, mesh, batch):
    task = PooledLayers(layers, LENGTH)
    network = Network(task, CONFIG, mesh)
    tensors = {name: tf.constant(value) for name, value in batch.items()}
    return build_evaluation(network, tensors)


def run(layers, batch, mesh_shape="all:1", layout="", dtype="float32"):
    mesh = MeshConfig(mesh_shape, layout, dtype, "gather", "float32", 128)
    with tf.Graph().as_default():
        lowered = build(layers, mesh, batch)
        variables = tf.global_variables()
        values = {v.initializer.inputs[1]: WEIGHTS.get(v.op.name, 0) for v in variables}
        with tf.Session(config=session_config(mesh)) as session:
            session.run([v.initializer for v in variables], values)
            session.run(lowered.lowering.copy_masters_to_slices())
            return session.run(lowered.predictions)


@pytest.fixture(scope="module")
def expected():
    """Layer -> means, from the serving encoder's outputs."""
    batch = features()
    encoder = Encoder(CONFIG, WEIGHTS)
    inputs = {k: tf.constant(v) for k, v in batch.items() if k != "pooled_tokens"}
    embedded = encoder.embeddings(
        inputs["input_word_ids"], inputs["input_type_ids"], LENGTH, False
    )
    outputs = [
        tf.reshape(embedded, [4, LENGTH, -1]),
        *encoder(inputs)["encoder_outputs"],
    ]
    counted = batch["pooled_tokens"].astype(bool)
    return {
        layer: np.stack(
            [
                row[real].mean(0) if real.any() else np.zeros(CONFIG.hidden_size)
                for row, real in zip(output.numpy(), counted, strict=True)
            ]
        )
        for layer, output in enumerate(outputs)
    }


@pytest.mark.parametrize(
    "mesh_shape, layout",
    [
        ("all:1", ""),
        ("b:2;m:2", "batch:b;vocab:m;heads:m;intermediate:m"),
        ("s:3", "sequence:s"),
        pytest.param("h:2", "hidden:h", marks=pytest.mark.slow),
    ],
)
def test_means_of_all_layers_on_meshes(expected, mesh_shape, layout):
    found = run([0, 1, 2], features(), mesh_shape, layout)
    assert sorted(found) == ["layer_00", "layer_01", "layer_02"]
    for layer, means in expected.items():
        np.testing.assert_allclose(found[layer_name(layer)], means, atol=2e-5)


def test_a_text_without_counted_tokens_has_a_vector_of_zeros(expected):
    found = run([1], features())["layer_01"]
    assert not found[2].any()
    assert found[0].any()


def test_means_of_bfloat16_activations_are_float32(expected):
    found = run([2], features(), dtype="bfloat16")["layer_02"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected[2], atol=0.1)


@pytest.mark.parametrize("layers, built", [([0], 0), ([1, 0], 1), ([2], 2)])
def test_layers_above_the_highest_are_not_built(layers, built):
    with tf.Graph().as_default():
        build(
            layers,
            MeshConfig("all:1", "", "float32", "gather", "float32", 128),
            features(),
        )
        names = [variable.op.name for variable in tf.global_variables()]
    found = {name.split("/")[2] for name in names if "/layer_" in name}
    assert found == {f"layer_{index}" for index in range(built)}


class Letters(NamedTuple):
    """A vocabulary whose pieces are characters."""

    pad_id: int = 0
    cls_id: int = 1
    sep_id: int = 2

    def encode_batch(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


TEXTS = ["ab", "", "cdefgh", "z", "ij"]


def collected(texts, wanted, batch_size, pool_special_tokens=False):
    """Batches of (rows, length)."""
    tokens = batches.tokenize(Letters(), texts)
    wanted = [batches.Batch(np.array(rows), length) for rows, length in wanted]
    input_fn = batches.batch_input_fn(
        Letters(), tokens, wanted, batch_size, pool_special_tokens
    )
    return list(input_fn().as_numpy_iterator())


def test_tokens_of_all_sentences(monkeypatch):
    monkeypatch.setattr(batches, "_TEXTS_AT_ONCE", 2)
    tokens = batches.tokenize(Letters(), TEXTS)
    assert "".join(map(chr, tokens.ids)) == "".join(TEXTS)
    assert tokens.ends.tolist() == [2, 2, 8, 9, 11]
    assert tokens.lengths(6).tolist() == [4, 2, 6, 3, 4]


def test_batches_by_hand():
    first, second = collected(TEXTS, [([0, 1], 5), ([3], 5)], batch_size=2)
    a, b, z = map(ord, "abz")
    assert first["input_word_ids"].tolist() == [[1, a, b, 2, 0], [1, 2, 0, 0, 0]]
    assert first["input_mask"].tolist() == [[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]]
    assert first["pooled_tokens"].tolist() == [[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert second["input_word_ids"].tolist() == [[1, z, 2, 0, 0], [0] * 5]
    assert second["input_mask"].tolist() == [[1, 1, 1, 0, 0], [0] * 5]
    assert not second["input_type_ids"].any()


def test_each_batch_has_its_own_length():
    first, second = collected(TEXTS, [([2, 4], 8), ([0, 3], 4)], batch_size=2)
    assert first["input_word_ids"][0].tolist() == [1, *map(ord, "cdefgh"), 2]
    assert second["input_word_ids"].tolist() == [
        [1, *map(ord, "ab"), 2],
        [1, ord("z"), 2, 0],
    ]
    assert first["input_mask"].shape == (2, 8)
    assert second["pooled_tokens"].shape == (2, 4)


def test_long_sentences_are_cut_and_keep_their_end():
    (batch,) = collected(TEXTS, [([2], 5)], batch_size=1)
    assert batch["input_word_ids"].tolist() == [[1, *map(ord, "cde"), 2]]


def test_special_tokens_count_where_asked_for():
    (batch,) = collected(TEXTS, [([0], 5)], batch_size=1, pool_special_tokens=True)
    assert batch["pooled_tokens"].tolist() == batch["input_mask"].tolist()


def test_long_sentences_are_divided_into_windows_of_nearly_equal_length():
    # 2, 0 and 9 pieces; a window has room for 4 beside [CLS] and [SEP].
    tokens = batches.Tokens(np.arange(11, dtype=np.int32), np.array([2, 2, 11]))
    windows, owners = tokens.windows(6)
    assert windows.ends.tolist() == [2, 2, 5, 8, 11]
    assert owners.tolist() == [0, 1, 2, 2, 2]
    assert windows.ids is tokens.ids
    unchanged, same = tokens.windows(11)
    assert unchanged.ends.tolist() == [2, 2, 11] and same.tolist() == [0, 1, 2]
