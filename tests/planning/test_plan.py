"""Plans of a tiny model: hand counts on v2-8; on v4-8, what a run on CPUs allocates."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

from benchmarks.flops import pretraining_flops
from benchmarks.sizes import Batch
from decoupled.configs import (
    MeshConfig,
    OptimizerConfig,
    PhaseConfig,
    PlanConfig,
    PretrainConfig,
    SamplingConfig,
)
from decoupled.configs.studies import PlanSettings
from decoupled.core.errors import UserError
from decoupled.launch import gin_files
from decoupled.model.variables import MASKED_LM, shapes
from decoupled.planning.costs import Collective
from decoupled.planning.hardware import parse_topology
from decoupled.planning.plan import make_plan, seconds
from decoupled.planning.report import as_json, print_plan
from decoupled.runs.pretraining_plan import with_whole_evaluations
from decoupled.training.graph import check_graph, pretraining_graph
from tests.helpers import (
    MASKING,
    adamw,
    schedule,
    tiny_model,
    tiny_training,
)
from tests.refusals import refusal
from tests.training.runs import SMALL, built_step

TPU = parse_topology("v2-8")
ASSUMED = PlanConfig(efficiency=0.5, memory_share=1.0)
DATA = MeshConfig("data:8", "batch:data")
BOTH = MeshConfig(
    "data:4;model:2", "batch:data;vocab:model;heads:model;intermediate:model"
)
# On the four cores of a v4-8.
BOTH_ON_FOUR = dataclasses.replace(BOTH, mesh_shape="data:2;model:2")
DATA_ON_FOUR = dataclasses.replace(DATA, mesh_shape="data:4")


def make_run(mesh, **changes):
    fields = dict(
        model=tiny_model(num_layers=1),
        mesh=mesh,
        masking=MASKING,
        optimizer=adamw(),
        schedule=schedule(),
        training=tiny_training(batch_size=16),
    )
    return PretrainConfig(**{**fields, **changes})


def changed(run, part, **changes):
    part_changed = dataclasses.replace(getattr(run, part), **changes)
    return dataclasses.replace(run, **{part: part_changed})


def rows_of_rembert():
    """Layout, mesh and gradient checkpointing of rows in docs/scaling.md: of those that
    differ in the last alone, one."""
    page = pathlib.Path(__file__).parents[2] / "docs/scaling.md"
    pattern = r"^\| (?:v|tpu)\w+-\d+ \| \W*(data\w+?)\W* \| ([\w:;]+) \| (yes|no) \|"
    rows = re.findall(pattern, page.read_text(), re.MULTILINE)
    assert len(rows) > 9
    last = {row[:2]: row for row in rows}.values()
    assert {recomputes for *_, recomputes in last} == {"yes", "no"}
    return sorted(last)


@pytest.mark.parametrize("layout, mesh, recomputes", rows_of_rembert())
def test_the_documented_runs_of_rembert_pass_the_checks_of_pretrain(
    layout, mesh, recomputes
):
    gin_names = ["models/rembert.gin", f"layouts/{layout}.gin"]
    settings = [
        f"MeshConfig.mesh_shape = {mesh!r}",
        f"TrainingConfig.recompute_layers = {recomputes == 'yes'}",
    ]
    run = gin_files.configure(PlanSettings, gin_names, settings).run
    run = with_whole_evaluations(run)
    check_graph(pretraining_graph(run).network, run.training)


@pytest.fixture(scope="module")
def data_plan():
    return make_plan(make_run(DATA), TPU, ASSUMED)


@pytest.fixture(scope="module")
def narrow_plan(data_plan):
    """With activations in bfloat16."""
    run = changed(data_plan.run, "mesh", activation_dtype="bfloat16")
    return make_plan(run, TPU, ASSUMED)


@pytest.fixture(scope="module")
def both_plan():
    return make_plan(make_run(BOTH), TPU, ASSUMED)


def allocated(run):
    """Bytes of the slices on each of 4 virtual CPU devices: weights, and slots."""
    lowering = built_step(pretraining_graph(run)).lowering
    weights = set(shapes(run.model, MASKED_LM))
    slices = {
        variable.name: laid_out.laid_out_tensor.all_slices
        for variable, laid_out in lowering.variables.items()
    }
    sizes = {
        name: [part.shape.num_elements() * part.dtype.size for part in parts]
        for name, parts in slices.items()
    }
    return [
        (
            sum(sizes[name][device] for name in weights),
            sum(sizes[name][device] for name in set(sizes) - weights),
        )
        for device in range(4)
    ]


@pytest.mark.parametrize(
    "mesh, optimizer",
    [
        # Slots of the head alone, in a graph of half the size.
        (BOTH_ON_FOUR, adamw(rates={"bert/*": 0})),
        pytest.param(BOTH_ON_FOUR, adamw(), marks=pytest.mark.slow),
        pytest.param(
            dataclasses.replace(BOTH_ON_FOUR, slice_dtype="bfloat16"),
            adamw(),
            marks=pytest.mark.slow,
        ),
        pytest.param(DATA_ON_FOUR, adamw(), marks=pytest.mark.slow),
    ],
    ids=["head alone", "both", "both, bfloat16 slices", "data"],
)
def test_weights_and_slots_are_what_a_run_allocates_on_every_device(
    mesh: MeshConfig, optimizer: OptimizerConfig
):
    # Few variables: each has some ten operations of a graph on each device.
    model = tiny_model(num_layers=1, **SMALL)
    run = make_run(mesh, model=model, optimizer=optimizer)
    memory = make_plan(run, parse_topology("v4-8"), ASSUMED).memory
    assert allocated(run) == [(memory.weights, memory.slots)] * 4


def test_flops_are_those_of_the_formula(data_plan):
    batch = Batch(sequences=16, length=12, predictions=4)
    model = data_plan.run.model
    # Gradients of the input embeddings and of the masked positions are products too.
    rows = 16 * 12 * (model.vocab_size + model.type_vocab_size)
    rows += 8 * 12 * model.max_positions
    added = 2 * rows * model.input_embedding_size
    added += 2 * 16 * 4 * 12 * model.hidden_size
    assert data_plan.flops == {"float32": (pretraining_flops(model, batch) + added) / 8}


def test_products_of_float32_take_six_of_bfloat16(data_plan, narrow_plan):
    assert narrow_plan.flops["bfloat16"] > 0.9 * sum(narrow_plan.flops.values())
    [flops] = data_plan.flops.values()
    peak = TPU.core_flops * ASSUMED.efficiency
    assert data_plan.times.products == pytest.approx(6 * flops / peak)
    run = changed(data_plan.run, "mesh", matmul_precision="default")
    plan = make_plan(run, TPU, ASSUMED)
    assert plan.times.products == pytest.approx(flops / peak)


def test_every_phase_must_be_on_the_mesh(data_plan):
    phase = PhaseConfig(1, 12, MASKING, SamplingConfig(0.5))
    run = dataclasses.replace(data_plan.run, earlier_phases=(phase,))
    assert "'batch' of size 12 does not" in refusal(make_plan, run, TPU, ASSUMED)


def test_memory_and_time_are_those_of_the_last_phase(data_plan, capsys):
    phase = PhaseConfig(1, 16, MASKING, SamplingConfig(0.5))
    run = dataclasses.replace(data_plan.run, earlier_phases=(phase,))
    print_plan(data_plan._replace(run=run))
    shown = capsys.readouterr().out
    assert "Memory of a core in the last phase\n" in shown
    assert "steps in the last phase" in shown
    print_plan(data_plan)
    assert "phase" not in capsys.readouterr().out


def test_recomputed_layers_add_a_forward_pass_of_the_layers(data_plan):
    run = changed(data_plan.run, "training", recompute_layers=True)
    plan = make_plan(run, TPU, ASSUMED)
    # Two sequences of 12 tokens on a core; H 16, feed-forward 32. In the only layer
    # keys and values are of all tokens, the rest is of the 4 that are predicted.
    products = 2 * (12 + 4) * 16 * 16 + 2 * 4 * 16 * 12 + 2 * 4 * 16 * 32
    added = sum(plan.flops.values()) - sum(data_plan.flops.values())
    assert added == 2 * 2 * products
    assert plan.memory.weights == data_plan.memory.weights


def test_gradients_of_microbatches_cross_the_mesh_once(narrow_plan):
    """In float32, in which they are added up; without microbatches in bfloat16."""
    run = changed(narrow_plan.run, "training", batch_size=32, gradient_accumulation=4)
    once, often = (
        sum(c.bytes * c.count for c in plan.collectives)
        for plan in (narrow_plan, make_plan(run, TPU, ASSUMED))
    )
    assert often < 2.2 * once


def test_gpus_add_up_bfloat16_in_float32(narrow_plan):
    of_gpus = make_plan(narrow_plan.run, parse_topology("h100-8"), ASSUMED)
    tpus, gpus = (
        {c.bytes for c in plan.collectives} for plan in (narrow_plan, of_gpus)
    )
    # Of a kernel's gradient: [H 16, feed-forward 32].
    assert 16 * 32 * 2 in tpus and 16 * 32 * 4 not in tpus
    assert 16 * 32 * 4 in gpus


def test_data_parallel_cores_add_up_the_gradients_of_all_weights(data_plan):
    summed = sum(c.bytes * c.count for c in data_plan.collectives if c.bytes > 4)
    assert all(len(c.group) == 8 for c in data_plan.collectives)
    # Of 20 positions, the 12 that there are.
    assert summed == data_plan.memory.weights - 8 * 8 * 4


def test_split_heads_and_feed_forward_add_up_activations_over_two_cores(both_plan):
    pairs = {c.bytes: c.count for c in both_plan.collectives if len(c.group) == 2}
    # [4 sequences, 12 tokens, H 16]: keys' and values' gradients for the layer's input.
    assert pairs[4 * 12 * 16 * 4] == 1
    # [4 sequences, 4 predictions, H 16]: attention and feed-forward, forward and
    # backward.
    assert pairs[4 * 4 * 16 * 4] == 4


def test_slices_are_those_of_the_layout(both_plan):
    shapes = {v.name: (v.shape, v.slice) for v in both_plan.variables}
    table = shapes["cls/predictions/output_embedding"]
    assert table == ([48, 24], [24, 24])
    kernel = shapes["bert/encoder/layer_0/attention/self/query/kernel"]
    assert kernel == ([16, 16], [16, 8])


def test_bfloat16_halves_activations(data_plan, narrow_plan):
    wide = {t.shape for t in data_plan.memory.tensors}
    assert not any("bfloat16" in shape for shape in wide)
    assert narrow_plan.memory.total < data_plan.memory.total
    assert narrow_plan.memory.weights == data_plan.memory.weights


def test_bfloat16_slices_halve_the_weights_but_vectors_and_nothing_else(data_plan):
    narrow = make_plan(
        changed(data_plan.run, "mesh", slice_dtype="bfloat16"), TPU, ASSUMED
    )
    before, after = data_plan.memory, narrow.memory
    vectors = sum(v.shape[0] for v in data_plan.variables if len(v.shape) == 1)
    assert after.weights == before.weights // 2 + 2 * vectors
    assert after._replace(weights=before.weights) == before
    assert narrow.collectives == data_plan.collectives
    assert as_json(narrow)["slice_dtype"] == "bfloat16"


def test_a_batch_that_does_not_divide():
    run = make_run(DATA, training=tiny_training(batch_size=12))
    with pytest.raises(UserError, match="'batch' of size 12 does not divide into 8"):
        make_plan(run, TPU, ASSUMED)


def test_every_host_gets_ids_and_masked_positions_of_the_whole_batch(data_plan):
    # 16 sequences of 12 ids, and 4 positions, labels and weights each.
    assert data_plan.infeed_bytes == 16 * (12 + 3 * 4) * 4


def test_a_stack_of_gradients_is_all_that_stacks_add(data_plan):
    apart = make_plan(changed(data_plan.run, "mesh", stack_mib=0), TPU, ASSUMED)
    assert apart.memory.slots == data_plan.memory.slots
    assert apart.memory.total <= data_plan.memory.total


def test_json_has_only_numbers_and_words(data_plan):
    report = as_json(data_plan)
    assert report["bytes"]["peak"] == data_plan.memory.total
    assert report["seconds"]["step"] == pytest.approx(data_plan.times.step)
    assert report["days"] == pytest.approx(20 * data_plan.times.step / 86400)
    assert report["fits"] is True
    assert report["slices"]["cls/predictions/output_bias"] == [48]


def test_a_ring_of_four_chips_with_both_cores():
    group = tuple((x, y, 0, core) for x in (0, 1) for y in (0, 1) for core in (0, 1))
    collective = Collective("CrossReplicaSum", group, 62_000_000, 1)
    # 3/4 of the bytes, there and back, over two links of 62 GB/s; and once through the
    # memory of a core, 350 GB/s, both ways.
    expected = 2 * 0.75 * 62e6 / 124e9 + 2 * 62e6 / 350e9
    assert seconds(collective, TPU) == pytest.approx(expected)


def test_one_core_of_each_chip_shares_the_links_with_the_other():
    group = ((0, 0, 0, 0), (0, 1, 0, 0))
    collective = Collective("CrossReplicaSum", group, 62_000_000, 1)
    assert seconds(collective, TPU) == pytest.approx(2 * 0.5 * 62e6 * 2 / 124e9)


def test_no_values_of_weights_are_made():
    huge = dataclasses.replace(tiny_model(num_layers=1), vocab_size=4_000_000)
    plan = make_plan(make_run(DATA, model=huge), TPU, ASSUMED)
    assert plan.memory.weights > 4_000_000 * (8 + 24) * np.float32().nbytes
