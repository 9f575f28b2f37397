"""Reads what finished runs measured from their folders.

Of sweeps: sweep.json, and of complete jobs eval.json (pre-training) and results.json
(fine-tuning); of a reproduction also what `sweeps/study.py` adds to them: fine-tuning
without the last layers, controls, and analyses of all models of a seed. A run that is
missing or not complete leaves a gap.
"""

import os
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from decoupled.configs import EARLIER_VALUES, ModelConfig
from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.reports.results import (
    CONTROL,
    LAYER_DROP,
    MLM,
    NEIGHBOURS,
    PRETRAINING,
    PROBING,
    SIMILARITY,
    SPECTRUM,
    Number,
    Results,
    Row,
    embedding,
    headline,
)
from decoupled.runs import run_folder
from decoupled.runs.finetuning_run import RESULTS, TRIVIAL
from decoupled.xtreme import official

DESCRIPTION = "sweep.json"
_RECORD = "job.json"
_SETTINGS = "config.1.gin"
# A task's score is over its dev files where these are in several languages.
_SPLITS = ("dev", "test")
# The paper's score of a pair of words.
_PRODUCT = "dot"


def settings_of(folder: str) -> str:
    """The gin file with every setting that a run used when it was first started."""
    return os.path.join(folder, _SETTINGS)


def read_description(sweep_dir: str) -> dict[str, Any]:
    """sweep.json of a sweep.

    Raises:
      UserError: there is none, it is damaged, or it names folders outside the sweep's.
    """
    path = os.path.join(sweep_dir, DESCRIPTION)
    if not files.exists(path):
        raise UserError(f"{sweep_dir}: no {DESCRIPTION}; is it a folder of a sweep?")
    described = files.read_json(path)
    try:
        rows = [row["name"] for row in described["rows"]]
        seeds = [f"seed_{seed}" for seed in described["seeds"]]
        for name in (*rows, *seeds, *described["tasks"]):
            files.path_below(sweep_dir, name, path)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not the description of a sweep ({files.reason(error)}); start "
            "the sweep again in another folder"
        ) from error
    return described


def read_sweeps(sweep_dirs: Sequence[str]) -> Results:
    """The rows of all sweeps, in their order; equal models' seeds are put together.

    Raises:
      UserError: a folder holds no sweep, or two sweeps have different models of one
        name.
    """
    rows: dict[str, Row] = {}
    tasks: dict[str, None] = {}
    found: dict[str, dict[tuple, dict[int, Number]]] = {}
    for folder in sweep_dirs:
        described = read_description(folder)
        tasks |= dict.fromkeys(described["tasks"])
        for entry in described["rows"]:
            row = _row(entry)
            if rows.setdefault(row.name, row) != row:
                raise UserError(
                    f"{folder}: {row.name} has other sizes than in another sweep; "
                    "report them apart"
                )
            own = found.setdefault(row.name, {})
            for number in _numbers(folder, described, row.name):
                own.setdefault(number[:3], {})[number.seed] = number
    numbers = [
        number
        for own in found.values()
        for by_seed in own.values()
        for number in by_seed.values()
    ]
    scored = {number.task for number in numbers}
    return Results(rows, [task for task in tasks if task in scored], numbers)


def _row(entry):
    from decoupled.model.parameters import finetuning_counts, pretraining_counts

    model, keep = ModelConfig(**EARLIER_VALUES | entry["model"]), entry["keep_layers"]
    pretraining = sum(pretraining_counts(model).values())
    finetuning = sum(finetuning_counts(model, keep).values())
    return Row(entry["name"], model, keep, pretraining, finetuning)


def _numbers(folder, described, row):
    """Of pre-training, then of each task."""
    seeds = described["seeds"]
    for seed in seeds:
        run = os.path.join(folder, "models", row, f"seed_{seed}")
        path = os.path.join(run, "eval.json")
        if files.exists(os.path.join(run, _RECORD)) and files.exists(path):
            value = 100 * files.read_json(path)["all"]["masked_lm_accuracy"]
            yield _number(run, row, PRETRAINING, MLM, seed, value)
    for seed in seeds:
        for task in described["tasks"]:
            run = os.path.join(folder, "tasks", task, row, f"seed_{seed}")
            for metric, mean in _task_means(run, task).items():
                yield _number(run, row, task, metric, seed, mean)


def _number(run, *measured):
    return Number(*measured, folder=run, settings=settings_of(run))


def _task_means(run, task, prefix=""):
    """Metric -> mean over the languages, of a complete run that has a score.

    Args:
      prefix: of the metrics' names: "trivial_" for the trivial baseline.
    """
    paths = [os.path.join(run, name) for name in (_RECORD, RESULTS)]
    if not all(map(files.exists, paths)):
        return {}
    languages = scored_languages(files.read_json(paths[1]), task).values()
    names = [f"{prefix}{metric}" for metric in headline(task)]
    if not languages or any(set(names) - set(values) for values in languages):
        return {}
    return {
        name: statistics.fmean(values[name] for values in languages) for name in names
    }


def scored_languages(results: dict[str, Any], task: str) -> dict[str, dict[str, float]]:
    """language -> values of dev, or of test where dev has fewer than two languages.

    Args:
      results: results.json of a run of fine-tuning.

    Returns:
      those of XTREME's languages, for a task of XTREME, that have all metrics of the
      task's score; maybe none.
    """
    metrics, found = headline(task), {}
    for split in _SPLITS:
        found = {
            language: values
            for language, values in results[split].items()
            if official.is_official(task, language)
            and all(metric in values for metric in metrics)
        }
        if len(found) > 1:
            break
    return found


def read_reproduction(sweep_dir: str) -> Results:
    """Reads all that is complete in the folder of a reproduction's runs.

    Raises:
      UserError: it is not a folder of a sweep.
    """
    sweep = read_sweeps([sweep_dir])
    return sweep._replace(
        folder=sweep_dir,
        seeds=read_description(sweep_dir)["seeds"],
        numbers=[
            *sweep.numbers,
            *_finetuned(sweep_dir, LAYER_DROP, 4, sweep.tasks),
            *_finetuned(sweep_dir, CONTROL, 3, sweep.tasks),
            *_of_analyses(sweep_dir),
        ],
        pairs={
            entry["language"]: entry["layers"][0]["pairs"]
            for _, _, model in _analysed(sweep_dir, NEIGHBOURS)
            for entry in model["languages"]
        },
        coverage={
            entry["set"]: (entry["covered"], entry["pairs"])
            for _, _, model in _analysed(sweep_dir, SIMILARITY)
            for entry in _products(model)
        },
        trivial=_trivial(sweep),
        seconds=_seconds(sweep_dir),
    )


def _finetuned(sweep_dir, kind, levels, tasks):
    """The scores of runs in KIND/TASK/ROW/.../seed_S or KIND/tasks/TASK/..."""
    root = os.path.join(sweep_dir, kind, *(["tasks"] if kind == CONTROL else []))
    for path in gfile.glob(os.path.join(root, *"*" * levels, _RECORD)):
        run = os.path.dirname(path)
        task, row, *_, seed = run.split("/")[-levels:]
        means = _task_means(run, task) if task in tasks else {}
        if means:
            what = "after one step"
            if kind == LAYER_DROP:
                what = f"layers 1 to {run_folder.read(run).model.num_layers}"
            score = statistics.fmean(means.values())
            yield _number(run, row, kind, f"{task}, {what}", _seed(seed), score)


def _analysed(sweep_dir, name) -> Iterator[tuple[str, int, dict]]:
    """(model, seed, what the analysis says of it)."""
    for path in gfile.glob(os.path.join(sweep_dir, "analyses", name, "*", _RECORD)):
        result = files.read_json(os.path.join(os.path.dirname(path), f"{name}.json"))
        for model in result["models"]:
            *_, row, seed = model["folder"].split("/")
            yield row, _seed(seed), model


def _of_analyses(sweep_dir):
    """Numbers by metric and model; of translation by model, its layers together."""
    for name, measured in _ANALYSES.items():
        found: dict[tuple[str, str], list[Number]] = {}
        for row, seed, model in _analysed(sweep_dir, name):
            folder = os.path.join(sweep_dir, "analyses", name, f"seed_{seed}")
            settings = settings_of(folder)
            # An analysis without settings: what its model was made with.
            if not files.exists(settings):
                run = os.path.join(sweep_dir, "models", row, f"seed_{seed}")
                settings = settings_of(run)
            for metric, value in measured(model):
                number = Number(row, name, metric, seed, value, folder, settings)
                found.setdefault((metric, row), []).append(number)
        place = 1 if name == NEIGHBOURS else 0
        first = list(dict.fromkeys(key[place] for key in found))
        for key in sorted(found, key=lambda key: first.index(key[place])):
            yield from found[key]


def _neighbours(model):
    """English to the other languages, their mean."""
    measured = [entry["layers"] for entry in model["languages"]]
    for number, layers in enumerate(zip(*measured, strict=True)):
        yield f"layer {number}", statistics.fmean(layer["forward"] for layer in layers)


def _similarity(model):
    for entry in _products(model):
        yield f"{entry['set']}{embedding(entry['embedding'])}", 100 * entry["spearman"]


def _products(model):
    for entry in model["correlations"]:
        if entry["score"] == _PRODUCT and entry["spearman"] is not None:
            yield entry


def _probing(model):
    for probe in model["probes"]:
        yield f"F1, {probe['task']}", 100 * probe.get("test", probe["dev"])["f1"]


def _spectrum(model):
    for entry in model["embeddings"]:
        metric = f"effective rank{embedding(entry['embedding'])}"
        yield metric, entry["centred"]["effective_rank"]


_ANALYSES = {
    NEIGHBOURS: _neighbours,
    SIMILARITY: _similarity,
    PROBING: _probing,
    SPECTRUM: _spectrum,
}


def _seed(folder):
    return int(folder.removeprefix("seed_"))


def _trivial(sweep):
    """Of the same languages as the tasks' scores; None where a task has no such."""
    means = []
    for task in sweep.tasks:
        run = next(n.folder for n in sweep.numbers if n.task == task)
        means.append(list(_task_means(run, task, TRIVIAL).values()))
    if not means or [] in means:
        return None
    return statistics.fmean(map(statistics.fmean, means))


def _seconds(sweep_dir):
    levels = ["models/*/*", "tasks/*/*/*", "layer_drop/*/*/*/*", "analyses/*/*"]
    levels += [f"control/{level}" for level in levels[:2]]
    return sum(
        files.read_json(path).get("seconds", 0.0)
        for level in levels
        for path in gfile.glob(os.path.join(sweep_dir, level, _RECORD))
    )
