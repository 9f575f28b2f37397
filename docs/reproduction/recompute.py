"""Recomputes every interval that decides a study from the sums of each item.

  python recompute.py FOLDER

FOLDER has study.json (contrasts, and how measures are made) and items.npz. In it,
MEASURE/ROW/COMPONENT has the sums of models, [seeds, items] or [seeds, layers, items],
and MEASURE/COMPONENT the counts that they are of, [items]. Needs numpy and scipy alone.
"""

import itertools
import json
import sys

import numpy as np
from scipy import stats

SCORE = ("retrieval", "udpos", "probes")


def values(sums, counts, transform):
    """Item values whose mean is the measure and whose spread is that of a ratio."""
    share = sums.sum(-1, keepdims=True) / counts.sum()
    item_values = share + (sums - share * counts) / counts.mean()
    if transform == "share":
        return item_values
    if transform == "last layer, logits":
        mean, nearest = item_values.mean(-1, keepdims=True), 0.5 / item_values.shape[-1]
        p = np.clip(mean, nearest, 1 - nearest)
        item_values = np.log(p / (1 - p)) + (item_values - mean) / (p * (1 - p))
    else:
        item_values = 100 * item_values
    if transform.startswith("last layer"):
        item_values = item_values[:, -1] - item_values[:, :-1].mean(1)
    return item_values


def interval(parts):
    """Mean and 95% interval of weighted [seeds, items], with seeds and items random."""
    seeds = len(parts[0][1])
    by_seed = sum(weight * array.mean(1) for weight, array in parts)
    variance = by_seed.var(ddof=1) / seeds
    squares = variance**2 / (seeds - 1)
    for weight, array in parts:
        items = array.shape[1]
        if items == 1:
            continue
        residuals = array - array.mean(0) - array.mean(1, keepdims=True) + array.mean()
        residual_variance = (residuals**2).sum() / ((seeds - 1) * (items - 1))
        item_variance = seeds * array.mean(0).var(ddof=1)
        if item_variance > residual_variance:
            factor = weight**2 / array.size
            variance += factor * (item_variance - residual_variance)
            squares += (factor * item_variance) ** 2 / (items - 1)
            squares += (factor * residual_variance) ** 2 / ((items - 1) * (seeds - 1))
    width = stats.t.ppf(0.975, variance**2 / squares) * variance**0.5
    return by_seed.mean(), by_seed.mean() - width, by_seed.mean() + width


def main(folder):
    """Prints claim, contrast, difference and interval, with tabs."""
    with open(f"{folder}/study.json", encoding="utf-8") as handle:
        study = json.load(handle)
    items = {
        name: a.astype(float) for name, a in np.load(f"{folder}/items.npz").items()
    }
    measures = study["measures"]
    contrasts = [(c, t) for c, texts in study["claims"].items() for t in texts]
    # With the contrasts without which a claim is not judged.
    for claim, text in [*contrasts, *study["sensitivity"].items()]:
        measure, *words = text.replace(":", " +", 1).split()
        signs = {
            row: 1 if sign == "+" else -1
            for sign, row in itertools.pairwise(words)
            if sign in "+-"
        }
        keys = [k for k in (SCORE if measure == "S" else (measure,)) if k in measures]
        seeds = set.intersection(*(set(measures[key]["seeds"]) for key in keys or "S"))
        parts = []
        for key in keys:
            places = [n for n, s in enumerate(measures[key]["seeds"]) if s in seeds]
            names = [n.split("/")[1] for n in items if n.startswith(f"{key}/")]
            names = [name for name in dict.fromkeys(names) if f"{key}/{name}" in items]
            arrays = {
                name: {row: items.get(f"{key}/{row}/{name}") for row in signs}
                for name in names
            }
            for name, by_row in arrays.items():
                if all(array is not None for array in by_row.values()):
                    options = items[f"{key}/{name}"], measures[key]["transform"]
                    difference = sum(
                        s * values(by_row[r], *options) for r, s in signs.items()
                    )
                    parts.append((1 / (len(keys) * len(names)), difference[places]))
        if parts and len(seeds) > 1:
            value, low, high = interval(parts)
            print(f"{claim}\t{text}\t{value:+.2f}\t{low:+.2f} to {high:+.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
