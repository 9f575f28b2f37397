"""The Estimator's model_fn, the same for every task and mode."""

import contextlib
import gc
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

from decoupled.configs import TrainingConfig
from decoupled.core.compat import estimator, mtf, tf
from decoupled.training import hooks
from decoupled.training.checkpoints import (
    Report,
    check_resumable,
    checkpoint_step,
    initialize_from,
    latest_complete,
)
from decoupled.training.cluster import Cluster, OneSession
from decoupled.training.events import PERCENT
from decoupled.training.graph import Lowered, build_predictions, build_step
from decoupled.training.network import Network, TrainingGraph
from decoupled.training.tpu import TpuAddress, host_call, place


class PredictionSpec(NamedTuple):
    """Where a network predicts.

    model_dir: of the checkpoints. batch_size: rows that run together.
    cluster, tpu: see `RunSpec`.
    """

    model_dir: str
    batch_size: int
    cluster: Cluster | None = None
    tpu: TpuAddress | None = None

    @property
    def feeds_itself(self) -> bool:
        """Whether Python code of this process may make the batches.

        "local" is a TPU of this host, whose session runs in this process. Any other TPU
        is reached through workers that run no Python.
        """
        return self.tpu is None or self.tpu.name == "local"

    @property
    def recorded_batches(self) -> str | None:
        """The file through which batches reach the TPU; None if none is needed."""
        return None if self.feeds_itself else f"{self.model_dir}/batches/evaluation"


class RunSpec(NamedTuple):
    """Where a graph is trained, and its bookkeeping.

    model_dir: where checkpoints and events go. training: bookkeeping.
    init_checkpoint: prefix that a new run starts from, or None.
    say: prints a line. stop: ends training on a signal.
    cluster: the processes that the mesh spans, or None for this one.
    tpu: the TPU that the run is on, or None.
    """

    model_dir: str
    training: TrainingConfig
    init_checkpoint: str | None
    say: Callable[[str], None]
    stop: hooks.StopOnSignal
    cluster: Cluster | None = None
    tpu: TpuAddress | None = None

    @property
    def prediction(self) -> PredictionSpec:
        """The `PredictionSpec` that evaluates the trained network."""
        batch_size = self.training.eval_batch_size
        return PredictionSpec(self.model_dir, batch_size, self.cluster, self.tpu)

    @property
    def recorded_batches(self) -> str | None:
        """The folder through which fine-tuning's batches reach the TPU, or None."""
        is_fed = self.prediction.feeds_itself
        return None if is_fed else f"{self.model_dir}/batches/training"


def make_model_fn(
    graph: TrainingGraph | Network, run: RunSpec | PredictionSpec
) -> Callable:
    """A model_fn(features, labels, mode, params) for TPUEstimator.

    Args:
      graph, run: what is computed and where. A `Network` and a `PredictionSpec` do not
        support the mode TRAIN.
    """
    network = graph.network if isinstance(graph, TrainingGraph) else graph

    def model_fn(features, labels, mode, params):
        del labels
        placement = _placement(network, run, params)
        with _without_garbage_collection():
            if mode == estimator.ModeKeys.TRAIN:
                lowered = build_step(graph, features, placement)
                return _train_spec(graph, run, lowered)
            predictions, lowering = build_predictions(network, features, placement)
        return estimator.tpu.TPUEstimatorSpec(
            mode, predictions=predictions, prediction_hooks=_restore(lowering)
        )

    return model_fn


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pauses Python's garbage collector while a graph is built.

    All objects of a graph stay alive, but the collector scans them again and again.
    This took some 8% of the CPU time of building the graph of a base model with seven
    lengths.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _restore(lowering: mtf.Lowering) -> list[estimator.SessionRunHook]:
    return [mtf.MtfRestoreHook(lowering), OneSession()]


def _placement(network, run, params):
    if run.tpu is not None:
        return place(network.mesh, params["context"])
    return run.cluster.placement() if run.cluster else None


def _train_spec(
    graph: TrainingGraph, run: RunSpec, lowered: Lowered
) -> estimator.tpu.TPUEstimatorSpec:
    # Outside of a TPU's program; on CPUs and GPUs this has no effect.
    with mtf.utils.outside_all_rewrites():
        _initialize(run, graph.network.variables)
    with tf.control_dependencies([lowered.update]):
        train_op = tf.assign_add(tf.train.get_global_step(), 1)
    sums = lowered.sums
    metrics = {
        # The unit is in the name: earlier versions logged shares.
        f"{name}{PERCENT}": 100.0 * sums[numerator] / tf.maximum(sums[denominator], 1.0)
        for name, (numerator, denominator) in graph.network.task.metrics.items()
    }
    scalars = {"loss": lowered.loss, **metrics, **lowered.scalars}
    with mtf.utils.outside_all_rewrites():
        training_hooks = _training_hooks(graph, run, lowered, scalars)
    if run.tpu is not None:
        # A finite loss may have a gradient that is not. The Estimator checks the loss
        # of a training loop's last step before our hooks save a checkpoint.
        norm = lowered.scalars["gradient_norm"]
        start = checkpoint_step(latest_complete(run.model_dir)) + 1
        return estimator.tpu.TPUEstimatorSpec(
            estimator.ModeKeys.TRAIN,
            loss=tf.where_v2(tf.math.is_finite(norm), lowered.loss, math.nan),
            train_op=train_op,
            # `train_op` is the step after its update.
            host_call=host_call(
                run.model_dir,
                scalars,
                tf.identity(train_op),
                run.training.log_steps,
                start,
            ),
            training_hooks=training_hooks,
        )
    # The Estimator's own check for NaN would come first and print a traceback.
    shown = tf.where_v2(tf.math.is_finite(lowered.loss), lowered.loss, 0.0)
    return estimator.tpu.TPUEstimatorSpec(
        estimator.ModeKeys.TRAIN,
        loss=shown,
        train_op=train_op,
        training_hooks=training_hooks,
    )


def _initialize(run, variables):
    if run.init_checkpoint is not None:
        report: Report = initialize_from(run.init_checkpoint, variables)
        for line in report.lines(run.init_checkpoint):
            run.say(line)
    checkpoint = latest_complete(run.model_dir)
    if checkpoint is not None:
        check_resumable(checkpoint)


def _training_hooks(
    graph: TrainingGraph,
    run: RunSpec,
    lowered: Lowered,
    scalars: dict[str, tf.Tensor],
) -> list[estimator.SessionRunHook]:
    config, steps = run.training, graph.schedule.train_steps
    if run.tpu is None:
        progress = hooks.TrainingMonitor(
            run.model_dir, scalars, config.log_steps, config.batch_size, steps, run.say
        )
    else:
        progress = hooks.LoopProgress(config.batch_size, steps, run.say)
    saver = hooks.SaveCheckpoints(
        run.model_dir,
        lowered.lowering,
        config.save_checkpoints_steps,
        config.keep_checkpoint_max,
        loops=run.tpu is not None,
    )
    restore = mtf.MtfRestoreHook(lowered.lowering)
    # The check for NaN comes before the saver, so that a bad step is never saved.
    return [OneSession(), restore, progress, run.stop, saver]
