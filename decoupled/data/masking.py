"""Masked language modelling: which tokens are predicted, and their replacements.

This is BERT's scheme (Devlin et al. 2019, section 3.1), whose objective the paper uses
(A.2). Each choice is a function of (seed, sequence number, position), so masks do not
depend on the batch, on threads, or on where a run was resumed. Every sequence has
exactly its budget of predictions, which independent draws for each token would not
give. With whole-word masking the budget is met on average.
"""

import numpy as np

from decoupled.configs import MaskingConfig
from decoupled.core.release import tf
from decoupled.data.counters import Stream, graph_bits, numpy_bits, shift_right
from decoupled.data.vocabulary import Vocabulary
from decoupled.data.words import WordTables, word_starts


def prediction_budget(masking: MaskingConfig) -> np.ndarray:
    """The number of predicted positions for each number n of maskable tokens.

    int32 [sequence_length + 1]: min(max_predictions, max(1, round(rate * n))), 0 at 0.
    """
    counts = [
        min(masking.max_predictions, max(1, round(masking.masking_rate * tokens)))
        for tokens in range(1, masking.sequence_length + 1)
    ]
    return np.array([0, *counts], np.int32)


def mask_sequences(
    ids: tf.Tensor,
    numbers: tf.Tensor,
    seed: int,
    masking: MaskingConfig,
    vocabulary: Vocabulary,
    words: WordTables | None = None,
) -> dict[str, tf.Tensor]:
    """Chooses the predicted positions of a batch and replaces their tokens.

    `numbers` are those of the sequences in their stream. With `words`, whole words are
    predicted. Positions are increasing. Unused predictions have position 0, id 0,
    weight 0. Special pieces and padding are never chosen.

    Returns:
      `input_word_ids` int32 [batch, sequence_length]; `masked_lm_positions` and
      `masked_lm_ids` int32, `masked_lm_weights` float32 [batch, max_predictions].
    """
    positions, used = choose_positions(ids, numbers, seed, masking, vocabulary, words)
    labels = tf.gather(ids, positions, batch_dims=1)
    replacements = _replacements(labels, positions, numbers, seed, masking, vocabulary)
    rows = tf.broadcast_to(tf.range(tf.shape(ids)[0])[:, tf.newaxis], tf.shape(labels))
    # Differences are added, so that unused predictions leave position 0 unchanged.
    input_ids = tf.tensor_scatter_nd_add(
        ids, tf.stack([rows, positions], -1), tf.where(used, replacements - labels, 0)
    )
    return {
        "input_word_ids": input_ids,
        "masked_lm_positions": positions,
        "masked_lm_ids": tf.where(used, labels, 0),
        "masked_lm_weights": tf.cast(used, tf.float32),
    }


def mask_in_rounds(
    ids: np.ndarray,
    numbers: np.ndarray,
    seed: int,
    masking: MaskingConfig,
    vocabulary: Vocabulary,
) -> dict[str, np.ndarray]:
    """Copies of sequences in which every maskable token is predicted exactly once.

    The maskable positions of a sequence are divided at random into as few rounds as the
    budget of `prediction_budget` allows. Each round is a copy of the sequence in which
    its positions are masked. The sizes of a sequence's rounds differ by at most one:
    for 30 positions, a budget of 5 gives 6 rounds of 5, and a budget of 4 gives 8
    rounds of 3 or 4.

    Returns:
      the features of `mask_sequences`, with a row for each copy; and `sequence`, int64
      [rows], the index in `ids` of a copy's sequence. Its copies are adjacent rows.
    """
    is_maskable = ~np.isin(ids, [vocabulary.pad_id, *vocabulary.special_ids])
    positions = np.arange(ids.shape[1])
    bits = numpy_bits(seed, Stream.MASK_POSITION, numbers[:, np.newaxis], positions)
    # 63 random bits for maskable tokens; the others come last in each row.
    scores = np.where(is_maskable, bits >> np.uint64(1), np.uint64(1) << np.uint64(63))
    ranks = scores.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    counts = is_maskable.sum(axis=1)
    rounds = -(-counts // np.maximum(prediction_budget(masking)[counts], 1))

    sequence, place = np.nonzero(is_maskable)
    # They are dealt out like cards, so that no round has two more than another.
    slot, number = np.divmod(ranks[sequence, place], rounds[sequence])
    row = (np.cumsum(rounds) - rounds)[sequence] + number
    source = np.repeat(np.arange(len(ids)), rounds)
    places = np.zeros([len(source), masking.max_predictions], np.int32)
    weights = np.zeros(places.shape, np.float32)
    places[row, slot], weights[row, slot] = place, 1
    input_ids = ids[source]
    labels = np.where(weights > 0, np.take_along_axis(input_ids, places, axis=1), 0)
    pieces = _replacements(labels, places, numbers[source], seed, masking, vocabulary)
    input_ids[row, place] = pieces.numpy()[row, slot]
    return {
        "sequence": source,
        "input_word_ids": input_ids,
        "masked_lm_positions": places,
        "masked_lm_ids": labels,
        "masked_lm_weights": weights,
    }


def choose_positions(
    ids: tf.Tensor,
    numbers: tf.Tensor,
    seed: int,
    masking: MaskingConfig,
    vocabulary: Vocabulary,
    words: WordTables | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws the predicted positions without replacement, uniformly.

    With `words`, words are drawn uniformly instead of tokens, and all tokens of a word
    are predicted (BERT's whole-word masking), as long as they fit the budget. The first
    word that does not fit is predicted with the probability that meets the budget on
    average, if `max_predictions` allows. If the first word that is drawn is longer than
    the budget, only as many of its tokens are predicted as the budget allows.

    Returns:
      positions, int32 [batch, max_predictions], increasing, then 0 for unused ones; and
      which are used, bool.
    """
    length, width = masking.sequence_length, masking.max_predictions
    is_maskable = tf.not_equal(ids, vocabulary.pad_id)
    for special in vocabulary.special_ids:
        is_maskable &= tf.not_equal(ids, special)
    units = tf.range(length) if words is None else _word_numbers(ids, words)
    bits = graph_bits(seed, Stream.MASK_POSITION, numbers[:, tf.newaxis], units)
    # 31 random bits; top_k settles the rare tie by position.
    scores = tf.where(is_maskable, tf.cast(shift_right(bits, 33), tf.int32), -1)
    order = tf.math.top_k(scores, k=width if words is None else length).indices
    counts = tf.math.count_nonzero(is_maskable, axis=1)
    budget = tf.gather(tf.constant(prediction_budget(masking)), counts)
    if words is not None:
        # The bits of a word that its score has not used.
        chances = tf.bitcast(bits, tf.int64) & 0xFFFFFFFF
        word, chances = (tf.gather(x, order, batch_dims=1) for x in (units, chances))
        budget = _whole_words(word, chances, budget, width)
        order = order[:, :width]
    choice = tf.where(tf.range(width) < budget[:, tf.newaxis], order, length)
    positions = tf.sort(choice, axis=1)
    used = positions < length
    return tf.where(used, positions, 0), used


def _word_numbers(ids: tf.Tensor, words: WordTables) -> tf.Tensor:
    """The number of each token's word in its row, from 0."""
    starts = word_starts(*(tf.gather(tf.constant(table), ids) for table in words))
    return tf.pad(tf.cumsum(tf.cast(starts, tf.int32), axis=1), [[0, 0], [1, 0]])


def _whole_words(
    word: tf.Tensor, chances: tf.Tensor, budget: tf.Tensor, width: int
) -> tf.Tensor:
    """How many of the first tokens are predicted, int32 [batch].

    `word` and `chances`, uniform in [0, 2**32), are of each token. The tokens of a word
    are consecutive and have the same chance.
    """
    batch, length = tf.unstack(tf.shape(word))
    flat = word + length * tf.range(batch)[:, tf.newaxis]
    sizes = tf.math.unsorted_segment_sum(
        tf.ones([batch * length], tf.int32), tf.reshape(flat, [-1]), batch * length
    )
    size = tf.gather(sizes, flat)
    is_new_word = tf.not_equal(word[:, 1:], word[:, :-1])
    begins_word = tf.pad(is_new_word, [[0, 0], [1, 0]], constant_values=True)
    end = tf.cumsum(tf.where(begins_word, size, 0), axis=1)
    budget = budget[:, tf.newaxis]
    free_room = tf.cast(budget - end + size, tf.int64) * 2**32
    is_crossing = (end > budget) & (end - size < budget) & (end > size) & (end <= width)
    is_lucky = is_crossing & (chances * tf.cast(size, tf.int64) < free_room)
    count = tf.math.count_nonzero((end <= budget) | is_lucky, axis=1, dtype=tf.int32)
    return tf.where(count > 0, count, budget[:, 0])


def _replacements(
    labels: tf.Tensor,
    positions: tf.Tensor,
    numbers: tf.Tensor,
    seed: int,
    masking: MaskingConfig,
    vocabulary: Vocabulary,
) -> tf.Tensor:
    places = (numbers[:, tf.newaxis], positions)
    action = graph_bits(seed, Stream.MASK_ACTION, *places)
    action = tf.cast(shift_right(action, 32), tf.int64)
    mask_limit = round(masking.mask_token_rate * 2**32)
    change_limit = round((masking.mask_token_rate + masking.random_token_rate) * 2**32)
    pieces = _ordinary_pieces(graph_bits(seed, Stream.MASK_PIECE, *places), vocabulary)
    tokens = tf.where(action < change_limit, pieces, labels)
    return tf.where(action < mask_limit, vocabulary.mask_id, tokens)


def _ordinary_pieces(bits: tf.Tensor, vocabulary: Vocabulary) -> tf.Tensor:
    """Uniform ids among the pieces that are not special, int32, from uint64 bits."""
    specials = np.array(sorted({vocabulary.pad_id, *vocabulary.special_ids}), np.int64)
    count = vocabulary.size - len(specials)
    rank = tf.cast(tf.math.floormod(bits, tf.constant(count, tf.uint64)), tf.int64)
    # Special piece number i has specials[i] - i ordinary pieces before it, so a rank at
    # or above that moves past it.
    shift = tf.searchsorted(
        tf.constant(specials - np.arange(len(specials))),
        tf.reshape(rank, [-1]),
        side="right",
        out_type=tf.int64,
    )
    return tf.cast(rank + tf.reshape(shift, tf.shape(rank)), tf.int32)
