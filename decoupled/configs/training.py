"""Settings of a training run: optimizer, schedule, batches, processes, phases."""

import dataclasses
from typing import NamedTuple

from decoupled.configs.checks import (
    Settings,
    bound,
    check_choice,
    check_not_negative,
    check_patterns,
    check_positive,
    check_rates,
    configurable,
    where,
)
from decoupled.configs.data import MaskingConfig, SamplingConfig
from decoupled.configs.hardware import MeshConfig
from decoupled.configs.model import ModelConfig
from decoupled.core.errors import UserError

DECAYS = ("constant", "linear", "cosine", "one_minus_sqrt")


@configurable()
@dataclasses.dataclass(frozen=True)
class OptimizerConfig(Settings):
    """The optimizer (paper Tables 10, 14, 15).

    It is AdamW: bias-corrected Adam with decoupled weight decay.

    learning_rate: the peak; `ScheduleConfig` says when it is reached.
    weight_decay: decoupled rate, multiplied by the learning rate; never applied to
      layer norms and biases.
    beta1, beta2, epsilon: of Adam.
    clip_norm: gradients are clipped to this global norm; 0 does not clip.
    rates: pattern of names of variables, like a shell's -> by what their learning rate
      is multiplied, and with it their weight decay. 0: the variable is not trained.
    """

    # Paper Table 14 (RemBERT).
    learning_rate: float = 2e-4
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    clip_norm: float = 1.0
    # Not in the paper.
    rates: dict = dataclasses.field(default_factory=dict)

    def _check(self):
        check_patterns(self, "rates")
        check_positive(self, "learning_rate epsilon")
        check_not_negative(self, "weight_decay clip_norm")
        check_rates(self, "beta1 beta2")


@configurable()
@dataclasses.dataclass(frozen=True)
class ScheduleConfig(Settings):
    """The length of a run and its learning rate over time.

    train_steps: optimizer steps. warmup_steps: linear warm-up from 0 to the peak.
    decay: "constant", or how the rate falls until the last step. With x from 0 to 1
      over the decay, the rate is the peak times 1 - x ("linear"), (1 + cos(pi x)) / 2
      ("cosine"), or 1 - sqrt(x) ("one_minus_sqrt", Haegele et al. 2024).
    decay_steps: length of the decay at the end of the run; before it the rate stays at
      the peak (warm-up-stable-decay). None: the decay begins at the end of warm-up.
    final_share: share of the peak at which the decay ends; 0 for a decay to 0.
    """

    # Paper Table 14 (RemBERT). The paper gives its other models 26B tokens (A.3), and
    # neither rate nor batch nor warm-up.
    train_steps: int = 1_760_000
    warmup_steps: int = 15_000
    # Not in the paper; ours, because BERT has it.
    decay: str = "linear"
    decay_steps: int | None = None
    final_share: float = 0.0

    def _check(self):
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


@configurable()
@dataclasses.dataclass(frozen=True)
class TrainingConfig(Settings):
    """Batches and bookkeeping of a run.

    batch_size: sequences per step over the whole mesh.
    gradient_accumulation: number of microbatches that a step's batch is divided into.
    save_checkpoints_steps: steps between checkpoints; with slow steps, one is also
      saved every 15 minutes. keep_checkpoint_max: how many of the newest are kept.
    log_steps: steps between summaries.
    eval_every_steps: steps between evaluations; 0 evaluates at the end only. With
      --tpu each costs two compilations.
    eval_batch_size: sequences per step of evaluation, or the next larger number that
      the mesh can split. eval_sequences: the largest number of evaluated sequences per
      language; 0 evaluates all.
    seed: of initial weights, data order, masks and dropout.
    recompute_layers: gradient checkpointing: the backward pass recomputes the
      activations inside each encoder layer; equal gradients, less memory, a third more
      FLOPs.
    iterations_per_loop: steps that a TPU runs before it returns to the host, which then
      saves, logs and handles signals; without a TPU it is always 1.
    """

    # Paper Table 14 (RemBERT).
    batch_size: int = 2048
    gradient_accumulation: int = 1
    save_checkpoints_steps: int = 5000
    keep_checkpoint_max: int = 5
    log_steps: int = 100
    eval_every_steps: int = 0
    eval_batch_size: int = 64
    eval_sequences: int = 1000
    seed: int = 0
    recompute_layers: bool = False
    iterations_per_loop: int = 100

    def _check(self):
        check_positive(
            self,
            "batch_size gradient_accumulation save_checkpoints_steps "
            "keep_checkpoint_max log_steps eval_batch_size iterations_per_loop",
        )
        check_not_negative(self, "seed eval_sequences eval_every_steps")
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
    Fine-tuning derives the steps of its warm-up from `warmup_fraction`."""
    steps, sentences = schedule.train_steps, []
    if warmup_fraction and not schedule.warmup_steps:
        sentences.append(
            f"FinetuningConfig.warmup_fraction = {warmup_fraction:g} has no effect: of "
            f"{steps} steps it is less than one"
        )
    if schedule.warmup_steps >= steps:
        decay = "" if schedule.decay == "constant" else ", and there is no decay"
        sentences.append(
            f"the warm-up of {schedule.warmup_steps} steps is not shorter than the run "
            f"of {steps}: the learning rate reaches no more than "
            f"{steps / schedule.warmup_steps:.0%} of its peak{decay}"
        )
    if training.eval_every_steps and not evaluating:
        sentences.append(
            f"TrainingConfig.eval_every_steps = {training.eval_every_steps} has no "
            "effect: nothing is evaluated while this run trains"
        )
    actions = {"save_checkpoints_steps": "saves only"}
    if evaluating and training.eval_every_steps:
        actions["eval_every_steps"] = "evaluates only"
        if training.eval_every_steps < steps:
            actions["save_checkpoints_steps"] = "saves at its evaluations and"
    for name, action in actions.items():
        if getattr(training, name) > steps:
            sentences.append(
                f"TrainingConfig.{name} = {getattr(training, name)} has no effect: the "
                f"run has {steps} steps, and {action} at its end"
            )
    return sentences


@configurable()
@dataclasses.dataclass(frozen=True)
class PhaseConfig(Settings):
    """A phase of pre-training with its own data settings, before the main phase.

    steps: optimizer steps. batch_size: sequences per step over the whole mesh.
    masking, sampling: for its data.
    """

    steps: int
    batch_size: int
    masking: MaskingConfig = bound(MaskingConfig)
    sampling: SamplingConfig = bound(SamplingConfig)

    def _check(self):
        check_positive(self, "steps batch_size")


@configurable("pretrain")
@dataclasses.dataclass(frozen=True)
class PretrainConfig(Settings):
    """All settings of a pre-training run.

    objective: what the model learns (`decoupled.tasks.objectives`).
    whole_words: whether training predicts all tokens of a word or none
      (`decoupled.data.masking`).
    eval_masking_rate: masking rate of held-out text, which is masked token by token,
      regardless of the masking in training, so that runs can be compared.
    earlier_phases: `PhaseConfig`s, in order; masking, sampling and batch size of the
      run are those of its last phase.
    """

    model: ModelConfig = bound(ModelConfig)
    mesh: MeshConfig = bound(MeshConfig)
    masking: MaskingConfig = bound(MaskingConfig)
    sampling: SamplingConfig = bound(SamplingConfig)
    optimizer: OptimizerConfig = bound(OptimizerConfig)
    schedule: ScheduleConfig = bound(ScheduleConfig)
    training: TrainingConfig = bound(TrainingConfig)
    objective: str = "mlm"
    whole_words: bool = False
    eval_masking_rate: float = 0.15
    earlier_phases: tuple = ()

    def _check(self):
        check_positive(self, "eval_masking_rate")
        check_rates(self, "eval_masking_rate", closed=True)
        self._check_phases()
        for masking in (self.masking, *(p.masking for p in self.earlier_phases)):
            self._check_length(masking)
            self._check_predictions(masking)

    def _check_phases(self):
        name = where(self, "earlier_phases")
        if not all(isinstance(phase, PhaseConfig) for phase in self.earlier_phases):
            raise UserError(
                f"{name}: {self.earlier_phases!r} are no phases; give "
                "(@first/PhaseConfig(), ...), or () for none"
            )
        steps = sum(phase.steps for phase in self.earlier_phases)
        if steps >= self.schedule.train_steps:
            raise UserError(
                f"{name}: they have {steps} steps, which leaves none of ScheduleConfig."
                f"train_steps = {self.schedule.train_steps} to the last phase"
            )

    def _check_length(self, masking):
        if masking.sequence_length > self.model.max_positions:
            raise UserError(
                f"MaskingConfig.sequence_length: {masking.sequence_length} is more "
                f"than ModelConfig.max_positions = {self.model.max_positions}"
            )

    def _check_predictions(self, masking):
        for rate in (masking.masking_rate, self.eval_masking_rate):
            count = round(rate * (masking.sequence_length - 2))
            if count > masking.max_predictions:
                raise UserError(
                    f"MaskingConfig.max_predictions: {masking.max_predictions} are "
                    f"fewer than the {count} tokens that a masking rate of {rate} "
                    f"predicts of {masking.sequence_length}; give {count} or more"
                )

    @property
    def eval_masking(self) -> MaskingConfig:
        return dataclasses.replace(self.masking, masking_rate=self.eval_masking_rate)

    @property
    def phases(self) -> list["Phase"]:
        """All phases; one if the run has no earlier phases."""
        phases, step = [], 0
        for number, phase in enumerate(self.earlier_phases):
            config = dataclasses.replace(
                self,
                masking=phase.masking,
                sampling=phase.sampling,
                training=dataclasses.replace(
                    self.training, batch_size=phase.batch_size
                ),
                earlier_phases=(),
            )
            phases.append(Phase(number, step, step + phase.steps, config))
            step += phase.steps
        config = self
        if self.earlier_phases:
            config = dataclasses.replace(self, earlier_phases=())
        return [*phases, Phase(len(phases), step, self.schedule.train_steps, config)]


class Phase(NamedTuple):
    """Steps [first, last) of a run, and their settings, without earlier phases."""

    number: int
    first: int
    last: int
    config: PretrainConfig

    @property
    def sequences(self) -> int:
        return (self.last - self.first) * self.config.training.batch_size
