"""One fine-tuning run: a learning rate and a seed; its training, scores and answers.

Checkpoints are compared on English dev while the run trains. The selected one is then
evaluated in every language.
"""

import dataclasses
import functools
import math
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from decoupled.configs import ScheduleConfig, TrainingConfig, without_effect
from decoupled.configs.finetuning import REGRESSION, FinetuneConfig
from decoupled.core import console, files, gfile, hosts
from decoupled.core.made_from import (
    MADE_FROM,
    RESULTS,
    changed_settings,
    changes,
    in_words,
    read_results,
)
from decoupled.data.array_input_fn import training_input_fn
from decoupled.runs import run_folder
from decoupled.runs.batch_shape import plan_batches, read_order, write_order
from decoupled.runs.evaluation import (
    AnsweredFile,
    answer_languages,
    dtype_settings,
    ends_with_a_line,
)
from decoupled.runs.finetuning_plan import FinetuningPlan
from decoupled.runs.saved_run import (
    BEST,
    SCORES,
    Scores,
    SelectedCheckpoint,
    keep_checkpoint,
    read_scores,
    selected_checkpoint,
    selected_folder,
    write_scores,
)
from decoupled.runs.task_data import Features
from decoupled.tasks.task import FinetuningTask
from decoupled.training.checkpoints import checkpoint_step, latest_complete
from decoupled.training.events import write_results, write_scalars
from decoupled.training.graph import TrainingGraph
from decoupled.training.loop import Run, train

# Below the run's folder: for TensorBoard, the curve on English dev, and the scores of
# the selected checkpoint.
EVENTS = "eval"
# In results.json: how answers were chosen; empty for tasks without questions.
ANSWER_SETTINGS = "answer_settings"
# Beside predictions/: the weights, settings and files that the answers come from.
ANSWER_SOURCE = "predictions.json"
# The prefix of a metric's name for the trivial baseline.
TRIVIAL = "trivial_"


class FinetuningRun(NamedTuple):
    """The run of a learning rate and a seed. If the plan is selecting, its checkpoints
    are compared on English dev, every `TrainingConfig.eval_every_steps` steps and at
    the end.
    """

    plan: FinetuningPlan
    learning_rate: float
    seed: int

    @property
    def folder(self) -> str:
        return self.plan.folder_of(self.learning_rate, self.seed)

    @property
    def training(self) -> TrainingConfig:
        return dataclasses.replace(self.plan.config.training, seed=self.seed)

    def run_in(self, folder: str) -> Run:
        """The plan's run, in a folder with checkpoints."""
        return self.plan.run._replace(model_dir=folder)

    def train(self, features: Features) -> None:
        """Trains to the end, or resumes; keeps the best checkpoint."""
        plan, run = self.plan, self.run_in(self.folder)
        interval = self.training.eval_every_steps if plan.selecting else 0
        self._score_anew_if_dev_has_changed()
        self._catch_up(interval)
        graph = self._graph(features)
        end = graph.schedule.train_steps
        input_fn_from = None
        step = checkpoint_step(latest_complete(self.folder))
        config = dataclasses.replace(plan.config, training=self.training)
        settings = run_folder.resumable_settings(config, ("training", "mesh"))
        run_folder.note_settings(self.folder, settings, step, end)
        if step < end:
            # A resumed run keeps its order of examples, which depends on the shape.
            order = read_order(self.folder) if step else None
            packing = plan_batches(graph, features["input_mask"].sum(1), run, order)
            write_order(self.folder, packing.order)
            packed_task = plan.network.task.packed(packing.examples)
            graph = graph._replace(network=plan.network._replace(task=packed_task))
            fraction = plan.config.finetuning.warmup_fraction
            for line in without_effect(
                graph.schedule, graph.training, plan.selecting, fraction
            ):
                run.say(line)
            input_fn_from = functools.partial(
                training_input_fn,
                *(features, self.training.batch_size, self.seed),
                packing=packing,
            )
        train(graph, run, input_fn_from, every_steps=interval, then=self._evaluate_dev)
        if plan.selecting:
            self._evaluate_dev()
            write_scores(self.folder, read_scores(self.folder)._replace(complete=True))

    def _graph(self, features):
        config = self.plan.config
        steps = steps_of(config, features)
        warmup = int(config.finetuning.warmup_fraction * steps)
        return TrainingGraph(
            network=self.plan.network,
            optimizer=dataclasses.replace(
                config.optimizer, learning_rate=self.learning_rate
            ),
            schedule=ScheduleConfig(steps, warmup),
            training=self.training,
            frozen=self.plan.frozen,
        )

    def scores(self) -> Scores:
        return read_scores(self.folder)

    def dev_results(self) -> dict[str, dict]:
        """The part of `evaluate`'s results that training knows: the best checkpoint's
        scores on English dev, if checkpoints were compared."""
        scores, source = self.scores(), self.plan.data.source
        results = {split: {} for split in run_folder.SPLITS}
        if scores.by_step:
            results["dev"][source] = _beside_trivial(
                self.plan.task,
                source,
                self.plan.data.examples("dev", source),
                scores.by_step[scores.best_step],
            )
        return results

    def selected_checkpoint(self) -> SelectedCheckpoint:
        return selected_checkpoint(self.folder)

    @ends_with_a_line
    def evaluate(self, folders: Sequence[str] = ()) -> dict[str, Any]:
        """Scores the selected checkpoint; writes results.json and TensorBoard scalars.

        Answers are written to predictions/TASK/SPLIT-LANGUAGE in each of the folders.

        Returns:
          the content of results.json: `task`, `global_step`, `checkpoint`,
          `learning_rate`, `seed`, and split -> language -> `examples` and, if the file
          has labels, metric -> value and "trivial_" + metric -> value.
        """
        task, checkpoint = self.plan.task, self.selected_checkpoint()
        made_from = self.made_from(checkpoint)
        self._tell_if_dev_has_changed()
        self._say_what_is_evaluated()
        answer_source, hashes = self._source_of(checkpoint), self._file_hashes()
        results: dict[str, dict] = {split: {} for split in run_folder.SPLITS}
        for file in self._answers("evaluating", checkpoint):
            results[file.split][file.language] = _scores(task, file)
            for folder in folders:
                _write(task, folder, file, answer_source, hashes)
        _say_unlabelled(task, results)
        # The curve of a run that was selected on English dev has these scores already.
        curve = [("dev", self.plan.data.source)] if self.plan.selecting else []
        scalars = {
            _scalar_name(metric, split, language): values[metric]
            for split, languages in results.items()
            for language, values in languages.items()
            for metric in task.metrics
            if metric in values and (split, language) not in curve
        }
        write_results(os.path.join(self.folder, EVENTS), checkpoint.step, scalars)
        summary = {
            "task": task.name,
            "global_step": checkpoint.step,
            "checkpoint": os.path.relpath(checkpoint.prefix, self.folder),
            "learning_rate": self.learning_rate,
            "seed": self.seed,
            ANSWER_SETTINGS: task.answer_settings(),
            MADE_FROM: made_from,
            **results,
        }
        files.write_json(os.path.join(self.folder, RESULTS), summary)
        return summary

    def made_from(self, checkpoint: SelectedCheckpoint) -> dict[str, Any]:
        """What an evaluation of the selected checkpoint is computed from."""
        # The trivial baseline is computed from the training examples.
        names = [("train", self.plan.data.source), *self.plan.data.files_to_answer()]
        return {**self._source_of(checkpoint), "files": self.plan.data.hashes(names)}

    def reusable_results(self) -> dict[str, Any] | None:
        """results.json, if it and the answers are those of the selected checkpoint and
        of the present files."""
        checkpoint = self.selected_checkpoint()
        path = os.path.join(self.folder, RESULTS)
        results = read_results(path, self.made_from(checkpoint))
        if results is None:
            return None
        if lack := self._lack(results):
            console.say(f"{path}: evaluated again: {lack}")
            return None
        console.say(
            f"{path}: of step {checkpoint.step} already, reused; --mode=eval evaluates "
            "again"
        )
        return results

    def _lack(self, results):
        """What results.json or the answers lack, in words, or ""."""
        if not all(isinstance(results.get(split), dict) for split in run_folder.SPLITS):
            return "it lacks the scores of dev or test files"
        scored_files = {
            (split, name) for split in run_folder.SPLITS for name in results[split]
        }
        if scored_files != set(self.plan.data.files_to_answer()):
            return "it has other languages"
        return self.lack_of_answers(self.folder)

    def lack_of_answers(self, folder: str) -> str:
        """Which of this run's answers the folder lacks, in words, or ""."""
        source = self._source_of(self.selected_checkpoint())
        # What earlier versions did not record agrees with anything.
        saved_source = _source_of_answers(folder) or source
        if not _is_source(saved_source, source):
            return "the predictions are of other weights or settings"
        saved_hashes = saved_source.get("files", {})
        for name, hashes in self._file_hashes().items():
            path = _answers_path(self.plan.task, folder, *name)
            if not files.exists(path):
                return f"{path} is missing"
            if saved_hashes.get(os.path.basename(path), hashes) != hashes:
                return f"{path} answers another file"
        return ""

    def _file_hashes(self):
        """The hashes of the files to answer, by split and language."""
        data = self.plan.data
        return {name: data.hashes([name]) for name in data.files_to_answer()}

    def _source_of(self, checkpoint):
        """What all answers of an evaluation share, besides the files of each."""
        return {
            "checkpoint": run_folder.weights_sha256(checkpoint.prefix),
            "settings": self._answer_settings(),
        }

    def _answer_settings(self):
        """The settings on which answers depend, besides those of training."""
        return {
            **dtype_settings(self.plan.config.mesh),
            **self.plan.task.answer_settings(),
        }

    @ends_with_a_line
    def predict(self, folder: str) -> list[str]:
        """Writes the answers to all dev and test files, labelled or not.

        They go to `run_folder.PREDICTIONS` of the folder of all runs. Returns the
        languages whose test files have labels.
        """
        task, checkpoint = self.plan.task, self.selected_checkpoint()
        labelled_languages = []
        self._tell_if_dev_has_changed()
        source, hashes = self._source_of(checkpoint), self._file_hashes()
        for file in self._answers("predicting", checkpoint):
            _write(task, folder, file, source, hashes)
            scores = task.score(file.language, file.examples, file.answers)
            if file.split == "test" and scores is not None:
                labelled_languages.append(file.language)
        self.plan.note_answers(folder)
        return labelled_languages

    def _catch_up(self, interval):
        """Evaluates the newest checkpoint if a kill prevented its evaluation."""
        step = checkpoint_step(latest_complete(self.folder))
        if interval and step and step % interval == 0:
            self._evaluate_dev()

    def _changes_of_dev(self):
        """How the dev file and the settings of its answers differ from those by which
        checkpoints were compared."""
        if not self.plan.selecting:
            return []
        scores, fields = self.scores(), self._shared_fields()
        saved_fields = {"files": scores.files, "settings": scores.settings}
        # What earlier versions did not record agrees with anything.
        saved_fields = {name: saved_fields[name] or fields[name] for name in fields}
        return changes(saved_fields, fields)

    def _shared_fields(self):
        """What the scores in dev.json share, as fields of `Scores`."""
        return {
            "files": self.plan.data.hashes([("dev", self.plan.data.source)]),
            "settings": self._answer_settings(),
        }

    def _tell_if_dev_has_changed(self):
        if dev_changes := self._changes_of_dev():
            console.say(
                f"{self.folder}: its checkpoint was selected before: "
                f"{in_words(dev_changes)}; --mode=train_and_evaluate compares again"
            )

    def _score_anew_if_dev_has_changed(self):
        """Scores of different dev files or settings cannot be compared."""
        if dev_changes := self._changes_of_dev():
            path, old_scores = os.path.join(self.folder, SCORES), self.scores().by_step
            console.say(
                f"{path}: {in_words(dev_changes)}; the best and the newest checkpoint "
                f"are evaluated again, without the other scores of {len(old_scores)} "
                "evaluations"
            )
            write_scores(self.folder, Scores({}, {}, False, **self._shared_fields()))
        best_folder = selected_folder(self.folder)
        has_best = self.plan.selecting and best_folder != self.folder
        # Otherwise a worse one would replace it, also after a kill between the two.
        if has_best and not self.scores().by_step:
            self._evaluate_dev(best_folder)

    @ends_with_a_line
    def _evaluate_dev(self, folder=None):
        """Evaluates the newest checkpoint of a folder, by default the run's own."""
        prefix = latest_complete(folder or self.folder)
        step = checkpoint_step(prefix)
        scores = read_scores(self.folder)
        if step in scores.by_step:
            return
        task = self.plan.task
        source = self.plan.data.source
        file_names = [("dev", source)]
        scores = scores._replace(**self._shared_fields())
        [file] = self._answers_to(file_names, prefix)
        metrics = task.score(source, file.examples, file.answers)
        write_scalars(
            os.path.join(self.folder, EVENTS),
            step,
            {_scalar_name(name, "dev", source): v for name, v in metrics.items()},
        )
        scores.by_step[step] = metrics
        headline = [metrics[name] for name in task.headline]
        scores.headline[step] = sum(headline) / len(headline)
        # The copy comes before the record that names it.
        is_kept = self.training.eval_every_steps and folder is None
        if scores.best_step == step and is_kept:
            keep_checkpoint(prefix, os.path.join(self.folder, BEST))
        write_scores(self.folder, scores)
        rank = "the best so far" if scores.best_step == step else "not the best"
        values = ", ".join(f"{name} {value:.2f}" for name, value in metrics.items())
        dev = f"{self.plan.data.source_name} dev"
        console.say(f"{dev} at step {step}: {values} ({rank})")

    def _say_what_is_evaluated(self):
        counts = Counter(split for split, _ in self.plan.data.files_to_answer())
        kinds = " and ".join(f"{count} {split}" for split, count in counts.items())
        noun = "file" if sum(counts.values()) == 1 else "files"
        hint = "; --splits=dev leaves the test files out" if len(counts) > 1 else ""
        console.say(f"{self.plan.task.name}: evaluates {kinds} {noun}{hint}")

    def _answers(self, activity, checkpoint):
        file_names = self.plan.data.files_to_answer()
        answers = self._answers_to(file_names, checkpoint.prefix)
        name = self.plan.task.name
        return console.track(answers, f"{activity} {name}, files", len(file_names))

    def _answers_to(self, file_names, prefix):
        """The answers of a checkpoint to each file."""
        plan = self.plan
        return answer_languages(
            plan.network,
            self.run_in(os.path.dirname(prefix)),
            self.training.eval_batch_size,
            plan.data,
            file_names,
            prefix,
        )


def steps_of(config: FinetuneConfig, features: Features) -> int:
    """Optimizer steps of a run; `features`: of the training set."""
    epochs, rows = config.finetuning.num_epochs, len(features["input_word_ids"])
    return math.ceil(epochs * rows / config.training.batch_size)


def _scalar_name(metric, split, language):
    """The tag of a scalar. TensorBoard shows all languages of a metric together."""
    return f"{metric}/{split}/{language}"


def _scores(task: FinetuningTask, file: AnsweredFile) -> dict[str, float]:
    metrics = task.score(file.language, file.examples, file.answers)
    return _beside_trivial(task, file.language, file.examples, metrics)


def _beside_trivial(task, language, examples, metrics):
    """Metrics, which may be None, with those of the trivial answers and `examples`."""
    scores = {} if metrics is None else dict(metrics)
    if metrics is not None:
        baseline = task.score(language, examples, task.trivial_answers(examples))
        scores |= {f"{TRIVIAL}{name}": value for name, value in baseline.items()}
    return {**scores, "examples": len(examples)}


def _answers_path(task: FinetuningTask, folder: str, split: str, language: str) -> str:
    name = f"{split}-{language}.{task.prediction_suffix}"
    return os.path.join(folder, run_folder.PREDICTIONS, task.name, name)


def _source_of_answers(folder: str) -> dict[str, Any] | None:
    """Checkpoint and settings of the answers in a folder, and for the name of each file
    of answers the hashes of what it answers; None if nothing says it."""
    path = os.path.join(folder, ANSWER_SOURCE)
    if files.exists(path):
        return files.read_json(path)
    # Earlier versions wrote answers with results.json alone.
    path = os.path.join(folder, RESULTS)
    results = files.read_json(path) if files.exists(path) else {}
    made_from = results.get(MADE_FROM) if isinstance(results, dict) else None
    if not isinstance(made_from, dict):
        return None
    return {name: made_from.get(name) for name in ("checkpoint", "settings")}


def _is_source(record: dict[str, Any], source: dict[str, Any]) -> bool:
    """Whether answers of `record` have the checkpoint and the settings of `source`."""
    has_settings = not changed_settings(record.get("settings"), source["settings"])
    return record.get("checkpoint") == source["checkpoint"] and has_settings


@hosts.by_first
def _begin_answers(
    folder: str, path: str, source: dict[str, Any], hashes: dict[str, str]
) -> None:
    """Removes the answers of another source, also of files that are not answered now,
    and those at `path` to another file; records what comes in their place."""
    place, name = os.path.split(path)
    old_source = _source_of_answers(folder) or {}
    known_hashes = old_source.get("files", {})
    if not _is_source(old_source, source):
        suffix, known_hashes = os.path.splitext(name)[1], {}
        patterns = [f"{split}-*{suffix}" for split in run_folder.SPLITS]
        stale_paths = [p for each in patterns for p in gfile.glob(f"{place}/", each)]
        if stale_paths:
            console.say(f"{place}: removed, of other weights or settings")
    elif known_hashes.get(name) == hashes:
        return
    else:
        stale_paths = [path] if files.exists(path) else []
    for stale_path in stale_paths:
        gfile.remove(stale_path)
    # After a kill here, the answers are missing.
    content = {**source, "files": {**known_hashes, name: hashes}}
    files.write_json(os.path.join(folder, ANSWER_SOURCE), content)


def _write(
    task: FinetuningTask,
    folder: str,
    file: AnsweredFile,
    source: dict[str, Any],
    hashes: dict[tuple[str, str], dict[str, str]],
) -> None:
    name = (file.split, file.language)
    path = _answers_path(task, folder, *name)
    _begin_answers(folder, path, source, hashes[name])
    files.make_folder(os.path.dirname(path))
    task.write(path, file.examples, file.answers)


def _say_unlabelled(task: FinetuningTask, results: dict[str, dict]) -> None:
    for split, languages in results.items():
        unlabelled = [
            language
            for language, values in languages.items()
            if task.metrics[0] not in values
        ]
        if unlabelled:
            lack = "two different numbers" if task.kind == REGRESSION else "labels"
            console.say(
                f"{task.name} {split}: no {lack} in {', '.join(unlabelled)}; "
                "predicted, not scored"
            )
