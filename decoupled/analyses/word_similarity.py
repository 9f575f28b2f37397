"""Do embeddings place similar words close together? (paper Table 8)

The model's score of a pair is the dot product, or the cosine, of the vectors of the two
words. Spearman's correlation compares the order of these scores with the order of human
scores.
"""

import math
import os
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import (
    INPUT,
    OUTPUT,
    AnalysedModel,
    Vectors,
    word_vectors,
)
from decoupled.core import console, files, gfile, plots
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS
from decoupled.core.tab_separated import read_rows
from decoupled.metrics.similarity import spearman

# The order of Table 8; other sets come after these.
PAPER_SETS = ("men", "mturk771", "rare_word", "simlex999", "verb143")
CONFIDENCE = 0.95
SCORES = {"dot": "dot product", "cosine": "cosine"}
# With fewer pairs the variance of the interval is not defined.
_FEWEST_PAIRS = 4
_LOOK = {INPUT: (plots.BLUE, "o"), OUTPUT: (plots.ORANGE, "s")}


class WordPairs(NamedTuple):
    """A set of pairs with human scores; results name the file."""

    name: str
    path: str
    pairs: list[tuple[str, str]]
    scores: list[float]


def find_sets(folder: str | None, paths: Sequence[str]) -> list[WordPairs]:
    """Reads all *.tsv of a folder, in the paper's order, and single files.

    Raises:
      UserError: there is nothing to read, a file is malformed, or two files have the
        same name.
    """
    found = gfile.glob(f"{folder}/", "*.tsv") if folder else []
    if folder and not found:
        raise UserError(f"{folder}: no *.tsv there; each holds word, word, score")
    sets = [read_pairs(path) for path in (*found, *paths)]
    names = [entry.name for entry in sets]
    for entry in sets:
        if names.count(entry.name) > 1:
            raise UserError(f"{entry.path}: two sets are called {entry.name}")
    return sorted(
        sets,
        key=lambda entry: (
            PAPER_SETS.index(entry.name)
            if entry.name in PAPER_SETS
            else len(PAPER_SETS)
        ),
    )


def read_pairs(path: str) -> WordPairs:
    """Reads one pair per line: word, word, score, separated by tabs or spaces.

    Raises:
      UserError: the file is missing, empty, not UTF-8, or a line is malformed.
    """
    pairs, scores = [], []
    text = files.read_text(path)
    for number, cells in read_rows(text, 2, lambda cell: _number(cell) is not None):
        if len(cells) == 1:
            cells = files.split_blanks(cells[0])
        if not any(cells):
            continue
        words = [cell.strip(BLANKS) for cell in cells[:2]]
        score = _number(cells[2]) if len(cells) == 3 else None
        if score is None or not all(words):
            line = quoted(" ".join(cells))
            raise UserError(f"{path}:{number}: {line} is not word, word, score")
        pairs.append((words[0], words[1]))
        scores.append(score)
    if not pairs:
        raise UserError(f"{path}: holds no pairs of words")
    name = os.path.splitext(os.path.basename(path))[0]
    return WordPairs(name, path, pairs, scores)


def measure(models: Sequence[AnalysedModel], sets: Sequence[WordPairs]) -> dict:
    """Correlations of all models, embeddings and sets.

    Returns:
      `sets`: the file of each; `models`: the entries of `AnalysedModel.describe`, with
      `masked_lm_accuracy` and `correlations`, a list of entries with `set`,
      `embedding`, `score` ("dot" or "cosine"), `pairs`, `covered`, `spearman`, `low`,
      `high`.
    """
    words = {word for entry in sets for pair in entry.pairs for word in pair}
    results = []
    for model in console.track(models, "correlating models"):
        vectors = word_vectors(model, words)
        entries = [
            {"set": entry.name, "embedding": kind, **values}
            for entry in sets
            for kind in vectors
            for values in _correlations(vectors[kind], entry)
        ]
        accuracy = model.masked_lm_accuracy()
        results.append(
            {
                **model.describe(),
                "masked_lm_accuracy": accuracy,
                "correlations": entries,
            }
        )
    return {
        "analysis": "word_similarity",
        "sets": {
            entry.name: {
                "path": entry.path,
                "sha256": files.file_fingerprint(entry.path),
            }
            for entry in sets
        },
        "models": results,
    }


def pair_scores(vectors: Vectors, pairs: Sequence[tuple[str, str]]) -> dict:
    """Scores of pairs whose words both have vectors.

    Returns:
      "dot" and "cosine" -> float64 [pairs]; the cosine with a vector of zeros is 0.
    """
    first, second = (np.stack([vectors[pair[i]] for pair in pairs]) for i in (0, 1))
    dot = (first * second).sum(1)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosine = np.divide(dot, lengths, out=np.zeros_like(dot), where=lengths > 0)
    return {"dot": dot, "cosine": cosine}


def show(result: dict[str, Any]) -> None:
    """Prints a table like Table 8 for each score, and the intervals."""
    sets = list(result["sets"])
    for score, title in SCORES.items():
        rows = [
            [
                model["name"],
                *(_input_output(model, name, score) for name in sets),
                _percent(model["masked_lm_accuracy"]),
            ]
            for model in result["models"]
        ]
        console.table(
            f"Spearman x 100 of the {title}, input / output embedding",
            ["model", *sets, "MLM accuracy, %"],
            rows,
        )
    columns = ["model", "set", "embedding", *SCORES.values(), "pairs", "covered"]
    rows = [
        [model["name"], *cells]
        for model in result["models"]
        for cells in _interval_rows(model)
    ]
    console.table("with 95% confidence intervals", columns, rows)


def plot(result: dict[str, Any], stem: str) -> list[str]:
    """Draws correlations with their intervals, a column of panels per set."""
    models, sets = result["models"], list(result["sets"])
    height = 1.0 + 0.36 * len(models)
    figure, axes = plots.grid(len(SCORES), len(sets), 2.3, height, sharex=True)
    for row, (score, title) in enumerate(SCORES.items()):
        for column, name in enumerate(sets):
            panel = axes[row][column]
            _draw(panel, models, name, score)
            plots.tidy(panel, grid="x")
            if row == 0:
                panel.set_title(name, fontsize=10)
            if row == len(SCORES) - 1:
                panel.set_xlabel("Spearman x 100", fontsize=9)
            labels = [model["name"] for model in models] if column == 0 else []
            panel.set_yticks(range(len(models)), labels or [""] * len(models))
            panel.set_ylim(len(models) - 0.4, -0.6)
        axes[row][0].set_ylabel(title, fontsize=9)
    title = "Word similarity by embeddings; bars: 95% confidence intervals"
    plots.title_and_legend(figure, axes[0][0], title)
    return plots.save(figure, stem)


def _number(text):
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _correlations(vectors, entry):
    places = [
        index
        for index, (first, second) in enumerate(entry.pairs)
        if first in vectors and second in vectors
    ]
    counts = {"pairs": len(entry.pairs), "covered": len(places)}
    human = np.array([entry.scores[index] for index in places])
    ours = dict.fromkeys(SCORES, human)
    if places:
        ours = pair_scores(vectors, [entry.pairs[index] for index in places])
    for score in SCORES:
        yield {"score": score, **counts, **correlate(human, ours[score])._asdict()}


def _find(model, name, kind, score):
    wanted = (name, kind, score)
    for entry in model["correlations"]:
        if (entry["set"], entry["embedding"], entry["score"]) == wanted:
            return entry
    return None


def _input_output(model, name, score):
    entries = [_find(model, name, kind, score) for kind in (INPUT, OUTPUT)]
    return " / ".join(_hundred(entry["spearman"]) for entry in entries if entry)


def _interval_rows(model):
    for dot in model["correlations"]:
        if dot["score"] != "dot":
            continue
        cosine = _find(model, dot["set"], dot["embedding"], "cosine")
        covered = f"{dot['covered'] / dot['pairs']:.1%}"
        yield [
            *(dot["set"], dot["embedding"], _with_interval(dot)),
            *(_with_interval(cosine), dot["pairs"], covered),
        ]


def _with_interval(entry):
    if entry["low"] is None:
        return _hundred(entry["spearman"])
    bounds = f"[{_hundred(entry['low'])}, {_hundred(entry['high'])}]"
    return f"{_hundred(entry['spearman'])} {bounds}"


def _hundred(value):
    return "-" if value is None else f"{100 * value:.1f}"


def _percent(share):
    return None if share is None else f"{100 * share:.1f}"


def _draw(panel, models, name, score):
    panel.axvline(0, color=plots.GREY, linewidth=1)
    for kind, (colour, marker) in _LOOK.items():
        shift = -0.13 if kind == INPUT else 0.13
        found = [
            (place + shift, entry)
            for place, model in enumerate(models)
            if (entry := _find(model, name, kind, score)) and entry["low"] is not None
        ]
        if not found:
            continue
        middle = [100 * entry["spearman"] for _, entry in found]
        low = [100 * (entry["spearman"] - entry["low"]) for _, entry in found]
        high = [100 * (entry["high"] - entry["spearman"]) for _, entry in found]
        panel.errorbar(
            middle,
            [place for place, _ in found],
            xerr=[low, high],
            fmt=marker,
            color=colour,
            markersize=5,
            label=f"{kind} embedding",
        )


class Correlation(NamedTuple):
    """Spearman's rho and its interval at `CONFIDENCE`; None if not defined."""

    spearman: float | None
    low: float | None
    high: float | None


def correlate(first: np.ndarray, second: np.ndarray) -> Correlation:
    """Spearman's rho of two sequences, with its interval.

    Args:
      first, second: [n] each.

    Returns:
      rho is None if a sequence is constant or shorter than 2; the bounds are None if
      there are fewer than 4 pairs.
    """
    rho = spearman(first, second)
    if rho is None:
        return Correlation(None, None, None)
    return Correlation(rho, *interval(rho, len(first)))


def interval(rho: float, pairs: int) -> tuple[float | None, float | None]:
    """The confidence interval of Spearman's rho.

    Fisher's z, whose variance for ranks is (1 + rho^2 / 2) / (n - 3) (Bonett and
    Wright 2000, "Sample size requirements for estimating Pearson, Kendall and Spearman
    correlations"). Pairs that share a word count as independent, as is usual.
    """
    if pairs < _FEWEST_PAIRS:
        return None, None
    if abs(rho) >= 1:
        return rho, rho
    quantile = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    width = quantile * math.sqrt((1 + rho**2 / 2) / (pairs - 3))
    return math.tanh(math.atanh(rho) - width), math.tanh(math.atanh(rho) + width)
