"""Scores of tag sequences: entities (PAN-X) and parts of speech (UD-POS).

XTREME measures both with seqeval's F1, though parts of speech have no entities. What
seqeval makes of a bare tag such as NOUN has changed between its releases:

* 0.0.12, of XTREME's time, takes a run of equal tags for an entity; SCONJ and SYM stand
  alone, as S marks an entity of one word. The values that XTREME's own tests expect for
  its mock data are of this kind.
* 1.2.2 takes the first letter away as a prefix, so that nothing is left of X and _, and
  one of them before the end of a sentence is lost.

For entities (B-PER, I-PER, O) the two agree.
"""

import warnings
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

Sentences = Sequence[Sequence[str]]
Span = tuple[str, int, int]

_OUTSIDE = "O"


def entity_scores(labels: Sentences, predictions: Sentences) -> dict[str, float]:
    """F1, precision and recall of entities in percent, by seqeval 1.2.2.

    Args:
      labels, predictions: sentences of the same lengths; a tag a word, B-TYPE, I-TYPE
        or O.

    Raises:
      ValueError: the lengths differ, or there are no sentences.
    """
    if not labels:
        raise ValueError("no sentences")
    from seqeval.metrics.sequence_labeling import precision_recall_fscore_support

    with warnings.catch_warnings():
        # A tag that is none of an entity, and a precision of nothing.
        warnings.simplefilter("ignore")
        precision, recall, f1, _ = precision_recall_fscore_support(
            [list(tags) for tags in labels],
            [list(tags) for tags in predictions],
            average="micro",
        )
    return _percent(float(f1), float(precision), float(recall))


def part_of_speech_scores(
    labels: Sentences, predictions: Sentences
) -> dict[str, float]:
    """Scores of parts of speech in percent.

    Args:
      labels, predictions: sentences of the same lengths; a tag a word.

    Returns:
      `f1`, `precision`, `recall`: of runs of equal tags, the official score;
      `accuracy`: share of words whose tag is right;
      `f1_seqeval_1_2_2`: what XTREME's script prints with that release.

    Raises:
      ValueError: the lengths differ, or there are no words.
    """
    right = total = 0
    for wanted, found in zip(labels, predictions, strict=True):
        right += sum(a == b for a, b in zip(wanted, found, strict=True))
        total += len(wanted)
    if not total:
        raise ValueError("no words")
    return {
        **run_scores(labels, predictions),
        "accuracy": right / total * 100,
        "f1_seqeval_1_2_2": entity_scores(labels, predictions)["f1"],
    }


def run_scores(labels: Sentences, predictions: Sentences) -> dict[str, float]:
    """F1, precision and recall in percent of spans by the rules of seqeval 0.0.12."""
    wanted, found = set(spans(labels)), set(spans(predictions))
    right = len(wanted & found)
    precision = right / len(found) if found else 0.0
    recall = right / len(wanted) if wanted else 0.0
    both = precision + recall
    return _percent(2 * precision * recall / both if both else 0.0, precision, recall)


def spans(sentences: Sentences) -> Iterator[Span]:
    """(type, first, last) of the spans in sentences, by the rules of seqeval 0.0.12.

    Words are numbered on through all sentences, with one number between two of them.
    The first letter of a tag is its role (B, I, E, S, O or, for parts of speech, any),
    what follows the last hyphen its type.
    """
    tags = chain.from_iterable([*sentence, _OUTSIDE] for sentence in sentences)
    parts = [(tag[0], tag.rpartition("-")[2]) for tag in (*tags, _OUTSIDE)]
    first = 0
    for position, (previous, current) in enumerate(pairwise([(_OUTSIDE, ""), *parts])):
        if _ends(previous, current):
            yield previous[1], first, position - 1
        if _starts(previous, current):
            first = position


def _ends(previous: tuple[str, str], current: tuple[str, str]) -> bool:
    """Whether a span ends with the previous (role, type)."""
    (before, type_before), (now, type_now) = previous, current
    if before in "ES" or (before in "BI" and now in "BSO"):
        return True
    return before not in "O." and type_before != type_now


def _starts(previous: tuple[str, str], current: tuple[str, str]) -> bool:
    """Whether a span starts with the current (role, type)."""
    (before, type_before), (now, type_now) = previous, current
    if now in "BS" or (before in "ESO" and now in "EI"):
        return True
    return now not in "O." and type_before != type_now


def _percent(f1, precision, recall):
    return {"f1": f1 * 100, "precision": precision * 100, "recall": recall * 100}
