"""The same synthetic data for every framework. Needs NumPy only."""

import numpy as np

# All models' vocabularies have the special pieces below the first id of text.
PAD_ID, UNK_ID, CLS_ID, SEP_ID, MASK_ID, FIRST_ID = range(6)
# Pieces of a sentence: as in Tatoeba, half of them have fewer, a few many more.
SENTENCE_MEDIAN = 11
SENTENCE_SPREAD = 0.5
# So many random values are drawn for a weight; larger weights repeat them.
RANDOM_VALUES = 4_000_037


def masked_lm_batch(case: dict) -> dict[str, np.ndarray]:
    """A batch without padding, its masked positions distinct and sorted.

    int32 "input_word_ids", "input_mask", "input_type_ids" [batch, sequence],
    "masked_lm_positions", "masked_lm_ids" and, float32, "masked_lm_weights"
    [batch, predictions].
    """
    generator = np.random.default_rng(0)
    end_id = case["vocab_size"]
    token_shape = [case["batch"], case["sequence_length"]]
    masked_shape = [case["batch"], case["predictions"]]
    # Positions in random order, without the first one, which stands for [CLS].
    order = generator.random([token_shape[0], token_shape[1] - 1]).argsort(axis=1) + 1
    return {
        "input_word_ids": generator.integers(FIRST_ID, end_id, token_shape, np.int32),
        "input_mask": np.ones(token_shape, np.int32),
        "input_type_ids": np.zeros(token_shape, np.int32),
        "masked_lm_positions": np.sort(order[:, : masked_shape[1]]).astype(np.int32),
        "masked_lm_ids": generator.integers(FIRST_ID, end_id, masked_shape, np.int32),
        "masked_lm_weights": np.ones(masked_shape, np.float32),
    }


def sentence_pairs(case: dict) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Two lists of sentences, int64 [pieces] each, without special pieces."""
    generator = np.random.default_rng(0)
    max_length = case["sequence_length"] - 2
    samples = generator.lognormal(
        np.log(SENTENCE_MEDIAN), SENTENCE_SPREAD, [2, case["pairs"]]
    )
    lengths = np.clip(samples, 1, max_length).astype(np.int64)
    first, second = (
        [generator.integers(FIRST_ID, case["vocab_size"], length) for length in side]
        for side in lengths
    )
    return first, second


def start_value(index: int, name: str, shape: list[int], dtype: str) -> np.ndarray:
    """The initial value of a variable: zeros for optimizer slots and step counters,
    random numbers for weights."""
    if not dtype.startswith(("float", "bfloat")):
        return np.zeros(shape, dtype)
    if "/adam_" in name:
        return np.zeros(shape, np.float32)
    values = np.random.default_rng(index).standard_normal(RANDOM_VALUES, np.float32)
    return np.resize(values * np.float32(0.02), shape) + np.float32("gamma" in name)
