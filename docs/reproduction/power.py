"""Simulates the smallest effects that the second study sees, in 80% of its repetitions.

  python power.py

A difference of two rows is drawn for each seed, with the spread that such a difference
had in the first study (first/study.json), and tested at the first step of Holm's method
for so many claims. Prints a table for design.md. Needs numpy and scipy alone.
"""

import json
import pathlib

import numpy as np
from scipy import optimize, stats

TRIALS, POWER = 20_000, 0.8
# Part, contrast of the first study, seeds, claims, and whether an equivalence is shown.
CASES = [
    ("A, default: claim 3", "S, e_large - in_small", 5, 3, False),
    ("A: claims 3 and 4", "S, e_large - in_small", 8, 8, False),
    ("A: claim 2", "S, in_small - out_small", 8, 8, False),
    ("A: claim 7, last layer", "last_layer, e_large - e_small", 8, 8, False),
    ("A: claim 7, layer drop", "layer_drop, e_large - e_small", 8, 8, False),
    ("A, default: loss", "masked_lm_loss, e_large_head - in_small_head", 5, 3, False),
    ("A: loss", "masked_lm_loss, e_large_head - in_small_head", 8, 8, False),
    ("A: loss, as good as", "masked_lm_loss, e_large_head - in_small_head", 8, 8, True),
    ("B: loss, as good as", "masked_lm_loss, e_large_head - in_small_head", 8, 2, True),
    ("B: S, as good as", "S, e_large - in_small", 8, 2, True),
    ("C: claim 5", "S, reinv_l - coupled", 5, 1, False),
    ("C: claim 5, larger spread", "S, e_large - in_small", 5, 1, False),
    ("D: masked-LM accuracy", "masked_lm_accuracy, e_large - e_small", 5, 1, False),
]


def smallest_effect(spread, seeds, claims, is_equivalence):
    """The effect, or the margin around a true 0, that 80% of the studies show."""
    noise = np.random.default_rng(0).normal(0, spread, (TRIALS, seeds))
    mean, error = noise.mean(1), noise.std(1, ddof=1) / seeds**0.5
    level = 0.05 / claims
    if is_equivalence:
        # Both ends of the interval of two one-sided tests must lie within the margin.
        reach = np.abs(mean) + stats.t.isf(level, seeds - 1) * error
        return float(np.quantile(reach, POWER))
    critical = stats.t.isf(level / 2, seeds - 1)

    def power_gap(effect):
        return np.mean((mean + effect) / error > critical) - POWER

    return optimize.brentq(power_gap, 0, 40 * spread)


def table():
    """Lines of a table in Markdown."""
    path = pathlib.Path(__file__).parent / "first/study.json"
    study = json.loads(path.read_text(encoding="utf-8"))
    yield "| part | seeds | claims | spread over seeds | smallest effect or margin |"
    yield "|---|---:|---:|---:|---:|"
    for part, contrast, seeds, claims, is_equivalence in CASES:
        result = study["contrasts"][contrast]
        unit = study["measures"][contrast.split(",")[0]]["unit"]
        spread = result["error"] * result["seeds"] ** 0.5
        effect = smallest_effect(spread, seeds, claims, is_equivalence)
        yield f"| {part} | {seeds} | {claims} | {spread:.2f} | {effect:.2f} {unit} |"


if __name__ == "__main__":
    print("\n".join(table()))
