"""Worker: a dump to clean sentences with this project, one process for each part."""

import collections
import multiprocessing

import leftovers
import protocol

from decoupled.corpora.sentences import clean_sentences
from decoupled.corpora.wikipedia.dump import read_articles
from decoupled.corpora.wikipedia.wikitext import article_paragraphs

LANGUAGE = "en"
MIN_CHARACTERS = 10


def read_part(path: str, part: int, parts: int) -> list[str]:
    """The sentences of a part of a dump."""
    drop_counts = collections.Counter()
    sentences = []
    for article in read_articles(path, drop_counts, part, parts):
        paragraphs = article_paragraphs(article.wikitext, drop_counts)
        sentences += clean_sentences(paragraphs, LANGUAGE, MIN_CHARACTERS, drop_counts)
    return sentences


def count_part(path: str, part: int, parts: int) -> int:
    """The characters of the sentences of a part of a dump."""
    return sum(map(len, read_part(path, part, parts)))


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds "path" and "processes"; a step reads the dump once. The facts are
    about the text of "sample", a smaller dump."""
    parts = case["processes"]
    arguments = [(case["path"], part, parts) for part in range(parts)]
    # TensorFlow, which reads the files, has threads that a fork would lose.
    pool = multiprocessing.get_context("spawn").Pool(parts)

    def step() -> float:
        return float(sum(pool.starmap(count_part, arguments, chunksize=1)))

    text = "\n".join(read_part(case["sample"], 0, 1))
    return step, {
        "characters": len(text),
        "leftovers": leftovers.count(text),
        "versions": protocol.versions("mwparserfromhell", "sentencex"),
    }


if __name__ == "__main__":
    protocol.serve(build)
