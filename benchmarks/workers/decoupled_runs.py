"""Worker: `decoupled finetune` on real examples, stopped when enough steps were seen.

A case holds "command", the words after `decoupled`, and "warmup". The command runs as a
user runs it. Between its steps the suite's other workers have their turns. Instead of a
loss the worker gives the number of steps.
"""

import json
import sys

import protocol

from decoupled import __main__ as decoupled
from decoupled.runs import finetuning_plan
from decoupled.training.bookkeeping import StopOnSignal


class Turn(StopOnSignal):
    """Hears signals as in every run, and gives others their turn after each step."""

    def __init__(self, turns: protocol.Turns):
        super().__init__()
        self._turns, self._steps = turns, 0

    def after_steps(self) -> bool:
        """After the update of the weights."""
        self._steps += 1
        self._turns.step_done(float(self._steps))
        return super().after_steps()


def main() -> None:
    """Trains until the suite has seen enough."""
    case = json.loads(sys.argv[1])
    turns = protocol.Turns(case["warmup"], _facts)
    finetuning_plan.StopOnSignal = lambda: Turn(turns)
    sys.argv = ["decoupled", *case["command"]]
    decoupled.main()


def _facts():
    return {"versions": protocol.versions("decoupled", "tensorflow", "mesh-tensorflow")}


if __name__ == "__main__":
    main()
