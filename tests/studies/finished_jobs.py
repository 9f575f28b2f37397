"""Folders as the finished jobs of a reproduction leave them, with planted values."""

import json
import os

import numpy as np

from decoupled.core.files import write_arrays
from decoupled.studies.jobs import ANALYSES, seed_of
from decoupled.studies.study_jobs import StudyJobs, row_of_model
from decoupled.training.events import write_scalars

LANGUAGES = ("de", "en")
VERSES, SEQUENCES = 10, 4
# Row -> how many of 10 verses find their translation in layers 0 to 3, on test.
HIT_COUNTS = {
    "in_small": (1, 4, 6, 5),
    "e_small": (1, 3, 5, 1),
    "e_large": (1, 5, 7, 7),
}
LOSSES = {"in_small": 3.0, "e_small": 4.0, "e_large": 2.5}


def complete(job, seconds=10.0):
    """Marks a job as complete and gives it the settings of its seed."""
    job.record(seconds, job.made_from())
    with open(f"{job.folder}/config.1.gin", "w") as handle:
        handle.write(f"TrainingConfig.seed = {seed_of(job.name)}\n")


def write(job):
    """Writes what the job leaves, if its values are planted here."""
    os.makedirs(job.folder, exist_ok=True)
    if job.kind == "pretrain":
        _write_pretraining(job)
    elif job.name.startswith(ANALYSES):
        make_results = _RESULTS[job.name.split("/")[1]]
        rows = [row_of_model(need) for need in job.needs]
        result, arrays = make_results(rows, seed_of(job.name))
        stem = f"{job.folder}/{job.arguments[0]}"
        with open(f"{stem}.json", "w") as handle:
            json.dump(result, handle)
        write_arrays(f"{stem}.items.npz", arrays)
    else:
        return
    complete(job)


def _write_pretraining(job):
    row = row_of_model(job.name)
    total = {"masked_lm_loss": 3.0, "masked_lm_accuracy": 0.25}
    with open(f"{job.folder}/eval.json", "w") as handle:
        json.dump({"all": total}, handle)
    with open(f"{job.folder}/sampling.json", "w") as handle:
        json.dump({language: {"drawn": 0.5} for language in LANGUAGES}, handle)
    if "control" not in row:
        for step in (50, 100, 150):
            write_scalars(job.folder, step, {"loss": 7.0 - step / 50})


def hits(row, seed, dev=False):
    """uint8 [layers, directions, verses]; a control finds one verse everywhere. On dev
    the second layer is best, in every row."""
    result = np.zeros([4, 2, VERSES], np.uint8)
    counts = HIT_COUNTS.get(row, (1, 1, 1, 1))
    if dev:
        counts = (9, 2, 8, 3)
    for layer, count in enumerate(counts):
        result[layer, :, seed % 2 : seed % 2 + count] = 1
    return result


def _neighbours(dev):
    def make_results(rows, seed):
        result = {"items": [f"v{n}" for n in range(VERSES)]}
        arrays = [hits(row, seed, dev) for row in rows]
        return result, {f"{i}/hits": of_row for i, of_row in enumerate(arrays)}

    return make_results


def _masked_lm(rows, seed):
    result = {
        "items": [[language, n] for language in LANGUAGES for n in range(SEQUENCES)],
        "unigram_entropy": {"de": 6.0, "en": 5.0},
    }
    counts = np.array([10.0, 20, 10, 20] * 2)
    arrays = {}
    for index, row in enumerate(rows):
        # German is 0.5 nats harder.
        loss = LOSSES.get(row, 6.0) + 0.01 * seed
        arrays[f"{index}/loss"] = counts * np.repeat([loss + 0.5, loss], SEQUENCES)
        arrays[f"{index}/correct"] = counts / 4
        arrays[f"{index}/predictions"] = counts
    model = {
        "logits": {"rank": 96, "bound": 97, "effective_rank": 41.0 + seed},
        "embeddings": [{"embedding": "input", "effective_rank": 8.5 + seed}],
    }
    result["models"] = [model] * len(rows)
    return result, arrays


def _probing(rows, seed):
    tasks = {"pos": 0.5, "dependencies": 0.3}
    result = {
        "tasks": {
            task: {"items": [[0, 0], [0, 1], [1, 0]], "baseline": share}
            for task, share in tasks.items()
        }
    }
    arrays = {
        f"{index}/{task}{variant}": np.array([1, seed % 2, 0], np.uint8)
        for index in range(len(rows))
        for task in tasks
        for variant in ("", "/layers/1")
    }
    return result, arrays


_RESULTS = {
    "probing": _probing,
    "neighbours": _neighbours(False),
    "neighbours_dev": _neighbours(True),
    "masked_lm": _masked_lm,
}


def write_all(maker: StudyJobs, seeds):
    """The jobs of these seeds, of which pre-training and some analyses are complete."""
    jobs = [job for seed in seeds for job in maker.of_seed(seed)]
    for job in jobs:
        write(job)
    return jobs
