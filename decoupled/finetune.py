"""Fine-tunes a pre-trained encoder on an English task, evaluates it zero-shot.

Reads a pre-training run (--init_checkpoint: its folder or one of its checkpoints; the
output embedding and the MLM head are left behind) and the task's files below
--data_dir; writes checkpoints, TensorBoard events and results.json to --model_dir.
Started again it resumes; a folder with another model is refused.

  python -m decoupled.finetune --task=catalogs --data_dir=data/corpus/tasks \\
      --init_checkpoint=runs/decoupled --model_dir=runs/decoupled_catalogs

--mode: train_and_evaluate (default), train, eval (accuracy in every language, to
results.json), predict (labels and probabilities, to predictions/SPLIT-LANGUAGE.tsv).
Ends with code 143 where SIGTERM stopped it after saving: run it again to go on.
"""

import dataclasses
import math
import os
from typing import NamedTuple

import gin
from absl import flags

from decoupled import console, files, launch, model_dir
from decoupled.configs import (
    FinetuningConfig,
    MeshConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
)
from decoupled.errors import UserError

MODES = ("train_and_evaluate", "train", "eval", "predict")
SPLITS = ("dev", "test")
_EMBEDDINGS = ("bert/embeddings/", "bert/encoder/embedding_hidden_mapping_in/")


class FinetuneConfig(NamedTuple):
    """Everything that a fine-tuning run is made of, beside the pre-trained model."""

    finetuning: FinetuningConfig
    mesh: MeshConfig
    optimizer: OptimizerConfig
    training: TrainingConfig


@gin.configurable
def finetune(
    *,
    finetuning=gin.REQUIRED,
    mesh=gin.REQUIRED,
    optimizer=gin.REQUIRED,
    training=gin.REQUIRED,
) -> FinetuneConfig:
    """The root of the gin configuration; the model's sizes come with its checkpoint."""
    return FinetuneConfig(finetuning, mesh, optimizer, training)


def define_flags() -> None:
    """The command's flags."""
    from decoupled.tasks.catalogue import TASKS

    launch.define_gin_flags()
    flags.DEFINE_enum("task", None, sorted(TASKS), "What to learn.")
    flags.DEFINE_string("data_dir", None, "Folder with a folder per task.")
    flags.DEFINE_string(
        "init_checkpoint", None, "A pre-training run's folder, or one of its prefixes."
    )
    flags.DEFINE_string("model_dir", None, "Folder of the run, made if missing.")
    flags.DEFINE_enum("mode", "train_and_evaluate", MODES, "What to do.")
    flags.mark_flags_as_required(["task", "data_dir", "init_checkpoint", "model_dir"])


def main() -> None:
    """Parses the configuration and runs."""
    config = launch.parse_gin(finetune, "runs/finetune.gin")
    run_finetuning(
        config,
        flags.FLAGS.task,
        flags.FLAGS.data_dir,
        flags.FLAGS.init_checkpoint,
        flags.FLAGS.model_dir,
        flags.FLAGS.mode,
    )


def run_finetuning(
    config: FinetuneConfig,
    task: str,
    data_dir: str,
    init_checkpoint: str,
    folder: str,
    mode: str,
) -> None:
    """Trains, evaluates or predicts; see the module's docstring.

    Raises:
      UserError: checkpoint, task files, settings and folder do not fit each other.
    """
    from decoupled.training.checkpoints import find_checkpoint
    from decoupled.training.graph import check_graph

    prefix = find_checkpoint(init_checkpoint)
    source = os.path.dirname(prefix)
    pretrained = model_dir.read(source)
    session = _Session(config, task, data_dir, pretrained, source)
    description = model_dir.ModelDir(
        command="finetune",
        model=session.graph.model,
        vocabulary_fingerprint=pretrained.vocabulary_fingerprint,
        task={"name": task, "labels": session.labels},
        data={
            "init_checkpoint": os.path.basename(prefix),
            "train": session.fingerprint,
            "num_epochs": config.finetuning.num_epochs,
            "max_sequence_length": config.finetuning.max_sequence_length,
            "batch_size": config.training.batch_size,
            "seed": config.training.seed,
        },
    )
    check_graph(session.graph, config.training)
    model_dir.claim(folder, description, model_dir.vocabulary_path(source))
    launch.save_start(folder, "finetune")
    session.open(folder, prefix)
    if mode in ("train", "train_and_evaluate"):
        session.train()
    if mode == "eval" or (mode == "train_and_evaluate" and not session.evaluated()):
        session.evaluate()
    if mode == "predict":
        session.predict()


def finetuned_model(model, config: FinetuningConfig):
    """The pre-trained model's sizes with only the layers that are kept.

    Raises:
      UserError: more layers or positions are asked for than there are.
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


def _schedule(finetuning, training, examples):
    steps = math.ceil(finetuning.num_epochs * examples / training.batch_size)
    warmup = int(finetuning.warmup_fraction * steps)
    return ScheduleConfig(train_steps=steps, warmup_steps=warmup, decay="linear")


class _Session:
    """One run's graph, data and folder."""

    def __init__(self, config, task, data_dir, pretrained, source):
        from decoupled.data.vocabulary import Vocabulary
        from decoupled.tasks import examples
        from decoupled.tasks.catalogue import TASKS
        from decoupled.tasks.classification import Classification
        from decoupled.training.graph import GraphConfig

        self.config = config
        self.data = os.path.join(data_dir, TASKS[task].folder)
        self.labels = examples.read_labels(self.data)
        self.vocabulary = Vocabulary(model_dir.vocabulary_path(source))
        if self.vocabulary.fingerprint != pretrained.vocabulary_fingerprint:
            raise UserError(
                f"{self.vocabulary.path}: not the vocabulary of the checkpoint there"
            )
        finetuning, training = config.finetuning, config.training
        self.examples = examples.read_examples(self.data, "train", "en", self.labels)
        train_file = os.path.join(self.data, "train-en.tsv")
        self.fingerprint = files.file_fingerprint(train_file)
        self.graph = GraphConfig(
            task=Classification(
                task,
                self.labels,
                finetuning.max_sequence_length,
                finetuning.classifier_dropout,
                training.label_smoothing,
            ),
            model=finetuned_model(pretrained.model, finetuning),
            mesh=config.mesh,
            optimizer=config.optimizer,
            schedule=_schedule(finetuning, training, len(self.examples.label_ids)),
            accumulation=training.gradient_accumulation,
            seed=training.seed,
            frozen=_EMBEDDINGS if finetuning.freeze_input_embedding else (),
        )

    def open(self, folder, init_checkpoint):
        """Takes the folder that the run may write to."""
        from decoupled.training.hooks import StopOnSignal
        from decoupled.training.model_fn import RunSpec

        self.folder = folder
        self.run = RunSpec(
            folder, self.config.training, init_checkpoint, console.say, StopOnSignal()
        )

    def train(self):
        """Trains on English to the end."""
        from decoupled.tasks.input_fn import training_input_fn
        from decoupled.training.estimator import train

        arrays, training = self._arrays(self.examples), self.config.training
        count, steps = len(self.examples.label_ids), self.graph.schedule.train_steps
        console.say(f"{count} English examples, {steps} steps")
        train(
            self.graph,
            self.run,
            lambda step: training_input_fn(
                arrays, training.batch_size, training.seed, step
            ),
        )

    def _arrays(self, examples):
        import numpy as np

        from decoupled.tasks.features import pack_texts

        length = self.config.finetuning.max_sequence_length
        arrays = pack_texts(self.vocabulary, examples.texts, length)
        return {**arrays, "label_ids": np.array(examples.label_ids, np.int32)}

    def evaluated(self):
        """Whether results.json is of the newest checkpoint; if so, prints it."""
        from decoupled.training.checkpoints import checkpoint_step, find_checkpoint
        from decoupled.training.evaluation import finished_results

        step = checkpoint_step(find_checkpoint(self.folder))
        path = os.path.join(self.folder, "results.json")
        results = finished_results(path, step)
        if results is not None:
            console.say(f"{path}: of step {step} already, reused")
            _print_results(self.graph.task.name, step, results)
        return results is not None

    def evaluate(self):
        """Writes results.json and TensorBoard scalars; prints accuracy per language."""
        import numpy as np

        from decoupled.training.checkpoints import checkpoint_step, find_checkpoint
        from decoupled.training.events import write_scalars

        step = checkpoint_step(find_checkpoint(self.folder))
        majority = int(np.bincount(self.examples.label_ids).argmax())
        results = {split: {} for split in SPLITS}
        for split, language, gold, probabilities in self._predictions():
            gold = np.array(gold)
            results[split][language] = {
                "accuracy": float((probabilities.argmax(-1) == gold).mean()),
                "majority_accuracy": float((gold == majority).mean()),
                "examples": len(gold),
            }
        files.write_json(
            os.path.join(self.folder, "results.json"),
            {"task": self.graph.task.name, "global_step": step, **results},
        )
        scalars = {
            f"accuracy/{split}/{language}": values["accuracy"]
            for split, languages in results.items()
            for language, values in languages.items()
        }
        write_scalars(os.path.join(self.folder, "eval"), step, scalars)
        _print_results(self.graph.task.name, step, results)

    def predict(self):
        """Writes predictions/SPLIT-LANGUAGE.tsv: label and its probability."""
        for split, language, _, probabilities in self._predictions():
            folder = files.make_folder(os.path.join(self.folder, "predictions"))
            path = os.path.join(folder, f"{split}-{language}.tsv")
            with files.atomic_write(path) as handle:
                for row in probabilities:
                    best = int(row.argmax())
                    handle.write(f"{self.labels[best]}\t{row[best]:.6f}\n")
        console.say(f"wrote {os.path.join(self.folder, 'predictions')}")

    def _predictions(self):
        """Yields (split, language, gold ids, probabilities [examples, labels])."""
        from decoupled.tasks import examples
        from decoupled.tasks.input_fn import evaluation_input_fn
        from decoupled.training.evaluation import Part, predict_parts

        batch, parts, arrays, gold = self.config.training.eval_batch_size, [], [], {}
        for split in SPLITS:
            for language in examples.languages(self.data, split):
                read = examples.read_examples(self.data, split, language, self.labels)
                parts.append(Part(f"{split}/{language}", len(read.label_ids)))
                arrays.append(self._arrays(read))
                gold[f"{split}/{language}"] = read.label_ids
        if not parts:
            raise UserError(f"{self.data}: no dev-LANGUAGE.tsv or test-LANGUAGE.tsv")
        input_fn = evaluation_input_fn(arrays, batch)
        predictions = predict_parts(self.graph, self.run, input_fn, parts)
        for name, rows in console.track(predictions, "evaluating", len(parts)):
            split, language = name.split("/")
            yield split, language, gold[name], rows["probabilities"]


def _print_results(task, step, results):
    languages = set(results["dev"]) | set(results["test"])
    languages = sorted(languages, key=lambda name: (name != "en", name))
    rows = [
        [language]
        + [
            results[split].get(language, {}).get(metric)
            for split in SPLITS
            for metric in ("accuracy", "majority_accuracy", "examples")
        ]
        for language in languages
    ]
    console.table(
        f"{task} at step {step}; trained on English only",
        ["language", "dev", "majority", "examples", "test", "majority", "examples"],
        rows,
    )


if __name__ == "__main__":
    define_flags()
    launch.run(main, __doc__)
