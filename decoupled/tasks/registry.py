"""The tasks of `finetune` by name. Their modules are imported when a task is made."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from decoupled.configs import FinetuningConfig, QuestionAnsweringConfig
from decoupled.configs.finetuning import (
    CLASSIFICATION,
    QUESTION_ANSWERING,
    TAGGING,
    OwnTaskConfig,
)
from decoupled.core.errors import UserError

if TYPE_CHECKING:
    from decoupled.tasks.task import FinetuningTask

# The task that OwnTaskConfig describes.
OWN = "own"


class Entry(NamedTuple):
    """kind: what the model's head does. make: see `make_task` for its arguments."""

    kind: str
    make: Callable[..., "FinetuningTask"]


def make_task(
    name: str,
    data_dir: str,
    finetuning: FinetuningConfig,
    question_answering: QuestionAnsweringConfig | None,
    own: OwnTaskConfig | None = None,
) -> "FinetuningTask":
    """The task of a name.

    Args:
      name: one of `TASKS`, or OWN. data_dir: the folder with a folder per task.
      finetuning: settings of all tasks.
      question_answering: further settings, which only question answering needs.
      own: describes the task OWN.

    Raises:
      UserError: settings are invalid, or files that the task reads at once are missing.
    """
    kind = _own(own).kind if name == OWN else TASKS[name].kind
    if finetuning.class_weights != "none" and kind != CLASSIFICATION:
        raise UserError(
            f"FinetuningConfig.class_weights: {finetuning.class_weights!r} is for "
            f"classification only; {name} is {kind}"
        )
    if name != OWN:
        return TASKS[name].make(name, data_dir, finetuning, question_answering)
    from decoupled.tasks.own import make_own_task

    length = finetuning.max_sequence_length
    return make_own_task(_own(own), data_dir, length, question_answering)


def _own(config):
    if config is None:
        raise UserError(
            "--task=own: needs a description; give --gin_file=tasks/own_texts.gin, or "
            "another of tasks/own_*.gin, and change what differs"
        )
    if config.name in TASKS:
        raise UserError(
            f"OwnTaskConfig.name: {config.name!r} is another task; use another name"
        )
    return config


def _pairs(name, data_dir, finetuning, question_answering):
    from decoupled.tasks.classification import LABELS, SequenceClassificationTask

    length = finetuning.max_sequence_length
    return SequenceClassificationTask(name, LABELS[name], length)


def _of_corpus(name, data_dir, finetuning, question_answering):
    from decoupled.tasks.classification import CorpusTask

    return CorpusTask(name, data_dir, finetuning.max_sequence_length)


def _sib200(name, data_dir, finetuning, question_answering):
    from decoupled.tasks.own import SIB200, make_own_task

    return make_own_task(SIB200, data_dir, finetuning.max_sequence_length, None)


def _tagging(name, data_dir, finetuning, question_answering):
    from decoupled.tasks.tagging import TaggingTask

    return TaggingTask(name, finetuning.max_sequence_length)


def _questions(name, data_dir, finetuning, question_answering):
    from decoupled.tasks.qa import QuestionAnsweringTask

    if question_answering is None:
        raise UserError(
            f"--task={name}: has no settings of its own; give --gin_file=tasks/{name}"
            ".gin"
        )
    length = finetuning.max_sequence_length
    return QuestionAnsweringTask(name, length, question_answering)


TASKS = {
    "xnli": Entry(CLASSIFICATION, _pairs),
    "pawsx": Entry(CLASSIFICATION, _pairs),
    "panx": Entry(TAGGING, _tagging),
    "udpos": Entry(TAGGING, _tagging),
    "xquad": Entry(QUESTION_ANSWERING, _questions),
    "mlqa": Entry(QUESTION_ANSWERING, _questions),
    "tydiqa": Entry(QUESTION_ANSWERING, _questions),
    "catalogs": Entry(CLASSIFICATION, _of_corpus),
    "books": Entry(CLASSIFICATION, _of_corpus),
    "sib200": Entry(CLASSIFICATION, _sib200),
}
