"""Finished analyses and fine-tunings as `Measured`: a value for each seed and item.

A job that is missing leaves its seed out of its measure, and so does a row that a seed
lacks while another seed has it: every comparison has the same seeds.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.multi_parallel import best_layer
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.corpora.locales import ENGLISH
from decoupled.reports.finished_runs import settings_of
from decoupled.reports.results import Number
from decoupled.reproduction import claims
from decoupled.reproduction.finetuned import Items, read_items
from decoupled.reproduction.jobs import ANALYSES, CONTROL, DROPPED_TASK, LAYER_DROP
from decoupled.reproduction.measured import CONTROL as CONTROL_ROW
from decoupled.reproduction.measured import (
    LOGITS,
    NATS,
    POINTS,
    RANKS,
    Measured,
    logits,
    ratios,
)
from decoupled.sweeps.jobs import Job

# Component -> values of its items, float64 [items].
Components = Mapping[str, np.ndarray]
PRETRAINING = "pretrain"


class Analysed(NamedTuple):
    """A finished analysis: its JSON, "MODELINDEX/key" -> values, its models' rows, and
    its folder."""

    result: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]
    rows: Sequence[str]
    folder: str


class Reader:
    """Reads complete jobs.

    Args:
      jobs: complete ones. tasks: task -> the folder that its own folder lies in.

    Raises:
      UserError: a file is damaged, or analyses of two seeds have other items.
    """

    def __init__(self, jobs: Sequence[Job], tasks: Mapping[str, str]):
        self.jobs = {job.name: job for job in jobs}
        self.seeds = sorted({seed_of(job.name) for job in jobs})
        self._tasks = tasks
        self._analysed: dict[str, dict[int, Analysed]] = {}
        self._scores: dict[str, dict[str, Items]] = {}
        for job in jobs:
            if job.name.startswith(f"{ANALYSES}/"):
                self._read_analysis(job)

    def _read_analysis(self, job):
        stem = os.path.join(job.folder, job.arguments[0])
        result = files.read_json(f"{stem}.json")
        by_seed = self._analysed.setdefault(job.name.split("/")[1], {})
        for other in by_seed.values():
            if _items(other.result) != _items(result):
                raise UserError(
                    f"{stem}.json: has other items than {other.folder}; remove both "
                    "folders and run the same command again"
                )
        items = f"{stem}.items.npz"
        arrays = files.read_arrays(items) if files.exists(items) else {}
        rows = [row for need in job.needs if (row := row_of_model(need))]
        by_seed[seed_of(job.name)] = Analysed(result, arrays, rows, job.folder)

    def analysed(self, name: str) -> dict[int, Analysed]:
        """Seed -> an analysis by the name of its folder."""
        return self._analysed.get(name, {})

    def arrays(self, name: str, seed: int, key: str) -> dict[str, np.ndarray]:
        """Row -> values of one analysis; empty where it is not there."""
        found = self.analysed(name).get(seed)
        if not found:
            return {}
        return {
            row: found.arrays[f"{index}/{key}"]
            for index, row in enumerate(found.rows)
            if f"{index}/{key}" in found.arrays
        }

    def results(self) -> dict[str, dict[int, Mapping[str, Any]]]:
        """Name of an analysis -> seed -> its JSON."""
        return {
            name: {seed: one.result for seed, one in by_seed.items()}
            for name, by_seed in self._analysed.items()
        }

    def models(self) -> Iterator[tuple[str, int, Job]]:
        """Row, seed and job of each pre-training, controls among them."""
        for job in self.jobs.values():
            if row := row_of_model(job.name):
                yield row, seed_of(job.name), job

    def measures(self) -> dict[str, Measured]:
        """Name in `decoupled.reproduction.claims` -> the measure, of those there."""
        found = {}
        for key, source in SOURCES.items():
            by_seed = {seed: source.read(self, seed) for seed in self.seeds}
            rows = list(dict.fromkeys(row for one in by_seed.values() for row in one))
            seeds = [s for s in self.seeds if rows and set(by_seed[s]) == set(rows)]
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
            baseline = source.baseline(self)
            found[key] = Measured(
                source.name, source.unit, tuple(seeds), values, baseline, source.better
            )
        return found

    def numbers(self) -> list[Number]:
        """The mean of every measure by row and seed, and retrieval by layer."""
        found = []
        for row, seed, job in self.models():
            total = files.read_json(os.path.join(job.folder, "eval.json"))["all"]
            for metric, times in (("masked_lm_loss", 1), ("masked_lm_accuracy", 100)):
                name = metric.replace("masked_lm", "masked-LM").replace("_", " ")
                value = times * total[metric]
                found.append(_number(row, PRETRAINING, name, seed, value, job.folder))
        for key, source in SOURCES.items():
            for seed in self.seeds:
                for row, components in source.read(self, seed).items():
                    folder = self._folder(source, row, seed)
                    for component, values in components.items():
                        value = float(values.mean())
                        found.append(_number(row, key, component, seed, value, folder))
        for seed in self.seeds:
            for row, hits in self.arrays("neighbours", seed, "hits").items():
                folder = self.analysed("neighbours")[seed].folder
                for layer, own in enumerate(hits):
                    value = 100 * float(own.mean())
                    name = f"layer {layer}"
                    found.append(_number(row, "layers", name, seed, value, folder))
        return found + list(self._dropped())

    def _dropped(self):
        """Scores with the first layers alone; with all of them, they are the task's."""
        for name, job in self.jobs.items():
            if name.startswith(f"{LAYER_DROP}/"):
                _, _, row, keep, _ = name.split("/")
                scores = self.tuned(name, DROPPED_TASK).values()
                value = float(np.mean([one.mean() for one in scores]))
                layers = f"layers 1 to {keep.removeprefix('keep_')}"
                seed = seed_of(name)
                yield _number(row, LAYER_DROP, layers, seed, value, job.folder)

    def _folder(self, source, row, seed):
        if found := self.analysed(source.folder).get(seed):
            return found.folder
        control = f"{CONTROL}/" * row.startswith(CONTROL_ROW)
        name = f"{control}tasks/{source.folder}/{row.removeprefix(CONTROL_ROW)}"
        return self.jobs[f"{name}/seed_{seed}"].folder

    def tuned(self, name: str, task: str) -> dict[str, np.ndarray]:
        """Component -> percent of right answers by item; empty without the job.

        Tags: a component for each language, items are sentences. Other tasks: languages
        that they were not trained on; where all have as many texts these translate each
        other line by line, and an item is a text in all languages.
        """
        found = {
            language: 100 * ratios(items.right[None], items.total[None])[0]
            for language, items in self._tested(name, task).items()
        }
        if task != DROPPED_TASK and len({len(one) for one in found.values()}) == 1:
            return {"mean": np.mean([*found.values()], axis=0)}
        return found

    def guess(self, task: str) -> float | None:
        """What needs no model on a task, in percent; None without its runs."""
        for name in self.jobs:
            if name.startswith(f"tasks/{task}/"):
                tested = self._tested(name, task).values()
                guesses = [items.baseline for items in tested]
                return float(np.mean(guesses)) if guesses else None
        return None

    def _tested(self, name, task):
        """Language -> `finetuned.Items` of those that a task is measured in."""
        if name not in self.jobs:
            return {}
        if name not in self._scores:
            folder = self.jobs[name].folder
            self._scores[name] = read_items(folder, self._tasks[task])
        found = self._scores[name]
        if task == DROPPED_TASK:
            return found
        return {key: items for key, items in found.items() if key != ENGLISH}

    def tuned_rows(self, seed: int, task: str) -> dict[str, dict[str, np.ndarray]]:
        """Row -> component -> values, controls among them."""
        found = {}
        for name in self.jobs:
            parts = name.split("/")
            if parts[-4:-2] == ["tasks", task] and seed_of(name) == seed:
                row = CONTROL_ROW * (parts[0] == CONTROL) + parts[-2]
                if scores := self.tuned(name, task):
                    found[row] = scores
        return found


def seed_of(name: str) -> int:
    """Of the name of a job, which ends in seed_S."""
    return int(name.rpartition("seed_")[2])


def row_of_model(name: str) -> str:
    """Of a pre-training's name: ROW, or "control:ROW"; "" of any other job's."""
    *control, kind, row, _ = name.split("/")
    if kind != "models":
        return ""
    return CONTROL_ROW * (control == [CONTROL]) + row


def _items(result):
    """Names of the items of an analysis; those of probes are a task's."""
    tasks = result.get("tasks", {}).items()
    return result.get("items"), {name: task.get("items") for name, task in tasks}


def _retrieval(reader, seed):
    """In the layer of each model that is best on dev sentences."""
    dev = reader.analysed("neighbours_dev").get(seed)
    layers = dict(zip(dev.rows, best_layer(dev.result), strict=True)) if dev else {}
    hits = reader.arrays("neighbours", seed, "hits")
    return {
        row: {"P@1": 100.0 * own[layers[row]].mean(axis=0)}
        for row, own in hits.items()
        if row in layers
    }


def _last_layer(reader, seed, value: Callable[[np.ndarray], np.ndarray]):
    """The last layer minus the mean of those below it; items are sentences."""
    found = {}
    for row, hits in reader.arrays("neighbours", seed, "hits").items():
        *below, last = hits.mean(axis=1)[1:]
        if below:
            fall = value(last) - np.mean([value(own) for own in below], axis=0)
            found[row] = {"last layer": fall}
    return found


def _masked_lm(reader, seed, key, times):
    found = reader.analysed("masked_lm").get(seed)
    if not found:
        return {}
    languages = np.array([language for language, _ in found.result["items"]])
    values = reader.arrays("masked_lm", seed, key)
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
        for row, own in values.items()
    }


def _words(reader, seed, key):
    found = reader.analysed("word_translation").get(seed)
    if not found:
        return {}
    # Pairs that share a word are one item.
    groups = np.array(found.result["groups"])
    counts = _sums(np.ones(len(groups)), groups)
    return {
        row: {"MRR": 100.0 * ratios(_sums(own, groups), counts)[0]}
        for row, own in reader.arrays("word_translation", seed, key).items()
    }


def _sums(values, groups):
    """[1, groups], the sum of the values of each group."""
    return np.bincount(groups, values)[None]


def _probes(reader, seed, task):
    """Items are sentences, with a value for all of their targets."""
    found = reader.analysed("probing").get(seed)
    if not found or task not in found.result["tasks"]:
        return {}
    names = found.result["tasks"][task]["items"]
    _, sentences = np.unique([sentence for sentence, _ in names], return_inverse=True)
    counts = _sums(np.ones(len(names)), sentences)
    return {
        row: {task: 100.0 * ratios(_sums(own, sentences), counts)[0]}
        for row, own in reader.arrays("probing", seed, task).items()
    }


def _drop(reader, seed):
    """The score of tags with all layers minus that without the last one."""
    whole, found = reader.tuned_rows(seed, DROPPED_TASK), {}
    for name in reader.jobs:
        if name.startswith(f"{LAYER_DROP}/") and seed_of(name) == seed:
            _, _, row, keep, _ = name.split("/")
            kept = int(keep.removeprefix("keep_"))
            if row in whole and kept > found.get(row, (0,))[0]:
                found[row] = kept, reader.tuned(name, DROPPED_TASK)
    return {
        row: {component: whole[row][component] - own[component] for component in own}
        for row, (_, own) in found.items()
    }


def _any(reader, name):
    """The JSON of an analysis, of whatever seed; all have the same data."""
    return next((one.result for one in reader.analysed(name).values()), None)


def _guess(reader):
    result = _any(reader, "neighbours")
    return result and 100 / len(result["items"])


def _entropy(reader):
    result = _any(reader, "masked_lm")
    return result and float(np.mean([*result["unigram_entropy"].values()]))


def _random_words(reader):
    result = _any(reader, "word_translation")
    return result and float(np.mean([one["random_order"] for one in result["pairs"]]))


def _lookup(reader, task):
    """Of probes: what a lookup of words reaches; None without them."""
    tasks = (_any(reader, "probing") or {"tasks": {}})["tasks"]
    return 100 * tasks[task]["baseline"] if task in tasks else None


class Source(NamedTuple):
    """Where a measure comes from.

    name, unit, better: of the measure. folder: name of the analysis or task.
    read: (reader, seed) -> row -> component -> values of items; empty without them.
    baseline: reader -> what needs no model, or None.
    """

    name: str
    unit: str
    better: int
    folder: str
    read: Callable[[Reader, int], Mapping[str, Components]]
    baseline: Callable[[Reader], float | None] = lambda reader: None


def _task(name, task):
    return Source(
        name,
        POINTS,
        1,
        task,
        lambda reader, seed: reader.tuned_rows(seed, task),
        lambda reader: reader.guess(task),
    )


def _probe(name, task):
    return Source(
        name,
        POINTS,
        1,
        "probing",
        lambda reader, seed: _probes(reader, seed, task),
        lambda reader: _lookup(reader, task),
    )


SOURCES = {
    claims.RETRIEVAL: Source(
        "retrieval of translations", POINTS, 1, "neighbours", _retrieval, _guess
    ),
    claims.UD_POS: _task("UD-POS", "udpos"),
    claims.PROBES: _probe("probes of dependencies", "dependencies"),
    claims.POS_PROBES: _probe("probes of parts of speech", "pos"),
    claims.LOSS: Source(
        "masked-LM loss",
        NATS,
        -1,
        "masked_lm",
        lambda reader, seed: _masked_lm(reader, seed, "loss", 1.0),
        _entropy,
    ),
    claims.ACCURACY: Source(
        "masked-LM accuracy",
        POINTS,
        1,
        "masked_lm",
        lambda reader, seed: _masked_lm(reader, seed, "correct", 100.0),
    ),
    claims.INPUT_WORDS: Source(
        "translation of words by the input embedding",
        RANKS,
        1,
        "word_translation",
        lambda reader, seed: _words(reader, seed, "input"),
        _random_words,
    ),
    claims.OUTPUT_WORDS: Source(
        "translation of words by the output embedding",
        RANKS,
        1,
        "word_translation",
        lambda reader, seed: _words(reader, seed, "output"),
        _random_words,
    ),
    claims.LAST_LAYER: Source(
        "the last layer of retrieval minus those below",
        LOGITS,
        1,
        "neighbours",
        lambda reader, seed: _last_layer(reader, seed, lambda x: logits(x[None])[0]),
    ),
    claims.LAST_LAYER_POINTS: Source(
        "the last layer of retrieval minus those below",
        POINTS,
        1,
        "neighbours",
        lambda reader, seed: _last_layer(reader, seed, lambda x: 100.0 * x),
    ),
    claims.LAYER_DROP: Source(
        "what the last layer is worth", POINTS, 1, "udpos", _drop
    ),
    claims.BOOKS: _task("groups of books", "books"),
    claims.SIB200: _task("SIB-200", "sib200"),
}


def _number(row, task, metric, seed, value, folder):
    settings = settings_of(folder)
    return Number(row, task, metric, seed, value, folder, settings)
