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

from decoupled.analyses.models import (
    LONGEST,
    add_vectors,
    array_on_disk,
    measure_each,
    open_models,
)
from decoupled.analyses.output import LAYER, Line, Panel, Picture, Table
from decoupled.analyses.retrieval import search
from decoupled.configs import RetrievalConfig
from decoupled.configs.analyses import NeighbourSettings
from decoupled.core import files, gfile
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

    about: the entries of results on their source, with a hash of the sentences. texts:
    language -> sentences, line by line translations of each other. ids: of the
    sentences, if they have any.
    """

    about: dict[str, str]
    texts: dict[str, list[str]]
    ids: list[str] | None = None


def run(flags: Any, settings: NeighbourSettings) -> dict[str, Any]:
    """The result of the command's flags."""
    if bool(flags.sentences) == bool(flags.data_dir):
        raise UserError("give --data_dir or --sentences, one of them")
    if flags.sentences:
        texts = [read_shared(flags.sentences, flags.languages, settings.max_pairs)]
    else:
        texts = read_files(flags.data_dir, flags.languages, settings.max_pairs)
    length = settings.retrieval.max_sequence_length
    models = open_models(flags.model_dir, length=length, setting=LONGEST)
    return measure(models, texts, settings)


def read_files(
    data_dir: str, languages: Sequence[str] | None, max_pairs: int
) -> list[Translations]:
    """The first `max_pairs` pairs, or all for 0, of every two files of a folder."""
    names = gfile.listdir(data_dir) if gfile.isdir(data_dir) else []
    matches = [re.fullmatch(r"([\w-]+)-en\.\1", name) for name in sorted(names)]
    known_languages = [match[1] for match in matches if match and match[1] != "en"]
    if not known_languages:
        raise UserError(f"{data_dir}: no files XX-en.XX, XX being a language")
    texts = []
    for name in dict.fromkeys(languages or known_languages):
        if name not in known_languages:
            raise UserError(f"--languages: no {name}-en.{name} in {data_dir}")
        stem = os.path.join(data_dir, f"{name}-en")
        source, target = f"{stem}.en", f"{stem}.{name}"
        sides = read_parallel(source, target, name, max_pairs)
        paths = {"source": source, "target": target}
        about = {"language": name, **paths, "sha256": _sha256(*sides)}
        texts.append(Translations(about, dict(zip(("en", name), sides, strict=True))))
    return texts


def read_shared(
    folder: str, languages: Sequence[str] | None, max_pairs: int
) -> Translations:
    """The sentences whose ids all languages have.

    A hash of the ids chooses at most `max_pairs` of them, so that they come from the
    whole text; 0 takes all.
    """
    texts = read_sentences(folder, languages)
    first_text, *other_texts = texts.values()
    shared_ids = [i for i in first_text if all(i in text for text in other_texts)]
    if not shared_ids:
        raise UserError(
            f"{folder}: no id is in all of {', '.join(texts)}; choose --languages that "
            "share sentences"
        )
    ids = choose(shared_ids, max_pairs or len(shared_ids), _SEED)
    path = os.path.abspath(folder) if "://" not in folder else folder.rstrip("/")
    parent, name = os.path.split(path)
    split = os.path.basename(parent) if name == "sentences" else name
    sentences = {language: [by_id[i] for i in ids] for language, by_id in texts.items()}
    about = {"language": split, "sha256": _sha256(ids, *sentences.values())}
    return Translations(about, sentences, ids)


def _sha256(*sides: Sequence[str]) -> str:
    return files.fingerprint("\n".join(itertools.chain(*sides)))


def measure(
    models: Sequence[Model], texts: Sequence[Translations], settings: NeighbourSettings
) -> dict[str, Any]:
    """Measures all layers of all models in all directions with `layer_hits`.

    Returns:
      `settings`; each of `models` has `languages`, a list with an entry for each of
      `texts`: `language` (of sentences with ids, their split), `source` and `target` of
      files, `pairs`, `directions` and `layers`. Each of `layers` has `layer`, `mean`
      (percent, over directions and sentences), `interval` (95%, over sentences) and
      `directions`: `accuracy` in percent and `interval` (95%, Wilson's).

      For sentences with ids also `items`, their ids, and `arrays`: "MODELINDEX/hits" ->
      the result of `layer_hits`.
    """
    config = settings.retrieval

    def of_model(model):
        languages, by_item = [], {}
        for text in texts:
            hits = layer_hits(model, text.texts, config)
            layers = [_summary(layer, of_layer) for layer, of_layer in enumerate(hits)]
            of_text = {"pairs": hits.shape[-1], "directions": _directions(text.texts)}
            languages.append({**text.about, **of_text, "layers": layers})
            if text.ids is not None:
                by_item["hits"] = hits
        return {"languages": languages}, by_item

    fields = {**dataclasses.asdict(config), "max_pairs": settings.max_pairs}
    del fields["layer"]
    entries = measure_each(models, of_model)
    ids = next((text.ids for text in texts if text.ids is not None), None)
    return {
        "analysis": "neighbours",
        "settings": fields,
        **entries,
        **({"items": ids} if ids else {}),
    }


def _directions(texts: dict[str, list[str]]) -> list[list[str]]:
    """All ordered pairs of languages."""
    return [list(pair) for pair in itertools.permutations(texts, 2)]


def layer_hits(
    model: Model, texts: dict[str, list[str]], config: RetrievalConfig
) -> np.ndarray:
    """Whether the nearest neighbour is the translation, by layer, direction, sentence.

    A neighbour is right if its sentence equals the translation, even at another index.
    Every text is encoded once.

    Returns:
      uint8 [layers + 1, directions, sentences], 1 if the neighbour is right.
    """
    numbers: dict[str, int] = {}
    places = {
        language: np.array([numbers.setdefault(text, len(numbers)) for text in side])
        for language, side in texts.items()
    }
    directions = _directions(texts)
    layers, width = model.config.num_layers + 1, model.config.hidden_size
    sentences = len(next(iter(texts.values())))
    hits = np.zeros([layers, len(directions), sentences], np.uint8)
    with scratch_folder() as folder:
        path, shape = os.path.join(folder, "vectors"), (layers, len(numbers), width)
        vectors = array_on_disk(path, np.float32, shape)
        add_vectors(vectors, model, list(numbers), range(layers), config)
        for layer, layer_vectors in enumerate(vectors):
            array = np.array(layer_vectors)
            for pair in itertools.combinations(texts, 2):
                first, second = (places[language] for language in pair)
                progress = f"searching blocks of {'-'.join(pair)}, layer {layer}"
                matches = search(array[first], array[second], config, progress)
                there, back = (directions.index([*way]) for way in (pair, pair[::-1]))
                hits[layer, there] = second[matches.forward] == second
                hits[layer, back] = first[matches.backward] == first
    return hits


def _summary(layer: int, hits: np.ndarray) -> dict[str, Any]:
    directions = []
    for direction in hits:
        low, high = wilson_interval(int(direction.sum()), len(direction))
        accuracy, interval = 100 * float(direction.mean()), (100 * low, 100 * high)
        directions.append({"accuracy": accuracy, "interval": interval})
    by_sentence = 100 * hits.mean(axis=0)
    low, high = mean_interval(by_sentence)
    if np.ptp(by_sentence) == 0:
        # All sentences are alike, or there is one: as of a share.
        share, count = by_sentence[0] / 100, len(by_sentence)
        low, high = (100 * end for end in wilson_interval(share * count, count))
    return {
        "layer": layer,
        "mean": float(by_sentence.mean()),
        "interval": (max(low, 0.0), min(high, 100.0)),
        "directions": directions,
    }


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """A table per model: a row per direction, a column per layer."""
    for model in result["models"]:
        rows = []
        for text in model["languages"]:
            for index, direction in enumerate(text["directions"]):
                cells = [layer["directions"][index] for layer in text["layers"]]
                cells = [_cell(c["accuracy"], *c["interval"]) for c in cells]
                rows.append([" to ".join(direction), text["pairs"], *cells])
            means = [_cell(c["mean"], *c["interval"]) for c in text["layers"]]
            rows.append([f"mean, {text['language']}", text["pairs"], *means])
        name = f"{model['name']}: % whose nearest neighbour is the translation"
        layers = [f"layer {layer}" for layer in range(model["num_layers"] + 1)]
        columns = ["direction", "sentences", *layers]
        yield Table(f"{name} (95% interval)", columns, rows)


def _cell(value: float, low: float, high: float) -> str:
    return f"{value:.1f} ({low:.1f}-{high:.1f})"


def picture(result: dict[str, Any]) -> Picture:
    """Means over directions by layer: a panel per text, a line per model."""
    panels: dict[str, list[Line]] = {}
    for model in result["models"]:
        for text in model["languages"]:
            layers = text["layers"]
            low, high = zip(*(layer["interval"] for layer in layers), strict=True)
            means = [layer["mean"] for layer in layers]
            line = Line(model["name"], range(len(layers)), means, low, high)
            panels.setdefault(text["language"], []).append(line)
    row = [
        Panel(lines, LAYER, "accuracy, %", language, from_zero=True)
        for language, lines in panels.items()
    ]
    title = "Nearest-neighbour translation, mean of all directions; bars: 95%"
    # At most four panels side by side.
    return Picture(title, [row[start : start + 4] for start in range(0, len(row), 4)])
