"""One fine-tuning run: a learning rate and a seed, compared on English dev."""

import math
import os
from typing import Any, NamedTuple

from decoupled.core import console, gfile
from decoupled.data.array_input_fn import (
    recorded_training_input_fn,
    training_input_fn,
)
from decoupled.runs.selection import (
    BEST,
    Choice,
    Scores,
    chosen_checkpoint,
    keep_checkpoint,
    read_scores,
    write_scores,
)
from decoupled.runs.task_data import ENGLISH, Features, TaskData
from decoupled.runs.zero_shot import answer_languages
from decoupled.training.checkpoints import checkpoint_step, latest_complete
from decoupled.training.estimator import train
from decoupled.training.events import write_scalars
from decoupled.training.graph import GraphConfig
from decoupled.training.model_fn import RunSpec

# Below the run's folder: TensorBoard's scalars of all evaluations.
EVENTS = "eval"


class FinetuningRun(NamedTuple):
    """A run and where it lives.

    learning_rate, seed: what tells it from the other runs of its task.
    graph: its schedule counts in training only. spec: folder and bookkeeping.
    data: of the task.
    selecting: whether its checkpoints are compared on English dev, every
      `TrainingConfig.eval_every_steps` steps and at the end.
    """

    learning_rate: float
    seed: int
    graph: GraphConfig
    spec: RunSpec
    data: TaskData
    selecting: bool

    @property
    def folder(self) -> str:
        """Of the run's checkpoints."""
        return self.spec.model_dir

    def train(self, features: Features) -> None:
        """Trains to the end, or resumes; keeps the best checkpoint.

        Args:
          features: of the English training set.

        Raises:
          Terminated: SIGTERM came.
          UserError: loss or gradient became infinite or NaN.
        """
        config = self.spec.training
        every = config.eval_every_steps if self.selecting else 0
        self._catch_up(every)
        train(
            self.graph,
            self.spec,
            lambda step: self._input_fn(features, step),
            every_steps=every,
            then=self._evaluate_dev,
        )
        if self.selecting:
            self._evaluate_dev()
            write_scores(self.folder, read_scores(self.folder)._replace(complete=True))
        written = self.spec.training_batches
        if written is not None and gfile.isdir(written):
            gfile.rmtree(written)

    def _input_fn(self, features, step):
        batch, folder = self.spec.training.batch_size, self.spec.training_batches
        if folder is None:
            return training_input_fn(features, batch, self.seed, step)
        steps = range(step, self.graph.schedule.train_steps)
        return recorded_training_input_fn(
            features, batch, self.seed, steps, folder, console.track
        )

    def scores(self) -> Scores:
        """On English dev, as far as the run has got."""
        return read_scores(self.folder)

    def chosen(self) -> Choice:
        """The checkpoint that counts.

        Raises:
          UserError: there is none yet.
        """
        return chosen_checkpoint(self.folder)

    def _catch_up(self, every):
        """Evaluates the newest checkpoint if a kill came before that."""
        step = checkpoint_step(latest_complete(self.folder))
        if every and step and step % every == 0:
            self._evaluate_dev()

    def _evaluate_dev(self):
        prefix = latest_complete(self.folder)
        step = checkpoint_step(prefix)
        scores = read_scores(self.folder)
        if step in scores.by_step:
            return
        metrics = self._dev_metrics()
        write_scalars(
            os.path.join(self.folder, EVENTS),
            step,
            {scalar_name(name, "dev", ENGLISH): v for name, v in metrics.items()},
        )
        scores.by_step[step] = metrics
        scores.headline[step] = headline(self.data.task, metrics)
        # The copy comes before the record that names it.
        if scores.best_step == step and self.spec.training.eval_every_steps:
            keep_checkpoint(prefix, os.path.join(self.folder, BEST))
        write_scores(self.folder, scores)
        best = "the best so far" if scores.best_step == step else "not the best"
        self.spec.say(f"English dev at step {step}: {_shown(metrics)} ({best})")

    def _dev_metrics(self):
        wanted = [("dev", ENGLISH)]
        [found] = answer_languages(self.graph, self.spec, self.data, wanted)
        return self.data.task.score(ENGLISH, found.examples, found.answers)


def steps_of(examples: int, num_epochs: float, batch_size: int) -> int:
    """Optimizer steps of a run over `examples` rows of features."""
    return math.ceil(num_epochs * examples / batch_size)


def headline(task: Any, metrics: dict[str, float]) -> float:
    """The mean of the metrics that choose checkpoints and learning rates."""
    return sum(metrics[name] for name in task.headline) / len(task.headline)


def scalar_name(metric: str, split: str, language: str) -> str:
    """A metric's tag in TensorBoard, which shows a metric's languages together."""
    return f"{metric}/{split}/{language}"


def _shown(metrics):
    return ", ".join(f"{name} {value:.2f}" for name, value in metrics.items())
