"""A sweep of real commands: one fails, the other is neither stopped nor repeated."""

import os

import pytest

from decoupled.configs import ScaleConfig, SweepConfig
from decoupled.core import console, files
from decoupled.data.records_build import build_records
from decoupled.reports.results import read_sweeps
from decoupled.sweeps.jobs import Inputs, Row, describe, make_jobs
from decoupled.sweeps.runner import JobRunner
from tests.data.small_corpus import make_corpus, make_vocabulary
from tests.helpers import tiny_model

SWEEP = SweepConfig(
    title="Two models",
    rows=("coupled", "e_out_128"),
    keep_layers={},
    tasks=(),
    seeds=(0,),
    finetuning_runs=1,
    task_files={"*": ""},
    pretraining=(
        "MaskingConfig.sequence_length = 16",
        "MaskingConfig.max_predictions = 2",
        "ScheduleConfig.train_steps = 3",
        "ScheduleConfig.warmup_steps = 1",
        "TrainingConfig.batch_size = 4",
        "TrainingConfig.eval_batch_size = 4",
    ),
    finetuning=(),
    warm_processes=True,
)
PIECES = 54
COUPLED = Row(
    "coupled",
    tiny_model(vocab_size=PIECES, coupled=True, output_embedding_size=8),
    0,
)
DECOUPLED = Row("e_out_128", tiny_model(vocab_size=PIECES), 0)
# Too few embeddings for the vocabulary.
BROKEN = Row("e_out_128", tiny_model(vocab_size=PIECES - 10), 0)


@pytest.fixture
def inputs(tmp_path):
    make_corpus(tmp_path / "corpus", evaluation=(("en", 20),))
    vocabulary = make_vocabulary(tmp_path / "sentencepiece.model").path
    records = str(tmp_path / "records")
    build_records(str(tmp_path / "corpus"), vocabulary, records, 2000, 1)
    return Inputs(records, vocabulary, {})


def test_a_broken_job_is_told_and_tried_again_and_a_complete_one_is_kept(
    inputs, tmp_path
):
    folder = str(tmp_path / "sweep")
    broken = make_jobs(SWEEP, [COUPLED, BROKEN], inputs, folder)
    (failure,) = JobRunner(broken, 1, console.say, warm=True).run()
    assert failure.name == "models/e_out_128/seed_0" and failure.reason == "code 2"
    assert failure.last_line.startswith("decoupled pretrain: error: ")
    assert "54" in failure.last_line and "44" in failure.last_line
    assert [job.is_complete() for job in broken] == [True, False]
    record = os.path.join(broken[0].folder, "job.json")
    before = files.read_json(record)

    mended = make_jobs(SWEEP, [COUPLED, DECOUPLED], inputs, folder)
    assert JobRunner(mended, 1, console.say, warm=True).run() == []
    assert all(job.is_complete() for job in mended)
    assert files.read_json(record) == before
    assert not os.path.exists(os.path.join(mended[0].folder, "command.2"))

    describe(folder, SWEEP, ScaleConfig(1, 1, 1), "mini", [COUPLED, DECOUPLED], mended)
    results = read_sweeps([folder])
    rows = results.rows
    assert list(rows) == ["coupled", "e_out_128"]
    for row in rows:
        assert 0 <= results.masked_lm(row)[0] <= 100
    assert rows["coupled"].pretraining < rows["e_out_128"].pretraining
    assert rows["coupled"].model.coupled
