"""`decoupled sweep` finds what its jobs would lack before the first of them."""

import pytest

from decoupled.commands import sweep
from tests.command_line import decoupled, mistake
from tests.data.small_corpus import make_vocabulary


def test_missing_files_of_all_tasks_are_named_before_the_first_job(tmp_path):
    data, folder = tmp_path / "data", tmp_path / "sweep"
    (data / "xnli").mkdir(parents=True)
    (data / "xnli/train-en.tsv").write_text("a\tb\tneutral\n")
    vocabulary = make_vocabulary(tmp_path / "sentencepiece.model").path
    (tmp_path / "records").mkdir()
    (tmp_path / "records/manifest.json").write_text("{}")
    done = decoupled(
        "sweep",
        "--gin_file=sweeps/table4.gin",
        "--scale=mini",
        "--tasks=xnli,udpos",
        f"--records_dir={tmp_path}/records",
        f"--vocabulary={vocabulary}",
        f"--data_dir={data}",
        f"--sweep_dir={folder}",
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{data}/xnli: holds no dev or test file" in done.stderr
    assert f"{data}/udpos/train-en.tsv: missing" in done.stderr
    assert not (folder / "models").exists()


def test_what_a_task_would_refuse_is_refused_before_the_first_job(tmp_path):
    """Malformed files, and learning rates without a dev file to choose by."""
    data, folder = tmp_path / "data", tmp_path / "sweep"
    for name, text in (
        ("xnli/train-en.tsv", "a\tb\tneutral\n"),
        ("xnli/test-en.tsv", "a\tb\n"),
        ("pawsx/train-en.tsv", "a\tb\t1\n"),
        ("pawsx/dev-en.tsv", "a\tb\t1\n"),
        ("pawsx/test-de.tsv", "a\n"),
    ):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(text)
    vocabulary = make_vocabulary(tmp_path / "sentencepiece.model").path
    (tmp_path / "records").mkdir()
    (tmp_path / "records/manifest.json").write_text("{}")
    said = mistake(
        *("sweep", "--gin_file=sweeps/table4.gin", "--scale=paper"),
        *("--tasks=xnli,pawsx", f"--records_dir={tmp_path}/records"),
        *(f"--vocabulary={vocabulary}", f"--data_dir={data}", f"--sweep_dir={folder}"),
    )
    assert "3 to choose from, but xnli has no English dev file" in said
    assert f"{data}/pawsx/test-de.tsv:1: 1 columns" in said
    assert not (folder / "models").exists()


@pytest.mark.parametrize(
    "params, message",
    [
        ([], "--records_dir: no complete records in none; run build_records"),
        (["SweepConfig.keep_layers = {'e_out_128': 99}"], "99 of 'e_out_128', which"),
        (
            ["SweepConfig.pretraining = ('TrainingConfig.batch_size = -4',)"],
            "models/e_out_128/seed_0: TrainingConfig.batch_size: -4",
        ),
    ],
)
def test_what_every_job_would_refuse_is_refused_first(
    params, message, tmp_path, monkeypatch
):
    vocabulary = make_vocabulary(tmp_path / "sentencepiece.model").path
    if params:
        monkeypatch.setattr(sweep.files, "exists", lambda path: True)
    said = mistake(
        *("sweep", "--gin_file=sweeps/table4.gin", "--scale=mini", "--tasks="),
        *(f"--gin_param={param}" for param in params),
        *("--records_dir=none", f"--vocabulary={vocabulary}"),
        f"--sweep_dir={tmp_path}/sweep",
    )
    assert message in said
    assert not (tmp_path / "sweep").exists()


def test_a_task_that_does_not_exist_is_named(tmp_path):
    done = decoupled(
        "sweep", "--gin_file=sweeps/table4.gin", "--scale=mini", "--tasks=xnil",
        "--records_dir=none", "--vocabulary=none", "--data_dir=none",
        f"--sweep_dir={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 2
    assert "SweepConfig.tasks: 'xnil' is no task; did you mean xnli" in done.stderr
