"""Search and mining with vectors that are typed in."""

import numpy as np
import pytest

from decoupled.analyses import retrieval
from decoupled.core.errors import UserError
from decoupled.xtreme.parallel_sentences import Bucc, Tatoeba, Text
from tests.analyses.sentences import retrieval as config

VECTORS = {
    "eins": [1, 0, 0],
    "zwei": [0, 1, 0],
    "drei": [0.1, 0, 1],
    "hm": [1, 1, 1],
    "one": [1, 0.1, 0],
    "two": [0.2, 1, 0],
    "three": [0, 0, 1],
    "er": [1, 1, 0.9],
}


class Encode:
    """Looks vectors up; remembers the queries."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked += texts
        return np.array([VECTORS[text] for text in texts], np.float32)


def bucc(sources, english, gold=None):
    sides = [
        Text([f"{name}-{i}" for i in range(len(side))], side)
        for name, side in (("de", sources), ("en", english))
    ]
    return Bucc("de", *sides, gold)


def test_tatoeba_finds_places_and_encodes_equal_sentences_once():
    encode = Encode()
    pair = Tatoeba("de", ["zwei", "drei", "one"], ["one", "three", "two"], None)
    assert retrieval.find_translations(pair, encode, config()) == [2, 1, 0]
    assert sorted(encode.asked) == sorted(set(encode.asked))


def test_centring_takes_away_what_a_side_shares():
    shifted = {"a": [9, 0], "b": [9.5, 1], "x": [0, 0], "y": [0.5, 1]}
    pair = Tatoeba("de", ["a", "b"], ["x", "y"], None)

    def encode(texts):
        return np.array([shifted[text] for text in texts], np.float32)

    def places(centre):
        chosen = config(scoring="euclidean", centre=centre)
        return retrieval.find_translations(pair, encode, chosen)

    assert places(centre=False) == [1, 1]
    assert places(centre=True) == [0, 1]


def test_mined_pairs_are_ids_the_best_first():
    split = bucc(["eins", "hm", "drei"], ["er", "three", "one"])
    pairs, scores = retrieval.mine_pairs(split, Encode(), config())
    assert set(pairs) == {("de-0", "en-2"), ("de-1", "en-0"), ("de-2", "en-1")}
    assert (np.diff(scores) <= 0).all()


def test_a_sentence_that_stands_twice_belongs_to_no_id():
    split = bucc(["eins", "zwei", "eins"], ["one", "two"])
    pairs, _ = retrieval.mine_pairs(split, Encode(), config())
    assert pairs == [("de-1", "en-1")]
    with pytest.raises(UserError, match="each pair has a sentence that occurs several"):
        retrieval.mine_pairs(bucc(["eins", "eins"], ["one"]), Encode(), config())


def write(folder, split):
    for side, text in (("de", split[1].source), ("en", split[1].english)):
        rows = zip(text.ids, text.sentences, strict=True)
        lines = "".join(f"{name}\t{sentence}\n" for name, sentence in rows)
        (folder / f"de-en.{split[0]}.{side}").write_text(lines)
    pairs = "".join(f"{a}\t{b}\n" for a, b in sorted(split[1].gold or ()))
    (folder / f"de-en.{split[0]}.gold").write_text(pairs)


def test_the_threshold_of_the_dev_set_cuts_the_test_set(tmp_path):
    # hm and er are no translations; their cosine is above that of zwei and two.
    gold = {("de-0", "en-0"), ("de-1", "en-1")}
    (tmp_path / "bucc2018").mkdir()
    dev = bucc(["eins", "drei", "zwei"], ["one", "three", "two"], gold)
    test = bucc(["hm", "drei", "zwei"], ["er", "three", "two"], gold)
    for split in (("dev", dev), ("test", test)):
        write(tmp_path / "bucc2018", split)
    lines, results = retrieval.mine_bucc(str(tmp_path), "de", Encode(), config())
    assert results["dev_f1"] == pytest.approx(100)
    # Cosines: 1 / sqrt(1.01) for eins and drei, 1 / sqrt(1.04) for zwei.
    threshold = (1.01**-0.5 + 1.04**-0.5) / 2
    assert results["threshold"] == pytest.approx(threshold, abs=1e-3)
    assert lines == ["de-0\ten-0", "de-1\ten-1"]
