"""Nearest-neighbour translation, layer by layer (paper Figure 2, A.9).

A sentence's vector in a layer is the mean over its tokens. The accuracy is the share of
sentences whose nearest vector in the other language belongs to the translation. The
paper takes the mean without [CLS] and [SEP], adds the mean difference between the
languages, and uses the Euclidean distance: RetrievalConfig with
pool_special_tokens = False, centre = True, scoring = "euclidean".

Vectors of all layers are stored on disk, one layer at a time is in memory, and
distances are computed in blocks.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import AnalysedModel, open_models
from decoupled.analyses.retrieval import search
from decoupled.analyses.sentence_vectors import check_lengths, encode_texts
from decoupled.configs import RetrievalConfig
from decoupled.core import console, gfile, plots
from decoupled.core.errors import UserError
from decoupled.core.files import scratch_folder
from decoupled.metrics.neighbours import wilson_interval
from decoupled.xtreme.parallel_sentences import read_parallel

DIRECTIONS = {"forward": "source to target", "backward": "target to source"}


class ParallelFiles(NamedTuple):
    """Two files; line i of `target` translates line i of `source`."""

    language: str
    source: str
    target: str


class LayerAccuracy(NamedTuple):
    """The share of sentences, in percent, whose nearest neighbour in a layer is right.

    layer: 0 is the embedding output. pairs: the number of sentence pairs. forward:
    source to target. backward: target to source. The intervals are 95% Wilson scores.
    """

    layer: int
    pairs: int
    forward: float
    forward_interval: tuple[float, float]
    backward: float
    backward_interval: tuple[float, float]


def find_parallel(
    data_dir: str | None,
    languages: Sequence[str] | None,
    source: str | None,
    target: str | None,
) -> list[ParallelFiles]:
    """The pairs of files of a folder, or the one pair that is given.

    Args:
      data_dir: a folder of files XX-en.en and XX-en.XX.
      languages: the codes XX to read; None for all.
      source, target: two files instead of a folder.

    Raises:
      UserError: both a folder and files or neither are given, or a language is missing.
    """
    if source and target and not data_dir:
        if languages:
            raise UserError("--languages: chooses files of --data_dir or --sentences")
        return [ParallelFiles(os.path.basename(target), source, target)]
    if not data_dir or source or target:
        raise UserError("give --data_dir, or --source and --target, or --sentences")
    names = gfile.listdir(data_dir) if gfile.isdir(data_dir) else []
    found = [re.fullmatch(r"([\w-]+)-en\.\1", name) for name in sorted(names)]
    there = [match[1] for match in found if match and match[1] != "en"]
    if not there:
        raise UserError(f"{data_dir}: no files XX-en.XX, XX being a language")
    for language in languages or ():
        if language not in there:
            raise UserError(f"--languages: no {language}-en.{language} in {data_dir}")
    return [
        ParallelFiles(
            language,
            os.path.join(data_dir, f"{language}-en.en"),
            os.path.join(data_dir, f"{language}-en.{language}"),
        )
        for language in languages or there
    ]


def open_checked(
    checkpoints: Sequence[str], config: RetrievalConfig
) -> list[AnalysedModel]:
    """As `open_models`; refuses models with too few positions."""
    models = open_models(checkpoints)
    for model in models:
        check_lengths(model, config)
    return models


def layer_accuracies(
    model: AnalysedModel,
    files: ParallelFiles,
    max_pairs: int,
    config: RetrievalConfig,
) -> list[LayerAccuracy]:
    """Accuracy of every layer for two parallel files.

    A neighbour is right if its sentence equals the translation, even at another index.

    Args:
      files: one sentence per line; their language is for messages.
      max_pairs: only the first `max_pairs` pairs are used; 0 for all.
      config: pooling, scoring and batches; its layer is ignored.

    Raises:
      UserError: the model has too few positions, or the files are missing or do not
        have equally many lines.
    """
    sources, targets = read_parallel(
        files.source, files.target, files.language, max_pairs
    )
    numbers = {text: number for number, text in enumerate([*sources, *targets])}
    # Equal sentences of a side get the same number.
    sides = [np.array([numbers[text] for text in side]) for side in (sources, targets)]
    rows = []
    every_layer = vectors_by_layer(model, [*sources, *targets], config)
    for layer, vectors in enumerate(every_layer):
        first, second = vectors[: len(sources)], vectors[len(sources) :]
        matches = search(first, second, config, f"searching blocks, layer {layer}")
        rows.append(_row(layer, sides, matches))
    return rows


def vectors_by_layer(
    model: AnalysedModel,
    texts: Sequence[str],
    config: RetrievalConfig,
) -> Iterator[np.ndarray]:
    """Yields float32 [texts, H] for layer 0 (the embedding output), 1, ... L.

    Every text is encoded once; the vectors of all layers are stored on disk.
    """
    with scratch_folder() as folder:
        stored = _LayersOnDisk(folder, model.config.hidden_size)
        layers = range(model.config.num_layers + 1)
        for places, pooled in encode_texts(model, texts, layers, config):
            stored.add(places, pooled)
        for layer in layers:
            yield stored.read(layer)


def measure(
    checkpoints: Sequence[str],
    parallel: Sequence[ParallelFiles],
    max_pairs: int,
    config: RetrievalConfig,
) -> dict[str, Any]:
    """Measures all layers of all models on all pairs of files (`layer_accuracies`).

    Returns:
      `analysis`, `settings`, and `models`: name, checkpoint and sizes of each, with
      `languages`, a list of entries with `language`, the two paths, and `layers`: the
      fields of `LayerAccuracy`.
    """
    settings = dataclasses.asdict(config)
    del settings["layer"]
    models = open_checked(checkpoints, config)
    # Every file is read before the first model encodes, which takes long.
    for files in parallel:
        read_parallel(files.source, files.target, files.language, max_pairs)
    return {
        "analysis": "neighbours",
        "settings": {**settings, "max_pairs": max_pairs},
        "models": [
            _measure_model(model, parallel, max_pairs, config) for model in models
        ],
    }


def show(result: dict[str, Any]) -> None:
    """Prints a table per model: a row per layer, two columns per language."""
    for model in result["models"]:
        languages = model["languages"]
        heads = [
            f"{entry['language']} {direction}"
            for entry in languages
            for direction in DIRECTIONS
        ]
        rows = [
            [
                str(layer),
                *(_cell(e["layers"][layer], d) for e in languages for d in DIRECTIONS),
            ]
            for layer in range(model["num_layers"] + 1)
        ]
        pairs = ", ".join(f"{e['layers'][0]['pairs']:,}" for e in languages)
        console.table(
            f"{model['name']}: % whose nearest neighbour is the translation (95% "
            f"interval) among {pairs} pairs",
            ["layer", *heads],
            rows,
        )


def plot(result: dict[str, Any], stem: str) -> list[str]:
    """Accuracy by layer, a panel per direction; writes `stem`.png and `stem`.svg.

    There is one line per language, or per model if there are several models. If there
    are several of both, each language has a row of panels.
    """
    models = result["models"]
    languages = [entry["language"] for entry in models[0]["languages"]]
    # With several models, the lines of a panel are models and the rows are languages.
    rows = languages if len(models) > 1 else [None]
    figure, panels = plots.grid(len(rows), 2, 4.2, 3.0, sharey="row", sharex=True)
    for row, axes in zip(rows, panels, strict=True):
        for index, (name, layers) in enumerate(_series(models, row)):
            for panel, direction in zip(axes, DIRECTIONS, strict=True):
                _line(panel, layers, direction, name, plots.look(index))
        for panel, direction in zip(axes, DIRECTIONS.values(), strict=True):
            panel.set_title(direction if row is None else f"{row}: {direction}", size=9)
            plots.whole_numbers(panel)
            panel.set_ylim(bottom=0)
            plots.tidy(panel)
        axes[0].set_ylabel("accuracy, %", fontsize=9)
    for panel in panels[-1]:
        panel.set_xlabel("layer (0: input embedding)", fontsize=9)
    title = "Nearest-neighbour translation"
    if len(models) == 1:
        title += f", {models[0]['name']}"
    title += "; bands: 95% confidence intervals"
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=9)
    return plots.save(figure, stem)


def _measure_model(
    model: AnalysedModel,
    parallel: Sequence[ParallelFiles],
    max_pairs: int,
    config: RetrievalConfig,
) -> dict[str, Any]:
    measured = []
    for files in parallel:
        layers = layer_accuracies(model, files, max_pairs, config)
        measured.append(
            {**files._asdict(), "layers": [entry._asdict() for entry in layers]}
        )
    return {**model.describe(), "languages": measured}


def _row(layer, sides, matches) -> LayerAccuracy:
    sources, targets = sides
    pairs = len(sources)
    forward = int(np.sum(targets[matches.forward] == targets))
    backward = int(np.sum(sources[matches.backward] == sources))
    return LayerAccuracy(
        layer,
        pairs,
        *percent(forward, pairs),
        *percent(backward, pairs),
    )


def percent(right: int, trials: int) -> tuple[float, tuple[float, float]]:
    """A share in percent, and its 95% interval by Wilson's score."""
    low, high = wilson_interval(right, trials)
    return 100 * right / trials, (100 * low, 100 * high)


class _LayersOnDisk:
    """Vectors of all layers: written as they arrive, read one layer at a time."""

    def __init__(self, folder, size):
        self._folder = folder
        self._size = size
        self._places = []

    def add(self, places, pooled):
        """Writes a batch of `encode_texts`."""
        self._places.append(places)
        for layer, vectors in pooled.items():
            with gfile.GFile(self._path(layer), "ab") as handle:
                handle.write(np.ascontiguousarray(vectors, np.float32))

    def read(self, layer) -> np.ndarray:
        """float32 [texts, size], in the order of the texts."""
        stored = np.fromfile(self._path(layer), np.float32).reshape(-1, self._size)
        texts = 1 + max(places.max() for places in self._places)
        vectors = np.zeros([texts, self._size], np.float32)
        end = 0
        for places in self._places:
            start, end = end, end + len(places)
            vectors[places] += stored[start:end]
        return vectors

    def _path(self, layer):
        return os.path.join(self._folder, f"{layer}.float32")


def _cell(layer, direction) -> str:
    low, high = layer[f"{direction}_interval"]
    return f"{layer[direction]:.1f} ({low:.1f}-{high:.1f})"


def _series(models, language):
    """(name, layers) of each line: the languages of one model, or the models."""
    for model in models:
        for entry in model["languages"]:
            if language is None:
                yield entry["language"], entry["layers"]
            elif entry["language"] == language:
                yield model["name"], entry["layers"]


def _line(axes, layers, direction, name, style):
    places = [entry["layer"] for entry in layers]
    low, high = zip(*(entry[f"{direction}_interval"] for entry in layers), strict=True)
    axes.plot(places, [entry[direction] for entry in layers], label=name, **style)
    axes.fill_between(places, low, high, color=style["color"], alpha=0.15, linewidth=0)
