"""XTREME's languages, files and averages."""

import pytest

from decoupled.xtreme import official


def whole(task, value):
    """Results of a task whose every metric is `value` in every language."""
    metrics = dict.fromkeys(official.TASKS[task].headline, value)
    return official.task_scores(
        task, dict.fromkeys(official.TASKS[task].languages, metrics)
    )


def test_tasks_and_languages_are_those_of_the_benchmark():
    # Table 1 of XTREME; TyDiQA's 9, Tatoeba's 36 and PAN-X's 40 languages.
    counts = {name: len(set(task.languages)) for name, task in official.TASKS.items()}
    assert counts == {
        "pawsx": 7,
        "xnli": 15,
        "panx": 40,
        "udpos": 33,
        "bucc2018": 4,
        "tatoeba": 36,
        "xquad": 11,
        "mlqa": 7,
        "tydiqa": 9,
    }
    everywhere = set(official.TASKS["panx"].languages)
    assert all(set(task.languages) <= everywhere for task in official.TASKS.values())
    members = [task for group in official.GROUPS.values() for task in group]
    assert sorted(members) == sorted(official.TASKS)


def test_file_names():
    assert official.prediction_file("panx", "yo") == "panx/test-yo.tsv"
    assert official.prediction_file("mlqa", "zh") == "mlqa/test-zh.json"
    assert official.label_files("xnli", "sw") == ["xnli/test-sw.tsv"]
    assert official.label_files("mlqa", "zh") == [
        "mlqa/test-zh.json",
        "mlqa/MLQA_V1/test/test-context-zh-question-zh.json",
    ]
    assert official.label_files("tydiqa", "id") == [
        "tydiqa/test-id.json",
        "tydiqa/tydiqa-goldp-v1.1-dev/tydiqa.goldp.id.dev.json",
        "tydiqa/tydiqa-goldp-v1.1-dev/tydiqa.id.dev.json",
        "tydiqa/tydiqa-goldp-v1.1-dev/tydiqa-goldp-dev-indonesian.json",
    ]


def test_files_of_languages_that_xtreme_does_not_list():
    assert official.label_files("tydiqa", "ja") == [
        "tydiqa/test-ja.json",
        "tydiqa/tydiqa-goldp-v1.1-dev/tydiqa.goldp.ja.dev.json",
        "tydiqa/tydiqa-goldp-v1.1-dev/tydiqa.ja.dev.json",
    ]
    assert official.label_files("tatoeba", "mt") == [
        "tatoeba/test-mt.tsv",
        "tatoeba/mt-en.en",
        "tatoeba_parallel/test-mt.tsv",
        "tatoeba_parallel/mt-en.en",
    ]


def test_official_languages_come_first():
    assert official.in_order("xquad", ["ro", "hi", "ja", "en"]) == [
        "en",
        "hi",
        "ja",
        "ro",
    ]
    assert not official.is_official("xquad", "ro") and official.is_official(
        "xquad", "hi"
    )
    # A task of our own has no languages but those of its files.
    assert official.is_official("catalogs", "ast")


def test_score_of_a_task():
    by_language = {name: {"f1": 50.0, "recall": 1.0} for name in ("fr", "ru", "zh")}
    by_language["de"] = {"f1": 80.0, "recall": 3.0}
    assert official.task_scores("bucc2018", by_language) == {
        "f1": {"de": 80.0, "fr": 50.0, "ru": 50.0, "zh": 50.0},
        "recall": {"de": 3.0, "fr": 1.0, "ru": 1.0, "zh": 1.0},
        "avg_f1": 57.5,
        "avg_recall": 1.5,
        "avg_metric": 57.5,
    }


@pytest.mark.parametrize(
    "task, values, score",
    [
        # Answers by the mean of both metrics, parts of speech by F1.
        ("mlqa", {"exact_match": 10.0, "f1": 20.0}, 15.0),
        ("udpos", {"f1": 10.0, "accuracy": 90.0}, 10.0),
    ],
)
def test_the_score_of_several_metrics(task, values, score):
    languages = official.TASKS[task].languages
    result = official.task_scores(task, dict.fromkeys(languages, values))
    assert result["avg_metric"] == pytest.approx(score)


def test_groups_need_all_their_tasks_and_the_whole_all_of_them():
    values = dict(zip(official.TASKS, range(10, 100, 10), strict=True))
    results = {task: whole(task, value) for task, value in values.items()}
    assert official.group_scores(results) == pytest.approx(
        {
            "all_task": 50.0,
            "classification": 15.0,
            "tagging": 35.0,
            "qa": 80.0,
            "retrieval": 55.0,
        }
    )
    del results["xquad"]
    results["panx"] = official.task_scores("panx", {"en": {"f1": 1.0}})
    assert official.group_scores(results) == pytest.approx(
        {"classification": 15.0, "retrieval": 55.0}
    )
