"""The fine-tuning of a task: learning rates to choose from, seeds, and their folders.

Every rate is trained with the first seed. The rate that is best on English dev is then
trained with the other seeds. No other language influences the choice.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from decoupled.configs import FinetuningConfig, ModelConfig
from decoupled.configs.finetuning import FinetuneConfig
from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.core.made_from import RESULTS, read_results
from decoupled.runs import run_folder
from decoupled.runs.finetuning_run import (
    FinetuningRun,
    finetuning_network,
    frozen_variables,
    steps_of,
)
from decoupled.runs.saved_run import BEST, keep_checkpoint, open_model
from decoupled.runs.task_data import Features, TaskData
from decoupled.tasks.task import FinetuningTask
from decoupled.training.bookkeeping import StopOnSignal
from decoupled.training.cluster import join_cluster
from decoupled.training.graph import check_graph
from decoupled.training.loop import Run
from decoupled.training.tpu import TpuAddress

CHOSEN = "chosen.json"


class Finetuning:
    """A task, the checkpoint that it is fine-tuned from, and the runs in a folder.

    A single run uses the folder itself; several runs use learning_rate_R/seed_S/ below
    it. A folder of several runs keeps these subfolders even for a single run.

    Attributes: `task`; `folder`; `data`, its files; `training`, its English examples;
    `rates`, the learning rates to choose from; `seeds`, of the chosen rate's runs.

    Args:
      config: the settings.
      task: what is learned.
      init_checkpoint: a pre-training run's folder, or a prefix.
      folder: of all runs. mode: one of `run_folder.MODES`.
      num_runs: seeds. cache: folder of features.
      tpu: fields of a `TpuAddress`, or None.
      splits: whose files are evaluated and predicted, of "dev" and "test".

    Raises:
      UserError: checkpoint, task files, settings and folder do not fit each other. All
        files are read before anything is written, so that no run fails at a malformed
        file after its training.
      WorkerLost: a process of the cluster did not answer.
    """

    def __init__(
        self,
        config: FinetuneConfig,
        task: FinetuningTask,
        init_checkpoint: str,
        folder: str,
        mode: str,
        num_runs: int,
        cache: str,
        tpu: dict[str, str | None] | None = None,
        splits: Sequence[str] = run_folder.SPLITS,
    ):
        self.config, self.task, self.folder = config, task, folder
        self._reading = mode not in run_folder.TRAINING_MODES
        self._source = open_model(init_checkpoint)
        model = finetuned_model(self._source.config, config.finetuning)
        self.data = TaskData(
            task,
            self._source.vocabulary,
            cache,
            splits,
            model.type_vocab_size,
        )
        self.training = self.data.examples("train", self.data.source)
        self.rates = _learning_rates(config, self.data)
        first = config.training.seed
        self.seeds = tuple(range(first, first + num_runs))
        claimed = _claimed_data(folder)
        # Only the folder of a single run names its seed.
        holds_several = claimed is not None and "seed" not in claimed
        self._several = len(self.rates) * num_runs > 1 or holds_several
        self._network = finetuning_network(config, task, model)
        frozen = frozen_variables(config, model)
        # How many examples a row has is known later; any number above 1 shows mistakes.
        packed = self._network._replace(task=self._network.task.packed(2))
        check_graph(packed, config.training, frozen)
        self._check_files(only_train=mode == "train")
        self._stop = StopOnSignal()
        self._tpu = TpuAddress(**tpu) if tpu else None
        self._cluster = config.cluster and join_cluster(
            config.cluster, config.mesh, console.say, on_tpu=tpu is not None
        )
        self._runs: dict[tuple[float, int], FinetuningRun] = {}
        if self._several:
            is_single = claimed is not None and "learning_rate" in claimed
            if is_single and run_folder.holds_results(folder):
                raise UserError(
                    f"{folder}: holds a single run, of learning rate "
                    f"{claimed['learning_rate']} and seed {claimed['seed']}; several "
                    "runs need a folder of their own: use another --model_dir"
                )
            self._claim(folder, {})
        self._run(self.rates[0], self.seeds[0])

    def train(self) -> None:
        """Trains all incomplete runs, and copies the best of several to best/."""
        features = self.data.features(
            "train", self.data.source, self.training, progress=True
        )
        rows = len(features["example_index"])
        steps = steps_of(self.config, features)
        inputs = "" if rows == len(self.training) else f" in {rows:,} windows"
        examples = f"{len(self.training):,} {self.data.source_name} examples"
        console.say(f"{examples}{inputs}, {steps:,} steps")
        self._train_runs(self._training_features(features))
        if self._several:
            self._keep_best()

    def evaluate(self, anew: bool) -> list[dict[str, Any]]:
        """Scores each run of the chosen learning rate, and writes its answers.

        The answers of the best run are also written below the folder of all runs. With
        `anew`, a run is evaluated again that has results of its selected checkpoint.

        Returns:
          the result of `FinetuningRun.evaluate` for each run.
        """
        best = self.best_run()
        # Another run may have been the best when answers were last written.
        is_written = self._has_answers_of(best)
        results = []
        for run in self.chosen_runs():
            reuses = not anew and (run is not best or is_written)
            finished = run.finished() if reuses else None
            written = {run.folder, *([self.folder] if run is best else [])}
            results.append(finished or run.evaluate(sorted(written)))
        return results

    def _train_runs(self, features):
        count = len(self.rates) + len(self.seeds) - 1
        for number, rate in enumerate(self.rates, start=1):
            self._train_run(rate, self.seeds[0], f"{number} of {count}", features)
        rate = self.chosen_rate()
        for number, seed in enumerate(self.seeds[1:], start=len(self.rates) + 1):
            self._train_run(rate, seed, f"{number} of {count}", features)

    def chosen_rate(self) -> float:
        """The rate whose first run is best on English dev; the first rate wins a tie.

        Raises:
          UserError: a rate's run is not complete.
        """
        if len(self.rates) == 1:
            return self.rates[0]
        best = {}
        for rate in self.rates:
            run = self._run(rate, self.seeds[0])
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
        return [self._run(rate, seed) for seed in self.seeds]

    def all_runs(self) -> list[FinetuningRun]:
        """All runs that are trained: the first run of each rate, then the other runs of
        the chosen rate."""
        first = [self._run(rate, self.seeds[0]) for rate in self.rates]
        return [*first, *self.chosen_runs()[1:]]

    def best_run(self) -> FinetuningRun:
        """The best of the chosen runs on English dev; the first if there is no dev
        file.

        Raises:
          UserError: one of several runs is compared on English dev and not complete.
        """
        runs = self.chosen_runs()
        for run in runs if len(runs) > 1 else []:
            if run.selecting and not run.scores().complete:
                raise UserError(
                    f"{run.folder}: not complete, so that no run can be chosen as the "
                    "best; --mode=train goes on, or give a smaller --num_runs"
                )
        best = [run.scores().best for run in runs]
        return runs[0] if None in best else runs[best.index(max(best))]

    def summary(self) -> dict[str, Any]:
        """What results.json says of the runs; the fields of the best run come first."""
        best = self.best_run()
        return {
            **_described(best, self.folder),
            "seeds": list(self.seeds),
            "runs": [
                _described(run, self.folder) | {"english_dev": run.scores().best}
                for run in self.all_runs()
            ],
        }

    def _train_run(self, rate, seed, number, features):
        run = self._run(rate, seed)
        if len(self.rates) + len(self.seeds) > 2:
            console.say(f"run {number}: learning rate {rate:g}, seed {seed}")
        run.train(features)

    def _has_answers_of(self, run):
        """Whether the answers below the folder of all runs are those of this run."""
        if not self._several:
            return True
        results = read_results(os.path.join(self.folder, RESULTS), run.made_from())
        if results is None or results | _described(run, self.folder) != results:
            return False
        return not run.missing_answers(self.folder)

    def _check_files(self, only_train):
        """Reads the dev and test files, or only English dev if runs only train."""
        english_dev = [("dev", self.data.source)] if self.data.has_source_dev() else []
        split_names = english_dev if only_train else self.data.files_to_answer()
        self.data.check(self.training, split_names)

    def _training_features(self, features):
        selected = self.data.for_graph(features)
        if self.config.finetuning.class_weights == "balanced":
            weights = class_weights(features["label_ids"], len(self.task.labels))
            selected["example_weights"] = weights[features["label_ids"]]
        return selected

    def _run(self, rate, seed):
        """The run of a learning rate and a seed, its folder claimed."""
        if (rate, seed) not in self._runs:
            self._runs[rate, seed] = self._make_run(rate, seed)
        return self._runs[rate, seed]

    def _make_run(self, rate, seed):
        config, folder = self.config, self.folder
        if self._several:
            folder = os.path.join(folder, f"learning_rate_{rate:g}", f"seed_{seed}")
        self._claim(folder, {"learning_rate": rate, "seed": seed})
        training = dataclasses.replace(config.training, seed=seed)
        compared = self._several or config.training.eval_every_steps > 0
        return FinetuningRun(
            learning_rate=rate,
            seed=seed,
            config=config,
            network=self._network,
            spec=Run(
                folder,
                training,
                self._source.weights.path,
                console.say,
                self._stop,
                self._cluster,
                self._tpu,
            ),
            data=self.data,
            selecting=compared and self.data.has_source_dev(),
        )

    def _claim(self, folder, run):
        source = self._source.weights.path
        data = {
            "init_checkpoint": os.path.basename(source),
            "init_checkpoint_sha256": run_folder.weights_sha256(source),
            "train": self.data.fingerprint("train", self.data.source),
            "features": self.task.settings(),
            "num_epochs": self.config.finetuning.num_epochs,
            "class_weights": self.config.finetuning.class_weights,
            "headline": list(self.task.headline),
            "batch_size": self.config.training.batch_size,
            "eval_every_steps": self.config.training.eval_every_steps,
            **self._training_settings(folder),
            **run,
        }
        vocabulary = self._source.vocabulary
        description = run_folder.ModelDir(
            command="finetune",
            model=self._network.model,
            vocabulary_fingerprint=vocabulary.fingerprint,
            task={
                "name": self.task.name,
                "kind": self.task.kind,
                "labels": list(self.task.labels),
            },
            data=data,
        )
        contents = {
            "data.train": ", ".join(self.data.paths("train", self.data.source)),
            "data.init_checkpoint_sha256": source,
        }
        run_folder.claim(folder, description, vocabulary.path, self._reading, contents)
        if answers := self.task.answer_settings():
            files.write_json(os.path.join(folder, run_folder.ANSWERS), answers)

    def _training_settings(self, folder):
        """Settings of training alone; evaluation takes those of the folder's run."""
        finetuning, optimizer = self.config.finetuning, vars(self.config.optimizer)
        settings = {
            "classifier_dropout": finetuning.classifier_dropout,
            "freeze_input_embedding": finetuning.freeze_input_embedding,
            "warmup_fraction": finetuning.warmup_fraction,
            "label_smoothing": self.config.training.label_smoothing,
            "optimizer": {k: v for k, v in optimizer.items() if k != "learning_rate"},
        }
        claimed = _claimed_data(folder) if self._reading else None
        if claimed is None:
            return settings
        return {name: claimed[name] for name in settings if name in claimed}

    def _keep_best(self):
        """Copies the best run's checkpoint to best/, unless it is already there."""
        best = self.best_run().selected()
        path = os.path.join(self.folder, CHOSEN)
        content = {
            "checkpoint": os.path.relpath(best.prefix, self.folder),
            "checkpoint_sha256": run_folder.weights_sha256(best.prefix),
            "global_step": best.step,
        }
        if files.exists(path) and files.read_json(path) == content:
            return
        keep_checkpoint(best.prefix, os.path.join(self.folder, BEST))
        files.write_json(path, content)


def _learning_rates(config: FinetuneConfig, data: TaskData) -> tuple[float, ...]:
    rates = config.finetuning.learning_rates or (config.optimizer.learning_rate,)
    if len(rates) > 1 and not data.has_source_dev():
        raise UserError(
            f"FinetuningConfig.learning_rates: {len(rates)} to choose from, but "
            f"{data.task.name} has no {data.source_name} dev file with labels to "
            "choose by; give one rate"
        )
    return rates


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
    """Weights that give every class of a training set the same total, float32.

    examples / (classes that occur * examples of the class), so that an example weighs 1
    on average; 0 for a class that does not occur.
    """
    counts = np.bincount(label_ids, minlength=num_labels)
    weights = len(label_ids) / np.maximum(counts, 1) / np.count_nonzero(counts)
    return np.where(counts, weights, 0.0).astype(np.float32)


def _claimed_data(folder):
    """The `data` of a folder's config.json; None if the folder has none. It has a seed
    if the folder is that of a single run."""
    if not files.exists(os.path.join(folder, run_folder.CONFIG)):
        return None
    return run_folder.read(folder).data


def _described(run, folder):
    selected = run.selected()
    return {
        "learning_rate": run.learning_rate,
        "seed": run.seed,
        "checkpoint": os.path.relpath(selected.prefix, folder),
        "global_step": selected.step,
    }
