"""Training steps as programs of XLA: arguments, and sums over cores.

What they compute is shown where JAX runs them (tests/training/xla).
"""

import dataclasses
import json
import os

import pytest

from decoupled.commands import plan
from decoupled.configs import MeshConfig
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.launch import gin_files
from decoupled.model.variables import MASKED_LM, shapes
from decoupled.planning.hardware import parse_topology
from decoupled.planning.program import build_program, feature_specs
from decoupled.tasks.classification import Classification, Regression
from decoupled.tasks.qa import ExtractiveQA
from decoupled.tasks.tagging import Tagging
from decoupled.training.graph import build_predictions
from decoupled.training.mesh import Placement
from decoupled.training.tpu import logical_to_physical
from decoupled.training.xla.programs import export, replica_mesh
from tests.helpers import MASKING, masked_lm_features, tiny_model
from tests.ops.simd_on_cpu import assign_cores
from tests.training.runs import SMALL, graph_config, head_features

RULES = "batch:data;vocab:model;heads:model;intermediate:model"
ONE_CORE = MeshConfig("data:1;model:1", RULES)
EIGHT_CORES = dataclasses.replace(ONE_CORE, mesh_shape="data:4;model:2")
BATCH = 8
OLDEST = tf.__version__.startswith("2.15.")


MODEL = tiny_model(**SMALL)
# Gradients flow through all of the model to the only variable that is trained.
FROZEN = tuple(n for n in shapes(MODEL, MASKED_LM) if "word_embeddings" not in n)


def step_graph(mesh, topology):
    config = graph_config(mesh=mesh, model=MODEL, frozen=FROZEN)
    return build_program(
        config, feature_specs(MASKING, BATCH), parse_topology(topology)
    )


@pytest.fixture(scope="module")
def eight_cores():
    if OLDEST:
        pytest.skip("TensorFlow 2.15 cannot translate sums over cores")
    return export(step_graph(EIGHT_CORES, "v3-8"))


def test_arguments_are_features_and_variables():
    step = export(step_graph(ONE_CORE, "v5e-1"))
    features = {argument.name: argument for argument in step.features}
    assert features["input_word_ids"] == (
        "input_word_ids", [BATCH, MASKING.sequence_length], "int32",
    )  # fmt: skip
    assert features["masked_lm_weights"].dtype == "float32"
    shapes = {argument.name: argument.shape for argument in step.variables}
    assert shapes["bert/embeddings/word_embeddings_slice_0"] == [48, 16]
    assert shapes["bert/embeddings/word_embeddings/adam_m_slice_0"] == [48, 16]
    assert shapes["global_step"] == []
    assert step.cores == 1
    assert b"all-reduce" not in step.hlo


def test_a_core_of_several_has_its_slices_and_sums_over_them(eight_cores):
    shapes = {argument.name: argument.shape for argument in eight_cores.variables}
    assert shapes["bert/embeddings/word_embeddings_slice_0"] == [24, 16]
    assert eight_cores.cores == 8
    assert b"all-reduce" in eight_cores.hlo
    assert b"replica-id" in eight_cores.hlo


def test_a_folder_has_the_program_and_its_arguments(eight_cores, tmp_path):
    folder = tmp_path / "new" / "step"
    eight_cores.write(str(folder))
    assert (folder / "step.hlo").read_bytes() == eight_cores.hlo
    about = json.loads((folder / "step.json").read_text())
    assert about["cores"] == 8
    assert [name for name, _, _ in about["variables"]] == [
        argument.name for argument in eight_cores.variables
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["step.hlo", "step.json"]


@pytest.mark.skipif(not OLDEST, reason="this TensorFlow translates them")
def test_the_oldest_tensorflow_says_that_it_cannot_translate_sums_over_cores():
    with pytest.raises(UserError, match=r"TensorFlow 2\.15.* sums over cores.*2\.21"):
        export(step_graph(EIGHT_CORES, "v3-8"))


LENGTH = MASKING.sequence_length
LAYOUTS = {
    "data_and_model": "data:4;model:2",
    "data_parallel": "data:8",
    "model_parallel": "model:8",
    "output_embedding": "data:4;model:2",
}
HEADS = {
    "classification": Classification("topics", ("a", "b"), LENGTH, 0.1),
    "regression": Regression("numbers", LENGTH, 0.1),
    "tagging": Tagging("tags", ("A", "B", "C"), LENGTH, 0.1),
    "questions": ExtractiveQA("questions", LENGTH, 0.1),
}


def shipped_mesh(layout):
    """A layout of gin/layouts on eight cores."""
    files = [plan.DEFAULTS, "models/demo_decoupled.gin", f"layouts/{layout}.gin"]
    sizes = ["ModelConfig.vocab_size = 48", "ModelConfig.max_positions = 512"]
    mesh = gin_files.configure(plan.PlanSettings, files, sizes).run.mesh
    return dataclasses.replace(
        mesh, mesh_shape=LAYOUTS[layout], activation_dtype="float32"
    )


def narrowed(graph):
    """All-to-alls of what was float32. Mesh-TensorFlow sends it as bfloat16."""
    sent = [op.inputs[0].op for op in graph.get_operations() if op.type == "AllToAll"]
    return [
        op.name for op in sent if op.type == "Cast" and op.inputs[0].dtype == tf.float32
    ]


def test_layouts_are_those_that_are_shipped():
    folder = os.path.join(gin_files.packaged_folder(), "layouts")
    assert sorted(os.listdir(folder)) == [f"{name}.gin" for name in LAYOUTS]


def test_an_all_to_all_of_float32_is_seen():
    """A reshape that moves a mesh axis from one dimension to another has one."""
    mesh = dataclasses.replace(EIGHT_CORES, layout_rules="batch:data;hidden:data")
    with tf.Graph().as_default() as graph:
        impl = replica_mesh(mesh)
        mesh_graph = mtf.Graph()
        mtf_mesh = mtf.Mesh(mesh_graph, "mesh")
        rows, columns = mtf.Dimension("batch", 8), mtf.Dimension("columns", 8)
        x = mtf.zeros(mtf_mesh, mtf.Shape([rows, columns]))
        to = [mtf.Dimension("rows", 8), mtf.Dimension("hidden", 8)]
        moved = mtf.reshape(x, mtf.Shape(to))
        mtf.Lowering(mesh_graph, {mtf_mesh: impl}).tensors[moved]
        assert len(narrowed(graph)) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name", ["pre-training", *(pytest.param(n, marks=pytest.mark.slow) for n in HEADS)]
)
def test_no_layout_sends_float32_in_an_all_to_all(layout, name):
    task, tpu = HEADS.get(name), parse_topology("v3-8")
    features = head_features(task) if task else masked_lm_features()
    specs = {n: tf.TensorSpec(x.shape, x.dtype) for n, x in features.items()}
    config = graph_config(
        mesh=shipped_mesh(layout),
        model=tiny_model(num_layers=1, num_heads=8, head_size=2),
        **({"task": task} if task else {}),
    )
    # Gradients of vectors are sums of those that other gradients are made of.
    weights = config.network.variables.items()
    vectors = tuple(name for name, weight in weights if len(weight.shape) == 1)
    config = config._replace(frozen=vectors)
    assert narrowed(build_program(config, specs, tpu).graph) == []
    with tf.Graph().as_default() as graph:
        inputs = {n: tf.placeholder(s.dtype, s.shape) for n, s in specs.items()}
        placement = Placement(replica_mesh(config.network.mesh), None)
        build_predictions(config.network, inputs, placement)
        assert narrowed(graph) == []


def test_tpu_estimator_s_replicas_are_where_programs_of_xla_have_theirs():
    """A plan holds for both. The last axis begins with the cores of a chip."""
    for name, shape in (("v3-32", "data:16;model:2"), ("v4-16", "data:2;model:4")):
        tpu, assignment = parse_topology(name), assign_cores(parse_topology(name))
        order = logical_to_physical(mtf.convert_to_shape(shape), assignment)
        places = [tuple(assignment.coordinates(replica, 0)) for replica in order]
        assert places == tpu.places(mtf.convert_to_shape(shape).to_integer_list)
    first, second = parse_topology("v3-32").places((16, 2))[:2]
    assert first[:3] == second[:3]
