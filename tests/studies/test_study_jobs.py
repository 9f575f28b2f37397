"""The jobs of a reproduction, seed by seed, and the sizes that it comes in."""

import ast
import dataclasses
import os
import re

import numpy as np
import pytest
from scipy import special

from decoupled.commands import reproduce
from decoupled.core.errors import UserError
from decoupled.studies import reproduce as run
from decoupled.studies.claims import Contrast
from decoupled.studies.jobs import read_model
from decoupled.studies.study_jobs import StudyJobs, sized

ROWS = ("in_small", "e_small", "e_large")


@pytest.fixture
def maker(root, folders):
    return StudyJobs(sized(root, 1), folders, "bfloat16")


@pytest.fixture
def jobs(maker):
    return {job.name: job for job in maker.of_seed(1)}


def test_all_jobs_of_a_seed_of_the_default_size(jobs):
    assert list(jobs) == [
        *(f"models/{row}/seed_1" for row in ROWS),
        "control/models/e_small/seed_1",
        *(f"tasks/udpos/{row}/seed_1" for row in ROWS),
        "control/tasks/udpos/e_small/seed_1",
        *(f"layer_drop/udpos/{r}/keep_{k}/seed_1" for r in ROWS[1:] for k in (1, 2)),
        *(
            f"analyses/{name}/seed_1"
            for name in ("neighbours_dev", "neighbours", "masked_lm", "probing")
        ),
    ]  # fmt: skip


def test_pretraining_says_all_that_it_depends_on(jobs, folders):
    given = jobs["models/e_large/seed_1"].arguments
    assert given[0] == "--gin_file=models/mini.gin"
    assert {
        "--gin_param=ModelConfig.output_embedding_size = 384",
        "--gin_param=ModelConfig.vocab_size = 48",
        "--gin_param=MaskingConfig.masking_rate = 0.15",
        "--gin_param=ScheduleConfig.train_steps = 3000",
        "--gin_param=OptimizerConfig.learning_rate = 0.004",
        "--gin_param=MeshConfig.activation_dtype = 'bfloat16'",
        "--gin_param=TrainingConfig.seed = 1",
        f"--records_dir={folders.records}",
    } <= set(given)


def test_rows_have_learning_rates_of_their_own(root, folders):
    rates = {**root.study.learning_rates, "e_small": 1e-3}
    study = dataclasses.replace(root.study, learning_rates=rates)
    maker = StudyJobs(dataclasses.replace(root, study=study), folders, "float32")
    given = {
        job.name: [one for one in job.arguments if ".learning_rate = " in one]
        for job in maker.of_seed(0)
        if "models/" in job.name
    }
    rate = ["--gin_param=OptimizerConfig.learning_rate = 0.001"]
    assert given["models/e_small/seed_0"] == rate
    assert given["control/models/e_small/seed_0"] == rate
    assert given["models/e_large/seed_0"] != rate


def test_a_control_is_the_same_for_one_step(jobs):
    model, control = (
        jobs[f"{kind}models/e_small/seed_1"].arguments for kind in ("", "control/")
    )
    # The last of equal settings wins.
    steps = [one for one in control if "ScheduleConfig" in one][-2:]
    assert steps == [
        "--gin_param=ScheduleConfig.train_steps = 1",
        "--gin_param=ScheduleConfig.warmup_steps = 0",
    ]
    left = [one for one in control if one not in steps]
    assert left[:-1] == list(model)[:-1]
    tuned = jobs["control/tasks/udpos/e_small/seed_1"]
    folder = jobs["control/models/e_small/seed_1"].folder
    assert f"--init_checkpoint={folder}" in tuned.arguments


def test_analyses_take_all_models_and_controls(jobs):
    job = jobs["analyses/masked_lm/seed_1"]
    models = [
        *(f"models/{row}/seed_1" for row in ROWS),
        "control/models/e_small/seed_1",
    ]
    assert list(job.needs) == models
    given = [one for one in job.arguments if one.startswith("--model_dir=")]
    assert given == [f"--model_dir={jobs[name].folder}" for name in models]


def test_tasks_that_decide_are_fine_tuned_twice(jobs):
    runs = {
        name: next(one for one in job.arguments if one.startswith("--num_runs="))
        for name, job in jobs.items()
        if job.kind == "finetune"
    }
    assert runs["tasks/udpos/e_small/seed_1"] == "--num_runs=2"
    assert runs["layer_drop/udpos/e_small/keep_2/seed_1"] == "--num_runs=1"


def test_what_is_not_there_is_left_out(root, folders):
    bare = folders._replace(data_dir="", source="catalogs:django")
    names = [job.name for job in StudyJobs(sized(root, 1), bare, "float32").of_seed(0)]
    kinds = {name.rpartition("/seed_")[0] for name in names}
    assert not any("udpos" in kind for kind in kinds)
    assert "analyses/probing" not in kinds
    assert {"analyses/neighbours", "analyses/masked_lm"} <= kinds


def test_text_of_one_language_has_no_pairs(root, folders):
    os.remove(os.path.join(folders.sentences("test"), "de.tsv"))
    jobs = StudyJobs(sized(root, 1), folders, "float32").of_seed(0)
    analyses = {job.name.split("/")[1] for job in jobs if job.kind == "analyze"}
    assert analyses == {"masked_lm", "probing"}


@pytest.mark.parametrize(
    ("size", "rows", "steps"),
    [(0.5, 3, 1500), (1, 3, 3000), (2, 3, 6000), (4, 11, 3000), (8, 11, 6000)],
)
def test_sizes(root, size, rows, steps):
    same_steps = "ScheduleConfig.train_steps = 3000"
    models = root.sweep.models | {"e_large": ("e_out_3072", same_steps)}
    sweep = dataclasses.replace(root.sweep, models=models)
    study = dataclasses.replace(root.study, settings={"e_large": (same_steps,)})
    root = sized(dataclasses.replace(root, sweep=sweep, study=study), size)
    sweep = root.sweep
    assert len(sweep.rows) == rows
    train_steps = f"ScheduleConfig.train_steps = {steps}"
    assert train_steps in sweep.pretraining
    assert sweep.models["e_large"] == ("e_out_3072", train_steps)
    assert root.study.settings["e_large"] == (train_steps,)
    assert f"ScheduleConfig.warmup_steps = {steps // 10}" in sweep.pretraining


def test_the_larger_study_has_the_runs_of_the_default_one(root, folders):
    small, large = (
        {job.name: job for job in StudyJobs(sized(root, size), folders, "f").of_seed(0)}
        for size in (1, 4)
    )
    shared = [name for name in small if not name.startswith("analyses/")]
    assert [small[name] for name in shared] == [large[name] for name in shared]
    kept = [one for one in large["tasks/udpos/add_layers/seed_0"].arguments]
    assert "--gin_param=FinetuningConfig.keep_layers = 3" in kept


def test_seeds_are_added_as_the_help_says():
    seeds = tuple(range(5, 13))
    names = re.findall(r"--gin_param='(\S+) = ", reproduce.__doc__)
    assert names == ["SweepConfig.seeds", "StudyConfig.first_seeds"]
    params = [f"{names[0]} = {seeds}", f"{names[1]} = 0"]
    for count, expected in ((1, seeds[:5]), (2, seeds)):
        root = run.configure(run.Options("w", gin_param=params[:count]))
        assert root.sweep.seeds == expected


def test_a_size_that_cannot_be(root):
    with pytest.raises(UserError, match="--size: 0 is no finite number above 0"):
        sized(root, 0)
    sweep = dataclasses.replace(root.sweep, pretraining=())
    with pytest.raises(UserError, match="no ScheduleConfig.train_steps"):
        sized(dataclasses.replace(root, sweep=sweep), 2)


PARTS = ("cause", "fold", "reinvest", "words", "first", "english")


@pytest.mark.parametrize("part", ["", *PARTS])
def test_the_shipped_studies_decide_by_rows_that_they_run(part):
    """Every contrast has its rows, its control rows are run, and old seeds decide
    nothing in the second study."""
    names = [f"sweeps/reproduce_{part}.gin"] if part else []
    root = run.configure(run.Options("w", size=4, gin_file=names))
    rows = set(root.sweep.rows)
    for text in sum(root.study.claims.values(), ()):
        lacking = set(Contrast.read(text).weights) - rows
        assert not lacking or part == "english", text
    for text in (*root.study.secondary, *root.study.sensitivity.values()):
        assert Contrast.read(text).weights.keys() <= rows or part == "english", text
    if part not in ("first", "english"):
        # The first run of part D is void, so that it has five others.
        fresh = range(10, 15) if part == "words" else range(5, 13)
        assert set(root.sweep.seeds) <= set(fresh)
        assert len(root.sweep.seeds) >= 5


def test_a_run_goes_on_as_other_rows_after_changes(folders):
    options = run.Options("w", size=4, gin_file=["sweeps/reproduce_fold.gin"])
    maker = StudyJobs(run.configure(options), folders, "float32")
    jobs = {job.name: job for job in maker.of_seed(5)}
    before = set()
    for name, job in jobs.items():
        assert before.issuperset(job.needs), name
        before.add(name)
    folded = jobs["models/folded_projection/seed_5"]
    change = jobs["converted/fold_insert_projection/trunk/seed_5"]
    assert folded.needs == (change.name,)
    assert f"--branch_from={change.folder}/model" in folded.arguments
    first = jobs["converted/fold/trunk/seed_5"]
    assert change.arguments == (
        "embeddings",
        "--change=insert_projection",
        f"--model_dir={first.folder}/model",
        f"--new_model_dir={change.folder}/model",
    )
    # The trunk ends where the rate of the others begins to fall.
    assert (
        "--gin_param=ScheduleConfig.train_steps = 2400"
        in jobs["models/trunk/seed_5"].arguments
    )
    assert "--gin_param=ScheduleConfig.decay_steps = 600" in folded.arguments
    # The files beside a page have no checkpoint to go on from.
    with pytest.raises(
        UserError, match="unfolded goes on from the checkpoint of trunk"
    ):
        StudyJobs(run.configure(options), folders, "float32", ["trunk"])


def test_learning_rates_are_tried_with_a_seed_of_their_own(folders):
    root = run.configure(run.Options("w"))
    jobs = StudyJobs(root, folders, "float32").rates()
    assert {job.kind for job in jobs} == {"pretrain"} and len(jobs) == 4 * 6
    job = next(job for job in jobs if job.name == "rates/0.008/models/e_huge/seed_100")
    assert "--gin_param=OptimizerConfig.learning_rate = 0.008" in job.arguments
    steps = [word for word in job.arguments if "_steps = " in word][-2:]
    assert steps == [
        "--gin_param=ScheduleConfig.train_steps = 1500",
        "--gin_param=ScheduleConfig.warmup_steps = 150",
    ]


def first_fall(width, scale=1.0, table_rate=1.0, projection_rate=1.0):
    """How much Adam's first step, one of signs, lowers the loss of a random head, to
    first order; and the standard deviation of its logits."""
    generator = np.random.default_rng(0)
    hidden, targets = generator.standard_normal((256, 96)), np.arange(256)
    table = generator.standard_normal((1000, width)) * 0.0566 * scale
    projection = generator.standard_normal((96, width)) * 0.0566
    logits = hidden @ projection @ table.T
    gradient = special.softmax(logits, axis=1)
    gradient[targets, targets] -= 1
    gradient /= len(targets)
    of_table = gradient.T @ (hidden @ projection)
    of_projection = hidden.T @ (gradient @ table)
    fall = table_rate * np.abs(of_table).sum()
    return fall + projection_rate * np.abs(of_projection).sum(), logits.std()


def test_the_fast_head_begins_and_learns_like_a_wide_one():
    root = run.configure(run.Options("w", size=4))
    model = read_model(root.sweep, "e_equal_fast")
    (scale,) = model.initial_values.values()
    (text,) = root.study.settings["e_equal_fast"]
    rates = ast.literal_eval(text.partition(" = ")[2])
    fast = first_fall(96, scale, *rates.values())
    assert fast == pytest.approx(first_fall(384), rel=0.02)
    assert first_fall(96)[0] < 0.3 * fast[0]
