"""decoupled plan."""

import json
import pathlib
import re
import shlex
import sys

import pytest

from decoupled import configs
from decoupled.commands import plan, pretrain
from decoupled.core.errors import UserError
from decoupled.launch import gin_files, start
from decoupled.planning.hardware import parse_topology
from decoupled.planning.plan import make_plan
from tests.command_line import decoupled, mistake

ROOT = pathlib.Path(__file__).parent.parent.parent

TINY = (
    "ModelConfig.vocab_size = 48",
    "ModelConfig.num_layers = 1",
    "ModelConfig.max_positions = 16",
    "MaskingConfig.sequence_length = 16",
    "MaskingConfig.max_predictions = 4",
    "TrainingConfig.batch_size = 32",
)


def words(topology, *params, **flags):
    """The command for the demo model made tiny; `flags` are others."""
    return [
        "plan", f"--topology={topology}", "--gin_file=models/demo_decoupled.gin",
        *(f"--gin_param={param}" for param in (*TINY, *params)),
        *(f"--{name}={value}" for name, value in flags.items()),
    ]  # fmt: skip


def run(*given, **flags):
    """What the command of `words` prints."""
    done = decoupled(*words(*given, **flags))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "topology, compiler, said",
    [
        ("v3-8", "/nothing", "/nothing: No such file"),
        # This Python has neither package; what to install is said.
        ("v3-8", sys.executable, r"lacks jax or libtpu.*'jax\[tpu\]'"),
        ("h100-1", sys.executable, "lacks jax or jax-cuda13-plugin; .*cuda13"),
    ],
)
def test_a_compiler_is_looked_for_before_anything_is_built(topology, compiler, said):
    assert re.search(said, mistake(*words(topology, compiler=compiler)))


def test_a_compiler_that_is_killed_is_said_to_be(tmp_path):
    """By the kernel, where memory is short; what it last said has another reason."""
    compiler = tmp_path / "python"
    compiler.write_text('#!/bin/sh\n[ "$1" = -c ] || { echo hint >&2; kill -9 $$; }\n')
    compiler.chmod(0o755)
    process = decoupled(*words("v5e-1", compiler=compiler))
    said = "v5e-1: was killed by SIGKILL; a large model needs up to 14 GB"
    assert process.returncode == 2 and said in process.stderr


def test_the_gpus_of_a_host(tmp_path):
    path = tmp_path / "plan.json"
    run(
        "h100-8",
        "MeshConfig.mesh_shape = 'data:8'",
        "MeshConfig.layout_rules = 'batch:data'",
        json=path,
    )
    (report,) = json.loads(path.read_text())
    assert (report["cores"], report["hosts"]) == (8, 1)
    assert report["bytes"]["hbm"] == 84_942_979_072
    # A ring sends 7/8 of each array twice, at 450 GB/s.
    (largest, *_) = report["collectives"]
    sent = 2 * 7 / 8 * largest["bytes"] * largest["count"]
    assert largest["seconds"] == pytest.approx(sent / 450e9)


def test_one_layout(tmp_path):
    path = tmp_path / "plan.json"
    shown = run(
        "v2-8",
        "MeshConfig.mesh_shape = 'data:8'",
        "MeshConfig.layout_rules = 'batch:data'",
        "OptimizerConfig.rates = {'*output_embedding': 4}",
        json=path,
    )
    for words in ("Memory of a core", "Collective operations", "1T tokens", "fits"):
        assert words in shown
    assert re.search(r"cls/predictions/output_embedding +- +0\.0008 \(4 x\)", shown)
    (report,) = json.loads(path.read_text())
    # The memory of a small model is not rounded to zero.
    assert re.search(r"weights +[\d.,]+ [KM]iB", shown)
    assert re.search(r"CrossReplicaSum +8 +\d+ +[\d.,]+ [KM]iB", shown)
    assert not re.search(r" 0\.0+ [KMG]", shown)
    assert report["topology"] == "v2-8" and report["rates"] == {"*output_embedding": 4}
    assert report["activation_dtype"] == "bfloat16"
    assert "planned with activations in bfloat16, weights on the cores in float32" in (
        " ".join(shown.split())
    )
    # 32 sequences of 16 ids, and 4 positions, labels and weights each.
    assert report["features_bytes"] == 32 * (16 + 3 * 4) * 4
    assert report["bytes"]["slots"] == 2 * report["bytes"]["weights"]


def test_pretraining_on_a_tpu_has_the_defaults_that_are_planned():
    model = "models/demo_decoupled.gin"
    planned = gin_files.configure(plan.PlanSettings, [plan.DEFAULTS, model], TINY).run
    trained = gin_files.configure(
        configs.PretrainConfig, [pretrain.TPU_DEFAULTS, model], TINY
    )
    assert planned == trained
    assert trained.mesh.activation_dtype == "bfloat16"


@pytest.mark.parametrize(
    "flags, defaults",
    [
        (["--tpu=local"], (pretrain.TPU_DEFAULTS,)),
        (["--accelerator=tpu"], (pretrain.TPU_DEFAULTS,)),
        (["--accelerator=gpu"], ()),
        ([], ()),
    ],
)
def test_the_flag_of_a_tpu_chooses_the_defaults(flags, defaults, monkeypatch):
    def parse(root, *files):
        raise UserError(f"reads {files}")

    monkeypatch.setattr(start, "parse_gin", parse)
    folders = "--records_dir=a --vocabulary=b --model_dir=c".split()
    assert mistake("pretrain", *folders, *flags).endswith(f"reads {defaults}")


def documented_launches():
    """Slice, gin files and settings of every documented launch of pre-training."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(
            r"^tpu_scripts/run\.sh .* pretrain .*$", text, re.MULTILINE
        ):
            words = [word.partition("=") for word in shlex.split(line)]

            def values(flag, words=words):
                return [value for name, _, value in words if name == flag]

            yield pytest.param(
                *values("--type"), values("--gin_file"), values("--gin_param"),
                id=f"{path.name}, {values('--name')[0]}",
            )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("topology, names, params", list(documented_launches()))
def test_a_documented_launch_fits(topology, names, params):
    settings = gin_files.configure(plan.PlanSettings, [plan.DEFAULTS, *names], params)
    made = make_plan(settings.run, parse_topology(topology), settings.config)
    assert made.fits


@pytest.mark.slow
def test_the_largest_row_of_a_sweep_fits_on_its_slices():
    scale = ["sweeps/paper.gin", "sweeps/table4.gin"]
    sweep = gin_files.configure(configs.SweepRoot, [*scale, "sweeps/v3_32.gin"], [])
    files = [plan.DEFAULTS, "models/e_out_3072.gin"]
    settings = gin_files.configure(plan.PlanSettings, files, sweep.sweep.pretraining)
    made = make_plan(settings.run, parse_topology("v3-32"), settings.config)
    assert made.fits


def test_layouts_beside_each_other_replace_the_mesh_of_the_settings_alone(tmp_path):
    path = tmp_path / "plan.json"
    shown = run(
        "v2-8",
        "MeshConfig.mesh_shape = 'data:4'",
        "MeshConfig.slice_dtype = 'bfloat16'",
        layouts="data_parallel,model_parallel",
        json=path,
    )
    assert "best: MeshConfig.mesh_shape = 'data:8'" in shown
    assert "cannot be: model_parallel, model:8: dimension 'heads'" in shown
    (made,) = json.loads(path.read_text())
    assert (made["mesh_shape"], made["slice_dtype"]) == ("data:8", "bfloat16")


TOO_LARGE = (
    "MeshConfig.mesh_shape = 'data:8'",
    "MeshConfig.layout_rules = 'batch:data'",
    "PlanConfig.memory_share = 0.0019",
    "TrainingConfig.batch_size = 4096",
)


def test_what_needs_less_memory_is_named():
    shown = run("v2-8", *TOO_LARGE)
    assert "DOES NOT FIT" in shown
    assert "does not fit: less memory is needed with TrainingConfig.gradient" in shown


@pytest.mark.parametrize(
    "topology, flags, said",
    [
        ("v3-9", {}, "--topology: 'v3-9' is no slice"),
        ("v2-8", {}, "all:1 has 1 processors, v2-8 has 8 cores"),
        (
            "v2-8",
            {"layouts": "model_parallel"},
            "--layouts: none can be on v2-8: model_parallel, model:8",
        ),
        ("v2-8", {"layouts": "sideways"}, "layouts/sideways.gin: no such gin file"),
    ],
)
def test_mistakes(topology, flags, said):
    assert said in mistake(*words(topology, **flags))
