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
    record = json.loads((DOCS / "first/study.json").read_text())
    return StudyConfig(
        first_rows=(),
        learning_rates={},
        control_rows=("coupled", "e_small"),
        dropped_rows=(),
        most_dropped=0,
        claims={key: tuple(texts) for key, texts in record["claims"].items()},
        papers=record["papers"],
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


def measures(rows=ROWS, **changes):
    """The measures of all claims, for rows and their controls, by key.

    `changes` replaces some of them, or leaves them out where it is None.
    """
    losses = {row: 8 - value / 10 for row, value in SCORES.items()}
    by_key = {
        "retrieval": measured("retrieval", SCORES),
        "udpos": measured("UD-POS", SCORES, baseline=20.0),
        "probes": measured("probes", SCORES, baseline=20.0),
        "masked_lm_accuracy": measured("masked-LM accuracy", SCORES),
        "masked_lm_loss": measured("masked-LM loss", losses, NATS, 0.1, 7.0, -1),
        "word_similarity": measured("word similarity", WORDS),
        "last_layer": measured("last layer", FALLS, LOGITS, 0.1),
    } | changes
    by_key = {key: measure for key, measure in by_key.items() if measure is not None}
    for key, measure in by_key.items():
        by_row = measure.values.items()
        values = {row: v for row, v in by_row if row.removeprefix(CONTROL) in rows}
        by_key[key] = dataclasses.replace(measure, values=values)
    return by_key


def curve(start, final=3.0):
    """A curve that falls from the unigram entropy to `final` after step `start`."""
    steps = np.arange(10, STEPS + 1, 10)
    fall = np.clip((steps - start) / (STEPS - start), 0, 1) ** 0.5
    return Curve(steps, ENTROPY - (ENTROPY - final) * fall)


def curves(rows=ROWS):
    """A curve for each row and seed."""
    return {
        (row, seed): curve(200 + 5 * seed + 10 * place)
        for place, row in enumerate(rows)
        for seed in SEEDS
    }


def study(rows=ROWS, by_key=None, void_rows=(), **facts):
    """A study.

    Args:
      rows: that were run. by_key: measures, all but word similarity by default.
      void_rows: rows that did not train. facts: changes of facts.
    """
    by_key = measures(rows, word_similarity=None) if by_key is None else by_key
    numbers = [
        Number(row, name, "mean", seed, float(value), f"runs/{row}/seed_{seed}")
        for name, measure in by_key.items()
        for row in measure.values
        for seed, value in zip(measure.seeds, measure.by_seed(row), strict=True)
    ]
    numbers += [
        Number(row, claims.LAYER_DROP, f"layers 1 to {layers}", seed, 60.0 + layers)
        for row in ("e_small", "e_large")
        if row in rows
        for layers in (1, 2)
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
    row_by_name = {
        row: Row(row, tiny_model(), 1 if row == "add_layers" else 0) for row in rows
    }
    reasons = {row: f"Row {row} did not train." * (row in void_rows) for row in rows}
    steps = mean(dict.fromkeys(SEEDS, 300.0), digits=0)
    training = {row: Training(steps, "3.00", "3.10", reasons[row]) for row in rows}
    facts = {
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
    } | facts
    secondary = secondary_of(first_study())
    evidence = gather(by_key, reasons, first_study(), secondary)
    return Study(facts, row_by_name, training, numbers, secondary, evidence)
