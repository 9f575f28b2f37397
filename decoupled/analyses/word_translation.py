"""Do the rows of an embedding translate words? Whole-word pieces of two languages.

In a pair of translated pieces (`translated_pieces`), each piece is a query for the
other. The frequent whole-word pieces of the other language are ranked by the dot
product or the cosine of their rows with the query's row. The query itself is left out
if it is a piece of both languages. The value of a pair is the reciprocal rank of the
translation, averaged over both directions; half of the equal scores count as better. If
rows are centred, the mean row of a language's frequent whole-word pieces is subtracted
from its rows, as for sentences in `decoupled.analyses.neighbours`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import INPUT, OUTPUT, AnalysedModel
from decoupled.analyses.translated_pieces import (
    TranslatedPieces,
    translated_pieces,
    word_groups,
)
from decoupled.configs.analyses import WordTranslationSettings
from decoupled.core import console, plots
from decoupled.core.errors import UserError
from decoupled.corpora.corpus import Corpus
from decoupled.metrics.neighbours import mean_interval

SCORES = {"dot": "dot product", "cosine": "cosine"}
# Number of queries that are ranked at once.
_BLOCK = 1024
_LOOK = {INPUT: (plots.BLUE, "o", -0.13), OUTPUT: (plots.ORANGE, "s", 0.13)}


def reciprocal_ranks(
    table: np.ndarray, translated: TranslatedPieces, score: str, centre: bool
) -> np.ndarray:
    """The reciprocal rank of each pair, averaged over both directions.

    Args:
      table: a row for each piece, float [V, E].
      translated: the pairs of two languages.
      score: "dot" or "cosine".
      centre: whether the mean row of each language's candidates is subtracted.

    Returns:
      float32 [pairs].
    """
    sides = []
    for ids, candidates in zip(translated.pairs.T, translated.candidates, strict=True):
        frequent = table[candidates].astype(np.float64)
        mean = frequent.mean(0) if centre else 0.0
        asking = table[ids].astype(np.float64) - mean
        frequent -= mean
        if score == "cosine":
            asking, frequent = _unit(asking), _unit(frequent)
        sides.append(_Side(ids, candidates, asking, frequent))
    first, second = sides
    both = [_one_direction(first, second), _one_direction(second, first)]
    return np.mean(both, axis=0).astype(np.float32)


def measure(
    models: Sequence[AnalysedModel], corpus: Corpus, settings: WordTranslationSettings
) -> dict[str, Any]:
    """Mean reciprocal ranks of all models' embeddings.

    Args:
      models: of one vocabulary. corpus: of parallel text. settings: see its class.

    Returns:
      `corpus`, its fingerprint; `settings`; `pairs`: for each pair of languages
      `languages` ("de-en"), `sentences`, `items`, `candidates` and `random_order`, the
      mean reciprocal rank x 100 of a random order; `items`: both pieces and the
      languages of each item; `groups`: for each item the index of its group of items
      that share words (`word_groups`); `models`: the entries of
      `AnalysedModel.describe`, with `embeddings`, a list of entries with `embedding`,
      `score` ("dot" or "cosine"), `mrr` (x 100, over all items), `interval` (95%, over
      the groups), `pairs`: languages -> `mrr`. `arrays`: "MODELINDEX/input", "/output"
      by dot product, "/input_cosine", "/output_cosine": float32 [items]. The output
      embedding of a coupled model is its input embedding.

    Raises:
      UserError: the models have several vocabularies, the corpus has no training
        sentences with ids, or no pair of pieces is found.
    """
    vocabulary = models[0].vocabulary
    for model in models:
        if model.vocabulary.fingerprint != vocabulary.fingerprint:
            raise UserError(
                f"{model.folder}: has another vocabulary than {models[0].folder}; "
                "pieces are compared, so give models of one vocabulary"
            )
    translated = [
        entry
        for entry in translated_pieces(corpus, vocabulary, settings)
        if len(entry.pairs)
    ]
    groups = word_groups(translated)
    results, arrays = [], {}
    for index, model in enumerate(console.track(models, "ranking translations")):
        embeddings = []
        for kind in (INPUT, OUTPUT):
            own = INPUT if model.config.coupled else kind
            if own not in model.embeddings:
                continue
            table = model.embedding(own)
            for score in SCORES:
                ranks = [
                    reciprocal_ranks(table, entry, score, settings.centre)
                    for entry in translated
                ]
                key = kind if score == "dot" else f"{kind}_{score}"
                arrays[f"{index}/{key}"] = np.concatenate(ranks)
                embeddings.append(
                    {
                        "embedding": kind,
                        "score": score,
                        **_summary(translated, ranks, groups),
                    }
                )
        results.append({**model.describe(), "embeddings": embeddings})
    return {
        "analysis": "word_translation",
        "corpus": {"folder": corpus.folder, "fingerprint": corpus.fingerprint},
        "settings": dataclasses.asdict(settings),
        "pairs": [
            {
                "languages": "-".join(entry.languages),
                "sentences": entry.sentences,
                "items": len(entry.pairs),
                "candidates": [len(own) for own in entry.candidates],
                "random_order": float(
                    np.mean([_random_order(len(own)) for own in entry.candidates])
                ),
            }
            for entry in translated
        ],
        "items": [
            [*map(vocabulary.id_to_piece, pair), "-".join(entry.languages)]
            for entry in translated
            for pair in entry.pairs.tolist()
        ],
        "groups": groups.tolist(),
        "models": results,
        "arrays": arrays,
    }


def show(result: dict[str, Any]) -> None:
    """Prints the pairs of languages, and a line per embedding and score."""
    pairs = result["pairs"]
    console.table(
        "Pieces that translate each other in the training text",
        ["languages", "sentences", "pairs", "candidates", "MRR of a random order"],
        [
            [
                *(entry[name] for name in ("languages", "sentences", "items")),
                "; ".join(f"{count:,}" for count in entry["candidates"]),
                f"{entry['random_order']:.1f}",
            ]
            for entry in pairs
        ],
    )
    rows = [
        [
            *(model["name"], entry["embedding"], SCORES[entry["score"]]),
            "{:.1f} ({:.1f}-{:.1f})".format(entry["mrr"], *entry["interval"]),
            *(f"{entry['pairs'][own['languages']]:.1f}" for own in pairs),
        ]
        for model in result["models"]
        for entry in model["embeddings"]
    ]
    console.table(
        "Translation of words by embeddings, MRR x 100 (95% interval) of "
        f"{len(result['items']):,} pairs",
        ["model", "embedding", "score", "all", *(own["languages"] for own in pairs)],
        rows,
    )


def plot(result: dict[str, Any], stem: str) -> list[str]:
    """A panel per score, a row per model; writes `stem`.png and `stem`.svg."""
    models = result["models"]
    figure, panels = plots.grid(
        1, len(SCORES), 3.6, 1.0 + 0.36 * len(models), sharey=True
    )
    for axes, (score, name) in zip(panels[0], SCORES.items(), strict=True):
        labelled = set()
        for place, model in enumerate(models):
            for entry in model["embeddings"]:
                if entry["score"] != score:
                    continue
                kind = entry["embedding"]
                colour, marker, shift = _LOOK[kind]
                low, high = entry["interval"]
                axes.errorbar(
                    [entry["mrr"]],
                    [place + shift],
                    xerr=[[entry["mrr"] - low], [high - entry["mrr"]]],
                    fmt=marker,
                    color=colour,
                    label=None if kind in labelled else f"{kind} embedding",
                )
                labelled.add(kind)
        axes.set_yticks(range(len(models)), [model["name"] for model in models])
        axes.set_ylim(len(models) - 0.4, -0.6)
        axes.set_xlim(left=0)
        axes.set_title(name, size=9)
        axes.set_xlabel("MRR x 100", fontsize=9)
        plots.tidy(axes, grid="x")
    title = "Translation of words by embeddings; bars: 95%"
    plots.title_and_legend(figure, panels[0][0], title)
    return plots.save(figure, stem)


class _Side(NamedTuple):
    """A language: the ids of the queries and of the candidates, and their rows."""

    ids: np.ndarray
    candidates: np.ndarray
    asking: np.ndarray
    frequent: np.ndarray


def _one_direction(own: _Side, other: _Side) -> np.ndarray:
    """Reciprocal ranks, float64 [pairs], of the other side's pieces."""
    found = np.zeros(len(own.ids))
    for start in range(0, len(own.ids), _BLOCK):
        block = slice(start, start + _BLOCK)
        scores = own.asking[block] @ other.frequent.T
        scores[own.ids[block, None] == other.candidates] = -np.inf
        right = np.searchsorted(other.candidates, other.ids[block])
        translation = scores[np.arange(len(scores)), right][:, None]
        better = (scores > translation).sum(1)
        # The translation itself is not counted.
        equal = (scores == translation).sum(1) - 1
        found[block] = 1 / (1 + better + equal / 2)
    return found


def _unit(rows) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths == 0, 1, lengths)


def _summary(translated, ranks, groups) -> dict[str, Any]:
    together = 100 * np.concatenate(ranks).astype(np.float64)
    return {
        "mrr": float(together.mean()),
        "interval": mean_interval(together, groups),
        "pairs": {
            "-".join(entry.languages): 100 * float(own.mean())
            for entry, own in zip(translated, ranks, strict=True)
        },
    }


def _random_order(candidates: int) -> float:
    """The mean of the reciprocals of all ranks, x 100."""
    return float(100 * np.mean(1 / np.arange(1, candidates + 1)))
