"""A job for tests of units: each unit writes its name into a file, or fails as told."""

import dataclasses
import os
import pathlib
import signal
import sys
import time

from decoupled.core.errors import UserError


@dataclasses.dataclass(frozen=True)
class ToyUnit:
    """`fails`: "" or "input", "disk", "defect", "killed last", "sleeps"."""

    name: str
    fails: str = ""
    weight: int = 1


@dataclasses.dataclass(frozen=True)
class ToyJob:
    """Writes `work_dir/NAME.txt`; adds a line to `work_dir/log` for each unit begun:
    its name and the process."""

    work_dir: str
    version: int = 1

    def inputs(self, unit):
        return {"version": self.version}

    def run(self, unit):
        with open(os.path.join(self.work_dir, "log"), "a", encoding="utf-8") as log:
            log.write(f"{unit.name} {os.getpid()}\n")
        if unit.fails == "input":
            raise UserError(f"{unit.name}.bz2: truncated at byte 7")
        if unit.fails == "disk":
            raise OSError(28, "No space left on device")
        if unit.fails == "defect":
            raise ValueError("a defect of ours")
        if unit.fails == "killed last":
            while len(list(pathlib.Path(self.work_dir).glob("*.done.json"))) < 3:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        if unit.fails == "sleeps":
            time.sleep(120)
        path = pathlib.Path(self.work_dir) / f"{unit.name}.txt"
        path.write_text(unit.name, encoding="utf-8")
        return {"letters": len(unit.name)}

    def is_intact(self, result):
        return len(list(pathlib.Path(self.work_dir).glob("*.txt"))) > 0

    def log(self):
        """(name, process) of the units that were begun, in that order."""
        lines = (pathlib.Path(self.work_dir) / "log").read_text().splitlines()
        return [(name, int(process)) for name, process in map(str.split, lines)]

    def begun_units(self):
        """Names of the units that were begun, sorted."""
        return sorted(name for name, _ in self.log())

    def processes(self):
        """The processes that began units."""
        return {process for _, process in self.log()}


def main():
    """Two processes, each with a unit that does not end."""
    # The other processes import the job by this name.
    from decoupled.corpora.runners import Runner, run_units
    from tests.corpora.toy_job import ToyJob, ToyUnit

    units = [ToyUnit("a", "sleeps"), ToyUnit("b", "sleeps")]
    run_units(ToyJob(sys.argv[1]), units, Runner(workers=2), "toys", 0)


if __name__ == "__main__":
    main()
