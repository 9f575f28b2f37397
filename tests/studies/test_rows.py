"""The models of a sweep, and what its folder says about it."""

import json

import pytest

from decoupled.configs import ScaleConfig, SweepConfig
from decoupled.studies import jobs
from decoupled.studies.jobs import Job, describe, make_rows
from decoupled.studies.results import read_description
from tests.helpers import tiny_model

SWEEP = SweepConfig(
    title="A table",
    rows=("wide", "deep"),
    keep_layers={"deep": 4},
    tasks=("catalogs",),
    seeds=(0, 3),
    finetuning_runs=1,
    task_files={},
    pretraining=(),
    finetuning=(),
)
MODELS = {
    "wide": tiny_model(hidden_size=16, num_heads=4, head_size=4),
    "deep": tiny_model(num_layers=6),
}


@pytest.fixture(autouse=True)
def models(monkeypatch):
    monkeypatch.setattr(jobs, "read_model", lambda sweep, row: MODELS[row])


HALF = ScaleConfig(width_divisor=2, head_size_divisor=1, depth_divisor=2)


def test_models_are_scaled_and_so_are_the_layers_that_are_kept():
    wide, deep = make_rows(SWEEP, SWEEP.rows, HALF, 77)
    assert (wide.name, wide.model.hidden_size, wide.keep_layers) == ("wide", 8, 0)
    assert wide.model.vocab_size == 77
    assert (deep.model.num_layers, deep.keep_layers) == (3, 2)


def test_the_folder_tells_tables_what_they_need(tmp_path):
    rows = make_rows(SWEEP, SWEEP.rows, HALF, 77)
    trained = [Job("pretrain", "models/wide/seed_0", "", (), ())]
    describe(str(tmp_path), SWEEP, HALF, "mini", rows, trained)
    result = read_description(str(tmp_path))
    assert (result["title"], result["scale"]) == ("A table", "mini")
    assert result["divisors"]["width_divisor"] == 2
    assert (result["tasks"], result["seeds"]) == (["catalogs"], [0, 3])
    assert result["rows"][1]["model"] == json.loads(json.dumps(vars(rows[1].model)))
    assert result["rows"][1]["keep_layers"] == 2
    assert list(result["jobs"]) == ["models/wide/seed_0"]
