"""Loss and accuracy on held-out text, where every token is masked once.

Which tokens are masked together depends only on the text and these settings, so that
all models and seeds predict the same tokens from the same contexts. Prints the loss in
nats per token, accuracy and perplexity, by language and as means over the languages.
Compares the loss with the unigram entropy, which is the loss of a model that knows only
the frequencies of the pieces. masked_lm.items.npz has the sums of every held-out
sequence.

  decoupled analyze masked_lm --model_dir=runs/e_out_128 \\
      --model_dir=runs/e_out_768 --records_dir=data/records \\
      --gin_param='MaskingConfig.sequence_length = 128' --output_dir=results

Models must have the vocabulary of the records. To compare vocabularies, run the
analysis once for each and compare the losses relative to the unigram entropy. Set the
length and the masking rate of pre-training.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses.models import batches, describe, open_models
from decoupled.analyses.output import Line, Panel, Picture, Table
from decoupled.configs.analyses import MaskedLmSettings
from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.data.masking import mask_in_rounds
from decoupled.data.reading import count_pieces, named_errors
from decoupled.data.records import RecordsManifest, read_manifest
from decoupled.data.sequences import EVAL, TRAIN, evaluation_count, evaluation_sequences
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.serving.encoder import FEATURES, Encoder, MaskedLm
from decoupled.runs.saved_run import Model

# Number of sequences that are read at once.
_READ = 512


class HeldOutText(NamedTuple):
    """The sequences to predict, language after language.

    languages: their names. language: int64 [n], the index of each sequence's language.
    numbers: int64 [n], the index of the sequence in the held-out text of its language.
    ids: int32 [n, sequence_length]. counts: int64 [languages, V], how often each piece
    occurs in the training text.
    """

    languages: tuple[str, ...]
    language: np.ndarray
    numbers: np.ndarray
    ids: np.ndarray
    counts: np.ndarray


def read_held_out(
    records_dir: str,
    models: Sequence[Model],
    settings: MaskedLmSettings,
    languages: Sequence[str] | None = None,
) -> HeldOutText:
    """Reads held-out sequences, and counts the pieces of the training text.

    Raises:
      UserError: the records have another vocabulary than a model, are damaged, or lack
        held-out or training text of a language.
    """
    manifest = read_manifest(records_dir)
    for model in models:
        pieces = model.vocabulary
        manifest.check_vocabulary(pieces.fingerprint, pieces.path)
    names = _languages(manifest, languages)
    with named_errors(records_dir):
        tracked = console.track(names, "counting pieces of the training text")
        counts = [count_pieces(manifest, manifest.language(TRAIN, n)) for n in tracked]
        parts = list(_read_sequences(manifest, names, settings, pieces))
    sizes = [len(numbers) for numbers, _ in parts]
    return HeldOutText(
        languages=tuple(names),
        language=np.repeat(np.arange(len(names)), sizes),
        numbers=np.concatenate([numbers for numbers, _ in parts]),
        ids=np.concatenate([ids for _, ids in parts]),
        counts=np.stack(counts),
    )


def _languages(manifest: RecordsManifest, chosen) -> list[str]:
    """The languages with held-out text, sorted; each must have training text."""
    there = manifest.splits.get(EVAL, {})
    names = sorted(name for name, entry in there.items() if entry.records)
    if chosen is not None:
        for name in chosen:
            if name not in names:
                raise UserError(
                    f"--languages: {manifest.folder} has no held-out text of {name!r} "
                    f"(there: {', '.join(names) or 'none'})"
                )
        names = sorted(set(chosen))
    if not names:
        raise UserError(
            f"{manifest.folder}: no held-out text (split {EVAL!r}); build corpus and "
            "records with some"
        )
    for name in names:
        if not manifest.language(TRAIN, name).records:
            raise UserError(
                f"{manifest.folder}: no training text of {name!r} to count pieces in; "
                "leave it out with --languages"
            )
    return names


def _read_sequences(
    manifest: RecordsManifest,
    names: list[str],
    settings: MaskedLmSettings,
    vocabulary: Vocabulary,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Numbers and ids of the sequences of each language."""
    length, limit = settings.masking.sequence_length, settings.max_sequences
    entries = [manifest.language(EVAL, name) for name in names]
    counts = [evaluation_count(entry, length) for entry in entries]
    batched = iter(
        evaluation_sequences(manifest, entries, counts, _READ, length, vocabulary)
    )
    for count in counts:
        chosen = np.arange(count)
        if limit and limit < count:
            chosen = np.arange(limit) * count // limit
        parts = []
        for first in range(0, count, _READ):
            ids = next(batched)[0].numpy()
            here = chosen[(chosen >= first) & (chosen < first + _READ)]
            parts.append(ids[here - first])
        yield chosen, np.concatenate(parts)


ALL = "all"
# The most languages of which each is drawn.
_DRAWN = 8
_MEASURES = ("loss", "accuracy", "perplexity", "below_unigram", "relative_loss")


class _Questions(NamedTuple):
    """The T tokens to predict, and the masked sequences.

    arrays: the result of `mask_in_rounds`, with `input_mask` and `input_type_ids`.
    used: bool [rows, max_predictions], which slots of the arrays are tokens. labels,
    sequence and language, int64 [T], have the order of its True values.
    """

    arrays: dict[str, np.ndarray]
    used: np.ndarray
    labels: np.ndarray
    sequence: np.ndarray
    language: np.ndarray


def run(flags: Any, settings: MaskedLmSettings) -> dict[str, Any]:
    """The result of the command's flags."""
    models = open_models(flags.model_dir, masked_lm=True)
    text = read_held_out(flags.records_dir, models, settings, flags.languages)
    return measure(models, text, settings)


def measure(
    models: Sequence[Model], text: HeldOutText, settings: MaskedLmSettings
) -> dict[str, Any]:
    """Loss and accuracy of all models on the same masks.

    Returns:
      `settings`; `languages`: name -> `sequences` and `tokens` (predicted);
      `unigram_entropy`: language -> nats per token, the cross-entropy of the held-out
      tokens under the smoothed unigram distribution;
      `items`: [language, number] of every held-out sequence; `arrays`:
      "MODELINDEX/loss", "/correct" and "/predictions", float64 [items], sums over the
      tokens of a sequence. `models`, with the entries of `describe`, have `languages`:
      name -> measures, and `all`: their means. Measures are `loss` (nats per token),
      `accuracy` (0 to 1), `perplexity`, `below_unigram` (unigram entropy - loss) and
      `relative_loss` (loss / unigram entropy).

    Raises:
      UserError: a model has too few positions.
    """
    for model in models:
        model.check_length(settings.masking.sequence_length)
    vocabulary = models[0].vocabulary
    asked = _questions(text, settings, vocabulary)
    entropies = _entropies(asked, text, settings, vocabulary)
    results, arrays = [], {}
    for number, model in enumerate(models):
        losses, correct = _predict(model, asked, settings.batch_size)
        for name, values in (
            ("loss", losses),
            ("correct", correct),
            ("predictions", np.ones_like(losses)),
        ):
            sums = np.bincount(asked.sequence, values, minlength=len(text.ids))
            arrays[f"{number}/{name}"] = sums
        results.append(
            {
                **describe(model),
                **_summary(asked, text, losses, correct, entropies),
            }
        )
    items = zip(text.language.tolist(), text.numbers.tolist(), strict=True)
    return {
        "analysis": "masked_lm",
        "settings": dataclasses.asdict(settings),
        "languages": _described(asked, text),
        "unigram_entropy": entropies,
        "models": results,
        "items": [[text.languages[index], number] for index, number in items],
        "arrays": arrays,
    }


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """A row for each model and language."""
    tokens = {name: of["tokens"] for name, of in result["languages"].items()}
    rows = []
    for model in result["models"]:
        for language, values in _by_language(model):
            entropy = values["loss"] + values["below_unigram"]
            rows.append(
                [
                    model["name"],
                    language,
                    tokens.get(language, sum(tokens.values())),
                    f"{values['loss']:.3f}",
                    f"{entropy:.3f}",
                    f"{values['below_unigram']:.3f}",
                    f"{values['relative_loss']:.1%}",
                    f"{100 * values['accuracy']:.2f}",
                    f"{values['perplexity']:,.1f}",
                ]
            )
    columns = ["model", "language", "tokens", "loss, nats", "unigram entropy"]
    columns += ["below it", "of it", "accuracy, %", "perplexity"]
    yield Table("Held-out text, every token masked once", columns, rows)


def picture(result: dict[str, Any]) -> Picture:
    """Loss and accuracy of the models by language; of many languages, their means."""
    models = result["models"]
    names, places = [model["name"] for model in models], list(range(len(models)))
    shown = [*result["languages"], ALL] if len(result["languages"]) <= _DRAWN else [ALL]

    def panel(key, times, label):
        lines = [
            Line(
                name,
                [times * (m["languages"] | {ALL: m[ALL]})[name][key] for m in models],
                places,
            )
            for name in shown
        ]
        return Panel(lines, label, rows=names)

    loss = panel("loss", 1, "held-out masked-LM loss, nats")
    accuracy = panel("accuracy", 100, "masked-LM accuracy, %")
    return Picture("Held-out text, every token masked once", [[loss, accuracy]])


def _questions(
    text: HeldOutText, settings: MaskedLmSettings, vocabulary: Vocabulary
) -> _Questions:
    arrays = mask_in_rounds(
        text.ids, text.numbers, settings.seed, settings.masking, vocabulary
    )
    copied = arrays.pop("sequence")
    ids = arrays["input_word_ids"]
    arrays["input_mask"] = (ids != vocabulary.pad_id).astype(np.int32)
    arrays["input_type_ids"] = np.zeros_like(ids)
    used = arrays["masked_lm_weights"] > 0
    labels = arrays["masked_lm_ids"][used]
    sequence = np.broadcast_to(copied[:, np.newaxis], used.shape)[used]
    language = text.language[sequence]
    tokens = np.bincount(language, minlength=len(text.languages))
    if not tokens.all():
        name = text.languages[int(np.argmin(tokens))]
        raise UserError(
            f"held-out text of {name!r}: has no token to mask; leave it out with "
            "--languages"
        )
    return _Questions(
        arrays=arrays,
        used=used,
        labels=labels,
        sequence=sequence,
        language=language,
    )


def _entropies(
    asked: _Questions,
    text: HeldOutText,
    settings: MaskedLmSettings,
    vocabulary: Vocabulary,
) -> dict[str, float]:
    """Language -> the loss of its smoothed unigram distribution, nats per token."""
    smoothed = text.counts + float(settings.smoothing)
    # These pieces never occur in text.
    smoothed[:, [vocabulary.pad_id, *vocabulary.special_ids]] = 0
    tokens = smoothed.sum(axis=1, keepdims=True)
    chosen = smoothed[asked.language, asked.labels]
    losses = np.log(tokens[asked.language, 0]) - np.log(chosen)
    return {
        name: float(losses[asked.language == index].mean())
        for index, name in enumerate(text.languages)
    }


def _predict(
    model: Model, asked: _Questions, batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    encoder = Encoder(model.config, model.weights)
    head = MaskedLm(model.config, model.weights, encoder)
    names = (*FEATURES, "masked_lm_positions", "masked_lm_ids")
    specs = [tf.TensorSpec([None, None], tf.int32) for _ in names]

    def predict(*values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        inputs = dict(zip(names, values, strict=True))
        output = encoder({name: inputs[name] for name in FEATURES})["sequence_output"]
        logits = head(output, inputs["masked_lm_positions"])
        labels = inputs["masked_lm_ids"]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return losses, tf.argmax(logits, -1, tf.int32) == labels

    function = tf.function(predict, specs, autograph=False)
    losses = np.zeros(asked.used.shape)
    correct = np.zeros(asked.used.shape)
    rows = {**asked.arrays, "row": np.arange(len(losses))}
    total = -(-len(losses) // batch_size)
    tracked = console.track(batches(rows, batch_size), f"{model.name}: losses", total)
    for batch in tracked:
        outputs = function(*(tf.constant(batch[name]) for name in names))
        losses[batch["row"]], correct[batch["row"]] = (x.numpy() for x in outputs)
    return losses[asked.used], correct[asked.used]


def _summary(
    asked: _Questions,
    text: HeldOutText,
    losses: np.ndarray,
    correct: np.ndarray,
    entropies: dict[str, float],
) -> dict[str, Any]:
    """Measures by language and over all."""
    languages = {}
    for index, name in enumerate(text.languages):
        chosen = asked.language == index
        loss, entropy = float(losses[chosen].mean()), entropies[name]
        languages[name] = {
            "loss": loss,
            "accuracy": float(correct[chosen].mean()),
            "perplexity": float(np.exp(loss)),
            "below_unigram": entropy - loss,
            "relative_loss": loss / entropy,
        }
    means = {
        name: float(np.mean([of[name] for of in languages.values()]))
        for name in _MEASURES
    }
    return {"languages": languages, ALL: means}


def _described(asked: _Questions, text: HeldOutText) -> dict[str, dict[str, int]]:
    return {
        name: {
            "sequences": int((text.language == index).sum()),
            "tokens": int((asked.language == index).sum()),
        }
        for index, name in enumerate(text.languages)
    }


def _by_language(model) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and measures of the languages, and of all if there are several."""
    yield from model["languages"].items()
    if len(model["languages"]) > 1:
        yield ALL, model[ALL]
