"""What a run has left: its description, its vocabulary, the checkpoint that counts.

Fine-tuning, continued pre-training, exports, analyses and retrieval open runs here, so
that all of them take the same checkpoint and refuse the same folders.
"""

import os
from typing import NamedTuple

from decoupled.core import gfile
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Vocabulary
from decoupled.runs import run_folder
from decoupled.runs.selection import BEST, chosen_checkpoint
from decoupled.training.checkpoints import find_checkpoint


class SavedRun(NamedTuple):
    """A run at one of its checkpoints.

    folder: with config.json. prefix: of the checkpoint, there or in its best/.
    description: what config.json says. vocabulary: its pieces.
    """

    folder: str
    prefix: str
    description: run_folder.ModelDir
    vocabulary: Vocabulary


def open_run(path: str) -> SavedRun:
    """Opens a run of `pretrain` or `finetune`, or a conversion.

    Args:
      path: its folder, for the checkpoint that fine-tuning chose as the best, else the
        newest complete one; or the prefix of a checkpoint.

    Raises:
      UserError: as `read_folder`; or there is no complete checkpoint.
    """
    if not gfile.isdir(path):
        prefix, place = find_checkpoint(path), os.path.dirname(path)
    else:
        prefix, place = None, path.rstrip("/")
    in_best = os.path.basename(place) == BEST
    folder = os.path.dirname(place) if in_best else place
    # Before the checkpoint, so that a folder of something else is called so.
    description, vocabulary = read_folder(folder)
    if prefix is None:
        prefix = chosen_checkpoint(place).prefix
    return SavedRun(folder, prefix, description, vocabulary)


def read_folder(folder: str) -> tuple[run_folder.ModelDir, Vocabulary]:
    """A run's description and vocabulary.

    Raises:
      UserError: a file is missing or not ours, or the vocabulary is not the one that
        the model was trained with.
    """
    description = run_folder.read(folder)
    vocabulary = Vocabulary(run_folder.vocabulary_path(folder))
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
