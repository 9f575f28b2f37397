"""Checkpoints opened for analysis: a short name, sizes, tables, and all hidden states.

Hidden states come from the serving encoder (`decoupled.exports.serving.encoder`). The
vector of a word is the mean of the embeddings of its subwords.
"""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.core.made_from import MADE_FROM
from decoupled.core.release import tf
from decoupled.data.vocabulary import Vocabulary
from decoupled.exports.checkpoint_files import CheckpointFile
from decoupled.exports.serving.encoder import FEATURES, Encoder
from decoupled.model import variables as names
from decoupled.runs import run_folder
from decoupled.runs.saved_run import open_run

INPUT, OUTPUT = "input", "output"
SIZES = ("input_embedding_size", "output_embedding_size", "hidden_size", "num_layers")
Vectors = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class AnalysedModel:
    """A model folder's checkpoint.

    name: short and unique among the models of the analysis.
    folder: of the run. config: sizes. vocabulary: pieces. weights: of the checkpoint.
    """

    name: str
    folder: str
    config: ModelConfig
    vocabulary: Vocabulary
    weights: CheckpointFile

    @property
    def embeddings(self) -> list[str]:
        """ "input" and, if the checkpoint has a separate output embedding, "output".

        A coupled model has one table; fine-tuning keeps only the input embedding.
        """
        matrices = names.output_matrices(self.config)
        own = all(matrix.name in self.weights for matrix in matrices)
        return [INPUT, OUTPUT] if own and not self.config.coupled else [INPUT]

    def embedding(self, kind: str) -> np.ndarray:
        """One table, float32 [V, E_in] or [V, E_out]; every call reads it again."""
        if kind == INPUT:
            return self.weights[names.WORD_EMBEDDINGS]
        last, *before = reversed(names.output_matrices(self.config))
        table = self.weights[last.name]
        for matrix in before:
            table = table @ self.weights[matrix.name]
        return table

    def check_length(
        self, length: int, setting: str = "MaskingConfig.sequence_length"
    ) -> None:
        """Raises a UserError if the model has fewer positions than a setting."""
        if length > self.config.max_positions:
            raise UserError(
                f"{setting}: {length}, but {self.name} has "
                f"max_positions = {self.config.max_positions}"
            )

    def describe(self) -> dict[str, Any]:
        """The model's entries in results: its source and its sizes."""
        sizes = {size: getattr(self.config, size) for size in SIZES}
        return {
            "name": self.name,
            "folder": self.folder,
            "checkpoint": os.path.basename(self.weights.path),
            "global_step": self.weights.global_step,
            "vocabulary": self.vocabulary.fingerprint,
            "vocab_size": self.config.vocab_size,
            "coupled": self.config.coupled,
            **sizes,
        }

    def masked_lm_accuracy(self) -> float | None:
        """The accuracy of pre-training's last evaluation, if of this checkpoint."""
        path = os.path.join(self.folder, "eval.json")
        if not files.exists(path):
            return None
        found = files.read_json(path)
        weights = found.get(MADE_FROM, {}).get("checkpoint")
        if found.get("global_step") != self.weights.global_step or (
            weights and weights != run_folder.weights_sha256(self.weights.path)
        ):
            return None
        return found.get("all", {}).get("masked_lm_accuracy")


class LayerEncoder:
    """A frozen encoder that gives every layer's output, with dynamic sizes.

    Attributes:
      num_layers: of the network; `__call__` returns one output more.
      encoder: the network.
    """

    def __init__(self, model: AnalysedModel):
        self.encoder = Encoder(model.config, model.weights)
        self.num_layers = model.config.num_layers
        specs = [tf.TensorSpec([None, None], tf.int32) for _ in FEATURES]
        self._function = tf.function(self._encode, specs, autograph=False)

    def __call__(self, batch: dict[str, np.ndarray]) -> tf.Tensor:
        """Runs the network without dropout.

        Args:
          batch: `input_word_ids`, `input_mask`, `input_type_ids`, int32
            [batch, length]; other entries are ignored.

        Returns:
          float32 [layers + 1, batch, length, H], see `Encoder.hidden_states`.
        """
        return self._function(*(tf.constant(batch[name]) for name in FEATURES))

    def _encode(self, *features: tf.Tensor) -> tf.Tensor:
        inputs = dict(zip(FEATURES, features, strict=True))
        return tf.stack(self.encoder.hidden_states(inputs))


def open_models(
    paths: Sequence[str], *, masked_lm: bool = False
) -> list[AnalysedModel]:
    """Opens runs of `pretrain` or `finetune`.

    Args:
      paths: prefixes of checkpoints, or folders. In a folder, the checkpoint that
        fine-tuning selected is taken, or else the newest one.
      masked_lm: whether the model must have the head of pre-training.

    Raises:
      UserError: a path is given twice, is no run, or has no complete checkpoint; its
        vocabulary is not the one of the training; or its variables do not fit its
        config.json.
    """
    return [
        _open(path, name, masked_lm)
        for path, name in zip(paths, short_names(paths), strict=True)
    ]


def batches(
    arrays: dict[str, np.ndarray], batch_size: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields batches of rows of similar length, without columns of padding.

    Args:
      arrays: `input_mask` [rows, length] and others. Only arrays of its shape lose
        columns.
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
    """The shortest ends of paths that are unique; a checkpoint includes its folder.

    Raises:
      UserError: a path occurs twice.
    """
    parts = [[part for part in path.split("/") if part] for path in paths]
    more = [0 if gfile.isdir(path) else 1 for path in paths]
    for length in range(1, max(map(len, parts), default=1) + 1):
        ends = zip(parts, more, strict=True)
        shortened = ["/".join(p[-length - extra :]) for p, extra in ends]
        if len(set(shortened)) == len(paths):
            return shortened
    twice = next(path for path in paths if list(paths).count(path) > 1)
    raise UserError(f"{twice}: is given twice")


def _open(path: str, name: str, masked_lm: bool) -> AnalysedModel:
    run = open_run(path)
    weights = CheckpointFile(run.prefix)
    model = AnalysedModel(
        name, run.folder, run.description.model, run.vocabulary, weights
    )
    _check(model, masked_lm)
    return model


def _check(model: AnalysedModel, masked_lm: bool) -> None:
    has_head = names.OUTPUT_BIAS in model.weights
    if masked_lm and not has_head:
        raise UserError(
            f"{model.weights.path}: holds no MLM head (fine-tuning drops it); give a "
            "pre-training checkpoint"
        )
    model.weights.check(model.config, names.Head(masked_lm=has_head))


def word_vectors(model: AnalysedModel, words: Iterable[str]) -> dict[str, Vectors]:
    """The mean of the vectors of each word's pieces (paper section 6.1).

    One table is in memory at a time, and only its needed rows are kept.

    Args:
      model: its input and output embeddings are read.
      words: any number; repeated words are allowed.

    Returns:
      "input", and "output" if the model has one -> word -> float64 [E]. Words with an
      unknown piece, and words that the vocabulary normalises to nothing, are left out.
    """
    pieces = known_pieces(model.vocabulary, words)
    needed = np.unique(np.concatenate([*pieces.values(), np.zeros(0, np.int64)]))
    vectors = {}
    for kind in model.embeddings:
        rows = model.embedding(kind)[needed].astype(np.float64)
        vectors[kind] = {
            word: rows[np.searchsorted(needed, ids)].mean(0)
            for word, ids in pieces.items()
        }
    return vectors


def known_pieces(vocabulary: Vocabulary, words: Iterable[str]) -> dict[str, np.ndarray]:
    """Word -> its pieces, int64, for the words without an unknown piece."""
    words = sorted(set(words))
    encoded = zip(words, vocabulary.encode_batch(words), strict=True)
    return {
        word: np.array(ids, np.int64)
        for word, ids in encoded
        if ids and vocabulary.unk_id not in ids
    }
