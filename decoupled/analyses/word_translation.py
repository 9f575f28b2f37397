"""Do the rows of the input and the output embedding translate words?

Two pieces of the vocabulary that are whole words translate each other if each has its
highest Dice coefficient with the other, in the training sentences of two languages.
Equal pieces, such as names, are left out. Each piece of a pair is a query for the other
among the frequent whole words of the other language, by dot product and by cosine.
Prints the mean reciprocal rank x 100 of both directions with its 95% interval.

  decoupled analyze word_translation --model_dir=runs/e_out_128 \\
      --model_dir=runs/e_out_768 --corpus_dir=data/corpus --output_dir=results

--corpus_dir is a corpus of parallel text, such as one that
`decoupled build_corpus --source=aligned:FOLDER` wrote. word_translation.items.npz has
the reciprocal rank of every pair.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import describe, open_models
from decoupled.analyses.output import Line, Panel, Picture, Table, with_interval
from decoupled.analyses.translated_pieces import (
    TranslatedPieces,
    translated_pieces,
    word_groups,
)
from decoupled.configs.analyses import WordTranslationSettings
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.corpora.corpus import Corpus
from decoupled.metrics.neighbours import mean_interval
from decoupled.runs.saved_run import INPUT, OUTPUT, Model

SCORES = {"dot": "dot product", "cosine": "cosine"}
# Number of queries that are ranked at once.
_BLOCK = 1024


def run(flags: Any, settings: WordTranslationSettings) -> dict[str, Any]:
    """The result of the command's flags."""
    models = open_models(flags.model_dir)
    return measure(models, Corpus(flags.corpus_dir), settings)


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
    models: Sequence[Model], corpus: Corpus, settings: WordTranslationSettings
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
      `describe`, with `embeddings`, a list of entries with `embedding`,
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
        results.append({**describe(model), "embeddings": embeddings})
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


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """The pairs of languages, and a line per embedding and score."""
    pairs = result["pairs"]
    yield Table(
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
    languages = [entry["languages"] for entry in pairs]
    yield Table(
        "Translation of words by embeddings, MRR x 100 (95% interval) of "
        f"{len(result['items']):,} pairs",
        ["model", "embedding", "score", "all", *languages],
        [
            [
                *(model["name"], entry["embedding"], SCORES[entry["score"]]),
                with_interval(entry["mrr"], entry["interval"]),
                *(f"{entry['pairs'][name]:.1f}" for name in languages),
            ]
            for model in result["models"]
            for entry in model["embeddings"]
        ],
    )


def picture(result: dict[str, Any]) -> Picture:
    """A panel per score, a row per model."""

    def line(score, kind):
        entries = [
            (place, entry)
            for place, model in enumerate(result["models"])
            for entry in model["embeddings"]
            if (entry["score"], entry["embedding"]) == (score, kind)
        ]
        return Line(
            f"{kind} embedding",
            [entry["mrr"] for _, entry in entries],
            [place for place, _ in entries],
            [entry["interval"][0] for _, entry in entries],
            [entry["interval"][1] for _, entry in entries],
        )

    panels = [
        Panel(
            [line(score, kind) for kind in (INPUT, OUTPUT)],
            "MRR x 100",
            title=title,
            rows=[model["name"] for model in result["models"]],
            from_zero=True,
        )
        for score, title in SCORES.items()
    ]
    return Picture("Translation of words by embeddings; bars: 95%", [panels])


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
