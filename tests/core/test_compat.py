"""The one shim for Mesh-TensorFlow, tested where nothing else is imported yet."""

import subprocess
import sys


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )


def test_decoupled_alone_loads_no_tensorflow():
    done = run("import sys, decoupled; sys.exit('tensorflow' in sys.modules)")
    assert done.returncode == 0, done.stderr


MESH_GRAPH = """
from decoupled.core.compat import estimator, mtf, tf

with tf.Graph().as_default() as graph:
    mesh = mtf.Mesh(mtf.Graph(), "mesh")
    size = mtf.Dimension("size", 3)
    weights = mtf.get_variable(
        mesh, "weights", mtf.Shape([size]), initializer=tf.ones_initializer()
    )
    total = mtf.reduce_sum(weights * 2.0)
    devices = mtf.placement_mesh_impl.PlacementMeshImpl("all:1", "", [""])
    lowering = mtf.Lowering(total.graph, {mesh: devices})
    result = lowering.export_to_tf_tensor(total)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        print(session.run(result))
    kinds = {operation.type for operation in graph.get_operations()}
print("VarHandleOp" in kinds, "VariableV2" in kinds)
print(tf.executing_eagerly(), estimator.tpu.TPUEstimator.__name__)
"""


def test_mesh_tensorflow_works_in_a_fresh_interpreter_with_resource_variables():
    done = run(MESH_GRAPH)
    assert done.returncode == 0, done.stderr
    # Reference variables (VariableV2) would let an optimizer race with reads.
    assert done.stdout.splitlines() == ["6.0", "True False", "True TPUEstimator"]
