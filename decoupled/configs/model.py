"""The sizes of the model."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from decoupled.configs.checks import (
    Settings,
    check_choice,
    check_patterns,
    check_positive,
    check_rates,
    configurable,
)
from decoupled.configs.removed import had_effect, without_gone
from decoupled.core.errors import UserError

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
MLM_TRANSFORMS = ("dense_activation_norm", "projection")
# The initial value of a square matrix, instead of random numbers.
IDENTITY = "identity"


@configurable()
@dataclasses.dataclass(frozen=True)
class ModelConfig(Settings):
    """The sizes of an encoder and its embeddings (paper A.2 and Table 14).

    The defaults are the paper's multilingual BERT-base, coupled (A.2: mBERT's
    architecture).

    vocab_size (V): number of pieces.
    input_embedding_size (E_in): width of word, position and type embeddings; they are
      projected to the hidden size if the two widths differ.
    project_equal_widths: whether they are projected even if the widths are equal, as in
      Hugging Face's RemBERT.
    output_embedding_size (E_out): width of the output embedding, which only
      pre-training uses.
    project_equal_output_widths: whether hidden vectors are projected to E_out even if
      H = E_out, so that models with and without equal widths differ in E_out alone.
    coupled: whether the output embedding is the input embedding (needs E_in = E_out).
    hidden_size (H), num_layers (L), num_heads, head_size: H = num_heads * head_size.
    intermediate_size: width of the feed-forward layers.
    max_positions: length of the longest sequence. type_vocab_size: number of segment
      types.
    hidden_dropout, attention_dropout: rates in [0, 1), active in training only.
    activation: "gelu" (erf), "gelu_tanh" (its tanh approximation) or "relu".
    layer_norm_epsilon: added to the variance.
    initializer_range: standard deviation of the truncated normal of all kernels.
    initial_values: pattern of names of matrices, like a shell's -> by what the initial
      values are multiplied, or "identity" for a square matrix.
    mlm_transform: "dense_activation_norm" (H -> E_out, activation, layer norm, as in
      BERT and in the released RemBERT) or "projection" (the plain linear projection
      of the paper's footnote 3; left out if H = E_out, which is not in the paper,
      unless project_equal_output_widths is set).
    """

    # Paper A.2: 120k SentencePiece pieces. The vocabulary must have exactly this many.
    vocab_size: int = 120_000
    input_embedding_size: int = 768
    project_equal_widths: bool = False
    output_embedding_size: int = 768
    project_equal_output_widths: bool = False
    coupled: bool = True
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    head_size: int = 64
    intermediate_size: int = 3072
    max_positions: int = 512
    type_vocab_size: int = 2
    # Paper A.2: no dropout.
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    # The paper does not print these. They are the values of google-research/bert
    # (modeling.py), whose variable names the released checkpoint uses. Its "gelu" is
    # the tanh approximation, and its layer norm is tf.contrib's, with epsilon 1e-12.
    activation: str = "gelu_tanh"
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    initial_values: dict = dataclasses.field(default_factory=dict)
    # Paper footnote 3. That the projection is absent at equal widths is ours, because
    # equal widths need none, and the paper's counts of parameters leave it out
    # everywhere.
    mlm_transform: str = "projection"

    def _check(self):
        check_positive(
            self,
            "vocab_size input_embedding_size output_embedding_size hidden_size "
            "num_layers num_heads head_size intermediate_size max_positions "
            "type_vocab_size layer_norm_epsilon initializer_range",
        )
        check_rates(self, "hidden_dropout attention_dropout")
        check_choice(self, "activation", ACTIVATIONS)
        check_choice(self, "mlm_transform", MLM_TRANSFORMS)
        check_patterns(self, "initial_values", (IDENTITY,))
        if self.coupled and self.input_embedding_size != self.output_embedding_size:
            raise UserError(
                "ModelConfig.coupled: one table cannot have two widths: "
                f"input_embedding_size is {self.input_embedding_size}, "
                f"output_embedding_size is {self.output_embedding_size}; "
                "make them equal or set coupled = False"
            )
        if self.hidden_size != self.num_heads * self.head_size:
            raise UserError(
                f"ModelConfig.hidden_size: {self.hidden_size} is not num_heads * "
                f"head_size = {self.num_heads} * {self.head_size} = "
                f"{self.num_heads * self.head_size}"
            )

    def __hash__(self):
        # Declarations of variables are cached by their model, which has a dictionary.
        values = {
            **vars(self),
            "initial_values": frozenset(self.initial_values.items()),
        }
        return hash(tuple(values.values()))

    def with_layers(self, num_layers: int) -> "ModelConfig":
        """The first layers. They have been trained, or only their sizes count: patterns
        of initial values could name other layers."""
        return dataclasses.replace(self, num_layers=num_layers, initial_values={})

    @property
    def projects_input(self) -> bool:
        """Whether a linear layer projects from E_in to H."""
        is_equal = self.input_embedding_size == self.hidden_size
        return self.project_equal_widths or not is_equal

    @property
    def projects_output(self) -> bool:
        """Whether a dense layer leads from H to E_out."""
        is_equal = self.hidden_size == self.output_embedding_size
        has_layer = self.mlm_transform == "dense_activation_norm"
        return has_layer or self.project_equal_output_widths or not is_equal


def saved_model(sizes: Mapping[str, Any]) -> ModelConfig:
    """The model of a saved description, which may lack settings that are off, and have
    settings that are gone if they changed nothing.

    Raises:
      UserError: a setting that is gone had an effect.
    """
    sizes = without_gone("ModelConfig", sizes)
    for name, value in sizes.items():
        if had_effect("ModelConfig", name, value):
            raise UserError(
                f"ModelConfig.{name} was removed, and this model has {value!r}; only "
                "the version that trained it can read it"
            )
    for name, default in vars(ModelConfig()).items():
        if default and name not in sizes:
            raise KeyError(name)
    return ModelConfig(**sizes)
