"""Masked language modelling: the pre-training task."""

import numpy as np

from decoupled.configs import MaskingConfig, PretrainConfig
from decoupled.core.compat import mtf, tf
from decoupled.data.input_fn import languages_input_fn, pretraining_input_fn
from decoupled.model.dims import Dims, predictions_dim
from decoupled.model.embeddings import OutputEmbedding
from decoupled.model.encoder import encode
from decoupled.model.heads import Forward
from decoupled.model.layers import Builder
from decoupled.model.variables import MASKED_LM
from decoupled.tasks.task import Task, weighted_loss, with_token_weights


class MaskedLM(Task):
    """Predicts the masked pieces of a sequence (paper: the only pre-training loss)."""

    name = "masked_lm"
    head = MASKED_LM
    metrics = {"masked_lm_accuracy": ("hits", "weight")}
    # The metric that is a loss, in nats per prediction.
    loss = "masked_lm_loss"
    training_input_fn = staticmethod(pretraining_input_fn)
    evaluation_input_fn = staticmethod(languages_input_fn)

    def __init__(self, masking: MaskingConfig, pad_id: int = 0):
        super().__init__(self.name, masking.sequence_length, dropout=0.0)
        self._pad_id = pad_id
        self._predictions = predictions_dim(masking.max_predictions)

    @classmethod
    def from_config(cls, config: PretrainConfig, pad_id: int) -> "MaskedLM":
        return cls(config.masking, pad_id)

    def results(self, rows: dict[str, np.ndarray]) -> dict[str, float]:
        """The metrics of sequences, from what `forward` predicts."""
        weight = float(rows["weight"].sum())
        return {
            "masked_lm_accuracy": float(rows["hits"].sum()) / weight,
            self.loss: float(rows["loss_sum"].sum()) / weight,
            "predictions": int(weight),
        }

    def extra_dims(self) -> list[mtf.Dimension]:
        return [self._predictions]

    def feature_dims(self, dims: Dims) -> dict[str, list[mtf.Dimension]]:
        names = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
        layout = {name: [dims.batch, self._predictions] for name in names}
        return {**self.encoder_dims(dims), **layout, "loss_scale": [dims.batch]}

    def prepare(self, features: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Adds 1 / (sum of the weights of all masked positions of the batch), and
        `input_mask` (1 for real tokens) and `input_type_ids` (0) if they are missing.

        The mask follows from the ids, because masking neither replaces nor inserts
        padding.
        """
        ids = features["input_word_ids"]
        features = {
            "input_mask": tf.cast(tf.not_equal(ids, self._pad_id), tf.int32),
            "input_type_ids": tf.zeros_like(ids),
            **features,
        }
        name = "masked_lm_weights"
        return with_token_weights(features, name, features[name])

    def forward(self, build: Builder, features: dict[str, mtf.Tensor]) -> Forward:
        layers = encode(build, features, features["masked_lm_positions"])
        losses, correct = OutputEmbedding(build).cross_entropy(
            layers[-1], features["masked_lm_ids"]
        )
        batch, weights = [build.dims.batch], features["masked_lm_weights"]
        per_sequence = {
            "loss_sum": mtf.reduce_sum(losses * weights, output_shape=batch),
            "hits": mtf.reduce_sum(correct * weights, output_shape=batch),
            "weight": mtf.reduce_sum(weights, output_shape=batch),
        }
        return weighted_loss(
            per_sequence["loss_sum"],
            per_sequence["hits"],
            per_sequence["weight"],
            features["loss_scale"],
            per_sequence,
        )
