"""Several fine-tuning runs of a task: learning rates to choose from, then seeds.

Every rate is trained with the first seed; the rate that is best on English dev is then
trained with the other seeds, so that no other language has a say in the choice.
"""

from collections.abc import Callable
from typing import NamedTuple

from decoupled.core import console
from decoupled.core.errors import UserError
from decoupled.runs.finetuning_run import FinetuningRun
from decoupled.runs.task_data import Features


class Grid(NamedTuple):
    """The runs of a task.

    rates: learning rates to choose from. seeds: of the chosen rate's runs.
    make_run: (rate, seed) -> its run.
    """

    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    make_run: Callable[[float, int], FinetuningRun]

    def train(self, features: Features) -> None:
        """Trains what is not complete yet.

        Args:
          features: of the English training set.
        """
        count = len(self.rates) + len(self.seeds) - 1
        for number, rate in enumerate(self.rates, start=1):
            self._train(rate, self.seeds[0], f"{number} of {count}", features)
        rate = self.chosen_rate()
        for number, seed in enumerate(self.seeds[1:], start=len(self.rates) + 1):
            self._train(rate, seed, f"{number} of {count}", features)

    def chosen_rate(self) -> float:
        """The rate whose first run is best on English dev, of equal ones the first.

        Raises:
          UserError: a rate's run is not complete.
        """
        if len(self.rates) == 1:
            return self.rates[0]
        best = {}
        for rate in self.rates:
            run = self.make_run(rate, self.seeds[0])
            scores = run.scores()
            if not scores.complete:
                raise UserError(
                    f"{run.folder}: not complete, so that no learning rate can be "
                    "chosen; --mode=train goes on"
                )
            best[rate] = scores.best
        return max(best, key=best.get)

    def chosen_runs(self) -> list[FinetuningRun]:
        """The runs of the chosen rate, one per seed."""
        rate = self.chosen_rate()
        return [self.make_run(rate, seed) for seed in self.seeds]

    def all_runs(self) -> list[FinetuningRun]:
        """The runs that are trained: the first of each rate, then the chosen one's."""
        first = [self.make_run(rate, self.seeds[0]) for rate in self.rates]
        return [*first, *self.chosen_runs()[1:]]

    def best_run(self) -> FinetuningRun:
        """Of the chosen runs the best on English dev; without one, the first."""
        runs = self.chosen_runs()
        best = [run.scores().best for run in runs]
        return runs[0] if None in best else runs[best.index(max(best))]

    def _train(self, rate, seed, number, features):
        run = self.make_run(rate, seed)
        if len(self.rates) + len(self.seeds) > 2:
            console.say(f"run {number}: learning rate {rate:g}, seed {seed}")
        run.train(features)
