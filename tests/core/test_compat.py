"""What Mesh-TensorFlow and the estimator need of each release of TensorFlow."""

import importlib
import os
import pathlib
import subprocess
import sys

import pytest

from decoupled.core import compat
from decoupled.core.release import RELEASE, tf

removed = pytest.mark.skipif(RELEASE < (2, 16), reason="TensorFlow 2.15 has all of it")


def run(code):
    environment = {n: v for n, v in os.environ.items() if n != "TF_CPP_MIN_LOG_LEVEL"}
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip


def test_decoupled_alone_loads_no_tensorflow():
    done = run("import sys, decoupled; sys.exit('tensorflow' in sys.modules)")
    assert done.returncode == 0, done.stderr


MESH_GRAPH = """
import os, sys
from decoupled.core.compat import estimator, mtf, tf
from decoupled.ops.kernels import compile_first_quietly, compiled

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
print(any(name in sys.modules for name in ("keras", "jax", "jaxlib")))
assert not tf.config.list_logical_devices("X")
compile_first_quietly()
compile_first_quietly()
with tf.Graph().as_default(), tf.Session() as session:
    numbers = tf.placeholder(tf.float32, [2])
    print(session.run(compiled(tf.square)(numbers), {numbers: [2.0, 3.0]}))
os.write(2, b"an error")
"""
KERAS = """
import tensorflow
from decoupled.core.compat import tf
lazy = [tf.keras, *(getattr(tensorflow, n) for n in "keras losses metrics".split())]
print(all(module.__name__.startswith("keras") for module in lazy))
print(issubclass(tensorflow.optimizers.Adam, tensorflow.keras.optimizers.Optimizer))
"""


def test_mesh_tensorflow_works_in_a_fresh_interpreter_with_resource_variables():
    done = run(MESH_GRAPH)
    # No line about oneDNN, processors, GPUs that this machine does not have, or the
    # first kernel that XLA compiles.
    assert (done.returncode, done.stderr) == (0, "an error")
    # Reference variables (VariableV2) would let an optimizer race with reads.
    *mesh, others, squares = done.stdout.splitlines()
    assert mesh == ["6.0", "True False", "True TPUEstimator"]
    # Keras takes as long to import as TensorFlow, and JAX a second.
    assert others == "False"
    assert squares == "[4. 9.]"


@pytest.mark.slow
def test_who_asks_for_keras_gets_it():
    """As tests/ops/test_normalization.py does, for a layer."""
    done = run(KERAS)
    assert done.stdout.splitlines() == ["True", "True"], done.stderr


def test_keras_that_is_there_already_stays_in_its_place(monkeypatch):
    monkeypatch.setitem(sys.modules, "keras", None)
    before = tf.keras
    with compat._without_keras():
        assert tf.keras is before
    monkeypatch.delitem(sys.modules, "keras")
    with compat._without_keras():
        assert tf.keras.optimizers.legacy.Adagrad is compat._Keras
        assert not hasattr(tf.keras, "__wrapped__")
    assert tf.keras is before


@removed
@pytest.mark.parametrize("module", compat.REMOVED)
def test_stand_ins_have_any_name_and_raise_when_called(module):
    stand_in = importlib.import_module(module)
    assert stand_in.anything is stand_in.anything
    assert not hasattr(stand_in, "__path__")
    with pytest.raises(NotImplementedError) as raised:
        stand_in.anything("at all", of="any kind")
    assert str(raised.value) == (
        f"{module}.anything: TensorFlow {tf.__version__} has none; TensorFlow 2.15 is "
        "the last that has"
    )


@pytest.mark.skipif(RELEASE > (2, 15), reason="TensorFlow 2.16 has removed them")
@pytest.mark.parametrize("module", compat.REMOVED)
def test_nothing_stands_for_what_tensorflow_has(module):
    imported = importlib.import_module(module)
    assert pathlib.Path(imported.__file__).is_relative_to(
        pathlib.Path(tf.__file__).parent
    )
