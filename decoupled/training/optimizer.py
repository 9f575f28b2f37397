"""Learning-rate schedule, gradient clipping and the optimizer."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from decoupled.configs import OptimizerConfig, ScheduleConfig
from decoupled.core.compat import mtf, tf
from decoupled.model.variables import slots
from decoupled.ops.adam import (
    AdamUpdate,
    ElementwiseAdamUpdate,
    StepScalars,
    step_scalars,
)
from decoupled.ops.gradients import Gradient, as_factored, global_norm
from decoupled.ops.meshes.simd import SimdMeshImpl


class Updates(NamedTuple):
    """What `apply_gradients` gives.

    gradient_norm: before clipping. gradients: float32, one per variable, before
      clipping. The step does not compute those whose factors the update uses: see
      `decoupled.ops.gradients`.
    """

    operations: list
    gradient_norm: mtf.Tensor
    gradients: list[mtf.Tensor]


def learning_rate(peak: float, schedule: ScheduleConfig, step: tf.Tensor) -> tf.Tensor:
    """The rate of the update that takes `step` to `step + 1`, a float32 scalar.

    Linear warm-up from 0 reaches the peak after `warmup_steps` updates. A decay begins
    at `decay_begins` and ends after `train_steps`.
    """
    step = tf.cast(step, tf.float32)
    rate = tf.constant(peak, tf.float32)
    if schedule.decay != "constant":
        decay_steps = max(schedule.train_steps - schedule.decay_begins, 1)
        share = (schedule.train_steps - step) / decay_steps
        share = tf.clip_by_value(share, 0.0, 1.0)
        if schedule.decay == "cosine":
            share = (1 - tf.cos(math.pi * share)) / 2
        elif schedule.decay == "one_minus_sqrt":
            share = 1 - tf.sqrt(1 - share)
        if schedule.final_share:
            share = schedule.final_share + (1 - schedule.final_share) * share
        rate *= share
    if schedule.warmup_steps:
        warmup_rate = peak * step / schedule.warmup_steps
        rate = tf.where_v2(step < schedule.warmup_steps, warmup_rate, rate)
    return rate


def apply_gradients(
    config: OptimizerConfig,
    gradients: list[mtf.Tensor],
    variables: list[mtf.Variable],
    decayed_names: Collection[str],
    rates: Mapping[str, float],
    rate: mtf.Tensor,
    step: mtf.Tensor,
    mesh_impl: mtf.MeshImpl,
    rounding_seed: mtf.Tensor | None = None,
) -> Updates:
    """Clips by global norm and updates every variable.

    Args:
      decayed: names of the variables that weight decay applies to.
      rates: name of a variable -> by what `rate` is multiplied, if by anything.
      step: counted from 1.
      rounding_seed: changes from step to step; needed where slices are bfloat16.
    """
    # Cast once, for the norm and for the update.
    gradients = [mtf.cast(gradient, tf.float32) for gradient in gradients]
    used_gradients = [
        _as_used(gradient, variable, mesh_impl)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]
    norm = global_norm(used_gradients)
    if config.clip_norm:
        limit = mtf.constant(norm.mesh, config.clip_norm, dtype=tf.float32)
        scale = limit / mtf.maximum(norm, limit)
    else:
        scale = mtf.constant(norm.mesh, 1.0, dtype=tf.float32)
    decayed_names = decayed_names if config.weight_decay else ()
    numbers = _Numbers(norm, scale, rate, rates, step, rounding_seed, decayed_names)
    # The variables that are updated together.
    on_tpu = isinstance(mesh_impl, SimdMeshImpl)
    stacks = mesh_impl.stacks(variables) if on_tpu else None
    operations = _adamw(config, used_gradients, variables, numbers, stacks)
    return Updates(operations, norm, gradients)


class _Numbers(NamedTuple):
    """Scalars of a step, and the names of the variables with weight decay.

    norm: of the gradients. scale: by which clipping multiplies them. For the others see
    `apply_gradients`.
    """

    norm: mtf.Tensor
    scale: mtf.Tensor
    rate: mtf.Tensor
    rates: Mapping[str, float]
    step: mtf.Tensor
    rounding_seed: mtf.Tensor | None
    decayed_names: Collection[str]

    def multiplier(self, variable: mtf.Variable) -> float:
        return self.rates.get(variable.name, 1)

    def rate_by_multiplier(
        self, variables: Sequence[mtf.Variable]
    ) -> dict[float, mtf.Tensor]:
        multipliers = dict.fromkeys(map(self.multiplier, variables))
        return {m: self.rate if m == 1 else self.rate * m for m in multipliers}


def _as_used(
    gradient: mtf.Tensor, variable: mtf.Variable, mesh_impl: mtf.MeshImpl
) -> Gradient:
    if _is_rounded(variable):
        return gradient
    return as_factored(gradient, mesh_impl) or gradient


def _adamw(
    config: OptimizerConfig,
    gradients: Sequence[Gradient],
    variables: Sequence[mtf.Variable],
    numbers: _Numbers,
    stacks: Sequence[list[mtf.Variable]] | None,
) -> list[mtf.Operation]:
    def scalars_of(rate: mtf.Tensor) -> StepScalars:
        return step_scalars(
            rate,
            numbers.step,
            weight_decay=config.weight_decay,
            beta1=config.beta1,
            beta2=config.beta2,
            epsilon=config.epsilon,
        )

    def moments_of(variable: mtf.Variable) -> list[mtf.Variable]:
        return [_slot(variable, name) for name in slots(variable.name)]

    if stacks is not None:
        gradient_of = dict(zip(variables, gradients, strict=True))
        scalars = scalars_of(numbers.rate)
        return [
            ElementwiseAdamUpdate(
                members,
                *zip(*map(moments_of, members), strict=True),
                [gradient_of[v] for v in members],
                numbers.scale,
                scalars,
                [v.name in numbers.decayed_names for v in members],
                [numbers.multiplier(v) for v in members],
                seed=numbers.rounding_seed,
            )
            for members in stacks
        ]
    operations, last_update = [], None
    rates = numbers.rate_by_multiplier(variables)
    scalars_by_multiplier = {m: scalars_of(rate) for m, rate in rates.items()}
    for gradient, variable in zip(gradients, variables, strict=True):
        scalars = scalars_by_multiplier[numbers.multiplier(variable)]
        is_decayed = variable.name in numbers.decayed_names
        operands = [variable, *moments_of(variable), gradient]
        if _is_rounded(variable):
            # A chain: the temporaries of one variable at a time are in memory.
            seed = numbers.rounding_seed
            last_update = ElementwiseAdamUpdate(
                *([x] for x in operands),
                numbers.scale,
                scalars,
                [is_decayed],
                [1],
                seed=seed,
                previous=last_update,
            )
            operations.append(last_update)
        else:
            # Before the norm, a factored gradient still reads what is updated here.
            is_whole = isinstance(gradient, mtf.Tensor)
            signal = None if is_whole else numbers.norm
            operations.append(
                AdamUpdate(*operands, numbers.scale, scalars, is_decayed, signal=signal)
            )
    return operations


def _is_rounded(variable: mtf.Variable) -> bool:
    return variable.slice_dtype != tf.float32


def _slot(variable: mtf.Variable, name: str) -> mtf.Variable:
    return mtf.get_variable(
        variable.mesh,
        name,
        variable.shape,
        initializer=_zeros,
        trainable=False,
    ).operation


def _zeros(shape, dtype=tf.float32, partition_info=None):
    """Zeros whose buffer a variable takes over; it would copy those of `tf.zeros`."""
    del partition_info
    return tf.raw_ops.Empty(shape=shape, dtype=dtype, init=True)
