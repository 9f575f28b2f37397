"""The global norm, whole and split."""

import numpy as np
import pytest

from decoupled.compat import mtf
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
