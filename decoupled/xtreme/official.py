"""XTREME as a whole: its tasks, languages, files and groups, and the official averages.

Source: Hu et al., XTREME (ICML 2020), and its evaluation script. A task's score is the
mean over its languages of F1 or accuracy, or of exact match and F1 in question
answering. A group's score is the mean over its tasks, and the overall score is the mean
over all nine tasks. Both need the scores of all their tasks.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from decoupled.metrics.labels import (
    accuracy,
    entity_scores,
    part_of_speech_scores,
    set_scores,
)
from decoupled.metrics.question_answering import mlqa_scores, squad_scores

GROUPS = {
    "classification": ("pawsx", "xnli"),
    "tagging": ("udpos", "panx"),
    "qa": ("xquad", "mlqa", "tydiqa"),
    "retrieval": ("bucc2018", "tatoeba"),
}
OVERALL = "all_task"
# Averages of the paper, which does not score retrieval.
BY_TASK, BY_GROUP = "all but retrieval, by task", "all but retrieval, by group"

# In the names of TyDi QA's files.
LANGUAGE_NAMES = {
    "en": "english",
    "ar": "arabic",
    "bn": "bengali",
    "fi": "finnish",
    "id": "indonesian",
    "ko": "korean",
    "ru": "russian",
    "sw": "swahili",
    "te": "telugu",
}


class XtremeTask(NamedTuple):
    """XTREME's definition of a task.

    languages: two-letter codes; the score needs all of them.
    suffix: of the files with predictions.
    headline: the metrics whose mean is the score.
    label_files: possible files of labels in the task's folder; the first that exists is
      read. {language} stands for the code, {name} for TyDi QA's name of the language.
    folders: possible names of the task's folder with labels or data.
    """

    languages: tuple[str, ...]
    suffix: str
    headline: tuple[str, ...]
    label_files: tuple[str, ...]
    folders: tuple[str, ...]


def _task(name, languages, suffix, headline, *label_files, folders=()):
    official_file = f"test-{{language}}.{suffix}"
    return XtremeTask(
        tuple(languages.split()),
        suffix,
        tuple(headline.split()),
        (official_file, *label_files),
        (name, *folders),
    )


_TYDIQA_DEV = "tydiqa-goldp-v1.1-dev"
TASKS = {
    "pawsx": _task("pawsx", "de en es fr ja ko zh", "tsv", "accuracy"),
    "xnli": _task(
        "xnli", "ar bg de el en es fr hi ru sw th tr ur vi zh", "tsv", "accuracy"
    ),
    "panx": _task(
        "panx",
        "ar he vi id jv ms tl eu ml ta te af nl en de el bn hi mr ur fa fr it pt es bg "
        "ru ja ka ko th sw yo my zh kk tr et fi hu",
        "tsv",
        "f1",
    ),
    "udpos": _task(
        "udpos",
        "af ar bg de el en es et eu fa fi fr he hi hu id it ja kk ko mr nl pt ru ta te "
        "th tl tr ur vi yo zh",
        "tsv",
        "f1",
    ),
    "bucc2018": _task(
        "bucc2018", "de fr ru zh", "tsv", "f1", "{language}-en.test.gold"
    ),
    "tatoeba": _task(
        "tatoeba",
        "ar he vi id jv tl eu ml ta te af nl de el bn hi mr ur fa fr it pt es bg ru ja "
        "ka ko th sw zh kk tr et fi hu",
        "tsv",
        "accuracy",
        "{language}-en.en",
        folders=("tatoeba_parallel",),
    ),
    "xquad": _task(
        "xquad",
        "en es de el ru tr ar vi th zh hi",
        "json",
        "exact_match f1",
        "xquad.{language}.json",
    ),
    "mlqa": _task(
        "mlqa",
        "en es de ar hi vi zh",
        "json",
        "exact_match f1",
        "MLQA_V1/test/test-context-{language}-question-{language}.json",
    ),
    "tydiqa": _task(
        "tydiqa",
        "en ar bn fi id ko ru sw te",
        "json",
        "exact_match f1",
        f"{_TYDIQA_DEV}/tydiqa.goldp.{{language}}.dev.json",
        f"{_TYDIQA_DEV}/tydiqa.{{language}}.dev.json",
        f"{_TYDIQA_DEV}/tydiqa-goldp-dev-{{name}}.json",
    ),
}


def prediction_file(task: str, language: str) -> str:
    """The path of a file with predictions, below the folder with all of them."""
    return f"{task}/test-{language}.{TASKS[task].suffix}"


def label_templates(task: str) -> list[str]:
    """Possible paths of labels below the folder with all labels, best first, with
    {language} for the code, and in one path of TyDi QA {name} for its name.
    """
    definition = TASKS[task]
    return [
        f"{folder}/{p}" for folder in definition.folders for p in definition.label_files
    ]


def label_files(task: str, language: str) -> list[str]:
    """`label_templates` of a language, without those that need a name it lacks."""
    name = LANGUAGE_NAMES.get(language)
    return [
        template.format(language=language, name=name)
        for template in label_templates(task)
        if name is not None or "{name}" not in template
    ]


def is_official(task: str, language: str) -> bool:
    """Whether XTREME's average of a task includes a language; True for other tasks."""
    return task not in TASKS or language in TASKS[task].languages


def headline(task: str, results: Mapping[str, Any]) -> list[str]:
    """The metrics whose mean is the score of a task, XTREME's or that of results.json
    (`results`). Earlier versions named none for tasks scored by accuracy.
    """
    if task in TASKS:
        return list(TASKS[task].headline)
    return list(results.get("headline", ["accuracy"]))


def scored_languages(
    task: str, results: Mapping[str, Any], split: str
) -> dict[str, Mapping[str, float]]:
    """Language -> values of a split in results.json, for the languages of the score.

    They have all of its metrics, and XTREME lists them if the task is one of its own.
    """
    metrics = headline(task, results)
    return {
        language: values
        for language, values in (results.get(split) or {}).items()
        if is_official(task, language) and all(name in values for name in metrics)
    }


def in_order(task: str, languages: Iterable[str]) -> list[str]:
    """XTREME's languages of the task in XTREME's order, then the others by name."""
    names = set(languages)
    official_names = [name for name in TASKS[task].languages if name in names]
    return official_names + sorted(names.difference(official_names))


def score_language(
    task: str, language: str, labels: Any, predictions: Any
) -> dict[str, float]:
    """All metrics of a task in a language, in percent, the official ones first."""
    if task == "mlqa":
        return mlqa_scores(labels, predictions, language)
    return _METRICS[task](labels, predictions)


def task_scores(
    task: str, by_language: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """The results of a task, named as in the official script's output.

    `by_language` has a language of the task at least; those that XTREME does not list
    are ignored.

    Returns:
      metric -> language -> value; "avg_" + metric -> mean over these languages; and
      "avg_metric", the task's score, only if no language of the task is missing.
    """
    languages = [name for name in TASKS[task].languages if name in by_language]
    metrics = list(by_language[languages[0]])
    result: dict[str, Any] = {
        metric: {name: by_language[name][metric] for name in languages}
        for metric in metrics
    }
    for metric in metrics:
        result[f"avg_{metric}"] = _mean(result[metric].values())
    if len(languages) == len(TASKS[task].languages):
        headline = TASKS[task].headline
        result["avg_metric"] = _mean(result[f"avg_{metric}"] for metric in headline)
    return result


def group_scores(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The overall score (`all_task`) and the scores of groups whose tasks all exist,
    from task -> the result of `task_scores`.
    """
    scores = {
        name: value["avg_metric"]
        for name, value in tasks.items()
        if "avg_metric" in value
    }
    result = {}
    for group, members in {OVERALL: tuple(TASKS), **GROUPS}.items():
        if all(name in scores for name in members):
            result[group] = _mean(scores[name] for name in members)
    return result


def without_retrieval(result: Mapping[str, Any]) -> dict[str, float | None]:
    """The paper's two averages, over tasks (Table 16) and over groups (Table 7); None
    where a score is missing. `result` has those of tasks and groups."""
    groups = [group for group in GROUPS if group != "retrieval"]
    tasks = [task for group in groups for task in GROUPS[group]]
    by_task = [result.get(task, {}).get("avg_metric") for task in tasks]
    by_group = [result.get(group) for group in groups]
    return {
        name: None if None in scores else _mean(scores)
        for name, scores in ((BY_TASK, by_task), (BY_GROUP, by_group))
    }


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)


_METRICS = {
    "pawsx": accuracy,
    "xnli": accuracy,
    "panx": entity_scores,
    "udpos": part_of_speech_scores,
    "bucc2018": set_scores,
    "tatoeba": accuracy,
    "xquad": squad_scores,
    "tydiqa": squad_scores,
}
