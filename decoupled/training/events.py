"""TensorBoard event files: scalars in, scalars out."""

from typing import Any

from tensorboard.backend.event_processing.event_file_loader import (
    LegacyEventFileLoader,
)

from decoupled.core.compat import tf


def event_writer(folder: str, step: int) -> tf.summary.FileWriter:
    """A writer of a new event file.

    The file's name holds the second and, lest two of one second overwrite each other,
    the step that it starts from.
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
    # The writer refuses to be made where TensorFlow runs eagerly.
    with tf.Graph().as_default():
        writer = event_writer(folder, step)
    writer.add_summary(scalar_summary(scalars), step)
    writer.close()


def read_scalars(folder: str, tag: str) -> dict[int, float]:
    """step -> value of one scalar, from all event files directly in `folder`.

    Where a run was resumed, later files win. A file that a kill or a full disk cut off
    is read up to its last whole record, as TensorBoard reads it.
    """
    values = {}
    for path in sorted(tf.io.gfile.glob(f"{folder}/events.out.tfevents.*")):
        for event in LegacyEventFileLoader(path).Load():
            for value in event.summary.value:
                if value.tag == tag:
                    values[event.step] = _number(value)
    return values


def _number(value):
    # What TPUs' hosts write is a tensor.
    if value.HasField("tensor"):
        return float(tf.make_ndarray(value.tensor))
    return value.simple_value
