"""Alpha-smoothed sampling of languages, as pure functions.

Source: paper appendix A.1 (alpha 0.5), after multilingual BERT and XLM.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping


def language_probabilities(counts: Mapping[str, int], alpha: float) -> dict[str, float]:
    """Probability of each language: (its share of the sentences) ** alpha, normalised.

    Args:
      counts: language -> sentences; languages with none get probability 0.
      alpha: 1 keeps the natural shares, 0 makes all non-empty languages equal.

    Raises:
      ValueError: a count is negative or all are zero.
    """
    total = sum(counts.values())
    if total <= 0 or min(counts.values()) < 0:
        raise ValueError(f"no sentences to sample from: {dict(counts)}")
    weights = {
        language: (count / total) ** alpha if count else 0.0
        for language, count in counts.items()
    }
    norm = sum(weights.values())
    return {language: weight / norm for language, weight in weights.items()}


def sample_sizes(
    counts: Mapping[str, int], alpha: float, max_sentences: int
) -> dict[str, int]:
    """How many sentences of each language make a smoothed sample.

    The sample has as many sentences as there are, at most `max_sentences`, up to
    rounding; a language that has any gets at least one.
    """
    total = min(sum(counts.values()), max_sentences)
    probabilities = language_probabilities(counts, alpha)
    return {
        language: max(1, round(total * probability)) if counts[language] else 0
        for language, probability in probabilities.items()
    }


def smoothed_sample(
    counts: Mapping[str, int],
    sentences: Callable[[str], Iterable[str]],
    alpha: float,
    max_sentences: int,
    seed: int,
) -> Iterator[str]:
    """Yields a smoothed sample, language after language, in the order of the text.

    A language that is to give more than it has is repeated whole as often as fits; the
    rest is drawn without replacement. Nothing is held in memory, and the same arguments
    give the same sample.

    Args:
      sentences: language -> a fresh pass over its `counts[language]` sentences.
    """
    sizes = sample_sizes(counts, alpha, max_sentences)
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
