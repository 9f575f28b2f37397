"""The fertility of a vocabulary in each language: tokens per word, unknown tokens.

Languages that write without spaces have no words to count.
"""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

from decoupled.data.vocabulary import Vocabulary
from decoupled.data.words import UNSPACED

_ENCODED_AT_ONCE = 1000


class Fertility(NamedTuple):
    """How a vocabulary tokenises the text of a language.

    sentences, tokens: how many there are.
    tokens_per_word: words are separated by spaces; None if most characters belong to
      scripts without spaces.
    tokens_per_character: spaces count as characters.
    unknown_rate: share of the tokens that are <unk>.
    byte_rate: share of the tokens that are single bytes; None if the vocabulary has no
      such pieces.
    """

    sentences: int
    tokens: int
    tokens_per_word: float | None
    tokens_per_character: float
    unknown_rate: float
    byte_rate: float | None


def measure_fertility(vocabulary: Vocabulary, sentences: Iterable[str]) -> Fertility:
    """Encodes some sentences of one language and counts."""
    sentences = iter(sentences)
    byte_ids = set(vocabulary.byte_ids)
    count = words = characters = unspaced = tokens = unknown = single = 0
    while batch := list(itertools.islice(sentences, _ENCODED_AT_ONCE)):
        count += len(batch)
        words += sum(len(sentence.split()) for sentence in batch)
        characters += sum(map(len, batch))
        unspaced += sum(len(UNSPACED.findall(sentence)) for sentence in batch)
        for ids in vocabulary.encode_batch(batch):
            tokens += len(ids)
            unknown += ids.count(vocabulary.unk_id)
            single += sum(piece in byte_ids for piece in ids) if byte_ids else 0
    spaced = 2 * unspaced <= characters
    return Fertility(
        sentences=count,
        tokens=tokens,
        tokens_per_word=round(tokens / max(words, 1), 4) if spaced else None,
        tokens_per_character=round(tokens / max(characters, 1), 4),
        unknown_rate=round(unknown / max(tokens, 1), 6),
        byte_rate=round(single / max(tokens, 1), 6) if byte_ids else None,
    )
