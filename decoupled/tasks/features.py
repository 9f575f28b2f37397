"""Texts to the encoder's inputs: [CLS] A [SEP] or [CLS] A [SEP] B [SEP]."""

import numpy as np

from decoupled.data.vocabulary import Vocabulary


def pack_texts(
    vocabulary: Vocabulary, texts: list[tuple[str, ...]], sequence_length: int
) -> dict[str, np.ndarray]:
    """Encodes texts or pairs of texts.

    Where a pair is too long, pieces are cut from the end of the longer text first.

    Args:
      vocabulary: of the model.
      texts: one or two texts each.
      sequence_length: tokens of every row, special pieces included.

    Returns:
      `input_word_ids`, `input_mask`, `input_type_ids`: int32 [texts, sequence_length];
      type 1 is the second text and its [SEP].
    """
    shape = [len(texts), sequence_length]
    ids = np.full(shape, vocabulary.pad_id, np.int32)
    mask = np.zeros(shape, np.int32)
    types = np.zeros(shape, np.int32)
    for row, segments in enumerate(_segments(vocabulary, texts)):
        segments = truncate(segments, sequence_length - 1 - len(segments))
        position = 1
        ids[row, 0] = vocabulary.cls_id
        for number, segment in enumerate(segments):
            end = position + len(segment) + 1
            ids[row, position:end] = [*segment, vocabulary.sep_id]
            types[row, position:end] = number
            position = end
        mask[row, :position] = 1
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}


def _segments(vocabulary, texts):
    encoded = iter(vocabulary.encode_batch([t for pair in texts for t in pair]))
    for pair in texts:
        yield [next(encoded) for _ in pair]


def truncate(segments: list[list[int]], budget: int) -> list[list[int]]:
    """Cuts segments to `budget` pieces in all, always from the longest.

    Of two equally long segments the second is cut first.
    """
    lengths = [len(segment) for segment in segments]
    excess = sum(lengths) - budget
    if excess <= 0:
        return segments
    if len(lengths) == 1:
        return [segments[0][:budget]]
    longer = int(lengths[1] >= lengths[0])
    # First down to the shorter one's length, then both alike.
    first = min(excess, abs(lengths[0] - lengths[1]))
    lengths[longer] -= first
    rest = excess - first
    lengths[1] -= (rest + 1) // 2
    lengths[0] -= rest // 2
    return [s[:n] for s, n in zip(segments, lengths, strict=True)]
