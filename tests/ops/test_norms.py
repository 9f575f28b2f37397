"""The global norm, whole and split."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops.norms import global_norm
from tests.helpers import run_mesh


@pytest.mark.parametrize("layout_rules", ["", "rows:m", "columns:m"])
def test_norm_of_a_list(layout_rules):
    rows, columns = mtf.Dimension("rows", 2), mtf.Dimension("columns", 2)
    inputs = {
        "a": (np.array([[1, 2], [4, 0]], np.float32), [rows, columns]),
        "b": (np.array([2, 0], np.float32), [rows]),
    }
    mesh_shape = "m:2" if layout_rules else "all:1"

    def build(mesh, tensors):
        return [global_norm([tensors["a"], tensors["b"]])]

    [norm] = run_mesh(build, inputs, mesh_shape, layout_rules)
    assert norm == pytest.approx(5.0)


def test_replicas_are_not_counted_twice():
    rows, columns = mtf.Dimension("rows", 2), mtf.Dimension("columns", 2)
    inputs = {
        "split": (np.array([[3, 0], [0, 0]], np.float32), [rows, columns]),
        "half": (np.array([0, 4], np.float32), [rows]),
        "whole": (np.float32(12), []),
    }

    def build(mesh, tensors):
        return [global_norm(list(tensors.values()))]

    [norm] = run_mesh(build, inputs, "d:2;m:2", "rows:d;columns:m")
    assert norm == pytest.approx(13.0)


def test_bfloat16_is_summed_in_float32():
    """In bfloat16 a sum of ones stops growing at 256."""

    def build(mesh, tensors):
        norm = global_norm([mtf.cast(tensors["x"], tf.bfloat16)])
        assert norm.dtype == tf.float32
        return [norm]

    inputs = {"x": (np.ones([40_000], np.float32), [mtf.Dimension("x", 40_000)])}
    assert run_mesh(build, inputs)[0] == pytest.approx(200.0)


def test_norm_of_zeros_is_zero():
    inputs = {"x": (np.zeros([3], np.float32), [mtf.Dimension("x", 3)])}
    assert run_mesh(lambda mesh, t: [global_norm([t["x"]])], inputs)[0] == 0.0
