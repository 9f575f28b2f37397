"""Batches of arrays: an order that is a function of seed and step."""

import numpy as np
import pytest

from decoupled.data.array_input_fn import (
    evaluation_input_fn,
    longest_first,
    training_input_fn,
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
