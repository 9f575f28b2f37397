"""Exact match and F1 of answers, by the rules of SQuAD 1.1 and by those of MLQA.

SQuAD (XQuAD and TyDiQA-GoldP): the rules are those of its published script. They are
English for every language: text is lowercased, ASCII punctuation and English articles
are removed, and words are separated by white space.

MLQA: the rules are those of its published script and depend on the language.
Punctuation is Unicode's, articles are those of the language, and each Chinese character
is a word. The script has no rules for other languages: there no word is an article, and
words are separated by white space. A language with a region or a script (zh-TW) has the
rules of the language itself.
"""

import collections
import functools
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence

from decoupled.metrics.labels import count_scores

Question = tuple[str, Sequence[str]]

_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = {
    "en": r"\b(?:a|an|the)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    # The article is a prefix. The script removes the two letters everywhere, even
    # within a word.
    "ar": "ال",
}
_CHINESE = re.compile("([\u4e00-\u9fa5])")


def squad_words(answer: str) -> list[str]:
    """The words of an answer that SQuAD's script compares."""
    text = answer.lower().translate(_WITHOUT_PUNCTUATION)
    return re.sub(_ARTICLES["en"], " ", text).split()


def squad_scores(
    questions: Iterable[Question],
    predictions: Mapping[str, str],
    to_words: Callable[[str], list[str]] = squad_words,
) -> dict[str, float]:
    """Exact match and F1 in percent; a question without an answer scores 0.

    Each is the maximum over the right answers, whose words `to_words` gives.
    """
    matches = count = 0
    f1 = 0.0
    for identifier, answers in questions:
        count += 1
        if identifier not in predictions:
            continue
        words = to_words(predictions[identifier])
        answer_words = [to_words(answer) for answer in answers]
        matches += max(words == answer for answer in answer_words)
        f1 += max(_word_f1(words, answer) for answer in answer_words)
    if not count:
        raise ValueError("no questions")
    return {"exact_match": 100.0 * matches / count, "f1": 100.0 * f1 / count}


def _word_f1(predicted_words: Sequence[str], right_words: Sequence[str]) -> float:
    """F1 of two bags of words, 0 to 1; 0 if they share no word or both are empty."""
    common = collections.Counter(predicted_words) & collections.Counter(right_words)
    return count_scores(common.total(), len(predicted_words), len(right_words))["f1"]


def mlqa_words(answer: str, language: str) -> list[str]:
    """The words of an answer that MLQA's script compares."""
    language = re.split("[-_]", language)[0]
    articles = _ARTICLES.get(language)
    text = "".join(c for c in answer.lower() if not _is_punctuation(c))
    if articles is not None:
        text = re.sub(articles, " ", text)
    if language == "zh":
        text = _CHINESE.sub(r" \1 ", text)
    return text.split()


def mlqa_scores(
    questions: Iterable[Question], predictions: Mapping[str, str], language: str
) -> dict[str, float]:
    """As `squad_scores`, by the rules of MLQA for the language."""
    to_words = functools.partial(mlqa_words, language=language)
    return squad_scores(questions, predictions, to_words)


@functools.lru_cache(maxsize=1 << 16)
def _is_punctuation(character: str) -> bool:
    category = unicodedata.category(character)
    return category.startswith("P") or character in string.punctuation
