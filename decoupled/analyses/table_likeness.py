"""The similarity of models' embeddings: linear CKA, and common nearest neighbours.

Lopardo et al. (2026, arXiv 2603.26663) ask whether a coupled table is more like an
input or an output embedding. So it is compared with both tables of a decoupled model.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import AnalysedModel
from decoupled.core import console
from decoupled.data.vocabulary import Vocabulary
from decoupled.metrics.similarity import CrossMoments, nearest, overlap

_BLOCK_ROWS = 8192


class Table(NamedTuple):
    """An embedding of a model, one of `AnalysedModel.embeddings`."""

    model: AnalysedModel
    embedding: str


def compare(
    tables: Sequence[Table], neighbours: int, pieces: int, seed: int
) -> dict[str, Any]:
    """The similarity of every two embeddings of one vocabulary.

    Special pieces are left out. The neighbours of a piece are the nearest ordinary
    pieces by cosine. They are compared for the same drawn pieces in every table. Pairs
    of different vocabularies are skipped, with a printed message.

    Args:
      neighbours: per piece.
      pieces: the number of pieces whose neighbours are compared; `seed` draws them.

    Returns:
      `pairs`: entries of `first` and `second` (a `model` and its `embedding`), `cka`
      (None where a table is constant) and `overlap`, the share of common neighbours;
      `random_overlap`: vocabulary (fingerprint) -> that of unrelated tables.
    """
    groups: dict[str, list[Table]] = {}
    for table in tables:
        groups.setdefault(table.model.vocabulary.fingerprint, []).append(table)
    pairs, expected = [], {}
    for vocabulary, group in groups.items():
        ordinary = _ordinary_pieces(group[0].model.vocabulary)
        count = min(neighbours, len(ordinary) - 1)
        expected[vocabulary] = count / (len(ordinary) - 1)
        draw = np.random.default_rng(seed).permutation(len(ordinary))
        queries = np.sort(draw[:pieces])
        near = [
            nearest(table.model.embedding(table.embedding)[ordinary], queries, count)
            for table in console.track(group, "looking for neighbours of pieces")
        ]
        numbered = list(itertools.combinations(range(len(group)), 2))
        for first, second in console.track(numbered, "comparing embeddings"):
            values = [
                group[number].model.embedding(group[number].embedding)[ordinary]
                for number in (first, second)
            ]
            moments = CrossMoments(*(value.shape[1] for value in values))
            for start in range(0, len(ordinary), _BLOCK_ROWS):
                moments.add(*(value[start : start + _BLOCK_ROWS] for value in values))
            pairs.append(
                {
                    "first": _named(group[first]),
                    "second": _named(group[second]),
                    "cka": moments.cka(),
                    "overlap": overlap(near[first], near[second]),
                }
            )
    for first, second in itertools.combinations(groups.values(), 2):
        console.say(
            f"{_models_of(first)} and {_models_of(second)} have different "
            "vocabularies: their embeddings are not compared"
        )
    return {"pairs": pairs, "random_overlap": expected}


def _ordinary_pieces(vocabulary: Vocabulary) -> np.ndarray:
    special = [vocabulary.pad_id, *vocabulary.special_ids]
    return np.setdiff1d(np.arange(vocabulary.size), special)


def _named(table: Table) -> dict[str, str]:
    kind = "coupled" if table.model.config.coupled else table.embedding
    return {"model": table.model.name, "embedding": kind}


def _models_of(tables: list[Table]) -> str:
    return ", ".join(dict.fromkeys(table.model.name for table in tables))
