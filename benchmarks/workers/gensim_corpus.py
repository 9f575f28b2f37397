"""Worker: a dump to lists of words with gensim's WikiCorpus."""

import leftovers
import protocol
from gensim.corpora.wikicorpus import WikiCorpus


def build(case: dict) -> tuple[protocol.Step, dict]:
    """The case is that of `decoupled_corpus`."""

    def texts(path):
        # An empty dictionary: else it reads the dump to make one.
        corpus = WikiCorpus(
            path,
            processes=case["processes"],
            dictionary={},
            article_min_tokens=0,
        )
        return corpus.get_texts()

    def step() -> float:
        return float(sum(len(word) for words in texts(case["path"]) for word in words))

    text = "\n".join(" ".join(words) for words in texts(case["sample"]))
    return step, {
        "characters": len(text),
        "leftovers": leftovers.count(text),
        "versions": protocol.versions("gensim"),
    }


if __name__ == "__main__":
    protocol.serve(build)
