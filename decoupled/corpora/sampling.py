"""How often each language is drawn: shares, samples, and a table of them.

Source: paper A.7 (alpha 0.5, for RemBERT), after multilingual BERT and XLM. This module
adds weights; `SamplingConfig` explains them.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from decoupled.configs import SamplingConfig
from decoupled.core import console
from decoupled.core.errors import UserError

# A table of more languages than this shows the largest and the smallest of them.
_LARGEST, _SMALLEST = 8, 4


def language_probabilities(counts: Mapping[str, int], alpha: float) -> dict[str, float]:
    """Probability of each language: (its share of the sentences) ** alpha, normalised.

    A language without sentences gets 0. `alpha` = 1 keeps the natural shares, 0 makes
    all others equal. At least one language must have sentences.
    """
    total = sum(counts.values())
    weights = {
        language: (count / total) ** alpha if count else 0.0
        for language, count in counts.items()
    }
    norm = sum(weights.values())
    return {language: weight / norm for language, weight in weights.items()}


def language_shares(
    sentences: Mapping[str, int], sampling: SamplingConfig
) -> dict[str, float]:
    """The share of each language among the draws; see `SamplingConfig`.

    sentences: language -> the counts that alpha smooths; 0 gives a share of 0.

    Raises UserError for weights that do not fit the languages.
    """
    for name, weight in (sampling.weights or {}).items():
        if name not in sentences:
            languages = ", ".join(sorted(sentences)[:8])
            raise UserError(
                f"SamplingConfig.weights: no language {name!r} in the data, which "
                f"have {languages}{', ...' if len(sentences) > 8 else ''}"
            )
        if weight and not sentences[name]:
            raise UserError(f"SamplingConfig.weights: {name!r} has no text to draw")
    return _weighted(language_probabilities(sentences, sampling.alpha), sampling)


def _weighted(shares: Mapping[str, float], sampling: SamplingConfig):
    weights = sampling.weights
    if weights is None:
        return dict(shares)
    other_languages = [x for x, share in shares.items() if share and x not in weights]
    weight_sum = sum(weights.values())
    share_sum = sum(shares[name] for name in other_languages)
    if not share_sum and not weight_sum:
        raise UserError(
            "SamplingConfig.weights: all are 0; give one language more than 0"
        )
    if not share_sum:
        return {name: weights.get(name, 0.0) / weight_sum for name in shares}
    if weight_sum >= 1:
        raise UserError(
            f"SamplingConfig.weights: they sum to {weight_sum:g} and leave nothing to "
            f"{other_languages[0]!r}, the first of {len(other_languages)} languages "
            "not named; make their sum less than 1, or name every language"
        )
    return {
        name: weights[name] if name in weights else (1 - weight_sum) * share / share_sum
        for name, share in shares.items()
    }


def sample_sizes(
    counts: Mapping[str, int],
    sampling: SamplingConfig,
    max_sentences: int,
    sentence_bytes: Mapping[str, float] | None = None,
    max_bytes: float = math.inf,
) -> dict[str, int]:
    """The number of sentences of each language in a sample.

    The sample has all sentences, or `max_sentences` if there are more, and at most
    about `max_bytes`. A language that is drawn gets at least one sentence.
    `sentence_bytes`, the mean length of sentences, is only needed with `max_bytes`.

    Raises:
      UserError: as `language_shares`.
    """
    total = min(sum(counts.values()), max_sentences)
    shares = language_shares(counts, sampling)
    if not math.isinf(max_bytes):
        size = total * sum(shares[name] * sentence_bytes[name] for name in shares)
        if size > max_bytes:
            total = max(1, math.floor(total * max_bytes / size))
    return {
        name: max(1, round(total * share)) if share else 0
        for name, share in shares.items()
    }


def draw_sample(
    counts: Mapping[str, int],
    sentences: Callable[[str], Iterable[str]],
    sizes: Mapping[str, int],
    seed: int,
) -> Iterator[str]:
    """Yields a sample, language after language, in the order of the text.

    If a language needs more sentences than it has, all its sentences are repeated as
    often as fits, and the rest is drawn without replacement. Nothing is kept in memory,
    and the same arguments give the same sample.
    """
    for language in sorted(sizes):
        if not sizes[language]:
            continue
        repeats, remainder = divmod(sizes[language], counts[language])
        selection = _selection(counts[language], remainder, f"{seed}/{language}")
        for sentence, extra in zip(sentences(language), selection, strict=False):
            for _ in range(repeats + extra):
                yield sentence


def _selection(population: int, size: int, seed: str) -> Iterator[bool]:
    """Selection sampling (Knuth, The Art of Computer Programming, 3.4.2, S)."""
    rng = random.Random(seed)
    for remaining_size in range(population, 0, -1):
        is_taken = rng.random() * remaining_size < size
        size -= is_taken
        yield is_taken


class LanguageRow(NamedTuple):
    """One language of a run or a sample.

    sentences: available ones. share: of all sentences. drawn: share of the draws.
    epochs: how often its text is seen on average.
    """

    language: str
    sentences: int
    share: float
    drawn: float
    epochs: float


def language_rows(
    sentences: Mapping[str, int],
    shares: Mapping[str, float],
    epoch: Mapping[str, int],
    total: int,
) -> list[LanguageRow]:
    """A row per language, most sentences first.

    epoch: language -> the number of draws that make one epoch of its text.
    total: the number of draws.
    """
    total_sentences = sum(sentences.values())
    rows = [
        LanguageRow(
            language=name,
            sentences=count,
            share=count / total_sentences,
            drawn=shares[name],
            epochs=shares[name] * total / epoch[name] if shares[name] else 0.0,
        )
        for name, count in sentences.items()
    ]
    return sorted(rows, key=lambda row: (-row.sentences, row.language))


def print_rows(title: str, rows: list[LanguageRow]) -> None:
    """Prints the table; of many languages, the largest, the smallest and a summary."""
    table_rows = [list(row) for row in rows]
    if len(rows) > _LARGEST + _SMALLEST:
        middle_rows = rows[_LARGEST:-_SMALLEST]
        table_rows[_LARGEST:-_SMALLEST] = [_summary(middle_rows)]
    for row in table_rows:
        row[2:4] = [f"{100 * share:.3g}%" for share in row[2:4]]
    columns = ["language", "sentences", "share", "drawn", "epochs"]
    console.table(title, columns, table_rows)


def as_json(rows: list[LanguageRow]) -> dict[str, dict[str, Any]]:
    """Language -> its row."""
    return {
        row.language: {
            "sentences": row.sentences,
            "share": round(row.share, 9),
            "drawn": round(row.drawn, 9),
            "epochs": round(row.epochs, 6),
        }
        for row in rows
    }


def _summary(rows: list[LanguageRow]) -> list[Any]:
    epochs = [row.epochs for row in rows]
    return [
        f"{len(rows)} more",
        sum(row.sentences for row in rows),
        sum(row.share for row in rows),
        sum(row.drawn for row in rows),
        f"{min(epochs):.4g} to {max(epochs):.4g}",
    ]
