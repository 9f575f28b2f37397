"""Settings of masking, language sampling and vocabularies."""

import dataclasses
import math

from decoupled.configs.checks import (
    Settings,
    check_positive,
    check_rates,
    configurable,
)
from decoupled.core.errors import UserError

# SentencePiece 0.2.3 refuses more threads, and less coverage.
MAX_TRAINING_THREADS, MIN_COVERAGE = 1024, 0.98


@configurable()
@dataclasses.dataclass(frozen=True)
class MaskingConfig(Settings):
    """Masked language modelling (Devlin et al. 2019, section 3.1).

    sequence_length: tokens per sequence, [CLS] and [SEP] included.
    max_predictions: positions per sequence that the MLM head computes, and so the
      largest number of predicted tokens.
    masking_rate: share of the maskable tokens that is predicted, e.g. 0.15.
    mask_token_rate, random_token_rate: shares of the predicted tokens that are replaced
      by [MASK] and by a random piece (BERT: 0.8, 0.1); the others stay unchanged.
    """

    # Section 5 gives RemBERT's sequences 512 tokens. The paper names no length for its
    # other models and no masking rates. Ours are BERT's, whose objective it uses (A.2).
    # 80 predictions are enough for 15% of 510.
    sequence_length: int = 512
    max_predictions: int = 80
    masking_rate: float = 0.15
    mask_token_rate: float = 0.8
    random_token_rate: float = 0.1

    def _check(self):
        check_positive(self, "sequence_length max_predictions masking_rate")
        check_rates(self, "masking_rate mask_token_rate random_token_rate", closed=True)
        if self.sequence_length < 4:
            raise UserError(
                f"MaskingConfig.sequence_length: {self.sequence_length} leaves no room "
                "for text beside [CLS] and [SEP]; use 4 or more"
            )
        if self.mask_token_rate + self.random_token_rate > 1:
            raise UserError(
                "MaskingConfig: mask_token_rate + random_token_rate = "
                f"{self.mask_token_rate + self.random_token_rate} is more than 1"
            )
        if self.max_predictions > self.sequence_length - 2:
            raise UserError(
                f"MaskingConfig.max_predictions: {self.max_predictions} is more than "
                f"the {self.sequence_length - 2} maskable tokens of a sequence"
            )


@configurable()
@dataclasses.dataclass(frozen=True)
class SamplingConfig(Settings):
    """How often each language is drawn, for a vocabulary and in pre-training.

    alpha: language l is drawn with probability proportional to (its share of the
      sentences) ** alpha; 1 keeps the natural shares, 0 makes all languages equal
      (paper A.7: 0.5).
    weights: None, or language -> its share, e.g. {"en": 0.2}, instead of the smoothed
      one; the other languages divide the rest by alpha. If all languages are named,
      only the ratios matter. 0 leaves a language out.
    """

    # Paper A.7 for RemBERT's pre-training. That vocabularies are sampled alike is ours,
    # because BERT does it so.
    alpha: float = 0.5
    weights: dict | None = None

    def _check(self):
        if not 0 <= self.alpha <= 1:
            raise UserError(f"SamplingConfig.alpha: {self.alpha} is not in [0, 1]")
        if self.weights is None:
            return
        if not self.weights or not all(isinstance(name, str) for name in self.weights):
            raise UserError(
                f"SamplingConfig.weights: {self.weights!r} is not language -> number; "
                "use None for no setting"
            )
        for language, value in self.weights.items():
            if type(value) not in (int, float) or not 0 <= value < math.inf:
                raise UserError(
                    f"SamplingConfig.weights: {value!r} for {language!r} is not a "
                    "finite number of at least 0"
                )


@configurable()
@dataclasses.dataclass(frozen=True)
class VocabularyConfig(Settings):
    """How a SentencePiece unigram vocabulary is trained.

    vocab_size: number of pieces.
    character_coverage: share of the characters that must be covered, from 0.98 to 1.
    byte_fallback: unknown characters become UTF-8 byte pieces instead of <unk>.
    max_sentences, max_bytes: limits of the language-smoothed training sample: at most
      this many sentences, and about this many bytes of UTF-8.
    num_threads: parts that the sample is cut into, each summed by a thread. The sums,
      and so the vocabulary, depend on it, but not on the number of cores.
    """

    # The Django catalogs have about 2,700 different characters, so that a third of the
    # pieces are single characters; text without CJK languages needs fewer.
    vocab_size: int = 8000
    # In text as short as the Django catalogs, 5% of the Chinese tokens are unknown;
    # 0.9999 halves that.
    character_coverage: float = 0.9995
    # As in the released RemBERT; the paper does not say.
    byte_fallback: bool = False
    # The trainer holds its sample in memory (docs/vocabulary.md).
    max_sentences: int = 2_000_000
    max_bytes: int = 2_000_000_000
    num_threads: int = 16

    def _check(self):
        check_positive(
            self, "vocab_size character_coverage max_sentences max_bytes num_threads"
        )
        if not MIN_COVERAGE <= self.character_coverage <= 1:
            raise UserError(
                f"VocabularyConfig.character_coverage: {self.character_coverage} is "
                f"not in [{MIN_COVERAGE}, 1], as SentencePiece needs it"
            )
        if self.num_threads > MAX_TRAINING_THREADS:
            raise UserError(
                f"VocabularyConfig.num_threads: {self.num_threads} is more than "
                f"{MAX_TRAINING_THREADS}"
            )
