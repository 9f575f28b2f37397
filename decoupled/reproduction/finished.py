"""Reads everything that a document of the reproduction needs from finished jobs.

A job that is missing or incomplete leaves a gap. If a measure lacks the job of a seed,
or a row that another seed has, it leaves out that seed. So every comparison uses the
same seeds.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.neighbours import best_layer
from decoupled.core import files
from decoupled.model.parameters import finetuning_counts, pretraining_counts
from decoupled.reports.results import PRETRAINING, Number, Row, settings_of
from decoupled.reproduction import claims
from decoupled.reproduction.jobs import DROPPED_TASK, LAYER_DROP, seed_of
from decoupled.reproduction.measured import (
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
from decoupled.reproduction.reader import Reader
from decoupled.runs.curve import Curve, read_curve
from decoupled.sweeps.jobs import RECORD, Job, complete_jobs


class Told(NamedTuple):
    """Facts about the study that are not measured by jobs.

    text: sentences on the training text. steps: of pre-training.
    activation_dtype: of pre-training. machine: cores, processor, Python. seconds: of
    the steps that made the data. command: the command that makes the document.
    left_out: sentences on what is missing or differs from the paper.
    """

    text: Sequence[str]
    steps: int
    activation_dtype: str
    machine: str
    seconds: float
    command: str
    left_out: Sequence[str]


class Findings(NamedTuple):
    """The contents of a document.

    told: see `Told`. folder: of the jobs. rows: the rows that were run, by name, in
    order, with sizes and parameters. seeds: the planned seeds.
    measured: name as in `reproduction.claims` -> values; a seed that is missing in one
    row is left out of all.
    numbers: every mean by row, measure (`task`), detail (`metric`) and seed, each with
    the folder that it was read from and its settings. Rows of controls are called
    "control:ROW".
    curves: (row, seed) -> loss of pre-training by step.
    unigram_entropy: language -> nats per token of held-out text. shares: language ->
    its share of the training sequences.
    results: name of an analysis -> seed -> its JSON, for analyses without items
    (geometry) and for details.
    seconds: the sum over the data and all complete jobs. complete, jobs: the numbers of
    complete jobs and of all jobs.
    """

    told: Told
    folder: str
    rows: Mapping[str, Row]
    seeds: Sequence[int]
    measured: Mapping[str, Measured]
    numbers: Sequence[Number]
    curves: Mapping[tuple[str, int], Curve]
    unigram_entropy: Mapping[str, float]
    shares: Mapping[str, float]
    results: Mapping[str, Mapping[int, Mapping[str, Any]]]
    seconds: float
    complete: int
    jobs: int

    @property
    def is_english(self) -> bool:
        """Whether the models know English alone, unlike most of the paper's."""
        return list(self.unigram_entropy) == ["en"]


def read_findings(
    jobs: Sequence[Job],
    rows: Sequence[Any],
    folder: str,
    tasks: Mapping[str, str],
    told: Told,
) -> Findings:
    """Reads all complete jobs.

    Args:
      jobs: of all seeds. rows: the models, `decoupled.sweeps.jobs.Row`. folder: of the
        jobs. tasks: task -> the parent of its folder. told: the facts about the study.

    Raises:
      UserError: a file is damaged, or the analyses of two seeds have different items.
    """
    complete = complete_jobs(jobs)
    reader = Reader(complete, tasks)
    curves = {
        (row, seed): read_curve(job.folder)
        for row, seed, job in reader.models()
        if not row.startswith(CONTROL)
    }
    seconds = told.seconds + sum(
        files.read_json(os.path.join(job.folder, RECORD)).get("seconds", 0.0)
        for job in complete
    )
    entropy = (reader.any_result("masked_lm") or {}).get("unigram_entropy", {})
    return Findings(
        told=told,
        folder=folder,
        rows={row.name: _counted(row) for row in rows},
        seeds=tuple(dict.fromkeys(seed_of(job.name) for job in jobs)),
        measured=_read_measures(reader),
        numbers=_read_numbers(reader),
        curves=curves,
        unigram_entropy=entropy,
        shares=_shares(reader),
        results=reader.results(),
        seconds=seconds,
        complete=len(complete),
        jobs=len(jobs),
    )


def _counted(row):
    pretraining = sum(pretraining_counts(row.model).values())
    finetuning = sum(finetuning_counts(row.model, row.keep_layers).values())
    return Row(row.name, row.model, row.keep_layers, pretraining, finetuning)


def _shares(reader):
    """Language -> its share of the training sequences."""
    for _, _, job in reader.models():
        drawn = files.read_json(os.path.join(job.folder, "sampling.json"))
        return {language: one["drawn"] for language, one in drawn.items()}
    return {}


# (reader, seed) -> row -> component -> values of items, float64 [items].
Read = Callable[[Reader, int], Mapping[str, Components]]


class Source(NamedTuple):
    """The source of a measure.

    name, unit, better: of the measure. folder: name of the analysis or task.
    read: reads its values; empty if there are none. baseline: reader -> the value of a
    trivial baseline, or None.
    """

    name: str
    unit: str
    folder: str
    read: Read
    baseline: Callable[[Reader], float | None] = lambda reader: None
    better: int = 1


def _read_measures(reader: Reader) -> dict[str, Measured]:
    """Name in `decoupled.reproduction.claims` -> measure, for available measures."""
    found = {}
    for key, source in SOURCES.items():
        by_seed = {seed: source.read(reader, seed) for seed in reader.seeds}
        rows = list(dict.fromkeys(row for one in by_seed.values() for row in one))
        seeds = [s for s in reader.seeds if rows and set(by_seed[s]) == set(rows)]
        if not seeds:
            continue
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
        found[key] = Measured(
            source.name, source.unit, tuple(seeds), values, baseline, source.better
        )
    return found


def _read_numbers(reader: Reader) -> list[Number]:
    """The mean of every measure by row and seed, and scores by layer."""
    return [
        Number(row, task, metric, seed, value, folder, settings_of(folder))
        for row, task, metric, seed, value, folder in _numbers(reader)
    ]


def _numbers(reader):
    """The fields of each `Number` without settings."""
    for row, seed, job in reader.models():
        total = files.read_json(os.path.join(job.folder, "eval.json"))["all"]
        for name, value in (
            ("masked-LM loss", total["masked_lm_loss"]),
            ("masked-LM accuracy", 100 * total["masked_lm_accuracy"]),
        ):
            yield row, PRETRAINING, name, seed, value, job.folder
    for key, source in SOURCES.items():
        for seed in reader.seeds:
            for row, components in source.read(reader, seed).items():
                folder = reader.folder(source.folder, row, seed)
                for component, values in components.items():
                    yield row, key, component, seed, float(values.mean()), folder
    for seed in reader.seeds:
        for row, hits in reader.arrays("neighbours", seed, "hits").items():
            folder = reader.folder("neighbours", row, seed)
            for layer, own in enumerate(hits):
                value = 100 * float(own.mean())
                yield row, "layers", f"layer {layer}", seed, value, folder
    # The scores with all layers are those of the task.
    for seed in reader.seeds:
        for row, kept, scores, folder in _dropped(reader, seed):
            value = float(np.mean([one.mean() for one in scores.values()]))
            yield row, LAYER_DROP, f"layers 1 to {kept}", seed, value, folder


def _dropped(reader: Reader, seed: int) -> Iterator[tuple[str, int, Components, str]]:
    """Row, layers kept, scores and folder of each fine-tuning of the first layers."""
    for name, job in reader.jobs.items():
        if name.startswith(f"{LAYER_DROP}/") and seed_of(name) == seed:
            _, _, row, keep, _ = name.split("/")
            scores = reader.tuned(name, DROPPED_TASK)
            yield row, int(keep.removeprefix("keep_")), scores, job.folder


def _retrieval(reader, seed):
    """Retrieval in the layer of each model that is best on dev sentences."""
    dev = reader.analysed("neighbours_dev").get(seed)
    layers = dict(zip(dev.rows, best_layer(dev.result), strict=True)) if dev else {}
    hits = reader.arrays("neighbours", seed, "hits")
    return {
        row: {"P@1": 100.0 * own[layers[row]].mean(axis=0)}
        for row, own in hits.items()
        if row in layers
    }


def _last_layer(value: Callable[[np.ndarray], np.ndarray]) -> Read:
    """The last layer minus the mean of those below it; items are sentences."""

    def read(reader, seed):
        found = {}
        for row, hits in reader.arrays("neighbours", seed, "hits").items():
            *below, last = hits.mean(axis=1)[1:]
            if below:
                fall = value(last) - np.mean([value(own) for own in below], axis=0)
                found[row] = {"last layer": fall}
        return found

    return read


def _masked_lm(key: str, times: float) -> Read:
    """A component for each language; items are held-out sequences."""

    def read(reader, seed):
        found = reader.analysed("masked_lm").get(seed)
        if not found:
            return {}
        languages = np.array([language for language, _ in found.result["items"]])
        counts = reader.arrays("masked_lm", seed, "predictions")
        return {
            row: {
                language: times
                * ratios(
                    own[None, languages == language],
                    counts[row][None, languages == language],
                )[0]
                for language in sorted(set(languages.tolist()))
            }
            for row, own in reader.arrays("masked_lm", seed, key).items()
        }

    return read


def _words(key: str) -> Read:
    """Pairs that share a word are one item."""

    def read(reader, seed):
        found = reader.analysed("word_translation").get(seed)
        if not found:
            return {}
        values = reader.arrays("word_translation", seed, key)
        return _by_group("MRR", np.array(found.result["groups"]), values)

    return read


def _probes(task: str) -> Read:
    """Items are sentences, with a value for all of their targets."""

    def read(reader, seed):
        found = reader.analysed("probing").get(seed)
        if not found or task not in found.result["tasks"]:
            return {}
        names = [sentence for sentence, _ in found.result["tasks"][task]["items"]]
        _, sentences = np.unique(names, return_inverse=True)
        return _by_group(task, sentences, reader.arrays("probing", seed, task))

    return read


def _by_group(component, groups, values):
    """Row -> the component x 100; each group of values is one item."""
    counts = np.bincount(groups)[None]
    return {
        row: {component: 100.0 * ratios(np.bincount(groups, own)[None], counts)[0]}
        for row, own in values.items()
    }


def _drop(reader, seed):
    """The tagging score with all layers minus the score without the last one."""
    whole, found = reader.tuned_rows(seed, DROPPED_TASK), {}
    for row, kept, scores, _ in _dropped(reader, seed):
        if row in whole and kept > found.get(row, (0,))[0]:
            found[row] = kept, scores
    return {
        row: {component: whole[row][component] - own[component] for component in own}
        for row, (_, own) in found.items()
    }


def _guess(reader):
    result = reader.any_result("neighbours")
    return result and 100 / len(result["items"])


def _entropy(reader):
    result = reader.any_result("masked_lm")
    return result and float(np.mean([*result["unigram_entropy"].values()]))


def _random_words(reader):
    result = reader.any_result("word_translation")
    return result and float(np.mean([one["random_order"] for one in result["pairs"]]))


def _task(name, task):
    return Source(
        name,
        POINTS,
        task,
        lambda reader, seed: reader.tuned_rows(seed, task),
        lambda reader: reader.guess(task),
    )


def _probe(name, task):
    def lookup(reader):
        """The score of the word lookup, or None."""
        tasks = (reader.any_result("probing") or {"tasks": {}})["tasks"]
        return 100 * tasks[task]["baseline"] if task in tasks else None

    return Source(name, POINTS, "probing", _probes(task), lookup)


def _translation(embedding):
    name = f"translation of words by the {embedding} embedding"
    return Source(name, RANKS, "word_translation", _words(embedding), _random_words)


_LAST = "the last layer of retrieval minus those below"
SOURCES = {
    claims.RETRIEVAL: Source(
        "retrieval of translations", POINTS, "neighbours", _retrieval, _guess
    ),
    claims.UD_POS: _task("UD-POS", "udpos"),
    claims.PROBES: _probe("probes of dependencies", "dependencies"),
    claims.POS_PROBES: _probe("probes of parts of speech", "pos"),
    claims.LOSS: Source(
        "masked-LM loss", NATS, "masked_lm", _masked_lm("loss", 1.0), _entropy, -1
    ),
    claims.ACCURACY: Source(
        "masked-LM accuracy", POINTS, "masked_lm", _masked_lm("correct", 100.0)
    ),
    claims.INPUT_WORDS: _translation("input"),
    claims.OUTPUT_WORDS: _translation("output"),
    claims.LAST_LAYER: Source(
        _LAST, LOGITS, "neighbours", _last_layer(lambda x: logits(x[None])[0])
    ),
    claims.LAST_LAYER_POINTS: Source(
        _LAST, POINTS, "neighbours", _last_layer(lambda x: 100.0 * x)
    ),
    claims.LAYER_DROP: Source("what the last layer is worth", POINTS, "udpos", _drop),
    claims.BOOKS: _task("groups of books", "books"),
    claims.SIB200: _task("SIB-200", "sib200"),
}
