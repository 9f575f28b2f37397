"""What a probe must beat: rules that see labels and words, and no vectors.

A probe on vectors can tell words apart, and most words have one part of speech. Only
what lies above the lookup of words is knowledge of the sentence.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoupled.analyses.probing.frozen_vectors import ProbingData
from decoupled.analyses.probing.probe import Score, micro_score
from decoupled.analyses.probing.task_files import Example, Span, Target


class Baseline(NamedTuple):
    """score: of one label for each target. hits: bool [targets], which are right."""

    score: Score
    hits: np.ndarray


def majority(train: Sequence[Example], there: Sequence[Target]) -> Baseline:
    """Always the most frequent label of the training data."""
    [(most, _)] = _labels(train).most_common(1)
    return _baseline([most] * len(there), there)


def word_lookup(
    train: Sequence[Example], examples: Sequence[Example], data: ProbingData
) -> Baseline:
    """The most frequent label of the target's words in the training data.

    Targets with two spans are looked up by the words of both; a pair that is not in the
    training data by the words of the first span alone. Unknown words have the most
    frequent label of all. Of equally frequent labels it is the one that comes first.

    Args:
      train: all of it. examples: of the split. data: which targets of it are scored.
    """
    [(most, _)] = _labels(train).most_common(1)
    by_words: defaultdict[tuple, Counter[str]] = defaultdict(Counter)
    for words, targets in train:
        for target in targets:
            for key in _keys(words, target):
                by_words[key].update(target.labels)
    said = []
    for sentence, place in data.places:
        words, targets = examples[sentence]
        known = [key for key in _keys(words, targets[place]) if key in by_words]
        said.append(by_words[known[0]].most_common(1)[0][0] if known else most)
    return _baseline(said, scored_targets(examples, data))


def scored_targets(examples: Sequence[Example], data: ProbingData) -> list[Target]:
    """The targets of a split that are within the length."""
    return [examples[sentence].targets[place] for sentence, place in data.places]


def _labels(examples: Sequence[Example]) -> Counter[str]:
    return Counter(
        label for _, targets in examples for t in targets for label in t.labels
    )


def _keys(words: list[str], target: Target) -> list[tuple]:
    """What a target is looked up by, the first choice first."""

    def text(span: Span) -> tuple[str, ...]:
        return tuple(words[slice(*span)])

    first = text(target.span1)
    if target.span2 is None:
        return [(first,)]
    return [(first, text(target.span2)), (first,)]


def _baseline(said: Sequence[str], there: Sequence[Target]) -> Baseline:
    hits = [label in t.labels for label, t in zip(said, there, strict=True)]
    labels = sum(len(target.labels) for target in there)
    score = micro_score(sum(hits), len(said), labels, len(there))
    return Baseline(score, np.array(hits))
