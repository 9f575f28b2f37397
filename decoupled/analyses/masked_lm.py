"""Loss and accuracy on held-out text, where every token is masked once.

Which tokens are masked together depends only on the text and these settings, so that
all models and seeds predict the same tokens from the same contexts. Prints the loss in
nats per token, accuracy and perplexity, by language and as means over the languages.
Compares the loss with the unigram entropy, which is the loss of a model that knows only
the frequencies of the pieces. masked_lm.items.npz has the sums of every held-out
sequence. A second table has the rank and the effective rank of the logits (Roy and
Vetterli 2007), beside the rank that the head allows, and those of the embeddings.

  decoupled analyze masked_lm --model_dir=runs/e_out_128 \\
      --model_dir=runs/e_out_768 --records_dir=data/records \\
      --gin_param='MaskingConfig.sequence_length = 128' --output_dir=results

Models must have the vocabulary of the records. To compare vocabularies, run the
analysis once for each and compare the losses relative to the unigram entropy. Set the
length and the masking rate of pre-training.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.analyses import ranks
from decoupled.analyses.models import compiled, measure_each, open_models
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

ALL = "all"
_MEASURES = ("loss", "accuracy", "perplexity", "below_unigram", "relative_loss")
# The most languages of which each is drawn.
_MOST_DRAWN = 8
_LABELS = "masked_lm_ids"
# The number of sequences that are read at once.
_READ_SIZE = 512
# The rank of logits is that of at most so many positions, spread evenly over all.
_MOST_RANKED = 10_000
# A perplexity beyond exp(700) would be infinite.
_MOST_NATS = 700.0


class MaskedText(NamedTuple):
    """Masked sequences, and their T tokens to predict.

    languages: their names, sorted. corpus: the fingerprint of their text. items:
    [language, number] of each held-out sequence, language after language. counts: int64
    [languages, V], how often each piece occurs in the training text. arrays: the result
    of `mask_in_rounds` and all `FEATURES`. is_token: bool [rows, max_predictions], the
    slots of the arrays that are tokens. labels, sequence (an index of `items`) and
    language (of `languages`), int64 [T], have the order of its True values.
    """

    languages: list[str]
    corpus: str
    items: list[tuple[str, int]]
    counts: np.ndarray
    arrays: dict[str, np.ndarray]
    is_token: np.ndarray
    labels: np.ndarray
    sequence: np.ndarray
    language: np.ndarray

    def means(self, values: np.ndarray) -> dict[str, float]:
        """The mean of values [T] by language."""
        return {
            name: float(values[self.language == index].mean())
            for index, name in enumerate(self.languages)
        }


def run(flags: Any, settings: MaskedLmSettings) -> dict[str, Any]:
    """The result of the command's flags."""
    length = settings.masking.sequence_length
    models = open_models(flags.model_dir, masked_lm=True, length=length)
    text = read_masked_text(flags.records_dir, models, settings, flags.languages)
    return measure(models, text, settings)


def read_masked_text(
    records_dir: str,
    models: Sequence[Model],
    settings: MaskedLmSettings,
    languages: Sequence[str] | None = None,
) -> MaskedText:
    """Reads and masks held-out text, and counts the pieces of the training text.

    Raises:
      UserError: the records have another vocabulary than a model, are damaged, or lack
        held-out or training text of a language.
    """
    manifest = read_manifest(records_dir)
    for model in models:
        vocabulary = model.vocabulary
        manifest.check_vocabulary(vocabulary.fingerprint, vocabulary.path)
    names = _languages(manifest, languages)
    with named_errors(records_dir):
        progress = console.track(names, "counting pieces of the training text")
        counts = [count_pieces(manifest, manifest.language(TRAIN, n)) for n in progress]
        numbers, ids = _read_sequences(manifest, names, settings, vocabulary)
    arrays = mask_in_rounds(
        *(np.concatenate(ids), np.concatenate(numbers)),
        *(settings.seed, settings.masking, vocabulary),
    )
    word_ids, sequence_of_row = arrays["input_word_ids"], arrays.pop("sequence")
    arrays["input_mask"] = (word_ids != vocabulary.pad_id).astype(np.int32)
    arrays["input_type_ids"] = np.zeros_like(word_ids)
    is_token = arrays["masked_lm_weights"] > 0
    sequence = np.broadcast_to(sequence_of_row[:, np.newaxis], is_token.shape)[is_token]
    language = np.repeat(np.arange(len(names)), [len(part) for part in numbers])
    text = MaskedText(
        names,
        manifest.corpus_fingerprint,
        [(n, i) for n, part in zip(names, numbers, strict=True) for i in part.tolist()],
        np.stack(counts),
        arrays,
        is_token,
        arrays[_LABELS][is_token],
        sequence,
        language[sequence],
    )
    for index, name in enumerate(names):
        if index not in text.language:
            raise UserError(
                f"held-out text of {name!r}: has no token to mask; leave it out with "
                "--languages"
            )
    return text


def _languages(manifest: RecordsManifest, languages) -> list[str]:
    """The languages with held-out text, sorted; each must have training text."""
    entries = manifest.splits.get(EVAL, {})
    names = sorted(name for name, entry in entries.items() if entry.records)
    if not names and not languages:
        raise UserError(
            f"{manifest.folder}: no held-out text (split {EVAL!r}); build corpus and "
            "records with some"
        )
    for name in languages or ():
        if name not in names:
            raise UserError(
                f"--languages: {manifest.folder} has no held-out text of {name!r} "
                f"(there: {', '.join(names) or 'none'})"
            )
    names = sorted(set(languages or names))
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
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Numbers and ids of the sequences of each language."""
    length, limit = settings.masking.sequence_length, settings.max_sequences
    entries = [manifest.language(EVAL, name) for name in names]
    counts = [evaluation_count(entry, length) for entry in entries]
    batches = iter(
        evaluation_sequences(manifest, entries, counts, _READ_SIZE, length, vocabulary)
    )
    numbers, ids = [], []
    for name, count in zip(names, counts, strict=True):
        size = min(limit or count, count)
        if size < count:
            console.say(
                f"{manifest.folder}: {size:,} of {count:,} held-out sequences of "
                f"{name} (masked_lm.max_sequences)"
            )
        rows = np.arange(size) * count // size
        parts = [
            next(batches)[0].numpy()[rows[rows // _READ_SIZE == index] % _READ_SIZE]
            for index in range(-(-count // _READ_SIZE))
        ]
        numbers.append(rows)
        ids.append(np.concatenate(parts))
    return numbers, ids


def measure(
    models: Sequence[Model], text: MaskedText, settings: MaskedLmSettings
) -> dict[str, Any]:
    """Loss and accuracy of all models on the same masks.

    Returns:
      `corpus`; `settings`; `languages`: name -> `sequences` and `tokens` (predicted);
      `unigram_entropy`: language -> nats per token, the cross-entropy of the held-out
      tokens under the smoothed unigram distribution;
      `items`: [language, number] of every held-out sequence; `arrays`:
      "MODELINDEX/loss", "/correct" and "/predictions", float64 [items], sums over the
      tokens of a sequence. Of each model `languages`: name -> measures, and `all`:
      their means; `logits` and `embeddings`: see `ranks`. Measures are `loss` (nats per
      token), `accuracy` (0 to 1), `perplexity`, `below_unigram` (unigram entropy -
      loss) and `relative_loss` (loss / unigram entropy).
    """
    counts = text.counts + float(settings.smoothing)
    vocabulary = models[0].vocabulary
    # These pieces never occur in text.
    counts[:, [vocabulary.pad_id, *vocabulary.special_ids]] = 0
    tokens, label_counts = counts.sum(1), counts[text.language, text.labels]
    entropies = text.means(np.log(tokens[text.language]) - np.log(label_counts))

    def scores(model):
        losses, correct, vectors = _predict(model, text, settings.batch_size)
        of_tokens = {"loss": losses, "correct": correct}
        of_tokens["predictions"] = np.ones_like(losses)
        sums = {
            name: np.bincount(text.sequence, values, minlength=len(text.items))
            for name, values in of_tokens.items()
        }
        accuracies = text.means(correct)
        languages = {
            name: {
                "loss": loss,
                "accuracy": accuracies[name],
                "perplexity": float(np.exp(min(loss, _MOST_NATS))),
                "below_unigram": entropies[name] - loss,
                "relative_loss": loss / entropies[name],
            }
            for name, loss in text.means(losses).items()
        }
        means = {
            key: float(np.mean([of[key] for of in languages.values()]))
            for key in _MEASURES
        }
        entry = {"languages": languages, ALL: means}
        entry["logits"] = ranks.of_logits(model, vectors)
        entry["embeddings"] = ranks.of_embeddings(model)
        return entry, sums

    sequences = Counter(language for language, _ in text.items)
    return {
        "analysis": "masked_lm",
        "corpus": text.corpus,
        "settings": dataclasses.asdict(settings),
        "languages": {
            name: {"sequences": sequences[name], "tokens": int(count)}
            for name, count in zip(
                text.languages, np.bincount(text.language), strict=True
            )
        },
        "unigram_entropy": entropies,
        **measure_each(models, scores),
        "items": [list(item) for item in text.items],
    }


def _predict(
    model: Model, text: MaskedText, batch_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The loss of each token, and 1 or 0 for the first guess: float64 [T] each; the
    encoder's vectors of at most `_MOST_RANKED` tokens, float32 [n, H]."""
    encoder = Encoder(model.config, model.weights)
    head = MaskedLm(model.config, model.weights, encoder)

    def predict(batch: dict[str, tf.Tensor]) -> tuple[tf.Tensor, ...]:
        output = encoder({name: batch[name] for name in FEATURES})["sequence_output"]
        positions, labels = batch["masked_lm_positions"], batch[_LABELS]
        logits = head(output, positions)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        is_correct = tf.argmax(logits, -1, tf.int32) == labels
        return losses, is_correct, tf.gather(output, positions, batch_dims=1)

    function = compiled(predict, (*FEATURES, "masked_lm_positions", _LABELS))
    losses, correct = np.zeros(text.is_token.shape), np.zeros(text.is_token.shape)
    tokens = np.flatnonzero(text.is_token)
    sample = np.linspace(0, len(tokens) - 1, min(len(tokens), _MOST_RANKED)).round()
    # The row of `vectors` for each slot; -1 for a slot outside the sample.
    places = np.full(text.is_token.shape, -1)
    places.flat[tokens[sample.astype(int)]] = np.arange(len(sample))
    vectors = np.zeros([len(sample), model.config.hidden_size], np.float32)
    starts = range(0, len(losses), batch_size)
    for start in console.track(starts, f"{model.name}: losses"):
        rows = slice(start, start + batch_size)
        batch = {name: values[rows] for name, values in text.arrays.items()}
        losses[rows], correct[rows], hidden = (x.numpy() for x in function(batch))
        in_sample = places[rows] >= 0
        vectors[places[rows][in_sample]] = hidden[in_sample]
    if not np.isfinite(losses[text.is_token]).all():
        raise UserError(
            f"{model.weights.path}: gives losses that are not finite; the training "
            "diverged, choose an earlier checkpoint"
        )
    return losses[text.is_token], correct[text.is_token], vectors


def tables(result: dict[str, Any]) -> Iterator[Table]:
    """A row for each model and language; ranks of each model."""
    tokens = {name: of["tokens"] for name, of in result["languages"].items()}
    rows = []
    for model in result["models"]:
        # With one language, its values are the means.
        means = {ALL: model[ALL]} if len(model["languages"]) > 1 else {}
        for language, values in {**model["languages"], **means}.items():
            rows.append(
                [
                    model["name"],
                    language,
                    tokens.get(language, sum(tokens.values())),
                    f"{values['loss']:.3f}",
                    f"{values['loss'] + values['below_unigram']:.3f}",
                    f"{values['below_unigram']:.3f}",
                    f"{values['relative_loss']:.1%}",
                    f"{100 * values['accuracy']:.2f}",
                    f"{values['perplexity']:,.1f}",
                ]
            )
    columns = ["model", "language", "tokens", "loss, nats", "unigram entropy"]
    columns += ["below it", "of it", "accuracy, %", "perplexity"]
    yield Table("Held-out text, every token masked once", columns, rows)
    kinds = list(
        dict.fromkeys(e["embedding"] for m in result["models"] for e in m["embeddings"])
    )
    rows = []
    for model in result["models"]:
        logits = model["logits"]
        by_kind = {
            e["embedding"]: f"{e['effective_rank']:.1f}" for e in model["embeddings"]
        }
        rows.append(
            [
                *(model["name"], model["hidden_size"], model["output_embedding_size"]),
                *(logits["rank"], logits["bound"], f"{logits['effective_rank']:.1f}"),
                *(by_kind.get(kind) for kind in kinds),
            ]
        )
    columns = ["model", "H", "E_out", "rank of logits", "at most", "effective rank"]
    columns += [f"of the {kind} embedding" for kind in kinds]
    yield Table("Ranks of centred logits and embeddings", columns, rows)


def picture(result: dict[str, Any]) -> Picture:
    """Loss and accuracy of the models by language; of many languages, their means."""
    models = result["models"]
    languages = result["languages"] if len(result["languages"]) <= _MOST_DRAWN else ()

    def panel(key, times, label):
        lines = []
        for name in (*languages, ALL):
            scores = [(m["languages"] | {ALL: m[ALL]})[name][key] for m in models]
            values = [times * score for score in scores]
            lines.append(Line(name, values, range(len(models))))
        return Panel(lines, label, rows=[m["name"] for m in models])

    loss = panel("loss", 1, "held-out masked-LM loss, nats")
    accuracy = panel("accuracy", 100, "masked-LM accuracy, %")
    return Picture("Held-out text, every token masked once", [[loss, accuracy]])
