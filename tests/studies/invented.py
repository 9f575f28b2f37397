"""A study with planted effects, without any run."""

import dataclasses
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
ENTROPY = 6.0
# Every claim is supported by these: the paper's order, in points.
SCORES = {
    "coupled": 30.0, "decoupled": 30.0, "out_small": 28.0, "in_small": 28.0,
    "e_small": 24.0, "e_large": 31.0, "add_layers": 25.0, "reinv_l": 34.0,
    "reinv_h": 33.0, "in_small_head": 28.0, "control:coupled": 5.0,
    "control:e_small": 5.0,
}  # fmt: skip
ROWS = tuple(row for row in SCORES if not row.startswith(CONTROL))
WORDS = SCORES | {"e_large": 15.0}
FALLS = {"e_small": -1.0, "e_large": -0.3}


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


def measured(name, values, unit=POINTS, spread=1.0, baseline=None, better=1, seeds=5):
    """Rows with exactly these means, and noise of seeds, items and both around them."""
    generator = np.random.default_rng(sum(map(ord, name)))
    by_row = {}
    for row, mean_of_row in values.items():
        noise = (
            0.1 * generator.standard_normal((seeds, 1))
            + 0.5 * generator.standard_normal((1, 50))
            + generator.standard_normal((seeds, 50))
        )
        by_row[row] = {"all": mean_of_row + spread * (noise - noise.mean())}
    return Measured(name, unit, list(range(seeds)), by_row, baseline, better)


def measures(rows=ROWS, **changed):
    """Of all claims, for rows and their controls; `changed` ones in their place, None
    without."""
    losses = {row: 8 - value / 10 for row, value in SCORES.items()}
    planned = {
        "retrieval": measured("retrieval", SCORES),
        "udpos": measured("UD-POS", SCORES, baseline=20.0),
        "probes": measured("probes", SCORES, baseline=20.0),
        "masked_lm_accuracy": measured("masked-LM accuracy", SCORES),
        "masked_lm_loss": measured("masked-LM loss", losses, NATS, 0.1, 7.0, -1),
        "word_similarity": measured("word similarity", WORDS),
        "last_layer": measured("last layer", FALLS, LOGITS, 0.1),
    } | changed
    taken = {key: each for key, each in planned.items() if each is not None}
    for key, each in taken.items():
        left = {r: v for r, v in each.values.items() if r.removeprefix(CONTROL) in rows}
        taken[key] = dataclasses.replace(each, values=left)
    return taken


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
      rows: that were run. taken: measures, all but word similarity by default.
      void: rows that did not train. facts: changed ones.
    """
    taken = measures(rows, word_similarity=None) if taken is None else taken
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
