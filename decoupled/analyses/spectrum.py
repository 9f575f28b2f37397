"""How many dimensions do embeddings use? Singular values and effective rank against E.

The singular values of a table [V, E] are the roots of the eigenvalues of its Gram
matrix [E, E]. This matrix is summed over groups of rows, so a table of 250,000 rows
needs little additional memory. Because of the squares, values below 1e-8 of the largest
are lost.

Each table is also measured after its mean row is subtracted. The mean row is one strong
direction that all rows share and that says nothing about single pieces.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from decoupled.analyses.models import INPUT, AnalysedModel
from decoupled.core import console, plots

_BLOCK_ROWS = 8192
# The tables themselves, and the tables minus their mean row.
FORMS = ("raw", "centred")


def singular_values(table: np.ndarray) -> dict[str, np.ndarray]:
    """The singular values, largest first.

    Args:
      table: [rows, E].

    Returns:
      "raw" and "centred" -> float64 [E], of `table` and of `table - table.mean(0)`.
    """
    width = table.shape[1]
    gram, total = np.zeros([width, width]), np.zeros(width)
    for start in range(0, len(table), _BLOCK_ROWS):
        block = table[start : start + _BLOCK_ROWS].astype(np.float64)
        gram += block.T @ block
        total += block.sum(0)
    centred = gram - np.outer(total, total) / len(table)
    return {"raw": _roots(gram), "centred": _roots(centred)}


def effective_rank(values: np.ndarray) -> float:
    """exp of the entropy of the singular values' shares (Roy and Vetterli 2007).

    It is E if all values are equal, 1 if all but one are 0, and 0 for a table of zeros.
    """
    total = values.sum()
    if total == 0:
        return 0.0
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def participation_ratio(values: np.ndarray) -> float:
    """(sum of variances)^2 / sum of variances^2; a variance is a squared value.

    It is E if all values are equal, 1 if all but one are 0, and 0 for a table of zeros.
    """
    variances = values**2
    total = (variances**2).sum()
    return float(variances.sum() ** 2 / total) if total else 0.0


def measure(models: Sequence[AnalysedModel]) -> dict[str, Any]:
    """Spectra of all models' embeddings.

    Returns:
      `models`: the entries of `AnalysedModel.describe`, with `embeddings`, a list of
      entries with `embedding`, `rows`, `width` (E), and for "raw" and "centred" a dict
      of `effective_rank`, `participation_ratio` and `singular_values`.
    """
    pairs = [(model, kind) for model in models for kind in model.embeddings]
    entries: dict[str, list] = {model.name: [] for model in models}
    for model, kind in console.track(pairs, "decomposing embeddings"):
        table = model.embedding(kind)
        spectra = singular_values(table)
        entries[model.name].append(
            {
                "embedding": kind,
                "rows": len(table),
                "width": table.shape[1],
                **{form: _summary(spectra[form]) for form in FORMS},
            }
        )
    return {
        "analysis": "spectrum",
        "models": [
            {**model.describe(), "embeddings": entries[model.name]} for model in models
        ],
    }


def show(result: dict[str, Any]) -> None:
    """Prints a line per embedding."""
    rows = []
    for model, entry in _all(result):
        cells = [entry["rows"], entry["width"]]
        for form in FORMS:
            rank, ratio = (
                entry[form][name] for name in ("effective_rank", "participation_ratio")
            )
            cells += [rank, f"{rank / entry['width']:.0%}", ratio]
        rows.append([model["name"], entry["embedding"], *cells])
    numbers = ["effective rank", "of E", "participation ratio"]
    console.table(
        "Spectra of the embeddings; the last three columns without the mean row",
        ["model", "embedding", "rows", "E", *numbers, *numbers],
        rows,
    )


def plot(result: dict[str, Any], stem: str) -> list[str]:
    """Left: the centred spectra; right: effective rank against E."""
    figure, [[left, right]] = plots.grid(1, 2, 4.4, 3.6)
    widest = max(entry["width"] for _, entry in _all(result))
    for index, (model, entry) in enumerate(_all(result)):
        style = plots.look(index)
        values = np.array(entry["centred"]["singular_values"])
        label = f"{model['name']}, {entry['embedding']}"
        line = {**style, "markevery": [len(values) - 1]}
        if entry["embedding"] == INPUT:
            line["linestyle"] = "--"
        places = np.arange(1, len(values) + 1)
        left.plot(places, values / (values[0] or 1), label=label, **line)
        point = {**style, "linestyle": "none"}
        rank = entry["centred"]["effective_rank"]
        right.plot([entry["width"]], [rank], **point)
    right.plot([1, widest], [1, widest], color=plots.GREY, zorder=0)
    right.annotate("all of E", (widest, widest), ha="right", va="bottom", fontsize=8)
    left.set_yscale("log")
    left.set_xlabel("singular value, largest first", fontsize=9)
    left.set_ylabel("share of the largest", fontsize=9)
    right.set_xlabel("width E of the embedding", fontsize=9)
    right.set_ylabel("effective rank", fontsize=9)
    for axes in (left, right):
        plots.tidy(axes)
    title = "Spectrum of embeddings (mean row taken away)"
    plots.title_and_legend(figure, left, title)
    return plots.save(figure, stem)


def _roots(gram: np.ndarray) -> np.ndarray:
    # Rounding makes the smallest eigenvalues slightly negative.
    return np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[::-1], 0))


def _summary(values: np.ndarray) -> dict[str, Any]:
    return {
        "effective_rank": effective_rank(values),
        "participation_ratio": participation_ratio(values),
        "singular_values": values.tolist(),
    }


def _all(result):
    for model in result["models"]:
        for entry in model["embeddings"]:
            yield model, entry
