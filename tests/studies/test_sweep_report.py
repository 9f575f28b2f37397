"""Tables of sweeps hold what the runs' folders hold, and nothing else."""

import json

import pytest

from decoupled.core.errors import UserError
from decoupled.core.tables import to_markdown
from decoupled.studies import sweep_report
from decoupled.studies.jobs import record_fingerprint
from decoupled.studies.results import numbers_as_csv, read_numbers, read_sweeps
from tests.helpers import tiny_model

SEEDS = (0, 1)
SMALL = tiny_model(num_layers=2)
LARGE = tiny_model(num_layers=2, output_embedding_size=32)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def add_model(folder, name, seed, accuracy, **entries):
    run = folder / "models" / name / f"seed_{seed}"
    write(run / "eval.json", {"all": {"masked_lm_accuracy": accuracy}, **entries})
    write(run / "job.json", {})
    return run


def add_task(folder, task, name, seed, results):
    run = folder / "tasks" / task / name / f"seed_{seed}"
    write(run / "results.json", results)
    write(run / "job.json", {})
    return run


@pytest.fixture
def sweep(tmp_path):
    """Two models, two seeds; XNLI complete, XQuAD of one model and seed only."""
    folder = tmp_path / "sweep"
    rows = [
        {"name": "e_out_128", "model": vars(SMALL), "keep_layers": 0},
        {"name": "e_out_3072", "model": vars(LARGE), "keep_layers": 1},
    ]
    described = {
        "title": "Table 4", "tasks": ["xnli", "xquad"], "seeds": SEEDS, "rows": rows
    }  # fmt: skip
    write(folder / "sweep.json", described)
    for number, row in enumerate(rows):
        for seed in SEEDS:
            add_model(folder, row["name"], seed, 0.2 + 0.1 * number + 0.02 * seed)
            values = {"accuracy": 50.0 + 4 * number + 2 * seed}
            languages = {"en": values, "sw": {"accuracy": values["accuracy"] - 10}}
            results = {"dev": languages, "test": {}}
            add_task(folder, "xnli", row["name"], seed, results)
    # English dev alone says nothing of other languages: test is scored.
    questions = {
        "dev": {"en": {"exact_match": 90.0, "f1": 95.0}},
        "test": {
            "en": {"exact_match": 50.0, "f1": 70.0},
            "de": {"exact_match": 30.0, "f1": 40.0},
            "th": {"examples": 3},
            # Outside XTREME's XQuAD: in no mean.
            "ro": {"exact_match": 0.0, "f1": 0.0},
        },
    }
    add_task(folder, "xquad", "e_out_128", 0, questions)
    return folder


def test_rows(sweep):
    results = read_sweeps([str(sweep)])
    assert list(results.rows) == ["e_out_128", "e_out_3072"]
    assert results.masked_lm("e_out_128") == pytest.approx({0: 20.0, 1: 22.0})
    assert results.score("e_out_128", "xnli") == {0: 45.0, 1: 47.0}
    assert results.values("e_out_128", "xquad", "exact_match") == {0: 40.0}
    assert results.values("e_out_128", "xquad", "f1") == {0: 55.0}
    assert results.score("e_out_128", "xquad") == {0: 47.5}
    assert results.score("e_out_3072", "xquad") == {}
    small, large = results.rows.values()
    # One more column of 54 pieces for each, and the width of the transform.
    assert large.pretraining > small.pretraining
    assert large.finetuning < small.finetuning


def test_a_task_of_ones_own_is_scored_by_its_own_metric(sweep):
    path = sweep / "sweep.json"
    write(path, json.loads(path.read_text()) | {"tasks": ["own"]})
    values = {"en": {"accuracy": 10.0, "macro_f1": 30.0}}
    results = {"headline": ["macro_f1"], "dev": {}, "test": values}
    add_task(sweep, "own", "e_out_128", 0, results)
    # Earlier versions do not name the metric.
    del results["headline"]
    add_task(sweep, "own", "e_out_3072", 0, results)
    results = read_sweeps([str(sweep)])
    assert results.score("e_out_128", "own") == {0: 30.0}
    assert results.values("e_out_3072", "own", "accuracy") == {0: 10.0}


def test_averages_are_of_seeds_that_have_every_task(sweep):
    results = read_sweeps([str(sweep)])
    assert results.averages("e_out_128") == {0: (45.0 + 47.5) / 2}
    assert results._replace(tasks=["xnli"]).averages("e_out_128") == {0: 45.0, 1: 47.0}
    assert results.averages("e_out_3072") == {}


@pytest.mark.parametrize(
    "of_task, of_model", [("job.json", "job.json"), ("results.json", "eval.json")]
)
def test_a_job_that_is_not_complete_leaves_a_gap(sweep, of_task, of_model):
    before = read_sweeps([str(sweep)])
    (sweep / "tasks/xnli/e_out_128/seed_1" / of_task).unlink()
    (sweep / "models/e_out_128/seed_0" / of_model).unlink()
    (sweep / "tasks/xquad/e_out_128/seed_0" / of_task).unlink()
    results = read_sweeps([str(sweep)])
    assert (results.complete, results.unscored) == (before.complete - 3, [])
    assert list(results.score("e_out_128", "xnli")) == [0]
    assert list(results.masked_lm("e_out_128")) == [1]


def test_table_in_markdown(sweep):
    results = read_sweeps([str(sweep)])
    table = sweep_report.make_table(results)
    lines = to_markdown(*table).splitlines()
    assert lines[0].endswith("| PT | FT | MLM acc | xnli | xquad | average |")
    small, large = lines[2].split(" | "), lines[3].split(" | ")
    # Of 45 and 47: the sample standard deviation is sqrt(2).
    assert small[8] == "46.0 ± 1.4<br>paper 68.1"
    assert small[9].startswith("**40.0/55.0**")
    assert large[8].startswith("**50.0 ± 1.4**")
    assert large[9] == "-<br>paper 45.3/63.3"
    # The average, of the one seed that has both; the paper's is of six tasks.
    assert small[10] == "**46.2** |"
    assert large[4].endswith("-> 1")
    tasks = ["xnli", "panx", "pawsx", "xquad", "mlqa", "tydiqa"]
    _, [cells, _] = sweep_report.make_table(results._replace(tasks=tasks))
    assert cells[-1].paper == "56.6"


def test_csv_has_every_single_number(sweep, tmp_path):
    numbers = read_sweeps([str(sweep)]).numbers
    text = numbers_as_csv(numbers)
    lines = text.splitlines()
    assert lines[0] == "model,task,metric,seed,value,folder"
    folder = f"{sweep}/tasks/xquad/e_out_128/seed_0"
    assert f"e_out_128,xquad,f1,0,55.0,{folder}" in lines
    assert len(lines) == 1 + 4 + 4 + 2
    (tmp_path / "numbers.csv").write_text(text)
    assert read_numbers(str(tmp_path / "numbers.csv")) == list(numbers)
    (tmp_path / "numbers.csv").write_text("a,b\n")
    with pytest.raises(UserError, match="does not begin with model,task"):
        read_numbers(str(tmp_path / "numbers.csv"))


def test_a_report(sweep, tmp_path, capsys):
    folder = tmp_path / "report"
    sweep_report.write_report([str(sweep)], str(folder))
    written = {"report.md", "report.csv"}
    drawn = {"scores.png", "scores.svg"}
    assert {path.name for path in folder.iterdir()} == written | drawn
    text = (folder / "report.md").read_text()
    assert text.startswith("## Table 4\n\n| model | E_in |")
    line = "Not finished: 3 of 12 jobs are missing. Seeds of each model: 2.\n"
    assert f"\n\n{line}\nxnli: dev scores of en, sw\n\nxquad: test" in text
    assert text.endswith("\n\n![scores.png](scores.png)\n")
    svg = (folder / "scores.svg").read_text()
    for drawn_text in ("e_out_128", "e_out_3072", "E_out", "masked-LM accuracy, %"):
        assert drawn_text in svg
    shown = capsys.readouterr().out
    assert "50.0 ± 1.4" in shown
    assert line in shown


def test_seeds_of_two_sweeps_are_put_together(sweep, tmp_path):
    other = tmp_path / "other"
    described = json.loads((sweep / "sweep.json").read_text())
    write(other / "sweep.json", {**described, "seeds": [2]})
    add_model(other, "e_out_128", 2, 0.24)
    result = read_sweeps([str(sweep), str(other)]).masked_lm("e_out_128")
    assert result == pytest.approx({0: 20.0, 1: 22.0, 2: 24.0})

    described["rows"][0]["model"]["intermediate_size"] *= 2
    write(other / "sweep.json", described)
    with pytest.raises(UserError, match="e_out_128 has other sizes than in another"):
        read_sweeps([str(sweep), str(other)])


def test_sweeps_that_cannot_be_compared_are_not_joined(sweep, tmp_path):
    other = tmp_path / "other"
    described = json.loads((sweep / "sweep.json").read_text())
    write(other / "sweep.json", described)
    add_model(other, "e_out_128", 1, 0.24)
    with pytest.raises(UserError, match="seed 1 of e_out_128 is in .*sweep/models"):
        read_sweeps([str(sweep), str(other)])

    write(other / "sweep.json", described | {"seeds": [2]})
    of_dev = {name: {"accuracy": 50.0} for name in ("en", "sw")}
    results = {"dev": {name: {"accuracy": 50.0} for name in ("en", "th")}, "test": {}}
    add_task(other, "xnli", "e_out_128", 2, results)
    with pytest.raises(
        UserError, match="has dev scores of en, th, and .* has dev scores of en, sw"
    ):
        read_sweeps([str(sweep), str(other)])
    # English dev alone, so test is scored.
    results["dev"], results["test"] = {"en": {"accuracy": 50.0}}, of_dev
    add_task(other, "xnli", "e_out_128", 2, results)
    with pytest.raises(UserError, match="has test scores of en, sw, and .* has dev"):
        read_sweeps([str(sweep), str(other)])

    for folder, seed, text in ((sweep, 1, "a"), (other, 2, "b")):
        made_from = {"files": {"eval/en/tokens": text}}
        add_model(folder, "e_out_128", seed, 0.2, made_from=made_from)
    with pytest.raises(UserError, match="seed_2: was evaluated on other held-out text"):
        read_sweeps([str(sweep), str(other)])

    settings = {"pretraining": ["ScheduleConfig.train_steps = 2"], "finetuning": []}
    write(sweep / "sweep.json", described | {"settings": settings})
    settings = {"pretraining": ["ScheduleConfig.train_steps = 8"], "finetuning": []}
    write(other / "sweep.json", described | {"settings": settings})
    with pytest.raises(UserError, match="trained with other settings than .*sweep"):
        read_sweeps([str(sweep), str(other)])
    # Also where a row or a task alone had others.
    name = "finetuning on xnli"
    write(other / "sweep.json", described | {"settings": {name: "a.gin"}})
    write(sweep / "sweep.json", described | {"settings": {name: "b.gin"}})
    with pytest.raises(UserError, match=f"sweep.json: settings, {name}"):
        read_sweeps([str(sweep), str(other)])


def test_what_the_last_command_of_a_sweep_found_outdated_is_missing(sweep):
    """Until another record takes the place of the outdated one."""
    names = ["models/e_out_128/seed_0", "models/e_out_128/seed_1"]
    described = json.loads((sweep / "sweep.json").read_text())
    outdated = {name: record_fingerprint(str(sweep / name)) for name in names}
    write(sweep / "sweep.json", described | {"outdated": outdated})
    write(sweep / names[0] / "job.json", {"ended": "later"})
    results = read_sweeps([str(sweep)])
    assert results.masked_lm("e_out_128") == {0: 20.0}
    assert sweep_report.progress(results)[0] == (
        "Not finished: 4 of 12 jobs are missing. Seeds of each model:"
    )


def test_a_damaged_evaluation_is_named(sweep):
    write(sweep / "models/e_out_128/seed_0/eval.json", {"all": {}})
    with pytest.raises(UserError, match="seed_0/eval.json: not an evaluation"):
        read_sweeps([str(sweep)])


def test_the_seeds_of_an_unfinished_sweep_are_reported(sweep):
    (sweep / "models/e_out_3072/seed_1/job.json").unlink()
    results = read_sweeps([str(sweep)])
    assert sweep_report.progress(results) == [
        "Not finished: 4 of 12 jobs are missing. Seeds of each model:",
        "e_out_128: 2",
        "e_out_3072: 1",
    ]
    title = sweep_report.picture_of_scores(results).title
    assert title == "2 models; bars: standard deviation over 1 to 2 seeds"


@pytest.mark.usefixtures("empty_pictures")
def test_a_task_with_scores_of_english_dev_alone_is_named(sweep, tmp_path, capsys):
    english = {"dev": {"en": {"exact_match": 90.0, "f1": 95.0}}, "test": {}}
    add_task(sweep, "xquad", "e_out_128", 0, english)
    results = read_sweeps([str(sweep)])
    assert (results.tasks, results.unscored) == (["xnli"], ["xquad"])
    sweep_report.write_report([str(sweep)], str(tmp_path / "out"))
    line = "xquad: in no column and no average"
    assert line in capsys.readouterr().out
    assert line in (tmp_path / "out/report.md").read_text()


def test_a_picture_of_one_task_names_its_metrics(sweep):
    described = json.loads((sweep / "sweep.json").read_text())
    write(sweep / "sweep.json", {**described, "tasks": ["xquad"]})
    _, scores = sweep_report.picture_of_scores(read_sweeps([str(sweep)])).panels
    assert {panel.y_label for panel in scores} == {"exact match and f1, %"}


def test_a_finished_sweep_says_so(sweep):
    path = sweep / "sweep.json"
    write(path, json.loads(path.read_text()) | {"tasks": ["xnli"]})
    assert sweep_report.progress(read_sweeps([str(sweep)])) == [
        "All 8 jobs are complete. Seeds of each model: 2."
    ]


def test_a_folder_without_a_sweep(tmp_path):
    with pytest.raises(UserError, match="no sweep.json"):
        read_sweeps([str(tmp_path)])


@pytest.mark.parametrize(
    "change",
    [
        lambda described: described["rows"][0].update(name="../../other"),
        lambda described: described["seeds"].append("0/../../.."),
        lambda described: described["tasks"].append("/etc"),
        lambda described: described.pop("seeds"),
        lambda described: described.update(rows=[7]),
        lambda described: described.pop("title"),
        lambda described: described["rows"][0].pop("model"),
        lambda described: described["rows"][0].update(keep_layers="all"),
    ],
)
def test_a_description_that_cannot_be_is_refused(sweep, change):
    described = json.loads((sweep / "sweep.json").read_text())
    change(described)
    write(sweep / "sweep.json", described)
    with pytest.raises(UserError, match="sweep.json: ") as caught:
        read_sweeps([str(sweep)])
    assert "\n" not in str(caught.value)
