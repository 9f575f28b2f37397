"""Translation by nearest neighbours, layer by layer (paper Figure 2).

A sentence's vector in a layer is the mean over its tokens. Prints how often the nearest
vector of the other language is that of the translation, in both directions, with
Wilson's 95% intervals. If the last layers are specialised on predicting masked words,
this accuracy falls towards the last layer.

  decoupled analyze neighbours --model_dir=runs/e_out_768 \\
      --data_dir=data/tatoeba_parallel --languages=de,sw --output_dir=results

--data_dir has files XX-en.en and XX-en.XX, and line i of one is the translation of line
i of the other.

--sentences is a folder of LANGUAGE.tsv, a file for each language, with lines of id,
tab, sentence. The sentences whose ids all languages have are compared between all pairs
of languages in both directions. neighbours.items.npz then has the hits of every
sentence:

  decoupled analyze neighbours --model_dir=runs/e_out_768 \\
      --sentences=data/corpus/parallel/test/sentences --output_dir=results
"""

import dataclasses
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import check_lengths, describe, encode_texts, open_models
from decoupled.analyses.output import (
    LAYER,
    Line,
    Panel,
    Picture,
    Table,
    with_interval,
)
from decoupled.analyses.retrieval import search
from decoupled.configs import RetrievalConfig
from decoupled.core import gfile
from decoupled.core.errors import UserError
from decoupled.core.files import scratch_folder
from decoupled.corpora.parallel.parallel_text import choose, read_sentences
from decoupled.metrics.neighbours import mean_interval, wilson_interval
from decoupled.runs.saved_run import Model
from decoupled.xtreme.parallel_sentences import read_parallel

# The choice of sentences depends on their ids alone.
_SEED = 0


class Translations(NamedTuple):
    """Sentences that several languages have.

    about: what results say of their source. texts: language -> sentences, line by line
    translations of each other. ids: of the sentences, if they have any.
    """

    about: dict[str, str]
    texts: dict[str, list[str]]
    ids: list[str] | None = None

    @property
    def directions(self) -> list[tuple[str, str]]:
        """All ordered pairs of languages."""
        return list(itertools.permutations(self.texts, 2))


def run(flags: Any, settings: tuple[RetrievalConfig, int]) -> dict[str, Any]:
    """The result of the command's flags."""
    config, max_pairs = settings.retrieval, settings.max_pairs
    if flags.sentences:
        if flags.data_dir:
            raise UserError("give --sentences or --data_dir, one of them")
        texts = [read_shared(flags.sentences, flags.languages, max_pairs)]
    else:
        pairs = find_files(flags.data_dir, flags.languages)
        texts = [read_files(paths, max_pairs) for paths in pairs]
    return measure(open_models(flags.model_dir), texts, max_pairs, config)


def find_files(
    data_dir: str | None, languages: Sequence[str] | None
) -> list[dict[str, str]]:
    """The pairs of files of a folder: language -> path."""
    if not data_dir:
        raise UserError("give --data_dir or --sentences")
    names = gfile.listdir(data_dir) if gfile.isdir(data_dir) else []
    matches = [re.fullmatch(r"([\w-]+)-en\.\1", name) for name in sorted(names)]
    there = [match[1] for match in matches if match and match[1] != "en"]
    if not there:
        raise UserError(f"{data_dir}: no files XX-en.XX, XX being a language")
    for language in languages or ():
        if language not in there:
            raise UserError(f"--languages: no {language}-en.{language} in {data_dir}")
    return [
        {side: os.path.join(data_dir, f"{name}-en.{side}") for side in ("en", name)}
        for name in languages or there
    ]


def read_files(paths: dict[str, str], max_pairs: int) -> Translations:
    """The first `max_pairs` pairs of two files of equal length, or all for 0."""
    (_, source), (language, target) = paths.items()
    sides = read_parallel(source, target, language, max_pairs)
    about = {"language": language, "source": source, "target": target}
    return Translations(about, dict(zip(paths, sides, strict=True)))


def read_shared(
    folder: str, languages: Sequence[str] | None, max_pairs: int
) -> Translations:
    """The sentences whose ids all languages have.

    A hash of the ids chooses at most `max_pairs` of them, so that they come from the
    whole text; 0 takes all.
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
    split = os.path.basename(above) if name == "sentences" else name
    chosen = {language: [by_id[i] for i in ids] for language, by_id in texts.items()}
    return Translations({"split": split}, chosen, ids)


def measure(
    models: Sequence[Model],
    texts: Sequence[Translations],
    max_pairs: int,
    config: RetrievalConfig,
) -> dict[str, Any]:
    """Measures all layers of all models in all directions with `layer_hits`.

    Returns:
      `settings`; `models`: the entries of `describe`. For pairs of files
      these have `languages`, a list of entries with `language`, `source`, `target`,
      `pairs`, `directions` and `layers`. For sentences with ids they have `layers`, and
      the result has `split`, `directions`, `items` (the ids), and `arrays`:
      "MODELINDEX/hits" -> the result of `layer_hits`. Each of `layers` has `layer`,
      `mean` (percent, over directions and sentences), `interval` (95%, over sentences)
      and `directions`: `accuracy` in percent and `interval` (95%, Wilson's).
    """
    for model in models:
        check_lengths(model, config)
    settings = {**dataclasses.asdict(config), "max_pairs": max_pairs}
    del settings["layer"]
    described, arrays = [], {}
    for index, model in enumerate(models):
        entry, languages = describe(model), []
        for text in texts:
            hits = layer_hits(model, text.texts, config)
            layers = [_summary(layer, of_layer) for layer, of_layer in enumerate(hits)]
            if text.ids is not None:
                entry["layers"] = layers
                arrays[f"{index}/hits"] = hits
                continue
            languages.append(
                {
                    **text.about,
                    "pairs": hits.shape[-1],
                    "directions": [list(way) for way in text.directions],
                    "layers": layers,
                }
            )
        described.append({**entry, "languages": languages} if languages else entry)
    result = {"analysis": "neighbours", "settings": settings, "models": described}
    if arrays:
        [shared] = texts
        result |= {
            **shared.about,
            "directions": [list(way) for way in shared.directions],
            "items": shared.ids,
            "arrays": arrays,
        }
    return result


def layer_hits(
    model: Model, texts: dict[str, list[str]], config: RetrievalConfig
) -> np.ndarray:
    """Whether the nearest neighbour is the translation, by layer, direction, sentence.

    A neighbour is right if its sentence equals the translation, even at another index.

    Returns:
      uint8 [layers + 1, directions, sentences], 1 if the neighbour is right.
    """
    numbers: dict[str, int] = {}
    places = {
        language: np.array([numbers.setdefault(text, len(numbers)) for text in side])
        for language, side in texts.items()
    }
    directions = list(itertools.permutations(texts, 2))
    sentences = len(next(iter(texts.values())))
    hits = np.zeros([model.config.num_layers + 1, len(directions), sentences], np.uint8)
    every_layer = vectors_by_layer(model, list(numbers), config)
    for layer, vectors in enumerate(every_layer):
        for pair in itertools.combinations(texts, 2):
            first, second = (places[language] for language in pair)
            progress = f"searching blocks of {'-'.join(pair)}, layer {layer}"
            matches = search(vectors[first], vectors[second], config, progress)
            forward, backward = (directions.index(way) for way in (pair, pair[::-1]))
            hits[layer, forward] = second[matches.forward] == second
            hits[layer, backward] = first[matches.backward] == first
    return hits


def vectors_by_layer(
    model: Model, texts: Sequence[str], config: RetrievalConfig
) -> Iterator[np.ndarray]:
    """Yields float32 [texts, H] for layer 0 (the embedding output), 1, ... L.

    Every text is encoded once. The vectors of all layers are on disk, and one layer at
    a time in memory.
    """
    layers, width = range(model.config.num_layers + 1), model.config.hidden_size
    with scratch_folder() as folder:
        paths = [os.path.join(folder, f"{layer}.float32") for layer in layers]
        places = []
        for rows, pooled in encode_texts(model, texts, layers, config):
            places.append(rows)
            for layer, vectors in pooled.items():
                with gfile.GFile(paths[layer], "ab") as handle:
                    handle.write(np.ascontiguousarray(vectors, np.float32))
        for path in paths:
            vectors = np.zeros([len(texts), width], np.float32)
            stored = np.fromfile(path, np.float32).reshape(-1, width)
            # A text of several windows has several rows.
            np.add.at(vectors, np.concatenate(places), stored)
            yield vectors


def best_layer(result: dict[str, Any]) -> list[int]:
    """The layer of each model, from 1 on, with the highest mean accuracy.

    It serves to choose a layer on dev sentences and to score it on test sentences.
    """
    return [
        max(model["layers"][1:], key=lambda layer: layer["mean"])["layer"]
        for model in result["models"]
    ]


def _summary(layer: int, hits: np.ndarray) -> dict[str, Any]:
    directions = []
    for direction in hits:
        low, high = wilson_interval(int(direction.sum()), len(direction))
        accuracy, interval = 100 * float(direction.mean()), (100 * low, 100 * high)
        directions.append({"accuracy": accuracy, "interval": interval})
    by_sentence = 100 * hits.mean(axis=0)
    return {
        "layer": layer,
        "mean": float(by_sentence.mean()),
        "interval": mean_interval(by_sentence),
        "directions": directions,
    }


def _texts(result: dict[str, Any], model: dict[str, Any]) -> list[dict[str, Any]]:
    if "languages" in model:
        return model["languages"]
    shared = {"pairs": len(result["items"]), "directions": result["directions"]}
    return [{**shared, "language": result["split"], "layers": model["layers"]}]


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """A table per model: a row per direction, a column per layer."""
    for model in result["models"]:
        rows = []
        for text in _texts(result, model):
            for index, direction in enumerate(text["directions"]):
                cells = [layer["directions"][index] for layer in text["layers"]]
                cells = [with_interval(c["accuracy"], c["interval"]) for c in cells]
                rows.append([" to ".join(direction), text["pairs"], *cells])
            means = [with_interval(c["mean"], c["interval"]) for c in text["layers"]]
            rows.append([f"mean, {text['language']}", text["pairs"], *means])
        yield Table(
            f"{model['name']}: % whose nearest neighbour is the translation (95% "
            "interval)",
            ["direction", "sentences"]
            + [f"layer {layer}" for layer in range(model["num_layers"] + 1)],
            rows,
        )


def picture(result: dict[str, Any]) -> Picture:
    """Means over directions by layer: a panel per text, a line per model."""
    panels: dict[str, list[Line]] = {}
    for model in result["models"]:
        for text in _texts(result, model):
            low, high = zip(*(c["interval"] for c in text["layers"]), strict=True)
            panels.setdefault(text["language"], []).append(
                Line(
                    model["name"],
                    [layer["layer"] for layer in text["layers"]],
                    [layer["mean"] for layer in text["layers"]],
                    low,
                    high,
                )
            )
    row = [
        Panel(lines, LAYER, "accuracy, %", language, from_zero=True)
        for language, lines in panels.items()
    ]
    title = "Nearest-neighbour translation, mean of all directions; bars: 95%"
    # At most four panels side by side.
    return Picture(title, [row[start : start + 4] for start in range(0, len(row), 4)])
