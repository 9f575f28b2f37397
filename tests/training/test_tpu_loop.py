"""TPUEstimator's own loop, end to end, on a slice of one core that is this CPU."""

import contextlib
import dataclasses
import os
import signal
import types

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.configs.hardware import HOST
from decoupled.core.compat import tf
from decoupled.core.errors import Interrupted, UserError
from decoupled.training.bookkeeping import StopOnSignal
from decoupled.training.events import event_files, read_file, read_scalars
from decoupled.training.graph import build_step
from decoupled.training.loop import predict
from decoupled.training.tpu import session_config
from tests.helpers import adamw, masked_lm_features, tiny_model
from tests.training.described_tpu import one_core
from tests.training.runs import (
    BODY,
    ONE_DEVICE,
    SMALL,
    checkpoint_names,
    checkpoint_values,
    graph_config,
    largest_difference,
    run_spec,
    said,
    train_run,
)

ONE_CORE = MeshConfig(
    "data:1;model:1", "batch:data;vocab:model;heads:model;intermediate:model"
)
MODEL = tiny_model(hidden_dropout=0.1, attention_dropout=0.1, **SMALL)


@pytest.fixture
def tpu():
    with one_core() as address:
        yield address


def core_config(**changes):
    """The head alone is trained: these tests are about the loop around a model."""
    fields = {"mesh": ONE_CORE, "model": MODEL, "frozen": BODY}
    fields["iterations_per_loop"] = 4
    return graph_config(**{**fields, **changes})


@contextlib.contextmanager
def handler_of_sigint(handler):
    """Sets the handler that a run finds; puts the test's own one back."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _CtrlC(StopOnSignal):
    """Ctrl-C is pressed during the second loop, of the steps up to 8.

    `installed`: the handlers of Ctrl-C, the last of them while the last step is saved.
    """

    def __init__(self):
        super().__init__()
        self.installed, self._loops = [], 0

    def install(self):
        super().install()
        self.installed.append(signal.getsignal(signal.SIGINT))

    def after_steps(self):
        self._loops += 1
        if self._loops == 2:
            # Where nothing catches Ctrl-C, it would end the test's own process.
            assert signal.getsignal(signal.SIGINT) != signal.SIG_DFL
            os.kill(os.getpid(), signal.SIGINT)
        return super().after_steps()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Folder and spec of 20 steps in loops of 4, with dropout and two microbatches.

    Ctrl-C is pressed, and ignored.
    """
    spec = run_spec(tmp_path_factory.mktemp("run"))
    with one_core() as address, handler_of_sigint(signal.SIG_IGN):
        spec = spec._replace(hardware=address, stop=_CtrlC())
        train_run(core_config(gradient_accumulation=2), spec)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return spec


@pytest.fixture(scope="module")
def trained_in_steps(tmp_path_factory):
    """Folder of the same run on the host, a step at a time."""
    spec = run_spec(tmp_path_factory.mktemp("steps"))
    train_run(core_config(mesh=ONE_DEVICE, gradient_accumulation=2), spec)
    return spec.model_dir


def test_a_run_in_loops_trains_what_a_run_of_steps_trains(trained, trained_in_steps):
    in_loops, expected = map(checkpoint_values, (trained.model_dir, trained_in_steps))
    assert largest_difference(in_loops, expected)[0] < 2e-6


def test_progress_is_said_and_saved_after_whole_loops(trained):
    steps = [line.split("/")[0] for line in said(trained)[1:]]
    assert steps == ["step 4", "step 8", "step 12", "step 16", "step 20"]
    # Step 10 lies within a loop; its checkpoint comes at the loop's end.
    assert checkpoint_names(trained.model_dir) == [12, 20]


def test_the_host_writes_every_step_under_its_own_number(trained, trained_in_steps):
    losses = read_scalars(trained.model_dir, "loss")
    expected = read_scalars(trained_in_steps, "loss")
    assert list(losses) == list(expected) == list(range(1, 21))
    np.testing.assert_allclose([*losses.values()], [*expected.values()], rtol=1e-5)


def test_ctrl_c_that_is_ignored_stays_ignored_on_a_tpu(trained):
    """As in a job that nohup or a script started in the background."""
    assert checkpoint_names(trained.model_dir)[-1] == 20
    assert trained.stop.installed[-1] == signal.SIG_IGN


@pytest.mark.parametrize(
    "before, after", [(0, 128), pytest.param(128, 0, marks=pytest.mark.slow)]
)
def test_a_run_that_ctrl_c_ended_goes_on_to_the_same_weights(
    trained, tpu, before, after, tmp_path, capfd
):
    """TPUEstimator's own hook sets SIGINT to its default before every loop.

    Whether slices are stacked or not: checkpoints hold every variable by its name.
    """

    def stacking(mib):
        mesh = dataclasses.replace(ONE_CORE, stack_mib=mib)
        return core_config(mesh=mesh, gradient_accumulation=2)

    spec, stop = run_spec(tmp_path)._replace(hardware=tpu), _CtrlC()
    with handler_of_sigint(signal.default_int_handler):
        with pytest.raises(Interrupted, match="^Ctrl-C: saved at step 8$"):
            train_run(stacking(before), spec._replace(stop=stop))
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    assert checkpoint_names(tmp_path) == [8]
    assert "Ctrl-C: saving after this step (a TPU: this loop)" in capfd.readouterr().err
    # A second one would have ended the process at once.
    assert stop.installed[-1] == signal.SIG_DFL
    resumed = train_run(stacking(after), spec)
    assert largest_difference(resumed, checkpoint_values(trained.model_dir))[0] < 1e-7
    # By which TensorBoard knows the steps that a kill would have lost.
    files = event_files(spec.model_dir)
    assert [read_file(path, "loss").start for path in files] == [1, 9]


def test_predictions_are_those_of_the_host(trained, tmp_path):
    features = masked_lm_features()
    here = core_config(mesh=ONE_DEVICE).network

    def three_batches(params=None):
        return tf.data.Dataset.from_tensors(features).repeat(3)

    with one_core():
        network, spec = core_config().network, trained
        rows = list(predict(network, spec, 8, three_batches))
    local = trained._replace(hardware=HOST)
    expected = list(predict(here, local, 8, three_batches))
    assert len(rows) == len(expected) == 24
    for name in expected[0]:
        np.testing.assert_allclose(
            [row[name] for row in rows], [row[name] for row in expected], rtol=1e-5
        )


def test_a_loop_ends_that_waits_for_a_host_which_has_ended_the_run(
    tpu, tmp_path, monkeypatch
):
    """The outfeed holds 8 steps. The host ends at the second step of a loop of 20."""
    without_pause = types.SimpleNamespace(sleep=lambda seconds: None)
    pausing = "tensorflow_estimator.python.estimator.tpu.error_handling.time"
    monkeypatch.setattr(pausing, without_pause)
    session = session_config()
    # A loop that waits for ever fails here, as nothing else could end it.
    session.operation_timeout_in_ms = 60_000
    monkeypatch.setattr("decoupled.training.tpu.session_config", lambda: session)
    spec = run_spec(tmp_path)._replace(hardware=tpu)
    bad = core_config(optimizer=adamw(learning_rate=1e30), iterations_per_loop=20)
    with pytest.raises(UserError, match="training: .* at step"):
        train_run(bad, spec)
    assert checkpoint_names(tmp_path) == []


@pytest.mark.parametrize(
    "raised_first",
    [
        # The end of a run without another error: also in the test above.
        pytest.param(None, marks=pytest.mark.slow),
        "Attempted to use a closed Session.",
    ],
)
def test_a_gradient_that_is_infinite_ends_the_run_before_it_is_saved(
    raised_first, tpu, tmp_path, monkeypatch
):
    """The loss may be finite still, and the host's own check may come too late.

    The thread of the outfeed may then use the session that is closed.
    """
    if raised_first:

        def raise_errors(rendezvous, timeout_sec=0):
            raise RuntimeError(raised_first)

        handling = "tensorflow_estimator.python.estimator.tpu.error_handling"
        monkeypatch.setattr(f"{handling}.ErrorRendezvous.raise_errors", raise_errors)

    def infinite(*arguments):
        lowered = build_step(*arguments)
        scalars = {**lowered.scalars, "gradient_norm": tf.constant(np.inf)}
        return lowered._replace(scalars=scalars)

    monkeypatch.setattr("decoupled.training.loop.build_step", infinite)
    monkeypatch.setattr("decoupled.training.tpu.host_call", lambda *_: None)
    spec = run_spec(tmp_path)._replace(hardware=tpu)
    with pytest.raises(UserError, match="loss or gradient_norm is infinite or NaN"):
        train_run(core_config(), spec)
    assert checkpoint_names(tmp_path) == []
