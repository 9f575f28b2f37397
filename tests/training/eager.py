"""Pre-training once more, from the definitions, with the network of `Reference`.

Independent of the package: only names of variables and fields of the configs are
shared. Gradients by `tf.GradientTape`.
"""

import fnmatch
import math

import numpy as np

from decoupled.core.release import tf
from tests.exports.reference import Reference
from tests.helpers import adamw_step


def _rate(peak, schedule, step):
    """Linear warm-up from 0, then linear decay to 0."""
    if step < schedule.warmup_steps:
        return peak * step / schedule.warmup_steps
    if schedule.decay == "constant":
        return peak
    steps_left = schedule.train_steps - step
    return peak * steps_left / (schedule.train_steps - schedule.warmup_steps)


def _is_decayed(name):
    return name.split("/")[-1] not in ("bias", "output_bias", "gamma", "beta")


def train(model, optimizer, schedule, weights, batches, frozen=()):
    """AdamW with clipping by global norm.

    Args:
      model, optimizer, schedule: configs.
      weights: name -> initial array. batches: one dict of features per step.
      frozen: names of variables that stay as they are.

    Returns:
      (name -> float64 array, slots included; losses; gradient norms).
    """
    x = {name: np.array(value, np.float64) for name, value in weights.items()}
    names = [name for name in x if name not in frozen]
    multipliers = {
        name: multiplier
        for pattern, multiplier in optimizer.rates.items()
        for name in fnmatch.filter(names, pattern)
    }
    m, v = ({name: np.zeros_like(x[name]) for name in names} for _ in range(2))
    losses, norms = [], []
    for step, batch in enumerate(batches):
        tensors = {name: tf.constant(value) for name, value in x.items()}
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            token_weights = batch["masked_lm_weights"].astype(np.float64)
            token_losses = Reference(model, tensors).losses(batch)
            loss = tf.reduce_sum(token_losses * token_weights) / token_weights.sum()
        gradients = tape.gradient(loss, {name: tensors[name] for name in names})
        g = {n: tf.convert_to_tensor(value).numpy() for n, value in gradients.items()}
        norm = math.sqrt(sum((value**2).sum() for value in g.values()))
        scale = min(1.0, optimizer.clip_norm / norm) if optimizer.clip_norm else 1.0
        rate = _rate(optimizer.learning_rate, schedule, step)
        losses.append(float(loss))
        norms.append(norm)
        for name in names:
            x[name], m[name], v[name] = adamw_step(
                x[name], m[name], v[name], g[name] * scale, step + 1,
                rate * multipliers.get(name, 1),
                weight_decay=optimizer.weight_decay if _is_decayed(name) else 0.0,
                beta1=optimizer.beta1, beta2=optimizer.beta2, epsilon=optimizer.epsilon,
            )  # fmt: skip
    for name in names:
        x |= {f"{name}/adam_m": m[name], f"{name}/adam_v": v[name]}
    return x, losses, norms
