"""The measures of a study by seed and item, and its numbers by seed.

A job that is missing or incomplete leaves a gap. If a measure lacks the job of a seed,
or a row that another seed has, it leaves out that seed. So every comparison uses the
same seeds.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from decoupled.analyses.neighbours import best_layer
from decoupled.core import files
from decoupled.reports.results import PRETRAINING, Number
from decoupled.reproduction import claims
from decoupled.reproduction.items import ResultReader
from decoupled.reproduction.jobs import DROPPED_TASK
from decoupled.reproduction.statistics import (
    CONTROL,
    LOGITS,
    NATS,
    POINTS,
    RANKS,
    Components,
    Measured,
    logits,
    ratios,
)
from decoupled.reproduction.verdicts import TrainedRun
from decoupled.runs.curve import Curve, crossing, crossing_level, read_curve
from decoupled.sweeps.jobs import LAYER_DROP

LAYERS, GEOMETRY = "layers", "geometry"

# (reader, seed) -> row -> component -> values of items, float64 [items].
Read = Callable[[ResultReader, int], Mapping[str, Components]]


class MeasureSource(NamedTuple):
    """The source of a measure.

    name, unit, better: of the measure. folder: name of the analysis or task.
    read: empty if there are no values. baseline: reader -> the value of a trivial
    baseline, or None.
    """

    name: str
    unit: str
    folder: str
    read: Read
    baseline: Callable[[ResultReader], float | None] = lambda reader: None
    better: int = 1


def read_measures(reader: ResultReader) -> dict[str, Measured]:
    """Name in `decoupled.reproduction.claims` -> measure, for available measures."""
    measures = {}
    for key, source in SOURCES.items():
        by_seed = {seed: source.read(reader, seed) for seed in reader.seeds}
        rows = list(dict.fromkeys(row for values in by_seed.values() for row in values))
        seeds = [s for s in reader.seeds if rows and set(by_seed[s]) == set(rows)]
        if seeds:
            values = {
                row: {
                    component: np.array(
                        [by_seed[s][row][component] for s in seeds], np.float64
                    )
                    for component in by_seed[seeds[0]][row]
                }
                for row in rows
            }
            baseline = source.baseline(reader)
            measures[key] = Measured(
                source.name, source.unit, tuple(seeds), values, baseline, source.better
            )
    return measures


def numbers_of(reader: ResultReader) -> Iterator[Number]:
    """The mean of every measure by row and seed, scores by layer, and exploratory
    numbers of embeddings and logits."""
    for row, seed, job in reader.models():
        total = files.read_json(os.path.join(job.folder, "eval.json"))["all"]
        for name, value in (
            ("masked-LM loss", total["masked_lm_loss"]),
            ("masked-LM accuracy", 100 * total["masked_lm_accuracy"]),
        ):
            yield Number(row, PRETRAINING, name, seed, value, job.folder)
    for key, source in SOURCES.items():
        for seed in reader.seeds:
            for row, components in source.read(reader, seed).items():
                folder = reader.folder(source.folder, row, seed)
                for name, values in components.items():
                    yield Number(row, key, name, seed, float(values.mean()), folder)
    for seed in reader.seeds:
        if analysed := reader.analysed("neighbours", seed):
            for row, hits in analysed.arrays("hits").items():
                for layer, values in enumerate(hits):
                    value, name = 100 * float(values.mean()), f"layer {layer}"
                    yield Number(row, LAYERS, name, seed, value, analysed.folder)
        # The scores with all layers are those of the task.
        for row, kept, scores, folder in reader.dropped(seed):
            value = float(np.mean([items.mean() for items in scores.values()]))
            yield Number(row, LAYER_DROP, f"layers 1 to {kept}", seed, value, folder)
        if analysed := reader.analysed(GEOMETRY, seed):
            for row, model in zip(
                analysed.rows, analysed.result["models"], strict=True
            ):
                for name, value in _geometry(model):
                    yield Number(row, GEOMETRY, name, seed, value, analysed.folder)


def _geometry(model):
    yield "gradient that arrives, %", 100 * model["gradient"]["share"]
    yield "of a random map, %", 100 * model["gradient"]["random_share"]
    yield "rank of logits", float(model["logits"]["rank"])
    yield "effective rank of logits", model["logits"]["effective_rank"]
    # Geometry of an earlier version has no embeddings.
    for table in model.get("embeddings", ()):
        yield f"effective rank, {table['embedding']}", table["effective_rank"]


def read_curves(reader: ResultReader) -> dict[tuple[str, int], Curve]:
    """(row, seed) -> training loss by step, without controls."""
    return {
        (row, seed): read_curve(job.folder)
        for row, seed, job in reader.models()
        if not row.startswith(CONTROL)
    }


def unigram_entropy(reader: ResultReader) -> dict[str, float]:
    """Language -> nats per token of held-out text; empty if it was not measured."""
    return (reader.any_result("masked_lm") or {}).get("unigram_entropy", {})


def plateau(reader: ResultReader) -> float:
    """The training loss below which a run has left the plateau; see `curve`."""
    shares = None
    for _, _, job in reader.models():
        drawn = files.read_json(os.path.join(job.folder, "sampling.json"))
        shares = {language: counts["drawn"] for language, counts in drawn.items()}
        break
    return crossing_level(unigram_entropy(reader), shares)


def read_runs(
    reader: ResultReader, curves: Mapping[tuple[str, int], Curve], loss: Measured | None
) -> dict[str, dict[int, TrainedRun]]:
    """Row -> seed -> the progress of training.

    A run without a measured held-out loss has NaN there and counts as untrained.
    """
    entropy = unigram_entropy(reader)
    if not entropy:
        return {}
    below: dict[tuple[str, int], float] = {}
    for row, languages in loss.values.items() if loss else ():
        gaps = [
            entropy[name] - losses.mean(axis=1) for name, losses in languages.items()
        ]
        for seed, gap in zip(loss.seeds, np.min(gaps, axis=0).tolist(), strict=True):
            below[row, seed] = gap
    level, runs = plateau(reader), {}
    for (row, seed), curve in curves.items():
        run = TrainedRun(below.get((row, seed), math.nan), crossing(curve, level))
        runs.setdefault(row, {})[seed] = run
    return runs


def _retrieval(reader, seed):
    """Retrieval in the layer of each model that is best on dev sentences."""
    dev, test = (reader.analysed(n, seed) for n in ("neighbours_dev", "neighbours"))
    if not dev or not test:
        return {}
    layers = dict(zip(dev.rows, best_layer(dev.result), strict=True))
    return {
        row: {"P@1": 100.0 * hits[layers[row]].mean(axis=0)}
        for row, hits in test.arrays("hits").items()
        if row in layers
    }


def _last_layer(value: Callable[[np.ndarray], np.ndarray]) -> Read:
    """The last layer minus the mean of those below it; items are sentences."""

    def read(reader, seed):
        analysed, rows = reader.analysed("neighbours", seed), {}
        for row, hits in analysed.arrays("hits").items() if analysed else ():
            *below, last = hits.mean(axis=1)[1:]
            if below:
                fall = value(last) - np.mean([value(layer) for layer in below], axis=0)
                rows[row] = {"last layer": fall}
        return rows

    return read


def _masked_lm(key: str, times: float) -> Read:
    """A component for each language; items are held-out sequences."""

    def read(reader, seed):
        analysed = reader.analysed("masked_lm", seed)
        if not analysed:
            return {}
        languages = np.array([language for language, _ in analysed.result["items"]])
        counts = analysed.arrays("predictions")
        return {
            row: {
                language: times
                * ratios(
                    values[None, languages == language],
                    counts[row][None, languages == language],
                )[0]
                for language in sorted(set(languages.tolist()))
            }
            for row, values in analysed.arrays(key).items()
        }

    return read


def _words(key: str) -> Read:
    """Pairs that share a word are one item."""

    def read(reader, seed):
        analysed = reader.analysed("word_translation", seed)
        if not analysed:
            return {}
        groups = np.array(analysed.result["groups"])
        return _by_group("MRR", groups, analysed.arrays(key))

    return read


def _probes(task: str) -> Read:
    """Items are sentences, with a value for all of their targets."""

    def read(reader, seed):
        analysed = reader.analysed("probing", seed)
        if not analysed or task not in analysed.result["tasks"]:
            return {}
        names = [name for name, _ in analysed.result["tasks"][task]["items"]]
        _, sentences = np.unique(names, return_inverse=True)
        return _by_group(task, sentences, analysed.arrays(task))

    return read


def _by_group(component, groups, values):
    """Row -> the component x 100; each group of values is one item."""
    counts = np.bincount(groups)[None]
    return {
        row: {component: 100.0 * ratios(np.bincount(groups, correct)[None], counts)[0]}
        for row, correct in values.items()
    }


def _similarity(reader, seed):
    """Spearman x 100 of the output embedding, or of the only one; a set has one item.

    A set in which a model has no correlation leaves the model out.
    """
    analysed, rows = reader.analysed("word_similarity", seed), {}
    if not analysed:
        return rows
    for row, model in zip(analysed.rows, analysed.result["models"], strict=True):
        entries = [
            entry
            for entry in model["correlations"]
            if entry["score"] == "dot" and entry["embedding"] != "input"
        ]
        if entries and all(entry["spearman"] is not None for entry in entries):
            rows[row] = {
                entry["set"]: np.array([100.0 * entry["spearman"]]) for entry in entries
            }
    return rows


def _drop(reader, seed):
    """The tagging score with all layers minus the score without the last one."""
    whole, fewer = reader.tuned_rows(seed, DROPPED_TASK), {}
    for row, kept, scores, _ in reader.dropped(seed):
        if row in whole and kept > fewer.get(row, (0,))[0]:
            fewer[row] = kept, scores
    return {
        row: {
            component: whole[row][component] - dropped[component]
            for component in dropped
        }
        for row, (_, dropped) in fewer.items()
    }


def _guess(reader):
    result = reader.any_result("neighbours")
    return result and 100 / len(result["items"])


def _entropy(reader):
    entropy = unigram_entropy(reader)
    return float(np.mean([*entropy.values()])) if entropy else None


def _random_words(reader):
    result = reader.any_result("word_translation")
    return result and float(np.mean([pair["random_order"] for pair in result["pairs"]]))


def _task_source(name, task):
    return MeasureSource(
        name,
        POINTS,
        task,
        lambda reader, seed: reader.tuned_rows(seed, task),
        lambda reader: reader.guess(task),
    )


def _probe_source(name, task):
    def lookup(reader):
        """The score of the word lookup, or None."""
        tasks = (reader.any_result("probing") or {"tasks": {}})["tasks"]
        return 100 * tasks[task]["baseline"] if task in tasks else None

    return MeasureSource(name, POINTS, "probing", _probes(task), lookup)


def _translation_source(embedding):
    name = f"translation of words by the {embedding} embedding"
    return MeasureSource(
        name, RANKS, "word_translation", _words(embedding), _random_words
    )


_LAST = "the last layer of retrieval minus those below"
SOURCES = {
    claims.RETRIEVAL: MeasureSource(
        "retrieval of translations", POINTS, "neighbours", _retrieval, _guess
    ),
    claims.UD_POS: _task_source("UD-POS", "udpos"),
    claims.PROBES: _probe_source("probes of dependencies", "dependencies"),
    claims.POS_PROBES: _probe_source("probes of parts of speech", "pos"),
    claims.LOSS: MeasureSource(
        "masked-LM loss", NATS, "masked_lm", _masked_lm("loss", 1.0), _entropy, -1
    ),
    claims.ACCURACY: MeasureSource(
        "masked-LM accuracy", POINTS, "masked_lm", _masked_lm("correct", 100.0)
    ),
    claims.SIMILARITY: MeasureSource(
        "word similarity by the output embedding", POINTS, "word_similarity",
        _similarity,
    ),
    claims.INPUT_WORDS: _translation_source("input"),
    claims.OUTPUT_WORDS: _translation_source("output"),
    claims.LAST_LAYER: MeasureSource(
        _LAST, LOGITS, "neighbours", _last_layer(lambda x: logits(x[None])[0])
    ),
    claims.LAST_LAYER_POINTS: MeasureSource(
        _LAST, POINTS, "neighbours", _last_layer(lambda x: 100.0 * x)
    ),
    claims.LAYER_DROP: MeasureSource(
        "what the last layer is worth", POINTS, "udpos", _drop
    ),
    claims.BOOKS: _task_source("groups of books", "books"),
    claims.SIB200: _task_source("SIB-200", "sib200"),
}  # fmt: skip
