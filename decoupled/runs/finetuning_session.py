"""The runs of a fine-tuning command: what they share, their folders, their choice."""

import dataclasses
import math
import os
from typing import Any

import numpy as np

from decoupled.configs import FinetuningConfig, ModelConfig, ScheduleConfig
from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.model.variables import NO_HEAD, Role, declare
from decoupled.runs import run_folder
from decoupled.runs.finetuning_run import FinetuningRun
from decoupled.runs.grid import Grid
from decoupled.runs.saved_run import open_run
from decoupled.runs.selection import BEST, keep_checkpoint
from decoupled.runs.task_data import ENGLISH, Features, TaskData
from decoupled.training.cluster import Cluster, join_cluster
from decoupled.training.graph import GraphConfig, check_graph
from decoupled.training.hooks import StopOnSignal
from decoupled.training.model_fn import RunSpec
from decoupled.training.tpu import TpuAddress

CHOSEN = "chosen.json"
_COMMAND = "finetune"


class Session:
    """A task, what it is fine-tuned from, and the runs in a folder.

    One run lives in the folder itself; several have learning_rate_R/seed_S/ below it,
    and a folder that has several keeps doing so.

    Attributes: `task`; `kind`, of its head; `data`; `training`, its English examples;
    `grid`, its runs; `several`, whether they have folders of their own.

    Args:
      config: a `decoupled.configs.finetuning.FinetuneConfig`.
      task: a `decoupled.tasks.finetuning_task.FinetuningTask`. kind: of its head.
      data_dir: the folder with a folder per task.
      init_checkpoint: a pre-training run's folder, or a prefix.
      folder: of all runs. num_runs: seeds. cache: folder of features.
      tpu: fields of a `TpuAddress`, or None.

    Raises:
      UserError: checkpoint, task files and settings do not fit each other. Nothing is
        written before `open`.
    """

    def __init__(
        self,
        config: Any,
        task: Any,
        kind: str,
        data_dir: str,
        init_checkpoint: str,
        folder: str,
        num_runs: int,
        cache: str,
        tpu: dict[str, str | None] | None = None,
    ):
        self.config, self.task, self.kind, self.folder = config, task, kind, folder
        self._source = open_run(init_checkpoint)
        self._model = finetuned_model(self._source.description.model, config.finetuning)
        self.data = TaskData(task, data_dir, self._source.vocabulary, cache)
        self.training = self.data.examples("train", ENGLISH)
        task.see_training(self.training)
        self._stop = StopOnSignal()
        self._cluster: Cluster | None = None
        self._tpu = TpuAddress(**tpu) if tpu else None
        self._runs: dict[tuple[float, int], FinetuningRun] = {}
        self._steps = 1
        self._reading = False
        self.grid = self._grid(num_runs)
        count = len(self.grid.rates) * num_runs
        self.several = count > 1 or _holds_several(folder)
        check_graph(self._graph(*self._first()), config.training)

    def check_files(self, only_train: bool) -> None:
        """Reads the dev and test files, so that training does not end in a bad one.

        Args:
          only_train: whether no file but English dev will be used.

        Raises:
          UserError: there are none to evaluate, or some are malformed.
        """
        english_dev = [("dev", ENGLISH)] if self.data.has_english_dev() else []
        wanted = english_dev if only_train else self.data.files_to_answer()
        self.data.check(self.training, wanted)

    def open(self, reading: bool) -> None:
        """Claims the folder, and that of its run, with the other processes at hand.

        Args:
          reading: whether nothing is trained; see `run_folder.claim`.

        Raises:
          UserError: it holds another model.
          WorkerLost: a process of the cluster did not answer.
        """
        self._reading = reading
        if self.config.cluster is not None:
            self._cluster = join_cluster(
                self.config.cluster,
                self.config.mesh,
                console.say,
                on_tpu=self._tpu is not None,
            )
        if self.several:
            self._claim(self.folder, {})
        self._run(*self._first())

    def train(self) -> None:
        """Trains every run that is not complete, and keeps the best of several."""
        config = self.config
        features = self.data.features("train", ENGLISH, self.training, progress=True)
        rows = len(features["example_index"])
        epochs, batch = config.finetuning.num_epochs, config.training.batch_size
        self._steps = math.ceil(epochs * rows / batch)
        self._runs.clear()
        inputs = "" if rows == len(self.training) else f" in {rows:,} windows"
        console.say(
            f"{len(self.training):,} English examples{inputs}, {self._steps:,} steps"
        )
        self.grid.train(self._training_features(features))
        if self.several:
            self._keep_best()

    def relative(self, path: str) -> str:
        """A path inside the folder, as seen from it."""
        return os.path.relpath(path, self.folder)

    def _training_features(self, features):
        selected = self.data.for_graph(features)
        if self.config.finetuning.class_weights == "balanced":
            weights = class_weights(features["label_ids"], len(self.task.labels))
            selected["example_weights"] = weights[features["label_ids"]]
        return selected

    def _grid(self, num_runs):
        config = self.config
        rates = config.finetuning.learning_rates or (config.optimizer.learning_rate,)
        if len(rates) > 1 and not self.data.has_english_dev():
            raise UserError(
                f"FinetuningConfig.learning_rates: {len(rates)} to choose from, but "
                f"{self.task.name} has no English dev file with labels to choose by; "
                "give one rate"
            )
        first = config.training.seed
        return Grid(rates, tuple(range(first, first + num_runs)), self._run)

    def _first(self):
        return self.grid.rates[0], self.grid.seeds[0]

    def _run(self, rate, seed):
        """The run of a learning rate and a seed, its folder claimed."""
        if (rate, seed) not in self._runs:
            self._runs[rate, seed] = self._make_run(rate, seed)
        return self._runs[rate, seed]

    def _make_run(self, rate, seed):
        config, folder = self.config, self.folder
        if self.several:
            folder = os.path.join(folder, f"learning_rate_{rate:g}", f"seed_{seed}")
        self._claim(folder, {"learning_rate": rate, "seed": seed})
        training = dataclasses.replace(config.training, seed=seed)
        compared = self.several or config.training.eval_every_steps > 0
        return FinetuningRun(
            learning_rate=rate,
            seed=seed,
            graph=self._graph(rate, seed),
            spec=RunSpec(
                folder,
                training,
                self._source.prefix,
                console.say,
                self._stop,
                self._cluster,
                self._tpu,
            ),
            data=self.data,
            selecting=compared and self.data.has_english_dev(),
        )

    def _graph(self, rate, seed):
        finetuning, training = self.config.finetuning, self.config.training
        warmup = int(finetuning.warmup_fraction * self._steps)
        encoder = declare(self._model, NO_HEAD)
        frozen = (n for n, v in encoder.items() if v.role is Role.INPUT_EMBEDDING)
        return GraphConfig(
            task=self.task.network(
                finetuning.classifier_dropout, training.label_smoothing
            ),
            model=self._model,
            mesh=self.config.mesh,
            optimizer=dataclasses.replace(self.config.optimizer, learning_rate=rate),
            schedule=ScheduleConfig(self._steps, warmup, decay="linear"),
            accumulation=training.gradient_accumulation,
            recompute_layers=training.recompute_layers,
            seed=seed,
            frozen=tuple(frozen) if finetuning.freeze_input_embedding else (),
        )

    def _claim(self, folder, run):
        finetuning, training = self.config.finetuning, self.config.training
        data = {
            "init_checkpoint": os.path.basename(self._source.prefix),
            "train": self.data.fingerprint("train", ENGLISH),
            "features": self.task.settings(),
            "num_epochs": finetuning.num_epochs,
            "class_weights": finetuning.class_weights,
            "batch_size": training.batch_size,
            "eval_every_steps": training.eval_every_steps,
            **run,
        }
        vocabulary = self._source.vocabulary
        description = run_folder.ModelDir(
            command=_COMMAND,
            model=self._model,
            vocabulary_fingerprint=vocabulary.fingerprint,
            task={
                "name": self.task.name,
                "kind": self.kind,
                "labels": list(self.task.labels),
            },
            data=data,
        )
        run_folder.claim(folder, description, vocabulary.path, self._reading)
        if answers := self.task.answer_settings():
            files.write_json(os.path.join(folder, run_folder.ANSWERS), answers)

    def _keep_best(self):
        """Copies the best run's checkpoint to best/, unless it is there."""
        choice = self.grid.best_run().chosen()
        path = os.path.join(self.folder, CHOSEN)
        wanted = {
            "checkpoint": self.relative(choice.prefix),
            "global_step": choice.step,
        }
        if files.exists(path) and files.read_json(path) == wanted:
            return
        keep_checkpoint(choice.prefix, os.path.join(self.folder, BEST))
        files.write_json(path, wanted)


def finetuned_model(model: ModelConfig, config: FinetuningConfig) -> ModelConfig:
    """The pre-trained model's sizes with only the layers that are kept.

    Raises:
      UserError: the settings want more layers or positions than there are.
    """
    if config.keep_layers > model.num_layers:
        raise UserError(
            f"FinetuningConfig.keep_layers: {config.keep_layers}, but the checkpoint's "
            f"model has {model.num_layers} layers"
        )
    if config.max_sequence_length > model.max_positions:
        raise UserError(
            f"FinetuningConfig.max_sequence_length: {config.max_sequence_length}, but "
            f"the checkpoint's model has max_positions = {model.max_positions}"
        )
    return dataclasses.replace(model, num_layers=config.keep_layers or model.num_layers)


def class_weights(label_ids: Features, num_labels: int) -> np.ndarray:
    """Weights that give every class of a training set the same total.

    Args:
      label_ids: int32 [examples]. num_labels: classes.

    Returns:
      float32 [num_labels], examples / (classes that occur * examples of the class), so
      that an example weighs 1 on average; 0 for a class that does not occur.
    """
    counts = np.bincount(label_ids, minlength=num_labels)
    weights = len(label_ids) / np.maximum(counts, 1) / np.count_nonzero(counts)
    return np.where(counts, weights, 0.0).astype(np.float32)


def _holds_several(folder):
    """Whether a folder was claimed for several runs."""
    if not files.exists(os.path.join(folder, run_folder.CONFIG)):
        return False
    return "seed" not in run_folder.read(folder).data
