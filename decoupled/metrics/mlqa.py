"""Exact match and F1 of answers as of MLQA, whose rules depend on the language.

The rules are those of MLQA's published script. Punctuation is Unicode's; articles are
those of the language; Chinese characters are words of their own. The script has no
rules for other languages: there no word is an article, and white space parts words. A
language with a region or a script (zh-TW) has the rules of the language itself.
"""

import functools
import re
import string
import unicodedata
from collections.abc import Iterable, Mapping

from decoupled.metrics.squad import Question, answer_scores

_ARTICLES = {
    "en": r"\b(?:a|an|the)\b",
    "es": r"\b(?:un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(?:của|là|cái|chiếc|những)\b",
    "de": r"\b(?:ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    # The article is a prefix. The script takes it out wherever the two letters stand,
    # also within a word.
    "ar": "ال",
    "hi": None,
    "zh": None,
}
_CHINESE = re.compile("([\u4e00-\u9fa5])")

LANGUAGES = tuple(_ARTICLES)


def words(answer: str, language: str) -> list[str]:
    """The words of an answer that count."""
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
    """Exact match and F1 in percent; see `squad_scores`.

    Raises:
      ValueError: there are no questions, or one has no right answer.
    """
    to_words = functools.partial(words, language=language)
    return answer_scores(questions, predictions, to_words)


@functools.lru_cache(maxsize=1 << 16)
def _is_punctuation(character: str) -> bool:
    category = unicodedata.category(character)
    return category.startswith("P") or character in string.punctuation
