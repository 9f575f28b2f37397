"""TensorBoard event files: scalars in, scalars out."""

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from decoupled.core import console, files, gfile, hosts
from decoupled.core.compat import tf
from decoupled.core.console import duration
from decoupled.core.errors import UserError

# What TensorFlow says of a record that was changed; one whose end is missing is
# "truncated".
_CORRUPTION = re.compile(r"corrupted record at \d+")
# The step that a file starts from, see `event_writer`.
_START = re.compile(r"\.(\d{12})$")
_FILES = "events.out.tfevents.*"
# The time in seconds in the name of a file.
_TIME = re.compile(r"events\.out\.tfevents\.(\d+)\.")
# Ends the name of a scalar that is in percent, of which earlier versions logged shares.
PERCENT = "_percent"
# Ends the name of a file with results of a selected checkpoint.
_RESULTS = ".results"


def event_writer(folder: str, step: int) -> tf.summary.FileWriter | None:
    """A writer of a new event file of a run at `step`.

    The file's name contains the time in seconds and the step that the file starts from.
    With the step, two files of the same second do not overwrite each other. The file
    begins with `start_event`, so that TensorBoard drops what earlier files have of
    later steps: these steps were lost and are repeated. None for all processes but the
    first.
    """
    if not hosts.is_first():
        return None
    with events_written(folder):
        return _begin_file(folder, step, step + 1)


@contextlib.contextmanager
def events_written(folder: str) -> Iterator[None]:
    """Turns the errors of a writer, such as that of a full disk, into a UserError."""
    try:
        yield
    except (RuntimeError, OSError, tf.errors.OpError) as error:
        raise UserError(
            f"{folder}: cannot write event files ({files.reason(error)}); make room, "
            "and run again to go on"
        ) from error


def _begin_file(folder, file_step, start):
    times = [int(match[1]) for match in map(_TIME.search, event_files(folder)) if match]
    if (lead := max(times, default=0) - time.time()) > 1:
        console.say(
            f"{folder}: has event files that are {duration(lead)} ahead of this "
            "clock. Files are read in the order of their times, so curves may lack "
            "the steps from now on"
        )
    # FileWriter cannot be created in eager mode.
    with tf.Graph().as_default():
        writer = tf.summary.FileWriter(folder, filename_suffix=f".{file_step:012d}")
    # TensorBoard takes the first one in a folder for the start of the first file, but
    # the files of earlier versions have none.
    for _ in range(2):
        writer.add_event(start_event(start))
    return writer


def start_event(step: int) -> tf.Event:
    """The event by which a run says that `step` is the next."""
    session = tf.SessionLog(status=tf.SessionLog.START)
    return tf.Event(wall_time=time.time(), step=step, session_log=session)


def scalar_summary(scalars: dict[str, Any]) -> tf.Summary:
    """name -> number as a summary."""
    return tf.Summary(
        value=[
            tf.Summary.Value(tag=name, simple_value=float(value))
            for name, value in scalars.items()
        ]
    )


@hosts.by_first
def write_scalars(folder: str, step: int, scalars: dict[str, Any]) -> None:
    """Adds the scalars of a step to a curve in `folder`, for TensorBoard.

    What the folder has of this step and of later ones was lost, and is dropped.
    """
    with events_written(folder):
        writer = _begin_file(folder, step, step)
        writer.add_summary(scalar_summary(scalars), step)
        writer.close()


@hosts.by_first
def write_results(folder: str, step: int, scalars: dict[str, Any]) -> None:
    """Writes the scalars of a selected checkpoint beside the curves in `folder`,
    instead of those of an earlier call."""
    for path in gfile.glob(f"{folder}/", f"{_FILES}{_RESULTS}"):
        gfile.remove(path)
    with events_written(folder):
        with tf.Graph().as_default():
            writer = tf.summary.FileWriter(folder, filename_suffix=_RESULTS)
        writer.add_summary(scalar_summary(scalars), step)
        writer.close()


class Scalars(NamedTuple):
    """One scalar of one event file.

    damage: what is wrong with the record after those that were read, or "". A file that
      a kill or a full disk cut off is not damaged.
    start: the step with which the run went on when the file was begun; None if the file
      does not say it.
    """

    values: dict[int, float]
    damage: str
    start: int | None

    def after(self, earlier_values: dict[int, float]) -> dict[int, float]:
        """step -> value of earlier files and this one, without lost steps."""
        if self.start is None:
            return earlier_values | self.values
        values = {step: x for step, x in earlier_values.items() if step < self.start}
        return values | self.values


def read_file(path: str, tag: str) -> Scalars:
    """One scalar of an event file, up to its last whole record."""
    values, damage = {}, ""
    match = _START.search(path)
    start = int(match[1]) + 1 if match else None
    try:
        for record in tf.data.TFRecordDataset(path):
            event = _event(record.numpy(), path)
            if event.session_log.status == tf.SessionLog.START:
                start = event.step
            for value in event.summary.value:
                if value.tag == tag:
                    values[event.step] = _number(value, path)
    except tf.errors.DataLossError as error:
        corruption = _CORRUPTION.search(error.message)
        damage = corruption[0] if corruption else ""
    except tf.errors.OpError as error:
        raise UserError(f"{path}: cannot read ({type(error).__name__})") from error
    return Scalars(values, damage, start)


def event_files(folder: str) -> list[str]:
    """The event files directly in `folder`, in the order in which they were begun."""
    return gfile.glob(f"{folder}/", _FILES)


def read_scalars(folder: str, tag: str, whole: bool = False) -> dict[int, float]:
    """step -> value of one scalar, from all event files directly in `folder`.

    As TensorBoard shows it: where a run was resumed, the steps that were lost are
    dropped. A file that a kill cut off is read up to its last whole record, and so is a
    damaged one, unless it must be `whole`.
    """
    values = {}
    for path in event_files(folder):
        events = read_file(path, tag)
        if events.damage and whole:
            raise UserError(
                f"{path}: damaged ({events.damage}); restore it from a copy, or remove "
                "it to read the losses of the other files"
            )
        values = events.after(values)
    return values


def _event(record, path):
    try:
        return tf.Event.FromString(record)
    except Exception as error:  # protobuf's DecodeError differs between its builds
        raise UserError(f"{path}: a record is no event of TensorBoard") from error


def _number(value, path):
    if value.HasField("simple_value"):
        return value.simple_value
    # The hosts of TPUs write tensors. A tensor that is not a scalar is not ours. It is
    # not unpacked, because it may claim any size.
    tensor = value.tensor
    if not value.HasField("tensor") or tensor.tensor_shape.dim:
        raise UserError(f"{path}: a value of {value.tag!r} is not one number")
    try:
        return float(tf.make_ndarray(tensor))
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: a value of {value.tag!r} is no number") from error
