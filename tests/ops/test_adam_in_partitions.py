"""AdamW on one row partition at a time equals AdamW with the whole gradient."""

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.core.compat import mtf, tf
from decoupled.ops.adam import AdamUpdate, step_scalars
from decoupled.ops.gradients import as_factored, global_norm
from decoupled.ops.row_partitions import RowPartitionedVariable, row_partitioning_getter
from decoupled.ops.weight_product import weight_product
from decoupled.training.mesh import session_config
from tests.helpers import mesh_impl, operations_before, starting_from

TOKENS = mtf.Dimension("tokens", 6)
ROWS, COLUMNS = mtf.Dimension("vocab", 200), mtf.Dimension("width", 96)
MESHES = [("all:1", ""), ("m:2", "vocab:m"), ("d:2;m:2", "vocab:d;width:m")]
SETTINGS = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 0.01}
STEPS, CLIP = 20, 0.2


def numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Training:
    """20 steps of one table on the loss mean((tanh(x table^T) table - y)^2) / 100.

    The table is read in several places, as an output embedding is, but only one of
    them has a gradient.

    Args:
      partitioned: the table and its moments are row-partitioned.
      factored: the update takes the factors of the gradient.
    """

    def __init__(
        self, mesh_shape, layout, dtype=tf.float32, *, partitioned=True, factored=True,
        is_decayed=True,
    ):  # fmt: skip
        config = MeshConfig(mesh_shape, layout)
        self._session = session_config(config)
        self._graph = tf.Graph()
        getter = partitions_on(mesh_shape) if partitioned else None
        with (
            self._graph.as_default(),
            tf.variable_scope("", use_resource=True, custom_getter=getter),
        ):
            graph = mtf.Graph()
            mesh = mtf.Mesh(graph, "mesh")
            implementation = mesh_impl(mesh_shape, layout)
            zeros = np.zeros([200, 96])
            table, m, v = (
                mtf.get_variable(
                    mesh,
                    name,
                    mtf.Shape([ROWS, COLUMNS]),
                    initializer=starting_from(value),
                )
                for name, value in (
                    ("table", numbers(0, 200, 96)), ("m", zeros), ("v", zeros)
                )
            )  # fmt: skip
            loss, read = self._loss(mesh, table, dtype)
            [gradient] = mtf.gradients([loss], [table])
            product = as_factored(gradient, implementation, smallest=1)
            assert product is not None
            norm = global_norm([product])
            limit = mtf.constant(mesh, CLIP, dtype=tf.float32)
            self._step = tf.placeholder(tf.float32, [])
            rate, step = (
                mtf.import_tf_tensor(mesh, value, mtf.Shape([]))
                for value in (tf.constant(0.02), self._step)
            )
            update = AdamUpdate(
                *(x.operation for x in (table, m, v)),
                product if factored else gradient,
                limit / mtf.maximum(norm, limit),
                step_scalars(rate, step, **SETTINGS),
                is_decayed,
                # After all that reads the table.
                after=norm + read,
            )
            lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
            self._fetched = [lowering.export_to_tf_tensor(x) for x in (loss, norm)]
            self.update = lowering.lowered_operation(update)
            self._initialize = tf.global_variables_initializer()
            self._to_slices = lowering.copy_masters_to_slices()
            self._to_masters = lowering.copy_slices_to_masters()
            self.slices = lowering.variables[table.operation].laid_out_tensor
            self._saved = [
                tf.convert_to_tensor(x.operation.get_master()) for x in (table, m, v)
            ]

    def _loss(self, mesh, table, dtype):
        x, y = (
            mtf.cast(mtf.import_tf_tensor(mesh, v, mtf.Shape([TOKENS, COLUMNS])), dtype)
            for v in (numbers(1, 6, 96), numbers(2, 6, 96))
        )
        hidden = mtf.tanh(weight_product(x, table, [TOKENS, ROWS]))
        fixed = mtf.stop_gradient(table)
        error = weight_product(hidden, fixed, [TOKENS, COLUMNS]) - y
        loss = mtf.reduce_mean(mtf.square(mtf.cast(error, tf.float32))) / 100
        return loss, 0.0 * loss

    def run(self):
        """(losses, norms, [table, m, v])."""
        with tf.Session(graph=self._graph, config=self._session) as session:
            session.run(self._initialize)
            session.run(self._to_slices)
            results = [
                session.run([*self._fetched, self.update], {self._step: step})[:2]
                for step in range(1, STEPS + 1)
            ]
            session.run(self._to_masters)
            return *np.array(results).T, session.run(self._saved)

    def update_reads(self):
        """(type, shape) of what the update is computed from, all of it."""
        seen = operations_before([self.update])
        outputs = [(o.type, x.shape) for o in seen for x in o.outputs]
        return {(kind, *s.as_list()) for kind, s in outputs if s.rank is not None}


def partitions_on(mesh_shape):
    """On one device what is saved is partitioned, on several their slices are."""
    return row_partitioning_getter(
        lambda name: ("_slice_" in name) == (mesh_shape != "all:1")
    )


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch):
    """9 partitions of the table, of 23 rows and of 22; of a quarter of it 2."""
    monkeypatch.setattr("decoupled.ops.row_partitions._PARTITION_ELEMENTS", 2000)


def near(dtype):
    # bfloat16 rounds gradients of partitions as it does the whole one, in other orders.
    if dtype == tf.float32:
        return dict(rtol=1e-5, atol=1e-6)
    return dict(rtol=2e-3, atol=2e-3)


def assert_equal_training(found, expected, dtype):
    """After 20 steps that learn, some of them clipped."""
    losses, norms, values = found
    assert losses[-1] < 0.85 * losses[0]
    assert norms.min() < CLIP < norms.max()
    np.testing.assert_allclose(losses, expected[0], **near(dtype))
    for value, wanted in zip(values, expected[2], strict=True):
        np.testing.assert_allclose(value, wanted, **near(dtype))


@pytest.mark.parametrize(
    "mesh_shape, layout, dtype",
    [
        *((*mesh, tf.float32) for mesh in MESHES),
        (*MESHES[0], tf.bfloat16),
        pytest.param(*MESHES[1], tf.bfloat16, marks=pytest.mark.slow),
    ],
)
def test_equals_the_update_with_the_whole_gradient(mesh_shape, layout, dtype):
    training = Training(mesh_shape, layout, dtype)
    assert all(
        isinstance(x, RowPartitionedVariable) for x in training.slices.tensor_list
    )
    whole = Training(mesh_shape, layout, dtype, partitioned=False, factored=False)
    assert not any(
        isinstance(x, RowPartitionedVariable) for x in whole.slices.tensor_list
    )
    assert_equal_training(training.run(), whole.run(), dtype)


@pytest.mark.parametrize(("mesh_shape", "layout"), [MESHES[0], MESHES[2]])
def test_one_kernel_applies_the_gradient_of_a_partition(
    mesh_shape, layout, monkeypatch
):
    whole = Training(
        mesh_shape, layout, tf.bfloat16, partitioned=False, factored=False
    ).run()
    monkeypatch.setattr("decoupled.ops.kernels._LARGE", 1)
    training = Training(mesh_shape, layout, tf.bfloat16)
    # Its result is a scalar.
    assert ("StatefulPartitionedCall",) in training.update_reads()
    assert_equal_training(training.run(), whole, tf.bfloat16)
