"""Scalars of event files, also of files that a kill or a full disk cut off."""

import pathlib

import pytest

from decoupled.training.events import read_scalars, write_scalars


@pytest.fixture
def event_file(tmp_path):
    """(folder, its event file): one file with the losses of steps 1 to 3."""
    from decoupled.core.compat import tf
    from decoupled.training.events import event_writer, scalar_summary

    with tf.Graph().as_default():
        writer = event_writer(str(tmp_path), 0)
    for step in (1, 2, 3):
        writer.add_summary(scalar_summary({"loss": step / 2, "rate": 1.0}), step)
    writer.close()
    [path] = tmp_path.glob("events.out.tfevents.*")
    return tmp_path, path


def test_what_is_written_is_read(event_file):
    folder, _ = event_file
    assert read_scalars(str(folder), "loss") == {1: 0.5, 2: 1.0, 3: 1.5}
    assert read_scalars(str(folder), "accuracy") == {}


# Into the record's length, its content, and the checksum behind it.
@pytest.mark.parametrize("lost", [1, 4, 20, 50])
def test_a_file_that_ends_inside_a_record_is_read_up_to_there(event_file, lost):
    folder, path = event_file
    path.write_bytes(path.read_bytes()[:-lost])
    assert read_scalars(str(folder), "loss") == {1: 0.5, 2: 1.0}


def test_what_a_resumed_run_wrote_after_such_a_file_is_read(event_file):
    folder, path = event_file
    path.write_bytes(path.read_bytes()[:-4])
    write_scalars(str(folder), 3, {"loss": 7.0})
    # The order of the files is that of their names, which begin with the second.
    later = max(folder.glob("events.out.tfevents.*"), key=lambda p: p.stat().st_mtime)
    pathlib.Path(later).rename(folder / "events.out.tfevents.9999999999.host")
    assert read_scalars(str(folder), "loss") == {1: 0.5, 2: 1.0, 3: 7.0}


def test_a_file_without_a_record(tmp_path):
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"")
    assert read_scalars(str(tmp_path), "loss") == {}
