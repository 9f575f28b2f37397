"""Batches of arrays: an order that is a function of seed and step."""

import itertools

import numpy as np
import pytest

from decoupled.data import array_input_fn
from decoupled.data.array_input_fn import (
    evaluation_input_fn,
    longest_first,
    training_batches,
    training_input_fn,
    training_order,
)

ARRAYS = {
    "ids": np.arange(20, dtype=np.int32).reshape(10, 2),
    "label_ids": np.arange(10, dtype=np.int32),
}


def labels_of(steps, batch_size=4, seed=1, start=0):
    dataset = training_input_fn(ARRAYS, batch_size, seed, start)()
    return [batch["label_ids"].numpy() for batch in dataset.take(steps)]


def test_every_epoch_holds_each_example_once():
    labels = np.concatenate(labels_of(10))
    for epoch in range(4):
        assert sorted(labels[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert labels[:10].tolist() != labels[10:20].tolist()


@pytest.mark.parametrize("start", [1, 2, 5, 7])
def test_a_resumed_run_sees_what_a_straight_one_does(start):
    straight = labels_of(9)
    resumed = labels_of(9 - start, start=start)
    np.testing.assert_array_equal(straight[start:], resumed)


def test_another_seed_is_another_order():
    assert np.concatenate(labels_of(5)).tolist() != (
        np.concatenate(labels_of(5, seed=2)).tolist()
    )


def test_rows_stay_together():
    batch = next(iter(training_input_fn(ARRAYS, 4, 1, 0)()))
    np.testing.assert_array_equal(batch["ids"][:, 0], 2 * batch["label_ids"])
    assert batch["ids"].shape == (4, 2)


def test_batches_that_are_not_grouped_follow_numpys_permutation():
    expected = [np.random.default_rng([1, epoch]).permutation(10) for epoch in (0, 1)]
    assert np.concatenate(labels_of(5)).tolist() == np.concatenate(expected).tolist()


SIZES = np.random.default_rng(0).integers(3, 120, 1003)


def grouped(steps, batch_size=4, seed=1, start=0, sizes=SIZES):
    order = training_order(len(sizes), batch_size, seed, start, sizes)
    return list(itertools.islice(order, steps))


@pytest.mark.parametrize(
    "examples, batch_size", [(1003, 4), (1000, 8), (1003, 600), (10, 4), (3, 8), (4, 8)]
)
def test_every_epoch_of_grouped_batches_holds_each_example_once(examples, batch_size):
    steps = -(-4 * examples // batch_size)
    batches = grouped(steps, batch_size, sizes=SIZES[:examples])
    assert {len(rows) for rows in batches} == {batch_size}
    rows = np.concatenate(batches)[: 4 * examples].reshape(4, examples)
    for epoch in rows:
        assert sorted(epoch) == list(range(examples))
    assert examples < 5 or rows[0].tolist() != rows[1].tolist()


@pytest.mark.parametrize("start", [1, 249, 250, 251, 400])
def test_a_resumed_run_sees_the_grouped_batches_of_a_straight_one(start):
    np.testing.assert_array_equal(
        grouped(520)[start:], grouped(520 - start, start=start)
    )


def test_another_seed_groups_other_examples():
    assert np.concatenate(grouped(3)).tolist() != (
        np.concatenate(grouped(3, seed=2)).tolist()
    )


def test_grouped_batches_are_of_like_length_and_shuffled(monkeypatch):
    monkeypatch.setattr(array_input_fn, "_GROUP", 20)
    # The 251st has the last three of an epoch and the first of the next.
    sizes = [SIZES[rows] for rows in grouped(250)]
    # Four neighbours of 20 * 4 sorted rows differ by 3 * 117 / 80 on average, four rows
    # at random by 3 / 5 of 117; the last group has ten batches only.
    assert np.mean([own.max() - own.min() for own in sizes]) < 5
    longest = np.array([own.max() for own in sizes])
    assert abs(np.corrcoef(longest[1:], longest[:-1])[0, 1]) < 0.2
    # A batch of the next epoch has other rows.
    first, second = grouped(250), grouped(250, start=251)
    same = {tuple(sorted(rows)) for rows in first}
    assert len(same & {tuple(sorted(rows)) for rows in second}) < 25


def test_grouped_batches_are_cut_to_the_lengths_allowed():
    mask = (np.arange(120) < SIZES[:, np.newaxis]).astype(np.int32)
    arrays = {"input_mask": mask, "label_ids": np.arange(1003, dtype=np.int32)}
    lengths = (40, 80, 120)
    batches = training_batches(arrays, 4, 1, 0, lengths)
    seen = set()
    for rows, batch in zip(grouped(300), batches, strict=False):
        assert batch["label_ids"].tolist() == rows.tolist()
        length = next(n for n in lengths if n >= SIZES[rows].max())
        np.testing.assert_array_equal(batch["input_mask"], mask[rows, :length])
        seen.add(length)
    assert seen == set(lengths)


def parts_of_five():
    yield {name: array[:5] for name, array in ARRAYS.items()}
    yield {name: array[5:] for name, array in ARRAYS.items()}


def test_evaluation_pads_each_part_with_zeros():
    for parts in (list(parts_of_five()), parts_of_five()):
        batches = list(evaluation_input_fn(parts, 4)())
        labels = [batch["label_ids"].numpy().tolist() for batch in batches]
        assert labels == [[0, 1, 2, 3], [4, 0, 0, 0], [5, 6, 7, 8], [9, 0, 0, 0]]
        assert [batch["ids"].shape for batch in batches] == [(4, 2)] * 4


def test_batches_of_like_rows_are_cut_to_the_lengths_allowed():
    sizes = [2, 5, 1, 2, 3]
    mask = (np.arange(6) < np.array(sizes)[:, np.newaxis]).astype(np.int32)
    arrays = {"input_mask": mask, "label_ids": np.arange(5, dtype=np.int32)}
    assert longest_first(mask).tolist() == [1, 4, 0, 3, 2]
    batches = list(evaluation_input_fn([arrays], 2, lengths=(2, 4, 6))())
    labels = [batch["label_ids"].numpy().tolist() for batch in batches]
    assert labels == [[1, 4], [0, 3], [2, 0]]
    masks = [batch["input_mask"].numpy().tolist() for batch in batches]
    assert masks == [
        [[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]],
        [[1, 1], [1, 1]],
        [[1, 0], [0, 0]],
    ]
