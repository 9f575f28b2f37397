"""Vectors of words from embeddings of subwords, and lists of words from files."""

from collections.abc import Iterable

import numpy as np

from decoupled.analyses.models import AnalysedModel
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary

Vectors = dict[str, np.ndarray]


def word_vectors(model: AnalysedModel, words: Iterable[str]) -> dict[str, Vectors]:
    """The mean of the vectors of each word's pieces (paper section 5.2).

    One table is in memory at a time, and of it only the rows that are needed are kept.

    Args:
      model: whose input and output embeddings are read.
      words: any number, also repeatedly.

    Returns:
      "input", and "output" where the model has one -> word -> float64 [E]. Words with
      an unknown piece, and those that are nothing to the vocabulary, are left out.
    """
    pieces = known_pieces(model.vocabulary, words)
    needed = np.unique(np.concatenate([*pieces.values(), np.zeros(0, np.int64)]))
    vectors = {}
    for kind in model.embeddings:
        rows = model.embedding(kind)[needed].astype(np.float64)
        vectors[kind] = {
            word: rows[np.searchsorted(needed, ids)].mean(0)
            for word, ids in pieces.items()
        }
    return vectors


def known_pieces(vocabulary: Vocabulary, words: Iterable[str]) -> dict[str, np.ndarray]:
    """Word -> its pieces, int64, of the words that have no unknown one."""
    words = sorted(set(words))
    encoded = zip(words, vocabulary.encode_batch(words), strict=True)
    return {
        word: np.array(ids, np.int64)
        for word, ids in encoded
        if ids and vocabulary.unk_id not in ids
    }


def read_words(path: str) -> list[str]:
    """The words of a file, one a line; empty lines and repeated words are left out.

    Raises:
      UserError: the file is missing, not UTF-8 or holds no word.
    """
    lines = [line.strip() for line in files.read_text(path).splitlines()]
    words = list(dict.fromkeys(line for line in lines if line))
    if not words:
        raise UserError(f"{path}: holds no words; write one a line")
    return words
