"""What happens around a step: saving, logging, stopping on NaN and on signals."""

import os
import pathlib
import resource
import shutil
import signal

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.core.errors import Interrupted, Terminated, UserError
from decoupled.tasks.mlm import MaskedLM
from decoupled.training import bookkeeping
from decoupled.training.bookkeeping import StopOnSignal
from decoupled.training.events import read_scalars
from decoupled.training.loop import train
from tests.helpers import MASKING, schedule, tiny_model
from tests.refusals import refusal
from tests.training.runs import (
    BODY,
    SMALL,
    SignalAtStep,
    assert_equal_values,
    checkpoint_names,
    checkpoint_values,
    graph_config,
    largest_difference,
    run_spec,
    run_steps,
    said,
    step_features,
    stepping_input_fn,
    train_run,
)


def config(steps=6, **changes):
    """The head alone is trained, since these tests are about what is around a model."""
    model = tiny_model(**SMALL)
    return graph_config(
        schedule=schedule(steps, 2), model=model, frozen=BODY, **changes
    )


def meddling(meddle, at_step):
    """An input_fn_from that calls `meddle` with the batch of one step."""

    def features_of(step):
        features = step_features(step)
        if step == at_step:
            meddle(features)
        return features

    return lambda start: stepping_input_fn(start, features_of)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The folder of 40 steps that nothing disturbed."""
    folder = tmp_path_factory.mktemp("straight")
    train_run(config(40), run_spec(folder))
    return str(folder)


@pytest.mark.parametrize(
    "value", [np.nan, pytest.param(np.inf, marks=pytest.mark.slow)]
)
def test_a_loss_that_is_no_number_stops_before_it_is_saved(tmp_path, value):
    def poison(features):
        features["masked_lm_weights"][0, 0] = value

    handler = signal.getsignal(signal.SIGTERM)
    graph, spec = config(8, save_checkpoints_steps=2), run_spec(tmp_path)
    # The batch after 5 updates, whose update would be the sixth; 6 would be saved.
    message = refusal(train, graph, spec, meddling(poison, at_step=5))

    assert signal.getsignal(signal.SIGTERM) == handler

    assert message.startswith(f"training: loss is {value} at step 6; the last")
    assert checkpoint_names(spec.model_dir) == [2, 4]
    saved = checkpoint_values(spec.model_dir)
    assert saved["global_step"] == 4
    assert all(np.isfinite(x).all() for x in saved.values())
    # What is there can be trained on with data that is in order.
    again = train_run(graph, spec)
    assert again["global_step"] == 8


def test_a_gradient_that_is_no_number_stops_before_it_is_saved(tmp_path):
    class Exploding(MaskedLM):
        """A loss of 1 whose gradient is NaN: 0 * (loss / 0)."""

        def forward(self, build, features):
            forward = super().forward(build, features)
            return forward._replace(loss=overflowing(forward.loss))

    spec = run_spec(tmp_path)

    with pytest.raises(
        UserError,
        match="gradient_norm is nan at step 1: lower the learning rate of 0.\\d+$",
    ):
        train(
            config(3, task=Exploding(MASKING), save_checkpoints_steps=1),
            spec,
            stepping_input_fn,
        )

    assert checkpoint_names(tmp_path) == []


def overflowing(loss):
    """sqrt(loss - loss) + 1 is 1; its derivative is infinity minus infinity."""
    from decoupled.core.compat import mtf

    return mtf.sqrt(loss - loss) + 1.0


def test_the_estimator_trains_as_bare_steps_do_and_keeps_the_scalars_of_each(
    straight, tmp_path
):
    batches = [step_features(step) for step in range(40)]
    variables, losses, norms = run_steps(config(40), 40, batches)
    assert largest_difference(checkpoint_values(straight), variables)[0] < 1e-5
    scalars = read_scalars(straight, "loss")
    assert list(scalars) == list(range(1, 41))
    np.testing.assert_allclose(list(scalars.values()), losses, rtol=1e-6)
    scalars = read_scalars(straight, "gradient_norm")
    np.testing.assert_allclose(list(scalars.values()), norms, rtol=1e-5)
    # Warm-up over 2 updates from 0, then down over 38, from a peak of 0.01.
    rates = [0.0, 0.005, *(0.01 * left / 38 for left in range(38, 0, -1))]
    scalars = read_scalars(straight, "learning_rate")
    np.testing.assert_allclose(list(scalars.values()), rates, rtol=1e-5)
    accuracy = read_scalars(straight, "masked_lm_accuracy_percent")
    assert list(accuracy) == list(range(1, 41))
    # 30 predictions in every batch.
    counts = 30 * np.array(list(accuracy.values())) / 100
    np.testing.assert_allclose(counts, np.rint(counts), atol=1e-4)
    assert read_scalars(straight, "masked_lm_loss") == {}
    speed = read_scalars(straight, "examples/sec")
    steps = read_scalars(straight, "global_step/sec")
    assert speed[6] == pytest.approx(8 * steps[6], rel=1e-5)
    assert read_scalars(str(tmp_path / "none"), "loss") == {}


EVERY_SECOND = dict(save_checkpoints_steps=2, keep_checkpoint_max=3)


@pytest.fixture(scope="module")
def six_steps(tmp_path_factory):
    """A run of six steps that logs every fourth; and the files that it flushed."""
    folder, synced = tmp_path_factory.mktemp("six"), []
    spec = run_spec(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        )
        train_run(config(6, log_steps=4, **EVERY_SECOND), spec)
    return spec, synced


def test_scalars_are_written_every_log_steps_and_at_the_end(six_steps):
    spec, _ = six_steps
    losses = read_scalars(spec.model_dir, "loss")
    assert list(losses) == [4, 6]
    last = said(spec)[-1]
    accuracy = read_scalars(spec.model_dir, "masked_lm_accuracy_percent")[6]
    shown = f"step 6/6  loss {losses[6]:.4g}  masked_lm_accuracy {accuracy:.2f}%  "
    assert last.startswith(shown)
    assert "learning_rate 0.0025" in last
    assert last.endswith(" examples/s  0 s left")


def test_slow_steps_are_shown_where_they_are_not_logged(tmp_path, monkeypatch):
    monkeypatch.setattr(bookkeeping.Monitor, "LONGEST", 0.0)
    spec = run_spec(tmp_path)
    train_run(config(3, log_steps=100), spec)
    lines = [line for line in said(spec) if line.startswith("step ")]
    assert [line.split()[1:3] for line in lines] == [
        [f"{n}/3", "loss"] for n in (1, 2, 3)
    ]
    assert list(read_scalars(spec.model_dir, "loss")) == [3]


@pytest.mark.slow
def test_pieces_of_a_run_that_start_in_one_second_keep_their_scalars(tmp_path):
    spec = run_spec(tmp_path)
    train(config(6), spec, stepping_input_fn, every_steps=1, then=lambda: None)

    assert sorted(read_scalars(str(tmp_path), "loss")) == [1, 2, 3, 4, 5, 6]


def test_only_the_newest_checkpoints_are_kept_also_across_a_resume(six_steps, tmp_path):
    folder = shutil.copytree(six_steps[0].model_dir, tmp_path / "copy")
    assert checkpoint_names(folder) == [2, 4, 6]

    train_run(config(11, **EVERY_SECOND), run_spec(folder))

    # The last step is saved though it is no multiple of 2.
    assert checkpoint_names(folder) == [8, 10, 11]
    state = tf.train.get_checkpoint_state(str(folder))
    expected = [f"{folder}/model.ckpt-{step}" for step in (8, 10, 11)]
    assert list(state.all_model_checkpoint_paths) == expected


def test_slow_steps_are_saved_by_the_clock(tmp_path, monkeypatch):
    listed, write_list = [], bookkeeping.write_list

    def noted(folder, prefixes):
        listed.append([int(prefix.rpartition("-")[2]) for prefix in prefixes])
        write_list(folder, prefixes)

    monkeypatch.setattr(bookkeeping, "write_list", noted)
    monkeypatch.setattr(bookkeeping, "FIRST_SECONDS", 0.0)
    spec = run_spec(tmp_path)
    train_run(config(25, save_checkpoints_steps=20), spec)
    # The first step may have taken an hour. The next one by the clock would come after
    # 15 minutes.
    assert listed == [[1], [20], [20, 25]]
    assert checkpoint_names(spec.model_dir) == [20, 25]


def test_a_folder_holds_checkpoints_on_disk_and_events_and_no_graph(six_steps):
    spec, synced = six_steps
    folder = pathlib.Path(spec.model_dir)
    names = os.listdir(folder)
    saved = [name for name in names if name.startswith("model.ckpt-")]
    events = [name for name in names if name.startswith("events.out.")]
    assert len(saved) >= 2 * 3 and events
    assert sorted(names) == sorted(["checkpoint", *saved, *events])
    assert not any(name.endswith(".meta") for name in saved)
    kept = {f"{folder}/{name}" for name in saved}
    assert kept | {str(folder)} <= set(synced)
    # The list is synced before it gets its name.
    assert any(path.startswith(f"{folder}/checkpoint.") for path in synced)
    # So that the folder can be moved.
    assert str(folder) not in (folder / "checkpoint").read_text()


def no_input(start):
    raise AssertionError(f"nothing to train, but data from step {start} is read")


@pytest.mark.parametrize(
    "number, raised, problem",
    [
        (signal.SIGTERM, Terminated, "^SIGTERM: saved at step 4, the last; run again "),
        (signal.SIGHUP, Terminated, "^SIGHUP: saved at step 4, the last; run again "),
        pytest.param(
            *(signal.SIGINT, Interrupted, "^Ctrl-C: saved at step 4$"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_signal_in_the_last_step_ends_before_what_comes_after_training(
    tmp_path, number, raised, problem
):
    stop = SignalAtStep(number, step=4)
    spec = run_spec(tmp_path)._replace(stop=stop)

    with pytest.raises(raised, match=problem):
        train(config(4), spec, stepping_input_fn)

    assert checkpoint_names(tmp_path)[-1] == 4
    again = run_spec(tmp_path)
    saved = checkpoint_values(tmp_path)
    assert train(config(4), again, no_input) == 4
    assert_equal_values(checkpoint_values(tmp_path), saved)
    assert said(again) == [f"{tmp_path}: complete at step 4; nothing to train"]


def in_a_copy(action):
    """The exit code of a copy of this process in which `action` runs."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            action()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_second_ctrl_c_ends_at_once(capfd):
    def ctrl_c(times):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        hook = StopOnSignal()
        hook.begin()
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
        assert hook.signal_number == signal.SIGINT

    assert in_a_copy(lambda: ctrl_c(1)) == 0
    problem = (
        "Ctrl-C: saving after this step (a TPU: this loop); once more ends at once\n"
    )
    assert capfd.readouterr().err == problem
    assert in_a_copy(lambda: ctrl_c(2)) == -signal.SIGINT


def test_ctrl_c_that_is_ignored_stays_ignored():
    def ignored():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        StopOnSignal().begin()
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    assert in_a_copy(ignored) == 0


TOO_LARGE = r"/model.ckpt-\d+: cannot be saved \(File too large\); what .*make room"


def test_a_full_disk_costs_the_steps_since_the_checkpoint_before(straight, tmp_path):
    """As where no file may grow beyond 10 kB."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    graph, spec = config(40, save_checkpoints_steps=4), run_spec(tmp_path)

    def fill(features):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))

    try:
        with pytest.raises(UserError, match=TOO_LARGE):
            train(graph, spec, meddling(fill, at_step=14))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    saved = checkpoint_names(spec.model_dir)
    assert saved and max(saved) < 40
    assert not any("temp" in name for name in os.listdir(spec.model_dir))
    again = run_spec(tmp_path)
    expected = checkpoint_values(straight)
    assert_equal_values(train_run(config(40), again), expected)
    assert f"at step {max(saved)}" in said(again)[0]


def test_a_folder_that_is_removed_while_it_trains_is_named(tmp_path):
    graph = config(40, save_checkpoints_steps=4)
    spec = run_spec(tmp_path / "run")

    def remove(features):
        shutil.rmtree(tmp_path / "run")

    message = refusal(train, graph, spec, meddling(remove, at_step=6))

    assert message == (
        f"{tmp_path}/run: is gone: something else removed it while this command "
        "trained; run it again"
    )
