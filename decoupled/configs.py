"""Everything that a gin file can set, as frozen dataclasses that check themselves.

No field has a default: what defines an experiment stands in `gin/`, and gin names the
bindings that are missing. `__post_init__` refuses values that cannot work, so that a
mistake ends in one line before a graph is built. No TensorFlow here.
"""

import dataclasses
import math
import typing
from typing import NamedTuple

import gin

from decoupled.errors import UserError

ACTIVATIONS = ("gelu", "gelu_tanh", "relu")
MLM_TRANSFORMS = ("dense_activation_norm", "projection")
ACTIVATION_DTYPES = ("float32", "bfloat16")
SLICE_DTYPES = ("float32", "bfloat16")
EMBEDDING_LOOKUPS = ("gather", "one_hot")
OPTIMIZERS = ("adamw", "adafactor")
DECAYS = ("linear", "constant")
CLASS_WEIGHTS = ("none", "balanced")
SCORINGS = ("cosine", "euclidean", "ratio_margin", "distance_margin")
# Stands for the languages that a setting does not name.
EVERY_LANGUAGE = "*"
# SentencePiece 0.2.3 refuses more.
MAX_TRAINING_THREADS = 1024


@gin.register
@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The sizes of an encoder and its embeddings (paper section 3 and Table 14).

    vocab_size (V): number of pieces.
    input_embedding_size (E_in): width of word, position and type embeddings; projected
      to the hidden size where the two differ.
    project_equal_widths: projected also where they do not; so Hugging Face's RemBERT.
    output_embedding_size (E_out): width of the output embedding, pre-training only.
    coupled: the output embedding is the input embedding (needs E_in = E_out).
    hidden_size (H), num_layers (L), num_heads, head_size: H = num_heads * head_size.
    intermediate_size: width of the feed-forward layers.
    max_positions: longest sequence. type_vocab_size: number of segment types.
    hidden_dropout, attention_dropout: rates in [0, 1), active in training only.
    activation: "gelu" (erf), "gelu_tanh" (its tanh approximation) or "relu".
    layer_norm_epsilon: added to the variance.
    initializer_range: standard deviation of the truncated normal of all kernels.
    mlm_transform: "dense_activation_norm" (H -> E_out, activation, layer norm, as in
      BERT and in the released RemBERT) or "projection" (the paper's plain linear
      projection, left out where H = E_out).
    """

    vocab_size: int
    input_embedding_size: int
    project_equal_widths: bool
    output_embedding_size: int
    coupled: bool
    hidden_size: int
    num_layers: int
    num_heads: int
    head_size: int
    intermediate_size: int
    max_positions: int
    type_vocab_size: int
    hidden_dropout: float
    attention_dropout: float
    activation: str
    layer_norm_epsilon: float
    initializer_range: float
    mlm_transform: str

    def __post_init__(self):
        _check_types(self)
        _check_positive(
            self,
            "vocab_size input_embedding_size output_embedding_size hidden_size "
            "num_layers num_heads head_size intermediate_size max_positions "
            "type_vocab_size layer_norm_epsilon initializer_range",
        )
        _check_rates(self, "hidden_dropout attention_dropout")
        _check_choice(self, "activation", ACTIVATIONS)
        _check_choice(self, "mlm_transform", MLM_TRANSFORMS)
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

    @property
    def projects_input(self) -> bool:
        """Whether a linear layer leads from E_in to H."""
        equal = self.input_embedding_size == self.hidden_size
        return self.project_equal_widths or not equal


@gin.register
@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Where the dimensions of the graph live.

    mesh_shape: e.g. "all:1" or "data:2;vocab:4"; axis sizes multiply to the number of
      devices.
    layout_rules: e.g. "batch:data;vocab:vocab"; which dimension (`decoupled.model.dims`
      lists them) is split over which mesh axis. Dimensions without a rule are
      replicated.
    activation_dtype: "float32" or "bfloat16"; optimizer slots and the loss are float32
      always.
    embedding_lookup: "gather" copies rows; "one_hot" multiplies a one-hot matrix by the
      table, which a TPU may do faster where the vocabulary is small. Equal numbers.
    slice_dtype: of the weights on the devices, "float32" or "bfloat16", which halves
      their memory; updates are then rounded by chance (`decoupled.ops.rounding`).
      Vectors (biases, layer norms) and what checkpoints hold are float32 always.
    """

    mesh_shape: str
    layout_rules: str
    activation_dtype: str
    embedding_lookup: str
    slice_dtype: str

    def __post_init__(self):
        _check_types(self)
        _check_choice(self, "activation_dtype", ACTIVATION_DTYPES)
        _check_choice(self, "embedding_lookup", EMBEDDING_LOOKUPS)
        _check_choice(self, "slice_dtype", SLICE_DTYPES)


@gin.register
@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    """Masked language modelling (BERT section 3.1; the paper uses the same rates).

    sequence_length: tokens per sequence, [CLS] and [SEP] included.
    max_predictions: masked positions per sequence; the width of the MLM head's batch.
    masking_rate: share of the maskable tokens that is predicted, e.g. 0.15.
    mask_token_rate, random_token_rate: of the predicted tokens, the share replaced by
      [MASK] and by a random piece; the rest stays as it is (0.8, 0.1).
    """

    sequence_length: int
    max_predictions: int
    masking_rate: float
    mask_token_rate: float
    random_token_rate: float

    def __post_init__(self):
        _check_types(self)
        _check_positive(self, "sequence_length max_predictions masking_rate")
        _check_rates(
            self, "masking_rate mask_token_rate random_token_rate", closed=True
        )
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


@gin.register
@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How often each language is drawn, for a vocabulary and in pre-training.

    alpha: language l is drawn with probability proportional to (its share of the
      sentences) ** alpha; 1 keeps the natural shares, 0 makes all languages equal
      (paper appendix A.1: 0.5).
    weights: None, or language -> its share, e.g. {"en": 0.2}, in the place of the
      smoothed one; the languages not named divide what is left by alpha. Where all are
      named, only the ratios count. 0 leaves a language out.
    min_epochs, max_epochs: None, a number, or language -> number, e.g.
      {"*": 20, "en": 2} where "*" stands for every language not named: how often the
      text of a language is seen over the run at least and at most. Applied after alpha
      and weights; what a language gains or loses is divided among the rest.
    """

    alpha: float
    weights: dict | None
    min_epochs: float | dict | None
    max_epochs: float | dict | None

    def __post_init__(self):
        _check_types(self)
        if not 0 <= self.alpha <= 1:
            raise UserError(f"SamplingConfig.alpha: {self.alpha} is not in [0, 1]")
        for name in ("weights", "min_epochs", "max_epochs"):
            _check_by_language(self, name, getattr(self, name))
        if EVERY_LANGUAGE in (self.weights or {}):
            raise UserError(
                f"SamplingConfig.weights: {EVERY_LANGUAGE!r} is no language; those not "
                "named divide what is left"
            )
        for language in self._named():
            self._check_language(language)

    @property
    def limits_epochs(self) -> bool:
        """Whether shares depend on the length of the run."""
        return self.min_epochs is not None or self.max_epochs is not None

    def epochs_of(self, language: str) -> tuple[float, float]:
        """The fewest and the most epochs of a language over the run."""
        least = _by_language(self.min_epochs, language)
        most = _by_language(self.max_epochs, language)
        return 0.0 if least is None else least, math.inf if most is None else most

    def _named(self):
        given = (self.weights, self.min_epochs, self.max_epochs)
        named = {
            name for values in given if isinstance(values, dict) for name in values
        }
        return sorted({EVERY_LANGUAGE, *named})

    def _check_language(self, language):
        least, most = self.epochs_of(language)
        if least > most:
            raise UserError(
                f"SamplingConfig.min_epochs: {least:g} is more than max_epochs = "
                f"{most:g} for {language!r}"
            )
        named = isinstance(self.min_epochs, dict) and self.min_epochs.get(language)
        if named and (self.weights or {}).get(language) == 0:
            raise UserError(
                f"SamplingConfig.min_epochs: {least:g} for {language!r}, which weights "
                "leaves out"
            )


@gin.register
@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """How a SentencePiece unigram vocabulary is trained.

    vocab_size: number of pieces.
    character_coverage: share of the characters that must be covered, e.g. 0.9995.
    byte_fallback: unknown characters become UTF-8 byte pieces instead of <unk>.
    max_sentences, max_bytes: size of the language-smoothed sample that is trained on:
      as many sentences, and about as many bytes of UTF-8, at most.
    num_threads: parts that the sample is cut into, each summed by a thread. Sums
      depend on it, and so does the vocabulary; not on the number of cores.
    """

    vocab_size: int
    character_coverage: float
    byte_fallback: bool
    max_sentences: int
    max_bytes: int
    num_threads: int

    def __post_init__(self):
        _check_types(self)
        _check_positive(
            self, "vocab_size character_coverage max_sentences max_bytes num_threads"
        )
        _check_rates(self, "character_coverage", closed=True)
        if self.num_threads > MAX_TRAINING_THREADS:
            raise UserError(
                f"VocabularyConfig.num_threads: {self.num_threads} is more than "
                f"{MAX_TRAINING_THREADS}"
            )


@gin.register
@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer (paper Tables 10, 14, 15).

    name: "adamw" (bias-corrected Adam, decoupled weight decay) or "adafactor".
    learning_rate: the peak; `ScheduleConfig` says when it is reached.
    weight_decay: decoupled rate, multiplied by the learning rate; never applied to
      layer norms and biases. beta1, beta2, epsilon: Adam's (Adafactor: beta1 and
      weight_decay must be 0, beta2 is its own schedule).
    clip_norm: the global gradient norm is clipped to this; 0 clips nothing.
    """

    name: str
    learning_rate: float
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    clip_norm: float

    def __post_init__(self):
        _check_types(self)
        _check_choice(self, "name", OPTIMIZERS)
        _check_positive(self, "learning_rate epsilon")
        _check_not_negative(self, "weight_decay clip_norm")
        _check_rates(self, "beta1 beta2")
        if self.name == "adafactor" and (self.weight_decay or self.beta1):
            raise UserError(
                "OptimizerConfig: adafactor has neither weight decay nor momentum "
                "here; set weight_decay = 0.0 and beta1 = 0.0"
            )


@gin.register
@dataclasses.dataclass(frozen=True)
class ScheduleConfig:
    """The length of a run and its learning rate over time.

    train_steps: optimizer steps. warmup_steps: linear warm-up from 0 to the peak.
    decay: after warm-up, "linear" to 0 at the last step, or "constant".
    """

    train_steps: int
    warmup_steps: int
    decay: str

    def __post_init__(self):
        _check_types(self)
        _check_choice(self, "decay", DECAYS)
        _check_positive(self, "train_steps")
        _check_not_negative(self, "warmup_steps")


@gin.register
@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Batches and bookkeeping of a run.

    batch_size: sequences per step over the whole mesh.
    gradient_accumulation: a step's batch is run as so many microbatches.
    save_checkpoints_steps: steps between checkpoints. keep_checkpoint_max: how many
      of the newest are kept. log_steps: steps between summaries.
    eval_every_steps: steps between evaluations; 0 evaluates at the end only.
    eval_batch_size; eval_sequences: most sequences evaluated per language, 0 is all.
    seed: of initial weights, data order, masks and dropout.
    label_smoothing: share of the target distribution that is spread evenly over all
      classes, in training only; evaluation reports the plain loss (paper: 0).
    recompute_layers: the backward pass computes the inside of each encoder layer again
      instead of keeping it; equal gradients, less memory, a third more FLOPs.
    iterations_per_loop: steps that a TPU does before it returns to the host, which then
      saves, logs and hears signals; without a TPU it is always 1.
    """

    batch_size: int
    gradient_accumulation: int
    save_checkpoints_steps: int
    keep_checkpoint_max: int
    log_steps: int
    eval_every_steps: int
    eval_batch_size: int
    eval_sequences: int
    seed: int
    label_smoothing: float
    recompute_layers: bool
    iterations_per_loop: int

    def __post_init__(self):
        _check_types(self)
        _check_positive(
            self,
            "batch_size gradient_accumulation save_checkpoints_steps "
            "keep_checkpoint_max log_steps eval_batch_size iterations_per_loop",
        )
        _check_not_negative(self, "seed eval_sequences eval_every_steps")
        _check_rates(self, "label_smoothing")
        if self.batch_size % self.gradient_accumulation:
            raise UserError(
                f"TrainingConfig.gradient_accumulation: batch_size {self.batch_size} "
                f"does not divide into {self.gradient_accumulation} microbatches"
            )


@gin.register
@dataclasses.dataclass(frozen=True)
class FinetuningConfig:
    """What changes between pre-training and fine-tuning.

    num_epochs: passes over the English training set (paper: 3).
    max_sequence_length: longer inputs are cut.
    classifier_dropout: rate before the task layer, in training only.
    keep_layers: only the first k layers of the checkpoint are used (Figure 1,
      Table 5); 0 keeps all.
    freeze_input_embedding: the input embedding block is not trained.
    warmup_fraction: share of the steps with linear warm-up; a linear decay follows.
    learning_rates: each is tried, and the best on English dev is kept; () trains with
      OptimizerConfig.learning_rate, which counts nothing where there are some here.
    class_weights: "none", or "balanced", which gives every class the same total weight
      in the training loss; classification only.
    """

    num_epochs: float
    max_sequence_length: int
    classifier_dropout: float
    keep_layers: int
    freeze_input_embedding: bool
    warmup_fraction: float
    learning_rates: tuple
    class_weights: str

    def __post_init__(self):
        _check_types(self)
        _check_positive(self, "num_epochs max_sequence_length")
        _check_not_negative(self, "keep_layers")
        _check_rates(self, "classifier_dropout warmup_fraction")
        _check_choice(self, "class_weights", CLASS_WEIGHTS)
        rates = self.learning_rates
        if not all(type(r) in (int, float) and 0 < r < math.inf for r in rates) or (
            len(set(rates)) != len(rates)
        ):
            raise UserError(
                f"FinetuningConfig.learning_rates: {rates} are not distinct positive "
                "numbers, e.g. (1e-5, 2e-5)"
            )


@gin.register
@dataclasses.dataclass(frozen=True)
class QuestionAnsweringConfig:
    """Windows of contexts and choice of answers (Devlin et al. 2019, section 4.2).

    max_question_length: pieces of a question; the rest is cut off.
    doc_stride: pieces between the starts of neighbouring windows over a context that
      does not fit into one; the windows overlap where it is smaller than they are.
    max_answer_length: most pieces of an answer.
    n_best: likeliest starts and ends of each window that are tried with each other.
    """

    max_question_length: int
    doc_stride: int
    max_answer_length: int
    n_best: int

    def __post_init__(self):
        _check_types(self)
        _check_positive(self, "max_question_length doc_stride max_answer_length n_best")


@gin.register
@dataclasses.dataclass(frozen=True)
class RetrievalConfig:
    """How translations are found by the vectors of sentences.

    layer: whose output is pooled: 0 is the embedding output, 1 the first layer; -1 is
      the last, -2 the one before it. What compares layers takes all of them instead.
    pool_special_tokens: [CLS] and [SEP] count in the mean over a sentence's tokens, as
      in XTREME's baseline; not in Figure 2.
    centre: the mean vector of each side is subtracted from its vectors, which lets go
      what all sentences of a language share (Figure 2's translation vector).
    scoring: "cosine", "euclidean", or a margin of Artetxe and Schwenk (ACL 2019):
      "ratio_margin" or "distance_margin".
    num_neighbours: k of the margins; the other scorings do without.
    max_sequence_length: longer sentences are cut. batch_size: sentences of a batch.
    """

    layer: int
    pool_special_tokens: bool
    centre: bool
    scoring: str
    num_neighbours: int
    max_sequence_length: int
    batch_size: int

    def __post_init__(self):
        _check_types(self)
        _check_choice(self, "scoring", SCORINGS)
        _check_positive(self, "num_neighbours max_sequence_length batch_size")
        if self.max_sequence_length < 3:
            raise UserError(
                f"RetrievalConfig.max_sequence_length: {self.max_sequence_length} "
                "leaves no room for text beside [CLS] and [SEP]; use 3 or more"
            )


@gin.register
@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """The processes that the mesh spans (`decoupled.training.cluster`).

    workers: ("host:port", ...) of all of them, the driver first; () is the driver
      alone. TF_CONFIG, where it is set, says it instead.
    start_seconds: how long the driver waits for the others.
    patience_seconds: how long a worker may be silent before the run ends.
    """

    workers: tuple
    start_seconds: float
    patience_seconds: float

    def __post_init__(self):
        _check_types(self)
        _check_positive(self, "start_seconds patience_seconds")
        for address in self.workers:
            if not isinstance(address, str):
                raise UserError(
                    f"ClusterConfig.workers: {address!r} is not a string, host:port"
                )


@gin.register
@dataclasses.dataclass(frozen=True)
class ScaleConfig:
    """What the sizes of the paper's models are divided by; 1 leaves them.

    width_divisor: of E_in, E_out, H and the feed-forward width.
    head_size_divisor: of the size of a head; the number of heads follows.
    depth_divisor: of the number of layers, rounded to the nearest.
    """

    width_divisor: int
    head_size_divisor: int
    depth_divisor: int

    def __post_init__(self):
        _check_types(self)
        _check_positive(self, "width_divisor head_size_divisor depth_divisor")


@gin.register
@dataclasses.dataclass(frozen=True)
class SweepConfig:
    """A grid of runs: every model, with every seed, on every task.

    title: of the table. rows: names of files in gin/models, in the table's order.
    keep_layers: row -> layers that fine-tuning keeps, of the paper's; others keep all.
    tasks: as of `finetune`. seeds: of pre-training, one run each.
    finetuning_runs: seeds of fine-tuning for each pre-trained model.
    task_files: task -> its gin file ("" for none), "*" for those not named; {task} in
      it stands for the name.
    pretraining, finetuning: bindings of every run.
    """

    title: str
    rows: tuple
    keep_layers: dict
    tasks: tuple
    seeds: tuple
    finetuning_runs: int
    task_files: dict
    pretraining: tuple
    finetuning: tuple

    def __post_init__(self):
        _check_types(self)
        _check_positive(self, "finetuning_runs")
        for name, kind in (
            ("rows", str),
            ("tasks", str),
            ("seeds", int),
            ("pretraining", str),
            ("finetuning", str),
        ):
            values = getattr(self, name)
            if any(type(value) is not kind for value in values):
                raise UserError(
                    f"SweepConfig.{name}: {values!r} must hold {kind.__name__} only"
                )
            if name in ("rows", "tasks", "seeds") and len(set(values)) < len(values):
                raise UserError(f"SweepConfig.{name}: {values!r} names one twice")
        if not self.rows or not self.seeds:
            raise UserError("SweepConfig.rows, SweepConfig.seeds: name at least one")
        unknown = sorted(set(self.keep_layers) - set(self.rows))
        if unknown:
            raise UserError(
                f"SweepConfig.keep_layers: {', '.join(unknown)} are not among the rows"
            )


class PretrainConfig(NamedTuple):
    """Everything that a pre-training run is made of."""

    model: ModelConfig
    mesh: MeshConfig
    masking: MaskingConfig
    sampling: SamplingConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    training: TrainingConfig
    cluster: ClusterConfig


@gin.configurable
def pretrain(
    *,
    model=gin.REQUIRED,
    mesh=gin.REQUIRED,
    masking=gin.REQUIRED,
    sampling=gin.REQUIRED,
    optimizer=gin.REQUIRED,
    schedule=gin.REQUIRED,
    training=gin.REQUIRED,
    cluster=gin.REQUIRED,
) -> PretrainConfig:
    """The root of the settings of pre-training, and of its plan."""
    return PretrainConfig(
        model, mesh, masking, sampling, optimizer, schedule, training, cluster
    )


class SweepRoot(NamedTuple):
    """A grid, and how its models are scaled."""

    sweep: SweepConfig
    scale: ScaleConfig


@gin.configurable
def sweep(*, sweep=gin.REQUIRED, scale=gin.REQUIRED) -> SweepRoot:
    """The root of the settings of a sweep, and of the reproduction, which is one."""
    return SweepRoot(sweep, scale)


@gin.configurable
def sweep_row(*, model=gin.REQUIRED) -> ModelConfig:
    """The root of the settings of one model of a sweep."""
    return model


@gin.register
@dataclasses.dataclass(frozen=True)
class PlanConfig:
    """What the plan of a TPU run assumes.

    efficiency: share of the peak that matrix products reach, with all that stands
      between them.
    memory_share: share of a core's memory that a step may take.
    """

    efficiency: float
    memory_share: float

    def __post_init__(self):
        _check_types(self)
        _check_positive(self, "efficiency memory_share")
        _check_rates(self, "efficiency memory_share", closed=True)


def _where(config, name):
    return f"{type(config).__name__}.{name}"


def _check_types(config):
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        kinds = typing.get_args(field.type) or (field.type,)
        if type(value) not in kinds and not (float in kinds and type(value) is int):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise UserError(
                f"{_where(config, field.name)}: {value!r} is not of type "
                f"{names.replace('NoneType', 'None')}"
            )


def _by_language(values, language):
    """The number for a language; None where nothing is said."""
    if isinstance(values, dict):
        return values.get(language, values.get(EVERY_LANGUAGE))
    return values


def _check_by_language(config, name, values):
    """A number that is not negative, or a dict of such by language."""
    entries = values if isinstance(values, dict) else {EVERY_LANGUAGE: values or 0}
    if not entries or not all(isinstance(language, str) for language in entries):
        raise UserError(
            f"{_where(config, name)}: {values!r} is not language -> number; use None "
            "for no setting"
        )
    for language, value in entries.items():
        if type(value) not in (int, float) or not 0 <= value < math.inf:
            raise UserError(
                f"{_where(config, name)}: {value!r} for {language!r} is no number or "
                "negative"
            )


def _check_positive(config, names):
    for name in names.split():
        value = getattr(config, name)
        if not 0 < value < math.inf:
            raise UserError(f"{_where(config, name)}: {value} is not positive")


def _check_not_negative(config, names):
    for name in names.split():
        value = getattr(config, name)
        if not 0 <= value < math.inf:
            raise UserError(f"{_where(config, name)}: {value} is negative or no number")


def _check_rates(config, names, closed=False):
    for name in names.split():
        value = getattr(config, name)
        if not (0 <= value < 1 or (closed and value == 1)):
            interval = "[0, 1]" if closed else "[0, 1)"
            raise UserError(f"{_where(config, name)}: {value} is not in {interval}")


def _check_choice(config, name, choices):
    value = getattr(config, name)
    if value not in choices:
        raise UserError(
            f"{_where(config, name)}: {value!r} is unknown; one of {', '.join(choices)}"
        )
