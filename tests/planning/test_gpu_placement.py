"""Training and prediction on GPUs, by the registry of TensorFlow's kernels."""

import dataclasses

import pytest

from decoupled.configs import MeshConfig
from decoupled.core.compat import tf
from decoupled.data.packing import Packing, pack_batch
from decoupled.ops.meshes.placement import PlacementMeshImpl
from decoupled.planning.gpu_placement import has_kernel, landing
from decoupled.tasks.classification import Classification
from decoupled.tasks.qa import ExtractiveQA
from decoupled.tasks.tagging import Tagging
from decoupled.training.graph import Network, build_predictions, build_step
from decoupled.training.mesh import Placement, shape_and_layout
from tests.helpers import MASKING, adamw, masked_lm_features, tiny_model
from tests.training.runs import BODY, graph_config, tile_everything
from tests.training.test_tpu_program import head_features

LENGTH = MASKING.sequence_length
ONE = MeshConfig()
TWO = MeshConfig("m:2", "vocab:m;heads:m;intermediate:m", "bfloat16")
MODEL = tiny_model(num_layers=1, hidden_dropout=0.1, attention_dropout=0.1)
ADAFACTOR = adamw(name="adafactor", weight_decay=0.0, beta1=0.0)
ONE_HOT = dataclasses.replace(TWO, embedding_lookup="one_hot", slice_dtype="bfloat16")


def gpus(mesh):
    shape, layout = shape_and_layout(mesh)
    devices = [f"gpu:{index}" for index in range(shape.size)]
    return Placement(PlacementMeshImpl(shape, layout, devices), None)


def training(mesh, features=None, **changes):
    config = graph_config(mesh=mesh, model=MODEL, **changes)
    features = features or masked_lm_features()
    with tf.Graph().as_default() as graph:
        tf.train.get_or_create_global_step()
        tensors = {name: tf.constant(value) for name, value in features.items()}
        lowered = build_step(config, tensors, gpus(mesh))
        lowered.lowering.copy_masters_to_slices()
        lowered.lowering.copy_slices_to_masters()
    return landing(graph)


@pytest.mark.parametrize(
    "mesh, changes",
    [
        (ONE, {"accumulation": 2, "recompute_layers": True}),
        (ONE_HOT, {"optimizer": ADAFACTOR}),
    ],
    ids=[
        "microbatches on one",
        "one-hot, bfloat16 slices and Adafactor",
    ],
)
def test_all_of_a_training_step_stays_on_the_gpus(mesh, changes):
    assert not training(mesh, **changes).moved


def test_kernels_for_large_tensors_stay_on_the_gpus(monkeypatch):
    tile_everything(monkeypatch)
    found = training(TWO)
    assert not found.moved
    # Half of every matrix that is split is on each GPU, and all of every other.
    assert found.slice_bytes > found.master_bytes


@pytest.mark.parametrize(
    "task",
    [
        Classification("topics", ("a", "b"), LENGTH, 0.1, 0.0),
        Tagging("tags", ("A", "B", "C"), LENGTH, 0.1, 0.0),
        ExtractiveQA("questions", LENGTH, 0.1, 0.0),
    ],
    ids=["classification", "tagging", "questions"],
)
def test_all_of_fine_tuning_and_prediction_stays_on_the_gpus(task):
    """On one: of several, the encoder alone is split. Its training is shown above."""
    features = head_features(task)
    mesh = dataclasses.replace(ONE, activation_dtype="bfloat16")
    assert not training(mesh, features, task=task, frozen=BODY).moved
    network = Network(task, MODEL, mesh)
    with tf.Graph().as_default() as graph:
        tensors = {name: tf.constant(value) for name, value in features.items()}
        build_predictions(network, tensors, gpus(mesh))
    assert not landing(graph).moved


@pytest.mark.parametrize(
    "task",
    [
        Classification("topics", ("a", "b"), LENGTH, 0.1, 0.0),
        ExtractiveQA("questions", LENGTH, 0.1, 0.0),
    ],
    ids=["classification", "questions"],
)
def test_all_of_a_step_on_packed_rows_stays_on_the_gpus(task):
    features = head_features(task)
    rows = len(features["input_mask"])
    packed = pack_batch(features, Packing(rows, LENGTH, 2, steps=1))
    assert not training(ONE, packed, task=task.packed(2)).moved


def test_the_registry_tells_what_gpus_cannot_do():
    with tf.Graph().as_default() as graph, tf.device("gpu:0"):
        variable = tf.get_variable("weights", [3, 4])
        tf.raw_ops.ResourceApplyProximalGradientDescent(
            var=variable.handle, alpha=1.0, l1=0.0, l2=0.0, delta=tf.ones([3, 4])
        )
        assert has_kernel(tf.matmul(variable, tf.ones([4, 2])).op)
        text = tf.constant("text")
        assert not has_kernel(text.op)
        assert not has_kernel(tf.strings.join([text, text]).op)
    found = landing(graph)
    assert found.moved["ResourceApplyProximalGradientDescent", "float32"] == 1
    assert found.slice_bytes == 3 * 4 * 4
    assert found.master_bytes == 0


def test_one_gpu_has_slices_of_its_own(monkeypatch):
    from decoupled.training import mesh as meshes

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["one"])
    assert meshes.devices(ONE) == ["gpu:0"]
