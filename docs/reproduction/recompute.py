"""Recomputes every interval that decides a study, from what models got on each item.

  python recompute.py FOLDER

FOLDER has study.json (contrasts, and how measures are made) and items.npz. There,
MEASURE/ROW/COMPONENT has what each model got, [seeds, items] or [seeds, layers, items],
and MEASURE/COMPONENT of how many, [items]. Needs numpy and scipy alone.
"""

import itertools
import json
import sys

import numpy as np
from scipy import stats

SCORE = ("retrieval", "udpos", "probes")


def values(got, of, transform):
    """Item values whose mean is the measure and whose spread is that of a ratio."""
    share = got.sum(-1, keepdims=True) / of.sum()
    each = share + (got - share * of) / of.mean()
    if transform == "share":
        return each
    if transform == "last layer, logits":
        mean, nearest = each.mean(-1, keepdims=True), 0.5 / each.shape[-1]
        p = np.clip(mean, nearest, 1 - nearest)
        each = np.log(p / (1 - p)) + (each - mean) / (p * (1 - p))
    else:
        each = 100 * each
    if transform.startswith("last layer"):
        each = each[:, -1] - each[:, :-1].mean(1)
    return each


def interval(parts):
    """Mean and 95% interval of weighted [seeds, items], with seeds and items random."""
    seeds = len(parts[0][1])
    by_seed = sum(weight * each.mean(1) for weight, each in parts)
    variance = by_seed.var(ddof=1) / seeds
    squares = variance**2 / (seeds - 1)
    for weight, each in parts:
        items = each.shape[1]
        if items == 1:
            continue
        rest = each - each.mean(0) - each.mean(1, keepdims=True) + each.mean()
        of_rest = (rest**2).sum() / ((seeds - 1) * (items - 1))
        of_items = seeds * each.mean(0).var(ddof=1)
        if of_items > of_rest:
            factor = weight**2 / each.size
            variance += factor * (of_items - of_rest)
            squares += (factor * of_items) ** 2 / (items - 1)
            squares += (factor * of_rest) ** 2 / ((items - 1) * (seeds - 1))
    width = stats.t.ppf(0.975, variance**2 / squares) * variance**0.5
    return by_seed.mean(), by_seed.mean() - width, by_seed.mean() + width


def main(folder):
    """Prints claim, contrast, difference and interval, with tabs."""
    with open(f"{folder}/study.json", encoding="utf-8") as handle:
        study = json.load(handle)
    items = {
        name: a.astype(float) for name, a in np.load(f"{folder}/items.npz").items()
    }
    taken = study["measures"]
    for claim, text in ((c, t) for c, texts in study["claims"].items() for t in texts):
        measure, *words = text.replace(":", " +", 1).split()
        signs = {
            row: 1 if sign == "+" else -1
            for sign, row in itertools.pairwise(words)
            if sign in "+-"
        }
        keys = [k for k in (SCORE if measure == "S" else (measure,)) if k in taken]
        seeds = set.intersection(*(set(taken[key]["seeds"]) for key in keys or "S"))
        parts = []
        for key in keys:
            places = [n for n, s in enumerate(taken[key]["seeds"]) if s in seeds]
            sets = [n.split("/")[1] for n in items if n.startswith(f"{key}/")]
            sets = [name for name in dict.fromkeys(sets) if f"{key}/{name}" in items]
            arrays = {
                name: {row: items.get(f"{key}/{row}/{name}") for row in signs}
                for name in sets
            }
            for name, by_row in arrays.items():
                if all(array is not None for array in by_row.values()):
                    how = items[f"{key}/{name}"], taken[key]["transform"]
                    each = [sign * values(by_row[r], *how) for r, sign in signs.items()]
                    parts.append((1 / (len(keys) * len(sets)), sum(each)[places]))
        if parts and len(seeds) > 1:
            value, low, high = interval(parts)
            print(f"{claim}\t{text}\t{value:+.2f}\t{low:+.2f} to {high:+.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
