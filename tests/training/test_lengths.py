"""Graphs of few lengths: the cheapest choice, and the answers of one long graph."""

import dataclasses
import itertools

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.data.array_input_fn import evaluation_input_fn, longest_first
from decoupled.runs.evaluation import Part, evaluation_lengths, predict_parts
from decoupled.tasks.qa import ExtractiveQA
from decoupled.tasks.tagging import Tagging
from decoupled.training.graph import build_predictions
from decoupled.training.lengths import choose_lengths
from decoupled.training.mesh import length_step, session_config
from decoupled.training.model_fn import PredictionSpec
from tests.training.runs import ONE_DEVICE, graph_config

LENGTH, BATCH = 20, 4
TAGS = Tagging("tags", ("A", "B", "C"), LENGTH, 0.0, 0.0)
QUESTIONS = ExtractiveQA("questions", LENGTH, 0.0, 0.0)
GRAPH = 300


def mesh(shape, rules):
    return dataclasses.replace(ONE_DEVICE, mesh_shape=shape, layout_rules=rules)


def cost(lengths, chosen):
    places = np.searchsorted(chosen, lengths)
    return np.array(chosen)[places].sum() + GRAPH * len(chosen)


@pytest.mark.parametrize("seed", range(8))
def test_no_choice_of_lengths_costs_less(seed):
    generator = np.random.default_rng(seed)
    lengths = np.minimum(2 + generator.geometric(0.08, 60), 50)
    found = choose_lengths(lengths, 50, GRAPH, step=8)
    possible = [*range(8, 50, 8), 50]
    assert set(found) <= set(possible)
    all_choices = itertools.chain.from_iterable(
        itertools.combinations(possible, count) for count in range(1, 8)
    )
    best = min(cost(lengths, c) for c in all_choices if c[-1] >= lengths.max())
    assert cost(lengths, found) == best


def test_dear_graphs_are_few_and_cheap_ones_many():
    lengths = np.array([3, 9, 17])
    assert choose_lengths(lengths, 128, 1000, step=8) == [24]
    assert choose_lengths(lengths, 20, 1000, step=8) == [20]
    assert choose_lengths(lengths, 128, 1, step=8) == [8, 16, 24]
    assert choose_lengths(lengths, 128, 1, step=12) == [12, 24]


def test_the_mesh_can_split_every_length():
    assert length_step(mesh("d:3", "batch:d")) == 8
    assert length_step(mesh("s:3;h:16", "sequence:s;heads:h")) == 24
    assert length_step(mesh("s:2;m:16", "sequence:s;memory:m")) == 16


def lengths_for(sizes, count, flops, monkeypatch):
    monkeypatch.setattr("decoupled.training.lengths._FLOPS_PER_GRAPH", flops)
    network = graph_config(task=TAGS).network
    return evaluation_lengths(network, np.array(sizes), batch_size=2, count=count)


def test_one_file_needs_no_graph_for_longer_rows(monkeypatch):
    # Batches of 9 and 7, of 5 and 3, and of 2 tokens.
    sizes = [2, 9, 3, 7, 5]
    assert lengths_for(sizes, 1, 1, monkeypatch) == (8, 16)
    assert lengths_for(sizes, 1, 1e12, monkeypatch) == (16,)
    # Other files may have some.
    assert lengths_for(sizes, 9, 1, monkeypatch) == (8, 16, 20)
    assert lengths_for(sizes, 9, 1e12, monkeypatch) == (20,)


def test_graphs_pay_in_many_files_that_do_not_in_few(monkeypatch):
    # A layer of 4 * 16 * 16 + 2 * 16 * 32 weights: a graph is as dear as 200 tokens.
    flops = 200 * 2 * (4 * 16 * 16 + 2 * 16 * 32)
    sizes = [8] * 10
    assert lengths_for(sizes, 1, flops, monkeypatch) == (8,)
    # 10 rows, 12 tokens less for each.
    assert lengths_for(sizes, 2, flops * 2, monkeypatch) == (20,)
    assert lengths_for(sizes, 4, flops * 2, monkeypatch) == (8, 20)


def arrays(rows, seed=0):
    """Rows of all lengths from 3 up, with what either task wants."""
    generator = np.random.default_rng(seed)
    sizes = generator.permutation(np.arange(rows) % (LENGTH - 2) + 3)
    mask = (np.arange(LENGTH) < sizes[:, np.newaxis]).astype(np.int32)

    def integers(high, *shape):
        return generator.integers(0, high, shape).astype(np.int32)

    encoder = {
        "input_word_ids": integers(48, rows, LENGTH) * mask,
        "input_mask": mask,
        "input_type_ids": integers(2, rows, LENGTH) * mask,
    }
    tags = {"word_starts": mask, "label_ids": integers(3, rows, LENGTH)}
    spans = {"start_positions": integers(3, rows), "end_positions": integers(3, rows)}
    return {TAGS: {**encoder, **tags}, QUESTIONS: {**encoder, **spans}}


def predictions(config, batches, lengths):
    """Of initial weights, which are the same in every graph; for each of `batches`."""
    with tf.Graph().as_default():
        inputs = {
            name: tf.placeholder(tf.int32, [BATCH, *[None] * (value.ndim - 1)])
            for name, value in batches[0].items()
        }
        outputs, lowering = build_predictions(config.network, inputs, lengths)
        initialize = tf.global_variables_initializer()
        copy = lowering.copy_masters_to_slices()
        with tf.Session(config=session_config(config.network.mesh)) as session:
            session.run(initialize)
            session.run(copy)
            return [
                session.run(outputs, {inputs[k]: v for k, v in batch.items()})
                for batch in batches
            ]


@pytest.mark.parametrize(
    "task, placed",
    [
        (TAGS, ONE_DEVICE),
        (QUESTIONS, ONE_DEVICE),
        (QUESTIONS, mesh("s:2", "sequence:s")),
    ],
    ids=["tags", "questions", "questions on two"],
)
def test_predictions_are_those_of_the_longest_graph(task, placed):
    features = arrays(rows=18)[task]
    order = longest_first(features["input_mask"])
    # Rows of at most 20, 15 and 6 tokens.
    chosen = [features_of(features, order[[0, 5, 9, 17]])]
    chosen += [features_of(features, order[[5, 6, 9, 17]], 16)]
    chosen += [features_of(features, order[14:], 8)]
    config = graph_config(task=task, mesh=placed)
    short = predictions(config, chosen, (8, 16, LENGTH))
    padded = [{k: fill(v) for k, v in batch.items()} for batch in chosen]
    for batch, ours, expected in zip(
        chosen, short, predictions(config, padded, (LENGTH,)), strict=True
    ):
        length = batch["input_mask"].shape[1]
        for name, values in expected.items():
            assert ours[name].shape == values.shape == (BATCH, LENGTH)
            np.testing.assert_allclose(
                ours[name][:, :length], values[:, :length], atol=2e-6, err_msg=name
            )
            assert not ours[name][:, length:].any()


def features_of(features, rows, length=LENGTH):
    taken = {name: value[rows] for name, value in features.items()}
    return {k: v[:, :length] if v.ndim > 1 else v for k, v in taken.items()}


def fill(value):
    if value.ndim == 1:
        return value
    return np.pad(value, [(0, 0), (0, LENGTH - value.shape[1])])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with a checkpoint of initial weights."""
    folder = tmp_path_factory.mktemp("run")
    config = graph_config(task=TAGS)
    with tf.Graph().as_default(), tf.Session() as session:
        features = {k: tf.constant(v[:BATCH]) for k, v in arrays(BATCH)[TAGS].items()}
        build_predictions(config.network, features, (LENGTH,))
        session.run(tf.global_variables_initializer())
        prefix = f"{folder}/model.ckpt"
        tf.train.Saver().save(session, prefix, 0, write_meta_graph=False)
    return PredictionSpec(str(folder), BATCH)


def test_rows_come_back_in_the_order_of_their_files(run):
    # The second file fills no batch.
    data_sets = [arrays(rows, seed=rows)[TAGS] for rows in (18, 3, 8)]
    config = graph_config(task=TAGS)

    def answers(lengths):
        orders = [
            longest_first(d["input_mask"]) if lengths else None for d in data_sets
        ]
        parts = [
            Part(str(place), len(d["input_mask"]), order)
            for place, (d, order) in enumerate(zip(data_sets, orders, strict=True))
        ]
        input_fn = evaluation_input_fn(data_sets, BATCH, lengths)
        return dict(predict_parts(config.network, run, input_fn, parts, lengths))

    expected, found = answers(()), answers((8, 16, LENGTH))
    assert list(found) == ["0", "1", "2"]
    assert len({tuple(map(tuple, v["best_labels"])) for v in found.values()}) == 3
    for name, features in zip(found, data_sets, strict=True):
        kept = features["input_mask"]
        np.testing.assert_array_equal(
            found[name]["best_labels"] * kept, expected[name]["best_labels"] * kept
        )
