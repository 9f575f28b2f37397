"""Folders as a complete reproduction leaves them, with planted numbers."""

import json

from tests.helpers import tiny_model

SEEDS = (0, 1, 2)
MAJORITY = 40.0
# Scores of the three seeds.
SCORES = {
    "e_out_128": (50.0, 52.0, 51.0),
    "e_out_768": (53.0, 55.2, 53.9),
    # 3, 3.2 and 2.8 above the one before.
    "e_out_3072": (56.0, 58.4, 56.7),
    # 0.1, -0.1 and 0 from each other.
    "coupled": (54.0, 55.0, 56.0),
    "decoupled": (54.1, 54.9, 56.0),
    "large_in_small_out": (50.0, 52.0, 51.0),
    # -8, 4 and 4 from e_out_768.
    "additional_layers_23": (61.0, 51.2, 49.9),
    "reinvested_h": (57.0, 58.0, 59.1),
    # 3, 3.1 and 2.9 below the coupled model.
    "reinvested_l": (51.0, 51.9, 53.1),
}
SIZES = {"e_out_128": 8, "e_out_768": 16, "e_out_3072": 64}
LAYERS = 3


def model_of(row, layers=LAYERS):
    """The sizes of a row."""
    return tiny_model(
        output_embedding_size=SIZES.get(row, 16),
        num_layers=layers,
        coupled=row == "coupled",
        input_embedding_size=16 if row == "coupled" else 8,
    )


def write_json(path, content):
    """Writes `content` and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def complete(folder, seconds=10.0):
    """Marks a job as complete and gives it the settings of its seed."""
    write_json(folder / "job.json", {"arguments": [], "seconds": seconds})
    seed = folder.name.removeprefix("seed_")
    (folder / "config.1.gin").write_text(f"TrainingConfig.seed = {seed}\n")


def write_reproduction(folder, rows=tuple(SCORES), seeds=SEEDS):
    """sweep.json and the folders of all jobs; returns `folder`."""
    described = {
        "title": "Tables",
        "tasks": ["catalogs"],
        "seeds": list(seeds),
        "rows": [
            {"name": row, "model": vars(model_of(row)), "keep_layers": 0}
            for row in rows
        ],
        "jobs": [],
    }
    write_json(folder / "sweep.json", described)
    for seed in seeds:
        for row in rows:
            run = folder / "models" / row / f"seed_{seed}"
            accuracy = (10 + SIZES.get(row, 16) / 8 + 0.1 * seed) / 100
            write_json(run / "eval.json", {"all": {"masked_lm_accuracy": accuracy}})
            complete(run)
            write_score(
                folder / "tasks" / "catalogs" / row / f"seed_{seed}",
                row,
                SCORES[row][seed],
            )
        if "e_out_128" in rows:
            write_control(folder, seed)
        for row in set(rows) & set(SIZES):
            write_dropped(folder, row, seed)
        write_analyses(folder, rows, seed)
    return folder


def write_score(run, row, score, layers=LAYERS):
    """What fine-tuning leaves, in two languages with the same score."""
    values = {"accuracy": score, "trivial_accuracy": MAJORITY, "examples": 50}
    results = {"task": "catalogs", "learning_rate": 1e-4, "runs": [], "test": {}}
    write_json(run / "results.json", {**results, "dev": {"en": values, "de": values}})
    described = {
        "format": "decoupled-model-1",
        "command": "finetune",
        "model": vars(model_of(row, layers)),
        "vocabulary": {"fingerprint": "0" * 64, "vocab_size": 48},
        "task": {"name": "catalogs", "labels": ["no", "yes"]},
        "data": {},
    }
    write_json(run / "config.json", described)
    complete(run)


def write_dropped(folder, row, seed):
    """Without its last layer e_out_128 loses nothing, e_out_3072 2 points or so."""
    for keep in (1, 2):
        loss = {"e_out_128": 0.0, "e_out_768": 1.0, "e_out_3072": 2.0}[row]
        lost = (LAYERS - keep) * (loss + 0.1 * seed)
        run = folder / "layer_drop" / "catalogs" / row / f"keep_{keep}" / f"seed_{seed}"
        write_score(run, row, SCORES[row][seed] - lost, layers=keep)


def write_control(folder, seed):
    """After one step of pre-training e_out_128 scores 6, 6.5 and 7 points less."""
    run = folder / "control" / "models" / "e_out_128" / f"seed_{seed}"
    write_json(run / "eval.json", {})
    complete(run)
    run = folder / "control" / "tasks" / "catalogs" / "e_out_128" / f"seed_{seed}"
    write_score(run, "e_out_128", SCORES["e_out_128"][seed] - 6 - seed / 2)


def write_analyses(folder, rows, seed):
    """Neighbours, word similarity, spectrum and probes of all models of a seed."""
    models = [
        {"folder": f"{folder}/models/{row}/seed_{seed}", "row": row} for row in rows
    ]
    results = {
        "neighbours": _neighbours,
        "word_similarity": _similarity,
        "spectrum": _spectrum,
        "probing": _probing,
    }
    for name, make in results.items():
        run = folder / "analyses" / name / f"seed_{seed}"
        made = [{**model, **make(model["row"], seed)} for model in models]
        write_json(run / f"{name}.json", {"analysis": name, "models": made})
        complete(run)
        if name in ("spectrum", "word_similarity"):
            (run / "config.1.gin").unlink()


def _neighbours(row, seed):
    # e_out_128 falls by 30 from its best layer, e_out_3072 by 10; layer 0 is best.
    last = {"e_out_128": 20.0, "e_out_3072": 40.0}.get(row, 35.0)
    accuracies = [90.0, 40.0, 50.0, last + 0.2 * seed]
    layers = [
        {"layer": i, "pairs": 150, "forward": a} for i, a in enumerate(accuracies)
    ]
    further = [{**layer, "forward": layer["forward"] - 10} for layer in layers]
    return {
        "languages": [
            {"language": "de", "layers": layers},
            {"language": "sw", "layers": further},
        ]
    }


def _similarity(row, seed):
    if row == "coupled":
        kinds = {"input": 0.4}
    else:
        kinds = {"input": 0.4, "output": 0.4 - SIZES.get(row, 16) / 256}
    return {
        "correlations": [
            {
                "set": name,
                "embedding": kind,
                "score": score,
                "pairs": 200,
                "covered": 150,
                "spearman": value + 0.01 * seed if score == "dot" else 0.9,
            }
            for name in ("men", "verb143")
            for kind, value in kinds.items()
            for score in ("dot", "cosine")
        ]
    }


def _spectrum(row, seed):
    kinds = ("input",) if row == "coupled" else ("input", "output")
    return {
        "embeddings": [
            {"embedding": kind, "centred": {"effective_rank": 5.0 + seed}}
            for kind in kinds
        ]
    }


def _probing(row, seed):
    # 2 points between e_out_128 and e_out_3072, in every seed of test, not of dev.
    f1 = {"e_out_3072": 0.82}.get(row, 0.8) + 0.01 * seed
    dev = {"f1": 0.9}
    return {
        "probes": [
            {"task": "pos", "variant": "mix", "dev": dev, "test": {"f1": f1}},
            {"task": "dependencies", "variant": "mix", "dev": {"f1": f1 - 0.1}},
        ]
    }
