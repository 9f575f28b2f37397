"""bfloat16 slices of weights with float32 masters: what is trained, saved, restored."""

import dataclasses
import shutil

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.model.variables import MASKED_LM, NO_HEAD, shapes
from decoupled.training.checkpoints import branch_off
from decoupled.training.loop import predict
from tests.helpers import (
    constant_input_fn,
    masked_lm_features,
    schedule,
    tiny_model,
)
from tests.training.runs import (
    BOTH_AXES,
    ONE_DEVICE,
    assert_equal_values,
    built_step,
    checkpoint_values,
    graph_config,
    run_spec,
    run_steps,
    train_run,
)

KERNEL = "cls/predictions/transform/dense/kernel"
SLOTS = ("/adam_m", "/adam_v")


def bfloat16(mesh):
    return dataclasses.replace(mesh, slice_dtype="bfloat16")


# Few distinct shapes: each is a kernel to compile.
MODEL = tiny_model(
    num_layers=1, input_embedding_size=16, output_embedding_size=16,
    intermediate_size=16,
)  # fmt: skip
# All but the head: what starts from a checkpoint trains that alone.
BODY = tuple(shapes(MODEL, NO_HEAD))
# What runs of more than the head train: a few of each kind.
TRAINED = (
    "word_embeddings", "query/kernel", "embeddings/LayerNorm/gamma",
    "transform/dense/kernel", "output_embedding",
)  # fmt: skip
OTHERS = tuple(n for n in shapes(MODEL, MASKED_LM) if not n.endswith(TRAINED))


def config(mesh=ONE_DEVICE, steps=6, **changes):
    fields = dict(model=MODEL, schedule=schedule(steps))
    return graph_config(mesh=mesh, **{**fields, **changes})


def in_bfloat16(value):
    """Whether every number is one that bfloat16 has."""
    narrow = value.astype(tf.bfloat16.as_numpy_dtype).astype(np.float32)
    return np.array_equal(narrow, value)


def is_matrix(name, value):
    """Whether a variable is a weight whose slices are bfloat16."""
    return value.ndim > 1 and not name.endswith(SLOTS)


def lowered_graph(mesh):
    return built_step(config(mesh, frozen=BODY))


def test_matrices_lie_in_bfloat16_vectors_slots_and_masters_in_float32():
    variables = lowered_graph(bfloat16(ONE_DEVICE)).lowering.variables
    for variable, laid_out in variables.items():
        matrix = len(variable.shape.dims) > 1 and not variable.name.endswith(SLOTS)
        wanted = tf.bfloat16 if matrix else tf.float32
        assert {part.dtype for part in laid_out.laid_out_tensor.all_slices} == {wanted}
        assert variable.get_master().dtype == tf.float32


def test_by_default_no_weight_is_in_bfloat16():
    lowered = lowered_graph(ONE_DEVICE)
    types = {output.dtype for op in lowered.update.graph.get_operations()
             for output in op.outputs}  # fmt: skip
    assert tf.bfloat16 not in types
    for variable, laid_out in lowered.lowering.variables.items():
        assert laid_out.laid_out_tensor.all_slices == [variable.get_master()]


CASES = {
    "all:1": dict(mesh=ONE_DEVICE),
    "coupled, bfloat16 activations": dict(
        mesh=dataclasses.replace(ONE_DEVICE, activation_dtype="bfloat16"),
        model=dataclasses.replace(MODEL, coupled=True),
    ),
    "microbatches": dict(mesh=ONE_DEVICE, gradient_accumulation=2),
    "d:2;m:2": dict(mesh=BOTH_AXES),
}


# Its quicker tests: one step, in tests/ops/test_rounding.py, and the runs below.
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_loss_falls_as_with_float32_slices(name):
    case = CASES[name]
    features = [masked_lm_features()]
    wide, wanted, _ = run_steps(config(steps=12, **case), 12, features)
    case = {**case, "mesh": bfloat16(case["mesh"])}
    narrow, losses, _ = run_steps(config(steps=12, **case), 12, features)
    assert losses[-1] < losses[0] - 0.3
    np.testing.assert_allclose(losses, wanted, atol=0.03)
    assert in_bfloat16(narrow[KERNEL]) and not in_bfloat16(wide[KERNEL])


# What goes on from that run trains the matrices of the head.
BUT_HEAD = (*BODY, *OTHERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of 6 steps with bfloat16 slices on one device; step 4 is saved too."""
    path = tmp_path_factory.mktemp("undisturbed")
    mesh, changes = bfloat16(ONE_DEVICE), dict(save_checkpoints_steps=4, frozen=OTHERS)
    train_run(config(mesh, **changes), run_spec(path))
    return path


def test_checkpoints_hold_float32_equal_to_the_slices(folder):
    values = checkpoint_values(folder)
    matrices = [name for name, value in values.items() if is_matrix(name, value)]
    assert len(matrices) == 11
    for name, value in values.items():
        assert value.dtype == (np.int64 if name == "global_step" else np.float32)
        if name in matrices:
            assert in_bfloat16(value), name
    assert not in_bfloat16(values["bert/embeddings/LayerNorm/gamma"])
    assert not in_bfloat16(values[f"{KERNEL}/adam_m"])


def test_a_resumed_run_ends_as_one_that_was_not_stopped(folder, tmp_path):
    branch_off(f"{folder}/model.ckpt-4", str(tmp_path))
    values = train_run(config(bfloat16(ONE_DEVICE), frozen=OTHERS), run_spec(tmp_path))
    assert_equal_values(values, checkpoint_values(folder))


def test_prediction_with_float32_slices_gives_the_same_losses(folder):
    input_fn = constant_input_fn(masked_lm_features(seed=9), False)
    spec = run_spec(folder)
    wide, narrow = (
        [row["loss_sum"] for row in predict(config(mesh).network, spec, 8, input_fn)]
        for mesh in (ONE_DEVICE, bfloat16(ONE_DEVICE))
    )
    assert len(wide) == 8
    assert wide == narrow


def test_a_run_goes_on_with_float32_and_again_with_bfloat16(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    kernels = [checkpoint_values(copy)[KERNEL]]
    for steps, mesh in [(7, ONE_DEVICE), (8, bfloat16(ONE_DEVICE))]:
        values = train_run(config(mesh, steps, frozen=BUT_HEAD), run_spec(copy))
        assert values["global_step"] == steps
        kernels.append(values[KERNEL])
    assert [in_bfloat16(kernel) for kernel in kernels] == [True, False, True]
    # Each is one update further, with a rate of at most 0.01 / 3.
    for before, after in zip(kernels, kernels[1:], strict=False):
        np.testing.assert_allclose(after, before, atol=0.01)
        assert not np.array_equal(after, before)
