"""The Estimator's model_fn, the same for every task and mode."""

from collections.abc import Callable
from typing import NamedTuple

from decoupled.compat import estimator, mtf, tf
from decoupled.configs import TrainingConfig
from decoupled.training import hooks
from decoupled.training.checkpoints import (
    Report,
    check_resumable,
    initialize_from,
)
from decoupled.training.graph import GraphConfig, build_graph


class RunSpec(NamedTuple):
    """A run beside its graph.

    model_dir: where checkpoints and events go. training: bookkeeping.
    init_checkpoint: prefix that a new run starts from, or None.
    say: prints a line. stop: the SIGTERM hook.
    """

    model_dir: str
    training: TrainingConfig
    init_checkpoint: str | None
    say: Callable[[str], None]
    stop: hooks.StopOnSignal


def make_model_fn(graph: GraphConfig, run: RunSpec) -> Callable:
    """A model_fn(features, labels, mode, params) for TPUEstimator."""

    def model_fn(features, labels, mode, params):
        del labels, params
        training = mode == estimator.ModeKeys.TRAIN
        lowered = build_graph(graph, features, training)
        if training:
            return _train_spec(graph, run, lowered)
        restore = [mtf.MtfRestoreHook(lowered.lowering)]
        if mode == estimator.ModeKeys.EVAL:
            return _eval_spec(graph, lowered, restore)
        return estimator.tpu.TPUEstimatorSpec(
            mode, predictions=lowered.predictions, prediction_hooks=restore
        )

    return model_fn


def _train_spec(graph, run, lowered):
    if run.init_checkpoint is not None:
        report: Report = initialize_from(run.init_checkpoint)
        for line in report.lines(run.init_checkpoint):
            run.say(line)
    checkpoint = tf.train.latest_checkpoint(run.model_dir)
    if checkpoint is not None:
        check_resumable(checkpoint)
    with tf.control_dependencies([lowered.update]):
        train_op = tf.assign_add(tf.train.get_global_step(), 1)
    sums = lowered.sums
    metrics = {
        name: sums[numerator] / tf.maximum(sums[denominator], 1.0)
        for name, (numerator, denominator) in graph.task.metrics.items()
        if "loss" not in name
    }
    config = run.training
    metronome = hooks.Metronome(
        run.model_dir,
        {"loss": lowered.loss, **metrics, **lowered.scalars},
        config.log_steps,
        config.batch_size,
        graph.schedule.train_steps,
        run.say,
    )
    # The check for NaN comes before the saver, so that a bad step is never saved.
    training_hooks = [
        mtf.MtfRestoreHook(lowered.lowering),
        metronome,
        run.stop,
        hooks.SaveCheckpoints(
            run.model_dir,
            lowered.lowering,
            config.save_checkpoints_steps,
            config.keep_checkpoint_max,
        ),
    ]
    # The Estimator has a check of its own, which would come first, with a traceback.
    shown = tf.where_v2(tf.math.is_finite(lowered.loss), lowered.loss, 0.0)
    return estimator.tpu.TPUEstimatorSpec(
        estimator.ModeKeys.TRAIN,
        loss=shown,
        train_op=train_op,
        training_hooks=training_hooks,
    )


def _eval_spec(graph, lowered, evaluation_hooks):
    def metric_fn(**sums):
        return {
            name: _quotient(sums[numerator], sums[denominator], name)
            for name, (numerator, denominator) in graph.task.metrics.items()
        }

    return estimator.tpu.TPUEstimatorSpec(
        estimator.ModeKeys.EVAL,
        loss=lowered.loss,
        eval_metrics=(metric_fn, dict(lowered.sums)),
        evaluation_hooks=evaluation_hooks,
    )


def _quotient(numerator, denominator, name):
    """Sum of numerators over sum of denominators, as a streaming metric."""
    values = tf.math.divide_no_nan(numerator, denominator)
    return tf.metrics.mean(values, weights=denominator, name=name)
