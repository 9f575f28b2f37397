"""python -m decoupled.plan."""

import json
import types

import pytest

from decoupled import launch, plan
from decoupled.errors import UserError

TINY = (
    "ModelConfig.vocab_size = 48",
    "ModelConfig.num_layers = 1",
    "ModelConfig.max_positions = 16",
    "MaskingConfig.sequence_length = 16",
    "MaskingConfig.max_predictions = 4",
    "TrainingConfig.batch_size = 32",
)


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command with the demo model made tiny; returns what it prints."""

    def run_with(topology, *more, layouts=(), json_file=None, advice=True):
        given = types.SimpleNamespace(
            gin_file=["models/demo_decoupled.gin"],
            gin_param=[*TINY, *more],
            gin_location_prefix=[],
            topology=topology,
            layouts=[*layouts],
            json=json_file,
            advice=advice,
        )
        monkeypatch.setattr(launch, "FLAGS", given)
        monkeypatch.setattr(plan, "FLAGS", given)
        plan.main()
        return capsys.readouterr().out

    return run_with


def test_one_layout(run, tmp_path):
    path = tmp_path / "plan.json"
    shown = run(
        "v2-8",
        "MeshConfig.mesh_shape = 'data:8'",
        "MeshConfig.layout_rules = 'batch:data'",
        json_file=str(path),
    )
    for words in ("Memory of a core", "Collective operations", "1T tokens", "fits"):
        assert words in shown
    (report,) = json.loads(path.read_text())
    assert report["topology"] == "v2-8"
    assert report["activation_dtype"] == "bfloat16"
    assert report["bytes"]["slots"] == 2 * report["bytes"]["weights"]


def test_layouts_beside_each_other(run, tmp_path):
    path = tmp_path / "plan.json"
    shown = run(
        "v2-8", layouts=["data_parallel", "model_parallel"], json_file=str(path)
    )
    assert "best: MeshConfig.mesh_shape = 'data:8'" in shown
    assert "cannot be: model_parallel, model:8: dimension 'heads'" in shown
    assert [made["mesh_shape"] for made in json.loads(path.read_text())] == ["data:8"]


def test_what_would_fit_is_looked_for(run):
    shown = run(
        "v2-8",
        "MeshConfig.mesh_shape = 'data:8'",
        "MeshConfig.layout_rules = 'batch:data'",
        "PlanConfig.memory_share = 0.0026",
        "TrainingConfig.batch_size = 4096",
    )
    assert "DOES NOT FIT" in shown
    # The first that is tried, and the last: it fits.
    assert "TrainingConfig.gradient_accumulation = 2" in shown
    assert "TrainingConfig.gradient_accumulation = 4" not in shown


@pytest.mark.parametrize(
    "more, said",
    [
        ({"topology": "v3-9"}, "--topology: 'v3-9' is no slice"),
        ({"topology": "v2-8"}, "all:1 has 1 processors, v2-8 has 8 cores"),
        (
            {"topology": "v2-8", "layouts": ["model_parallel"]},
            "--layouts: none can be on v2-8: model_parallel, model:8",
        ),
        (
            {"topology": "v2-8", "layouts": ["sideways"]},
            "layouts/sideways.gin: no such gin file",
        ),
    ],
)
def test_mistakes(run, more, said):
    topology = more.pop("topology")
    with pytest.raises(UserError) as refused:
        run(topology, **more)
    assert said in str(refused.value)
