"""How fine-tuning changes each layer, and how well each layer predicts masked tokens.

Linear CKA (Kornblith et al. 2019) compares the vectors that two models give to the same
tokens. It is 1 if one set of vectors is a rotated and scaled copy of the other, and 0
if they have no linear relation. For the MLM accuracy of a layer, the pre-trained head
reads the output of this layer instead of the last one. Both measure directly what the
paper infers from dropping layers: how far the last layers are specialised on the MLM
task.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import AnalysedModel, LayerEncoder, batches, open_models
from decoupled.configs.analyses import DriftSettings
from decoupled.core import console, files, plots
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.data.masking import mask_sequences
from decoupled.exports.serving.encoder import MaskedLm
from decoupled.metrics.similarity import CrossMoments
from decoupled.tasks.classification import pack_texts

Arrays = dict[str, np.ndarray]


class Pair(NamedTuple):
    """A pre-trained model and, if there is one, the model fine-tuned from it."""

    pretrained: AnalysedModel
    finetuned: AnalysedModel | None


def open_pairs(model_dirs: Sequence[str], finetuned_dirs: Sequence[str]) -> list[Pair]:
    """Opens pre-trained models and, in the same order, their fine-tuned models.

    Raises:
      UserError: there are fine-tuned models, but not one for each pre-trained model; or
        as `open_models`.
    """
    if finetuned_dirs and len(finetuned_dirs) != len(model_dirs):
        raise UserError(
            f"--finetuned_dir: given {len(finetuned_dirs)} times, --model_dir "
            f"{len(model_dirs)} times; give one for each, or none"
        )
    models = open_models(model_dirs, masked_lm=True)
    tuned = open_models(finetuned_dirs) if finetuned_dirs else [None] * len(models)
    return [Pair(*pair) for pair in zip(models, tuned, strict=True)]


def read_texts(paths: Sequence[str], max_texts: int) -> list[str]:
    """The first `max_texts` non-empty lines of the files.

    Raises:
      UserError: a file is missing or not UTF-8, or there is no text.
    """
    texts = []
    for path in paths:
        texts += [line for line in files.read_text(path).splitlines() if line.strip()]
    if not texts:
        raise UserError(f"{', '.join(paths)}: no text; write one a line")
    return texts[:max_texts]


def measure(
    pairs: Sequence[Pair], texts: list[str], settings: DriftSettings
) -> dict[str, Any]:
    """All measures of all pairs.

    Returns:
      `texts`, `settings`; `models`: the entries of `AnalysedModel.describe` for the
      pre-trained model, with `finetuned` (the same for the fine-tuned model, or None),
      `tokens` and `predictions` (the numbers that the means are over), and `layers`, a
      list of entries with `layer` (0: input embedding), `masked_lm_accuracy`, and for
      the fine-tuned model `finetuned_masked_lm_accuracy` (with the pre-trained head),
      `cka` and `cosine` (the mean over tokens), each None for layers that fine-tuning
      dropped.

    Raises:
      UserError: a model has too few positions, or the models of a pair do not match.
    """
    settings.check()
    for pair in pairs:
        _check(pair, settings)
    return {
        "analysis": "drift",
        "texts": len(texts),
        "settings": {
            **settings._asdict(),
            "masking": dataclasses.asdict(settings.masking),
        },
        "models": [_measure_pair(pair, texts, settings) for pair in pairs],
    }


def show(result: dict[str, Any]) -> None:
    """Prints a table per pair."""
    for model in result["models"]:
        tuned = model["finetuned"]
        title = f"{model['name']}: accuracy over {model['predictions']:,} masked tokens"
        columns = ["layer", "MLM accuracy, %"]
        if tuned:
            title += f"; {tuned['name']} beside it, {model['tokens']:,} tokens"
            columns += ["fine-tuned MLM accuracy, %", "linear CKA", "mean cosine"]
        rows = [
            [str(entry["layer"]), *_cells(entry)[: len(columns) - 1]]
            for entry in model["layers"]
        ]
        console.table(title, columns, rows)


def plot(result: dict[str, Any], stem: str) -> list[str]:
    """Left: MLM accuracy by layer; right: CKA by layer, if models are fine-tuned."""
    models = result["models"]
    tuned = [model for model in models if model["finetuned"]]
    figure, [axes] = plots.grid(1, 2 if tuned else 1, 4.2, 3.2)
    for index, model in enumerate(models):
        style = plots.look(index)
        _line(
            axes[0], model, "masked_lm_accuracy", 100, {"label": model["name"], **style}
        )
        if not model["finetuned"]:
            continue
        name = model["finetuned"]["name"]
        dashed = {**style, "linestyle": ":", "markerfacecolor": "none"}
        dashed["label"] = f"{name}, pre-trained head"
        _line(axes[0], model, "finetuned_masked_lm_accuracy", 100, dashed)
        _line(axes[1], model, "cka", 1, {"label": name, **style})
    axes[0].set_ylabel("masked-LM accuracy, %", fontsize=9)
    axes[0].set_ylim(bottom=0)
    if tuned:
        axes[1].set_ylabel("linear CKA, pre-trained to fine-tuned", fontsize=9)
        axes[1].set_ylim(0, 1.05)
    for panel in axes:
        panel.set_xlabel("layer (0: input embedding)", fontsize=9)
        plots.whole_numbers(panel)
        plots.tidy(panel)
    plots.title_and_legend(figure, axes[0], "What the layers know of masked words")
    return plots.save(figure, stem)


def _check(pair: Pair, settings: DriftSettings) -> None:
    models = [model for model in pair if model is not None]
    for model in models:
        model.check_length(settings.masking.sequence_length)
    if len({model.vocabulary.fingerprint for model in models}) > 1:
        raise UserError(
            f"{pair.finetuned.folder}: has another vocabulary than "
            f"{pair.pretrained.folder}; give the model that it was fine-tuned from"
        )
    if len({model.config.hidden_size for model in models}) > 1:
        raise UserError(
            f"{pair.finetuned.folder}: has hidden_size = "
            f"{pair.finetuned.config.hidden_size}, {pair.pretrained.folder} has "
            f"{pair.pretrained.config.hidden_size}; give the model that it was "
            "fine-tuned from"
        )


def _measure_pair(
    pair: Pair, texts: list[str], settings: DriftSettings
) -> dict[str, Any]:
    model = pair.pretrained
    arrays = _masked(model, texts, settings)
    encoder = LayerEncoder(model)
    head = MaskedLm(model.config, model.weights, encoder.encoder)
    own = _accuracies(encoder, head, arrays, settings.batch_size, model.name)
    layers = [
        {"layer": layer, "masked_lm_accuracy": value} for layer, value in enumerate(own)
    ]
    found = {"finetuned": None, "tokens": int(arrays["input_mask"].sum())}
    if pair.finetuned is not None:
        found["finetuned"] = pair.finetuned.describe()
        tuned = LayerEncoder(pair.finetuned)
        name = pair.finetuned.name
        theirs = _accuracies(tuned, head, arrays, settings.batch_size, name)
        compared = _compare(encoder, tuned, arrays, settings.batch_size, name)
        for layer, entry in enumerate(layers):
            kept = layer < len(theirs)
            entry["finetuned_masked_lm_accuracy"] = theirs[layer] if kept else None
            entry |= compared[layer] if kept else {"cka": None, "cosine": None}
    predictions = int(arrays["masked_lm_weights"].sum())
    return {**model.describe(), **found, "predictions": predictions, "layers": layers}


def _masked(model: AnalysedModel, texts: list[str], settings: DriftSettings) -> Arrays:
    """The features of pre-training, and `plain_word_ids` without masks."""
    length = settings.masking.sequence_length
    arrays = pack_texts(model.vocabulary, [(text,) for text in texts], length)
    plain = arrays["input_word_ids"]
    masked = mask_sequences(
        tf.constant(plain),
        tf.range(len(texts), dtype=tf.int64),
        settings.seed,
        settings.masking,
        model.vocabulary,
    )
    found = {name: value.numpy() for name, value in masked.items()}
    return {**arrays, **found, "plain_word_ids": plain}


def _accuracies(
    encoder: LayerEncoder, head: MaskedLm, arrays: Arrays, batch_size: int, name: str
) -> list[float]:
    """The share of masked tokens that the head predicts from each layer's output."""
    right = np.zeros(encoder.num_layers + 1)
    for batch in _tracked(arrays, batch_size, f"{name}: guessing masked words"):
        positions = tf.constant(batch["masked_lm_positions"])
        for layer, output in enumerate(encoder(batch)):
            guessed = tf.argmax(head(output, positions), -1, tf.int32).numpy()
            correct = (guessed == batch["masked_lm_ids"]) * batch["masked_lm_weights"]
            right[layer] += correct.sum()
    return (right / max(arrays["masked_lm_weights"].sum(), 1)).tolist()


def _compare(
    encoder: LayerEncoder,
    tuned: LayerEncoder,
    arrays: Arrays,
    batch_size: int,
    name: str,
) -> list[dict[str, Any]]:
    """CKA and mean cosine of the unmasked tokens' vectors, one entry per layer."""
    plain = {**arrays, "input_word_ids": arrays["plain_word_ids"]}
    moments, cosines = [], np.zeros(tuned.num_layers + 1)
    for batch in _tracked(plain, batch_size, f"{name}: comparing layers"):
        real = batch["input_mask"].astype(bool)
        outputs = zip(encoder(batch), tuned(batch), strict=False)
        for layer, (before, after) in enumerate(outputs):
            before, after = before.numpy()[real], after.numpy()[real]
            if layer == len(moments):
                moments.append(CrossMoments(before.shape[1], after.shape[1]))
            moments[layer].add(before, after)
            cosines[layer] += _cosines(before, after).sum()
    tokens = arrays["input_mask"].sum()
    return [
        {"cka": sums.cka(), "cosine": float(total / tokens)}
        for sums, total in zip(moments, cosines, strict=True)
    ]


def _tracked(arrays: Arrays, batch_size: int, description: str) -> Iterator[Arrays]:
    total = -(-len(arrays["input_mask"]) // batch_size)
    return console.track(batches(arrays, batch_size), description, total)


def _cosines(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """[n, width] twice -> [n]."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(1) / np.maximum(lengths, np.finfo(np.float32).tiny)


def _cells(entry) -> list[str | None]:
    accuracies = ("masked_lm_accuracy", "finetuned_masked_lm_accuracy")
    shown = [(entry.get(name), 100, 1) for name in accuracies]
    shown += [(entry.get(name), 1, 3) for name in ("cka", "cosine")]
    return [
        None if value is None else f"{scale * value:.{digits}f}"
        for value, scale, digits in shown
    ]


def _line(axes, model, key, scale, style):
    points = [
        (entry["layer"], scale * entry[key])
        for entry in model["layers"]
        if entry.get(key) is not None
    ]
    axes.plot([layer for layer, _ in points], [value for _, value in points], **style)
