"""How often each language is drawn: shares, limits, samples, and a table of them.

Source: paper A.7 (alpha 0.5, for RemBERT), after multilingual BERT and XLM. This module
adds weights and limits on epochs; `SamplingConfig` explains them.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from decoupled.configs import EVERY_LANGUAGE, SamplingConfig
from decoupled.core import console
from decoupled.core.errors import UserError

# Tolerance for rounding errors in sums of shares.
_TOLERANCE = 1e-9
# A table of more languages than this shows the largest and the smallest of them.
_LARGEST, _SMALLEST = 8, 4


def language_probabilities(counts: Mapping[str, int], alpha: float) -> dict[str, float]:
    """Probability of each language: (its share of the sentences) ** alpha, normalised.

    A language without sentences gets 0. `alpha` = 1 keeps the natural shares, 0 makes
    all others equal. One language must have sentences.
    """
    total = sum(counts.values())
    weights = {
        language: (count / total) ** alpha if count else 0.0
        for language, count in counts.items()
    }
    norm = sum(weights.values())
    return {language: weight / norm for language, weight in weights.items()}


def bounded_shares(
    shares: Mapping[str, float], lower: Mapping[str, float], upper: Mapping[str, float]
) -> dict[str, float]:
    """The given shares, moved into bounds with as little change of ratios as possible.

    Each result is clip(scale * share, lower, upper), with the scale that makes the sum
    1 (water-filling). So languages that are not at a bound keep their ratios, and
    shares within their bounds stay as they are.

    Args:
      shares: language -> share, not negative, sum 1.
      lower, upper: language -> bounds of its share, 0 <= lower <= upper <= infinity.
        They allow shares that sum to 1.
    """
    if all(lower[name] <= shares[name] <= upper[name] for name in shares):
        return dict(shares)

    def scaled(scale: float) -> dict[str, float]:
        # A share of 0 is moved to its lower bound (0 * infinity would be NaN).
        return {
            name: min(max(scale * share, lower[name]), upper[name])
            if share
            else lower[name]
            for name, share in shares.items()
        }

    return scaled(_last_scale(lambda scale: sum(scaled(scale).values()) <= 1))


def _last_scale(holds: Callable[[float], bool]) -> float:
    """The largest scale for which `holds`; it holds from 0 up to some scale."""
    low, high = 0.0, 1.0
    while holds(high):
        if math.isinf(high):
            return high
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def language_shares(
    sentences: Mapping[str, int],
    sampling: SamplingConfig,
    epoch: Mapping[str, int],
    total: int,
    unit: str,
) -> dict[str, float]:
    """The share of each language among the draws; see `SamplingConfig`.

    Args:
      sentences: language -> the counts that alpha smooths; 0 gives a share of 0.
      epoch: language -> the number of draws that make one epoch of its text.
      total: the number of draws of the run.

    Raises UserError for unknown languages, and for limits that cannot be met.
    """
    _check_names(sentences, sampling)
    shares = _weighted(language_probabilities(sentences, sampling.alpha), sampling)
    if not sampling.limits_epochs:
        return shares
    lower, upper = _bounds(shares, sampling, epoch, total)
    _check_bounds(lower, upper, total, unit)
    return bounded_shares(shares, lower, upper)


def _weighted(shares: Mapping[str, float], sampling: SamplingConfig):
    weights = sampling.weights
    if weights is None:
        return dict(shares)
    drawn = [name for name, share in shares.items() if share]
    named = sum(weights.values())
    others = sum(shares[name] for name in drawn if name not in weights)
    if not others and not named:
        raise UserError(
            "SamplingConfig.weights: all are 0; give one language more than 0"
        )
    if not others:
        return {name: weights.get(name, 0.0) / named for name in shares}
    if named >= 1:
        missing = [name for name in drawn if name not in weights]
        raise UserError(
            f"SamplingConfig.weights: they sum to {named:g} and leave nothing to "
            f"{missing[0]!r}, the first of {len(missing)} languages not named; make "
            "their sum less than 1, or name every language"
        )
    return {
        name: weights[name] if name in weights else (1 - named) * share / others
        for name, share in shares.items()
    }


def _check_names(sentences: Mapping[str, int], sampling: SamplingConfig) -> None:
    for field in ("weights", "min_epochs", "max_epochs"):
        values = getattr(sampling, field)
        for name, value in values.items() if isinstance(values, dict) else ():
            if name not in sentences and name != EVERY_LANGUAGE:
                known = ", ".join(sorted(sentences)[:8])
                raise UserError(
                    f"SamplingConfig.{field}: no language {name!r} in the data, which "
                    f"have {known}{', ...' if len(sentences) > 8 else ''}"
                )
            if value and not sentences.get(name, 1):
                raise UserError(f"SamplingConfig.{field}: {name!r} has no text to draw")


def _bounds(
    shares: Mapping[str, float],
    sampling: SamplingConfig,
    epoch: Mapping[str, int],
    total: int,
) -> tuple[dict[str, float], dict[str, float]]:
    """The limits on epochs as limits on shares; 0 for languages that are not drawn."""
    lower, upper = {}, {}
    for name, share in shares.items():
        least, most = sampling.epochs_of(name)
        lower[name] = least * epoch[name] / total if share else 0.0
        upper[name] = most * epoch[name] / total if share else 0.0
    return lower, upper


def _check_bounds(
    lower: Mapping[str, float], upper: Mapping[str, float], total: int, unit: str
) -> None:
    least, most = sum(lower.values()), sum(upper.values())
    if least > 1 + _TOLERANCE:
        raise UserError(
            f"SamplingConfig.min_epochs: the minima need {least * total:,.0f} {unit} "
            f"and there are {total:,} to draw; lower them or draw more"
        )
    if most < 1 - _TOLERANCE:
        raise UserError(
            f"SamplingConfig.max_epochs: the maxima allow {most * total:,.0f} {unit} "
            f"and there are {total:,} to draw; raise them or draw fewer"
        )


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
    total = min(sum(counts.values()), max_sentences, _most_sentences(counts, sampling))
    while True:
        shares = language_shares(counts, sampling, counts, total, "sentences")
        if math.isinf(max_bytes):
            break
        size = total * sum(shares[name] * sentence_bytes[name] for name in shares)
        if size <= max_bytes or total == 1:
            break
        total = max(1, min(total - 1, math.floor(total * max_bytes / size)))
    return {
        name: max(1, round(total * share)) if share else 0
        for name, share in shares.items()
    }


def _most_sentences(counts: Mapping[str, int], sampling: SamplingConfig) -> float:
    weights = sampling.weights or {}
    drawn = [name for name in counts if counts[name] and weights.get(name) != 0]
    most = sum(sampling.epochs_of(name)[1] * counts[name] for name in drawn)
    return most if math.isinf(most) else max(1, math.floor(most))


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
        repeats, rest = divmod(sizes[language], counts[language])
        chosen = _chosen(counts[language], rest, f"{seed}/{language}")
        for sentence, extra in zip(sentences(language), chosen, strict=False):
            for _ in range(repeats + extra):
                yield sentence


def _chosen(population: int, size: int, seed: str) -> Iterator[bool]:
    """Selection sampling (Knuth, The Art of Computer Programming, 3.4.2, S)."""
    rng = random.Random(seed)
    for left in range(population, 0, -1):
        take = rng.random() * left < size
        size -= take
        yield take


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
    """A row per language, most sentences first; arguments as of `language_shares`."""
    everything = sum(sentences.values())
    rows = [
        LanguageRow(
            language=name,
            sentences=count,
            share=count / everything,
            drawn=shares[name],
            epochs=shares[name] * total / epoch[name] if shares[name] else 0.0,
        )
        for name, count in sentences.items()
    ]
    return sorted(rows, key=lambda row: (-row.sentences, row.language))


def print_rows(title: str, rows: list[LanguageRow]) -> None:
    """Prints the table; of many languages, the largest, the smallest and a summary."""
    shown = [list(row) for row in rows]
    if len(rows) > _LARGEST + _SMALLEST:
        middle = rows[_LARGEST:-_SMALLEST]
        shown[_LARGEST:-_SMALLEST] = [_summary(middle)]
    for row in shown:
        row[2:4] = [f"{100 * share:.3g}%" for share in row[2:4]]
    columns = ["language", "sentences", "share", "drawn", "epochs"]
    console.table(title, columns, shown)


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
