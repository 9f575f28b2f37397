"""What do frozen layers encode of grammar and meaning? (paper Table 9)

Edge probing (Tenney et al. 2019) trains a probe for each task: a learned mix of the
layers, pooling over the span or spans, and a network of two layers. F1 is
micro-averaged over all labels. --variants=layers trains a probe on each layer alone,
and cumulative one on layers 0 to l for each l.

  decoupled analyze probing --model_dir=runs/e_out_768 --data_dir=edges \\
      --variants=mix,layers --output_dir=results

--data_dir has a folder per task with train.jsonl, dev.jsonl and optionally test.jsonl
(or .json; development or val for dev), in the format of the edge-probing suite:

  {"text": "The cat sleeps", "targets": [{"span1": [0, 2], "label": "NP"}]}

Spans are of words, and their ends are exclusive. Tasks of two spans also have span2.
label may be a list. `decoupled analyze probing_data` makes such files. The best step is
chosen on dev, so only the score on test is unbiased by selection.
"""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import AnalysedModel, LayerEncoder, open_models
from decoupled.analyses.output import LAYER, Line, Panel, Picture, Table, percent
from decoupled.analyses.probing.frozen_vectors import ProbingData, label_ids, prepare
from decoupled.analyses.probing.probe import (
    majority,
    scored_targets,
    train_probe,
    word_lookup,
)
from decoupled.analyses.probing.task_files import (
    Example,
    ProbingTask,
    find_tasks,
    read_examples,
)
from decoupled.configs.analyses import ProbeSettings
from decoupled.core import files
from decoupled.core.errors import UserError

VARIANTS = ("mix", "layers", "cumulative")
_BY_LAYER = VARIANTS[1:]


def run(flags: Any, settings: ProbeSettings) -> dict[str, Any]:
    """The result of the command's flags."""
    tasks = find_tasks(flags.data_dir, flags.tasks)
    models = open_models(flags.model_dir)
    return measure(models, tasks, flags.variants, settings, flags.cache_dir)


def measure(
    models: Sequence[AnalysedModel],
    tasks: Sequence[ProbingTask],
    variants: Sequence[str],
    settings: ProbeSettings,
    cache_dir: str | None = None,
) -> dict[str, Any]:
    """Trains and scores all probes.

    Args:
      variants: of `VARIANTS`.
      cache_dir: the folder for the temporary files of vectors; None for the system's.

    Returns:
      `settings`; `tasks`: files and counts of targets; `models`: the entries of
      `AnalysedModel.describe`, with `probes`, a list of entries with `task`, `variant`,
      `layer` (None for "mix"), `dev` and, if there is test data, `test` (f1, precision,
      recall, targets), `mix` (the share of each layer), `steps`, `lost` (targets beyond
      the length), and the baselines `majority_f1` and `lookup_f1` on "test", or on
      "dev" if there is no test data (see `baselines`).

      Tasks with test data also have one value per target, for the targets that are
      within the length of every model: `arrays`, uint8 [items], 1 if the label with the
      highest score is right, under "MODELINDEX/TASK" for the mix and
      "MODELINDEX/TASK/VARIANT/LAYER" for other variants; `items` of the task,
      [sentence, target], where sentences without targets are not counted, from 0; and
      its `baseline`, the share of items that `word_lookup` has right.

    Raises:
      UserError: a variant is unknown, a file is malformed, or no target of a file can
        be used.
    """
    for name in variants:
        if name not in VARIANTS:
            raise UserError(f"--variants: no {name!r}; there are {', '.join(VARIANTS)}")
    for model in models:
        model.check_length(settings.max_tokens or 0, "probing.max_tokens")
    read = {task.name: _read(task) for task in tasks}
    results: list[dict[str, Any]] = []
    items: dict[str, list[_Items]] = {}
    for index, model in enumerate(models):
        encoder, probes = LayerEncoder(model), []
        for task in tasks:
            examples = read[task.name]
            with _cache(cache_dir) as folder:
                data = _prepare(model, encoder, examples, folder, settings.max_tokens)
                trained = list(
                    _probes(model.name, task.name, examples, data, variants, settings)
                )
            probes += [probe for probe, _ in trained]
            if "test" in data:
                lookup = word_lookup(examples["train"], examples["test"], data["test"])
                hits = {_key(index, probe): found for probe, found in trained}
                found = _Items(data["test"].places, lookup.hits, hits)
                items.setdefault(task.name, []).append(found)
        results.append({**model.describe(), "probes": probes})
    described = {task.name: _describe(task, read[task.name]) for task in tasks}
    arrays: dict[str, np.ndarray] = {}
    for name, of_models in items.items():
        _add_items(name, described[name], of_models, arrays)
    return {
        "analysis": "probing",
        "settings": dataclasses.asdict(settings),
        "tasks": described,
        "models": results,
        **({"arrays": arrays} if arrays else {}),
    }


def center_of_gravity(mix: Sequence[float]) -> float:
    """The mean layer under the shares of a mix (Tenney et al. 2019b)."""
    return sum(layer * share for layer, share in enumerate(mix))


def expected_layer(scores: Sequence[float]) -> float | None:
    """The mean layer under the gains of cumulative scores (Tenney et al. 2019b).

    Args:
      scores: with layers 0 to l, for each l.

    Returns:
      sum l (score_l - score_(l-1)) / (score_L - score_0); None if there is no gain.
    """
    gains = [after - before for before, after in zip(scores, scores[1:], strict=False)]
    total = sum(gains)
    if total <= 0:
        return None
    return sum(layer * gain for layer, gain in enumerate(gains, start=1)) / total


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """A table like Table 9, the mixes, and scores by layer."""
    if _trained(result, "mix"):
        yield from _tables_of_mix(result)
    for variant in _BY_LAYER:
        if _trained(result, variant):
            yield _table_by_layer(result, variant)


def picture(result: dict[str, Any]) -> Picture:
    """F1 by layer if there is such a variant; the mixes otherwise."""
    variants = [name for name in _BY_LAYER if _trained(result, name)] or ["mix"]
    panels = [
        [
            Panel(
                [
                    Line(model["name"], *_curve(model, task, variant))
                    for model in result["models"]
                ],
                LAYER,
                _AXES[variant],
                task,
            )
            for task in result["tasks"]
        ]
        for variant in variants
    ]
    return Picture("Edge probing of frozen layers", panels)


_AXES = {
    "mix": "share of the layer in the mix, %",
    "layers": "F1 with this layer alone, %",
    "cumulative": "F1 with layers 0 to this, %",
}


def _read(task) -> dict[str, list[Example]]:
    read = {split: read_examples(path) for split, path in task.paths.items()}
    kinds = {
        split: examples[0].targets[0].span2 is None for split, examples in read.items()
    }
    for split, path in task.paths.items():
        if kinds[split] != kinds["train"]:
            raise UserError(
                f"{path}: its targets and those of {task.paths['train']} have not the "
                "same number of spans"
            )
    return read


def _describe(task, read):
    return {
        "labels": len(label_ids(read["train"])),
        **{
            split: {
                "path": path,
                "sha256": files.file_fingerprint(path),
                "targets": sum(len(example.targets) for example in read[split]),
            }
            for split, path in task.paths.items()
        },
    }


class _Items(NamedTuple):
    """A model's items of a task, [sentence, target], and its hits by key.

    baseline: bool [items], hits of the word lookup. hits: bool [items] each.
    """

    names: list[tuple[int, int]]
    baseline: np.ndarray
    hits: dict[str, np.ndarray]


def _key(index, probe):
    key = f"{index}/{probe['task']}"
    if probe["layer"] is None:
        return key
    return f"{key}/{probe['variant']}/{probe['layer']}"


def _add_items(task, described, items, arrays):
    """Adds the items of a task that all models have: names, baseline and hits."""
    common = set.intersection(*(set(of_model.names) for of_model in items))
    if not common:
        raise UserError(f"{task}: no target of test is within the length of all models")
    described["items"] = [list(name) for name in sorted(common)]
    for of_model in items:
        kept = np.array([name in common for name in of_model.names])
        described["baseline"] = float(of_model.baseline[kept].mean())
        for key, hits in of_model.hits.items():
            arrays[key] = hits[kept].astype(np.uint8)


def _cache(folder):
    if folder:
        files.make_folder(folder)
    return files.scratch_folder(folder)


def _prepare(model, encoder, read, folder, max_tokens) -> dict[str, ProbingData]:
    labels = label_ids(read["train"])
    return {
        split: prepare(
            model,
            encoder,
            examples,
            labels,
            os.path.join(folder, f"{split}.npy"),
            max_tokens,
        )
        for split, examples in read.items()
    }


def _probes(model, task, read, data, variants, settings):
    """The entry of each probe, and its hits."""
    scored = "test" if "test" in data else "dev"
    there = scored_targets(read[scored], data[scored])
    baselines = {
        "majority_f1": majority(read["train"], there).score.f1,
        "lookup_f1": word_lookup(read["train"], read[scored], data[scored]).score.f1,
    }
    outputs = data["train"].vectors.shape[1]
    seen = {
        "mix": [(None, slice(0, outputs))],
        "layers": [(layer, slice(layer, layer + 1)) for layer in range(outputs)],
        "cumulative": [(layer, slice(0, layer + 1)) for layer in range(outputs)],
    }
    for variant in variants:
        for layer, layers in seen[variant]:
            name = variant if layer is None else f"{variant} {layer}"
            name = f"{model}, {task}: {name} of {outputs - 1} layers"
            trained = train_probe(data, layers, settings, name)
            entry = {
                "task": task,
                "variant": variant,
                "layer": layer,
                **{split: score._asdict() for split, score in trained.scores.items()},
                **baselines,
                "mix": trained.mix,
                "steps": trained.steps,
                "lost": sum(part.lost for part in data.values()),
            }
            yield entry, trained.hits


def _trained(result, variant):
    probes = [probe for model in result["models"] for probe in model["probes"]]
    return [probe for probe in probes if probe["variant"] == variant]


def _of(model, task, variant):
    return [
        probe
        for probe in model["probes"]
        if (probe["task"], probe["variant"]) == (task, variant)
    ]


def _tables_of_mix(result):
    tasks = list(result["tasks"])
    rows, details = [], []
    for model in result["models"]:
        probes = [_of(model, task, "mix")[0] for task in tasks]
        shown = [_headline(probe)["f1"] for probe in probes]
        cells = [percent(value) for value in shown]
        rows.append([model["name"], *cells, percent(sum(shown) / len(shown))])
        details += [
            [
                *(model["name"], probe["task"], percent(probe["dev"]["f1"])),
                *(percent(probe["majority_f1"]), percent(probe["lookup_f1"])),
                _headline(probe)["targets"],
                *(probe["lost"], probe["steps"], center_of_gravity(probe["mix"])),
            ]
            for probe in probes
        ]
    yield Table(
        "Edge probing with a mix of all layers: F1 on test, or dev where there is none",
        ["model", *tasks, "average"],
        rows,
    )
    columns = ["model", "task", "dev F1", "majority", "lookup", "targets", "lost"]
    yield Table(
        "F1 on dev, of the most frequent label, of a lookup of words; where the mix "
        "looks",
        [*columns, "steps", "centre of gravity"],
        details,
    )


def _table_by_layer(result, variant):
    tasks = list(result["tasks"])
    rows = []
    for model in result["models"]:
        probes = [_of(model, task, variant) for task in tasks]
        for same_layer in zip(*probes, strict=True):
            cells = [percent(_headline(probe)["f1"]) for probe in same_layer]
            rows.append([model["name"], str(same_layer[0]["layer"]), *cells])
        if variant == "cumulative":
            scores = [[_headline(probe)["f1"] for probe in found] for found in probes]
            expected = [expected_layer(values) for values in scores]
            rows.append([model["name"], "expected", *expected])
    title = {"layers": "each layer by itself", "cumulative": "layers 0 to l"}[variant]
    return Table(
        f"Edge probing of {title}: F1 on test, or dev where there is none",
        ["model", "layer", *tasks],
        rows,
    )


def _curve(model, task, variant):
    if variant == "mix":
        shares = _of(model, task, variant)[0]["mix"]
        return list(range(len(shares))), [100 * share for share in shares]
    probes = _of(model, task, variant)
    return (
        [probe["layer"] for probe in probes],
        [100 * _headline(probe)["f1"] for probe in probes],
    )


def _headline(probe):
    return probe.get("test", probe["dev"])
