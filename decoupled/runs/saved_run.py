"""What a run has written: its description, vocabulary and selected checkpoint.

Fine-tuning selects a checkpoint on English dev as it trains: `dev.json` in the run's
folder has the scores of every checkpoint that was evaluated, and `best/` the weights of
the best one, which the run's own saver never deletes. Without a `best/`, the run's
newest checkpoint is the selected one.

Fine-tuning, continued pre-training, exports, conversions, analyses and retrieval open
models with `open_model`, so that all of them use the same checkpoint and refuse the
same folders.
`run_folder`, which reads and writes config.json, is a separate module, because commands
import its constants and this module needs TensorFlow.
"""

import dataclasses
import os
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.configs.finetuning import CLASSIFICATION
from decoupled.core import files, gfile, hosts
from decoupled.core.errors import UserError
from decoupled.core.files import CHECKPOINT_LIST
from decoupled.data.vocabulary import Vocabulary, open_vocabulary, vocabulary_path
from decoupled.model import variables as names
from decoupled.runs import run_folder
from decoupled.training.checkpoint_files import CheckpointFile
from decoupled.training.checkpoints import (
    checkpoint_step,
    copy_without_slots,
    find_checkpoint,
    listed_checkpoints,
    write_list,
)

SCORES = "dev.json"
BEST = "best"
INPUT, OUTPUT = "input", "output"


class SelectedCheckpoint(NamedTuple):
    """The folder, prefix and step of a checkpoint."""

    folder: str
    prefix: str
    step: int


class Scores(NamedTuple):
    """What dev.json says.

    by_step: step -> metric -> value on English dev. headline: step -> the score that
    compares checkpoints. complete: whether the run has reached its last step.
    files: name -> SHA-256 of the dev file. settings: with which it was answered. Both
      are None in a file of an earlier version.
    """

    by_step: dict[int, dict[str, float]]
    headline: dict[int, float]
    complete: bool
    files: dict[str, str] | None = None
    settings: dict[str, Any] | None = None

    @property
    def best_step(self) -> int | None:
        """The first step wins a tie."""
        return max(self.headline, key=self.headline.get) if self.headline else None

    @property
    def best(self) -> float | None:
        return max(self.headline.values()) if self.headline else None


def read_scores(folder: str) -> Scores:
    """The scores of a run; empty if nothing was evaluated yet."""
    path = os.path.join(folder, SCORES)
    if not files.exists(path):
        return Scores({}, {}, False)
    record = files.read_json(path)
    try:
        return Scores(
            {row["global_step"]: row["metrics"] for row in record["evaluations"]},
            {row["global_step"]: row["headline"] for row in record["evaluations"]},
            record["complete"],
            record.get("files"),
            record.get("settings"),
        )
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not scores by step ({files.reason(error)}); remove it, and the "
            "run evaluates its newest checkpoint again"
        ) from error


def write_scores(folder: str, scores: Scores) -> None:
    """Replaces dev.json."""
    rows = [
        {"global_step": step, "headline": scores.headline[step], "metrics": metrics}
        for step, metrics in sorted(scores.by_step.items())
    ]
    record: dict[str, Any] = {
        "best_step": scores.best_step,
        "complete": scores.complete,
        "files": scores.files,
        "settings": scores.settings,
        "evaluations": rows,
    }
    files.write_json(os.path.join(folder, SCORES), record)


@hosts.by_first
def keep_checkpoint(prefix: str, folder: str) -> None:
    """Copies a checkpoint, without slots, to `folder` and removes all others there.

    The folder's list names the earlier checkpoint until the copy is complete, so that a
    kill in between leaves that one in use. One of the same step, as of another seed, is
    overwritten; a kill may then leave none that is complete. A link to another folder
    is refused, and so is another run.
    """
    files.check_is_no_link(folder)
    if files.exists(os.path.join(folder, run_folder.CONFIG)):
        raise UserError(
            f"{folder}: holds another run, where the selected checkpoint of this one "
            "belongs; move it elsewhere"
        )
    files.make_folder(folder)
    name = os.path.basename(prefix)
    copy = os.path.join(folder, name)
    copy_without_slots(prefix, copy)
    write_list(folder, [name])
    copies = {os.path.basename(p) for p in gfile.glob(copy, ".*")} | {CHECKPOINT_LIST}
    for stale_name in {name.rstrip("/") for name in gfile.listdir(folder)} - copies:
        path = os.path.join(folder, stale_name)
        if not gfile.isdir(path):
            gfile.remove(path)


def selected_folder(folder: str) -> str:
    """The folder of a run's selected checkpoint: best/, or else its own."""
    best = os.path.join(folder, BEST)
    has_checkpoint = files.exists(os.path.join(best, CHECKPOINT_LIST))
    return best if has_checkpoint and _is_selected(best) else folder


def _is_selected(folder: str) -> bool:
    """Whether a folder is for the selected checkpoint of the run around it. A run's own
    folder may have the name of BEST, too."""
    has_config = files.exists(os.path.join(folder, run_folder.CONFIG))
    return os.path.basename(folder) == BEST and not has_config


def selected_checkpoint(folder: str, *, verify: bool = True) -> SelectedCheckpoint:
    """The selected checkpoint of a run: the one in best/, or else the newest.

    `verify` is as for `open_model`.
    """
    place = selected_folder(folder)
    if place == folder:
        _check_is_chosen(folder)
    prefix = find_checkpoint(place) if verify else _newest_listed(place)
    step, scores = checkpoint_step(prefix), read_scores(folder)
    if place == folder and scores.complete and scores.best_step not in (None, step):
        raise UserError(
            f"{os.path.join(folder, BEST)}: is gone, which had the checkpoint of step "
            f"{scores.best_step} that {SCORES} chooses; restore it, or remove {SCORES} "
            "and fine-tune again, which selects among what is left"
        )
    return SelectedCheckpoint(place, prefix, step)


def _check_is_chosen(folder: str) -> None:
    """Refuses a folder of several runs, of which none is in best/ yet."""
    if listed_checkpoints(folder):
        return
    list_of_run = os.path.join(run_folder.RUN.format("*", "*"), CHECKPOINT_LIST)
    if lists := gfile.glob(f"{folder.rstrip('/')}/", list_of_run):
        run = os.path.dirname(lists[0])
        raise UserError(
            f"{folder}: its runs are not complete, so that no best one is chosen; run "
            f"finetune again to go on, or give one of them, as {run}"
        )


@dataclasses.dataclass(frozen=True)
class Model:
    """A trained model at one of its checkpoints.

    name: for tables and messages. folder: with config.json, which `description` is.
    config: its sizes. vocabulary: its pieces. weights: of the checkpoint.
    """

    name: str
    folder: str
    config: ModelConfig
    vocabulary: Vocabulary
    weights: CheckpointFile
    description: run_folder.ModelDir

    @property
    def embeddings(self) -> list[str]:
        """ "input" and, if the checkpoint has a separate output embedding, "output".

        A coupled model has one table; fine-tuning keeps only the input embedding.
        """
        has_output = names.output_matrix(self.config).name in self.weights
        return [INPUT, OUTPUT] if has_output and not self.config.coupled else [INPUT]

    def embedding(self, kind: str) -> np.ndarray:
        """One table, [V, E_in] or [V, E_out]; every call reads it again."""
        if kind == INPUT:
            return self.weights[names.WORD_EMBEDDINGS]
        return self.weights[names.output_matrix(self.config).name]

    def check_length(
        self, length: int, setting: str = "MaskingConfig.sequence_length"
    ) -> None:
        if length > self.config.max_positions:
            raise UserError(
                f"{setting}: {length}, but {self.name} has "
                f"max_positions = {self.config.max_positions}"
            )


def open_model(
    path: str, checkpoint: str | None = None, *, verify: bool = True
) -> Model:
    """Opens what `pretrain`, `finetune` or `convert` wrote.

    Args:
      path: its folder, for the selected checkpoint; or the prefix of a checkpoint.
      checkpoint: a prefix or a folder, or the name of one in `path`; None for the
        selected checkpoint of `path`.
      verify: whether the checkpoint is read to check that it is complete; False for a
        caller that reads every weight.
    """
    place, prefix = path.rstrip("/"), checkpoint
    if checkpoint and "/" not in checkpoint:
        prefix = os.path.join(place, checkpoint)
    elif not checkpoint and not gfile.isdir(path):
        place, prefix = os.path.dirname(path), find_checkpoint(path)
    folder = os.path.dirname(place) if _is_selected(place) else place
    # Read first, so that the error for an unrelated folder is about config.json.
    description, vocabulary = read_folder(folder)
    if prefix is None or gfile.isdir(prefix):
        prefix = selected_checkpoint(prefix or place, verify=verify).prefix
    elif verify:
        prefix = find_checkpoint(prefix)
    _check_same_run(prefix, folder, description)
    return Model(
        name=os.path.basename(folder),
        folder=folder,
        config=description.model,
        vocabulary=vocabulary,
        weights=CheckpointFile(prefix),
        description=description,
    )


def _check_same_run(prefix: str, folder: str, description: run_folder.ModelDir) -> None:
    """Refuses a checkpoint beside which another model, vocabulary or task is described.

    Where one of the two has no task, its weights show whether they fit.
    """
    place = os.path.dirname(prefix)
    if _is_selected(place):
        place = os.path.dirname(place)
    if place == folder or not files.exists(os.path.join(place, run_folder.CONFIG)):
        return
    expected_parts = _described_parts(description)
    for part, value in _described_parts(run_folder.read(place)).items():
        if None not in (value, expected_parts[part]) and value != expected_parts[part]:
            raise UserError(
                f"--checkpoint: {prefix} is of another run, whose {part} differs from "
                f"that of {folder}; give its own folder"
            )


def _described_parts(description: run_folder.ModelDir) -> dict[str, Any]:
    """What gives the weights of a run their meaning; a task's name does not."""
    parts = {
        "model": description.model,
        "vocabulary": description.vocabulary_fingerprint,
        "task": None,
    }
    if (task := description.task) is not None:
        parts["task"] = (task.get("kind", CLASSIFICATION), task.get("labels", []))
    return parts


def _newest_listed(folder: str) -> str:
    """The prefix of the newest checkpoint of a folder, which is not read."""
    if prefixes := listed_checkpoints(folder):
        return prefixes[-1]
    raise UserError(
        f"{folder}: no readable list of checkpoints ({CHECKPOINT_LIST}); name one with "
        "--checkpoint=PREFIX"
    )


def read_folder(folder: str) -> tuple[run_folder.ModelDir, Vocabulary]:
    """A run's description and vocabulary, which belongs to it."""
    description = run_folder.read(folder)
    vocabulary = open_vocabulary(vocabulary_path(folder))
    if vocabulary.fingerprint != description.vocabulary_fingerprint:
        raise UserError(
            f"{vocabulary.path}: is not the vocabulary that the model was trained with "
            f"(fingerprint {vocabulary.fingerprint}, {run_folder.CONFIG} says "
            f"{description.vocabulary_fingerprint})"
        )
    rows = description.model.vocab_size
    if vocabulary.size > rows:
        raise UserError(
            f"{vocabulary.path}: {vocabulary.size} pieces, the model has embeddings "
            f"for {rows}; it is another vocabulary"
        )
    return description, vocabulary
