"""Training steps outside TensorFlow, compiled by the compiler of TPUs.

Needs an environment with jax and libtpu: `make test-interop` makes it. No TPU is
needed.
"""

import json
import os

import pytest

from decoupled.commands import plan
from decoupled.configs import PlanConfig
from decoupled.core.compat import tf
from decoupled.launch import gin_files
from decoupled.planning.hardware import GIB, parse_topology
from decoupled.planning.plan import make_plan
from decoupled.planning.program import compile_step
from tests.command_line import decoupled

VARIABLE = "DECOUPLED_COMPILER_PYTHON"
PYTHON = os.environ.get(VARIABLE, "")
# An environment with jax[cuda13], several GB, which `make` does not make.
CUDA_VARIABLE = "DECOUPLED_CUDA_PYTHON"
CUDA = os.environ.get(CUDA_VARIABLE, "")
OLDEST = tf.__version__.startswith("2.15.")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(not PYTHON, reason=f"{VARIABLE} is not set"),
]
LAYOUT = (
    "--topology=v3-8",
    "--gin_file=layouts/data_and_model.gin",
    "--gin_param=MeshConfig.mesh_shape = 'data:4;model:2'",
    f"--compiler={PYTHON}",
)
SMALL = (
    "--gin_file=models/demo_decoupled.gin",
    "--gin_param=ModelConfig.vocab_size = 512",
    "--gin_param=ModelConfig.num_layers = 1",
    "--gin_param=ModelConfig.max_positions = 16",
    "--gin_param=MaskingConfig.sequence_length = 16",
    "--gin_param=MaskingConfig.max_predictions = 4",
    "--gin_param=TrainingConfig.batch_size = 32",
)


def test_plan_compiles_its_program(tmp_path):
    path = tmp_path / "plan.json"
    done = decoupled("plan", *SMALL, *LAYOUT, f"--json={path}")
    assert done.returncode == 0, done.stderr
    assert "Memory of a core of v3-8 by libtpu" in done.stdout
    (plan,) = json.loads(path.read_text())
    compiled, planned = plan["compiled"], plan["bytes"]
    assert compiled["fits"] and compiled["available"] is None
    # And the features, and what a TPU pads: dimensions to multiples of 8 and 128.
    ours = planned["weights"] + planned["slots"]
    assert ours <= compiled["arguments"] < 1.2 * ours


def test_plan_says_what_does_not_fit():
    large = (
        "--gin_file=models/e_out_768.gin",
        "--gin_param=ModelConfig.num_layers = 2",
    )
    done = decoupled("plan", *large, *LAYOUT)
    assert done.returncode == 0, done.stderr
    assert "DOES NOT FIT: a core has 15.48 GiB" in done.stdout


def pretraining(slice_name, model, *more):
    """The run of a model on a slice with data:N;model:2, and the slice."""
    tpu = parse_topology(slice_name)
    files = [plan.DEFAULTS, *model, "layouts/data_and_model.gin"]
    mesh = f"MeshConfig.mesh_shape = 'data:{tpu.cores // 2};model:2'"
    return gin_files.configure(plan.PlanSettings, files, [mesh, *more]).run, tpu


@pytest.mark.skipif(OLDEST, reason="TensorFlow 2.15 cannot translate sums over cores")
@pytest.mark.parametrize(
    "slice_name",
    [
        # Its compiler refuses groups that are no regular part of the grid.
        "v5litepod-256",
        "tpu7x-8",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("v4-8", "v5litepod-8", "v5litepod-128", "v5p-8", "v6e-8")
        ),
    ],
)
def test_the_demo_s_step_compiles_for_each_generation(slice_name):
    demo = ("models/demo_decoupled.gin", "runs/demo_pretrain.gin")
    run, tpu = pretraining(slice_name, demo, "ModelConfig.vocab_size = 2000")
    compiled = compile_step(PYTHON, run, tpu)
    assert compiled.fits
    made = make_plan(run, tpu, PlanConfig())
    kept = made.memory.weights + made.memory.slots
    # A TPU pads to tiles of 8 x 128, which is much for small slices.
    assert kept <= compiled.arguments < 4 * kept


LONG = (
    "ModelConfig.vocab_size = 2000",
    "ModelConfig.max_positions = 128",
    "ModelConfig.num_layers = 2",
    "MaskingConfig.sequence_length = 128",
    "MaskingConfig.max_predictions = 20",
    "TrainingConfig.batch_size = 32",
)


@pytest.mark.skipif(OLDEST, reason="TensorFlow 2.15 cannot translate sums over cores")
@pytest.mark.parametrize(
    "slice_name", ["v5litepod-8", pytest.param("v6e-8", marks=pytest.mark.slow)]
)
def test_splash_attention_compiles_in_the_demo_s_step(slice_name):
    """On eight replicas, with heads split."""
    run, tpu = pretraining(slice_name, ["models/demo_decoupled.gin"], *LONG)
    compiled = compile_step(PYTHON, run, tpu)
    assert compiled.fits and compiled.attention == "splash"
    kinds = [group["kind"] for group in compiled.traffic["groups"]]
    assert "tpu_custom_call" in kinds


@pytest.mark.slow
@pytest.mark.skipif(not CUDA, reason=f"{CUDA_VARIABLE} is not set")
@pytest.mark.parametrize("name", ["h100-1", "h100-8"])
def test_the_demo_s_step_compiles_for_gpus(name):
    gpus = parse_topology(name)
    files = [plan.DEFAULTS, "models/demo_decoupled.gin", "layouts/data_parallel.gin"]
    mesh = f"MeshConfig.mesh_shape = 'data:{gpus.cores}'"
    run = gin_files.configure(plan.PlanSettings, files, [mesh, *LONG]).run
    compiled = compile_step(CUDA, run, gpus)
    assert compiled.fits and compiled.attention == "cudnn"
    made = make_plan(run, gpus, PlanConfig())
    kept = made.memory.weights + made.memory.slots
    assert kept <= compiled.arguments < 1.2 * kept
    assert bool(compiled.traffic["collectives"]) == (gpus.cores > 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("slice_name", ["v5litepod-256", "v6e-256"])
def test_rembert_compiles_and_fits(slice_name):
    recompute = "TrainingConfig.recompute_layers = True"
    compiled = compile_step(
        PYTHON, *pretraining(slice_name, ["models/rembert.gin"], recompute)
    )
    assert compiled.fits
    assert compiled.needed < 10 * GIB
