"""Units of work: each leaves its own files and, last, a note that says what they are.

A large job is cut into units that know nothing of each other, so that any number of
processes or machines can share it, and so that a job that was killed, or one of whose
inputs was bad, goes on with what is missing. The work folder holds, for a unit NAME,

    NAME.done.json      {"inputs": ..., "result": ...}, written last
    NAME.failed.json    {"message": ...}, why Beam could not do it; removed at the next
                        try

A unit is done where the inputs of its note are those that it would have now.
"""

import os
from collections.abc import Collection
from typing import Any, Protocol

from decoupled.core import files, gfile
from decoupled.core.errors import UserError

DONE = ".done.json"
FAILED = ".failed.json"


class Unit(Protocol):
    """A part of a job. It travels to other processes and machines.

    name: unique in the job, a file's name. weight: large ones are begun first.
    """

    name: str
    weight: int


class Job(Protocol):
    """What is done with each unit. It travels to other processes and machines.

    work_dir: folder of the notes, which every machine can reach.
    """

    work_dir: str

    def inputs(self, unit: Unit) -> dict[str, Any]:
        """All that the result depends on, as JSON can hold it."""

    def run(self, unit: Unit) -> dict[str, Any]:
        """Does the unit, from its beginning or from where it was left.

        Returns:
          what the note keeps, as JSON can hold it.

        Raises:
          UserError: an input is bad; other units go on.
        """

    def is_intact(self, result: dict[str, Any]) -> bool:
        """False where files that the note speaks of are not there any more."""


def attempt(job: Job, unit: Unit) -> str | None:
    """Does a unit and leaves its note; returns why it cannot be done, or None."""
    try:
        result = job.run(unit)
        note = {"inputs": job.inputs(unit), "result": result}
        files.write_json(_path(job, unit.name, DONE), note)
    except UserError as error:
        return str(error)
    except gfile.OpError as error:
        # Readers name their own files, so that this one comes from writing.
        told = f"{job.work_dir}: cannot write ({files.reason(error)})"
        return f"{told}; make room and run the same command again"
    return None


def note_failure(job: Job, unit: Unit, message: str) -> None:
    """Leaves a note for the command, which may wait on another machine.

    Raises:
      UserError: `message`, where there is no room even for the note.
    """
    try:
        files.write_json(_path(job, unit.name, FAILED), {"message": message})
    except gfile.OpError as error:
        raise UserError(message) from error


def result_of(job: Job, unit: Unit) -> dict[str, Any] | None:
    """What the note of a unit keeps; None where the unit is yet to be done."""
    path = _path(job, unit.name, DONE)
    if not files.exists(path):
        return None
    note = files.read_json(path)
    if not isinstance(note, dict) or note.get("inputs") != job.inputs(unit):
        return None
    return note["result"] if job.is_intact(note.get("result")) else None


def forget(job: Job, units: Collection[Unit]) -> None:
    """Removes the notes of units that have to be done again."""
    there = set(_notes(job))
    for unit in units:
        for suffix in (DONE, FAILED):
            if unit.name + suffix in there:
                gfile.remove(_path(job, unit.name, suffix))


def ended(job: Job, waited: Collection[str]) -> dict[str, str | None]:
    """Name of each unit with a note, of those waited for -> why it failed, or None.

    One look at the folder, however many units there are.
    """
    found = {}
    for entry in _notes(job):
        for suffix in (DONE, FAILED):
            name = entry.removesuffix(suffix)
            if name != entry and name in waited:
                failed = suffix == FAILED
                path = _path(job, name, suffix)
                found[name] = files.read_json(path)["message"] if failed else None
    return found


def _notes(job):
    return [name.rstrip("/") for name in gfile.listdir(job.work_dir)]


def _path(job, name, suffix):
    return os.path.join(job.work_dir, name + suffix)
