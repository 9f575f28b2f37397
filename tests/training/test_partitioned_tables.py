"""Which tables are row-partitioned, and that nothing but speed depends on it."""

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.ops.row_partitions import saved_variables
from decoupled.training.checkpoints import branch_off, check_resumable
from decoupled.training.graph import build_step
from tests.exports.models import write_checkpoint
from tests.helpers import masked_lm_features, schedule, tiny_model
from tests.model.graphs import initial_weights, masked_lm_loss
from tests.training.runs import (
    BODY,
    BUT_TABLES,
    MODEL_AXIS,
    ONE_DEVICE,
    build_evaluation,
    checkpoint_values,
    graph_config,
    largest_difference,
    run_spec,
    run_steps,
    said,
    train_run,
    with_training,
)

TABLE = "cls/predictions/output_embedding"
COUPLED = tiny_model(coupled=True, output_embedding_size=8)
BFLOAT16_SLICES = MeshConfig("all:1", "", "bfloat16", "bfloat16")


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch):
    """The table of 48 x 24 is five partitions, a half of it two."""
    in_partitions_of(monkeypatch, 220)


def in_partitions_of(monkeypatch, elements):
    monkeypatch.setattr("decoupled.ops.row_partitions._PARTITION_ELEMENTS", elements)


def built(training=True, **changes):
    """Inside the current graph: that of a step of the head, or of an evaluation."""
    config = graph_config(**{"frozen": BODY, **changes})
    features = {n: tf.constant(x) for n, x in masked_lm_features().items()}
    if training:
        return build_step(config, features)
    return build_evaluation(config.network, features)


@pytest.fixture(scope="module")
def one_device():
    """The graph of a step on one device, and what was built."""
    with tf.Graph().as_default() as graph, pytest.MonkeyPatch.context() as patch:
        in_partitions_of(patch, 220)
        return graph, built()


def partitions_of(graph, lowered):
    """Name -> partitions of the variables, slices too, that have several."""
    with graph.as_default():
        slices = {
            f"{variable.name}, slice {number}": part
            for variable, laid_out in lowered.lowering.variables.items()
            for number, part in enumerate(laid_out.laid_out_tensor.tensor_list)
        }
        found = {**saved_variables(), **slices}
    return {n: len(x.partitions) for n, x in found.items() if hasattr(x, "partitions")}


@pytest.mark.parametrize(
    "changes, count, places",
    [
        ({}, 5, ["", ", slice 0"]),
        # What is saved there is a copy that no step reads. The partitions of the slices
        # are also counted in test_step_graph.py.
        pytest.param(
            *(dict(mesh=MODEL_AXIS), 2, [", slice 0", ", slice 1"]),
            marks=pytest.mark.slow,
        ),
        # No partition would be updated alone.
        (dict(mesh=BFLOAT16_SLICES), 0, []),
        (dict(model=COUPLED, frozen=BUT_TABLES), 0, []),
        (dict(training=False), 0, []),
    ],
    ids=[
        *("one device", "two devices"),
        *("bfloat16 slices", "coupled", "predictions"),
    ],
)
def test_the_output_embedding_and_its_moments_have_partitions(
    one_device, changes, count, places
):
    names = [TABLE, f"{TABLE}/adam_m", f"{TABLE}/adam_v"]
    wanted = {f"{name}{place}": count for name in names for place in places}
    graph, lowered = one_device
    if changes:
        with tf.Graph().as_default() as graph:
            lowered = built(**changes)
    assert partitions_of(graph, lowered) == wanted


def test_initial_weights_do_not_depend_on_partitions(one_device):
    config = graph_config()
    with one_device[0].as_default(), tf.Session() as session:
        session.run(tf.global_variables_initializer())
        partitioned = session.run(tf.identity(saved_variables()[TABLE]))
    whole = initial_weights(
        config.network.model, masked_lm_loss, initializer_seed=config.training.seed
    )
    np.testing.assert_array_equal(partitioned, whole[TABLE])
    assert np.abs(partitioned).max() > 0


TWELVE_STEPS = graph_config(schedule=schedule(12), frozen=BODY)
OFTEN_SAVED = with_training(TWELVE_STEPS, save_checkpoints_steps=6)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Folder of a run with whole tables, whose sixth step is saved too."""
    folder = str(tmp_path_factory.mktemp("straight"))
    train_run(OFTEN_SAVED, run_spec(folder))
    return folder


@pytest.mark.parametrize(
    ("first", "mesh"),
    [
        pytest.param("partitions", ONE_DEVICE, id="to whole", marks=pytest.mark.slow),
        pytest.param(
            "partitions", MODEL_AXIS, id="to two slices", marks=pytest.mark.slow
        ),
        pytest.param("whole", ONE_DEVICE, id="to partitions"),
        pytest.param(
            "whole", MODEL_AXIS, id="to slices in partitions", marks=pytest.mark.slow
        ),
    ],
)
def test_a_run_goes_on_with_other_partitions_and_on_another_mesh(
    straight, tmp_path, monkeypatch, first, mesh
):
    source = straight
    if first == "partitions":
        source = tmp_path / "first"
        train_run(OFTEN_SAVED, run_spec(source))
        in_partitions_of(monkeypatch, 10**9)
    branch_off(f"{source}/model.ckpt-6", str(tmp_path))
    spec = run_spec(tmp_path)
    network = TWELVE_STEPS.network._replace(mesh=mesh)
    found = train_run(TWELVE_STEPS._replace(network=network), spec)

    assert said(spec)[0].startswith(f"resuming from {tmp_path}/model.ckpt-6")
    assert largest_difference(found, checkpoint_values(straight))[0] < 1e-5


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(ONE_DEVICE, id="all:1"),
        pytest.param(MODEL_AXIS, id="m:2", marks=pytest.mark.slow),
    ],
)
def test_microbatches_train_the_same(monkeypatch, mesh):
    """Their gradients are added up whole, and taken a partition at a time."""
    config = graph_config(mesh=mesh, gradient_accumulation=2, frozen=BODY)
    partitioned, losses, _ = run_steps(config, 5)
    in_partitions_of(monkeypatch, 10**9)
    whole, expected, _ = run_steps(config, 5)

    assert largest_difference(partitioned, whole)[0] < 1e-5
    np.testing.assert_allclose(losses, expected, atol=1e-5)


def test_what_a_checkpoint_lacks_is_named_whole(one_device, tmp_path):
    with one_device[0].as_default():
        lacking = ("global_step", f"{TABLE}/adam_m", f"{TABLE}/adam_v")
        names = set(saved_variables()) - set(lacking)
        values = dict.fromkeys(names, np.zeros(1, np.float32))
        prefix = write_checkpoint(f"{tmp_path}/model.ckpt", values, 1)
        with pytest.raises(UserError, match=f"no variable {TABLE}/adam_m; go on"):
            check_resumable(prefix, saved_variables())
