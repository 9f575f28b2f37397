"""Findings of a reproduction with planted effects, without any run."""

import numpy as np

from decoupled.core import files
from decoupled.reports.results import Number, Row
from decoupled.reproduction import claims
from decoupled.reproduction.finished import Findings, Told
from decoupled.reproduction.measured import (
    CONTROL,
    LOGITS,
    NATS,
    POINTS,
    RANKS,
    Measured,
)
from decoupled.runs.curve import Curve
from tests.helpers import tiny_model

ROWS = (*claims.PAPER_ROWS, "in_small_head", "e_large_head")
SEEDS = (0, 1, 2, 3, 4)
STEPS = 1000
ITEMS = 40
ENTROPY = 6.0
# Points above in_small, of each component of S.
EFFECTS = {
    "e_large": 3.0, "e_small": -2.0, "add_layers": -2.5, "reinv_l": 2.5, "coupled": 0.0,
    "reinv_h": 2.0, "out_small": -3.0,
}  # fmt: skip


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
    for row in claims.CONTROLLED:
        if row in values:
            drawn = generator.normal(0, noise, (len(SEEDS), ITEMS))
            values[CONTROL + row] = {part: base - better * gain + shared + drawn}
    return Measured(name, unit, SEEDS, values, base - better * gain / 2, better)


def measures(effects=EFFECTS, rows=ROWS, **changed):
    """All primary measures; changed: name -> keywords of `measured`."""
    words = {"e_small": 4.0, "in_small": 2.0}
    accuracy = {"e_large": 2.0, "e_small": -1.0}
    planned = {
        claims.RETRIEVAL: (POINTS, 50.0, effects),
        claims.UD_POS: (POINTS, 70.0, effects),
        claims.PROBES: (POINTS, 60.0, effects),
        claims.ACCURACY: (POINTS, 40.0, accuracy),
        claims.LOSS: (NATS, 3.0, {"e_small": 0.3}),
        claims.OUTPUT_WORDS: (RANKS, 30.0, words),
        claims.INPUT_WORDS: (RANKS, 33.0, {}),
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


def findings(folder, rows=ROWS, found=None, **changed):
    """Findings whose settings lie in `folder`.

    Args:
      rows: that were run. found: measures. changed: fields.
    """
    found = measures(rows=rows) if found is None else found
    numbers = []
    for name, one in found.items():
        for row in one.values:
            room = "control/models" if row.startswith(CONTROL) else "models"
            for seed, value in zip(one.seeds, one.by_seed(row), strict=True):
                run = f"{folder}/{room}/{row.removeprefix(CONTROL)}/seed_{seed}"
                settings = f"{run}/config.1.gin"
                files.make_folder(run)
                files.write_text(settings, f"TrainingConfig.seed = {seed}\n")
                numbers.append(Number(row, name, "mean", seed, value, run, settings))
    for row in ("e_small", "e_large"):
        for kept in (1, 2):
            numbers += [
                Number(row, claims.LAYER_DROP, f"layers 1 to {kept}", seed, 60.0 + kept)
                for seed in SEEDS
            ]
    numbers += [
        Number(row, "layers", f"layer {layer}", seed, percent)
        for row in rows
        for layer, percent in enumerate([4.0, 9.0, 12.0, 8.0])
        for seed in SEEDS
    ]
    models = {
        row: Row(row, tiny_model(), 1 if row == "add_layers" else 0, 900_000, 700_000)
        for row in rows
    }
    told = Told(
        text=["Text: 4 sentences."],
        steps=STEPS,
        activation_dtype="float32",
        machine="2 cores",
        seconds=60.0,
        command="decoupled reproduce --work_dir=w",
        left_out=["No questions."],
    )
    made = Findings(
        told=told,
        folder=str(folder),
        rows=models,
        seeds=SEEDS,
        measured=found,
        numbers=numbers,
        curves={
            (row, seed): curve(200 + 5 * seed + 10 * place)
            for place, row in enumerate(rows)
            for seed in SEEDS
        },
        unigram_entropy={"en": ENTROPY, "de": ENTROPY},
        shares={"en": 0.5, "de": 0.5},
        results={
            "geometry": {seed: geometry(folder, rows, seed) for seed in SEEDS},
            "masked_lm": {seed: held_out(folder, rows, seed) for seed in SEEDS},
        },
        seconds=3600.0,
        complete=9,
        jobs=9,
    )
    return made._replace(**changed)


def held_out(folder, rows, seed):
    """What `analyze masked_lm` says, as far as the document reads it."""
    bins = [{"from": 1, "to": 9, "loss": 7.0}, {"from": 10, "to": 99, "loss": 5.0}]
    return {
        "models": [
            {
                "folder": f"{folder}/models/{row}/seed_{seed}",
                "all": {"by_frequency": bins},
            }
            for row in rows
        ]
    }


def geometry(folder, rows, seed):
    """What `analyze geometry` says, as far as the document reads it."""
    described = [
        {
            "name": row,
            "folder": f"{folder}/models/{row}/seed_{seed}",
            "layers": [{"layer": layer, "predicted": 0.2} for layer in range(4)],
            "gradient": {"share": 0.25, "random_share": 0.024},
            "logits": {"rank": 96, "bound": 97, "effective_rank": 41.0},
        }
        for row in rows
    ]
    pairs = [
        {
            "first": {"model": "coupled", "embedding": "coupled"},
            "second": {"model": row, "embedding": kind},
            "cka": 0.75,
        }
        for row in rows
        if row != "coupled" and "coupled" in rows
        for kind in ("input", "output")
    ]
    return {"models": described, "pairs": pairs}
