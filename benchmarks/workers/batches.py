"""The same random batch for every framework. Needs NumPy only."""

import numpy as np

# Ids below are special pieces in the vocabularies of all models compared.
FIRST_ID = 5


def masked_lm_batch(case: dict) -> dict[str, np.ndarray]:
    """A batch without padding, its masked positions distinct and sorted.

    Args:
      case: holds "vocab_size", "batch", "sequence_length" and "predictions".

    Returns:
      int32 "input_word_ids", "input_mask", "input_type_ids" [batch, sequence],
      "masked_lm_positions", "masked_lm_ids" and, float32, "masked_lm_weights"
      [batch, predictions].
    """
    generator = np.random.default_rng(0)
    vocab_size = case["vocab_size"]
    tokens = [case["batch"], case["sequence_length"]]
    masked = [case["batch"], case["predictions"]]
    # Any row of `order` but its first column, which stands for [CLS].
    order = generator.random([tokens[0], tokens[1] - 1]).argsort(axis=1) + 1
    return {
        "input_word_ids": generator.integers(FIRST_ID, vocab_size, tokens, np.int32),
        "input_mask": np.ones(tokens, np.int32),
        "input_type_ids": np.zeros(tokens, np.int32),
        "masked_lm_positions": np.sort(order[:, : masked[1]]).astype(np.int32),
        "masked_lm_ids": generator.integers(FIRST_ID, vocab_size, masked, np.int32),
        "masked_lm_weights": np.ones(masked, np.float32),
    }


def classification_batch(case: dict) -> dict[str, np.ndarray]:
    """Random tokens without padding, as above, with labels.

    Args:
      case: holds "vocab_size", "batch", "sequence_length" and "labels".

    Returns:
      int32 "input_word_ids", "input_mask", "input_type_ids" [batch, sequence] and
      "label_ids" [batch].
    """
    generator = np.random.default_rng(0)
    shape = [case["batch"], case["sequence_length"]]
    return {
        "input_word_ids": generator.integers(
            FIRST_ID, case["vocab_size"], shape, np.int32
        ),
        "input_mask": np.ones(shape, np.int32),
        "input_type_ids": np.zeros(shape, np.int32),
        "label_ids": generator.integers(0, case["labels"], shape[:1], np.int32),
    }
