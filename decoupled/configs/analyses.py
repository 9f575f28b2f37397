"""Settings of the analyses."""

import dataclasses
from typing import Any, NamedTuple

import gin

from decoupled.configs.data import MaskingConfig
from decoupled.core.errors import UserError


def _check_whole(settings: Any, root: str, **least: int) -> None:
    """Refuses fields that are not whole numbers, or are below their lower bounds.

    Args:
      settings: has the fields. root: the name of the settings in gin.
      least: field -> its lower bound.
    """
    for name, bound in least.items():
        value = getattr(settings, name)
        if type(value) is not int or value < bound:
            raise UserError(f"{root}.{name}: {value!r} is no whole number >= {bound}")


@dataclasses.dataclass(frozen=True)
class WordTranslationSettings:
    """Which pieces translate each other, and how their rows are compared.

    See `decoupled.analyses.translated_pieces`.

    whole_word_share: the share of a piece's occurrences that must be whole words to
      make it a whole-word piece of a language; in [0, 1].
    min_count: the fewest sentences that must contain each piece of a pair.
    min_dice: the lowest Dice coefficient of a pair; in [0, 1].
    min_candidate_count: the fewest sentences that must contain a piece to make it a
      candidate; the translation is ranked among the candidates. At most min_count.
    centre: whether each language's mean row is subtracted.
    """

    whole_word_share: float
    min_count: int
    min_dice: float
    min_candidate_count: int
    centre: bool

    def __post_init__(self):
        _check_whole(self, "word_translation", min_count=1, min_candidate_count=1)
        for name in ("whole_word_share", "min_dice"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 <= value <= 1:
                raise UserError(f"word_translation.{name}: {value!r} is not in [0, 1]")
        if type(self.centre) is not bool:
            raise UserError(
                f"word_translation.centre: {self.centre!r} is neither True nor False"
            )
        if self.min_candidate_count > self.min_count:
            raise UserError(
                f"word_translation.min_candidate_count: {self.min_candidate_count} is "
                f"above min_count, {self.min_count}; a translation must be among the "
                "candidates"
            )


@gin.configurable
def word_translation(
    *,
    whole_word_share=gin.REQUIRED,
    min_count=gin.REQUIRED,
    min_dice=gin.REQUIRED,
    min_candidate_count=gin.REQUIRED,
    centre=gin.REQUIRED,
):
    """The root of the gin configuration of `word_translation`."""
    return WordTranslationSettings(
        whole_word_share, min_count, min_dice, min_candidate_count, centre
    )


class GeometrySettings(NamedTuple):
    """What `geometry` reads, and how much of it.

    masking: length of the sequences and masking rates. sequences: the largest number
    per language. batch_size: sequences in a batch. gradients: the number of masked
    positions whose gradient is followed to the encoder. seed: of the masks.
    """

    masking: MaskingConfig
    sequences: int
    batch_size: int
    gradients: int
    seed: int

    def check(self) -> None:
        """Raises a UserError for values that cannot work."""
        least = {name: int(name != "seed") for name in self._fields[1:]}
        _check_whole(self, "geometry", **least)


@gin.configurable
def geometry(
    *,
    masking=gin.REQUIRED,
    sequences=gin.REQUIRED,
    batch_size=gin.REQUIRED,
    gradients=gin.REQUIRED,
    seed=gin.REQUIRED,
):
    """The root of the gin configuration of `geometry`."""
    return GeometrySettings(masking, sequences, batch_size, gradients, seed)


class MaskedLmSettings(NamedTuple):
    """How held-out text is masked, and how much of it is read.

    masking: length of the sequences, masking rates, and how many tokens of a sequence
      are predicted together. max_sequences: the largest number per language; 0 reads
      all. smoothing: added to the count of every piece in the training text.
      batch_size: masked copies of sequences in a batch. seed: of the masks.
    """

    masking: MaskingConfig
    max_sequences: int
    smoothing: float
    batch_size: int
    seed: int

    def check(self) -> None:
        """Raises a UserError for values that cannot work."""
        _check_whole(self, "masked_lm", max_sequences=0, batch_size=1, seed=0)
        smoothing = self.smoothing
        if type(smoothing) not in (int, float) or not 0 < smoothing < float("inf"):
            raise UserError(
                f"masked_lm.smoothing: {smoothing!r} is not a finite number above 0"
            )


@gin.configurable
def masked_lm(
    *,
    masking=gin.REQUIRED,
    max_sequences=gin.REQUIRED,
    smoothing=gin.REQUIRED,
    batch_size=gin.REQUIRED,
    seed=gin.REQUIRED,
):
    """The root of the gin configuration of `masked_lm`."""
    return MaskedLmSettings(masking, max_sequences, smoothing, batch_size, seed)


@dataclasses.dataclass(frozen=True)
class ProbeSettings:
    """Sizes and rates of the probe.

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

    max_tokens: int | None
    projection_size: int
    hidden_size: int
    dropout: float
    learning_rate: float
    clip_norm: float
    batch_size: int
    train_steps: int
    eval_every_steps: int
    halve_after: int
    stop_after: int
    seed: int

    def __post_init__(self):
        whole = [f.name for f in dataclasses.fields(self) if f.type is int]
        least = {name: int(name != "seed") for name in whole}
        _check_whole(self, "probing", **least)
        for name in ("learning_rate", "clip_norm"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < float("inf"):
                raise UserError(
                    f"probing.{name}: {value!r} is not a finite number above 0"
                )
        tokens = self.max_tokens
        if tokens is not None and (type(tokens) is not int or tokens < 3):
            raise UserError(
                f"probing.max_tokens: {tokens!r} is neither None nor a whole number "
                ">= 3"
            )
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            raise UserError(f"probing.dropout: {self.dropout!r} is not in [0, 1)")


@gin.configurable
def probing(
    *,
    max_tokens=gin.REQUIRED,
    projection_size=gin.REQUIRED,
    hidden_size=gin.REQUIRED,
    dropout=gin.REQUIRED,
    learning_rate=gin.REQUIRED,
    clip_norm=gin.REQUIRED,
    batch_size=gin.REQUIRED,
    train_steps=gin.REQUIRED,
    eval_every_steps=gin.REQUIRED,
    halve_after=gin.REQUIRED,
    stop_after=gin.REQUIRED,
    seed=gin.REQUIRED,
):
    """The root of the gin configuration of `probing`."""
    return ProbeSettings(
        max_tokens=max_tokens,
        projection_size=projection_size,
        hidden_size=hidden_size,
        dropout=dropout,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        batch_size=batch_size,
        train_steps=train_steps,
        eval_every_steps=eval_every_steps,
        halve_after=halve_after,
        stop_after=stop_after,
        seed=seed,
    )


@gin.configurable
def neighbours(*, retrieval=gin.REQUIRED, max_pairs=gin.REQUIRED):
    """The root of the gin configuration of `neighbours`."""
    if type(max_pairs) is not int or max_pairs < 0:
        raise UserError(f"neighbours.max_pairs: {max_pairs!r} is no whole number >= 0")
    return retrieval, max_pairs
