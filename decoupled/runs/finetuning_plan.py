"""What is checked before the first step of a fine-tuning, and the plan of its runs."""

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

from decoupled.configs import FinetuningConfig, ModelConfig
from decoupled.configs.finetuning import CLASSIFICATION, FinetuneConfig
from decoupled.configs.hardware import HOST, Hardware
from decoupled.core import console, files, hosts
from decoupled.core.errors import UserError
from decoupled.model.variables import NO_HEAD, TASK_BIAS, TASK_WEIGHTS, Role, declare
from decoupled.runs import run_folder
from decoupled.runs.saved_run import Model, open_model
from decoupled.runs.task_data import TaskData
from decoupled.tasks.task import FinetuningTask
from decoupled.training.bookkeeping import StopOnSignal
from decoupled.training.graph import Network, check_graph, frozen_by_rates, rates_of
from decoupled.training.loop import Run, check_devices
from decoupled.training.mesh import rows_multiple

# A run of more steps would plan its batches for hours.
_MOST_STEPS = 100_000_000


@dataclasses.dataclass(frozen=True)
class FinetuningPlan:
    """A task, its files, the weights that it starts from and a folder, which fit each
    other.

    A single run uses the folder itself; several runs use learning_rate_R/seed_S/ below
    it. A folder of several runs keeps these subfolders even for a single run.

    source: the pre-trained model. data: the task's files, and `examples`, those of
      training. frozen: names of the variables that are not trained.
    run: the folder of all runs, and what they have in common.
    rates: to choose from; seeds: of the chosen rate's runs.
    has_several_runs: whether runs have subfolders. selecting: whether checkpoints are
      compared on English dev. reading: whether nothing is trained.
    runs: those whose folders are claimed, by rate and seed.
    """

    config: FinetuneConfig
    source: Model
    data: TaskData
    examples: list[Any]
    network: Network
    frozen: tuple[str, ...]
    run: Run
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    has_several_runs: bool
    selecting: bool
    reading: bool
    runs: dict[tuple[float, int], Any] = dataclasses.field(default_factory=dict)

    @property
    def task(self) -> FinetuningTask:
        return self.data.task

    @property
    def folder(self) -> str:
        return self.run.model_dir

    def folder_of(self, rate: float, seed: int) -> str:
        if not self.has_several_runs:
            return self.folder
        return os.path.join(self.folder, run_folder.RUN.format(f"{rate:g}", seed))

    def claim(self, folder: str, **run_settings: Any) -> None:
        """Claims a folder for these settings and those of a single run."""
        task, vocabulary = self.task, self.source.vocabulary
        finetuning, training = self.config.finetuning, self.config.training
        description = run_folder.ModelDir(
            command="finetune",
            model=self.network.model,
            vocabulary_fingerprint=vocabulary.fingerprint,
            vocabulary_kind=vocabulary.kind,
            task={"name": task.name, "kind": task.kind, "labels": list(task.labels)},
            data={
                **self._start,
                "features": task.settings(),
                "num_epochs": finetuning.num_epochs,
                "class_weights": finetuning.class_weights,
                "headline": list(task.headline),
                "batch_size": training.batch_size,
                "eval_every_steps": training.eval_every_steps,
                "matmul_precision": self.config.mesh.matmul_precision,
                "attention_kernel": self.config.mesh.attention_kernel,
                **self._training_settings(folder),
                **run_settings,
            },
        )
        contents = {
            "data.train": ", ".join(task.paths("train", self.data.source)),
            "data.train_indexes": ", ".join(task.indexes("train", self.data.source)),
            "data.init_checkpoint_sha256": self.source.weights.path,
        }
        run_folder.claim(folder, description, vocabulary, self.reading, contents)
        has_answers = files.exists(os.path.join(folder, run_folder.PREDICTIONS))
        if not (self.reading or has_answers):
            self.note_answers(folder)

    def note_answers(self, folder: str) -> None:
        """Records for exports how the answers in a folder are chosen."""
        if answers := self.task.answer_settings():
            files.write_json(os.path.join(folder, run_folder.ANSWERS), answers)

    @functools.cached_property
    def _start(self) -> dict[str, Any]:
        weights = self.source.weights.path
        indexes = self.task.indexes("train", self.data.source)
        return {
            "init_checkpoint": os.path.basename(weights),
            "init_checkpoint_sha256": run_folder.weights_sha256(weights),
            "pretrained_layers": self.source.config.num_layers,
            "train": self.data.fingerprint("train", self.data.source),
            **(
                {"train_indexes": list(map(files.file_fingerprint, indexes))}
                if indexes
                else {}
            ),
        }

    def _training_settings(self, folder):
        """Settings of training alone; evaluation takes those of the folder's run."""
        finetuning, optimizer = self.config.finetuning, vars(self.config.optimizer)
        settings = {
            "classifier_dropout": finetuning.classifier_dropout,
            "freeze_input_embedding": finetuning.freeze_input_embedding,
            "warmup_fraction": finetuning.warmup_fraction,
            # No rates of variables, as in runs from before this setting.
            "optimizer": {
                name: value
                for name, value in optimizer.items()
                if name != "learning_rate" and (value or name != "rates")
            },
        }
        claimed_data = _claimed_data(folder) if self.reading else None
        if claimed_data is None:
            return settings
        # A run of an earlier version may have smoothed labels, in training alone.
        has_smoothing = bool(claimed_data.get("label_smoothing"))
        names = (*settings, *(["label_smoothing"] if has_smoothing else []))
        return {name: claimed_data[name] for name in names if name in claimed_data}


def plan_finetuning(
    config: FinetuneConfig,
    task: FinetuningTask,
    init_checkpoint: str,
    folder: str,
    mode: str,
    num_runs: int,
    cache: str,
    hardware: Hardware = HOST,
    splits: Sequence[str] = run_folder.SPLITS,
) -> FinetuningPlan:
    """Checks all that can be checked before the first step. Writes nothing.

    All files are read, so that no run fails at a malformed file after its training.

    Args:
      folder: of all runs. num_runs: seeds. cache: folder of features.
      splits: whose files are evaluated and predicted, of "dev" and "test".
    """
    check_devices(hardware, config.mesh, console.say)
    if hardware.tpu is not None and hardware.tpu.name != "local":
        raise UserError(
            f"--tpu={hardware.tpu.name}: batches of fine-tuning are made by Python, "
            "which the workers of a slice of several hosts do not run; use "
            "--accelerator=tpu, or --tpu=local on a slice of one host"
        )
    source = open_model(init_checkpoint)
    task.check_vocabulary(source.vocabulary)
    model = finetuned_model(source.config, config.finetuning)
    data = TaskData(task, source.vocabulary, cache, splits, model.type_vocab_size)
    examples = data.examples("train", data.source)
    rates, rate = learning_rates(config, data), config.optimizer.learning_rate
    if rate not in (FinetuneConfig.DEFAULTS["OptimizerConfig.learning_rate"], *rates):
        console.say(
            f"OptimizerConfig.learning_rate = {rate:g} has no effect: "
            f"FinetuningConfig.learning_rates = {rates} chooses"
        )
    if config.training.eval_sequences:
        console.say(
            f"TrainingConfig.eval_sequences = {config.training.eval_sequences} has no "
            "effect: fine-tuning evaluates whole files"
        )
    epochs, batch_size = config.finetuning.num_epochs, config.training.batch_size
    if epochs * len(examples) > _MOST_STEPS * batch_size:
        raise UserError(
            f"FinetuningConfig.num_epochs: {epochs:g} epochs of {len(examples):,} "
            f"examples are more than {_MOST_STEPS:,} steps of {batch_size}"
        )
    claimed_data = _claimed_data(folder)
    # Only the folder of a single run names its seed.
    holds_several = claimed_data is not None and "seed" not in claimed_data
    has_several_runs = len(rates) * num_runs > 1 or holds_several
    is_compared = has_several_runs or config.training.eval_every_steps > 0
    finetuning, training = config.finetuning, config.training
    head = task.network(finetuning.classifier_dropout)
    # The rows of packed batches, and how many examples a row has, are known later: any
    # number above 1 shows mistakes, and rows are always some that the mesh can split.
    packed_network = Network(head.packed(2), model, config.mesh)
    rows = rows_multiple(config.mesh, training.gradient_accumulation)
    sizes = dataclasses.replace(training, batch_size=rows, eval_batch_size=rows)
    frozen = frozen_by_rates(packed_network, config.optimizer)
    if finetuning.freeze_input_embedding:
        encoder = declare(model, NO_HEAD).items()
        embedding_names = {n for n, v in encoder if v.role is Role.INPUT_EMBEDDING}
        for name, rate in rates_of(packed_network, config.optimizer).items():
            if name in embedding_names and rate:
                raise UserError(
                    f"OptimizerConfig.rates: {rate} for {name}, which "
                    "FinetuningConfig.freeze_input_embedding does not train"
                )
        frozen += tuple(sorted(embedding_names.difference(frozen)))
        if len(frozen) == len(packed_network.variables):
            raise UserError(
                "OptimizerConfig.rates, FinetuningConfig.freeze_input_embedding: "
                "nothing is trained"
            )
    check_graph(packed_network, sizes, frozen)
    english_dev = [("dev", data.source)] if data.has_source_dev() else []
    answered_files = [] if mode == "train" else data.files_to_answer()
    compared_files = english_dev if mode in run_folder.TRAINING_MODES else []
    names = list(dict.fromkeys([*compared_files, *answered_files]))
    data.check(examples, names)
    if hosts.count() > 1:
        hosts.agree("the files of the task", data.hashes(names))
    is_single = claimed_data is not None and "learning_rate" in claimed_data
    if has_several_runs and is_single and run_folder.holds_results(folder):
        raise UserError(
            f"{folder}: holds a single run, of learning rate "
            f"{claimed_data['learning_rate']} and seed {claimed_data['seed']}; several "
            "runs need a folder of their own: use another --model_dir"
        )
    return FinetuningPlan(
        config=config,
        source=source,
        data=data,
        examples=examples,
        network=Network(head, model, config.mesh),
        frozen=frozen,
        run=Run(
            folder,
            source.weights.path,
            console.say,
            StopOnSignal(),
            hardware,
            _other_head(source, task),
        ),
        rates=rates,
        seeds=tuple(range(training.seed, training.seed + num_runs)),
        has_several_runs=has_several_runs,
        selecting=bool(english_dev) and is_compared,
        reading=mode not in run_folder.TRAINING_MODES,
    )


def learning_rates(config: FinetuneConfig, data: TaskData) -> tuple[float, ...]:
    """The learning rates of the runs.

    Raises:
      UserError: there are several, and no dev file to choose by.
    """
    rates = config.finetuning.learning_rates or (config.optimizer.learning_rate,)
    if len(rates) > 1 and not data.has_source_dev():
        raise UserError(
            f"FinetuningConfig.learning_rates: {len(rates)} to choose from, but "
            f"{data.task.name} has no {data.source_name} dev file with labels to "
            "choose by; give one rate"
        )
    return rates


def finetuned_model(model: ModelConfig, config: FinetuningConfig) -> ModelConfig:
    """The pre-trained model's sizes with only the layers that are kept."""
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
    return model.with_layers(config.keep_layers or model.num_layers)


def _other_head(source: Model, task: FinetuningTask) -> tuple[str, ...]:
    """The variables of a head that a fine-tuned or converted model has for other labels
    or another kind of answer; their shapes may fit."""
    source_task, labels = source.description.task or {}, list(task.labels)
    is_same = source_task.get("kind", CLASSIFICATION) == task.kind
    if is_same and labels in ([], source_task.get("labels")):
        return ()
    return (TASK_WEIGHTS, TASK_BIAS)


def _claimed_data(folder):
    """The `data` of a folder's config.json, or None. It has a seed if the folder is
    that of a single run."""
    if not files.exists(os.path.join(folder, run_folder.CONFIG)):
        return None
    return run_folder.read(folder).data
