"""The folder of a run: config.json and its vocabulary beside the checkpoints.

config.json describes the folder's model. It is written when a run starts for the first
time. Later starts must agree with it, so that a folder never mixes two models. It
contains values only, so that reading a file from elsewhere runs no code.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from decoupled.configs import ModelConfig, saved_model
from decoupled.configs.hardware import Hardware
from decoupled.configs.removed import REMOVED, had_effect, without_gone
from decoupled.core import console, files, gfile, hosts, locks
from decoupled.core.errors import UserError, quoted
from decoupled.core.files import CHECKPOINT_LIST, check_checkpoint_path, typed
from decoupled.core.made_from import differences
from decoupled.data.vocabulary import SENTENCEPIECE, Vocabulary, vocabulary_path

# The modes of `pretrain` and `finetune`, and those that train.
TRAINING_MODES = ("train_and_evaluate", "train")
MODES = (*TRAINING_MODES, "eval", "predict")
FORMAT = "decoupled-model-1"
CONFIG = "config.json"
# The folder of one of several runs of fine-tuning, by learning rate and seed.
RUN = "learning_rate_{}/seed_{}"
# The settings of training that may change at a resume, by the step of the change.
SETTINGS = "settings.json"
# The folder of answers to the files of a task, with a folder for each task.
PREDICTIONS = "predictions"
# The files of a fine-tuning task that are evaluated.
SPLITS = ("dev", "test")
# How answers were chosen in the last evaluation, or else in training, which does not
# depend on it.
ANSWERS = "answers.json"
# Results of a run: checkpoints, and scores that could be mistaken for another run's.
_RESULT_FILES = re.compile(
    rf"{CHECKPOINT_LIST}|model\.ckpt-\d+\.index|(dev|eval|results)\.json"
)
# Event files: second, host, and the step of the start or "results" (`training.events`).
_EVENTS = re.compile(r"events\.out\.tfevents\.\d+\..+\.(\d{12}|results)")
_OLD_RUNS = "replaced"
# A task's name becomes the name of a folder. In a converted model it may be any text.
_NAME = re.compile(r"(?!\.)[^/\\\x00-\x1f]*")
# Larger values in a damaged file would use up all memory before any other check.
_LARGEST_SIZE, _MOST_LAYERS = 2**31 - 1, 10_000
# Settings of earlier versions in config.json, and the values with which their runs can
# go on. `batches.json` says whether batches were packed.
_REMOVED_DATA = {name: removed.without_effect for (_, name), removed in REMOVED.items()}
_REMOVED_DATA["pack_sequences"] = (True, False)
_OPTIMIZER = "optimizer"
_REMOVED_ENTRIES = {f"data.{name}" for name in _REMOVED_DATA} | {
    f"data.{part}.{name}"
    for part, kind in ((_OPTIMIZER, "OptimizerConfig"), ("sampling", "SamplingConfig"))
    for owner, name in REMOVED
    if owner == kind
}
# The parts of the settings of pre-training that may change at a resume.
RESUMABLE = ("optimizer", "schedule", "training", "mesh")
# Settings of training that do not change the weights, and `rates`, which is in
# config.json.
_UNRECORDED_SETTINGS = (
    "rates",
    "save_checkpoints_steps",
    "keep_checkpoint_max",
    "log_steps",
    "eval_every_steps",
    "eval_batch_size",
    "eval_sequences",
    "iterations_per_loop",
)
# What earlier versions computed with, and did not record.
_EARLIER_SETTINGS = {"matmul_precision": "highest"}
# Settings that earlier versions did not record; such a folder agrees with any value.
_UNRECORDED_DATA = (
    "init_checkpoint_sha256",
    "pretrained_layers",
    "attention_kernel",
    "shards",
    "train_indexes",
    "headline",
    "classifier_dropout",
    "freeze_input_embedding",
    "warmup_fraction",
    _OPTIMIZER,
)


class ModelDir(NamedTuple):
    """What config.json says.

    command: "pretrain", "finetune" or "convert". model: sizes.
    vocabulary_fingerprint: SHA-256 of the vocabulary that the model was trained with.
    task: name, labels and the like of a fine-tuned model, or None.
    data: what else determines the data and its order (seed, batch size, masking, ...).
    vocabulary_kind: see `data.vocabulary`; earlier versions knew only SentencePiece.
    """

    command: str
    model: ModelConfig
    vocabulary_fingerprint: str
    task: dict[str, Any] | None
    data: dict[str, Any]
    vocabulary_kind: str = SENTENCEPIECE


def task_name(text: str) -> str:
    """Turns any text into the name of a task that `read` accepts; it may be empty."""
    return re.sub(r"[/\\\x00-\x1f]", "_", text).lstrip(".")


def read(model_dir: str) -> ModelDir:
    """Reads config.json."""
    path = os.path.join(model_dir, CONFIG)
    if not files.exists(path):
        raise UserError(
            f"{model_dir}: no {CONFIG}; is it a folder that pretrain or finetune wrote?"
        )
    return _description_of(path, files.read_json(path))


def classifier_dropout(model_dir: str) -> float | None:
    """The dropout rate before a task's layer in training, if that is known."""
    rate = read(model_dir).data.get("classifier_dropout")
    if rate is not None and not (type(rate) in (int, float) and 0 <= rate < 1):
        raise UserError(
            f"{os.path.join(model_dir, CONFIG)}: classifier_dropout is {quoted(rate)}, "
            "not a rate from 0 to below 1"
        )
    return rate


def weights_sha256(prefix: str) -> str:
    """What tells a checkpoint from others: its index has checksums of all tensors."""
    return files.file_fingerprint(f"{prefix}.index")


@contextlib.contextmanager
def opened(
    folder: str, hardware: Hardware, facts: Mapping[str, str], reading: bool
) -> Iterator[None]:
    """Keeps other commands out of a run's folder while the block runs.

    Where several processes train together, they join before anything is read; `facts`
    must be equal on all hosts. For `reading` see `locks.hold`.
    """
    joins = hardware.accelerator is not None
    with contextlib.ExitStack() as stack:
        if joins:
            from decoupled.training.xla.hosts import joined, shared

            stack.enter_context(joined(hardware, facts))
        stack.enter_context(locks.hold(folder, reading))
        if joins:
            stack.enter_context(shared(folder))
        yield


def claim(
    model_dir: str,
    description: ModelDir,
    vocabulary: Vocabulary,
    reading: bool = False,
    contents: Mapping[str, str] | None = None,
) -> None:
    """Writes the description of a model to the folder, or checks the one that is there.

    If no run has saved anything in the folder, a different description is replaced, and
    a line says so. The event files of the earlier run are moved to replaced.1 (or .2,
    ...), so that no plot mixes the two runs.

    Args:
      reading: whether the command only evaluates. It then replaces no description,
        because another process may train in the folder and have saved nothing yet.
      contents: name of an entry of the description that is a hash -> what was hashed,
        for messages.

    Several processes must describe the same model and data.
    """
    entries, contents = _as_json(description), contents or {}
    parts = {
        f"{part}.{name}": value
        for part in ("model", "vocabulary", "data")
        for name, value in entries[part].items()
    }
    parts |= {"command": entries["command"], "task": entries["task"]}
    hosts.agree(
        "the description of the run",
        {contents.get(name, name): str(value) for name, value in parts.items()},
    )
    _claim(model_dir, entries, vocabulary, reading, contents)


@hosts.by_first
def _claim(model_dir, entries, vocabulary, reading, contents):
    check_checkpoint_path(model_dir)
    path = os.path.join(model_dir, CONFIG)
    if reading and not files.exists(path):
        names = gfile.listdir(model_dir) if gfile.isdir(model_dir) else []
        if not any(name.endswith(".index") for name in names):
            raise UserError(f"{model_dir}: no complete checkpoint (model.ckpt-N.index)")
    files.make_folder(model_dir)
    if files.exists(path):
        saved_entries = files.read_json(path)
        _description_of(path, saved_entries)
        contents = {"vocabulary.fingerprint": vocabulary.path} | dict(contents)
        conflicts = _differences_in_words(saved_entries, entries, contents)
        if not conflicts:
            return
        if reading or holds_results(model_dir):
            if saved_entries["command"] == "convert":
                raise UserError(
                    f"{model_dir}: is a conversion, not a run that can go on; give it "
                    "as --init_checkpoint, and another --model_dir"
                )
            raise UserError(
                f"{model_dir}: holds another model: {'; '.join(conflicts)}; use its "
                "settings and files to go on, or another --model_dir"
            )
        folder_aside = _set_events_aside(model_dir)
        console.say(
            f"{path}: describes another model, which has saved nothing; it is replaced"
            + (f"; its event files are in {folder_aside}" if folder_aside else "")
        )
    elif files.exists(os.path.join(model_dir, CHECKPOINT_LIST)):
        raise UserError(
            f"{model_dir}: holds checkpoints but no {CONFIG}; use an empty folder"
        )
    # Removed first, so that a kill leaves no description with another vocabulary.
    for stale_path in (path, vocabulary_path(model_dir)):
        if files.exists(stale_path):
            gfile.remove(stale_path)
    name = os.path.join(model_dir, vocabulary.file_name)
    with files.atomic_write(name, "wb") as handle:
        handle.write(vocabulary.content)
    files.write_json(path, entries)


def _differences_in_words(saved_entries, entries, contents) -> list[str]:
    """How a description differs: "model.num_layers is 2, not 4", or, for an entry of
    `contents`, "FILE is not what the run began with"."""
    data = _without_removed_data(entries["data"])
    unrecorded_data = {name: data[name] for name in _UNRECORDED_DATA if name in data}
    earlier_settings = {n: v for n, v in _EARLIER_SETTINGS.items() if n in data}
    saved_data = _without_removed_data(saved_entries["data"])
    saved_data = earlier_settings | unrecorded_data | saved_data
    saved_entries = saved_entries | {"data": saved_data}
    entries = entries | {"data": data}
    changes = list(differences("", saved_entries, entries))
    if commands := [change for change in changes if change[0] == "command"]:
        # The entries of another command all differ.
        changes = commands
    return [_difference_in_words(*change, contents) for change in changes]


def _without_removed_data(data):
    """Drops settings that are gone and changed nothing."""
    known_data = {n: v for n, v in data.items() if v not in _REMOVED_DATA.get(n, ())}
    if isinstance(known_data.get(_OPTIMIZER), dict):
        known_data[_OPTIMIZER] = without_gone("OptimizerConfig", known_data[_OPTIMIZER])
    return known_data


def _difference_in_words(name, old, new, contents):
    if name in contents and "None" not in (old, new):
        if name == "data.init_checkpoint_sha256":
            return f"the run began from other weights than {contents[name]}"
        return f"{contents[name]} is not what the run began with"
    if name in _REMOVED_ENTRIES and new == "None":
        return f"{name} is {old}, which only the version that began the run has"
    return f"{name} is {old}, not {new}"


def differences_in_words(
    model_dir: str, description: ModelDir, contents: Mapping[str, str] | None = None
) -> list[str]:
    """How a folder's config.json differs, see `claim`."""
    return _differences_in_words(
        _as_json(read(model_dir)), _as_json(description), contents or {}
    )


@hosts.by_first
def note_settings(
    model_dir: str, settings: dict[str, Any], step: int, end: int
) -> None:
    """Records the settings of training from `step` on; says which of them change there.

    They are those that may change when a run resumes; all others are in config.json. At
    `end`, the last step of training, nothing is recorded.
    """
    entries = trained_settings(model_dir, step)
    old_settings = entries[-1]["settings"] if entries else settings
    old_settings = {
        name: value
        for name, value in old_settings.items()
        if name in settings or _had_effect(name, value)
    }
    current_settings = settings | {
        name: _removed_setting(name).without_effect[0]
        for name in old_settings.keys() - settings
    }
    changes = list(differences("", old_settings, current_settings))
    for name, old, new in changes:
        effect = f"is {new} from here"
        if step >= end:
            effect = f"the last; {new} has no effect on training"
        console.say(f"{name} was {old} until step {step}, {effect}")
    if step < end and (changes or not entries):
        entries.append({"from_step": step, "settings": settings})
    if entries != _read_settings(model_dir):
        files.write_json(os.path.join(model_dir, SETTINGS), entries)


def trained_settings(model_dir: str, step: int) -> list[dict[str, Any]]:
    """The entries of settings.json with which a run was trained, whose newest
    checkpoint is of `step`."""
    # What began at this step or later was never saved.
    return [entry for entry in _read_settings(model_dir) if entry["from_step"] < step]


def _read_settings(model_dir):
    path = os.path.join(model_dir, SETTINGS)
    entries = files.read_json(path) if files.exists(path) else []
    try:
        for entry in entries:
            typed(entry["from_step"], int)
            typed(entry["settings"], dict)
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not settings by step ({files.reason(error)}); remove it to go on"
        ) from error
    return entries


def _removed_setting(name):
    """The entry of `REMOVED` of a setting like "TrainingConfig.seed", or None."""
    owner, _, parameter = name.partition(".")
    return REMOVED.get((owner, parameter))


def _had_effect(name, value):
    owner, _, parameter = name.partition(".")
    return had_effect(owner, parameter, value)


def resumable_settings(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """The settings that a resumed run may change, as "OptimizerConfig.beta1": value.
    `names` are fields of `config`."""
    parts = [getattr(config, name) for name in names]
    return {
        f"{type(part).__name__}.{name}": value
        for part in parts
        for name, value in vars(part).items()
        if name not in _UNRECORDED_SETTINGS
    }


def holds_results(model_dir: str) -> bool:
    """Whether a run has saved results in this folder or in a folder below it."""
    return any(
        _RESULT_FILES.fullmatch(name)
        for _, _, names in gfile.walk(model_dir)
        for name in names
    )


def _set_events_aside(model_dir):
    """Moves event files of all runs in a folder; gives their new folder, or ""."""
    number = 1
    while files.exists(target := os.path.join(model_dir, f"{_OLD_RUNS}.{number}")):
        number += 1
    event_files = [
        os.path.relpath(os.path.join(folder, name), model_dir)
        for folder, _, names in gfile.walk(model_dir)
        for name in names
        if _EVENTS.fullmatch(name)
    ]
    moved_files = [f for f in event_files if not f.startswith(f"{_OLD_RUNS}.")]
    for name in moved_files:
        new_path = os.path.join(target, name)
        gfile.makedirs(os.path.dirname(new_path))
        gfile.rename(os.path.join(model_dir, name), new_path)
    return target if moved_files else ""


def _description_of(path, entries) -> ModelDir:
    """The content of config.json, with names, types and sizes checked. Settings of the
    model that `entries` lacks, as it comes from an earlier version, are added to it."""
    if not isinstance(entries, dict) or entries.get("format") != FORMAT:
        raise UserError(
            f'{path}: not the description of a model ("format": "{FORMAT}")'
        )
    try:
        model = saved_model(typed(entries["model"], dict))
        entries["model"] = vars(model)
        description = ModelDir(
            command=typed(entries["command"], str),
            model=model,
            vocabulary_fingerprint=typed(entries["vocabulary"]["fingerprint"], str),
            vocabulary_kind=typed(
                entries["vocabulary"].setdefault("kind", SENTENCEPIECE), str
            ),
            task=_task(entries["task"]),
            data=_data(entries["data"]),
        )
        # NaN and infinity, which no conversion could write again.
        json.dumps(entries, allow_nan=False)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(
            f"{path}: does not fit this version ({files.reason(error)})"
        ) from error
    for name, value in entries["model"].items():
        check_size(path, name, value)
    return description


def _task(task):
    if task is None:
        return None
    if not _NAME.fullmatch(typed(task.get("name", ""), str)):
        raise ValueError(f"{quoted(task['name'])} is not the name of a task")
    typed(task.get("kind", ""), str)
    for label in typed(task.get("labels", []), list):
        typed(label, str)
    return task


def _data(data):
    for rate in typed(typed(data, dict).get("rates") or {}, dict).values():
        if type(rate) not in (int, float):
            raise TypeError(f"rates: {quoted(rate)} is not a number")
    return data


def check_size(path: str, name: str, value: Any) -> None:
    """Raises UserError for a size of a model that no model can have."""
    limit = _MOST_LAYERS if name.endswith("_layers") else _LARGEST_SIZE
    if type(value) is int and value > limit:
        raise UserError(f"{path}: {name} is {value}, which no model can have")


def _as_json(description):
    return {
        "format": FORMAT,
        "command": description.command,
        "model": vars(description.model),
        "vocabulary": {
            "kind": description.vocabulary_kind,
            "fingerprint": description.vocabulary_fingerprint,
            "vocab_size": description.model.vocab_size,
        },
        "task": description.task,
        "data": description.data,
    }
