"""Sequence packing: which examples share a row, and what a packed batch holds."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoupled.data.array_input_fn import (
    evaluation_batches,
    training_batches,
    training_input_fn,
    training_order,
)
from decoupled.data.packing import (
    Packing,
    Rows,
    pack,
    pack_batch,
    plan_packing,
    plan_rows,
    unpack,
)

LONGEST, EXAMPLES = 12, 203
SIZES = np.minimum(2 + np.random.default_rng(0).geometric(0.2, EXAMPLES), LONGEST)
BATCH = 8


def made_arrays(examples=EXAMPLES):
    """Tokens and labels that tell which example they belong to."""
    mask = (np.arange(LONGEST) < SIZES[:examples, np.newaxis]).astype(np.int32)
    numbers = np.arange(examples, dtype=np.int32)
    return {
        "input_word_ids": (100 * numbers[:, np.newaxis] + np.arange(LONGEST)) * mask,
        "input_mask": mask,
        "label_ids": numbers,
    }


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40))
def test_every_example_is_in_one_row_and_no_row_is_too_long(sizes):
    rows = pack(sizes, 20)
    assert sorted(itertools.chain(*rows)) == list(range(len(sizes)))
    filled = [sum(sizes[index] for index in row) for row in rows]
    assert max(filled) <= 20
    # Two half empty rows would be one.
    assert sum(2 * total <= 20 for total in filled) <= 1


def test_long_examples_come_first_and_short_ones_fill_the_gaps():
    assert pack([2, 9, 5, 4, 1], 10) == [[1, 4], [2, 3]] + [[0]]
    assert pack([2, 9, 5, 3, 1], 10) == [[1, 4], [2, 3, 0]]


# Balanced batches that fit as they are: a row for each example.
UNPACKED = Rows(10**6, LONGEST)


def order(
    steps, examples=EXAMPLES, batch=BATCH, seed=1, start=0, rows=UNPACKED, sizes=SIZES
):
    results = training_order(batch, seed, start, sizes[:examples], rows)
    return list(itertools.islice(results, steps))


@pytest.mark.parametrize(
    "examples, batch", [(203, 8), (203, 150), (20, 8), (10, 4), (3, 8), (8, 8)]
)
@pytest.mark.parametrize("rows", [UNPACKED, Rows(1, LONGEST)])
def test_every_epoch_of_balanced_batches_holds_each_example_once(examples, batch, rows):
    """Whether they fit or not."""
    batches = order(-(-4 * examples // batch), examples, batch, rows=rows)
    epochs = np.concatenate(batches)[: 4 * examples].reshape(4, examples)
    for epoch in epochs:
        assert sorted(epoch) == list(range(examples))
    assert examples < 5 or epochs[0].tolist() != epochs[1].tolist()


def test_balanced_batches_have_nearly_the_same_number_of_tokens():
    # Three epochs, of which two end within a batch.
    totals = [SIZES[rows].sum() for rows in order(76)]
    at_random = np.random.default_rng(0).integers(0, EXAMPLES, (76, BATCH))
    assert np.std(totals) < 0.2 * np.std([SIZES[rows].sum() for rows in at_random])
    assert max(totals) < SIZES.mean() * BATCH * 1.1
    # Neither the longest nor the shortest examples come together.
    assert all(np.ptp(SIZES[rows]) >= 5 for rows in order(25))


def test_another_epoch_and_another_seed_mix_other_examples():
    first = {tuple(sorted(rows)) for rows in order(25)}
    assert not first & {tuple(sorted(rows)) for rows in order(25, start=26)}
    assert not first & {tuple(sorted(rows)) for rows in order(25, seed=2)}


def fit(batch, rows):
    return len(pack(SIZES[batch], rows.length)) <= rows.count


# A few balanced batches of a long run need six.
FIVE_ROWS, LONG_RUN = Rows(5, LONGEST), 800


@functools.cache
def long_run(rows=UNPACKED):
    """The batches of a long run, which no test changes."""
    return order(LONG_RUN, rows=rows)


def test_batches_that_do_not_fit_exchange_examples_with_others():
    before, after = long_run(), long_run(FIVE_ROWS)
    large = [not fit(batch, FIVE_ROWS) for batch in before]
    assert 5 < sum(large) < 50
    assert all(fit(batch, FIVE_ROWS) for batch in after)
    changed = [sorted(x) != sorted(y) for x, y in zip(before, after, strict=True)]
    assert all(change for change, was in zip(changed, large, strict=True) if was)
    # One other batch for each.
    assert sum(changed) <= 2 * sum(large)
    whole = LONG_RUN * BATCH // EXAMPLES
    rows = np.concatenate(after)[: whole * EXAMPLES]
    for epoch in rows.reshape(whole, EXAMPLES):
        assert sorted(epoch) == list(range(EXAMPLES))
    # Each example still comes with shorter and longer ones.
    assert all(np.ptp(SIZES[batch]) >= 5 for batch in after)


def test_a_batch_of_two_epochs_fits_too():
    """The epoch with the larger part exchanges examples; the other part stays."""
    epochs = [
        np.arange(step * BATCH, (step + 1) * BATCH) // EXAMPLES
        for step in range(LONG_RUN)
    ]
    shared = [step for step, epoch in enumerate(epochs) if np.ptp(epoch)]
    before, after = long_run(), long_run(FIVE_ROWS)
    large = [step for step in shared if not fit(before[step], FIVE_ROWS)]
    assert large
    for step in shared:
        assert fit(after[step], FIVE_ROWS)
        first, last = epochs[step][0], epochs[step][-1]
        larger = last if 2 * sum(epochs[step] == last) >= BATCH else first
        rest = epochs[step] != larger
        assert 0 < sum(rest) <= BATCH / 2
        assert all(after[step][rest] == before[step][rest])


@pytest.mark.parametrize("start", [1, 24, 25, 26, 260])
def test_exchanges_do_not_depend_on_where_a_run_starts(start):
    straight = long_run(FIVE_ROWS)
    resumed = order(LONG_RUN - start, start=start, rows=FIVE_ROWS)
    for expected, batch in zip(straight[start:], resumed, strict=True):
        assert batch.tolist() == expected.tolist()


def plan(batches, shortest=10, step=4, multiple=1, cost=lambda length: 1.0):
    """The shape for batches that cannot exchange examples."""
    batches = [np.array(batch) for batch in batches]
    return plan_packing(
        lambda rows: iter(batches), len(batches), len(batches[0]), shortest, step,
        multiple, cost,
    )  # fmt: skip


def test_all_batches_fit_into_the_shape_of_a_run():
    # 12 tokens need two rows of 12 for [7, 7]; 16 hold 7 + 7.
    assert plan([[7, 7], [5, 5]]) == Packing(1, 16, 2, 2)
    assert plan([[7, 7, 7, 7], [10, 1, 1, 1]]) == Packing(2, 16, 4, 2)
    # A dear token of a long row decides for the short one.
    assert plan([[7, 7]], cost=lambda length: length**2) == Packing(2, 12, 1, 1)
    assert plan([[7, 7]], multiple=4) == Packing(4, 12, 1, 1)
    assert plan([[2, 2, 2]], shortest=3, step=128) == Packing(1, 128, 3, 1)


def test_a_batch_outside_of_the_sample_fits_too(monkeypatch):
    monkeypatch.setattr("decoupled.data.packing._SAMPLE", 2)
    batches = [[2, 2, 2, 2], [9, 9, 9, 9], *[[2, 2, 2, 2]] * 6]
    rows, length, examples, steps, _ = plan(batches)
    assert all(len(pack(sizes, length)) <= rows for sizes in batches)
    assert (examples, steps) == (4, 8)


def run_packing(steps=80, sizes=SIZES, batch=BATCH, step=4, made_for=None):
    """The shape of a run over all examples."""

    def batches(rows):
        results = order(steps, len(sizes), batch, rows=rows, sizes=sizes)
        return (sizes[batch] for batch in results)

    longest = int(sizes.max())
    return plan_packing(
        batches, steps, batch, longest, step, 1, lambda length: 1.0, made_for
    )


def test_batches_that_were_made_for_another_shape_stay_as_they_are():
    packing = run_packing(LONG_RUN, step=20, made_for=FIVE_ROWS)
    assert packing == Packing(3, 20, packing.examples, LONG_RUN, FIVE_ROWS)
    # It costs less than the shape that the run keeps where it can; its batches are then
    # those of its first start in every respect.
    kept = run_packing(LONG_RUN, made_for=FIVE_ROWS)
    assert kept[:2] == FIVE_ROWS and kept.made_for is None
    arrays = made_arrays()
    labels = [
        batch["label_ids"][batch["example_weights"] > 0]
        for batch in training_batches(arrays, BATCH, 1, 0, packing)
    ]
    for expected, results in zip(long_run(FIVE_ROWS), labels, strict=True):
        assert sorted(results) == sorted(expected)


def test_a_packed_row_holds_whole_examples_with_positions_of_their_own():
    arrays = {
        "input_word_ids": np.array([[5, 6, 7, 0], [8, 9, 0, 0], [4, 0, 0, 0]]),
        "input_mask": np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]),
        "label_ids": np.array([30, 20, 10]),
    }
    packed = pack_batch(arrays, Packing(2, 5, 2, 1))
    assert {name: array.tolist() for name, array in packed.items()} == {
        "input_word_ids": [[5, 6, 7, 8, 9], [4, 0, 0, 0, 0]],
        "input_mask": [[1, 1, 1, 2, 2], [1, 0, 0, 0, 0]],
        "position_ids": [[0, 1, 2, 0, 1], [0, 0, 0, 0, 0]],
        "label_ids": [[30, 20], [10, 0]],
        "example_weights": [[1, 1], [1, 0]],
        "first_positions": [[0, 3], [0, 0]],
    }


def test_weights_of_examples_are_kept():
    weights = np.array([0.5, 2.0, 1.5], np.float32)
    arrays = {**made_arrays(3), "example_weights": weights}
    packed = pack_batch(arrays, Packing(3, LONGEST, 2, 1))["example_weights"]
    assert packed.dtype == np.float32 and packed.shape == (3, 2)
    assert sorted(packed[packed > 0]) == sorted(weights)


def test_a_task_of_tokens_gets_no_features_of_examples():
    arrays = {k: v for k, v in made_arrays(3).items() if v.ndim == 2}
    packed = pack_batch(arrays, Packing(3, LONGEST, 2, 1))
    assert set(packed) == {*arrays, "position_ids"}


def test_packed_batches_hold_the_examples_of_their_steps():
    packing = run_packing()
    arrays = made_arrays()
    batches = training_batches(arrays, BATCH, 1, 0, packing)
    expected_order = order(80, rows=packing.order)
    # No batch comes after the run's last one, which may not fit.
    for expected, batch in zip(expected_order, batches, strict=True):
        assert batch["input_word_ids"].shape == (packing.rows, packing.length)
        labels = batch["label_ids"][batch["example_weights"] > 0]
        assert sorted(labels) == sorted(expected)
        for row, number in zip(*np.nonzero(batch["example_weights"]), strict=True):
            members = batch["input_mask"][row] == number + 1
            example = batch["label_ids"][row, number]
            ids = arrays["input_word_ids"][example, : SIZES[example]]
            assert batch["input_word_ids"][row, members].tolist() == ids.tolist()
            assert batch["position_ids"][row, members].tolist() == list(range(len(ids)))


def test_a_resumed_run_sees_the_packed_batches_of_a_straight_one():
    packing, arrays = run_packing(), made_arrays()
    straight = list(training_batches(arrays, BATCH, 1, 0, packing))
    for start in (1, 25, 26, 60):
        resumed = training_input_fn(arrays, BATCH, 1, start, packing)()
        for expected, batch in zip(straight[start:], resumed, strict=True):
            assert set(batch) == set(expected)
            for name, values in expected.items():
                np.testing.assert_array_equal(batch[name], values)


MOST = 3


@pytest.mark.parametrize("rows", [1, 4, 50])
def test_every_example_of_a_data_set_comes_back_from_its_row(rows, monkeypatch):
    """Also where batches have rows of two data sets."""
    monkeypatch.setattr("decoupled.data.packing._PACKED_AT_ONCE", 20)
    packing = Packing(rows, 16, MOST, 0)
    sets = [made_arrays(), made_arrays(5)]
    sizes = [arrays["input_mask"].sum(1) for arrays in sets]
    plans = [plan_rows(each, packing.length, MOST) for each in sizes]
    assert max(map(len, plans[0])) == MOST
    batches = list(evaluation_batches(zip(sets, plans, strict=True), packing))
    assert len(batches) == -(-sum(map(len, plans)) // rows)
    given = (
        {name: array[row] for name, array in batch.items()}
        for batch in batches
        for row in range(rows)
    )
    for arrays, each, plan in zip(sets, sizes, plans, strict=True):
        members = list(itertools.islice(given, len(plan)))
        tokens = [{"ids": row["input_word_ids"]} for row in members]
        results = unpack(tokens, plan, each, True, LONGEST)
        np.testing.assert_array_equal(results["ids"], arrays["input_word_ids"])
        labels = [{"label": row["label_ids"]} for row in members]
        results = unpack(labels, plan, each, False, LONGEST)
        np.testing.assert_array_equal(results["label"], arrays["label_ids"])
    assert not any(row["input_mask"].any() for row in given)
