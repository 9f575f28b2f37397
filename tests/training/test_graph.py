"""One step of training: the same on every mesh, in tiles, in bfloat16."""

import dataclasses

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.tasks.classification import Classification
from decoupled.tasks.qa import ExtractiveQA
from decoupled.tasks.tagging import Tagging
from decoupled.training.graph import build_step, check_graph
from decoupled.training.mesh import session_config
from tests.helpers import (
    MASKING,
    adamw,
    masked_lm_features,
    tiny_model,
    tiny_training,
)
from tests.refusals import refusal
from tests.training.runs import (
    BODY,
    BOTH_AXES,
    DATA_AXIS,
    MODEL_AXIS,
    ONE_DEVICE,
    SMALL,
    Steps,
    assert_equal_values,
    built_step,
    graph_config,
    largest_difference,
    run_steps,
    tile_everything,
)

MESHES = {"m:2": MODEL_AXIS, "d:2": DATA_AXIS, "d:2;m:2": BOTH_AXES}


def small(mesh=ONE_DEVICE):
    """A graph of all kinds of variables, and few of each."""
    return graph_config(mesh=mesh, model=tiny_model(**SMALL))


@pytest.fixture(scope="module")
def twenty_steps():
    """Variables, losses and norms of 20 steps on one device."""
    return run_steps(small(), 20)


@pytest.mark.parametrize(
    "changes, size, setting",
    [
        ({"batch_size": 7}, 7, "TrainingConfig.batch_size"),
        (
            {"batch_size": 6, "gradient_accumulation": 2},
            3,
            "TrainingConfig.batch_size or TrainingConfig.gradient_accumulation",
        ),
        ({"eval_batch_size": 9}, 9, "TrainingConfig.eval_batch_size"),
    ],
)
def test_a_batch_that_does_not_divide_is_reported_with_its_setting(
    changes, size, setting
):
    network = graph_config(mesh=DATA_AXIS).network
    message = refusal(check_graph, network, tiny_training(**changes))
    assert f"dimension 'batch' of size {size} does not divide" in message
    assert message.endswith(f"; change mesh_shape or {setting}")


@pytest.mark.slow
@pytest.mark.parametrize("name", MESHES)
def test_a_run_repeats_bit_by_bit_with_dropout(name):
    """On one device: tests/ops/test_recompute.py, in two graphs."""
    model = tiny_model(num_layers=1, hidden_dropout=0.1, attention_dropout=0.1)
    steps = Steps(graph_config(model=model, mesh=MESHES[name]))

    first, second = steps.run(10), steps.run(10)

    assert_equal_values(first[0], second[0])
    assert (first[1] == second[1]).all()
    assert (first[2] == second[2]).all()


def test_dropout_differs_from_step_to_step():
    """Of one batch, with weights that stay as they are."""
    config = graph_config(
        model=tiny_model(hidden_dropout=0.5, **SMALL),
        optimizer=adamw(learning_rate=1e-30, weight_decay=0.0),
        frozen=BODY,
    )
    steps = Steps(config, [masked_lm_features()])
    start, (variables, losses, _) = steps.initial(), steps.run(4)

    assert len(set(losses)) == 4
    for name in config.network.variables:
        np.testing.assert_allclose(variables[name], start[name], 0, 1e-28)


def test_dropout_differs_between_microbatches():
    """Both microbatches of a batch in which every example comes twice are the same."""
    once = masked_lm_features(4)
    twice = {name: np.repeat(value, 2, axis=0) for name, value in once.items()}

    model = tiny_model(hidden_dropout=0.5, **SMALL)
    whole, parts = (
        run_steps(
            graph_config(model=model, frozen=BODY, gradient_accumulation=accumulation),
            1,
            [batch],
        )[1].item()
        for accumulation, batch in ((1, once), (2, twice))
    )
    # With equal masks the mean of the two would be the loss of one.
    assert 1e-3 < abs(parts - whole) < 0.5


BFLOAT16 = dataclasses.replace(ONE_DEVICE, activation_dtype="bfloat16")


def gradients(config, features):
    """Name of a variable -> its gradient in the first step."""
    with tf.Graph().as_default():
        lowered = build_step(config, {n: tf.constant(v) for n, v in features.items()})
        lowering = lowered.lowering
        exported = list(map(lowering.export_to_tf_tensor, lowered.gradients))
        with tf.Session(config=session_config(config.network.mesh)) as session:
            session.run(tf.global_variables_initializer())
            session.run(lowering.copy_masters_to_slices())
            values = session.run(exported)
        names = [variable.name for variable in lowering.graph.trainable_variables]
    return dict(zip(names, values, strict=True))


# Slices of bfloat16 have the gradients of kernels in bfloat16, too.
@pytest.mark.parametrize(
    "slice_dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"]
)
def test_gradients_of_many_microbatches_are_added_up_in_float32(slice_dtype):
    """A sum of bfloat16 stops growing at 256 times an addend."""
    features = {
        n: np.repeat(v[:1], 128, axis=0) for n, v in masked_lm_features().items()
    }
    mesh = dataclasses.replace(BFLOAT16, slice_dtype=slice_dtype)
    whole, parts = (
        gradients(
            graph_config(
                mesh=mesh, frozen=BODY, batch_size=128, gradient_accumulation=parted
            ),
            features,
        )
        for parted in (1, 128)
    )
    assert {"output_bias", "kernel"} <= {name.rpartition("/")[2] for name in whole}
    for name, value in whole.items():
        difference = np.linalg.norm(parts[name] - value)
        assert difference <= 0.002 * np.linalg.norm(value), name


def test_bfloat16_is_close_to_float32_with_float32_variables(monkeypatch):
    """Also where a few rows are multiplied and updated at a time."""
    # Gradients flow through all of the model to its input embeddings.
    frozen = tuple(name for name in BODY if not name.endswith("word_embeddings"))
    wide, narrow = (
        graph_config(mesh=mesh, frozen=frozen) for mesh in (ONE_DEVICE, BFLOAT16)
    )
    _, exact, _ = run_steps(wide, 20)
    variables, losses, _ = run_steps(narrow, 20)

    # bfloat16 keeps 8 bits: not the same, but the same training.
    assert 0 < np.abs(losses - exact).max() < 0.02
    names = set(variables) - {"global_step"}
    assert {variables[name].dtype for name in names} == {np.dtype(np.float32)}

    tile_everything(monkeypatch)
    _, in_tiles, _ = run_steps(narrow, 20)
    assert in_tiles[-1] < in_tiles[0] - 0.3
    np.testing.assert_allclose(in_tiles, losses, atol=0.01)


@pytest.mark.parametrize("name", ["all:1", pytest.param("m:2", marks=pytest.mark.slow)])
def test_gradients_that_are_never_whole_train_the_same(name, twenty_steps, monkeypatch):
    """Nor do updates in place depend on what a buffer was before: replicas have own."""
    tile_everything(monkeypatch)
    steps = Steps(small({"all:1": ONE_DEVICE, **MESHES}[name]))
    variables, losses, norms = steps.run(20)

    difference, where = largest_difference(variables, twenty_steps[0])
    assert difference < 1e-5, where
    np.testing.assert_allclose(losses, twenty_steps[1], atol=1e-5)
    np.testing.assert_allclose(norms, twenty_steps[2], atol=1e-5)
    again = steps.run(20)
    assert_equal_values(again[0], variables)


@pytest.mark.parametrize(
    ("mesh", "accumulation", "message"),
    [
        (("d:16", "batch:d"), 1, "rule batch:d: dimension 'batch' of size 8"),
        # The microbatch is what is split.
        (("d:4", "batch:d"), 4, "rule batch:d: dimension 'batch' of size 2"),
        (("m:3", "predictions:m"), 1, "rule predictions:m: dimension 'predictions'"),
        (("m:2", "hidden:m;intermediate:m"), 1, "twice over the same mesh axis; give"),
        (("m:2", "vocab:m;output_embedding:m"), 1, "m split one tensor [vocab, outp"),
        # No tensor has both, and yet no processor would see all ids of its rows.
        (("m:2", "sequence:m;vocab:m"), 1, "rules vocab:m and sequence:m split rows"),
        (("m:2", "sequence:m;predictions:m"), 1, "rules sequence:m and predictions:m"),
        # Dimensions of other models and tasks.
        (("m:2", "labels:m;pooled:m"), 1, "labels:m; pooled:m splits no tensor"),
    ],
)
def test_a_mesh_that_does_not_fit_is_refused(mesh, accumulation, message):
    config = graph_config(
        mesh=MeshConfig(*mesh),
        gradient_accumulation=accumulation,
    )
    refused = refusal(check_graph, config.network, config.training)
    assert refused.startswith("MeshConfig.layout_rules: ") and message in refused


@pytest.mark.parametrize(
    ("mesh", "accumulation", "message"),
    [
        (("d:16", "batch:d"), 1, "rule batch:d: dimension 'batch' of size 8"),
        (("d:4", "batch:d"), 4, "rule batch:d: dimension 'batch' of size 2"),
        (("m:2", "vocab:m;output_embedding:m"), 1, "m split one tensor [vocab, outp"),
    ],
)
def test_a_step_is_not_built_on_a_mesh_that_does_not_fit(mesh, accumulation, message):
    """Sizes are checked before the graph is made, and tensors before it is lowered."""
    config = graph_config(mesh=MeshConfig(*mesh), gradient_accumulation=accumulation)
    refused = refusal(built_step, config)
    assert refused.startswith("MeshConfig.layout_rules: ") and message in refused


def test_a_mesh_that_fits_is_checked_without_devices(monkeypatch):
    monkeypatch.setattr("decoupled.training.mesh.devices", None)
    check_graph(graph_config(mesh=BOTH_AXES).network, tiny_training())


@pytest.mark.parametrize(
    "task",
    [
        Classification("pairs", ["a", "b"], MASKING.sequence_length, 0.1),
        Tagging("tags", ["a", "b"], MASKING.sequence_length, 0.1),
        ExtractiveQA("questions", MASKING.sequence_length, 0.1),
    ],
    ids=lambda task: task.name,
)
def test_the_layout_of_every_task_is_checked(task):
    check_graph(graph_config(task=task, mesh=MODEL_AXIS).network, tiny_training())
    mesh = MeshConfig("m:2", "predictions:m;output_embedding:m")
    with pytest.raises(UserError, match="output_embedding:m splits no tensor"):
        check_graph(graph_config(task=task, mesh=mesh).network, tiny_training())


def test_training_learns_and_counts(twenty_steps):
    variables, losses, norms = twenty_steps

    assert variables["global_step"] == 20
    # 48 pieces: chance is ln 48 = 3.87.
    assert losses[0] == pytest.approx(np.log(48), abs=0.35)
    assert losses[-1] < losses[0] - 0.6
    assert (norms > 0.1).all()
