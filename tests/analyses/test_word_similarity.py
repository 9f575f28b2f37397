"""Word similarity: files, scores, planted orders, the picture, rank correlation."""

import os

import numpy as np
import pytest
from scipy import stats

from decoupled.analyses import word_similarity
from decoupled.analyses.models import open_models
from decoupled.analyses.word_similarity import (
    WordPairs,
    correlate,
    find_sets,
    read_pairs,
    word_vectors,
)
from decoupled.core.errors import UserError
from decoupled.model import variables as names
from tests.analyses.tiny_runs import show, write_run


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_pairs_with_tabs_or_spaces(tmp_path):
    path = write(tmp_path / "some.tsv", "sun\tmoon\t3.5\n\nbig small -1e1\n")
    assert read_pairs(path) == WordPairs(
        "some", path, [("sun", "moon"), ("big", "small")], [3.5, -10.0]
    )


@pytest.mark.parametrize(
    "line", ["sun\tmoon", "sun\tmoon\tmuch", "sun\tmoon\tnan", "\tmoon\t1", "a b c 1"]
)
def test_a_malformed_line_is_named(tmp_path, line):
    path = write(tmp_path / "set.tsv", f"sun\tmoon\t1\n{line}\n")
    with pytest.raises(UserError, match="set.tsv:2: .* is not word, word, score"):
        read_pairs(path)


def test_an_empty_file(tmp_path):
    with pytest.raises(UserError, match="set.tsv: holds no pairs"):
        read_pairs(write(tmp_path / "set.tsv", "\n"))


def test_sets_come_in_the_papers_order(tmp_path):
    for name in ("verb143", "abc", "men", "simlex999"):
        write(tmp_path / f"{name}.tsv", "a\tb\t1\n")
    result = find_sets(str(tmp_path))
    assert [entry.name for entry in result] == "men simlex999 verb143 abc".split()
    with pytest.raises(UserError, match=r"no \*.tsv there"):
        find_sets(str(tmp_path / "nothing"))


@pytest.fixture(scope="module")
def planted(vocabulary, pretrained_dir, tmp_path_factory):
    """A model whose input embedding is as people, the output embedding the reverse."""
    words = ["r", "n", "t", "l"]
    # Closer angles are more alike.
    angles = np.array([0.0, 0.3, 0.9, 1.4])
    alike = np.cos(angles[:, np.newaxis] - angles)
    tables = {
        names.WORD_EMBEDDINGS: np.zeros([48, 6], np.float32),
        names.OUTPUT_EMBEDDING: np.zeros([48, 10], np.float32),
    }
    # The piece that begins a word stays 0.
    rows = [vocabulary.encode(word)[-1] for word in words]
    tables[names.WORD_EMBEDDINGS][rows, 0] = np.cos(angles)
    tables[names.WORD_EMBEDDINGS][rows, 1] = np.sin(angles)
    # Vectors whose products are the negative ones, but for a constant diagonal.
    reverse = np.linalg.cholesky(5 * np.eye(4) - alike)
    tables[names.OUTPUT_EMBEDDING][rows, :4] = reverse
    folder = tmp_path_factory.mktemp("runs") / "planted"
    models = open_models([write_run(folder, vocabulary, weights=tables)])
    path = folder.parent / "pairs.tsv"
    write(path, "r\tn\t9\nr\tΩ\t10\nn\tt\t7\nt\tl\t8\nr\tt\t5\nn\tl\t4\nr\tl\t1\n")
    return word_similarity.measure(models, [read_pairs(str(path))])


def test_a_planted_order_is_found(planted):
    [model] = planted["models"]
    result = {entry["embedding"]: entry for entry in model["correlations"]}
    assert set(result) == {"input", "output"}
    for entry in result.values():
        assert (entry["pairs"], entry["covered"]) == (7, 6)
        assert entry["low"] <= entry["spearman"] <= entry["high"]
    assert result["input"]["spearman"] == pytest.approx(1)
    assert result["output"]["spearman"] == pytest.approx(-1)
    arrays = planted["arrays"]
    assert arrays["0/covered/pairs"].tolist() == [0, 2, 3, 4, 5, 6]
    assert arrays["0/human/pairs"].tolist() == [9, 7, 8, 5, 4, 1]
    # The mean with the piece that begins a word halves each vector.
    products = 4 * arrays["0/input/pairs"]
    assert products[[0, 5]] == pytest.approx(np.cos([0.3, 1.4]))


def test_against_scipy_on_a_random_model(vocabulary, pretrained_dir, tmp_path):
    generator = np.random.default_rng(1)
    words = [vocabulary.id_to_piece(i).lstrip("▁") for i in range(6, 48)]
    words = sorted(
        {w for w in words if w and vocabulary.unk_id not in vocabulary.encode(w)}
    )
    pairs = [tuple(generator.choice(words, 2)) for _ in range(40)]
    human = generator.integers(0, 8, 40)
    lines = [f"{a}\t{b}\t{s}\n" for (a, b), s in zip(pairs, human, strict=True)]
    path = write(tmp_path / "random.tsv", "".join(lines))
    models = open_models([pretrained_dir])
    result = word_similarity.measure(models, [read_pairs(path)])
    for entry in result["models"][0]["correlations"]:
        table = models[0].embedding(entry["embedding"]).astype(np.float64)
        one, other = (
            np.stack([table[vocabulary.encode(pair[i])].mean(0) for pair in pairs])
            for i in (0, 1)
        )
        scores = (one * other).sum(1)
        expected = stats.spearmanr(human, scores).statistic
        assert entry["spearman"] == pytest.approx(expected, abs=1e-9)


def test_words_that_the_vocabulary_lacks(pretrained_dir, tmp_path, capsys):
    """Pieces are unknown, or there is none."""
    lines = "Ω\tΨ\t1\nthe\tΩmega\t2\npage\t\u200b\t3\n"
    path = write(tmp_path / "greek.tsv", lines)
    result = word_similarity.measure(open_models([pretrained_dir]), [read_pairs(path)])
    entry = result["models"][0]["correlations"][0]
    assert (entry["covered"], entry["spearman"], entry["low"]) == (0, None, None)
    show(word_similarity, result, tmp_path / "out", capsys)


def test_what_is_shown(planted, tmp_path, capsys):
    shown, drawn = show(word_similarity, planted, tmp_path / "out", capsys)
    assert "100.0 / -100.0" in shown
    assert "85.7%" in shown
    title = "Word similarity by embeddings; bars: 95% confidence intervals"
    expected = {"pairs", "planted", "input embedding", "output embedding"}
    assert expected <= set(drawn)
    # The title may take two lines.
    assert title in " ".join(drawn)


def test_the_sets_of_table_8(data_dir):
    sets = find_sets(os.path.join(data_dir, "word_similarity"))
    assert {entry.name: len(entry.pairs) for entry in sets} == {
        "men": 3000,
        "mturk771": 771,
        "rare_word": 2034,
        "simlex999": 999,
        "verb143": 144,
    }


def test_what_has_one_value_has_no_correlation():
    nothing = {"spearman": None, "low": None, "high": None}
    assert correlate(np.ones(9), np.arange(9)) == nothing
    assert correlate(np.array([1.0]), np.array([2.0])) == nothing


def test_interval_by_hand():
    # 1 - 6 * 2 / (5 * 24) = 0.9; z = 1.472219, width 1.959964 * sqrt(1.405 / 2).
    result = correlate(np.arange(5), np.array([0, 1, 2, 4, 3]))
    assert result["spearman"] == pytest.approx(0.9)
    assert result["low"] == pytest.approx(np.tanh(1.472219 - 1.642743), abs=1e-5)
    assert result["high"] == pytest.approx(np.tanh(1.472219 + 1.642743), abs=1e-5)
    # Three pairs are too few, and a perfect order has no width.
    assert correlate(np.arange(3), np.arange(3))["low"] is None
    assert correlate(np.arange(9), np.arange(9))["low"] == pytest.approx(1)


def test_only_blanks_separate_words(tmp_path):
    text = "\ufeffa\u00a0b\tc\u3000d\t1\n\u00a0x y\x85z 2 \r\nv\u2028w u 3\r"
    path = write(tmp_path / "set.tsv", text)
    assert read_pairs(path).pairs == [
        ("a\u00a0b", "c\u3000d"), ("\u00a0x", "y\x85z"), ("v\u2028w", "u"),
    ]  # fmt: skip


def test_only_words_that_are_one_piece(pretrained_dir, vocabulary, tmp_path):
    pieces = [vocabulary.id_to_piece(index) for index in range(vocabulary.size)]
    words = [piece[1:] for piece in pieces if piece[0] == "▁" and piece[1:].isalpha()]
    whole = [word for word in words if len(vocabulary.encode(word)) == 1][:2]
    [model] = open_models([pretrained_dir])
    vectors = word_vectors(model, [*whole, "password"], whole_words=True)
    assert len(whole) == 2 and vectors["output"].keys() == set(whole)
    first, second = whole
    path = write(
        tmp_path / "some.tsv", f"{first}\t{second}\t3.5\n{first}\tpassword\t1\n"
    )
    result = word_similarity.measure([model], [read_pairs(path)], whole_words=True)
    assert result["arrays"]["0/human/some"].tolist() == [3.5]
    assert result["arrays"]["0/output/some"].shape == (1,)
