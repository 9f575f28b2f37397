"""Exact match and F1 of answers as of SQuAD 1.1: XQuAD and TyDiQA-GoldP.

The rules are those of SQuAD's published script, English in every language: text is
lowered, ASCII punctuation and English articles go, words are what white space parts.
"""

import collections
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence

Question = tuple[str, Sequence[str]]

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words(answer: str) -> list[str]:
    """The words of an answer that count."""
    text = answer.lower().translate(_WITHOUT_PUNCTUATION)
    return _ARTICLES.sub(" ", text).split()


def squad_scores(
    questions: Iterable[Question], predictions: Mapping[str, str]
) -> dict[str, float]:
    """Exact match and F1 in percent, as `{"exact_match": ..., "f1": ...}`.

    Args:
      questions: (id, its right answers, at least one) of each question.
      predictions: id -> answer; a question without one counts 0, others are not read.

    Raises:
      ValueError: there are no questions, or one has no right answer.
    """
    return answer_scores(questions, predictions, words)


def answer_scores(
    questions: Iterable[Question],
    predictions: Mapping[str, str],
    to_words: Callable[[str], list[str]],
) -> dict[str, float]:
    """As `squad_scores`, where `to_words` gives the words of an answer that count.

    Each metric takes the right answer that suits it best.
    """
    matches = count = 0
    f1 = 0.0
    for identifier, answers in questions:
        count += 1
        if identifier not in predictions:
            continue
        predicted = to_words(predictions[identifier])
        right = [to_words(answer) for answer in answers]
        matches += max(predicted == answer for answer in right)
        f1 += max(word_f1(predicted, answer) for answer in right)
    if not count:
        raise ValueError("no questions")
    return {"exact_match": 100.0 * matches / count, "f1": 100.0 * f1 / count}


def word_f1(predicted: Sequence[str], right: Sequence[str]) -> float:
    """F1 of two bags of words, 0 to 1; 0 where they share none, both empty included."""
    shared = (collections.Counter(predicted) & collections.Counter(right)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(right)
    return 2 * precision * recall / (precision + recall)
