"""Nearest-neighbour translation between all pairs of several languages, by layer.

This is the analysis of `decoupled.analyses.neighbours`, for sentences with ids that all
languages share. Each sentence is encoded once, and both directions of each pair of
languages are searched. The hits are kept per sentence, so that models can also be
compared over sentences.
"""

import dataclasses
import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import AnalysedModel
from decoupled.analyses.neighbours import open_checked, percent, vectors_by_layer
from decoupled.analyses.retrieval import search
from decoupled.configs import RetrievalConfig
from decoupled.core import console, plots
from decoupled.core.errors import UserError
from decoupled.corpora.parallel.parallel_text import choose
from decoupled.corpora.parallel.sentences import read_sentences
from decoupled.metrics.neighbours import mean_interval

# The choice of sentences depends on their ids alone.
_SEED = 0


class SharedSentences(NamedTuple):
    """Sentences that all languages have.

    split: "dev", "test", or another name of the folder. ids: of the sentences, in the
    order of the first language's file. texts: language -> [sentences], in the order of
    `ids`.
    """

    split: str
    ids: list[str]
    texts: dict[str, list[str]]

    @property
    def directions(self) -> list[tuple[str, str]]:
        """All ordered pairs of languages."""
        return list(itertools.permutations(self.texts, 2))


def read_shared(
    folder: str, languages: Sequence[str] | None, max_pairs: int
) -> SharedSentences:
    """The sentences whose ids all languages have.

    Args:
      folder: has LANGUAGE.tsv of id, tab, text for each language, as
        CORPUS/parallel/test/sentences.
      languages: the languages to read; None for all.
      max_pairs: the maximal number of sentences, 0 for all. A hash of the ids chooses
        them, so that they come from the whole text.

    Raises:
      UserError: the folder lacks a language or has fewer than two, or the languages
        share no id.
    """
    texts = read_sentences(folder, languages)
    first, *others = texts.values()
    shared = [name for name in first if all(name in other for other in others)]
    if not shared:
        raise UserError(
            f"{folder}: no id is in all of {', '.join(texts)}; choose --languages that "
            "share sentences"
        )
    ids = choose(shared, max_pairs or len(shared), _SEED)
    path = os.path.abspath(folder) if "://" not in folder else folder.rstrip("/")
    above, name = os.path.split(path)
    return SharedSentences(
        os.path.basename(above) if name == "sentences" else name,
        ids,
        {language: [own[i] for i in ids] for language, own in texts.items()},
    )


def layer_hits(
    model: AnalysedModel,
    sentences: SharedSentences,
    config: RetrievalConfig,
) -> np.ndarray:
    """Whether the nearest neighbour is the translation, by layer, direction, sentence.

    A neighbour is right if its sentence equals the translation, even at another index.

    Args:
      sentences: of two languages or more.
      config: pooling, scoring and batches; its layer is ignored.

    Returns:
      uint8 [layers + 1, directions, sentences], 1 if the neighbour is right.

    Raises:
      UserError: the model has too few positions.
    """
    numbers: dict[str, int] = {}
    places = {
        language: np.array([numbers.setdefault(text, len(numbers)) for text in texts])
        for language, texts in sentences.texts.items()
    }
    hits = np.zeros(
        [model.config.num_layers + 1, len(sentences.directions), len(sentences.ids)],
        np.uint8,
    )
    every_layer = vectors_by_layer(model, list(numbers), config)
    for layer, vectors in enumerate(every_layer):
        for pair in itertools.combinations(sentences.texts, 2):
            first, second = (places[language] for language in pair)
            told = f"searching blocks of {'-'.join(pair)}, layer {layer}"
            found = search(vectors[first], vectors[second], config, told)
            forward, backward = (
                sentences.directions.index(way) for way in (pair, pair[::-1])
            )
            hits[layer, forward] = second[found.forward] == second
            hits[layer, backward] = first[found.backward] == first
    return hits


def measure(
    checkpoints: Sequence[str],
    sentences: SharedSentences,
    max_pairs: int,
    config: RetrievalConfig,
) -> dict[str, Any]:
    """Measures all layers of all models in all directions with `layer_hits`.

    Returns:
      `analysis`, `split`, `settings`; `directions`: [source, target] of each; `items`:
      the ids; `models`: name, checkpoint and sizes of each, with `layers`, a list of
      `layer`, `mean` (percent, over directions and sentences), `interval` (95%, over
      sentences) and `directions`: `accuracy` in percent, `interval` (95%, Wilson's).
      `arrays`: "MODELINDEX/hits" -> the result of `layer_hits`.
    """
    settings = dataclasses.asdict(config)
    del settings["layer"]
    models, arrays = [], {}
    for index, model in enumerate(open_checked(checkpoints, config)):
        hits = layer_hits(model, sentences, config)
        arrays[f"{index}/hits"] = hits
        layers = [_summary(layer, own) for layer, own in enumerate(hits)]
        models.append({**model.describe(), "layers": layers})
    return {
        "analysis": "neighbours",
        "split": sentences.split,
        "settings": {**settings, "max_pairs": max_pairs},
        "directions": [list(direction) for direction in sentences.directions],
        "items": sentences.ids,
        "models": models,
        "arrays": arrays,
    }


def best_layer(result: dict[str, Any]) -> list[int]:
    """The layer of each model, from 1 on, with the highest mean accuracy.

    It serves to choose a layer on dev sentences and to score it on test sentences.
    Among layers of equal accuracy the lowest is taken.

    Args:
      result: of `measure`.
    """
    return [
        max(model["layers"][1:], key=lambda layer: layer["mean"])["layer"]
        for model in result["models"]
    ]


def show(result: dict[str, Any]) -> None:
    """Prints a table per model: a row per direction, a column per layer."""
    for model in result["models"]:
        layers = model["layers"]
        names = [" to ".join(direction) for direction in result["directions"]]
        rows = [
            [name, *(_cell(own["directions"][i], "accuracy") for own in layers)]
            for i, name in enumerate(names)
        ]
        rows.append(["mean", *(_cell(layer, "mean") for layer in layers)])
        console.table(
            f"{model['name']}: % whose nearest neighbour is the translation (95% "
            f"interval) among {len(result['items']):,} sentences, {result['split']}",
            ["direction", *(f"layer {layer['layer']}" for layer in layers)],
            rows,
        )


def plot(result: dict[str, Any], stem: str) -> list[str]:
    """Mean accuracy by layer, a line per model; writes `stem`.png and `stem`.svg."""
    figure, [[axes]] = plots.grid(1, 1, 5.0, 3.4)
    for index, model in enumerate(result["models"]):
        style, layers = plots.look(index), model["layers"]
        places = [layer["layer"] for layer in layers]
        low, high = zip(*(layer["interval"] for layer in layers), strict=True)
        means = [layer["mean"] for layer in layers]
        axes.plot(places, means, label=model["name"], **style)
        axes.fill_between(
            places, low, high, color=style["color"], alpha=0.15, linewidth=0
        )
    plots.whole_numbers(axes)
    axes.set_ylim(bottom=0)
    plots.tidy(axes)
    axes.set_xlabel("layer (0: input embedding)", fontsize=9)
    axes.set_ylabel("accuracy, %", fontsize=9)
    count = len(result["directions"])
    title = f"Nearest-neighbour translation, mean of {count} directions; bands: 95%"
    plots.title_and_legend(figure, axes, title)
    return plots.save(figure, stem)


def _summary(layer: int, hits: np.ndarray) -> dict[str, Any]:
    """The entry of a layer; hits: uint8 [directions, sentences]."""
    directions = []
    for own in hits:
        accuracy, interval = percent(int(own.sum()), len(own))
        directions.append({"accuracy": accuracy, "interval": interval})
    by_sentence = 100 * hits.mean(axis=0)
    return {
        "layer": layer,
        "mean": float(by_sentence.mean()),
        "interval": mean_interval(by_sentence),
        "directions": directions,
    }


def _cell(entry, name) -> str:
    low, high = entry["interval"]
    return f"{entry[name]:.1f} ({low:.1f}-{high:.1f})"
