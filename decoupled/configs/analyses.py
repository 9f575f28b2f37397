"""Settings of the analyses."""

import dataclasses
from typing import ClassVar

from decoupled.configs.checks import (
    Settings,
    bound,
    check_not_negative,
    check_positive,
    check_rates,
    configurable,
    where,
)
from decoupled.configs.data import MaskingConfig
from decoupled.configs.finetuning import RetrievalConfig
from decoupled.core.errors import UserError


@configurable("masked_lm")
@dataclasses.dataclass(frozen=True)
class MaskedLmSettings(Settings):
    """How held-out text is masked, and how much of it is read.

    masking: length of the sequences, masking rates, and how many tokens of a sequence
      are predicted together. Give those of pre-training, which its config.json has.
    max_sequences: the largest number per language, spread evenly; 0 reads all.
    smoothing: added to the count of every piece in the training text.
    batch_size: masked copies of sequences in a batch; logits take
      4 * batch_size * max_predictions * vocab_size bytes.
    seed: of the masks.
    """

    DEFAULTS: ClassVar = {
        "MaskingConfig.sequence_length": 128,
        "MaskingConfig.max_predictions": 20,
        # BERT leaves 10% of the predicted tokens as they are, where a model can read
        # the answer, and replaces 10% by random pieces, on which the loss would depend.
        "MaskingConfig.mask_token_rate": 1.0,
        "MaskingConfig.random_token_rate": 0.0,
    }

    masking: MaskingConfig = bound(MaskingConfig)
    max_sequences: int = 2500
    smoothing: float = 1.0
    batch_size: int = 64
    seed: int = 0

    def _check(self):
        check_positive(self, "smoothing batch_size")
        check_not_negative(self, "max_sequences seed")


@configurable("probing")
@dataclasses.dataclass(frozen=True)
class ProbeSettings(Settings):
    """Sizes and rates of the probe.

    They are those of Tenney et al. (2019, "What do you learn from context?") and their
    code in jiant, which trains for longer.

    max_tokens: length to which longer sentences are truncated, [CLS] and [SEP]
      included; None for all positions of the model, including any that pre-training did
      not train.
    projection_size: width of a span's vector. hidden_size: width of the hidden layer of
      the network on top. dropout: rate before both of its layers.
    learning_rate: at the beginning. clip_norm: the largest global gradient norm.
    batch_size: sentences in a batch. train_steps: the largest number of steps.
    eval_every_steps: steps between evaluations on the development data.
    halve_after, stop_after: after so many evaluations in a row without a better score,
      the learning rate is halved, or training ends.
    seed: of initial weights, order and dropout.
    """

    max_tokens: int | None = None
    projection_size: int = 256
    hidden_size: int = 512
    dropout: float = 0.3
    learning_rate: float = 1e-4
    clip_norm: float = 5.0
    batch_size: int = 32
    train_steps: int = 20_000
    eval_every_steps: int = 500
    halve_after: int = 5
    stop_after: int = 20
    seed: int = 0

    def _check(self):
        check_positive(
            self,
            "projection_size hidden_size learning_rate clip_norm batch_size "
            "train_steps eval_every_steps halve_after stop_after",
        )
        check_not_negative(self, "seed")
        check_rates(self, "dropout")
        if self.max_tokens is not None and self.max_tokens < 3:
            raise UserError(
                f"{where(self, 'max_tokens')}: {self.max_tokens} leaves no room for "
                "text beside [CLS] and [SEP]; use 3 or more, or None"
            )


@configurable("neighbours")
@dataclasses.dataclass(frozen=True)
class NeighbourSettings(Settings):
    """How translations are found by nearest neighbours, in all layers.

    retrieval: without `layer`.
    max_pairs: of each language: the first ones of a file, or with --sentences those
      that a hash of their ids chooses. 0 takes all.
    """

    # As in Figure 2 (paper A.9).
    DEFAULTS: ClassVar = {
        "RetrievalConfig.pool_special_tokens": False,
        "RetrievalConfig.centre": True,
        "RetrievalConfig.scoring": "euclidean",
        "RetrievalConfig.batch_size": 32,
    }

    retrieval: RetrievalConfig = bound(RetrievalConfig)
    max_pairs: int = 5000

    def _check(self):
        check_not_negative(self, "max_pairs")
        if self.retrieval.layer != RetrievalConfig.layer:
            raise UserError(
                f"{where(self.retrieval, 'layer')}: {self.retrieval.layer} has no "
                "effect, because neighbours measures all layers; leave it out"
            )


# Name of an analysis -> its settings.
ANALYSES = {
    kind.gin_name: kind for kind in (MaskedLmSettings, ProbeSettings, NeighbourSettings)
}
