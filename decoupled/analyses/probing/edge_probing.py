"""What do frozen layers encode of grammar and meaning? (paper Table 9)

Edge probing (Tenney et al. 2019) trains a probe for each task: a learned mix of the
layers, pooling over the span or spans, and a network of two layers. F1 is
micro-averaged over all labels.

  decoupled analyze probing --model_dir=runs/e_out_768 --data_dir=edges \\
      --output_dir=results

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

from decoupled.analyses.models import layer_encoder, measure_each, open_models
from decoupled.analyses.output import LAYER, Line, Panel, Picture, Table, percent
from decoupled.analyses.probing.frozen_vectors import Encode, label_ids, prepare
from decoupled.analyses.probing.probe import train_probe, word_lookup
from decoupled.analyses.probing.task_files import Example, find_tasks, read_examples
from decoupled.configs.analyses import ProbeSettings
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.runs.saved_run import Model


def run(flags: Any, settings: ProbeSettings) -> dict[str, Any]:
    """The result of the command's flags."""
    if flags.variants != ["mix"]:
        raise UserError(
            "--variants: probes of single layers are gone (CHANGELOG.md); a probe "
            "mixes all layers, and neighbours compares layers"
        )
    tasks = find_tasks(flags.data_dir, flags.tasks)
    length = settings.max_tokens or 0
    models = open_models(flags.model_dir, length=length, setting="probing.max_tokens")
    return measure(models, tasks, settings)


def measure(
    models: Sequence[Model],
    tasks: dict[str, dict[str, str]],
    settings: ProbeSettings,
) -> dict[str, Any]:
    """Trains and scores all probes. `tasks`: name -> split -> file.

    Returns:
      `settings`; `tasks`: files and counts of targets; of each model `probes`, a list
      of entries with `task`, `dev` and, if there is test data, `test` (f1, precision,
      recall, targets), `mix` (the share of each layer), `steps`, `lost` (targets beyond
      the length), and the baseline `lookup_f1` on "test", or on "dev" if there is no
      test data.

      Tasks with test data also have one value per target, for the targets that are
      within the length of every model: `arrays`, "MODELINDEX/TASK" -> uint8 [items], 1
      if the label with the highest score is right; `items` of the task, [sentence,
      target], where sentences without targets are not counted, from 0; and its
      `baseline`, the share of items that `word_lookup` has right.

    Raises:
      UserError: a file is malformed, or no target of a file can be used.
    """
    inputs = {name: _read(paths) for name, paths in tasks.items()}
    about = {name: _describe(paths, inputs[name]) for name, paths in tasks.items()}
    items: dict[str, list[_Items]] = {}

    def probes(model):
        encode, entries = layer_encoder(model), []
        for name, examples in inputs.items():
            entry, test_items = _probe(model, encode, name, examples, settings)
            entries.append(entry)
            if test_items:
                items.setdefault(name, []).append(test_items)
        return {"probes": entries}, {}

    model_entries = measure_each(models, probes)
    arrays: dict[str, np.ndarray] = {}
    for name, model_items in items.items():
        common_places = set.intersection(*(set(each.places) for each in model_items))
        if not common_places:
            raise UserError(
                f"{name}: no target of test is within the length of all models"
            )
        about[name]["items"] = [list(place) for place in sorted(common_places)]
        for index, each in enumerate(model_items):
            is_common = [place in common_places for place in each.places]
            about[name]["baseline"] = float(each.lookup[is_common].mean())
            arrays[f"{index}/{name}"] = each.hits[is_common].astype(np.uint8)
    return {
        "analysis": "probing",
        "settings": dataclasses.asdict(settings),
        "tasks": about,
        **model_entries,
        **({"arrays": arrays} if arrays else {}),
    }


def _read(paths) -> dict[str, list[Example]]:
    splits = {split: read_examples(path) for split, path in paths.items()}
    if not label_ids(splits["train"]):
        raise UserError(f"{paths['train']}: its targets have no labels")
    kinds = {
        split: first.targets[0].span2 is None for split, [first, *_] in splits.items()
    }
    for split, path in paths.items():
        if kinds[split] != kinds["train"]:
            raise UserError(
                f"{path}: its targets and those of {paths['train']} have not the same "
                "number of spans"
            )
    return splits


def _describe(paths, splits):
    return {
        "labels": len(label_ids(splits["train"])),
        **{
            split: {
                "path": path,
                "sha256": files.file_fingerprint(path),
                "targets": sum(len(example.targets) for example in splits[split]),
            }
            for split, path in paths.items()
        },
    }


class _Items(NamedTuple):
    """A model's targets of a task, [sentence, target]; which the word lookup and which
    the probe has right, bool [targets]."""

    places: list[tuple[int, int]]
    lookup: np.ndarray
    hits: np.ndarray


def _probe(
    model: Model,
    encode: Encode,
    task: str,
    examples: dict[str, list[Example]],
    settings: ProbeSettings,
) -> tuple[dict[str, Any], _Items | None]:
    """The entry of a probe, and its items if there is test data."""
    labels = label_ids(examples["train"])
    with files.scratch_folder() as folder:
        data = {
            split: prepare(
                model,
                encode,
                split_examples,
                labels,
                os.path.join(folder, split),
                settings.max_tokens,
            )
            for split, split_examples in examples.items()
        }
        result = train_probe(data, settings, f"{model.name}, {task}")
    final_split = "test" if "test" in data else "dev"
    places = data[final_split].places
    lookup_f1, hits = word_lookup(examples["train"], examples[final_split], places)
    entry = {
        "task": task,
        **result.scores,
        "lookup_f1": lookup_f1,
        "mix": result.mix,
        "steps": result.steps,
        "lost": sum(part.lost_targets for part in data.values()),
    }
    items = _Items(places, hits, result.hits)
    return entry, items if final_split == "test" else None


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """A table like Table 9, and the details of each probe."""
    rows, details = [], []
    for model in result["models"]:
        scores = []
        for probe in model["probes"]:
            score = probe.get("test", probe["dev"])
            scores.append(score["f1"])
            details.append(
                [
                    *(model["name"], probe["task"], percent(probe["dev"]["f1"])),
                    *(percent(probe["lookup_f1"]), score["targets"]),
                    *(probe["lost"], probe["steps"]),
                ]
            )
        cells = map(percent, (*scores, sum(scores) / len(scores)))
        rows.append([model["name"], *cells])
    yield Table(
        "Edge probing with a mix of all layers: F1 on test, or dev where there is none",
        ["model", *result["tasks"], "average"],
        rows,
    )
    columns = ["model", "task", "dev F1", "lookup", "targets", "lost", "steps"]
    yield Table("F1 on dev, and of a lookup of words", columns, details)


def picture(result: dict[str, Any]) -> Picture:
    """The mixes, a panel for each task."""
    panels = []
    for index, task in enumerate(result["tasks"]):
        lines = []
        for model in result["models"]:
            mix = [100 * share for share in model["probes"][index]["mix"]]
            lines.append(Line(model["name"], range(len(mix)), mix))
        panels.append(Panel(lines, LAYER, "share of the layer in the mix, %", task))
    return Picture("Edge probing of frozen layers", [panels])
