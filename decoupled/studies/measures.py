"""The measures of a study by seed and item, read from finished jobs.

A job that is missing or incomplete leaves a gap. If a measure lacks the job of a seed,
or a row that another seed has, it leaves out that seed. So every comparison uses the
same seeds.
"""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.studies import claims
from decoupled.studies.items import ItemScores, read_items
from decoupled.studies.jobs import ANALYSES, LAYER_DROP, RATES, Job, seed_of
from decoupled.studies.jobs import CONTROL as CONTROL_ROOM
from decoupled.studies.results import PRETRAINING, Number
from decoupled.studies.statistics import (
    CONTROL,
    LOGITS,
    NATS,
    POINTS,
    TRANSFORMS,
    Measured,
    Sums,
    spearman_items,
)
from decoupled.studies.study_jobs import DROPPED_TASK, row_of_model

LAYERS, GEOMETRY = "layers", "geometry"
# Losses and correlations of items are rounded to this part of 1, for half precision.
_PARTS = 64

# Row -> component -> what its items got.
Rows = Mapping[str, Mapping[str, Sums]]


class AnalysisResult(NamedTuple):
    """A finished analysis: its JSON, "MODELINDEX/key" -> values, its models' rows."""

    result: Mapping[str, Any]
    values: Mapping[str, np.ndarray]
    rows: Sequence[str]
    folder: str

    def arrays(self, key: str) -> dict[str, np.ndarray]:
        """Row -> values; without the rows that have none."""
        return {
            row: self.values[f"{index}/{key}"]
            for index, row in enumerate(self.rows)
            if f"{index}/{key}" in self.values
        }


class ResultReader:
    """Reads complete jobs; `tasks` is task -> the parent of its folder."""

    def __init__(self, jobs: Sequence[Job], tasks: Mapping[str, str]):
        self.jobs = {job.name: job for job in jobs}
        self.seeds = sorted({seed_of(job.name) for job in jobs})
        self._tasks = tasks
        self._analyses: dict[str, dict[int, AnalysisResult]] = {}
        self.items_of = functools.cache(self._items_of)
        for job in jobs:
            if job.name.startswith(f"{ANALYSES}/"):
                self._read_analysis(job)

    def _read_analysis(self, job):
        stem = os.path.join(job.folder, job.arguments[0])
        result = files.read_json(f"{stem}.json")
        by_seed = self._analyses.setdefault(job.name.split("/")[1], {})
        for other in by_seed.values():
            if _names_of_items(other.result) != _names_of_items(result):
                raise UserError(
                    f"{stem}.json: has other items than {other.folder}; remove both "
                    "folders and run the same command again"
                )
        path = f"{stem}.items.npz"
        values = files.read_arrays(path) if files.exists(path) else {}
        rows = [row for need in job.needs if (row := row_of_model(need))]
        by_seed[seed_of(job.name)] = AnalysisResult(result, values, rows, job.folder)

    def analysis(self, name: str, seed: int) -> AnalysisResult | None:
        """An analysis by the name of its folder, if it is complete."""
        return self._analyses.get(name, {}).get(seed)

    def any_result(self, name: str) -> Mapping[str, Any]:
        """The JSON of an analysis, of any seed, for entries that depend on the data."""
        finished = self._analyses.get(name, {}).values()
        return next((analysis.result for analysis in finished), {})

    def models(self) -> Iterator[tuple[str, int, Job]]:
        """Yields row, seed and job of each pre-training, including controls."""
        for job in self.jobs.values():
            if row := row_of_model(job.name):
                yield row, seed_of(job.name), job

    def folder(self, name: str, row: str, seed: int) -> str:
        """The folder of a row's values; `name`: of an analysis, or of a task."""
        if analysis := self.analysis(name, seed):
            return analysis.folder
        control = f"{CONTROL_ROOM}/" * row.startswith(CONTROL)
        job = f"{control}tasks/{name}/{row.removeprefix(CONTROL)}/seed_{seed}"
        return self.jobs[job].folder

    def _items_of(self, name: str, task: str) -> dict[str, ItemScores]:
        """What a fine-tuned model got, by language; empty if its job is not complete.

        Items are sentences of a tagging task.
        """
        if name not in self.jobs:
            return {}
        return read_items(self.jobs[name].folder, self._tasks[task])

    def task_rows(self, seed: int, task: str) -> Rows:
        """What all rows got in a task, including controls."""
        rows = {}
        for name in self.jobs:
            parts = name.split("/")
            if parts[-4:-2] == ["tasks", task] and seed_of(name) == seed:
                row = CONTROL * (parts[0] == CONTROL_ROOM) + parts[-2]
                if scores := self.items_of(name, task):
                    rows[row] = {key: each.sums for key, each in scores.items()}
        return rows

    def drops(self, seed: int) -> Iterator[tuple[str, int, Mapping[str, Sums], str]]:
        """Row, layers kept, sums and folder of fine-tunings of the first layers."""
        for name, job in self.jobs.items():
            if name.startswith(f"{LAYER_DROP}/") and seed_of(name) == seed:
                _, _, row, keep, _ = name.split("/")
                scores = self.items_of(name, DROPPED_TASK)
                sums = {key: each.sums for key, each in scores.items()}
                yield row, int(keep.removeprefix("keep_")), sums, job.folder

    def layers_of(self, row: str, seed: int) -> int:
        """The layers of a row's model in pre-training."""
        return self.jobs[f"models/{row}/seed_{seed}"].config().model.num_layers

    def guess(self, task: str) -> float | None:
        """The trivial baseline of a task, in percent; None without its runs."""
        for name in self.jobs:
            if name.startswith(f"tasks/{task}/"):
                scores = self.items_of(name, task).values()
                return float(np.mean([each.baseline for each in scores]))
        return None


def _names_of_items(result):
    tasks = result.get("tasks", {}).items()
    return result.get("items"), {name: task.get("items") for name, task in tasks}


class Source(NamedTuple):
    """Where a measure comes from.

    name, unit, better: of the measure. folder: name of the analysis or task. read:
    (reader, seed) -> its rows, empty if there are none. transform: in `TRANSFORMS`.
    baseline: reader -> the value of a trivial baseline, or None.
    """

    name: str
    unit: str
    folder: str
    read: Callable[[ResultReader, int], Rows]
    transform: str = "percent"
    baseline: Callable[[ResultReader], float | None] = lambda reader: None
    better: int = 1


def read_measures(
    reader: ResultReader, published: Mapping[str, Mapping[int, Rows]]
) -> tuple[dict[str, Measured], dict[str, Rows]]:
    """The available measures by their names in `claims`, and what they are made of:
    measure -> row -> component -> sums [seeds, ..., items].

    `published`: measure -> seed -> rows of an earlier study.

    Raises:
      UserError: two models of a measure were tried on different items.
    """
    measures, item_sums = {}, {}
    for key, source in SOURCES.items():
        by_seed = {seed: dict(source.read(reader, seed)) for seed in reader.seeds}
        for seed, rows in published.get(key, {}).items():
            seed_rows = by_seed.setdefault(seed, {})
            for row, components in rows.items():
                for other in seed_rows.values():
                    _check_items(f"{source.name}, row {row}", components, other)
                seed_rows[row] = components
        rows = list(dict.fromkeys(row for values in by_seed.values() for row in values))
        seeds = [s for s in by_seed if rows and set(by_seed[s]) == set(rows)]
        if not seeds:
            continue
        item_sums[key] = {
            row: {
                name: _stacked(f"{source.name}, row {row}", first.of, sums)
                for name, first in by_seed[seeds[0]][row].items()
                if (sums := [by_seed[seed][row][name] for seed in seeds])
            }
            for row in rows
        }
        baseline = source.baseline(reader)
        values = values_of(item_sums[key], source.transform)
        measures[key] = Measured(
            source.name, source.unit, seeds, values, baseline, source.better
        )
    return measures, item_sums


def _check_items(where, components, other):
    totals = {name: sums.of for name, sums in other.items()}
    if components.keys() != totals.keys() or not all(
        np.array_equal(sums.of, totals[name]) for name, sums in components.items()
    ):
        raise UserError(
            f"--measured: {where}: was tried on other items than the rows here; use "
            "the same data and settings, or train it here"
        )


def _stacked(where, of, sums):
    if any(not np.array_equal(each.of, of) for each in sums):
        raise UserError(f"{where}: its seeds were not tried on the same items")
    return Sums(np.array([each.got for each in sums]), of)


def values_of(rows: Rows, transform: str) -> dict[str, dict[str, np.ndarray]]:
    """Row -> component -> values [seeds, items] of sums [seeds, ..., items]."""
    change = TRANSFORMS[transform]
    return {
        row: {
            name: np.array([change(Sums(got, sums.of)) for got in sums.got])
            for name, sums in components.items()
        }
        for row, components in rows.items()
    }


def numbers_of(
    reader: ResultReader, measures: Mapping[str, Measured]
) -> Iterator[Number]:
    """The mean of every measure by row and seed, scores by layer, and exploratory
    statistics of embeddings and logits."""
    own_rows = {row for row, _, _ in reader.models()}
    for row, seed, job in reader.models():
        total = files.read_json(job.result)["all"]
        for name, value in (
            ("masked-LM loss", total["masked_lm_loss"]),
            ("masked-LM accuracy", 100 * total["masked_lm_accuracy"]),
        ):
            yield Number(row, PRETRAINING, name, seed, value, job.folder)
    for key, measured in measures.items():
        for row in filter(own_rows.__contains__, measured.values):
            for name, values in measured.values[row].items():
                for seed, value in zip(measured.seeds, values.mean(1), strict=True):
                    folder = reader.folder(SOURCES[key].folder, row, seed)
                    yield Number(row, key, name, seed, float(value), folder)
    for seed in reader.seeds:
        if analysis := reader.analysis("neighbours", seed):
            for row, hits in analysis.arrays("hits").items():
                for layer, values in enumerate(hits):
                    value, name = 100 * float(values.mean()), f"layer {layer}"
                    yield Number(row, LAYERS, name, seed, value, analysis.folder)
        # The scores with all layers are those of the task.
        for row, layers, sums, folder in reader.drops(seed):
            shares = [each.got.sum() / each.of.sum() for each in sums.values()]
            name, value = f"layers 1 to {layers}", 100 * float(np.mean(shares))
            yield Number(row, LAYER_DROP, name, seed, value, folder)
        if analysis := reader.analysis("masked_lm", seed):
            models = analysis.result["models"]
            for row, model in zip(analysis.rows, models, strict=True):
                for name, value in _ranks(model):
                    yield Number(row, GEOMETRY, name, seed, value, analysis.folder)


def tried_rates(jobs: Iterable[Job]) -> Iterator[Number]:
    """The held-out loss of rows that were trained with other learning rates."""
    for job in jobs:
        _, rate, _, row, _ = job.name.split("/")
        total = files.read_json(job.result)["all"]
        loss, seed = total["masked_lm_loss"], seed_of(job.name)
        yield Number(row, RATES, rate, seed, loss, job.folder)


def _ranks(model):
    # Results of an earlier version have no ranks.
    if "logits" not in model:
        return
    yield "rank of logits", float(model["logits"]["rank"])
    yield "effective rank of logits", model["logits"]["effective_rank"]
    for table in model["embeddings"]:
        yield f"effective rank, {table['embedding']}", table["effective_rank"]


def unigram_entropy(reader: ResultReader) -> dict[str, float]:
    """Language -> nats per token of held-out text; empty if it was not measured."""
    return reader.any_result("masked_lm").get("unigram_entropy", {})


def _retrieval(reader, seed):
    """Retrieval in the layer of each model that is best on dev sentences."""
    dev, test = (reader.analysis(n, seed) for n in ("neighbours_dev", "neighbours"))
    if not dev or not test:
        return {}
    layers = {row: best_layer(hits) for row, hits in dev.arrays("hits").items()}
    return {
        row: {"P@1": _over_directions(hits[layers[row]])}
        for row, hits in test.arrays("hits").items()
        if row in layers
    }


def best_layer(hits: np.ndarray) -> int:
    """The layer with the most hits of [layers, directions, verses], from 1 on."""
    return 1 + int(hits[1:].sum(axis=(1, 2), dtype=np.int64).argmax())


def _over_directions(hits):
    """The sums of [..., directions, verses]."""
    got = hits.sum(axis=-2, dtype=np.float64)
    return Sums(got, np.full(hits.shape[-1], float(hits.shape[-2])))


def _layers(reader, seed):
    """All layers above the input embedding, of models that have several."""
    analysis = reader.analysis("neighbours", seed)
    return {
        row: {"last layer": _over_directions(hits[1:])}
        for row, hits in (analysis.arrays("hits") if analysis else {}).items()
        if len(hits) > 2
    }


def _masked_lm(key):
    """A component for each language; items are held-out sequences."""

    def read(reader, seed):
        analysis = reader.analysis("masked_lm", seed)
        if not analysis:
            return {}
        languages = np.array([language for language, _ in analysis.result["items"]])
        counts = analysis.arrays("predictions")
        return {
            row: {
                str(name): Sums(
                    np.rint(_PARTS * values[languages == name]) / _PARTS,
                    counts[row][languages == name],
                )
                for name in np.unique(languages)
            }
            for row, values in analysis.arrays(key).items()
        }

    return read


def _probes(task):
    """Items are sentences, with a value for all of their targets."""

    def read(reader, seed):
        analysis = reader.analysis("probing", seed)
        if not analysis or task not in analysis.result["tasks"]:
            return {}
        names = [name for name, _ in analysis.result["tasks"][task]["items"]]
        _, sentences = np.unique(names, return_inverse=True)
        return _by_group(task, sentences, analysis.arrays(task))

    return read


def _by_group(component, groups, values):
    """Row -> the component; each group of values is one item."""
    counts = np.bincount(groups).astype(np.float64)
    return {
        row: {component: Sums(np.bincount(groups, correct), counts)}
        for row, correct in values.items()
    }


def _similarity(reader, seed):
    """Spearman of the output embedding, or of the only one; a pair of words is an item.

    Sets of fewer than four pairs, which have no interval, are left out. A set in which
    a model has no correlation, or none without one of the pairs, leaves the model out.
    """
    analysis, rows = reader.analysis("word_similarity", seed), {}
    if not analysis:
        return rows
    for index, (row, model) in enumerate(
        zip(analysis.rows, analysis.result["models"], strict=True)
    ):
        entries = [e for e in model["correlations"] if e["score"] == "dot"]
        # The only embedding of a coupled model is called that of the input.
        entries = [e for e in entries if e["embedding"] != "input"] or entries
        entries = [e for e in entries if e["covered"] > 3]
        if any(entry["spearman"] is None for entry in entries):
            continue
        sets = {}
        for entry in entries:
            name = entry["set"]
            pairs = spearman_items(
                analysis.values[f"{index}/human/{name}"],
                analysis.values[f"{index}/{entry['embedding']}/{name}"],
            )
            got = np.rint(_PARTS * pairs) / _PARTS
            sets[name] = Sums(got, np.ones(len(got)))
        if sets and all(np.isfinite(sums.got).all() for sums in sets.values()):
            rows[row] = sets
    return rows


def _drop(reader, seed):
    """The tags that are right with all layers minus those without the last one."""
    full_rows = reader.task_rows(seed, DROPPED_TASK)
    return {
        row: {
            name: Sums(full_rows[row][name].got - part.got, part.of)
            for name, part in sums.items()
        }
        for row, layers, sums, _ in reader.drops(seed)
        # The job that drops the last layer alone may not be complete.
        if row in full_rows and layers == reader.layers_of(row, seed) - 1
    }


def _guess(reader):
    verses = reader.any_result("neighbours").get("items")
    return 100 / len(verses) if verses else None


def _entropy(reader):
    entropy = unigram_entropy(reader)
    return float(np.mean([*entropy.values()])) if entropy else None


def _task_source(name, task):
    def read(reader, seed):
        return reader.task_rows(seed, task)

    return Source(name, POINTS, task, read, baseline=lambda reader: reader.guess(task))


def _probe_source(name, task):
    def lookup(reader):
        """The score of the word lookup, or None."""
        tasks = reader.any_result("probing").get("tasks", {})
        return 100 * tasks[task]["baseline"] if task in tasks else None

    return Source(name, POINTS, "probing", _probes(task), baseline=lookup)


_LAST = "the last layer of retrieval minus those below"
SOURCES = {
    claims.RETRIEVAL: Source(
        "retrieval of translations", POINTS, "neighbours", _retrieval, baseline=_guess
    ),
    claims.UD_POS: _task_source("UD-POS", "udpos"),
    claims.PROBES: _probe_source("probes of dependencies", "dependencies"),
    claims.POS_PROBES: _probe_source("probes of parts of speech", "pos"),
    claims.LOSS: Source(
        "masked-LM loss", NATS, "masked_lm", _masked_lm("loss"), "share", _entropy, -1
    ),
    claims.ACCURACY: Source(
        "masked-LM accuracy", POINTS, "masked_lm", _masked_lm("correct")
    ),
    claims.SIMILARITY: Source(
        "word similarity by the output embedding", POINTS, "word_similarity",
        _similarity,
    ),
    claims.LAST_LAYER: Source(
        _LAST, LOGITS, "neighbours", _layers, "last layer, logits"
    ),
    claims.LAST_LAYER_POINTS: Source(
        _LAST, POINTS, "neighbours", _layers, "last layer, points"
    ),
    claims.LAYER_DROP: Source("what the last layer is worth", POINTS, "udpos", _drop),
}  # fmt: skip
