"""Do embeddings order pairs of words as people do? (paper Table 8)

A word's vector is the mean of its pieces' vectors, and a pair's score is the dot
product. Prints Spearman's correlation with human scores, its 95% interval
(Fisher's z with the variance of Bonett and Wright 2000) and the share of pairs that the
vocabulary covers, for input and output embeddings.

  decoupled analyze word_similarity --model_dir=runs/e_out_768 \\
      --model_dir=runs/e_out_3072 --data_dir=data/word_similarity --output_dir=results

With --whole_words, only words of one piece count, so that a small vocabulary is judged
by vectors of words, not by means of fragments. word_similarity.items.npz has the dot
product and the human score of every pair that is used.

A line of a file of pairs has word, word and score, separated by tabs. MEN, MTurk-771,
Rare Word, SimLex-999 and Verb-143 are read from men.tsv, mturk771.tsv, rare_word.tsv,
simlex999.tsv and verb143.tsv. Other files are read, too.
"""

import itertools
import math
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import measure_each, open_models
from decoupled.analyses.output import Line, Panel, Picture, Table, percent
from decoupled.core import files, gfile
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS
from decoupled.metrics.similarity import spearman
from decoupled.runs.saved_run import INPUT, OUTPUT, Model

# The order of Table 8; other sets come after these.
PAPER_SETS = ("men", "mturk771", "rare_word", "simlex999", "verb143")
CONFIDENCE = 0.95
_VALUES = ("spearman", "low", "high")

# Word -> float64 [E].
Vectors = dict[str, np.ndarray]


class WordPairs(NamedTuple):
    """A set of pairs with human scores; results name the file."""

    name: str
    path: str
    pairs: list[tuple[str, str]]
    scores: list[float]


def run(flags: Any) -> dict[str, Any]:
    """The result of the command's flags."""
    sets = find_sets(flags.data_dir)
    return measure(open_models(flags.model_dir), sets, flags.whole_words)


def find_sets(folder: str) -> list[WordPairs]:
    """Reads all *.tsv of a folder, in the paper's order."""
    paths = gfile.glob(f"{folder}/", "*.tsv")
    if not paths:
        raise UserError(f"{folder}: no *.tsv there; each holds word, word, score")
    sets = {entry.name: entry for entry in map(read_pairs, paths)}
    return [sets[name] for name in dict.fromkeys((*PAPER_SETS, *sets)) if name in sets]


def read_pairs(path: str) -> WordPairs:
    """Reads one pair per line: word, word, score, separated by tabs or spaces."""
    pairs, scores = [], []
    lines = files.split_lines(files.read_text(path))
    for number, line in enumerate(lines, start=1):
        cells = line.split("\t") if "\t" in line else files.split_blanks(line)
        if not any(cells):
            continue
        words = [cell.strip(BLANKS) for cell in cells[:2]]
        score = _number(cells[2]) if len(cells) == 3 else None
        if score is None or not all(words):
            raise UserError(f"{path}:{number}: {quoted(line)} is not word, word, score")
        pairs.append((words[0], words[1]))
        scores.append(score)
    if not pairs:
        raise UserError(f"{path}: holds no pairs of words")
    name = os.path.splitext(os.path.basename(path))[0]
    return WordPairs(name, path, pairs, scores)


def _number(text):
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def measure(
    models: Sequence[Model], sets: Sequence[WordPairs], whole_words: bool = False
) -> dict[str, Any]:
    """Correlations of all models, embeddings and sets.

    Returns:
      `sets`: the file of each; of each model `correlations`, a list of entries with
      `set`, `embedding`, `score` ("dot"), `pairs`, `covered`, `spearman`, `low`,
      `high`; `arrays`: "MODELINDEX/EMBEDDING/SET", the dot products of the covered
      pairs, "MODELINDEX/human/SET", and "MODELINDEX/covered/SET", the indices of these
      pairs among those of the set.
    """
    words = {word for entry in sets for pair in entry.pairs for word in pair}

    def correlations(model):
        entries, arrays = [], {}
        embeddings = word_vectors(model, words, whole_words)
        for name, _, pairs, scores in sets:
            is_covered = [set(pair) <= embeddings[INPUT].keys() for pair in pairs]
            human_scores = np.array(scores)[is_covered]
            arrays[f"covered/{name}"] = np.flatnonzero(is_covered).astype(np.int32)
            arrays[f"human/{name}"] = human_scores
            for kind, vectors in embeddings.items():
                products = [
                    vectors[first] @ vectors[second]
                    for first, second in itertools.compress(pairs, is_covered)
                ]
                arrays[f"{kind}/{name}"] = dot_products = np.array(products)
                entries.append(
                    {
                        **{"set": name, "embedding": kind, "score": "dot"},
                        **{"pairs": len(pairs), "covered": len(human_scores)},
                        **correlate(human_scores, dot_products),
                    }
                )
        return {"correlations": entries}, arrays

    sources = {
        entry.name: {"path": entry.path, "sha256": files.file_fingerprint(entry.path)}
        for entry in sets
    }
    model_entries = measure_each(models, correlations)
    return {"analysis": "word_similarity", "sets": sources, **model_entries}


def word_vectors(
    model: Model, words: Iterable[str], whole_words: bool = False
) -> dict[str, Vectors]:
    """The mean of the vectors of each word's pieces (paper section 6.1).

    One table is in memory at a time, and only its needed rows are kept.

    Returns:
      "input", and "output" if the model has one -> the vectors. Words with an unknown
      piece, and words that the vocabulary normalises to nothing, are left out.
    """
    words, vocabulary = sorted(set(words)), model.vocabulary
    pieces = {
        word: np.array(ids, np.int64)
        for word, ids in zip(words, vocabulary.encode_batch(words), strict=True)
        if ids and vocabulary.unk_id not in ids and (len(ids) == 1 or not whole_words)
    }
    needed = np.unique(np.concatenate([*pieces.values(), np.zeros(0, np.int64)]))
    vectors = {}
    for kind in model.embeddings:
        rows = model.embedding(kind)[needed].astype(np.float64)
        vectors[kind] = {
            word: rows[np.searchsorted(needed, ids)].mean(0)
            for word, ids in pieces.items()
        }
    return vectors


def correlate(first: np.ndarray, second: np.ndarray) -> dict[str, float | None]:
    """`spearman` of two sequences, and the bounds `low` and `high` of its interval.

    The interval is by Fisher's z, whose variance for ranks is (1 + rho^2 / 2) / (n - 3)
    (Bonett and Wright 2000, "Sample size requirements for estimating Pearson, Kendall
    and Spearman correlations"). Pairs that share a word count as independent, as is
    usual. What is not defined is None: rho if a sequence is constant or shorter than 2,
    the bounds of fewer than 4 pairs.
    """
    rho = spearman(first, second)
    low = high = None
    if rho is not None and len(first) > 3:
        low = high = rho
        if abs(rho) < 1:
            quantile = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
            width = quantile * math.sqrt((1 + rho**2 / 2) / (len(first) - 3))
            low, high = (math.tanh(math.atanh(rho) + s * width) for s in (-1, 1))
    return {"spearman": rho, "low": low, "high": high}


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """A table like Table 8, and the intervals."""
    rows, details = [], []
    for model in result["models"]:
        by_set: dict[str, list[str]] = {name: [] for name in result["sets"]}
        for entry in model["correlations"]:
            rho, low, high = (percent(entry[name]) for name in _VALUES)
            by_set[entry["set"]].append(rho or "-")
            details.append(
                [
                    *(model["name"], entry["set"], entry["embedding"]),
                    rho if low is None else f"{rho} [{low}, {high}]",
                    entry["pairs"],
                    f"{entry['covered'] / entry['pairs']:.1%}",
                ]
            )
        rows.append([model["name"], *map(" / ".join, by_set.values())])
    title = "Spearman x 100 of the dot product, input / output embedding"
    yield Table(title, ["model", *result["sets"]], rows)
    columns = ["model", "set", "embedding", "Spearman x 100", "pairs", "covered"]
    yield Table("with 95% confidence intervals", columns, details)


def picture(result: dict[str, Any]) -> Picture:
    """A panel for each set."""
    models = result["models"]

    def line(name, kind):
        points = [
            (place, *(100 * entry[key] for key in _VALUES))
            for place, model in enumerate(models)
            for entry in model["correlations"]
            if (entry["set"], entry["embedding"]) == (name, kind)
            and entry["low"] is not None
        ]
        places, values, low, high = zip(*points, strict=True) if points else [()] * 4
        return Line(f"{kind} embedding", values, places, low, high)

    panels = [
        Panel(
            [line(name, kind) for kind in (INPUT, OUTPUT)],
            "Spearman x 100",
            title=name,
            rows=[model["name"] for model in models],
        )
        for name in result["sets"]
    ]
    title = "Word similarity by embeddings; bars: 95% confidence intervals"
    return Picture(title, [panels])
