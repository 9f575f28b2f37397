"""The tasks of `finetune --task=NAME`, and how a task is made of its description.

An entry of `TASKS` is all that a task of XTREME's form needs.
"""

import functools
from typing import TYPE_CHECKING

from decoupled.configs import FinetuningConfig, QuestionAnsweringConfig
from decoupled.configs.finetuning import (
    CLASSIFICATION,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
    OwnTaskConfig,
)
from decoupled.core.errors import UserError
from decoupled.metrics.labels import accuracy
from decoupled.tasks.description import (
    CORPUS,
    INDEX,
    SPLITS,
    XTREME,
    TaskDescription,
    describe_task,
)
from decoupled.xtreme import official
from decoupled.xtreme.files import PARTS_OF_SPEECH, SPELLINGS

if TYPE_CHECKING:
    from decoupled.tasks.task import FinetuningTask

# The task that OwnTaskConfig describes.
OWN = "own"
CATALOGS = "catalogs"
_SQUAD_TRAIN, _SQUAD_DEV = ("squad/train-v1.1.json",), ("squad/dev-v1.1.json",)
_MLQA_DEV = "mlqa/MLQA_V1/dev/dev-context-{language}-question-{language}.json"
_TYDIQA_TRAIN = "tydiqa/tydiqa-goldp-v1.1-train/"
_DOWNLOAD = "XTREME's scripts/download_data.sh"


def _xtreme(name, kind, files, metrics="", how_to_get="", **fields):
    headline = official.TASKS[name].headline
    return TaskDescription(
        name=name,
        kind=kind,
        files=files,
        score=functools.partial(official.score_language, name),
        metrics=(*headline, *metrics.split()),
        headline=headline,
        how_to_get=how_to_get,
        form=XTREME,
        **fields,
    )


def _splits(*patterns):
    return {s: tuple(p.replace("{split}", s) for p in patterns) for s in SPLITS}


def _pairs(name, labels, origin, **fields):
    """Tables of sentence, sentence, label; XTREME's test files lack the label."""
    how_to_get = f"{_DOWNLOAD} writes it from {origin}"
    files = _splits(f"{name}/{{split}}-{{language}}.tsv")
    columns = {"labels": labels, "texts": (1, 2), "label": 3}
    return _xtreme(
        name, CLASSIFICATION, files, how_to_get=how_to_get, **columns, **fields
    )


def _words(name, labels, metrics, origin):
    """Lines of a word, a tab and its tag. XTREME's preprocessing writes the sentences
    that it has divided to {language}/; they are read if the whole file is missing."""
    return _xtreme(
        name,
        TAGGING,
        _splits(
            f"{name}/{{split}}-{{language}}.tsv",
            f"{name}/{name}_processed_maxlen{{any}}/{{language}}/{{split}}.{{any}}{INDEX}",
        ),
        metrics,
        f"{_DOWNLOAD} writes it from {origin}",
        labels=labels,
    )


def _questions(name, train, dev):
    """Questions in SQuAD's JSON. Test files are where `decoupled score` finds labels,
    without the files of labels alone."""
    files = {"train": train, "dev": dev, "test": official.label_templates(name)[1:]}
    return _xtreme(
        name, QUESTION_ANSWERING, files, how_to_get=f"{_DOWNLOAD} fetches it"
    )


TASKS = {
    "xnli": _pairs(
        "xnli",
        ("contradiction", "entailment", "neutral"),
        "XNLI and MultiNLI",
        spellings=SPELLINGS["xnli"],
    ),
    "pawsx": _pairs("pawsx", ("0", "1"), "PAWS-X"),
    "panx": _words(
        "panx",
        ("B-LOC", "B-ORG", "B-PER", "I-LOC", "I-ORG", "I-PER", "O"),
        "precision recall",
        "AmazonPhotos.zip, which is fetched by hand (github.com/google-research/"
        "xtreme, issue 101)",
    ),
    "udpos": _words(
        "udpos",
        tuple(PARTS_OF_SPEECH),
        "precision recall accuracy f1_seqeval_1_2_2",
        "Universal Dependencies v2.5",
    ),
    # XQuAD has no dev set.
    "xquad": _questions("xquad", _SQUAD_TRAIN, _SQUAD_DEV),
    "mlqa": _questions("mlqa", _SQUAD_TRAIN, (_MLQA_DEV, *_SQUAD_DEV)),
    # TyDiQA-GoldP's test set is not published. XTREME tests on its dev set, so that a
    # checkpoint is selected on a part of the test set.
    "tydiqa": _questions(
        "tydiqa",
        # The second name is that of XTREME's script for training.
        (
            f"{_TYDIQA_TRAIN}tydiqa.goldp.en.train.json",
            f"{_TYDIQA_TRAIN}tydiqa.en.train.json",
        ),
        official.label_files("tydiqa", "en")[1:],
    ),
    # A text or two and a label, with tabs between; labels.txt has the labels.
    CATALOGS: TaskDescription(
        name=CATALOGS,
        kind=CLASSIFICATION,
        files=_splits(f"{CATALOGS}/{{split}}-{{language}}.tsv"),
        score=lambda language, labels, answers: accuracy(labels, answers),
        metrics=("accuracy",),
        headline=("accuracy",),
        how_to_get="decoupled build_corpus --source=catalogs:PACKAGE writes it",
        form=CORPUS,
        label="label",
    ),
    # Topics of parallel sentences (Adelani et al. 2024; github.com/dadelani/sib-200).
    "sib200": describe_task(
        OwnTaskConfig(
            name="sib200",
            kind=CLASSIFICATION,
            files="sib200/{split}-{language}.tsv",
            texts=("text",),
            label="category",
            metric="accuracy",
        )
    ),
}


def make_task(
    name: str,
    data_dir: str,
    finetuning: FinetuningConfig,
    question_answering: QuestionAnsweringConfig | None,
    own_task: OwnTaskConfig | None = None,
) -> "FinetuningTask":
    """The task of a name: one of `TASKS`, or OWN, which `own_task` describes."""
    if own_task is not None and name != OWN:
        raise UserError(
            f"OwnTaskConfig: is for --task={OWN}, and has no part in {name}"
        )
    description = _own_description(own_task) if name == OWN else TASKS[name]
    kind = description.kind
    if finetuning.class_weights != "none" and kind != CLASSIFICATION:
        raise UserError(
            f"FinetuningConfig.class_weights: {finetuning.class_weights!r} is for "
            f"classification only; {name} is {kind}"
        )
    length = finetuning.max_sequence_length
    return task_of(description, data_dir, length, question_answering)


def task_of(
    description: TaskDescription,
    data_dir: str,
    max_sequence_length: int,
    question_answering: QuestionAnsweringConfig | None = None,
) -> "FinetuningTask":
    """The task of a description. Its module is imported here, with TensorFlow."""
    arguments = (description, data_dir, max_sequence_length)
    if description.kind == CLASSIFICATION:
        from decoupled.tasks.classification import ClassificationTask

        return ClassificationTask(*arguments)
    if description.kind == REGRESSION:
        from decoupled.tasks.classification import RegressionTask

        return RegressionTask(*arguments)
    if description.kind == TAGGING:
        from decoupled.tasks.tagging import TaggingTask

        return TaggingTask(*arguments)
    from decoupled.tasks.qa import QuestionAnsweringTask

    config = question_answering or QuestionAnsweringConfig()
    return QuestionAnsweringTask(*arguments, config)


def _own_description(config):
    if config is None:
        raise UserError(
            "--task=own: needs a description; give --gin_file=tasks/own_texts.gin, or "
            "another of tasks/own_*.gin, and change what differs"
        )
    if config.name in TASKS:
        raise UserError(
            f"OwnTaskConfig.name: {config.name!r} is another task; use another name"
        )
    return describe_task(config)
