"""Scoring predictions as XTREME does, from files to averages."""

import re
import shutil

import pytest

from decoupled.core.errors import UserError
from decoupled.xtreme import official, scoring
from tests.xtreme.xtreme_samples import (
    LABELS,
    PREDICTIONS,
    squad_json,
    write_submission,
)

TWO_THIRDS = 100 * 2 / 3


@pytest.fixture
def submission(tmp_path):
    return write_submission(tmp_path)


def score(folder, **choices):
    return scoring.score(str(folder / "predictions"), str(folder / "labels"), **choices)


def test_whole_benchmark(submission):
    result = score(submission)
    # English is right, the other 14 languages are right twice out of three.
    xnli = (100 + 14 * TWO_THIRDS) / 15
    tasks = {
        "pawsx": 75,
        "xnli": xnli,
        "panx": TWO_THIRDS,
        "udpos": TWO_THIRDS,
        "xquad": (0 + TWO_THIRDS) / 2,
        "mlqa": 100,
        "tydiqa": 50,
        "bucc2018": 50,
        "tatoeba": 75,
    }
    scores = {task: result[task]["avg_metric"] for task in tasks}
    assert scores == pytest.approx(tasks, abs=1e-9)
    groups = {
        "all_task": sum(tasks.values()) / 9,
        "classification": (75 + xnli) / 2,
        "tagging": TWO_THIRDS,
        "qa": (TWO_THIRDS / 2 + 150) / 3,
        "retrieval": 62.5,
    }
    assert {name: result[name] for name in groups} == pytest.approx(groups, abs=1e-9)
    assert result["missing"] == {}


def test_every_language_has_every_metric(submission):
    result = score(submission)
    assert result["xnli"]["accuracy"]["en"] == 100.0
    assert result["xnli"]["accuracy"]["sw"] == pytest.approx(TWO_THIRDS)
    metrics = {
        task: [name for name in result[task] if not name.startswith("avg_")]
        for task in official.TASKS
    }
    one, three, answers = (
        ["accuracy"],
        ["f1", "precision", "recall"],
        ["exact_match", "f1"],
    )
    assert metrics == {
        "pawsx": one,
        "xnli": one,
        "panx": three,
        "udpos": [*three, "accuracy", "f1_seqeval_1_2_2"],
        "bucc2018": three,
        "tatoeba": one,
        "xquad": answers,
        "mlqa": answers,
        "tydiqa": answers,
    }
    for task, names in metrics.items():
        for name in names:
            assert tuple(result[task][name]) == official.TASKS[task].languages
    assert result["files"]["mlqa"]["zh"] == {
        "predictions": str(submission / "predictions/mlqa/test-zh.json"),
        "labels": str(submission / "labels/mlqa/test-zh.json"),
    }


def test_labels_as_in_the_download(submission):
    expected = score(submission)
    labels = submission / "labels"
    pair = "One.\tTwo.\t{}\n"
    texts = {
        "xnli/test-{}.tsv": "".join(map(pair.format, LABELS["xnli"].split())),
        "pawsx/test-{}.tsv": "".join(map(pair.format, LABELS["pawsx"].split())),
        "panx/test-{}.tsv": re.sub("(?m)^(?=.)", "token\t", LABELS["panx"]),
        "udpos/test-{}.tsv": re.sub("(?m)^(?=.)", "token\t", LABELS["udpos"]),
        "xquad/xquad.{}.json": LABELS["xquad"],
        "mlqa/MLQA_V1/test/test-context-{0}-question-{0}.json": LABELS["mlqa"],
        "tydiqa/tydiqa-goldp-v1.1-dev/tydiqa.{}.dev.json": LABELS["tydiqa"],
        "bucc2018/{}-en.test.gold": LABELS["bucc2018"],
        "tatoeba/{}-en.en": "Cat.\nAnd.\nBut.\nDog.\n",
    }
    shutil.rmtree(labels)
    for name, text in texts.items():
        for language in official.TASKS[name.split("/")[0]].languages:
            path = labels / name.format(language)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    result = score(submission)
    assert {**result, "files": None} == {**expected, "files": None}


def test_tasks_without_predictions_or_labels_are_listed(submission):
    shutil.rmtree(submission / "predictions/xnli")
    shutil.rmtree(submission / "labels/panx")
    result = score(submission)
    assert result["missing"] == {"xnli": "no predictions", "panx": "no labels"}
    assert "xnli" not in result and "panx" not in result
    assert [name for name in ("all_task", *official.GROUPS) if name in result] == [
        "qa",
        "retrieval",
    ]


def test_only_some_tasks(submission):
    (submission / "predictions/mlqa/test-de.json").write_text("broken")
    result = score(submission, tasks=["bucc2018", "tatoeba"])
    assert result["retrieval"] == 62.5
    assert sorted(set(official.TASKS) & set(result)) == ["bucc2018", "tatoeba"]
    assert result["missing"]["mlqa"] == "not asked for"


def test_only_some_languages_have_averages_and_no_score(submission):
    for path in (submission / "labels").glob("*/test-[!es]*"):
        path.unlink()
    result = score(submission, languages=["en", "sw"])
    assert set(result["xnli"]) == {"accuracy", "avg_accuracy"}
    assert set(result["xnli"]["accuracy"]) == {"en", "sw"}
    assert result["xnli"]["avg_accuracy"] == pytest.approx((100 + TWO_THIRDS) / 2)
    assert result["missing"] == {"bucc2018": "none of these languages"}
    assert not {"all_task", *official.GROUPS} & set(result)


def add_language(folder, task, language, labels=True, predictions=True):
    """Adds files with the content of the other languages."""
    for kind, texts in (("labels", LABELS), ("predictions", PREDICTIONS)):
        if labels if kind == "labels" else predictions:
            path = folder / kind / official.prediction_file(task, language)
            path.write_text(texts[task])


@pytest.mark.parametrize("task", official.TASKS)
def test_a_language_outside_xtreme_is_scored_and_in_no_average(submission, task):
    expected = score(submission)
    add_language(submission, task, "mt")
    result = score(submission)
    # All languages have the same files but English.
    other = official.TASKS[task].languages[-1]
    names = [name for name in expected[task] if not name.startswith("avg_")]
    assert result["outside_xtreme"] == {
        task: {name: {"mt": expected[task][name][other]} for name in names}
    }
    paths = result["files"][task].pop("mt")
    assert paths["labels"].endswith(official.prediction_file(task, "mt"))
    assert {**result, "outside_xtreme": {}} == expected


def test_languages_outside_xtreme_can_be_chosen(submission):
    add_language(submission, "xnli", "my")
    result = score(submission, tasks=["xnli", "panx"], languages=["ur", "my"])
    assert result["xnli"]["accuracy"] == {"ur": pytest.approx(TWO_THIRDS)}
    assert result["outside_xtreme"] == {
        "xnli": {"accuracy": {"my": pytest.approx(TWO_THIRDS)}}
    }
    # Burmese is one of XTREME's languages of PAN-X.
    assert set(result["panx"]["f1"]) == {"ur", "my"}
    alone = score(submission, tasks=["xnli"], languages=["my"])
    assert alone["missing"]["xnli"] == "only languages outside XTREME"
    assert "xnli" not in alone and set(alone["outside_xtreme"]) == {"xnli"}


def test_half_of_a_language_outside_xtreme_is_reported(submission, capsys):
    add_language(submission, "xnli", "my", labels=False)
    add_language(submission, "xnli", "zh-TW")
    (submission / "labels/xquad/xquad.ro.json").write_text(LABELS["xquad"])
    result = score(submission)
    assert result["left_out"] == {
        "xnli": {"my": "no labels"},
        "xquad": {"ro": "no predictions"},
    }
    scoring.show(result)
    printed = capsys.readouterr().out
    assert "xnli: left out languages outside XTREME: my (no labels)" in printed
    assert "xquad: left out languages outside XTREME: ro (no predictions)" in printed
    rows = [line.split() for line in printed.splitlines()]
    assert ["xnli", "zh-TW", "accuracy", "66.67"] in rows
    assert ["xnli", f"{result['xnli']['avg_metric']:.2f}", "15", "of", "15"] in [
        row[:5] for row in rows
    ]


UNLABELLED = {
    "xnli": "one sentence\tanother\n" * 3,
    "udpos": "word\nword\n\nword\n",
    "xquad": squad_json({"q": [""]}),
}


@pytest.mark.parametrize("task", UNLABELLED)
def test_a_test_file_outside_xtreme_without_labels_is_reported(
    submission, task, capsys
):
    expected = score(submission)
    add_language(submission, task, "mt")
    labels = submission / "labels" / official.prediction_file(task, "mt")
    labels.write_text(UNLABELLED[task])
    add_language(submission, task, "zh-TW")

    result = score(submission)

    for by_language in result["outside_xtreme"][task].values():
        assert set(by_language) == {"zh-TW"}
    assert {name: result[name] for name in official.TASKS} == {
        name: expected[name] for name in official.TASKS
    }
    (message,) = result["left_out"][task].values()
    assert message.startswith(f"no labels: {labels}")
    scoring.show(result)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{task}: left out languages outside XTREME: mt (no labels: " in printed


def test_a_file_without_labels_ends_the_command_where_its_language_is_named(submission):
    add_language(submission, "xnli", "mt")
    labels = submission / "labels/xnli/test-mt.tsv"
    labels.write_text(UNLABELLED["xnli"])
    with pytest.raises(UserError, match=r"test-mt\.tsv:1 \(language mt\): no label"):
        score(submission, tasks=["xnli"], languages=["en", "mt"])


def test_a_task_with_nothing_but_a_file_without_labels_is_missing(submission):
    for folder in ("labels", "predictions"):
        for path in (submission / folder / "xnli").iterdir():
            path.unlink()
    add_language(submission, "xnli", "mt")
    (submission / "labels/xnli/test-mt.tsv").write_text(UNLABELLED["xnli"])
    result = score(submission)
    assert result["missing"]["xnli"] == "no labels"
    assert set(result["left_out"]["xnli"]) == {"mt"}


def test_missing_answers(submission):
    path = submission / "predictions/tydiqa/test-ko.json"
    path.write_text('{"q1": "Lake."}')
    with pytest.raises(UserError, match="test-ko.json .*language ko.*'q2'"):
        score(submission)
    result = score(submission, answers_may_miss=True)
    assert result["tydiqa"]["f1"]["ko"] == 50.0


@pytest.mark.parametrize(
    "change, choices, message",
    [
        (
            "predictions/xnli/test-th.tsv",
            {},
            "predictions/xnli/test-th.tsv (language th): missing, while other "
            "languages have predictions; score those with --languages=ar,bg,",
        ),
        (
            "labels/xquad/test-el.json",
            {},
            "labels/xquad/test-el.json or xquad/xquad.el.json (language el): missing, "
            "while other languages have labels; score those with --languages=en,es,",
        ),
        ("predictions/xnli", {"tasks": ["xnli"]}, "--tasks: xnli has no predictions; "),
        (
            "predictions",
            {},
            "predictions: nothing to score; it has no files such as xnli/",
        ),
        (None, {"tasks": ["xnlu"]}, "--tasks: no 'xnlu' in XTREME; it has pawsx, xnli"),
        (
            None,
            {"languages": ["xx", "en", "mt"]},
            "--languages: no predictions with labels in xx, mt; looked for files such "
            "as ",
        ),
        (None, {"tasks": []}, "--tasks: names none; leave it out for all"),
        (None, {"languages": []}, "--languages: names none; leave it out for all"),
        (None, {"languages": ["../en"]}, "--languages: '../en': not the code of a lan"),
        (
            None,
            {"tasks": ["bucc2018"], "languages": ["en"]},
            "--tasks: bucc2018 has none of these languages; ",
        ),
    ],
)
def test_what_is_missing_is_named(submission, change, choices, message):
    if change:
        path = submission / change
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(UserError, match=re.escape(message)):
        score(submission, **choices)


def test_all_missing_languages_are_named(submission):
    for path in (submission / "predictions/xnli").glob("test-[bt]*"):
        path.unlink()
    message = r"test-bg.tsv \(language bg\): missing, and so are those of th, tr, while"
    with pytest.raises(UserError, match=message):
        score(submission)
