"""Models opened for analysis, and all hidden states of the serving encoder."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import RetrievalConfig
from decoupled.core import console, gfile
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.serving.encoder import FEATURES, Encoder
from decoupled.exports.serving.roots import mean_over_tokens
from decoupled.model import variables as names
from decoupled.runs.saved_run import Model, open_model
from decoupled.training.xla.functions import DeviceFunction

SIZES = ("input_embedding_size", "output_embedding_size", "hidden_size", "num_layers")


def describe(model: Model) -> dict[str, Any]:
    """The model's entries in results: its source and its sizes."""
    sizes = {size: getattr(model.config, size) for size in SIZES}
    return {
        "name": model.name,
        "folder": model.folder,
        "checkpoint": os.path.basename(model.weights.path),
        "global_step": model.weights.global_step,
        "vocabulary": model.vocabulary.fingerprint,
        "vocab_size": model.config.vocab_size,
        "coupled": model.config.coupled,
        **sizes,
    }


class LayerEncoder:
    """A frozen encoder that gives every layer's output, with dynamic sizes."""

    def __init__(self, model: Model):
        self.encoder = Encoder(model.config, model.weights)
        specs = [tf.TensorSpec([None, None], tf.int32) for _ in FEATURES]
        self._function = tf.function(self._encode, specs, autograph=False)

    def __call__(self, batch: dict[str, np.ndarray]) -> tf.Tensor:
        """Features [batch, length] to float32 [layers + 1, batch, length, H]."""
        return self._function(*(tf.constant(batch[name]) for name in FEATURES))

    def _encode(self, *features: tf.Tensor) -> tf.Tensor:
        inputs = dict(zip(FEATURES, features, strict=True))
        return tf.stack(self.encoder.hidden_states(inputs))


def open_models(paths: Sequence[str], *, masked_lm: bool = False) -> list[Model]:
    """Opens runs of `pretrain` or `finetune`, with short names."""
    models = []
    for path, name in zip(paths, short_names(paths), strict=True):
        model = dataclasses.replace(open_model(path), name=name)
        has_head = names.OUTPUT_BIAS in model.weights
        if masked_lm and not has_head:
            raise UserError(
                f"{model.weights.path}: holds no MLM head (fine-tuning drops it); give "
                "a pre-training checkpoint"
            )
        model.weights.check(model.config, names.Head(masked_lm=has_head))
        models.append(model)
    return models


def batches(
    arrays: dict[str, np.ndarray], batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of rows of similar length, without columns of padding.

    Only arrays of the shape of `input_mask`, [rows, length], lose columns.
    """
    mask = arrays["input_mask"]
    lengths = mask.sum(1)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        longest = int(lengths[rows].max())
        yield {
            name: values[rows, :longest] if values.shape == mask.shape else values[rows]
            for name, values in arrays.items()
        }


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of paths that are unique; a checkpoint includes its folder."""
    parts = [[part for part in path.split("/") if part] for path in paths]
    more = [0 if gfile.isdir(path) else 1 for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        ends = zip(parts, more, strict=True)
        shortened = ["/".join(p[-length - extra :]) for p, extra in ends]
        if len(set(shortened)) == len(paths):
            return shortened
    twice = next(path for path in paths if list(paths).count(path) > 1)
    raise UserError(f"{twice}: is given twice")


# ids and mask -> vectors; see `pooling_function`.
Pool = Callable[[np.ndarray, np.ndarray], np.ndarray]
# On an accelerator, lengths of batches are multiples of it.
_LENGTH_STEP = 32
_SPECIAL = 2
_TEXTS_AT_ONCE = 10_000


class Tokens(NamedTuple):
    """The pieces of all sentences one after the other.

    ids: int32 [pieces]. ends: int64 [sentences], index in `ids` after each sentence.
    """

    ids: np.ndarray
    ends: np.ndarray

    def lengths(self, longest: int) -> np.ndarray:
        """Tokens of each sentence with [CLS] and [SEP], none above `longest`."""
        return np.minimum(np.diff(self.ends, prepend=0) + _SPECIAL, longest)

    def pieces(self, row: int, size: int) -> np.ndarray:
        """The pieces of a sentence that has `size` tokens with [CLS] and [SEP]."""
        start = self.ends[row - 1] if row else 0
        return self.ids[start : start + size - _SPECIAL]

    def windows(self, longest: int) -> tuple["Tokens", np.ndarray]:
        """Divides sentences above `longest` tokens into windows of nearly equal length.

        Returns:
          the windows as sentences, in their order; int64 [windows], their sentences.
        """
        sizes = np.diff(self.ends, prepend=0)
        counts = np.maximum(1, -(-sizes // (longest - _SPECIAL)))
        owners = np.repeat(np.arange(len(sizes)), counts)
        last = np.cumsum(counts)
        number = np.arange(len(owners)) - np.repeat(last - counts, counts) + 1
        starts = (self.ends - sizes)[owners]
        ends = starts + number * sizes[owners] // counts[owners]
        return Tokens(self.ids, ends), owners


def tokenize(vocabulary: Vocabulary, texts: Sequence[str]) -> Tokens:
    """Encodes sentences, without special pieces."""
    parts, counts = [np.zeros(0, np.int32)], []
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        encoded = vocabulary.encode_batch(texts[start : start + _TEXTS_AT_ONCE])
        counts += map(len, encoded)
        parts.append(np.array([i for ids in encoded for i in ids], np.int32))
    return Tokens(np.concatenate(parts), np.cumsum(counts, dtype=np.int64))


def check_lengths(model: Model, config: RetrievalConfig) -> None:
    """Raises a UserError if the model has too few positions for the longest text."""
    setting = "RetrievalConfig.max_sequence_length"
    model.check_length(config.max_sequence_length, setting)


def layer_vectors(
    model: Model,
    texts: Sequence[str],
    config: RetrievalConfig,
    pool: Pool | None = None,
) -> np.ndarray:
    """float32 [texts, H]: the mean over each text's tokens in the configured layer."""
    layer = config.layer_of(model.config.num_layers, model.name)
    vectors = np.zeros([len(texts), model.config.hidden_size], np.float32)
    for rows, pooled in encode_texts(model, texts, [layer], config, pool):
        vectors[rows] += pooled[layer]
    return vectors


def encode_texts(
    model: Model,
    texts: Sequence[str],
    layers: Sequence[int],
    config: RetrievalConfig,
    pool: Pool | None = None,
) -> Iterator[tuple[np.ndarray, dict[int, np.ndarray]]]:
    """Encodes texts in batches of similar length, with progress.

    `pool` is a `pooling_function` of the same layers; None makes one.

    Yields:
      (indices in `texts` int64 [n], each once, layer -> float32 [n, H]). A text that
      was divided into windows may occur again in other batches; its vectors add up to
      the mean over its tokens.
    """
    check_lengths(model, config)
    tokens = tokenize(model.vocabulary, texts)
    owners, shares = None, None
    if config.long_sentences == "windows":
        tokens, owners = tokens.windows(config.max_sequence_length)
        shares = _shares(tokens, owners, config)
    pool = pool or pooling_function(model, layers, config)
    sizes = tokens.lengths(config.max_sequence_length)
    # The longest first, so that memory that is too small is noticed at once.
    order = np.argsort(-sizes, kind="stable")
    starts = range(0, len(order), config.batch_size)
    for start in console.track(starts, "encoding batches of sentences"):
        rows = order[start : start + config.batch_size]
        pieces = [tokens.pieces(row, sizes[row]) for row in rows]
        batch = packed(model.vocabulary, pieces)
        pooled = pool(*(batch[name] for name in FEATURES[:2]))
        if not np.isfinite(pooled).all():
            raise UserError(
                f"{model.weights.path}: gives numbers that are not finite; the "
                "training diverged, choose an earlier checkpoint"
            )
        if shares is not None:
            places, which = np.unique(owners[rows], return_inverse=True)
            # [texts, windows], the share of each window in its text.
            parts = np.zeros([len(places), len(rows)], np.float32)
            parts[which, np.arange(len(rows))] = shares[rows]
            rows, pooled = places, parts @ pooled
        yield rows, dict(zip(layers, pooled, strict=True))


def pooling_function(
    model: Model,
    layers: Sequence[int],
    config: RetrievalConfig,
    accelerator: str | None = None,
) -> Pool:
    """A function of ids and mask, int32 [batch, length], to float32 [layers, batch, H].

    It computes on all devices of a kind of accelerator, or by TensorFlow's own kernels.
    """
    encoder = Encoder(model.config, model.weights, up_to=max(layers))

    def pool(ids: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        states = encoder.hidden_states(
            {
                "input_word_ids": ids,
                "input_mask": mask,
                "input_type_ids": tf.zeros_like(ids),
            }
        )
        return tf.stack(
            [
                mean_over_tokens(states[i], mask, config.pool_special_tokens)
                for i in layers
            ]
        )

    if accelerator is not None:
        on_devices = DeviceFunction(pool, accelerator, console.say, axis=1)
        positions, share = model.config.max_positions, on_devices.devices
        rows = -(-config.batch_size // share) * share

        def padded(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
            # Few lengths, since each is a program.
            length = min(positions, -(-ids.shape[1] // _LENGTH_STEP) * _LENGTH_STEP)
            more = [(0, rows - len(ids)), (0, length - ids.shape[1])]
            return on_devices(np.pad(ids, more), np.pad(mask, more))[:, : len(ids)]

        return padded
    spec = tf.TensorSpec([None, None], tf.int32)
    function = tf.function(pool, [spec, spec], autograph=False)
    return lambda ids, mask: function(tf.constant(ids), tf.constant(mask)).numpy()


def packed(
    vocabulary: Vocabulary, pieces: Sequence[Sequence[int]]
) -> dict[str, np.ndarray]:
    """[CLS] pieces [SEP] padding, the inputs of an encoder: int32 [texts, longest]."""
    sizes = np.array([len(of_text) + _SPECIAL for of_text in pieces])
    mask = (np.arange(sizes.max()) < sizes[:, np.newaxis]).astype(np.int32)
    ids = np.full(mask.shape, vocabulary.pad_id, np.int32)
    ids[:, 0] = vocabulary.cls_id
    ids[np.arange(len(ids)), sizes - 1] = vocabulary.sep_id
    for row, (size, of_text) in enumerate(zip(sizes, pieces, strict=True)):
        ids[row, 1 : size - 1] = of_text
    types = np.zeros_like(ids)
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}


def _shares(tokens: Tokens, owners: np.ndarray, config: RetrievalConfig) -> np.ndarray:
    """float32 [windows], the share of its text's pooled tokens in each window."""
    pieces = np.diff(tokens.ends, prepend=0)
    # [CLS] and [SEP]; an empty text has a share of 1.
    pooled = np.maximum(1, pieces + _SPECIAL * config.pool_special_tokens)
    totals = np.bincount(owners, pooled)[owners]
    return (pooled / totals).astype(np.float32)
