"""Scores of labels for texts (XNLI, PAWS-X, Tatoeba) and for words (PAN-X, UD-POS).

F1 is computed here alone, also that of pairs of sentences (BUCC), answers and probes.

XTREME measures both tagging tasks with seqeval's F1, although parts of speech have no
entities. Releases of seqeval treat a bare tag such as NOUN differently:

* 0.0.12, the release of XTREME's time, counts a run of equal tags as an entity. SCONJ
  and SYM are always entities of one word, because S marks such an entity. XTREME's own
  tests expect these values for its mock data.
* 1.2.2 removes the first letter as a prefix. X and _ lose their whole name, and one of
  them before the end of a sentence is lost.

For entities (B-PER, I-PER, O) the two agree. They read malformed entities as CoNLL's
script does: an I-PER that follows no PER begins an entity.

Both rules are implemented here, so that scoring needs no other package;
tests/metrics/test_labels.py compares them with seqeval 1.2.2 on random tags.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import chain, pairwise

Sentences = Sequence[Sequence[str]]
Span = tuple[str, int, int]

_OUTSIDE = "O"


def accuracy(labels: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """The share of predictions that are the label, in percent."""
    _check_counts(labels, predictions)
    right_count = sum(a == b for a, b in zip(labels, predictions, strict=True))
    return {"accuracy": right_count / len(labels) * 100}


def macro_f1(labels: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """The mean of the F1 of all labels of either side, in percent, as in scikit-learn's
    f1_score with average="macro"."""
    _check_counts(labels, predictions)
    label_counts, predicted_counts = Counter(labels), Counter(predictions)
    pairs = zip(labels, predictions, strict=True)
    right_counts = Counter(label for label, prediction in pairs if label == prediction)
    scores = [
        2 * right_counts[label] / (label_counts[label] + predicted_counts[label])
        for label in label_counts.keys() | predicted_counts.keys()
    ]
    return {"macro_f1": 100 * math.fsum(scores) / len(scores)}


def entity_scores(labels: Sentences, predictions: Sentences) -> dict[str, float]:
    """F1, precision and recall in percent of spans of any scheme, by the default of
    seqeval 1.2.2."""
    if not labels:
        raise ValueError("no sentences")
    _check_lengths(labels, predictions)
    return set_scores(
        spans(labels, _type_after_first_letter),
        spans(predictions, _type_after_first_letter),
    )


def part_of_speech_scores(
    labels: Sentences, predictions: Sentences
) -> dict[str, float]:
    """Scores of parts of speech in percent.

    `f1`, `precision` and `recall` are of runs of equal tags, the official score.
    `f1_seqeval_1_2_2` is what XTREME's script prints with that release.
    """
    words = (list(chain.from_iterable(side)) for side in (labels, predictions))
    return {
        **set_scores(spans(labels), spans(predictions)),
        **accuracy(*words),
        "f1_seqeval_1_2_2": entity_scores(labels, predictions)["f1"],
    }


def _type_after_last_hyphen(tag: str) -> str:
    """The type of a tag for seqeval 0.0.12: NOUN of NOUN."""
    return tag.rpartition("-")[2]


def _type_after_first_letter(tag: str) -> str:
    """The type of a tag for seqeval 1.2.2: OUN of NOUN, and _ of an empty rest."""
    return tag[1:].split("-", maxsplit=1)[-1] or "_"


def spans(
    sentences: Sentences, type_of: Callable[[str], str] = _type_after_last_hyphen
) -> Iterator[Span]:
    """(type, first, last) of the spans in sentences, by the rules of seqeval 0.0.12.

    Words are numbered through all sentences, with one unused number between sentences.
    The first letter of a tag is its role (B, I, E, S, O or, for parts of speech, any);
    `type_of` gives its type.
    """
    tags = chain.from_iterable([*sentence, _OUTSIDE] for sentence in sentences)
    parts = [(tag[0], type_of(tag)) for tag in (*tags, _OUTSIDE)]
    first = 0
    for position, (previous, current) in enumerate(pairwise([(_OUTSIDE, ""), *parts])):
        if _ends(previous, current):
            yield previous[1], first, position - 1
        if _starts(previous, current):
            first = position


def _ends(previous: tuple[str, str], current: tuple[str, str]) -> bool:
    (old_role, old_type), (new_role, new_type) = previous, current
    if old_role in "ES" or (old_role in "BI" and new_role in "BSO"):
        return True
    return old_role not in "O." and old_type != new_type


def _starts(previous: tuple[str, str], current: tuple[str, str]) -> bool:
    (old_role, old_type), (new_role, new_type) = previous, current
    if new_role in "BS" or (old_role in "ESO" and new_role in "EI"):
        return True
    return new_role not in "O." and old_type != new_type


def _check_counts(labels, predictions):
    if len(labels) != len(predictions) or not labels:
        raise ValueError(f"{len(labels)} labels, {len(predictions)} predictions")


def _check_lengths(labels, predictions):
    if [*map(len, labels)] != [*map(len, predictions)]:
        raise ValueError("labels and predictions have inconsistent lengths")


def set_scores(
    labels: Iterable[Hashable], predictions: Iterable[Hashable]
) -> dict[str, float]:
    """F1, precision and recall in percent of what is predicted, each thing once."""
    gold, answers = set(labels), set(predictions)
    shares = count_scores(len(gold & answers), len(answers), len(gold))
    return {name: 100 * share for name, share in shares.items()}


def count_scores(hits: int, predictions: int, labels: int) -> dict[str, float]:
    """F1, precision and recall, 0 to 1, from three counts; 0 instead of 0 / 0."""
    return {
        "f1": 2 * hits / max(1, predictions + labels),
        "precision": hits / max(1, predictions),
        "recall": hits / max(1, labels),
    }
