"""WEAT: are two sets of words associated with two others? (Caliskan et al. 2017)

X and Y are sets of target words, A and B are sets of attributes. A word's association
is its mean cosine with A minus its mean cosine with B. The effect size is the
difference of the mean associations of X and Y, in standard deviations. The p-value is
the share of the divisions of the targets into sets of these sizes that give at least
this difference.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import AnalysedModel, Vectors, read_words, word_vectors
from decoupled.configs.analyses import WeatSettings
from decoupled.core import console, plots
from decoupled.core.errors import UserError

SETS = {
    "targets_x": "X",
    "targets_y": "Y",
    "attributes_a": "A",
    "attributes_b": "B",
}
# Number of permutations that are summed at once.
_BLOCK = 4096
# Sums of the same associations in another order differ by rounding errors.
_TOLERANCE = 1e-12


class Association(NamedTuple):
    """A test's outcome.

    difference: of the mean associations of X and Y. effect_size: the difference in
    standard deviations of the associations of X and Y together (divided by n - 1).
    p_value: one-sided. permutations: the number of divisions that were counted,
    including the given one. exact: whether these are all divisions.
    """

    difference: float
    effect_size: float | None
    p_value: float
    permutations: int
    exact: bool


def read_sets(paths: dict[str, str]) -> dict[str, list[str]]:
    """Reads the four lists, keys as in `SETS`.

    Raises:
      UserError: a file has no words, or a word is in two sets of a kind.
    """
    sets = {name: read_words(path) for name, path in paths.items()}
    for one, other in (("targets_x", "targets_y"), ("attributes_a", "attributes_b")):
        shared = sorted(set(sets[one]) & set(sets[other]))
        if shared:
            raise UserError(
                f"{paths[one]}: {shared[0]!r} is in {paths[other]}, too; it can be in "
                "one of them"
            )
    return sets


def associations(words: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """s(w, A, B) of each word: its mean cosine with A minus that with B.

    Args:
      words, a, b: vectors, [n, E] each.

    Returns:
      float64 [n].
    """
    words, a, b = _unit(words), _unit(a), _unit(b)
    return (words @ a.T).mean(1) - (words @ b.T).mean(1)


def associate(x: np.ndarray, y: np.ndarray, settings: WeatSettings) -> Association:
    """The test itself.

    Args:
      x, y: associations of the words of X and Y, [n] and [m].
      settings: see its class.
    """
    together = np.concatenate([x, y])
    difference = float(x.mean() - y.mean())
    deviation = float(together.std(ddof=1)) if len(together) > 1 else 0.0
    effect_size = difference / deviation if deviation else None
    divisions = math.comb(len(together), len(x))
    exact = divisions <= settings.permutations
    if exact:
        at_least, counted = _count(together, x, _all_divisions(len(together), len(x)))
    else:
        drawn = _drawn_divisions(len(together), len(x), settings)
        at_least, counted = _count(together, x, drawn)
        # The given division is one of the possible draws, so it is counted as well.
        at_least, counted = at_least + 1, counted + 1
    return Association(difference, effect_size, at_least / counted, counted, exact)


def measure(
    models: Sequence[AnalysedModel], sets: dict[str, list[str]], settings: WeatSettings
) -> dict[str, Any]:
    """The test on all models' embeddings.

    Returns:
      `sets`; `models`: the entries of `AnalysedModel.describe`, with `tests`, a list of
      entries with `embedding`, `used` (words with a vector, per set) and the fields of
      `Association`.

    Raises:
      UserError: a set has no word that the vocabulary knows.
    """
    words = {word for entry in sets.values() for word in entry}
    results = []
    for model in console.track(models, "testing models"):
        tests = [
            {"embedding": kind, **_test(model.name, vectors, sets, settings)}
            for kind, vectors in word_vectors(model, words).items()
        ]
        results.append({**model.describe(), "tests": tests})
    return {
        "analysis": "weat",
        "sets": sets,
        "settings": dataclasses.asdict(settings),
        "models": results,
    }


def show(result: dict[str, Any]) -> None:
    """Prints a line per embedding."""
    sizes = [f"{SETS[name]} {len(words)}" for name, words in result["sets"].items()]
    rows = [
        [
            *(model["name"], test["embedding"]),
            *(test["effect_size"], _p_value(test), test["permutations"]),
            "all" if test["exact"] else "drawn",
            ", ".join(f"{SETS[name]} {count}" for name, count in test["used"].items()),
        ]
        for model in result["models"]
        for test in model["tests"]
    ]
    console.table(
        f"Association of X with A and of Y with B ({', '.join(sizes)} words)",
        ["model", "embedding", "effect size", "p", "divisions", "", "words used"],
        rows,
    )


def plot(result: dict[str, Any], stem: str) -> list[str]:
    """Draws the effect sizes; filled where p < 0.05."""
    models = result["models"]
    figure, [[axes]] = plots.grid(1, 1, 5.0, 1.0 + 0.36 * len(models))
    axes.axvline(0, color=plots.GREY, linewidth=1)
    looks = {"input": (plots.BLUE, "o", -0.13), "output": (plots.ORANGE, "s", 0.13)}
    for kind, (colour, marker, shift) in looks.items():
        label = f"{kind} embedding"
        for place, model in enumerate(models):
            for test in model["tests"]:
                if test["embedding"] != kind or test["effect_size"] is None:
                    continue
                filled = colour if test["p_value"] < 0.05 else "none"
                axes.plot(
                    [test["effect_size"]],
                    [place + shift],
                    marker,
                    color=colour,
                    markerfacecolor=filled,
                    label=label,
                )
                label = None
    axes.set_yticks(range(len(models)), [model["name"] for model in models])
    axes.set_ylim(len(models) - 0.4, -0.6)
    # Sets of unequal sizes can have effects beyond 2.
    shown = [abs(found) for model in models for found in _effects(model)]
    most = max([2.05, *(1.05 * value for value in shown)])
    axes.set_xlim(-most, most)
    axes.set_xlabel("WEAT effect size (filled: p < 0.05)", fontsize=9)
    plots.tidy(axes, grid="x")
    plots.title_and_legend(figure, axes, "Association of words")
    return plots.save(figure, stem)


def _effects(model):
    sizes = (test["effect_size"] for test in model["tests"])
    return [size for size in sizes if size is not None]


def _unit(vectors):
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)


def _all_divisions(count, chosen):
    combinations = itertools.combinations(range(count), chosen)
    while block := list(itertools.islice(combinations, _BLOCK)):
        yield np.array(block)


def _drawn_divisions(count, chosen, settings):
    generator = np.random.default_rng(settings.seed)
    for start in range(0, settings.permutations, _BLOCK):
        rows = min(_BLOCK, settings.permutations - start)
        order = np.tile(np.arange(count), (rows, 1))
        yield generator.permuted(order, axis=1)[:, :chosen]


def _count(together, x, blocks):
    """The number of divisions whose sum is at least that of X, and of all divisions.

    The sum of all associations is fixed, so the mean difference grows with the sum of
    the first set.
    """
    least = float(np.sort(x).sum()) - _TOLERANCE
    at_least = counted = 0
    for block in blocks:
        sums = together[block].sum(1)
        at_least += int((sums >= least).sum())
        counted += len(block)
    return at_least, counted


def _test(name, vectors: Vectors, sets, settings):
    known = {key: [w for w in words if w in vectors] for key, words in sets.items()}
    for key, words in known.items():
        if not words:
            raise UserError(
                f"--{key}: the vocabulary of {name} knows none of {len(sets[key])} "
                "words; check their language and spelling"
            )
    x, y, a, b = (np.stack([vectors[word] for word in known[key]]) for key in SETS)
    found = associate(associations(x, a, b), associations(y, a, b), settings)
    used = {key: len(words) for key, words in known.items()}
    return {"used": used, **found._asdict()}


def _p_value(test):
    return f"{test['p_value']:.2g}"
