"""The one function that Beam calls, in this process, in others, or on a cluster."""

import os

import apache_beam

from decoupled.corpora import units
from decoupled.corpora.units import Job, Unit


class DoUnits(apache_beam.DoFn):
    """Does the units of each share that no other process has taken.

    claims: a local folder where a taken unit leaves a file; None: shares have no unit
    in common.
    """

    def __init__(self, job: Job, claims: str | None):
        self._job = job
        self._claims = claims

    def process(self, share: tuple) -> None:
        """Does the units of a share: its number and its units. No output."""
        for unit in share[1]:
            if self._claim(unit):
                units.attempt(self._job, unit)

    def _claim(self, unit: Unit) -> bool:
        if self._claims is None:
            return True
        path = os.path.join(self._claims, unit.name)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True
