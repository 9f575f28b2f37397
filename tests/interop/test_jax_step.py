"""Training steps outside TensorFlow: run by JAX, compiled by the compiler of TPUs.

Needs an environment with jax and libtpu: `make test-interop` makes it. No TPU is
needed.
"""

import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

from benchmarks import xla_programs
from decoupled.commands import plan
from decoupled.configs import MeshConfig, PlanConfig
from decoupled.core.compat import tf
from decoupled.launch import gin_files
from decoupled.planning import jax_step
from decoupled.planning.hardware import GIB, parse_topology
from decoupled.planning.plan import make_plan
from decoupled.planning.program import build_program, compile_step, feature_specs
from decoupled.training.xla.programs import export
from tests.command_line import decoupled
from tests.helpers import MASKING, masked_lm_features
from tests.training.runs import graph_config

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


def run_script(*arguments, devices=1):
    """What the script prints: a dict for each folder."""
    environment = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    done = subprocess.run(
        [PYTHON, jax_step.__file__, *map(str, arguments)],
        capture_output=True, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """Folder of programs of tiny models."""
    folder = pathlib.Path(tmp_path_factory.mktemp("programs"))
    for name in (
        "dropout-float32", "layers-float32-kept", "layers-float32-recomputed",
    ):  # fmt: skip
        xla_programs.write(name, folder, quick=True)
    return folder


def test_jax_trains_as_tensorflow_does(programs):
    """With dropout: XLA draws the same masks as TensorFlow's kernels."""
    folder = programs / "dropout-float32"
    expected = json.loads((folder / "losses.json").read_text())
    (result,) = run_script(f"--losses={len(expected)}", folder)
    assert len(expected) == 10
    np.testing.assert_allclose(result["losses"], expected, rtol=1e-6)


@pytest.mark.skipif(OLDEST, reason="TensorFlow 2.15 cannot translate sums over cores")
def test_four_cores_sum_to_what_one_core_computes(tmp_path):
    features = masked_lm_features()
    specs = feature_specs(MASKING, 8)
    arrays = {f"0-{name}": features[name] for name in specs}
    for cores, tpu in ((1, None), (4, parse_topology("v4-8"))):
        mesh = MeshConfig(f"data:{cores}", "batch:data")
        folder = tmp_path / str(cores)
        step = export(build_program(graph_config(mesh=mesh), specs, tpu))
        step.write(str(folder))
        np.savez(folder / "features.npz", **arrays)
    one, four = run_script("--losses=5", tmp_path / "1", tmp_path / "4", devices=4)
    losses = [loss for loss, _ in one["losses"]]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] - losses[-1] > 0.01
    np.testing.assert_allclose(four["losses"], one["losses"], rtol=1e-6)


def test_recomputed_layers_change_nothing(programs):
    kept, recomputed = run_script(
        "--losses=3",
        programs / "layers-float32-kept",
        programs / "layers-float32-recomputed",
    )
    np.testing.assert_allclose(recomputed["losses"], kept["losses"], rtol=1e-6)


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
