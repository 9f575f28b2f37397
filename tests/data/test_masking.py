"""Masking: exact budget, BERT's rates, no special pieces, a function of counters."""

import numpy as np
import pytest

from decoupled.configs import MaskingConfig
from decoupled.core.release import tf
from decoupled.data.masking import (
    mask_in_rounds,
    mask_sequences,
    prediction_budget,
)
from decoupled.data.words import WordTables
from tests.data.record_folders import FakeVocabulary, masking

VOCABULARY = FakeVocabulary(size=1000)
RNG = np.random.default_rng(0)


def batch(count, length, filled=None):
    """[CLS] text [SEP], the first `filled` positions used."""
    ids = RNG.integers(6, 1000, (count, length)).astype(np.int32)
    filled = filled or length
    ids[:, 0], ids[:, filled - 1], ids[:, filled:] = 3, 4, 0
    return ids


def mask(ids, config, numbers=None, seed=1, vocabulary=VOCABULARY, words=None):
    numbers = np.arange(len(ids)) if numbers is None else numbers
    numbers = tf.constant(numbers, tf.int64)
    features = mask_sequences(
        tf.constant(ids), numbers, seed, config, vocabulary, words
    )
    return {name: value.numpy() for name, value in features.items()}


@pytest.mark.parametrize(
    "tokens, most, expected",
    [(0, 20, 0), (1, 20, 1), (9, 20, 1), (11, 20, 2), (20, 20, 3), (126, 20, 19)]
    + [(128, 20, 19), (126, 5, 5)],
)
def test_budget(tokens, most, expected):
    assert prediction_budget(MaskingConfig(128, most))[tokens] == expected


@pytest.mark.parametrize("filled", [3, 5, 16, 40, 64])
def test_exactly_the_budget_is_predicted(filled):
    config = masking(64, 8)
    ids = batch(50, 64, filled)
    features = mask(ids, config)
    expected = min(8, max(1, round(0.15 * (filled - 2))))
    assert (features["masked_lm_weights"].sum(axis=1) == expected).all()
    assert features["masked_lm_weights"].dtype == np.float32
    assert (features["masked_lm_weights"][:, :expected] == 1).all()
    assert not features["masked_lm_ids"][:, expected:].any()
    assert not features["masked_lm_positions"][:, expected:].any()


def test_positions_rise_and_labels_are_the_text():
    ids = batch(50, 64)
    features = mask(ids, masking(64, 9))
    positions = features["masked_lm_positions"]
    assert (np.diff(positions, axis=1) > 0).all()
    np.testing.assert_array_equal(
        np.take_along_axis(ids, positions, 1), features["masked_lm_ids"]
    )
    elsewhere = np.ones_like(ids, bool)
    np.put_along_axis(elsewhere, positions, False, 1)
    np.testing.assert_array_equal(features["input_word_ids"][elsewhere], ids[elsewhere])


def test_special_pieces_are_never_chosen_nor_put_in():
    ids = batch(400, 32, 30)
    ids[:, 5:20:3] = RNG.choice([0, 1, 3, 4, 5], (400, 5))
    ids[:, 6] = 2  # <unk> is text
    config = MaskingConfig(32, 30, 1.0, 0.0, 1.0)
    features = mask(ids, config)
    used = features["masked_lm_weights"] > 0
    labels = features["masked_lm_ids"][used]
    assert not np.isin(labels, VOCABULARY.special_ids).any()
    assert used.sum() == (~np.isin(ids, VOCABULARY.special_ids)).sum()
    seen = np.take_along_axis(
        features["input_word_ids"], features["masked_lm_positions"], 1
    )
    assert not np.isin(seen[used], VOCABULARY.special_ids).any()
    assert 2 in labels


def test_rates_are_80_10_10():
    ids = batch(2000, 128)
    features = mask(ids, masking(128, 20))
    used = features["masked_lm_weights"] > 0
    seen = np.take_along_axis(
        features["input_word_ids"], features["masked_lm_positions"], 1
    )
    seen, labels = seen[used], features["masked_lm_ids"][used]
    total = len(labels)
    assert total == 2000 * 19
    # A random piece equals the label once in 995.
    kept, masked = (seen == labels).mean(), (seen == VOCABULARY.mask_id).mean()
    for found_rate, rate in ((masked, 0.8), (kept, 0.1 + 0.1 / 995)):
        assert abs(found_rate - rate) < 4 * np.sqrt(rate * (1 - rate) / total)


def test_random_pieces_are_all_ordinary_pieces_alike():
    vocabulary = FakeVocabulary(size=16, special_ids=(0, 1, 3, 9, 15))
    ids = np.full((3000, 22), 6, np.int32)
    features = mask(
        ids, MaskingConfig(22, 20, 1.0, 0.0, 1.0), None, vocabulary=vocabulary
    )
    seen = np.take_along_axis(
        features["input_word_ids"], features["masked_lm_positions"], 1
    )
    counts = np.bincount(seen.ravel(), minlength=16)
    ordinary = [2, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14]
    assert counts[ordinary].sum() == seen.size == 60_000
    rate = 1 / len(ordinary)
    bound = 4 * np.sqrt(rate * (1 - rate) * 60_000)
    assert (abs(counts[ordinary] - 60_000 * rate) < bound).all()


def test_positions_are_chosen_alike():
    features = mask(batch(5000, 32), masking(32, 4))
    used = features["masked_lm_weights"] > 0
    counts = np.bincount(features["masked_lm_positions"][used], minlength=32)
    assert counts[0] == counts[31] == 0
    rate = 4 / 30
    bound = 4 * np.sqrt(rate * (1 - rate) * 5000)
    assert (abs(counts[1:31] - 5000 * rate) < bound).all()


def test_masks_depend_on_the_number_and_the_seed_alone():
    config, ids = masking(32, 4), batch(40, 32)
    whole = mask(ids, config)
    for rows in (slice(0, 1), slice(7, 20), slice(39, 40)):
        part = mask(ids[rows], config, np.arange(40)[rows])
        for name, value in part.items():
            np.testing.assert_array_equal(value, whole[name][rows])
    for other in (mask(ids, config, seed=2), mask(ids, config, np.arange(40) + 40)):
        same = (other["masked_lm_positions"] == whole["masked_lm_positions"]).all(1)
        assert same.mean() < 0.1


def test_a_sequence_without_text_predicts_nothing():
    features = mask(np.zeros((2, 16), np.int32), masking(16, 3))
    assert not any(value.any() for value in features.values())


def rounds(ids, config, numbers=None, seed=1):
    numbers = np.arange(len(ids)) if numbers is None else np.array(numbers)
    return mask_in_rounds(ids, numbers, seed, config, VOCABULARY)


def test_every_maskable_token_is_predicted_once():
    ids = batch(40, 32)
    ids[:, 5:20:3] = RNG.choice([0, 1, 3, 4, 5], (40, 5))
    ids[7, 1:] = 0  # a sequence without a maskable token has no round
    features = rounds(ids, masking(32, 4))
    used = features["masked_lm_weights"] > 0
    row, _ = np.nonzero(used)
    predicted = np.zeros(ids.shape, int)
    place = features["masked_lm_positions"][used]
    np.add.at(predicted, (features["sequence"][row], place), 1)
    expected = ~np.isin(ids, VOCABULARY.special_ids)
    np.testing.assert_array_equal(predicted, expected)
    labels = ids[features["sequence"][row], place]
    np.testing.assert_array_equal(features["masked_lm_ids"][used], labels)
    assert not features["masked_lm_ids"][~used].any()
    assert not features["masked_lm_positions"][~used].any()
    assert 7 not in features["sequence"]


@pytest.mark.parametrize(
    "filled, budget, expected",
    [(32, 5, [5] * 6), (32, 4, [4] * 6 + [3] * 2), (9, 5, [1] * 7), (3, 5, [1])],
)
def test_rounds_are_as_large_as_the_budget_and_even(filled, budget, expected):
    config = MaskingConfig(32, budget, 1 / 6, 1.0, 0.0)
    features = rounds(batch(1, 32, filled), config)
    assert features["masked_lm_weights"].sum(1).tolist() == expected


def test_a_round_hides_its_own_tokens_alone():
    ids = batch(30, 32)
    features = rounds(ids, MaskingConfig(32, 5, 1 / 6, 1.0, 0.0))
    hidden = features["input_word_ids"] == VOCABULARY.mask_id
    assert (hidden.sum(1) == features["masked_lm_weights"].sum(1)).all()
    at = np.take_along_axis(hidden, features["masked_lm_positions"], 1)
    assert at[features["masked_lm_weights"] > 0].all()
    elsewhere = ids[features["sequence"]]
    np.testing.assert_array_equal(
        features["input_word_ids"][~hidden], elsewhere[~hidden]
    )


def test_rounds_depend_on_the_sequence_and_the_seed_alone():
    ids, config = batch(20, 32), masking(32, 5)
    together = rounds(ids, config)
    alone = rounds(ids[13:14], config, [13])
    rows = together["sequence"] == 13
    for name in set(together) - {"sequence"}:
        np.testing.assert_array_equal(together[name][rows], alone[name])
    positions = "masked_lm_positions"
    assert (rounds(ids, config, seed=2)[positions] != together[positions]).any()
    # Each position is in each round equally often: no round is of neighbours.
    many = rounds(np.repeat(ids[:1], 2000, axis=0), config, np.arange(2000))
    first = many[positions][:: len(many["sequence"]) // 2000]
    shares = np.bincount(first.ravel(), minlength=32)[1:31] / len(first)
    assert np.abs(shares - shares.mean()).max() < 5 * np.sqrt(shares.mean() / 2000)


# Even ids begin words; special pieces are separate words.
SPECIAL = np.isin(np.arange(1000), [0, *VOCABULARY.special_ids])
WORDS = WordTables((np.arange(1000) % 2 == 0) | SPECIAL, SPECIAL, np.zeros(1000, bool))


def words_of(row):
    """Lists of the positions of each word of text."""
    features = []
    for place, piece in enumerate(row):
        if SPECIAL[piece]:
            continue
        if piece % 2 == 0 or SPECIAL[row[place - 1]]:
            features.append([])
        features[-1].append(place)
    return features


def chosen(features):
    """Sets of the predicted positions of each row."""
    used = features["masked_lm_weights"] > 0
    rows = zip(features["masked_lm_positions"], used, strict=True)
    return [set(positions[own].tolist()) for positions, own in rows]


def test_whole_words_are_predicted_or_not_at_all():
    ids = batch(300, 64)
    features = mask(ids, masking(64, 20), words=WORDS)
    cut = 0
    for row, positions in zip(ids, chosen(features), strict=True):
        shares = [len(positions & set(word)) / len(word) for word in words_of(row)]
        cut += any(0 < share < 1 for share in shares)
        assert positions and sum(len(w) for w in words_of(row)) == 62
    # Only where the first word was longer than the budget of 9.
    assert cut <= 2
    plain = mask(ids, masking(64, 20))
    assert any(a != b for a, b in zip(chosen(features), chosen(plain), strict=True))


def test_whole_words_meet_the_budget_on_average():
    ids = batch(20_000, 32, 30)
    config = MaskingConfig(32, 16)
    counts = mask(ids, config, words=WORDS)["masked_lm_weights"].sum(axis=1)
    budget = round(0.15 * 28)
    assert counts.min() >= 1 and counts.max() <= 16
    assert abs(counts.mean() - budget) < 4 * counts.std() / np.sqrt(len(counts))


def test_long_and_short_words_are_drawn_alike():
    """One row many times: words of 1, 2 and 3 tokens."""
    row = np.array([3, 8, 10, 11, 12, 13, 15, 16, 18, 19, 20, 21, 23, 4], np.int32)
    assert list(map(len, words_of(row))) == [1, 2, 3, 1, 2, 3]
    ids = np.tile(row, (20_000, 1))
    features = mask(ids, MaskingConfig(14, 12, 0.34), words=WORDS)
    counts = np.zeros(14)
    for positions in chosen(features):
        counts[list(positions)] += 1
    shares = counts[1:-1] / len(ids)
    # A budget of 4 of 12 tokens.
    np.testing.assert_allclose(shares.mean(), 4 / 12, atol=0.01)
    one, two, three = shares[[0, 6]], shares[[1, 2, 7, 8]], shares[[3, 4, 5, 9, 10, 11]]
    assert one.mean() == pytest.approx(two.mean(), abs=0.05)
    assert two.mean() == pytest.approx(three.mean(), abs=0.05)
    np.testing.assert_array_equal(two[0::2], two[1::2])


def test_a_word_longer_than_the_budget_is_predicted_in_part():
    ids = np.full((50, 32), 7, np.int32)
    ids[:, 0], ids[:, 31] = 3, 4
    features = mask(ids, masking(32, 6), words=WORDS)
    assert (features["masked_lm_weights"].sum(axis=1) == round(0.15 * 30)).all()
    empty = np.tile(np.array([[3, 4] + [0] * 30], np.int32), (3, 1))
    assert not mask(empty, masking(32, 6), words=WORDS)["masked_lm_weights"].any()


def test_whole_words_do_not_depend_on_the_batch():
    ids = batch(40, 64)
    whole = mask(ids, masking(64, 12), words=WORDS)
    part = mask(ids[10:20], masking(64, 12), numbers=np.arange(10, 20), words=WORDS)
    for name, values in part.items():
        np.testing.assert_array_equal(values, whole[name][10:20])
