"""A study with planted effects, without any run."""

import functools
import json
import pathlib

import numpy as np

from decoupled.configs import StudyConfig
from decoupled.runs.curve import Curve
from decoupled.studies import claims
from decoupled.studies.jobs import Row
from decoupled.studies.page import mean
from decoupled.studies.results import Number
from decoupled.studies.statistics import CONTROL, LOGITS, NATS, POINTS, Measured
from decoupled.studies.study import Study, Training, gather, secondary_of
from tests.helpers import tiny_model

DOCS = pathlib.Path(__file__).parents[2] / "docs/reproduction"
SEEDS = (0, 1, 2, 3, 4)
STEPS = 1000
ITEMS = 40
ENTROPY = 6.0
# Points above in_small, of each component of S.
EFFECTS = {
    "e_large": 3.0, "e_small": -2.0, "add_layers": -2.5, "reinv_l": 2.5, "coupled": 0.0,
    "reinv_h": 2.0, "out_small": -3.0,
}  # fmt: skip


@functools.cache
def first_study():
    """The contrasts of the first study, which had one of every kind of rule."""
    saved = json.loads((DOCS / "first/study.json").read_text())
    return StudyConfig(
        first_rows=(),
        learning_rates={},
        control_rows=("coupled", "e_small"),
        dropped_rows=(),
        most_dropped=0,
        claims={key: tuple(texts) for key, texts in saved["claims"].items()},
        papers=saved["papers"],
    )


ROWS = (*first_study().papers, "in_small_head", "e_large_head")


def measured(
    name, unit, base, effects, rows=ROWS, gain=20.0, better=1, noise=0.3, part="mean"
):
    """A measure of one component, `part`, with controls `gain` worse."""
    generator = np.random.default_rng(len(name))
    shared = generator.normal(0, 5 * noise, ITEMS)
    values = {}
    for row in rows:
        drawn = generator.normal(0, noise, (len(SEEDS), ITEMS))
        values[row] = {part: base + effects.get(row, 0.0) + shared + drawn}
    for row in first_study().control_rows:
        if row in values:
            drawn = generator.normal(0, noise, (len(SEEDS), ITEMS))
            values[CONTROL + row] = {part: base - better * gain + shared + drawn}
    return Measured(name, unit, SEEDS, values, base - better * gain / 2, better)


def measures(effects=EFFECTS, rows=ROWS, **changed):
    """All primary measures; changed: name -> keywords of `measured`."""
    accuracy = {"e_large": 2.0, "e_small": -1.0}
    planned = {
        claims.RETRIEVAL: (POINTS, 50.0, effects),
        claims.UD_POS: (POINTS, 70.0, effects),
        claims.PROBES: (POINTS, 60.0, effects),
        claims.ACCURACY: (POINTS, 40.0, accuracy),
        claims.LOSS: (NATS, 3.0, {"e_small": 0.3}),
        claims.LAST_LAYER: (LOGITS, -0.5, {"e_large": 0.4}),
    }
    more = {
        claims.LOSS: {"gain": 3.0, "better": -1, "noise": 0.03, "part": "en"},
        claims.LAST_LAYER: {"noise": 0.05},
    }
    return {
        name: measured(
            name, *plan, rows=rows, **(more.get(name, {}) | changed.get(name, {}))
        )
        for name, plan in planned.items()
    }


def curve(crossed, final=3.0):
    """A curve that falls from the unigram entropy to `final` after `crossed`."""
    steps = np.arange(10, STEPS + 1, 10)
    falling = np.clip((steps - crossed) / (STEPS - crossed), 0, 1) ** 0.5
    return Curve(steps, ENTROPY - (ENTROPY - final) * falling)


def curves(rows=ROWS):
    """A curve for each row and seed."""
    return {
        (row, seed): curve(200 + 5 * seed + 10 * place)
        for place, row in enumerate(rows)
        for seed in SEEDS
    }


def study(rows=ROWS, taken=None, void=(), **facts):
    """A study.

    Args:
      rows: that were run. taken: measures. void: rows that did not train. facts:
        changed ones.
    """
    taken = measures(rows=rows) if taken is None else taken
    numbers = [
        Number(row, name, "mean", seed, float(value), f"runs/{row}/seed_{seed}")
        for name, each in taken.items()
        for row in each.values
        for seed, value in zip(each.seeds, each.by_seed(row), strict=True)
    ]
    numbers += [
        Number(row, claims.LAYER_DROP, f"layers 1 to {kept}", seed, 60.0 + kept)
        for row in ("e_small", "e_large")
        if row in rows
        for kept in (1, 2)
        for seed in SEEDS
    ]
    numbers += [
        Number(row, "layers", f"layer {layer}", seed, percent)
        for row in rows
        for layer, percent in enumerate([4.0, 9.0, 12.0, 8.0])
        for seed in SEEDS
    ]
    numbers += [
        Number(row, "rates", rate, 100, 3.0 + float(rate))
        for row in ("e_small", "in_small", "e_large")
        for rate in ("0.002", "0.004")
        if row in rows
    ]
    described = {
        row: Row(row, tiny_model(), 1 if row == "add_layers" else 0) for row in rows
    }
    trained = {row: f"Row {row} did not train." * (row in void) for row in rows}
    steps = mean(dict.fromkeys(SEEDS, 300.0), digits=0)
    training = {row: Training(steps, "3.00", "3.10", trained[row]) for row in rows}
    known = {
        "command": "decoupled reproduce --work_dir=w",
        "text": ["4 sentences."],
        "steps": STEPS,
        "activation_dtype": "float32",
        "machine": "2 cores",
        "seconds": 3600.0,
        "left_out": ["No questions."],
        "languages": ["en", "de"],
        "seeds": list(SEEDS),
        "complete": 9,
        "jobs": 9,
        "unigram_entropy": ENTROPY,
        "common_steps": 500,
        "doses": {"e_small": 16, "in_small": 96, "e_large": 384},
    }
    secondary = secondary_of(first_study())
    evidence = gather(taken, trained, first_study(), secondary)
    return Study({**known, **facts}, described, training, numbers, secondary, evidence)
