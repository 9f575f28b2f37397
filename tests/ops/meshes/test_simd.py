"""The mesh of a TPU: its graph, and its program under XLA.

Which part of a variable each core gets is in test_stacks.py.
"""

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.core.compat import mtf, tf
from decoupled.model.variables import slots
from decoupled.ops.adam import ElementwiseAdamUpdate, step_scalars
from decoupled.ops.kernels import compiled
from decoupled.ops.meshes.simd import SimdMeshImpl
from decoupled.planning.hardware import parse_topology
from decoupled.training.mesh import shape_and_layout
from tests.helpers import SESSION_CONFIG, masked_lm_features, tiny_model
from tests.helpers import mesh_impl as host_mesh
from tests.ops.simd_on_cpu import (
    STACK_BYTES,
    OneCore,
    assign_cores,
    eight_cores,
    run_compiled_loop,
)
from tests.training.runs import BUT_TABLES, graph_config, run_steps

ROWS, COLUMNS = mtf.Dimension("rows", 8), mtf.Dimension("columns", 6)


def test_a_slice_takes_two_nodes_of_the_graph_and_one_of_each_host():
    def nodes(layout_size):
        with tf.Graph().as_default() as tf_graph:
            graph = mtf.Graph()
            mesh = mtf.Mesh(graph, "mesh")
            shape = mtf.Shape([ROWS, COLUMNS])
            mtf.get_variable(mesh, "v", shape, initializer=tf.zeros_initializer())
            tpu = parse_topology(f"v2-{layout_size}")
            mesh_impl = SimdMeshImpl(
                mtf.convert_to_shape(f"all:{layout_size}"),
                mtf.convert_to_layout_rules(""),
                assign_cores(tpu),
                list(range(layout_size)),
                STACK_BYTES,
            )
            before = len(tf_graph.get_operations())
            mtf.Lowering(graph, {mesh: mesh_impl}, autostack=False)
            return len(tf_graph.get_operations()) - before

    assert nodes(32) - nodes(8) == 2 * 24 + 24 // 8


def test_compiled_functions_go_in_as_they_were():
    double = compiled(lambda x: x + x)
    with tf.Graph().as_default() as graph:
        mesh_impl = eight_cores("")
        slices = mesh_impl.LaidOutTensor([tf.constant(3.0)])
        mesh_impl.slicewise(double, slices)
        types = {operation.type for operation in graph.get_operations()}
    assert "AddV2" in types
    assert not types & {"PartitionedCall", "StatefulPartitionedCall"}


SPLIT = MeshConfig("d:1;m:1", "batch:d;vocab:m;heads:m;intermediate:m")


DROPOUT = tiny_model(num_layers=1, hidden_dropout=0.1, attention_dropout=0.1)


@pytest.mark.parametrize(
    "changes",
    [
        # Updates of the tables alone are compiled in two thirds of the time.
        dict(
            model=DROPOUT,
            gradient_accumulation=2,
            recompute_layers=True,
            frozen=BUT_TABLES,
        ),
        pytest.param(dict(model=DROPOUT), marks=pytest.mark.slow),
        pytest.param(dict(gradient_accumulation=4), marks=pytest.mark.slow),
        pytest.param(dict(recompute_layers=True), marks=pytest.mark.slow),
    ],
    ids=["all of them", "dropout", "microbatches", "gradient checkpointing"],
)
def test_the_loop_of_a_tpu_under_xla_trains_as_the_mesh_of_this_host(changes):
    fields = dict(mesh=SPLIT, model=tiny_model(num_layers=1))
    config = graph_config(**{**fields, **changes})
    batches = [masked_lm_features(seed=step) for step in range(3)]
    loss, variables = run_compiled_loop(config, batches)
    expected, losses, _ = run_steps(config, 3, batches)
    assert loss == pytest.approx(losses[-1], rel=1e-6)
    assert variables["global_step"] == 3
    for variable, value in expected.items():
        np.testing.assert_allclose(variables[variable], value, atol=1e-6)


def updated(mesh_impl, run):
    """A variable in bfloat16 after one update, which subtracts 0.001."""
    dims = [mtf.Dimension("rows", 6), mtf.Dimension("columns", 4)]
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        lowerings = []

        def program():
            members = [
                [mtf.get_variable(
                    mesh,
                    name,
                    mtf.Shape(dims),
                    dtype=mtf.VariableDType(tf.float32, dtype, tf.float32),
                    initializer=tf.constant_initializer(value),
                    trainable=name == "weights",
                ).operation]
                for name, dtype, value in (
                    ("weights", tf.bfloat16, 1),
                    *((name, tf.float32, 0) for name in slots("weights")),
                )
            ]  # fmt: skip
            gradient = mtf.constant(mesh, 1.0, mtf.Shape(dims), tf.float32)
            one, rate = (
                mtf.constant(mesh, x, mtf.Shape([]), tf.float32) for x in (1.0, 0.001)
            )
            seed = mtf.constant(mesh, 5, mtf.Shape([]), tf.int32)
            numbers = step_scalars(
                rate, one, weight_decay=0.0, beta1=0.9, beta2=0.999, epsilon=1e-8
            )
            update = ElementwiseAdamUpdate(
                *members, [gradient], one, numbers, [False], [1], seed=seed
            )
            lowerings.append(mtf.Lowering(graph, {mesh: mesh_impl}, autostack=False))
            with tf.control_dependencies([lowerings[0].lowered_operation(update)]):
                return tf.zeros([])

        done = run(program)
        to_slices = lowerings[0].copy_masters_to_slices()
        to_masters = lowerings[0].copy_slices_to_masters()
        with tf.Session(config=SESSION_CONFIG) as session:
            session.run(tf.global_variables_initializer())
            session.run(to_slices)
            session.run(done)
            session.run(to_masters)
            return session.run(tf.global_variables()[0])


def test_weights_in_bfloat16_are_rounded_as_on_this_host():
    simd = OneCore(*shape_and_layout(SPLIT))
    result = updated(simd, tf.xla.experimental.compile)
    expected = updated(host_mesh("d:1;m:1"), lambda program: program())
    np.testing.assert_array_equal(result, expected)
    assert set(result.ravel()) == {1.0, 1 - 2**-8}
