"""What a task is: its files, the columns in them, its labels and its metrics.

`TASKS` of `decoupled.tasks.presets` has the descriptions of XTREME's tasks and of
others. `describe_task` makes one of a user's `OwnTaskConfig`.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from decoupled.configs.finetuning import (
    CLASSIFICATION,
    QUESTION_ANSWERING,
    REGRESSION,
    TAGGING,
    OwnTaskConfig,
)
from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.core.files import INDEX
from decoupled.corpora.locales import CODE, ENGLISH
from decoupled.metrics.labels import accuracy, entity_scores, macro_f1
from decoupled.metrics.question_answering import squad_scores
from decoupled.metrics.similarity import number_scores
from decoupled.xtreme import official
from decoupled.xtreme.files import is_language

SPLITS = ("train", "dev", "test")
# The forms of files: tables, or columns of words and tags, that a user describes too;
# XTREME's files; those of `build_corpus`.
COLUMNS, XTREME, CORPUS = "columns", "XTREME", "corpus"
_LANGUAGE, _NAME, _ANY = "{language}", "{name}", "{any}"

Column = str | int
# Scores of answers, in percent, from (language, labels, answers).
Score = Callable[[str, Any, Any], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class TaskDescription:
    """A task of `finetune`.

    kind: a key of `OWN_METRICS`.
    files: split -> paths below --data_dir, of which the first that exists is read.
      {language} stands for a language, {name} for its English name, and {any} for any
      text. A path without a language is of the first training language. A path that
      ends in `INDEX` stands for the file beside that one.
    score, metrics: what is measured. headline: the metrics that choose a checkpoint.
    how_to_get: the end of the message about a missing file.
    form: of the files, XTREME or one of the others above.
    labels: in the order of their ids; () takes them from the files.
    texts, label, splits, split_column: as in `OwnTaskConfig`.
    spellings: other spellings of labels.
    """

    name: str
    kind: str
    files: Mapping[str, tuple[str, ...]]
    score: Score
    metrics: tuple[str, ...]
    headline: tuple[str, ...]
    how_to_get: str
    form: str = COLUMNS
    labels: tuple[str, ...] = ()
    training_languages: tuple[str, ...] = (ENGLISH,)
    texts: tuple[Column, ...] = ()
    label: Column | None = None
    splits: tuple[str, ...] = SPLITS
    split_column: Column | None = None
    spellings: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def find_files(self, data_dir: str, split: str) -> dict[str, str]:
        """Language -> its file of a split: training languages first, then XTREME's."""
        paths: dict[str, str] = {}
        for pattern in self.files[split]:
            if _NAME in pattern:
                for language, name in official.LANGUAGE_NAMES.items():
                    path = os.path.join(data_dir, pattern.replace(_NAME, name))
                    if files.exists(path):
                        paths.setdefault(language, path)
                continue
            # A pattern without a language is of the first training language.
            source = None if _LANGUAGE in pattern else self.training_languages[0]
            for language, path in self._matches(data_dir, pattern.split("/"), source):
                if path.endswith(INDEX):
                    path = path.removesuffix(INDEX)
                    if not files.exists(path):
                        continue
                paths.setdefault(language, path)
        languages = official.TASKS[self.name].languages if self.form == XTREME else ()
        order = dict.fromkeys([*self.training_languages, *languages, *sorted(paths)])
        return {language: paths[language] for language in order if language in paths}

    def missing_file(self, data_dir: str, split: str, language: str) -> UserError:
        """The error about a missing file."""
        source, *_ = self.training_languages
        names = [
            pattern.replace(_LANGUAGE, language)
            for pattern in self.files[split]
            if _ANY not in pattern
            and _NAME not in pattern
            and (_LANGUAGE in pattern or language == source)
        ]
        if not names:
            return UserError(
                f"{data_dir}: {self.name} has its {split} file in {source!r} only, not "
                f"in {language!r}"
            )
        return UserError(
            f"{os.path.join(data_dir, names[0])}: missing; {self.name} needs its "
            f"{split} file of language {language!r}: {self.how_to_get}"
        )

    def _matches(
        self, folder: str, parts: list[str], language: str | None
    ) -> Iterator[tuple[str, str]]:
        """The languages and paths that the rest of a pattern matches below a folder."""
        part, *rest = parts
        if language is not None:
            part = part.replace(_LANGUAGE, language)
        if _LANGUAGE in part or _ANY in part:
            prefix, *suffixes = (re.escape(p) for p in part.split(_LANGUAGE))
            expression = prefix + "".join(
                f"{'(?P=language)' if number else '(?P<language>.+)'}{suffix}"
                for number, suffix in enumerate(suffixes)
            )
            expression = expression.replace(re.escape(_ANY), ".*")
            names = gfile.listdir(folder) if gfile.isdir(folder) else []
            # Folders of gs:// end in a slash.
            names = sorted(name.rstrip("/") for name in names)
            matches = (re.fullmatch(expression, name) for name in names)
            entries = [
                (m.groupdict().get("language", language), m[0]) for m in matches if m
            ]
            entries = [entry for entry in entries if self._is_language(entry[0])]
        elif rest or files.exists(os.path.join(folder, part)):
            entries = [(language, part)]
        else:
            entries = []
        for name, entry in entries:
            path = os.path.join(folder, entry)
            if rest:
                yield from self._matches(path, rest, name)
            else:
                yield name, path

    def _is_language(self, name: str | None) -> bool:
        if name is None or name in self.training_languages or is_language(name):
            return True
        # The languages of a corpus have codes that its user chooses, as has sr@latin.
        is_code = self.form == CORPUS or (self.form == COLUMNS and "@" in name)
        return is_code and re.fullmatch(CODE, name) is not None


def describe_task(config: OwnTaskConfig) -> TaskDescription:
    """The description of a user's task."""
    metrics, score = _METRICS[config.kind]
    if config.metric == "entity_f1":
        metrics, score = ("entity_f1", "precision", "recall", *metrics), _entities
    fields = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(OwnTaskConfig)
        if field.name not in ("files", "metric")
    }
    return TaskDescription(
        **fields,
        files={
            split: (config.files.replace("{split}", name),)
            for split, name in zip(SPLITS, config.splits, strict=True)
        },
        score=score,
        metrics=metrics,
        headline=(config.metric,),
        how_to_get="OwnTaskConfig.files names it",
    )


def _classes(language, labels, answers):
    return {**accuracy(labels, answers), **macro_f1(labels, answers)}


def _tags(language, labels, answers):
    flat_labels, flat_answers = (
        [tag for tags in sentences for tag in tags] for sentences in (labels, answers)
    )
    return accuracy(flat_labels, flat_answers)


def _entities(language, labels, answers):
    scores = entity_scores(labels, answers)
    names = {"entity_f1": "f1", "precision": "precision", "recall": "recall"}
    return {
        **{metric: scores[name] for metric, name in names.items()},
        **_tags(language, labels, answers),
    }


# Kind -> metrics of a user's task, and the function that computes them.
_METRICS: dict[str, tuple[tuple[str, ...], Score]] = {
    CLASSIFICATION: (("accuracy", "macro_f1"), _classes),
    REGRESSION: (
        ("pearson", "spearman", "mean_absolute_error"),
        lambda language, labels, answers: number_scores(labels, answers),
    ),
    TAGGING: (("accuracy",), _tags),
    QUESTION_ANSWERING: (
        ("exact_match", "f1"),
        lambda language, labels, answers: squad_scores(labels, answers),
    ),
}
