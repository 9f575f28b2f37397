"""The tasks that `finetune` knows, by name, none of them imported yet."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from decoupled.configs import FinetuningConfig, QuestionAnsweringConfig
from decoupled.core.errors import UserError

if TYPE_CHECKING:
    from decoupled.tasks.finetuning_task import FinetuningTask

CLASSIFICATION = "classification"
TAGGING = "tagging"
QUESTION_ANSWERING = "question answering"


class Entry(NamedTuple):
    """kind: what the model's head does. make: see `make_task` for its arguments."""

    kind: str
    make: Callable[..., "FinetuningTask"]


def make_task(
    name: str,
    data_dir: str,
    finetuning: FinetuningConfig,
    question_answering: QuestionAnsweringConfig | None,
) -> "FinetuningTask":
    """The task of a name.

    Args:
      name: one of `TASKS`. data_dir: the folder with a folder per task.
      finetuning: settings of all tasks.
      question_answering: more of them, which only such tasks need.

    Raises:
      UserError: its settings cannot work, or what it reads to begin with is missing.
    """
    entry = TASKS[name]
    if finetuning.class_weights != "none" and entry.kind != CLASSIFICATION:
        raise UserError(
            f"FinetuningConfig.class_weights: {finetuning.class_weights!r} is for "
            f"classification only; {name} is {entry.kind}"
        )
    return entry.make(name, data_dir, finetuning, question_answering)


def _pairs(name, data_dir, finetuning, question_answering):
    from decoupled.tasks.classification import LABELS, SequenceClassificationTask

    length = finetuning.max_sequence_length
    return SequenceClassificationTask(name, LABELS[name], length)


def _of_corpus(name, data_dir, finetuning, question_answering):
    from decoupled.tasks.classification import CorpusTask

    return CorpusTask(name, data_dir, finetuning.max_sequence_length)


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
    "sib200": Entry(CLASSIFICATION, _of_corpus),
}
