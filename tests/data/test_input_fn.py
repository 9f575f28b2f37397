"""Batches: static shapes, a pure function of (seed, step), in any graph."""

import numpy as np
import pytest

from decoupled.configs import PretrainConfig, TrainingConfig
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.data.input_fn import (
    languages_input_fn,
    pretraining_input_fn,
)
from decoupled.data.sequences import SequenceOrder
from decoupled.planning.program import feature_specs
from tests.data.record_folders import (
    SAMPLING,
    VOCABULARY,
    FakeVocabulary,
    distinct_documents,
    make_records,
    masking,
)

TRAIN = {
    "en": [distinct_documents(200, 3, 90), distinct_documents(100, 1, 30, start=1000)],
    "sw": [distinct_documents(4, start=5000)],
    "tr": [distinct_documents(70, start=6000)],
}
EVALUATION = {
    "en": [distinct_documents(60, 20), distinct_documents(31, start=100)],
    "sw": [distinct_documents(5, start=5000)],
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return make_records(tmp_path_factory.mktemp("records"), TRAIN, EVALUATION)


def settings(**training):
    training = TrainingConfig(seed=1, **{"batch_size": 8, **training})
    return PretrainConfig(masking=masking(), sampling=SAMPLING, training=training)


SEQUENCES = 320


def training(manifest, batch_size=8, start_step=0):
    config = settings(batch_size=batch_size)
    return pretraining_input_fn(config, manifest, VOCABULARY, 1, start_step)()


@pytest.fixture(scope="module")
def order(manifest):
    return SequenceOrder(manifest, SAMPLING, 1, 16)


@pytest.fixture(scope="module")
def dataset(manifest):
    return training(manifest)


@pytest.fixture(scope="module")
def stream(dataset):
    """All 40 batches."""
    return steps(dataset, 40)


def steps(dataset, count):
    return list(dataset.take(count).as_numpy_iterator())


def assert_same(batch, expected):
    assert batch.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(batch[name], expected[name], err_msg=name)


def joined(batches):
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}


def text_of(batch):
    """The sequences before masking."""
    ids = batch["input_word_ids"].copy()
    used = batch["masked_lm_weights"] > 0
    rows = np.nonzero(used)[0]
    ids[rows, batch["masked_lm_positions"][used]] = batch["masked_lm_ids"][used]
    return ids


def test_shapes_are_static(dataset):
    specs = dataset.element_spec
    shapes = {
        name: (spec.shape.as_list(), spec.dtype.name) for name, spec in specs.items()
    }
    assert shapes == {
        "input_word_ids": ([8, 16], "int32"),
        "masked_lm_positions": ([8, 3], "int32"),
        "masked_lm_ids": ([8, 3], "int32"),
        "masked_lm_weights": ([8, 3], "float32"),
    }
    # What a plan says that hosts send.
    assert specs == feature_specs(masking(), 8)


@pytest.mark.slow
def test_the_stream_does_not_depend_on_threads(manifest, monkeypatch):
    expected = joined(steps(training(manifest), 12))
    monkeypatch.setattr("decoupled.data.input_fn._MASKING_THREADS", 1)
    assert_same(joined(steps(training(manifest), 12)), expected)


def test_languages_come_in_the_order_of_the_stream(order, stream):
    languages = order.draw(0, SEQUENCES)
    first = text_of(joined(stream))[:, 1]
    starts = np.array([6, 5000, 6000])[languages]
    ends = np.array([2000, 5004, 6070])[languages]
    separator = first == 4
    assert ((first >= starts) & (first < ends) | separator).all()
    assert set(languages) == {0, 1, 2}


def test_a_run_resumed_in_a_graph_sees_what_a_straight_one_would(manifest, stream):
    """Also in batches of another size."""
    expected = {name: value[240:] for name, value in joined(stream).items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        iterator = tf.compat.v1.data.make_initializable_iterator(
            training(manifest, batch_size=5, start_step=48)
        )
        following = iterator.get_next()
        session.run(iterator.initializer)
        assert_same(joined([session.run(following) for _ in range(16)]), expected)


def evaluation(manifest, languages, batch_size, limit=0):
    config = settings(eval_batch_size=batch_size, eval_sequences=limit)
    input_fn = languages_input_fn(config, manifest, VOCABULARY, languages)
    return joined(steps(input_fn(), -1))


@pytest.fixture(scope="module")
def both(manifest):
    """One batch of sw, then three of en."""
    return evaluation(manifest, ["sw", "en"], batch_size=4)


@pytest.fixture(scope="module")
def english(both):
    return {name: value[4:] for name, value in both.items()}


def words_of(batch):
    ids = text_of(batch)
    return ids[~np.isin(ids, (0, 3, 4))].tolist()


def test_evaluation_ends_with_padding_that_counts_nothing(both, english):
    # 81 places give 6 sequences, 31 give 3; 9 in batches of 4.
    batch = english
    assert batch["example_weights"].tolist() == [1.0] * 9 + [0.0] * 3
    assert not batch["masked_lm_weights"][9:].any()
    assert not batch["input_word_ids"][9:].any()
    assert words_of(batch) == [*range(6, 86), *range(100, 131)]
    swahili = {name: value[:4] for name, value in both.items()}
    assert swahili["example_weights"].tolist() == [1.0] + [0.0] * 3
    assert words_of(swahili) == [*range(5000, 5005)]


def test_a_language_alone_and_up_to_a_limit_has_the_same_masks(manifest, english):
    batch = evaluation(manifest, ["en"], batch_size=3, limit=5)
    assert batch["example_weights"].tolist() == [1.0] * 5 + [0.0]
    assert_same(
        {name: value[:5] for name, value in batch.items()},
        {name: value[:5] for name, value in english.items()},
    )


def test_another_vocabulary_is_refused(manifest):
    other = FakeVocabulary(fingerprint="12" * 32, path="other.model")
    with pytest.raises(UserError, match="not with other.model"):
        pretraining_input_fn(settings(), manifest, other, 1, 0)
    with pytest.raises(UserError, match="not with other.model"):
        languages_input_fn(settings(), manifest, other, ["en"])


def test_language_without_evaluation_text_is_refused(manifest, tmp_path):
    with pytest.raises(UserError, match="no language 'tr' in split 'eval'"):
        languages_input_fn(settings(), manifest, VOCABULARY, ["tr"])
    empty = make_records(tmp_path, {"en": [[[6]]]}, {"en": []})
    with pytest.raises(UserError, match="no text in split 'eval' of 'en'"):
        languages_input_fn(settings(), empty, VOCABULARY, ["en"])
