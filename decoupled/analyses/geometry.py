"""The geometry of hidden vectors, gradients, logits and embedding tables.

Four questions about pre-trained models that concern the size of the output embedding:

  anisotropy   Do hidden vectors of unrelated text have similar directions in each
               layer? (Godey et al. 2024, arXiv 2404.07647, among others)
  gradient     How much of the logits' gradient does the output embedding pass on to the
               encoder? (Godey and Artzi 2026, arXiv 2603.10145; `PassedOn`)
  logits       How many dimensions do the logits use, and does E_out > H add any?
               (arXiv 2404.07647; `OutputPath.spectrum`)
  tables       Is a coupled table more similar to the input or to the output embedding
               of another model? (`table_likeness`)

The text is held out, and its masks depend on the settings only. So models of one
vocabulary see the same masked text, whatever the seeds of their training.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from decoupled.analyses.models import AnalysedModel, LayerEncoder, batches
from decoupled.analyses.output_path import OutputPath, rank_of
from decoupled.analyses.spectrum import effective_rank
from decoupled.analyses.table_likeness import Table, compare
from decoupled.configs.analyses import GeometrySettings
from decoupled.core import console, plots
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.corpora.corpus import Corpus
from decoupled.data.masking import mask_sequences
from decoupled.data.sequences import chunks
from decoupled.data.vocabulary import Vocabulary

Arrays = dict[str, np.ndarray]

EVAL = "eval"
# The groups of tokens whose vectors are compared: unmasked tokens, and the masked
# positions from which the head predicts.
GROUPS = ("text", "predicted")
# The result has the share of the logits' variance in the top 1, 10 and 100 directions.
TOP = (1, 10, 100)
# Elements of the logits' gradients that are in memory at a time: 128 MB of float64.
_BLOCK_VALUES = 2**24


def masked_text(
    corpus: Corpus, vocabulary: Vocabulary, settings: GeometrySettings
) -> Arrays:
    """The first held-out sequences of every language, masked.

    Returns:
      The result of `mask_sequences`, `input_mask` and `input_type_ids`, and for each of
      GROUPS bool [sequences, length]: "text" marks the tokens that are neither
      predicted nor special pieces, "predicted" the tokens to predict.

    Raises:
      UserError: the corpus has fewer than two sequences of held-out text.
    """
    length = settings.masking.sequence_length
    wanted = settings.sequences * (length - 2)
    found = []
    for language in corpus.languages(EVAL):
        documents, tokens = [], 0
        for document in corpus.documents(EVAL, language):
            encoded = vocabulary.encode_batch(document)
            if ids := list(itertools.chain.from_iterable(encoded)):
                documents.append(ids)
                tokens += len(ids)
            if tokens >= wanted:
                break
        if documents:
            ragged = tf.ragged.constant(documents, tf.int32)
            found.append(chunks(ragged, length, vocabulary)[: settings.sequences])
    plain = tf.concat(found, 0) if found else tf.zeros([0, length], tf.int32)
    if plain.shape[0] < 2:
        raise UserError(
            f"{corpus.folder}: no two sequences of held-out text (split {EVAL!r}); "
            "give a corpus that has more"
        )
    numbers = tf.range(plain.shape[0], dtype=tf.int64)
    masked = mask_sequences(plain, numbers, settings.seed, settings.masking, vocabulary)
    arrays = {name: value.numpy() for name, value in masked.items()}
    ids = plain.numpy()
    predicted = np.zeros(ids.shape, bool)
    rows, places = np.nonzero(arrays["masked_lm_weights"])
    predicted[rows, arrays["masked_lm_positions"][rows, places]] = True
    special = [vocabulary.pad_id, *vocabulary.special_ids]
    return {
        **arrays,
        "input_mask": (ids != vocabulary.pad_id).astype(np.int32),
        "input_type_ids": np.zeros_like(ids),
        "text": ~predicted & ~np.isin(ids, special),
        "predicted": predicted,
    }


class Anisotropy:
    """The mean cosine of two vectors of different sequences, over all such pairs.

    Let s be the sum of the n unit vectors of a sequence, and S the sum of all N unit
    vectors. Then the mean is (|S|^2 - sum of |s|^2) / (N^2 - sum of n^2), and no pair
    has to be formed. It is 0 for vectors of random directions and 1 if all directions
    are equal.
    """

    def __init__(self):
        self._total, self._squares = 0.0, 0.0
        self._count, self._same = 0, 0

    def add(self, vectors: np.ndarray, chosen: np.ndarray) -> None:
        """Adds sequences. Each must be complete and added once.

        Args:
          vectors: [layers, batch, length, H]. chosen: bool [batch, length].
        """
        vectors = vectors.astype(np.float64)
        norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
        units = vectors / np.where(norms == 0, 1, norms)
        sums = np.einsum("lbth,bt->lbh", units, chosen.astype(np.float64))
        counts = chosen.sum(1)
        self._total = self._total + sums.sum(1)
        self._squares = self._squares + (sums**2).sum((1, 2))
        self._count += int(counts.sum())
        self._same += int((counts**2).sum())

    def mean_cosines(self) -> list[float | None]:
        """The mean of each layer; None if there are fewer than two sequences."""
        pairs = self._count**2 - self._same
        crossed = (self._total**2).sum(-1) - self._squares
        return [float(value / pairs) if pairs else None for value in crossed]


def measure(
    models: Sequence[AnalysedModel], corpus: Corpus, settings: GeometrySettings
) -> dict[str, Any]:
    """All measures of all models.

    Returns:
      `corpus` (fingerprint), `settings`; `models`: the entries of
      `AnalysedModel.describe`, with `sequences` and `predictions` (how many were read),
      `layers` (`layer`, where 0 is the input embedding, and the anisotropy of each of
      GROUPS), `gradient` (`positions`; the means over them of `share`, `cosine`,
      `norm_ratio` and `rank` of `PassedOn`; `random_share`, which is rank / V, the
      share that a random map of this rank passes on) and `logits` (`bound`, `rank`,
      `effective_rank`, `variance`: number of directions -> their share of the variance,
      `singular_values`); `pairs` of tables: see `compare`.

    Raises:
      UserError: a model has too few positions, or there is too little held-out text.
    """
    for model in models:
        model.check_length(settings.masking.sequence_length)
    texts: dict[str, Arrays] = {}
    measured = []
    for model in models:
        vocabulary = model.vocabulary
        if vocabulary.fingerprint not in texts:
            texts[vocabulary.fingerprint] = masked_text(corpus, vocabulary, settings)
        arrays = texts[vocabulary.fingerprint]
        measured.append(_measure_model(model, arrays, settings))
    tables = [Table(model, kind) for model in models for kind in model.embeddings]
    return {
        "analysis": "geometry",
        "corpus": corpus.fingerprint,
        "settings": {
            **settings._asdict(),
            "masking": dataclasses.asdict(settings.masking),
        },
        "models": measured,
        **compare(tables, settings.neighbours, settings.pieces, settings.seed),
    }


def show(result: dict[str, Any]) -> None:
    """Prints four tables."""
    models = result["models"]
    depth = max(len(model["layers"]) for model in models)
    for group, title in zip(GROUPS, ("text", "masked positions"), strict=True):
        rows = []
        for model in models:
            cells = [_digits(layer[group], 3) for layer in model["layers"]]
            rows.append([model["name"], *cells, *[None] * (depth - len(cells))])
        console.table(
            f"Anisotropy of {title}: mean cosine between sequences, by layer",
            ["model", *map(str, range(depth))],
            rows,
        )
    console.table(
        "Gradient of the loss by the logits: what reaches the encoder",
        ["model", "positions", "share, %", "random, %", "cosine", "norm ratio", "rank"],
        [
            [
                model["name"],
                found["positions"],
                _digits(100 * found["share"], 2),
                _digits(100 * found["random_share"], 2),
                *(_digits(found[name], 3) for name in ("cosine", "norm_ratio")),
                f"{found['rank']:.4g}",
            ]
            for model, found in ((model, model["gradient"]) for model in models)
        ],
    )
    console.table(
        "Centred logits of masked positions",
        ["model", "H", "E_out", "rank", "at most", "effective rank"]
        + [f"variance in {top}, %" for top in TOP],
        [
            [
                model["name"],
                model["hidden_size"],
                model["output_embedding_size"],
                found["rank"],
                found["bound"],
                _digits(found["effective_rank"], 1),
                *(_digits(100 * found["variance"][str(top)], 1) for top in TOP),
            ]
            for model, found in ((model, model["logits"]) for model in models)
        ],
    )
    if not result["pairs"]:
        return
    console.table(
        "Embeddings beside each other: linear CKA and common neighbours",
        ["embedding", "another", "CKA", "neighbours, %"],
        [
            [
                *(_label(pair[side]) for side in ("first", "second")),
                _digits(pair["cka"], 3),
                _digits(100 * pair["overlap"], 1),
            ]
            for pair in result["pairs"]
        ],
    )
    shares = ", ".join(f"{100 * s:.2g}%" for s in result["random_overlap"].values())
    console.say(f"unrelated embeddings have {shares} of their neighbours in common")


def plot(result: dict[str, Any], stem: str) -> list[str]:
    """Left: anisotropy by layer; right: the spectrum of the logits."""
    figure, [[left, right]] = plots.grid(1, 2, 4.4, 3.6)
    for index, model in enumerate(result["models"]):
        style = plots.look(index)
        layers = [layer["layer"] for layer in model["layers"]]
        for group, look in zip(GROUPS, ({}, {"linestyle": ":"}), strict=True):
            values = [layer[group] for layer in model["layers"]]
            if None not in values:
                label = {} if look else {"label": model["name"]}
                left.plot(layers, values, **{**style, **look, **label})
        values = np.array(model["logits"]["singular_values"])
        values = values[: model["logits"]["rank"]]
        if len(values):
            line = {**style, "markevery": [len(values) - 1]}
            right.plot(np.arange(1, len(values) + 1), values / values[0], **line)
    left.set_xlabel("layer (0: input embedding)", fontsize=9)
    left.set_ylabel("mean cosine (dotted: masked positions)", fontsize=9)
    right.set_xscale("log")
    right.set_yscale("log")
    right.set_xlabel("singular value of the logits, largest first", fontsize=9)
    right.set_ylabel("share of the largest", fontsize=9)
    for axes in (left, right):
        plots.tidy(axes)
    plots.whole_numbers(left)
    plots.title_and_legend(figure, left, "Anisotropy, and the spectrum of the logits")
    return plots.save(figure, stem)


def _measure_model(
    model: AnalysedModel, arrays: Arrays, settings: GeometrySettings
) -> dict[str, Any]:
    anisotropies = {group: Anisotropy() for group in GROUPS}
    hidden, targets = [], []
    encoder = LayerEncoder(model)
    total = -(-len(arrays["input_mask"]) // settings.batch_size)
    parts = batches(arrays, settings.batch_size)
    for batch in console.track(parts, f"{model.name}: running the encoder", total):
        outputs = encoder(batch).numpy()
        for group, found in anisotropies.items():
            found.add(outputs, batch[group])
        rows, places = np.nonzero(batch["masked_lm_weights"])
        hidden.append(outputs[-1][rows, batch["masked_lm_positions"][rows, places]])
        targets.append(batch["masked_lm_ids"][rows, places])
    vectors, pieces = np.concatenate(hidden), np.concatenate(targets)
    path = OutputPath(model.config, model.weights)
    cosines = [found.mean_cosines() for found in anisotropies.values()]
    return {
        **model.describe(),
        "sequences": len(arrays["input_mask"]),
        "predictions": len(pieces),
        "layers": [
            {"layer": layer, **dict(zip(GROUPS, values, strict=True))}
            for layer, values in enumerate(zip(*cosines, strict=True))
        ],
        "gradient": _gradient(model, path, vectors, pieces, settings.gradients),
        "logits": _logits(path, vectors),
    }


def _gradient(
    model: AnalysedModel,
    path: OutputPath,
    hidden: np.ndarray,
    targets: np.ndarray,
    positions: int,
) -> dict[str, Any]:
    """Means over positions that are evenly spaced, and so cover all languages."""
    count, vocab = min(positions, len(hidden)), model.config.vocab_size
    places = np.linspace(0, len(hidden) - 1, count).round().astype(int)
    step = max(1, _BLOCK_VALUES // vocab)
    found = []
    starts = range(0, count, step)
    for start in console.track(starts, f"{model.name}: following gradients"):
        some = places[start : start + step]
        gradients = path.loss_gradients(hidden[some], targets[some])
        found.append(path.passed_on(hidden[some], gradients))
    means = {
        name: float(np.concatenate([getattr(part, name) for part in found]).mean())
        for name in found[0]._fields
    }
    return {"positions": count, **means, "random_share": means["rank"] / vocab}


def _logits(path: OutputPath, hidden: np.ndarray) -> dict[str, Any]:
    values = path.spectrum(hidden)
    variances = values**2
    total = variances.sum()
    return {
        "bound": path.bound,
        "rank": rank_of(values),
        "effective_rank": effective_rank(values),
        # JSON allows only strings as keys.
        "variance": {
            str(top): float(variances[:top].sum() / total) if total else 0.0
            for top in TOP
        },
        "singular_values": values.tolist(),
    }


def _label(table: dict[str, str]) -> str:
    return f"{table['model']}, {table['embedding']}"


def _digits(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"
