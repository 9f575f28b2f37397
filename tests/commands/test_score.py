"""The command that scores predictions for XTREME: its output, files and errors."""

import json
import shutil

import pytest

from decoupled.xtreme.scoring import score
from tests.command_line import decoupled, mistake
from tests.xtreme.xtreme_samples import write_submission


@pytest.fixture
def submission(tmp_path):
    return write_submission(tmp_path)


def test_a_folder_is_no_output(submission):
    message = mistake(*command(submission, submission))
    assert message.endswith(f"--output: {submission} is a folder; name a file in it")


def command(submission, output):
    return (
        "score",
        f"--prediction_folder={submission / 'predictions'}",
        f"--label_folder={submission / 'labels'}",
        f"--output={output}",
    )


def test_command_line(submission):
    output = submission / "made/here/scores.json"
    shutil.rmtree(submission / "predictions/xquad")
    done = decoupled(*command(submission, output))
    assert done.returncode == 0, done.stderr
    assert json.loads(output.read_text()) == score(
        str(submission / "predictions"), str(submission / "labels")
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    # pawsx, xnli, panx, udpos f1 and accuracy, bucc2018, tatoeba, mlqa, tydiqa.
    swahili = "- 66.67 66.67 - - - 75.00 - - 50.00 50.00".split()
    assert ["sw", *swahili] in rows
    assert ["group", "retrieval", "62.50", "-", "-", "-", "-"] in rows
    published = ["64.0/79.6", "60.8/76.6"]
    assert ["xquad", "-", *published, "-", "no", "predictions"] in rows
    by_group = "all but retrieval, by group - 75.4 71.4 - -"
    assert by_group.split() in rows
    assert ["all", "tasks", "-", "-", "-", "-", "-"] in rows
    assert "tatoeba 75.00 - - 36 of 36 accuracy 75.00".split() in rows


def test_questions_without_an_answer_are_counted_if_it_is_asked_for(submission):
    output = submission / "scores.json"
    (submission / "predictions/tydiqa/test-ko.json").write_text('{"q1": "Lake."}')
    message = mistake(*command(submission, output))
    assert "no answer, the first of them 'q2'; --missing_answers_are_wrong" in message
    done = decoupled(*command(submission, output), "--missing_answers_are_wrong")
    assert done.returncode == 0, done.stderr
    assert json.loads(output.read_text())["tydiqa"]["f1"]["ko"] == 50.0


def test_an_error_writes_nothing_and_leaves_what_is_there(submission):
    output = submission / "scores.json"
    output.write_text("old")
    path = submission / "predictions/udpos/test-yo.tsv"
    path.write_text("DET\nVERB\nVERB\n")
    message = mistake(*command(submission, output))
    assert message == (
        f"decoupled score: error: {path}:1 (language yo): sentence 1, which starts "
        f"here, has 3 tags, but 2 in {submission / 'labels/udpos/test-yo.tsv'}"
    )
    assert output.read_text() == "old"
    assert sorted(path.name for path in submission.iterdir()) == [
        "labels",
        "predictions",
        "scores.json",
    ]
