"""The loop in which networks are trained and predict, on the real TPUEstimator.

`train` and `predict` are what commands call. With an accelerator, they run programs of
XLA (`decoupled.training.xla.loop`). Otherwise they use, in this order: the Estimator,
its model_fn (from data to a graph, and what is restored), and the hook around each run
of its session (stop, monitor, save).
"""

import contextlib
import math
import os
import signal
from collections.abc import Callable, Iterator

import numpy as np

from decoupled.configs import Phase
from decoupled.core import gfile
from decoupled.core.compat import estimator, mtf, tf
from decoupled.core.errors import Interrupted, Terminated, UserError, WorkerLost
from decoupled.ops.kernels import compile_first_quietly
from decoupled.ops.row_partitions import saved_variables
from decoupled.training import tpu
from decoupled.training.bookkeeping import (
    Checkpoints,
    Diverged,
    Monitor,
    Progress,
    Run,
    SessionWriter,
)
from decoupled.training.checkpoint_files import CheckpointFile
from decoupled.training.checkpoints import (
    checkpoint_step,
    find_checkpoint,
    latest_complete,
    plan_start,
    remove_unfinished,
)
from decoupled.training.graph import (
    LoweredStep,
    Network,
    TrainingGraph,
    build_predictions,
    build_step,
    logged_scalars,
)
from decoupled.training.mesh import session_config
from decoupled.training.partitioned_tables import start_from
from decoupled.training.xla.loop import check_devices, predict_batches, train_steps

__all__ = ["Run", "check_devices", "predict", "train"]

_SHUTDOWN_MODE = "TF_TPU_GRACEFUL_SHUTDOWN_MODE"


# ---- The loop ----------------------------------------------------------------------


def train(
    graph: TrainingGraph,
    run: Run,
    input_fn_from: Callable[[int], Callable],
    every_steps: int = 0,
    then: Callable[[], None] | None = None,
    phase: Phase | None = None,
) -> int:
    """Trains to the end of the schedule, resuming where the folder's run stopped.

    Returns the step reached.

    Args:
      input_fn_from: step -> input_fn whose first batch is that step's.
      every_steps, then: `then` is called every `every_steps` steps (0: never), but not
        after the last step of the schedule.
      phase: training stops at its end; None trains to the end of the schedule.

    Raises:
      Terminated, Interrupted: SIGTERM came, perhaps in the last step, or Ctrl-C was
        pressed; the checkpoint is saved.
    """
    remove_unfinished(run.model_dir)
    last_step = phase.last if phase else graph.schedule.train_steps
    step = _announce(graph, run, phase.first if phase else 0)
    while step < last_step:
        if step:
            # The folder's own checkpoint is restored.
            run = run._replace(init_checkpoint=None)
        end = last_step
        if every_steps:
            end = min(end, (step // every_steps + 1) * every_steps)
        trainer = None
        try:
            if run.accelerator is not None:
                train_steps(graph, run, input_fn_from(step), end)
            else:
                with _tpu_program(run):
                    trainer = _estimator(graph, run, graph.training.batch_size)
                    trainer.train(input_fn_from(step), max_steps=end)
        except Diverged as error:
            raise UserError(_why_diverged(graph, run, str(error))) from error
        # An error of NaN is a RuntimeError, too.
        except (RuntimeError, tf.errors.OpError) as error:
            errors = [error, *tpu.recorded_errors(trainer)]
            message = next(filter(None, map(tpu.divergence, errors)), None)
            if message is None:
                raise
            raise UserError(_why_diverged(graph, run, message)) from error
        finally:
            run.stop.restore()
        step = checkpoint_step(latest_complete(run.model_dir))
        if run.stop.signal_number == signal.SIGINT:
            raise Interrupted(f"Ctrl-C: saved at step {step}")
        if run.stop.signal_number is not None:
            # Also after the last step: an evaluation could take longer than the time
            # left before SIGKILL. The same command, run again, begins with it.
            note = ", the last" if step >= graph.schedule.train_steps else ""
            name = signal.Signals(run.stop.signal_number).name
            raise Terminated(f"{name}: saved at step {step}{note}; run again to go on")
        is_last = step >= graph.schedule.train_steps
        if then is not None and every_steps and not step % every_steps and not is_last:
            then()
    return step


def _why_diverged(graph, run, message):
    """The message that ends a run whose loss or gradient is infinite or NaN.

    Raises UserError if its weights were not finite before.
    """
    last_checkpoint = latest_complete(run.model_dir)
    if source := last_checkpoint or run.init_checkpoint:
        weights = CheckpointFile(source)
        for name in weights:
            weights.read_tensor(name)
    remark = "; the last checkpoint is untouched" if last_checkpoint else ""
    clip_advice = "" if graph.optimizer.clip_norm else ", or set clip_norm"
    rate = graph.optimizer.learning_rate
    return f"{message}{remark}: lower the learning rate of {rate:g}{clip_advice}"


def _announce(graph, run, first_step):
    """Says what the run starts from, in a phase from `first_step`; returns its step."""
    checkpoint = latest_complete(run.model_dir)
    step = checkpoint_step(checkpoint)
    if step >= graph.schedule.train_steps:
        run.say(f"{run.model_dir}: complete at step {step}; nothing to train")
    elif checkpoint is not None:
        count = (step - first_step) * graph.training.batch_size
        progress = f"{count} examples{' of this phase' if first_step else ''} seen"
        run.say(f"resuming from {checkpoint} at step {step}, {progress}")
    elif run.init_checkpoint is None:
        run.say("starting from initial weights")
    return step


def predict(
    network: Network,
    run: Run,
    batch_size: int,
    input_fn: Callable,
    checkpoint: str | None = None,
) -> Iterator[dict]:
    """Predictions of a checkpoint, one dict of arrays per row of a batch.

    `checkpoint` is its prefix; None is the newest of the run, whatever its list names.

    Raises:
      UserError: the model computes NaN or infinity.
    """
    checkpoint = checkpoint or find_checkpoint(run.model_dir)
    try:
        with contextlib.closing(
            _rows_of(network, run, batch_size, input_fn, checkpoint)
        ) as rows:
            for row in rows:
                if not all(np.isfinite(values).all() for values in row.values()):
                    raise UserError(
                        f"{checkpoint}: the model computes NaN or infinity; the "
                        "training diverged, choose an earlier checkpoint or lower the "
                        "learning rate"
                    )
                yield row
    except Exception as error:
        if gfile.exists(f"{checkpoint}.index"):
            raise
        raise UserError(
            f"{checkpoint}: was removed before it was read, as by a training that goes "
            "on; run the same command again"
        ) from error


def _rows_of(network, run, batch_size, input_fn, checkpoint):
    if run.accelerator is not None:
        yield from predict_batches(network, run, input_fn, checkpoint)
        return
    rows = _estimator(network, run, batch_size).predict(
        input_fn, checkpoint_path=checkpoint
    )
    with contextlib.closing(rows):
        while True:
            # Only while TensorFlow runs, not while the caller uses a row.
            with _tpu_program(run):
                row = next(rows, None)
            if row is None:
                return
            yield row


# ---- The Estimator -----------------------------------------------------------------


def _estimator(
    graph: TrainingGraph | Network, run: Run, batch_size: int
) -> estimator.tpu.TPUEstimator:
    tf.logging.set_verbosity(tf.logging.ERROR)
    if run.tpu is None:
        compile_first_quietly()
    training_graph = graph if isinstance(graph, TrainingGraph) else None
    network = training_graph.network if training_graph else graph
    loop_steps = training_graph.training.iterations_per_loop if training_graph else 1
    session_settings = {"session_config": session_config(network.mesh)}
    if run.tpu is not None:
        session_settings = {
            "session_config": tpu.session_config(),
            "cluster": tpu.resolver(run.tpu),
        }
    run_config = estimator.tpu.RunConfig(
        model_dir=run.model_dir,
        tf_random_seed=training_graph.training.seed if training_graph else None,
        **session_settings,
        # Our own hook saves and logs; a second saver would save untrained masters.
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        save_summary_steps=0,
        log_step_count_steps=None,
        tpu_config=tpu.tpu_config(run.tpu, loop_steps),
    )
    return estimator.tpu.TPUEstimator(
        model_fn=make_model_fn(graph, run),
        config=run_config,
        use_tpu=run.tpu is not None,
        train_batch_size=batch_size,
        predict_batch_size=batch_size,
    )


@contextlib.contextmanager
def _tpu_program(run):
    """Settings of this process under which TPUEstimator can run on a TPU.

    1. Control flow of TensorFlow 1. Otherwise the training loop is a functional While
       whose body is a graph of its own. `control_dependencies(None)`, with which
       Mesh-TensorFlow leaves the program, does not leave that graph: slices and their
       copies would lie in the body, where no hook can run them. The environment
       variable TF_ENABLE_CONTROL_FLOW_V2 does not help, because TensorFlow reads it
       only when it is imported.
    2. No GracefulShutdownHook. It saves the variables of the hosts, which are older
       than the slices that the cores train (`Checkpoints` copies them first).
    """
    if run.tpu is None:
        yield
        return
    has_control_flow_v2 = tf.control_flow_v2_enabled()
    shutdown_mode = os.environ.get(_SHUTDOWN_MODE)
    tf.disable_control_flow_v2()
    os.environ[_SHUTDOWN_MODE] = ""
    try:
        yield
    finally:
        if has_control_flow_v2:
            tf.enable_control_flow_v2()
        del os.environ[_SHUTDOWN_MODE]
        if shutdown_mode is not None:
            os.environ[_SHUTDOWN_MODE] = shutdown_mode


# ---- The graph ---------------------------------------------------------------------


def make_model_fn(graph: TrainingGraph | Network, run: Run) -> Callable:
    """A model_fn(features, labels, mode, params); a `Network` predicts only."""
    network = graph.network if isinstance(graph, TrainingGraph) else graph

    def model_fn(features, labels, mode, params):
        del labels
        placement = run.tpu and tpu.place(network.mesh, params["context"])
        if mode == estimator.ModeKeys.TRAIN:
            lowered = build_step(graph, features, placement)
            return _train_spec(graph, run, lowered)
        predictions, lowering = build_predictions(network, features, placement)
        restore = mtf.MtfRestoreHook(lowering)
        return estimator.tpu.TPUEstimatorSpec(
            mode, predictions=predictions, prediction_hooks=[restore, OneSession()]
        )

    return model_fn


def _train_spec(
    graph: TrainingGraph, run: Run, lowered: LoweredStep
) -> estimator.tpu.TPUEstimatorSpec:
    # Outside of a TPU's program; on CPUs this has no effect.
    with mtf.utils.outside_all_rewrites():
        variables = saved_variables()
        # The Estimator restores a checkpoint of the run's folder by itself.
        _, names = plan_start(
            run.model_dir,
            run.init_checkpoint,
            graph.network.variables,
            variables,
            run.say,
            run.drawn_names,
        )
        if names:
            start_from(run.init_checkpoint, {n: variables[n] for n in names})
    with tf.control_dependencies([lowered.update]):
        train_op = tf.assign_add(tf.train.get_global_step(), 1)
    scalars = logged_scalars(graph, lowered)
    with mtf.utils.outside_all_rewrites():
        step_hook = StepHook(graph, run, lowered, scalars)
    # Slices get their values before the first step.
    hooks = [OneSession(), mtf.MtfRestoreHook(lowered.lowering), step_hook]
    if run.tpu is not None:
        # A finite loss may have a gradient that is not. The Estimator checks the loss
        # of a training loop's last step before our hooks save a checkpoint.
        norm = lowered.scalars["gradient_norm"]
        first_step = checkpoint_step(latest_complete(run.model_dir)) + 1
        return estimator.tpu.TPUEstimatorSpec(
            estimator.ModeKeys.TRAIN,
            loss=tf.where_v2(tf.math.is_finite(norm), lowered.loss, math.nan),
            train_op=train_op,
            # `train_op` is the step after its update.
            host_call=tpu.host_call(
                run.model_dir,
                scalars,
                tf.identity(train_op),
                graph.training.log_steps,
                first_step,
            ),
            training_hooks=hooks,
        )
    # The Estimator's own check for NaN would come first and print a traceback.
    shown_loss = tf.where_v2(tf.math.is_finite(lowered.loss), lowered.loss, 0.0)
    return estimator.tpu.TPUEstimatorSpec(
        estimator.ModeKeys.TRAIN,
        loss=shown_loss,
        train_op=train_op,
        training_hooks=hooks,
        scaffold_fn=_scaffold,
    )


def _scaffold() -> tf.train.Scaffold:
    # A session looks twice whether each variable has a value. All of them are either
    # initialized or restored, and these checks were a tenth of a graph's operations.
    no_names = tf.constant([], tf.string)
    return tf.train.Scaffold(ready_op=no_names, ready_for_local_init_op=no_names)


# ---- Around each run of the session ------------------------------------------------


class OneSession(estimator.SessionRunHook):
    """Ends the run if its session is lost, instead of continuing in a new one.

    When a worker comes back, a monitored session restarts by itself from the last
    checkpoint. It would continue with the current position in the data rather than that
    of the checkpoint.
    """

    def __init__(self):
        self._sessions = 0

    def after_create_session(self, session, coord):
        self._sessions += 1
        if self._sessions > 1:
            raise WorkerLost(
                "a worker was started anew and has forgotten its part of the model; "
                "run again, what is saved is kept"
            )


class StepHook(estimator.SessionRunHook):
    """Calls what monitors, stops and saves; on a TPU, after each loop of steps."""

    def __init__(
        self,
        graph: TrainingGraph,
        run: Run,
        lowered: LoweredStep,
        scalars: dict[str, tf.Tensor],
    ):
        config, steps = graph.training, graph.schedule.train_steps
        self._stop, self._runs_loops = run.stop, run.tpu is not None
        if self._runs_loops:
            self._progress = Progress(config.batch_size, steps, run.say)
        else:
            self._progress = Monitor(
                run.model_dir, scalars, config.log_steps, config.batch_size, steps,
                run.say,
            )  # fmt: skip
        self._writer = SessionWriter(lowered.lowering)
        self._checkpoints = Checkpoints(
            run.model_dir,
            config.save_checkpoints_steps,
            config.keep_checkpoint_max,
            lambda prefix: self._writer.write(self._session, prefix),
        )

    def begin(self):
        self._stop.begin()
        self._writer.begin()

    def after_create_session(self, session, coord):
        self._session = session
        self._global_step = tf.train.get_global_step(session.graph)
        self._step = int(session.run(self._global_step))
        self._progress.begin(self._step)

    def before_run(self, run_context):
        self._stop.install()
        return estimator.SessionRunArgs(self._progress.tensors(self._step + 1))

    def after_run(self, run_context, run_values):
        """Counts the updates, without reading the step where a run is one step."""
        old_step, session = self._step, run_context.session
        if self._runs_loops:
            self._step = int(session.run(self._global_step))
        else:
            self._step += 1
        # The check for NaN comes first, so that a bad step is never saved.
        self._progress.after_steps(self._step, run_values.results)
        if self._stop.after_steps():
            run_context.request_stop()
        if self._checkpoints.is_due(old_step, self._step):
            self._checkpoints.save(self._step)

    def end(self, session):
        self._progress.end()
        self._stop.install()
        self._checkpoints.save(self._step)
