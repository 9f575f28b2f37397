"""Training losses of runs, also resumed and damaged ones, and when they cross a level.

Definitions: docstring of `decoupled.runs.curve`.
"""

import re
import shutil

import numpy as np
import pytest
import scipy.stats

from decoupled.core.compat import tf
from decoupled.runs.curve import (
    CROSSED_BELOW,
    Curve,
    crossing,
    crossing_level,
    entropy,
    read_accuracy,
    read_curve,
    smoothed,
)
from decoupled.studies.verdicts import CROSSED_BY
from decoupled.training.checkpoints import write_list
from decoupled.training.events import write_scalars
from tests.helpers import schedule, tiny_model
from tests.refusals import refusal
from tests.training.runs import (
    BODY,
    SMALL,
    checkpoint_names,
    graph_config,
    run_spec,
    step_features,
    train_run,
    with_training,
    write_events,
)


def curve(*loss, every=1):
    steps = every * np.arange(1, len(loss) + 1)
    return Curve(steps, np.array(loss, np.float64))


# The head alone is trained.
CONFIG = graph_config(schedule=schedule(8), model=tiny_model(**SMALL), frozen=BODY)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of 8 steps that logs each of them, with checkpoints of 3, 6 and 8."""
    folder = tmp_path_factory.mktemp("straight")
    spec = run_spec(folder)
    train_run(with_training(CONFIG, save_checkpoints_steps=3), spec)
    return folder


def test_losses_of_updates_that_were_lost_are_dropped(straight, tmp_path):
    """The run goes on from step 3, on other text, and logs every other step."""
    folder = shutil.copytree(straight, tmp_path / "run")
    for path in folder.glob("model.ckpt-[68].*"):
        path.unlink()
    write_list(str(folder), ["model.ckpt-3"])
    assert checkpoint_names(folder) == [3]

    def other_text(start):
        def input_fn(params=None):
            features = step_features(100)
            return tf.data.Dataset.from_tensors(features).repeat()

        return input_fn

    spec = run_spec(folder)
    train_run(with_training(CONFIG, log_steps=2), spec, other_text)
    before, result = read_curve(str(straight)), read_curve(str(folder))
    assert before.steps.tolist() == list(range(1, 9))
    assert before.steps.dtype == np.int64 and before.loss.dtype == np.float64
    # Without the 5 and the 7 that the first start has logged, too.
    assert result.steps.tolist() == [1, 2, 3, 4, 6, 8]
    np.testing.assert_array_equal(result.loss[:3], before.loss[:3])
    assert not np.isin(result.loss[3:], before.loss).any()


def test_accuracies_are_in_percent_also_where_an_earlier_version_logged_shares(
    tmp_path,
):
    write_scalars(str(tmp_path), 1, {"masked_lm_accuracy": 0.125})
    write_scalars(str(tmp_path), 2, {"masked_lm_accuracy_percent": 25.0})
    assert read_accuracy(str(tmp_path)) == {1: 12.5, 2: 25.0}


def test_starts_of_one_run_are_joined_in_their_order(tmp_path):
    write_events(tmp_path, 0, {2: 5.0, 4: 4.0, 6: 3.0}, second=1700000000)
    write_events(tmp_path, 5, {8: 2.5, 10: 2.0}, second=1700000009)
    # Of step 3 again: whoever went back to an earlier checkpoint.
    write_events(tmp_path, 3, {5: 7.0}, second=1700000099)
    result = read_curve(str(tmp_path))
    assert result.steps.tolist() == [2, 5]
    assert result.loss.tolist() == [5.0, 7.0]


def test_files_of_others_have_no_start_and_drop_nothing(tmp_path):
    write_events(tmp_path, 0, {1: 5.0, 2: 4.0}, second=1700000000)
    path = write_events(tmp_path, 7, {2: 3.0}, second=1700000009)
    path.rename(tmp_path / "events.out.tfevents.1700000009.host.v2")
    result = read_curve(str(tmp_path))
    assert result.loss.tolist() == [5.0, 3.0]


def refused(folder, message):
    assert re.search(message, refusal(read_curve, str(folder)))


def test_a_changed_byte_is_named_with_its_file(tmp_path):
    path = write_events(tmp_path, 0, {1: 5.0, 2: 4.0, 3: 3.0})
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    refused(tmp_path, r"events.*damaged \(corrupted record at \d+\); restore it")


@pytest.mark.parametrize("content", [b"no event file" * 20, b"\0" * 100])
def test_another_file_under_such_a_name(tmp_path, content):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(content)
    refused(tmp_path, "events.out.tfevents.1.host: damaged")


def event(step, **value):
    summary = tf.Summary(value=[tf.Summary.Value(tag="loss", **value)])
    return tf.Event(step=step, summary=summary).SerializeToString()


def vast():
    """A tensor of 8 bytes that claims 10 ** 12 numbers."""
    tensor = tf.make_tensor_proto(1.0)
    tensor.tensor_shape.dim.add().size = 10**12
    return tensor


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"\xff\xfe no event", "a record is no event"),
        (event(3, tensor=vast()), "a value of 'loss' is not one number"),
        (event(3, tensor=tf.make_tensor_proto("x")), "a value of 'loss' is no number"),
        (event(3, histo=tf.HistogramProto(min=1)), "'loss' is not one number"),
        (event(3, simple_value=np.nan), "the loss was nan at step 3"),
        (event(3, simple_value=np.inf), "the loss was inf at step 3"),
        (event(-3, simple_value=1.0), "the loss was 1.0 at step -3"),
    ],
)
def test_hostile_records_end_in_one_line(tmp_path, record, message):
    with tf.io.TFRecordWriter(str(tmp_path / "events.out.tfevents.1.host")) as writer:
        writer.write(event(1, simple_value=5.0))
        writer.write(record)
    refused(tmp_path, message)


def test_folders_without_a_curve(tmp_path):
    refused(tmp_path, "no training loss in event files here; give the folder of a pre-")
    refused(tmp_path / "missing", "no training loss")
    write_events(tmp_path, 0, {})
    refused(tmp_path, "no training loss")


def test_a_folder_with_the_name_of_an_event_file(tmp_path):
    (tmp_path / "events.out.tfevents.1.host").mkdir()
    refused(tmp_path, "cannot read")


def test_the_smoothed_loss_is_the_mean_over_a_twentieth_of_the_run():
    """Of 80 steps that is (s - 4, s]: two losses, where every other step is logged."""
    result = smoothed(curve(*range(40), every=2))
    assert result[0] == 0
    assert result[1:].tolist() == [n - 0.5 for n in range(1, 40)]


def test_where_fewer_steps_are_logged_the_loss_is_as_it_is():
    assert smoothed(curve(3, 1, 2, every=100)).tolist() == [3, 1, 2]
    assert smoothed(curve(4)).tolist() == [4]


def test_crossing_is_the_first_step_of_staying_below():
    falling = curve(6, 5, 3, 5, 3, 2, 3, every=10)
    assert crossing(falling, 4) == 50
    assert crossing(falling, 7) == 10
    assert crossing(falling, 3) is None
    assert crossing(falling, 2.5) is None


def test_a_curve_that_comes_back_has_not_crossed():
    assert crossing(curve(6, 3, 3, 5), 4) is None


def test_one_batch_of_luck_does_not_cross_and_noise_does_not_undo_it():
    """A plateau at 5.5 to step 1,400, then 4; batches differ by 0.1 and more."""
    steps = np.arange(10, 4001, 10)
    noise = np.random.default_rng(0).normal(0, 0.15, len(steps))
    loss = np.where(steps <= 1400, 5.5, 4.0) + noise
    loss[50], loss[300] = 4.0, 5.2
    result = crossing(Curve(steps, loss), 4.7)
    # The mean lags half of the 200 steps of its window.
    assert 1400 < result <= 1600
    assert result == pytest.approx(1510, abs=30)


def test_the_level_lies_below_the_entropies_of_the_languages():
    entropies = {"en": 5.0, "de": 6.0}
    assert CROSSED_BELOW == 1.0
    assert crossing_level(entropies) == pytest.approx(4.5)
    assert crossing_level(entropies, {"de": 3, "en": 1}) == pytest.approx(4.75)


def test_crossing_in_time_is_by_six_tenths_of_the_steps():
    level = 4.0
    assert crossing(curve(*[5] * 11, *[3] * 9), level) <= CROSSED_BY * 20
    assert crossing(curve(*[5] * 12, *[3] * 8), level) > CROSSED_BY * 20
    assert crossing(curve(*[5] * 20), level) is None


def test_a_run_of_one_step_crosses_nothing(tmp_path):
    write_events(tmp_path, 0, {1: 8.3})
    result = read_curve(str(tmp_path))
    assert crossing(result, crossing_level({"en": 5.5})) is None


def test_entropy_of_counts():
    assert entropy(np.array([], np.int64)) == 0
    assert entropy(np.array([0, 7, 0])) == 0
    # Two pieces, equally often; one of two is seen beside the first.
    assert entropy(np.array([500, 0, 500])) == pytest.approx(np.log(2) + 1 / 2000)


def test_entropy_of_few_draws_is_not_too_low():
    """Against scipy: the true entropy of a distribution with a long tail."""
    shares = 1 / np.arange(1, 2001)
    shares /= shares.sum()
    drawn = np.random.default_rng(0).multinomial(20_000, shares)
    true, plain = scipy.stats.entropy(shares), scipy.stats.entropy(drawn)
    # Pieces that were never drawn are missing in both.
    assert plain < true - 0.07
    assert entropy(drawn) == pytest.approx(true, abs=0.035)
