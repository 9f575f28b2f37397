"""`decoupled sweep` finds what its jobs would lack before the first of them."""

import pytest

from tests.command_line import mistake
from tests.data.small_corpus import make_vocabulary


@pytest.fixture
def words(tmp_path):
    """A sweep in an empty folder, with records, a vocabulary and the folder of data."""
    (tmp_path / "records").mkdir()
    (tmp_path / "records/manifest.json").write_text("{}")
    vocabulary = make_vocabulary(tmp_path / "sentencepiece.model").path
    return [
        "sweep", "--gin_file=sweeps/table4.gin", f"--vocabulary={vocabulary}",
        f"--records_dir={tmp_path}/records", f"--data_dir={tmp_path}/data",
        f"--sweep_dir={tmp_path}/sweep",
    ]  # fmt: skip


def test_missing_files_of_all_tasks_are_named_before_the_first_job(words, tmp_path):
    data = tmp_path / "data"
    (data / "xnli").mkdir(parents=True)
    (data / "xnli/train-en.tsv").write_text("a\tb\tneutral\n")
    said = mistake(*words, "--scale=mini", "--tasks=xnli,udpos")
    assert f"{data}: holds no dev or test file of xnli in any language" in said
    assert f"{data}/udpos/train-en.tsv: missing" in said
    assert not (tmp_path / "sweep/models").exists()
    # The settings of the sweep, and not those of a job, which were checked last.
    assert "\nSweepConfig.rows = " in (tmp_path / "sweep/config.1.gin").read_text()


def test_what_a_task_would_refuse_is_refused_before_the_first_job(words, tmp_path):
    """Malformed files, and learning rates without a dev file to choose by."""
    data = tmp_path / "data"
    for name, text in (
        ("xnli/train-en.tsv", "a\tb\tneutral\n"),
        ("xnli/test-en.tsv", "a\tb\n"),
        ("pawsx/train-en.tsv", "a\tb\t1\n"),
        ("pawsx/dev-en.tsv", "a\tb\t1\n"),
        ("pawsx/test-de.tsv", "a\n"),
    ):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text)
    said = mistake(*words, "--scale=paper", "--tasks=xnli,pawsx")
    assert "3 to choose from, but xnli has no English dev file" in said
    assert f"{data}/pawsx/test-de.tsv:1: 1 columns" in said
    assert not (tmp_path / "sweep/models").exists()


@pytest.mark.parametrize(
    "setting, message",
    [
        ("max_positions = 16", "32, but the checkpoint's model has max_positions"),
        (
            "type_vocab_size = 1",
            "holds pairs of texts, or questions, but the model has",
        ),
    ],
)
def test_a_task_that_a_row_cannot_learn_is_refused_before_the_first_job(
    setting, message, words, tmp_path
):
    (tmp_path / "data/xnli").mkdir(parents=True)
    for split in ("train", "dev"):
        (tmp_path / f"data/xnli/{split}-en.tsv").write_text("a\tb\tneutral\n")
    models = {"e_out_768": ("e_out_768", f"ModelConfig.{setting}")}
    param = f"--gin_param=SweepConfig.models = {models}"
    assert message in mistake(*words, "--scale=mini", "--tasks=xnli", param)
    assert not (tmp_path / "sweep/models").exists()


@pytest.mark.parametrize(
    "more, message",
    [
        (
            ["--records_dir=none"],
            "--records_dir: no complete records in none; run build_records",
        ),
        (
            ["--gin_param=SweepConfig.keep_layers = {'e_out_128': 99}"],
            "99 of 'e_out_128', which",
        ),
        (
            [
                "--gin_param=SweepConfig.pretraining = "
                "('TrainingConfig.batch_size = -4',)"
            ],
            "models/e_out_128/seed_0: TrainingConfig.batch_size: -4",
        ),
        (["--tasks=xnil"], "SweepConfig.tasks: 'xnil' is no task; did you mean xnli"),
    ],
)
def test_what_every_job_would_refuse_is_refused_first(more, message, words, tmp_path):
    assert message in mistake(*words, "--scale=mini", "--tasks=", *more)
    assert not (tmp_path / "sweep").exists()
