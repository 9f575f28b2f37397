"""Settings of a training run: optimizer, schedule, batches, processes, phases."""

import dataclasses
from typing import NamedTuple

import gin

from decoupled.configs.checks import (
    check_choice,
    check_not_negative,
    check_positive,
    check_rates,
    check_types,
)
from decoupled.configs.data import MaskingConfig, SamplingConfig
from decoupled.configs.mesh import MeshConfig
from decoupled.configs.model import ModelConfig
from decoupled.core.errors import UserError

OPTIMIZERS = ("adamw", "adafactor")
DECAYS = ("constant", "linear", "cosine", "one_minus_sqrt")


@gin.register
@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer (paper Tables 10, 14, 15).

    name: "adamw" (bias-corrected Adam, decoupled weight decay) or "adafactor".
    learning_rate: the peak; `ScheduleConfig` says when it is reached.
    weight_decay: decoupled rate, multiplied by the learning rate; never applied to
      layer norms and biases.
    beta1, beta2, epsilon: of Adam. With Adafactor, beta1 and weight_decay must be 0,
      and beta2 follows Adafactor's own schedule.
    clip_norm: gradients are clipped to this global norm; 0 does not clip.
    """

    name: str
    learning_rate: float
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    clip_norm: float

    def __post_init__(self):
        check_types(self)
        check_choice(self, "name", OPTIMIZERS)
        check_positive(self, "learning_rate epsilon")
        check_not_negative(self, "weight_decay clip_norm")
        check_rates(self, "beta1 beta2")
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
    decay: "constant", or how the rate falls until the last step. With x from 0 to 1
      over the decay, the rate is the peak times 1 - x ("linear"), (1 + cos(pi x)) / 2
      ("cosine"), or 1 - sqrt(x) ("one_minus_sqrt", Haegele et al. 2024).
    decay_steps: length of the decay at the end of the run; before it the rate stays at
      the peak (warm-up-stable-decay). None: the decay begins at the end of warm-up.
    final_share: share of the peak at which the decay ends; 0 for a decay to 0.
    """

    train_steps: int
    warmup_steps: int
    decay: str
    decay_steps: int | None
    final_share: float

    def __post_init__(self):
        check_types(self)
        check_choice(self, "decay", DECAYS)
        check_positive(self, "train_steps")
        check_not_negative(self, "warmup_steps")
        check_rates(self, "final_share", closed=True)
        if self.decay == "constant" and (self.decay_steps, self.final_share) != (
            None,
            0,
        ):
            raise UserError(
                "ScheduleConfig: decay_steps or final_share without a decay; set decay "
                f"to one of {', '.join(DECAYS[1:])}"
            )
        if self.decay_steps is not None:
            check_positive(self, "decay_steps")
            if self.warmup_steps + self.decay_steps > self.train_steps:
                raise UserError(
                    f"ScheduleConfig: {self.warmup_steps} warmup_steps and "
                    f"{self.decay_steps} decay_steps are more than the "
                    f"{self.train_steps} train_steps"
                )

    @property
    def decay_begins(self) -> int:
        """The step at which the rate begins to fall; `train_steps` if it never does."""
        if self.decay == "constant":
            return self.train_steps
        if self.decay_steps is None:
            return self.warmup_steps
        return self.train_steps - self.decay_steps


@gin.register
@dataclasses.dataclass(frozen=True)
class TrainingConfig:
    """Batches and bookkeeping of a run.

    batch_size: sequences per step over the whole mesh.
    gradient_accumulation: number of microbatches that a step's batch is divided into.
    save_checkpoints_steps: steps between checkpoints. keep_checkpoint_max: how many
      of the newest are kept. log_steps: steps between summaries.
    eval_every_steps: steps between evaluations; 0 evaluates at the end only. On a TPU
      each costs two compilations (docs/tpu.md).
    eval_batch_size: sequences per step of evaluation. eval_sequences: the largest
      number of evaluated sequences per language; 0 evaluates all.
    seed: of initial weights, data order, masks and dropout.
    label_smoothing: share of the target distribution that is spread evenly over all
      classes, in training only; evaluation reports the plain loss (paper: 0).
    recompute_layers: gradient checkpointing: the backward pass recomputes the
      activations inside each encoder layer; equal gradients, less memory, a third more
      FLOPs.
    iterations_per_loop: steps that a TPU runs before it returns to the host, which then
      saves, logs and handles signals; without a TPU it is always 1.
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
        check_types(self)
        check_positive(
            self,
            "batch_size gradient_accumulation save_checkpoints_steps "
            "keep_checkpoint_max log_steps eval_batch_size iterations_per_loop",
        )
        check_not_negative(self, "seed eval_sequences eval_every_steps")
        check_rates(self, "label_smoothing")
        if self.batch_size % self.gradient_accumulation:
            raise UserError(
                f"TrainingConfig.gradient_accumulation: batch_size {self.batch_size} "
                f"does not divide into {self.gradient_accumulation} microbatches"
            )


def without_effect(
    schedule: ScheduleConfig,
    training: TrainingConfig,
    evaluating: bool,
    warmup_fraction: float = 0.0,
) -> list[str]:
    """The settings that a run of these steps cannot follow, a sentence each.

    Args:
      evaluating: whether checkpoints are evaluated while the run trains.
      warmup_fraction: from which fine-tuning derives the steps of its warm-up.
    """
    steps, found = schedule.train_steps, []
    if warmup_fraction and not schedule.warmup_steps:
        found.append(
            f"FinetuningConfig.warmup_fraction = {warmup_fraction:g} has no effect: of "
            f"{steps} steps it is less than one"
        )
    if schedule.warmup_steps >= steps:
        decay = "" if schedule.decay == "constant" else ", and there is no decay"
        found.append(
            f"the warm-up of {schedule.warmup_steps} steps is not shorter than the run "
            f"of {steps}: the learning rate reaches no more than "
            f"{steps / schedule.warmup_steps:.0%} of its peak{decay}"
        )
    every = {"save_checkpoints_steps": "saves"}
    if evaluating and training.eval_every_steps:
        every["eval_every_steps"] = "evaluates"
    for name, does in every.items():
        if getattr(training, name) > steps:
            found.append(
                f"TrainingConfig.{name} = {getattr(training, name)} has no effect: the "
                f"run has {steps} steps, and {does} only at its end"
            )
    return found


@gin.register
@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """The processes that the mesh spans (`decoupled.training.cluster`).

    workers: ("host:port", ...) of all processes, the driver first; () for the driver
      alone. The environment variable TF_CONFIG overrides it.
    start_seconds: how long the driver waits for the others.
    patience_seconds: how long a worker may be silent before the run ends.
    accept_open_ports: whether to serve addresses that other hosts can reach, although
      anyone who reaches them can run programs here (`decoupled.core.ports`).
    """

    workers: tuple
    start_seconds: float
    patience_seconds: float
    accept_open_ports: bool

    def __post_init__(self):
        check_types(self)
        check_positive(self, "start_seconds patience_seconds")
        for address in self.workers:
            if not isinstance(address, str):
                raise UserError(
                    f"ClusterConfig.workers: {address!r} is not a string, host:port"
                )


@gin.register
@dataclasses.dataclass(frozen=True)
class PhaseConfig:
    """A phase of pre-training with its own data settings, before the main phase.

    steps: optimizer steps. masking, sampling: for its data. batch_size: sequences per
      step over the whole mesh.
    """

    steps: int
    masking: MaskingConfig
    sampling: SamplingConfig
    batch_size: int

    def __post_init__(self):
        check_types(self)
        check_positive(self, "steps batch_size")


class PretrainConfig(NamedTuple):
    """All settings of a pre-training run.

    whole_words: whether training predicts all tokens of a word or none
      (`decoupled.data.masking`).
    eval_masking_rate: masking rate of held-out text, which is masked token by token,
      regardless of the masking in training.
    earlier_phases: `PhaseConfig`s, in order; masking, sampling and batch size of the
      run are those of its last phase.
    """

    model: ModelConfig
    mesh: MeshConfig
    masking: MaskingConfig
    sampling: SamplingConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    training: TrainingConfig
    cluster: ClusterConfig
    whole_words: bool
    eval_masking_rate: float
    earlier_phases: tuple[PhaseConfig, ...] = ()

    @property
    def eval_masking(self) -> MaskingConfig:
        """How held-out text is masked."""
        return dataclasses.replace(self.masking, masking_rate=self.eval_masking_rate)

    @property
    def phases(self) -> list["Phase"]:
        """All phases; one if the run has no earlier phases."""
        phases, first = [], 0
        for number, phase in enumerate(self.earlier_phases):
            config = self._replace(
                masking=phase.masking,
                sampling=phase.sampling,
                training=dataclasses.replace(
                    self.training, batch_size=phase.batch_size
                ),
                earlier_phases=(),
            )
            phases.append(Phase(number, first, first + phase.steps, config))
            first += phase.steps
        last = self._replace(earlier_phases=())
        return [*phases, Phase(len(phases), first, self.schedule.train_steps, last)]


class Phase(NamedTuple):
    """Steps [first, last) of a run, and their settings, without earlier phases."""

    number: int
    first: int
    last: int
    config: PretrainConfig

    @property
    def sequences(self) -> int:
        """How many sequences the phase draws."""
        return (self.last - self.first) * self.config.training.batch_size


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
    whole_words=gin.REQUIRED,
    eval_masking_rate=gin.REQUIRED,
    earlier_phases=gin.REQUIRED,
) -> PretrainConfig:
    """The root of the settings of pre-training, and of its plan."""
    if type(whole_words) is not bool:
        raise UserError(
            f"pretrain.whole_words: {whole_words!r} is neither True nor False"
        )
    if type(eval_masking_rate) not in (int, float) or not 0 < eval_masking_rate <= 1:
        raise UserError(
            f"pretrain.eval_masking_rate: {eval_masking_rate!r} is not in (0, 1]"
        )
    config = PretrainConfig(
        model, mesh, masking, sampling, optimizer, schedule, training, cluster,
        whole_words, eval_masking_rate, _phases(earlier_phases, schedule),
    )  # fmt: skip
    for phase in config.phases:
        _check_predictions(phase.config)
    return config


def _phases(given, schedule) -> tuple[PhaseConfig, ...]:
    if not isinstance(given, list | tuple) or not all(
        isinstance(phase, PhaseConfig) for phase in given
    ):
        raise UserError(
            f"pretrain.earlier_phases: {given!r} is no list of phases; give "
            "(@first/PhaseConfig(), ...), or () for none"
        )
    steps = sum(phase.steps for phase in given)
    if steps >= schedule.train_steps:
        raise UserError(
            f"pretrain.earlier_phases: they have {steps} steps, which leaves none of "
            f"ScheduleConfig.train_steps = {schedule.train_steps} to the last phase"
        )
    return tuple(given)


def _check_predictions(config) -> None:
    masking = config.masking
    for rate in (masking.masking_rate, config.eval_masking_rate):
        wanted = round(rate * (masking.sequence_length - 2))
        if wanted > masking.max_predictions:
            raise UserError(
                f"MaskingConfig.max_predictions: {masking.max_predictions} are fewer "
                f"than the {wanted} tokens that a masking rate of {rate} predicts of "
                f"{masking.sequence_length}; give {wanted} or more"
            )
