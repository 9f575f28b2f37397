"""TPUEstimator around a model_fn, and the loop that a command runs."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from decoupled.configs import Phase
from decoupled.core.compat import estimator, tf
from decoupled.core.errors import Interrupted, Terminated, UserError
from decoupled.ops.kernels import compile_first_quietly
from decoupled.training import hooks, tpu
from decoupled.training.checkpoints import (
    checkpoint_step,
    find_checkpoint,
    latest_complete,
    remove_unfinished,
)
from decoupled.training.mesh import session_config
from decoupled.training.model_fn import (
    PredictionSpec,
    RunSpec,
    make_model_fn,
)
from decoupled.training.network import Network, TrainingGraph

_SHUTDOWN_MODE = "TF_TPU_GRACEFUL_SHUTDOWN_MODE"


def make_estimator(
    graph: TrainingGraph | Network, run: RunSpec | PredictionSpec
) -> estimator.tpu.TPUEstimator:
    """The TPUEstimator of a run, on CPUs or GPUs or on the run's TPU.

    Args:
      graph, run: what it computes and where: a `TrainingGraph` and a `RunSpec` to
        train, a `Network` and a `PredictionSpec` to predict.
    """
    tf.logging.set_verbosity(tf.logging.ERROR)
    if run.tpu is None:
        compile_first_quietly()
    if isinstance(run, RunSpec):
        network, config = graph.network, run.training
        batch_size, eval_batch_size = config.batch_size, config.eval_batch_size
        seed, loop = config.seed, config.iterations_per_loop
    else:
        network, seed, loop = graph, None, 1
        # TPUEstimator requires a training batch size even if nothing is trained.
        batch_size = eval_batch_size = run.batch_size
    run_config = estimator.tpu.RunConfig(
        model_dir=run.model_dir,
        tf_random_seed=seed,
        **_session(network.mesh, run),
        # Our own hooks save and log; a second saver would save untrained masters.
        save_checkpoints_steps=None,
        save_checkpoints_secs=None,
        save_summary_steps=0,
        log_step_count_steps=None,
        tpu_config=tpu.tpu_config(run.tpu, loop),
    )
    return estimator.tpu.TPUEstimator(
        model_fn=make_model_fn(graph, run),
        config=run_config,
        use_tpu=run.tpu is not None,
        train_batch_size=batch_size,
        eval_batch_size=eval_batch_size,
        predict_batch_size=eval_batch_size,
    )


def _session(mesh, spec):
    """The session's settings and, for a cluster or a TPU, its address."""
    if spec.tpu is not None:
        return {
            "session_config": tpu.session_config(),
            "cluster": tpu.resolver(spec.tpu),
        }
    if spec.cluster is None:
        return {"session_config": session_config(mesh)}
    return {
        "session_config": spec.cluster.session_config(),
        "master": spec.cluster.master,
        "evaluation_master": spec.cluster.master,
    }


@contextlib.contextmanager
def _tpu_program(spec):
    """Settings of this process under which TPUEstimator can run on a TPU.

    1. Control flow of TensorFlow 1. Otherwise the training loop is a functional While
       whose body is a graph of its own. `control_dependencies(None)`, with which
       Mesh-TensorFlow leaves the program, does not leave that graph: slices and their
       copies would lie in the body, where no hook can run them. The environment
       variable TF_ENABLE_CONTROL_FLOW_V2 does not help, because TensorFlow reads it
       only when it is imported.
    2. No GracefulShutdownHook. It saves the variables of the hosts, which are older
       than the slices that the cores train (`hooks.SaveCheckpoints` copies them first).
    """
    if spec.tpu is None:
        yield
        return
    enabled = tf.control_flow_v2_enabled()
    shutdown_mode = os.environ.get(_SHUTDOWN_MODE)
    tf.disable_control_flow_v2()
    os.environ[_SHUTDOWN_MODE] = ""
    try:
        yield
    finally:
        if enabled:
            tf.enable_control_flow_v2()
        del os.environ[_SHUTDOWN_MODE]
        if shutdown_mode is not None:
            os.environ[_SHUTDOWN_MODE] = shutdown_mode


def train(
    graph: TrainingGraph,
    run: RunSpec,
    input_fn_from: Callable[[int], Callable],
    every_steps: int = 0,
    then: Callable[[], None] | None = None,
    phase: Phase | None = None,
) -> int:
    """Trains to the end of the schedule, resuming where the folder's run stopped.

    Args:
      graph, run: what is trained and where.
      input_fn_from: step -> input_fn whose first batch is that step's.
      every_steps, then: `then` is called every `every_steps` steps (0: never), but not
        after the last step of the schedule.
      phase: training stops at its end; None trains to the end of the schedule.

    Returns:
      The step reached.

    Raises:
      Terminated: SIGTERM came, perhaps in the last step; the checkpoint is saved.
      Interrupted: Ctrl-C was pressed; the checkpoint is saved.
      UserError: loss or gradient became infinite or NaN.
    """
    remove_unfinished(run.model_dir)
    last = phase.last if phase else graph.schedule.train_steps
    step = _announce(graph, run, phase.first if phase else 0)
    while step < last:
        if step:
            run = run._replace(init_checkpoint=None)
        end = last
        if every_steps:
            end = min(end, (step // every_steps + 1) * every_steps)
        try:
            with _tpu_program(run):
                made = make_estimator(graph, run)
                made.train(input_fn_from(step), max_steps=end)
        except (estimator.NanLossDuringTrainingError, tf.errors.OpError) as error:
            message = tpu.divergence(error)
            if message is None:
                raise
            raise UserError(hooks.diverged(message)) from error
        finally:
            run.stop.restore()
        step = checkpoint_step(latest_complete(run.model_dir))
        if run.stop.received == signal.SIGINT:
            raise Interrupted(f"Ctrl-C: saved at step {step}")
        if run.stop.received is not None:
            # Also after the last step: an evaluation could take longer than the time
            # left before SIGKILL. The same command, run again, begins with it.
            place = ", the last" if step >= graph.schedule.train_steps else ""
            raise Terminated(
                f"SIGTERM: saved at step {step}{place}; run again to go on"
            )
        at_end = step >= graph.schedule.train_steps
        if then is not None and every_steps and not step % every_steps and not at_end:
            then()
    return step


def _announce(graph, run, first):
    """Says what the run starts from, in a phase from step `first`; returns its step."""
    checkpoint = latest_complete(run.model_dir)
    step = checkpoint_step(checkpoint)
    if step >= graph.schedule.train_steps:
        run.say(f"{run.model_dir}: complete at step {step}; nothing to train")
    elif checkpoint is not None:
        seen = (step - first) * run.training.batch_size
        of = " of this phase" if first else ""
        run.say(f"resuming from {checkpoint} at step {step}, {seen} examples{of} seen")
    elif run.init_checkpoint is None:
        run.say("starting from initial weights")
    return step


def predict(
    network: Network, spec: PredictionSpec, input_fn: Callable
) -> Iterator[dict]:
    """Predictions of the newest checkpoint, one dict of arrays per example.

    Args:
      network, spec: what predicts and where.
      input_fn: gives the data set once.
    """
    # Not the list in the folder: only `find_checkpoint` stays inside the folder.
    checkpoint = find_checkpoint(spec.model_dir)
    estimator_of_spec = make_estimator(network, spec)
    rows = estimator_of_spec.predict(input_fn, checkpoint_path=checkpoint)
    with contextlib.closing(rows):
        while True:
            # Only while TensorFlow runs, not while the caller uses a row.
            with _tpu_program(spec):
                row = next(rows, None)
            if row is None:
                return
            yield row
