"""Matrices in fewer bits: how far they may be off, and SavedModels that hold them."""

import json

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.exports.serving.encoder import (
    STORED_AS,
    Encoder,
    MaskedLm,
    Matrix,
    StoredWeights,
)
from tests.command_line import decoupled, mistake
from tests.exports.models import model_config, pretrained_weights, random_batch

VALUE = np.random.default_rng(0).normal(0, 0.02, [7, 5]).astype(np.float32)
# A row and a column of zeros, and one far larger than the others.
VALUE[2], VALUE[:, 3], VALUE[4] = 0, 0, VALUE[4] * 1000
# Bits of the significand: the largest relative error of a rounded number.
RELATIVE = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}


def stored(stored_as, **options):
    return Matrix(StoredWeights({}, stored_as), VALUE, "m", **options)


@pytest.mark.parametrize("stored_as", RELATIVE)
def test_rounded_matrices(stored_as):
    matrix, x = stored(stored_as), np.eye(7, dtype=np.float32)
    bound = RELATIVE[stored_as] * np.abs(VALUE)
    for result in (
        matrix.rows(tf.range(7)),
        matrix.times(x),
        tf.transpose(matrix.times_transposed(np.eye(5, dtype=np.float32))),
    ):
        assert result.dtype == tf.float32
        assert (np.abs(result - VALUE) <= bound).all()
    assert matrix.value.trainable == (stored_as == "float32")


def test_eight_bits_of_a_table_have_a_scale_for_each_row():
    table = stored("int8", scale_of=0)
    assert table.value.dtype == tf.int8
    # Half a step, where 127 steps reach the largest magnitude.
    step = np.abs(VALUE).max(1, keepdims=True) / 127
    bound = step / 2 * (1 + 1e-5)
    assert (np.abs(table.rows([[0, 4], [2, 6]]) - VALUE[[[0, 4], [2, 6]]])
            <= bound[[[0, 4], [2, 6]]]).all()  # fmt: skip
    whole = tf.transpose(table.times_transposed(np.eye(5, dtype=np.float32)))
    assert (np.abs(whole - VALUE) <= bound).all()


def test_eight_bits_of_a_kernel_have_a_scale_for_each_column():
    kernel = stored("int8", scale_of=1)
    bound = np.abs(VALUE).max(0, keepdims=True) / 127 / 2 * (1 + 1e-5)
    assert (np.abs(kernel.times(np.eye(7, dtype=np.float32)) - VALUE) <= bound).all()


@pytest.mark.parametrize(
    "stored_as, value",
    [("int8", np.nan), ("int8", -np.inf), ("bfloat16", np.nan), ("float16", 7e4)],
)
def test_values_that_would_not_be_finite_are_refused(stored_as, value):
    bad = VALUE.copy()
    bad[3, 1] = value
    with pytest.raises(
        UserError, match=f"--weights: m has .* not finite in {stored_as}"
    ):
        Matrix(StoredWeights({}, stored_as), bad, "m")
    # float32 hides nothing.
    Matrix(StoredWeights({}, "float32"), bad, "m")


@pytest.mark.parametrize(
    "stored_as, coupled", [*((name, False) for name in STORED_AS), ("int8", True)]
)
def test_a_model_is_as_close_as_its_weights(stored_as, coupled):
    changes = {"output_embedding_size": 6, "coupled": True} if coupled else {}
    config = model_config(**changes)
    weights, batch = pretrained_weights(config), random_batch(config, 3, 9)
    positions = np.array([[1, 2]] * 3, np.int32)

    def run(weights):
        encoder = Encoder(config, weights)
        hidden = encoder(batch)["sequence_output"]
        return hidden, MaskedLm(config, weights, encoder)(hidden, positions)

    exact, result = run(weights), run(StoredWeights(weights, stored_as))
    for one, other in zip(exact, result, strict=True):
        error = np.abs(one - other).max() / np.abs(one).max()
        limit = {"float32": 0.0, "float16": 0.005, "bfloat16": 0.05, "int8": 0.1}
        assert error <= limit[stored_as]


@pytest.mark.slow
def test_the_command_keeps_eight_bits_and_says_so(finetuned_dir, tmp_path):
    sizes, outputs = {}, {}
    for stored_as in ("float32", "int8"):
        target = tmp_path / stored_as
        done = decoupled(
            "export",
            f"--model_dir={finetuned_dir}",
            f"--export_dir={target}",
            f"--weights={stored_as}",
        )
        assert done.returncode == 0, done.stderr[-2000:]
        described = json.loads((target / "export.json").read_text())
        assert described["weights"] == stored_as
        model = tf.saved_model.load(str(target / "classifier"))
        outputs[stored_as] = model(random_batch(model_config(), 3, 9))["probabilities"]
        variables = model.variables
        sizes[stored_as] = sum(v.dtype.size * np.prod(v.shape) for v in variables)
        names = [v.name for v in model.trainable_variables]
        assert any("kernel" in name for name in names) == (stored_as == "float32")
    # Vectors, scales and the head stay float32, a large part of so small a model.
    assert sizes["int8"] < 0.6 * sizes["float32"]
    np.testing.assert_allclose(outputs["int8"], outputs["float32"], atol=0.05)


def test_an_unknown_type_is_refused(finetuned_dir, tmp_path):
    line = mistake(
        "export",
        f"--model_dir={finetuned_dir}",
        f"--export_dir={tmp_path / 'out'}",
        "--weights=int4",
    )
    assert "--weights" in line and "int8" in line
