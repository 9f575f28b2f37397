"""Predictions of a masked-LM head at [MASK], for one text at a time."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.data.vocabulary import SENTENCEPIECE, Vocabulary
from decoupled.data.words import UNSPACED
from decoupled.exports.serving.encoder import Encoder, MaskedLm
from decoupled.model import variables as names
from decoupled.runs.saved_run import open_model


class PiecePrediction(NamedTuple):
    """A piece, e.g. "▁capital", and its probability at a [MASK]."""

    piece: str
    probability: float


class MaskedWords:
    """An encoder with its MLM head, for texts of at most `max_tokens` tokens.

    `logits` is a function of the encoder's inputs and `masked_lm_positions`, int32
    [1, length] and [1, masks], to float32 [1, masks, V].
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        max_tokens: int,
        logits: Callable[[dict[str, tf.Tensor]], tf.Tensor],
    ):
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._logits = logits

    def fill(self, text: str, count: int) -> list[list[PiecePrediction]]:
        """The `count` most probable pieces for each [MASK] of a text, best first."""
        ids = encode_masked(self._vocabulary, text)
        if len(ids) > self._max_tokens:
            raise UserError(
                f"{text[:40]!r}...: {len(ids)} tokens, the model has "
                f"{self._max_tokens} positions; cut it"
            )
        mask = self._vocabulary.mask_id
        positions = [place for place, index in enumerate(ids) if index == mask]
        row = np.array([ids], np.int32)
        logits = self._logits(
            {
                "input_word_ids": tf.constant(row),
                "input_mask": tf.ones_like(row),
                "input_type_ids": tf.zeros_like(row),
                "masked_lm_positions": tf.constant([positions], tf.int32),
            }
        )
        probabilities = tf.nn.softmax(tf.cast(logits[0], tf.float64)).numpy()
        return [self._best(row, count) for row in probabilities]

    def _best(self, probabilities: np.ndarray, count: int) -> list[PiecePrediction]:
        # A model may have more rows than the vocabulary has pieces.
        probabilities = probabilities[: self._vocabulary.size]
        best_ids = np.argsort(-probabilities, kind="stable")[:count]
        return [
            PiecePrediction(self._vocabulary.id_to_piece(i), float(probabilities[i]))
            for i in best_ids
        ]


def show_predictions(model: MaskedWords, texts: Sequence[str], count: int) -> None:
    """Prints a table of the most probable pieces for each [MASK] of each text."""
    for text in texts:
        console.say(text)
        for number, predictions in enumerate(model.fill(text, count), start=1):
            console.table(
                f"mask {number}",
                ["piece", "probability"],
                [[row.piece, row.probability] for row in predictions],
            )


def encode_masked(vocabulary: Vocabulary, text: str) -> list[int]:
    """The ids of a text with [CLS], [SEP], and [MASK] where the text has it.

    They are those of training: of the whole text, in which the pieces of a word were
    replaced. For BERT and XLM-R they are those of transformers, which encodes the parts
    between masks by themselves.
    """
    mask = vocabulary.mask_text
    if mask not in text:
        raise UserError(f"{text!r}: has no {mask} to fill")
    if vocabulary.kind != SENTENCEPIECE:
        ids = vocabulary.encode_masked(text)
        return [vocabulary.cls_id, *ids, vocabulary.sep_id]
    next_texts = text.split(mask)[1:]
    ids = [vocabulary.cls_id]
    for index in vocabulary.encode_masked(text):
        if index == vocabulary.mask_id:
            # A separate "▁" belongs to the word that follows it. In scripts without
            # spaces, no word has one (`data.words`).
            is_spaced = not (next_texts and UNSPACED.match(next_texts.pop(0)))
            if is_spaced and ids[-1] == vocabulary.blank_id:
                ids.pop()
        ids.append(index)
    return [*ids, vocabulary.sep_id]


def open_checkpoint(model_dir: str, checkpoint: str | None) -> MaskedWords:
    """The model of a run or a conversion."""
    model = open_model(model_dir, checkpoint)
    if names.OUTPUT_BIAS not in model.weights:
        raise UserError(
            f"{model.weights.path}: has no output embedding and no MLM head, and so "
            "cannot fill masks (fine-tuning drops them, and google/rembert comes "
            "without)"
        )
    model.weights.check(model.config, names.MASKED_LM)
    encoder = Encoder(model.config, model.weights)
    head = MaskedLm(model.config, model.weights, encoder)

    def logits(inputs: dict[str, tf.Tensor]) -> tf.Tensor:
        output = encoder(inputs)["sequence_output"]
        return head(output, inputs["masked_lm_positions"])

    return MaskedWords(model.vocabulary, model.config.max_positions, logits)
