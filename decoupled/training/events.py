"""TensorBoard event files: scalars in, scalars out."""

import re
from typing import Any, NamedTuple

from decoupled.core import gfile
from decoupled.core.compat import tf
from decoupled.core.errors import UserError

# What TensorFlow says of a record that was changed; one whose end is missing is
# "truncated".
_CHANGED = re.compile(r"corrupted record at \d+")


def event_writer(folder: str, step: int) -> tf.summary.FileWriter:
    """A writer of a new event file.

    The file's name contains the time in seconds and the step that the file starts from.
    With the step, two files of the same second do not overwrite each other.
    """
    return tf.summary.FileWriter(folder, filename_suffix=f".{step:012d}")


def scalar_summary(scalars: dict[str, Any]) -> tf.Summary:
    """name -> number as a summary."""
    return tf.Summary(
        value=[
            tf.Summary.Value(tag=name, simple_value=float(value))
            for name, value in scalars.items()
        ]
    )


def write_scalars(folder: str, step: int, scalars: dict[str, Any]) -> None:
    """Adds scalars to an event file in `folder`, for TensorBoard."""
    # FileWriter cannot be created in eager mode.
    with tf.Graph().as_default():
        writer = event_writer(folder, step)
    writer.add_summary(scalar_summary(scalars), step)
    writer.close()


class Scalars(NamedTuple):
    """One scalar of one event file.

    values: step -> value. damage: what is wrong with the record after those that were
    read, or "". A file that a kill or a full disk cut off is not damaged.
    """

    values: dict[int, float]
    damage: str


def read_file(path: str, tag: str) -> Scalars:
    """One scalar of an event file, up to its last whole record.

    Raises:
      UserError: the file cannot be opened, contains something other than events, or has
        a value of the scalar that is not a number.
    """
    values = {}
    try:
        for record in tf.data.TFRecordDataset(path):
            event = _event(record.numpy(), path)
            for value in event.summary.value:
                if value.tag == tag:
                    values[event.step] = _number(value, path)
    except tf.errors.DataLossError as error:
        found = _CHANGED.search(error.message)
        return Scalars(values, found[0] if found else "")
    except tf.errors.OpError as error:
        raise UserError(f"{path}: cannot read ({type(error).__name__})") from error
    return Scalars(values, "")


def event_files(folder: str) -> list[str]:
    """The event files directly in `folder`, in the order in which they were begun."""
    return gfile.glob(f"{folder}/", "events.out.tfevents.*")


def read_scalars(folder: str, tag: str) -> dict[int, float]:
    """step -> value of one scalar, from all event files directly in `folder`.

    Where a run was resumed, later files win. A damaged file is read up to its last
    whole record, as TensorBoard reads it.

    Raises:
      UserError: as `read_file`.
    """
    values = {}
    for path in event_files(folder):
        values |= read_file(path, tag).values
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
