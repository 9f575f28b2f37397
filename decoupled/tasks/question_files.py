"""Where XTREME's question answering tasks lie below --data_dir.

| task | train (English) | dev | test |
|---|---|---|---|
| xquad | SQuAD 1.1's train | SQuAD 1.1's dev, English only | XQuAD |
| mlqa | the same | MLQA's dev; in English else SQuAD 1.1's | MLQA's test |
| tydiqa | TyDiQA-GoldP's train | its dev, English only | its dev |

XQuAD has no dev set of its own. Of TyDiQA-GoldP only train and dev are published:
XTREME tests on dev, and so chooses by a part of the test set, unless its script has
taken the answers out of it.
"""

import os

from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.xtreme.files import languages_of
from decoupled.xtreme.official import TASKS, english_first, label_files

_SQUAD_TRAIN = "squad/train-v1.1.json"
_SQUAD_DEV = "squad/dev-v1.1.json"
_MLQA = "mlqa/MLQA_V1/{split}/{split}-context-{language}-question-{language}.json"
_TYDIQA_TRAIN = [
    "tydiqa/tydiqa-goldp-v1.1-train/tydiqa.goldp.en.train.json",
    # As XTREME's training script spells what its download writes.
    "tydiqa/tydiqa-goldp-v1.1-train/tydiqa.en.train.json",
]
_ENGLISH = "en"
_HOW_TO_GET = {
    "squad": "XTREME's scripts/download_data.sh fetches SQuAD 1.1",
    "xquad": "XTREME's scripts/download_data.sh fetches github.com/deepmind/xquad",
    "mlqa": "XTREME's scripts/download_data.sh fetches MLQA_V1.zip",
    "tydiqa": "XTREME's scripts/download_data.sh fetches tydiqa-goldp-v1.1",
}


def question_languages(task: str, data_dir: str, split: str) -> list[str]:
    """The languages that have a file: English, XTREME's others, then the rest.

    Args:
      task: "xquad", "mlqa" or "tydiqa". data_dir: the folder with a folder per task.
      split: "train", "dev" or "test".
    """
    templates = _names(task, split, "{language}")
    found = [*TASKS[task].languages, *languages_of(data_dir, *templates)]
    return [
        name
        for name in english_first(task, found)
        if _find(task, data_dir, split, name)
    ]


def question_file(task: str, data_dir: str, split: str, language: str) -> str:
    """The file of a split in a language.

    Raises:
      UserError: there is none.
    """
    path = _find(task, data_dir, split, language)
    if path:
        return path
    what = f"the {split} file of task {task} in language {language!r}"
    names = _names(task, split, language)
    if not names:
        raise UserError(
            f"{data_dir}: no place for {what}; XTREME has this split in English only"
        )
    folder = names[0].split("/")[0]
    raise UserError(
        f"{os.path.join(data_dir, names[0])}: missing, {what}; {_HOW_TO_GET[folder]}"
    )


def _find(task, data_dir, split, language) -> str | None:
    paths = [os.path.join(data_dir, name) for name in _names(task, split, language)]
    return next((path for path in paths if files.exists(path)), None)


def _names(task, split, language) -> list[str]:
    """Where the file may lie, the first that is there; none for a file unknown here."""
    english = language == _ENGLISH
    if split == "train" and task != "tydiqa":
        return [_SQUAD_TRAIN] if english else []
    if task == "tydiqa" and split == "train":
        return _TYDIQA_TRAIN if english else []
    if task == "tydiqa":
        # Where `score` finds the labels, except for a file of labels alone.
        _, *names = label_files(task, language)
        return names if english or split == "test" else []
    if split == "test" and task == "xquad":
        return [f"xquad/xquad.{language}.json"]
    names = [_MLQA.format(split=split, language=language)] if task == "mlqa" else []
    return names + [_SQUAD_DEV] * (english and split == "dev")
