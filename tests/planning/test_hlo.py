"""Training steps as programs of XLA: arguments, and sums over cores.

What they compute is shown where JAX runs them (tests/interop/test_jax_step.py).
"""

import dataclasses
import json

import pytest

from decoupled.configs import MeshConfig
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.planning.hardware import parse_topology
from decoupled.planning.hlo import build_step_graph
from decoupled.planning.program import feature_specs
from tests.helpers import MASKING, tiny_model
from tests.training.runs import graph_config

RULES = "batch:data;vocab:model;heads:model;intermediate:model"
ONE_CORE = MeshConfig("data:1;model:1", RULES, "float32", "gather", "float32", 128)
EIGHT_CORES = dataclasses.replace(ONE_CORE, mesh_shape="data:4;model:2")
BATCH = 8
OLDEST = tf.__version__.startswith("2.15.")


def step_graph(mesh, topology=None, **changes):
    config = graph_config(mesh=mesh, model=tiny_model(num_layers=1), **changes)
    tpu = topology and parse_topology(topology)
    return build_step_graph(config, feature_specs(MASKING, BATCH), tpu)


@pytest.fixture(scope="module")
def one_core():
    return step_graph(ONE_CORE)


@pytest.fixture(scope="module")
def eight_cores():
    if OLDEST:
        pytest.skip("TensorFlow 2.15 cannot translate sums over cores")
    return step_graph(EIGHT_CORES, "v3-8").export()


def test_arguments_are_features_and_variables(one_core):
    step = one_core.export()
    features = {argument.name: argument for argument in step.features}
    assert features["input_word_ids"] == (
        "input_word_ids", [BATCH, MASKING.sequence_length], "int32",
    )  # fmt: skip
    assert features["masked_lm_weights"].dtype == "float32"
    shapes = {argument.name: argument.shape for argument in step.variables}
    assert shapes["bert/embeddings/word_embeddings_slice_0"] == [48, 8]
    assert shapes["bert/embeddings/word_embeddings/adam_m_slice_0"] == [48, 8]
    assert shapes["global_step"] == []
    assert step.cores == 1
    assert b"all-reduce" not in step.hlo


def test_a_core_of_several_has_its_slices_and_sums_over_them(eight_cores):
    shapes = {argument.name: argument.shape for argument in eight_cores.variables}
    assert shapes["bert/embeddings/word_embeddings_slice_0"] == [24, 8]
    assert eight_cores.cores == 8
    assert b"all-reduce" in eight_cores.hlo
    assert b"replica-id" in eight_cores.hlo


def test_a_session_runs_the_step_of_one_core(one_core):
    """Variables are read where they have values, and the features are fed."""
    with one_core.graph.as_default():
        initial = [
            tf.raw_ops.AssignVariableOp(
                resource=variable.outputs[0],
                value=tf.zeros(argument.shape, argument.dtype),
            )
            for variable, argument in zip(
                one_core.variables, one_core.described(), strict=True
            )
        ]
    features = {
        value: [[1] * width for width in value.shape.as_list()[1:]] * BATCH
        for value in one_core.inputs.values()
    }
    with tf.Session(graph=one_core.graph) as session:
        session.run(initial)
        loss, norm = session.run(one_core.results, features)
    # All logits are zero.
    assert loss == pytest.approx(3.871201, rel=1e-6)
    assert norm > 0


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
        step_graph(EIGHT_CORES, "v3-8").export()


@pytest.mark.parametrize("mesh, topology", [(EIGHT_CORES, None), (ONE_CORE, "v3-8")])
def test_a_mesh_of_another_size_is_refused(mesh, topology):
    with pytest.raises(UserError, match="mesh_shape"):
        step_graph(mesh, topology)
