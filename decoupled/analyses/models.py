"""Models opened for analysis, all hidden states of the encoder, vectors of texts."""

import dataclasses
import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from decoupled.configs import RetrievalConfig
from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.serving.encoder import FEATURES, Encoder
from decoupled.exports.serving.roots import mean_over_tokens
from decoupled.model import variables as names
from decoupled.runs.saved_run import Model, open_model
from decoupled.training.xla.functions import DeviceFunction

# The setting of the longest text.
LONGEST = "RetrievalConfig.max_sequence_length"
# Features -> vectors; see `pooling_function`.
Pool = Callable[[dict[str, np.ndarray]], np.ndarray]
# On an accelerator, lengths of batches are multiples of it.
_LENGTH_STEP = 32
# [CLS] and [SEP].
_SPECIAL = 2
_TEXTS_AT_ONCE = 10_000


def open_models(
    paths: Sequence[str],
    *,
    masked_lm: bool = False,
    length: int = 0,
    setting: str = "MaskingConfig.sequence_length",
) -> list[Model]:
    """Opens runs of `pretrain` or `finetune`, with short names.

    Raises:
      UserError: a model lacks the head that `masked_lm` asks for, or has fewer
        positions than `length`, the value of `setting`.
    """
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
        model.check_length(length, setting)
        models.append(model)
    return models


def short_names(paths: Sequence[str]) -> list[str]:
    """The shortest ends of paths that are unique; a checkpoint includes its folder."""
    files.check_distinct(paths)
    parts = [[part for part in path.split("/") if part] for path in paths]
    extra_parts = [0 if gfile.isdir(path) else 1 for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        ends = zip(parts, extra_parts, strict=True)
        suffixes = ["/".join(p[-length - count :]) for p, count in ends]
        if len(set(suffixes)) == len(paths):
            return suffixes
    # "/a" and "a" have equal parts.
    return list(paths)


def measure_each(
    models: Sequence[Model],
    measure: Callable[[Model], tuple[dict[str, Any], dict[str, np.ndarray]]],
) -> dict[str, Any]:
    """The entries of a result that come from the models.

    Returns:
      `models`: of each its source, its sizes and the entries that `measure` returns;
      `arrays`: "MODELINDEX/NAME" -> its values by item, if there are any.
    """
    entries, arrays = [], {}
    for index, model in enumerate(models):
        entry, by_item = measure(model)
        entries.append({**describe(model), **entry})
        arrays |= {f"{index}/{name}": values for name, values in by_item.items()}
    return {"models": entries, **({"arrays": arrays} if arrays else {})}


def describe(model: Model) -> dict[str, Any]:
    """The model's entries in results: its source and its sizes."""
    sizes = "input_embedding_size output_embedding_size hidden_size num_layers".split()
    return {
        "name": model.name,
        "folder": model.folder,
        "checkpoint": os.path.basename(model.weights.path),
        "global_step": model.weights.global_step,
        "vocabulary": model.vocabulary.fingerprint,
        "vocab_size": model.config.vocab_size,
        "coupled": model.config.coupled,
        **{size: getattr(model.config, size) for size in sizes},
    }


def compiled(
    function: Callable[[dict[str, tf.Tensor]], Any], inputs: Sequence[str]
) -> Callable[[dict[str, np.ndarray]], Any]:
    """A function of `inputs`, int32 [batch, length], compiled once for all sizes.

    It takes a dictionary, which may have other arrays besides.
    """
    specs = [tf.TensorSpec([None, None], tf.int32) for _ in inputs]
    graph = tf.function(
        lambda *values: function(dict(zip(inputs, values, strict=True))),
        specs,
        autograph=False,
    )
    return lambda batch: graph(*(tf.constant(batch[name]) for name in inputs))


def layer_encoder(model: Model) -> Callable[[dict[str, np.ndarray]], tf.Tensor]:
    """A frozen encoder: `FEATURES` -> float32 [layers + 1, batch, length, H]."""
    encoder = Encoder(model.config, model.weights)
    return compiled(lambda batch: tf.stack(encoder.hidden_states(batch)), FEATURES)


def encoder_batches(
    vocabulary: Vocabulary,
    pieces: Sequence[Sequence[int]],
    batch_size: int,
    description: str,
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yields batches: the indices of their texts, and the encoder's features of them.

    The longest texts come first, so that memory that is too small is noticed at once.
    The progress is shown.
    """
    order = np.argsort([-len(ids) for ids in pieces], kind="stable")
    for start in console.track(range(0, len(order), batch_size), description):
        rows = order[start : start + batch_size]
        yield rows, packed(vocabulary, [pieces[row] for row in rows])


def packed(
    vocabulary: Vocabulary, pieces: Sequence[Sequence[int]]
) -> dict[str, np.ndarray]:
    """[CLS] pieces [SEP] padding, the inputs of an encoder: int32 [texts, longest]."""
    sizes = np.array([len(text_ids) + _SPECIAL for text_ids in pieces])
    mask = (np.arange(sizes.max()) < sizes[:, np.newaxis]).astype(np.int32)
    ids = np.full(mask.shape, vocabulary.pad_id, np.int32)
    ids[:, 0] = vocabulary.cls_id
    ids[np.arange(len(ids)), sizes - 1] = vocabulary.sep_id
    for row, (size, text_ids) in enumerate(zip(sizes, pieces, strict=True)):
        ids[row, 1 : size - 1] = text_ids
    types = np.zeros_like(ids)
    return {"input_word_ids": ids, "input_mask": mask, "input_type_ids": types}


def layer_vectors(
    model: Model,
    texts: Sequence[str],
    config: RetrievalConfig,
    pool: Pool | None = None,
) -> np.ndarray:
    """float32 [texts, H]: the mean over each text's tokens in the configured layer."""
    layer = config.layer_of(model.config.num_layers, model.name)
    vectors = np.zeros([1, len(texts), model.config.hidden_size], np.float32)
    add_vectors(vectors, model, texts, [layer], config, pool)
    return vectors[0]


def add_vectors(
    vectors: np.ndarray,
    model: Model,
    texts: Sequence[str],
    layers: Sequence[int],
    config: RetrievalConfig,
    pool: Pool | None = None,
) -> None:
    """Adds the mean over each text's tokens to `vectors`, float32 [layers, texts, H].

    `pool` is a `pooling_function` of the same layers; None makes one.
    """
    pool = pool or pooling_function(model, layers, config)
    parts: list[np.ndarray] = []
    owners: list[int] = []
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        encoded = model.vocabulary.encode_batch(texts[start : start + _TEXTS_AT_ONCE])
        for text, ids in enumerate(encoded, start):
            windows = text_parts(np.array(ids, np.int32), config)
            parts += windows
            owners += [text] * len(windows)
    sizes = np.array([len(ids) for ids in parts], np.int64)
    owner_of = np.array(owners, np.int64)
    # The share of its text's pooled tokens in each part; that of an empty text is 1.
    tokens = np.maximum(1, sizes + _SPECIAL * config.pool_special_tokens)
    shares = (tokens / np.bincount(owner_of, tokens)[owner_of]).astype(np.float32)
    progress = "encoding batches of sentences"
    for rows, batch in encoder_batches(
        model.vocabulary, parts, config.batch_size, progress
    ):
        means = pool(batch)
        if not np.isfinite(means).all():
            raise UserError(
                f"{model.weights.path}: gives numbers that are not finite; the "
                "training diverged, choose an earlier checkpoint"
            )
        batch_texts, text_of_part = np.unique(owner_of[rows], return_inverse=True)
        # [texts, parts]
        weights = np.zeros([len(batch_texts), len(rows)], np.float32)
        weights[text_of_part, np.arange(len(rows))] = shares[rows]
        vectors[:, batch_texts] += weights @ means


def array_on_disk(path: str, dtype: type, shape: Sequence[int]) -> np.ndarray:
    """A new array in a file, for vectors that may be larger than memory.

    Its room is taken at once: a process that maps a file beyond the end of the disk is
    killed without a message.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    try:
        if size > shutil.disk_usage(os.path.dirname(path)).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with open(path, "wb") as handle:
            # macOS has no such call.
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(handle.fileno(), 0, size)
        return np.memmap(path, dtype, "r+", shape=tuple(shape))
    except OSError as error:
        raise UserError(
            f"{os.path.dirname(path)}: no room for {size:,} bytes of vectors "
            f"({error.strerror}); TMPDIR can be another folder"
        ) from error


def text_parts(ids: np.ndarray, config: RetrievalConfig) -> list[np.ndarray]:
    """The start of a text, or its windows, whose lengths differ by at most one."""
    room = config.max_sequence_length - _SPECIAL
    if config.long_sentences == "cut":
        return [ids[:room]]
    count = max(1, -(-len(ids) // room))
    ends = [number * len(ids) // count for number in range(count + 1)]
    return [ids[start:end] for start, end in itertools.pairwise(ends)]


def pooling_function(
    model: Model,
    layers: Sequence[int],
    config: RetrievalConfig,
    accelerator: str | None = None,
) -> Pool:
    """A function of `FEATURES`, int32 [batch, length], to float32 [layers, batch, H].

    It computes on all devices of a kind of accelerator, or by TensorFlow's own kernels.
    """
    encoder = Encoder(model.config, model.weights, up_to=max(layers))

    def pool(batch: dict[str, tf.Tensor]) -> tf.Tensor:
        states, mask = encoder.hidden_states(batch), batch["input_mask"]
        special = config.pool_special_tokens
        return tf.stack([mean_over_tokens(states[i], mask, special) for i in layers])

    if accelerator is None:
        function = compiled(pool, FEATURES)
        return lambda batch: function(batch).numpy()

    def pool_arrays(*arrays: tf.Tensor) -> tf.Tensor:
        return pool(dict(zip(FEATURES, arrays, strict=True)))

    program = DeviceFunction(pool_arrays, accelerator, console.say, axis=1)
    positions, share = model.config.max_positions, program.devices
    rows = -(-config.batch_size // share) * share

    def pool_padded(batch: dict[str, np.ndarray]) -> np.ndarray:
        texts, longest = batch["input_mask"].shape
        # Few lengths, since each is a program.
        length = min(positions, -(-longest // _LENGTH_STEP) * _LENGTH_STEP)
        padding = [(0, rows - texts), (0, length - longest)]
        return program(*(np.pad(batch[name], padding) for name in FEATURES))[:, :texts]

    return pool_padded
