"""Scalars of event files, also of files that a kill or a full disk cut off."""

import pathlib

import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.training import events
from decoupled.training.events import read_scalars, write_scalars
from tests.training.runs import write_events


@pytest.fixture
def event_file(tmp_path):
    """(folder, its event file): one file with the losses of steps 1 to 3."""
    return tmp_path, write_events(tmp_path, 0, {1: 0.5, 2: 1.0, 3: 1.5}, rate=1.0)


def test_what_is_written_is_read(event_file):
    folder, _ = event_file
    assert read_scalars(str(folder), "loss") == {1: 0.5, 2: 1.0, 3: 1.5}
    assert read_scalars(str(folder), "accuracy") == {}


# Into the record's length, its content, and the checksum behind it.
@pytest.mark.parametrize("lost", [1, 4, 20, 50])
def test_a_file_that_ends_inside_a_record_is_read_up_to_there(event_file, lost):
    folder, path = event_file
    path.write_bytes(path.read_bytes()[:-lost])
    # It is not damaged.
    assert read_scalars(str(folder), "loss", whole=True) == {1: 0.5, 2: 1.0}


def test_what_a_resumed_run_wrote_after_such_a_file_is_read(event_file):
    folder, path = event_file
    path.write_bytes(path.read_bytes()[:-4])
    write_scalars(str(folder), 3, {"loss": 7.0})
    # The order of the files is that of their names, which begin with the second.
    later = max(folder.glob("events.out.tfevents.*"), key=lambda p: p.stat().st_mtime)
    pathlib.Path(later).rename(folder / "events.out.tfevents.9999999999.host")
    assert read_scalars(str(folder), "loss") == {1: 0.5, 2: 1.0, 3: 7.0}


def shown(folder):
    """tag -> steps that TensorBoard shows, by both of its readers."""
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    tensors = plugin_event_accumulator.EventAccumulator(
        str(folder), tensor_size_guidance={"scalars": 0}
    )
    found.Reload()
    tensors.Reload()
    steps = {
        tag: [e.step for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]
    }
    assert steps == {
        tag: [e.step for e in tensors.Tensors(tag)] for tag in tensors.Tags()["tensors"]
    }
    return steps


def test_steps_that_were_lost_are_shown_once(tmp_path):
    """The run was killed after step 12, and went on from the checkpoint of step 8."""
    losses = {step: step for step in (2, 4, 6, 8, 10, 12)}
    write_events(tmp_path, 0, losses, 1700000001, rate=0.1)
    write_events(tmp_path, 8, {11: 11, 14: 14}, 1700000002)
    kept = [2, 4, 6, 8, 11, 14]
    assert shown(tmp_path) == {"loss": kept, "rate": [2, 4, 6, 8]}
    assert read_scalars(str(tmp_path), "loss") == {step: step for step in kept}
    assert list(read_scalars(str(tmp_path), "rate")) == [2, 4, 6, 8]


def test_lost_steps_of_an_earlier_version_are_shown_once(tmp_path):
    """Its files do not begin with the event that says where the run goes on."""
    with tf.Graph().as_default():
        writer = tf.summary.FileWriter(str(tmp_path), filename_suffix=f".{0:012d}")
    for step in (2, 4, 6):
        writer.add_summary(events.scalar_summary({"loss": step}), step)
    writer.close()
    [path] = tmp_path.glob("events*")
    path.rename(tmp_path / f"events.out.tfevents.1700000001.host.{0:012d}")
    write_events(tmp_path, 2, {4: 4, 6: 6, 8: 8}, 1700000002)
    assert shown(tmp_path) == {"loss": [2, 4, 6, 8]}


def test_what_is_evaluated_again_is_shown_once(tmp_path):
    for second, step in enumerate([100, 200, 300, 200, 300]):
        write_scalars(str(tmp_path), step, {"accuracy": second})
        named = f"events.out.tfevents.17000000{second:02d}.host.{step:012d}"
        [path] = [p for p in tmp_path.glob("events*") if "17000000" not in p.name]
        path.rename(tmp_path / named)
    assert shown(tmp_path) == {"accuracy": [100, 200, 300]}
    assert read_scalars(str(tmp_path), "accuracy") == {100: 0, 200: 3, 300: 4}


def test_results_stand_beside_the_curve_and_replace_earlier_ones(tmp_path):
    folder = tmp_path / "a[b]"
    for step in (100, 200):
        write_scalars(str(folder), step, {"accuracy/dev/en": step})
    for value in (1, 2):
        events.write_results(str(folder), 100, {"accuracy/test/sw": value})
    assert shown(folder) == {"accuracy/dev/en": [100, 200], "accuracy/test/sw": [100]}
    assert read_scalars(str(folder), "accuracy/test/sw") == {100: 2}
    assert read_scalars(str(folder), "accuracy/dev/en") == {100: 100, 200: 200}


def test_a_clock_that_was_set_back_is_said(tmp_path, capsys):
    write_scalars(str(tmp_path), 100, {"accuracy": 1})
    assert capsys.readouterr().out == ""
    [path] = tmp_path.glob("events*")
    later = int(path.name.split(".")[3]) + 7230
    path.rename(tmp_path / f"events.out.tfevents.{later}.host.{100:012d}")
    write_scalars(str(tmp_path), 200, {"accuracy": 2})
    problem = f"{tmp_path}: has event files that are 2 h 00 min ahead of this clock"
    assert problem in capsys.readouterr().out


@pytest.mark.parametrize("kind", [RuntimeError, OSError])
def test_a_full_disk_is_one_line(tmp_path, kind):
    message = rf"^{tmp_path}: cannot write event files \(.*full.*\); make room"
    with pytest.raises(UserError, match=message):
        with events.events_written(str(tmp_path)):
            raise kind("the disk is full")


def test_a_file_without_a_record(tmp_path):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    assert read_scalars(str(tmp_path), "loss") == {}
