"""AdamW a few rows at a time: as with the gradient whole, and in the right order."""

import numpy as np
import pytest

from decoupled.compat import mtf, tf
from decoupled.configs import MeshConfig
from decoupled.ops.adam import AdamUpdate, step_numbers
from decoupled.ops.norms import global_norm
from decoupled.ops.product_gradient import as_product
from decoupled.ops.tiled_adam import TiledAdamUpdate
from decoupled.ops.weight_product import weight_product
from decoupled.training.mesh import session_config
from tests.helpers import mesh_impl

TOKENS = mtf.Dimension("tokens", 6)
# 200 rows are tiles of 16 and one of 8; half of them, and one of 4.
ROWS, COLUMNS = mtf.Dimension("vocab", 200), mtf.Dimension("width", 96)
MESHES = [
    ("all:1", ""),
    ("m:2", "vocab:m"),
    ("m:2", "width:m"),
    ("d:2;m:2", "vocab:d;width:m"),
    ("d:2;m:2", "vocab:m"),
]
SETTINGS = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.99, "epsilon": 0.01}
STEPS, CLIP = 20, 0.2


def numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Training:
    """20 steps of one table on the loss mean((tanh(x table^T) table - y)^2) / 100.

    The table is read in several places, as an output embedding is, but only one of
    them has a gradient.
    """

    def __init__(self, tiled, mesh_shape, layout, dtype=tf.float32, is_decayed=True):
        config = MeshConfig(mesh_shape, layout, "float32", "gather", "float32")
        self._session = session_config(config)
        self._graph = tf.Graph()
        with self._graph.as_default():
            graph = mtf.Graph()
            mesh = mtf.Mesh(graph, "mesh")
            implementation = mesh_impl(mesh_shape, layout)
            table, m, v = (
                mtf.get_variable(mesh, name, mtf.Shape([ROWS, COLUMNS]),
                                 initializer=tf.constant_initializer(value))
                for name, value in (("table", numbers(0, 200, 96)), ("m", 0), ("v", 0))
            )  # fmt: skip
            loss, read = self._loss(mesh, table, dtype)
            [gradient] = mtf.gradients([loss], [table])
            product = as_product(gradient, implementation, smallest=1)
            assert product is not None
            norm = global_norm([product])
            limit = mtf.constant(mesh, CLIP, dtype=tf.float32)
            self._step = tf.placeholder(tf.float32, [])
            rate, step = (
                mtf.import_tf_tensor(mesh, value, mtf.Shape([]))
                for value in (tf.constant(0.02), self._step)
            )
            inputs = [x.operation for x in (table, m, v)]
            inputs += [product if tiled else gradient, limit / mtf.maximum(norm, limit)]
            inputs += [step_numbers(rate, step, **SETTINGS), is_decayed]
            # After all that reads the table.
            update = (
                TiledAdamUpdate(*inputs, after=norm + read)
                if tiled
                else AdamUpdate(*inputs)
            )
            lowering = mtf.Lowering(graph, {mesh: implementation}, autostack=False)
            self._fetched = [lowering.export_to_tf_tensor(x) for x in (loss, norm)]
            self.update = lowering.lowered_operation(update)
            self._to_slices = lowering.copy_masters_to_slices()
            self._to_masters = lowering.copy_slices_to_masters()
            self.slices = lowering.variables[table.operation].laid_out_tensor
            self._saved = tf.global_variables()

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

    def run(self, prepare=None, then=None):
        """(losses, norms, [table, m, v]); calls `then` with the session in the end."""
        with tf.Session(graph=self._graph, config=self._session) as session:
            session.run([v.initializer for v in self._saved])
            session.run(self._to_slices)
            if prepare is not None:
                session.run(prepare)
            results = [
                session.run([*self._fetched, self.update], {self._step: step})[:2]
                for step in range(1, STEPS + 1)
            ]
            session.run(self._to_masters)
            values = session.run(self._saved)
            if then is not None:
                then(session)
            return *np.array(results).T, values


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr("decoupled.ops.tiled_adam._TILE", 1)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES)
def test_equals_the_update_with_the_whole_gradient(mesh_shape, layout, dtype):
    losses, norms, values = Training(True, mesh_shape, layout, dtype).run()
    expected = Training(False, mesh_shape, layout, dtype).run()
    assert losses[-1] < 0.85 * losses[0]
    assert norms.min() < CLIP < norms.max()
    # bfloat16 rounds the tiles' gradients as it does the whole one, in other orders.
    near = (
        dict(rtol=1e-5, atol=1e-6)
        if dtype == tf.float32
        else dict(rtol=2e-3, atol=2e-3)
    )
    np.testing.assert_allclose(losses, expected[0], **near)
    for value, wanted in zip(values, expected[2], strict=True):
        np.testing.assert_allclose(value, wanted, **near)


@pytest.mark.parametrize(("mesh_shape", "layout"), [MESHES[0], MESHES[3]])
def test_repeated_runs_are_equal_bit_for_bit(mesh_shape, layout):
    training = Training(True, mesh_shape, layout)
    losses, norms, values = training.run()
    for _ in range(3):
        again = training.run()
        np.testing.assert_array_equal(again[0], losses)
        np.testing.assert_array_equal(again[1], norms)
        for value, wanted in zip(again[2], values, strict=True):
            np.testing.assert_array_equal(value, wanted)


def test_without_decay():
    """As AdamUpdate's; and it makes a difference here."""
    [*_, values] = Training(True, "all:1", "", is_decayed=False).run()
    [*_, wanted] = Training(False, "all:1", "", is_decayed=False).run()
    [*_, decayed] = Training(True, "all:1", "").run()
    np.testing.assert_allclose(values[0], wanted[0], rtol=1e-5, atol=1e-6)
    assert np.abs(values[0] - decayed[0]).max() > 1e-2


def test_constants_that_variables_start_from_stay_as_they_are():
    """TensorFlow gives a variable the buffer of the constant that it starts from."""
    training = Training(True, "all:1", "")
    initial = [v.initializer for v in training._saved]
    again = []

    def start_again(session):
        session.run(initial)
        again.extend(session.run(training._saved))

    training.run(then=start_again)
    np.testing.assert_array_equal(again[0], numbers(0, 200, 96))
    assert np.abs(again[1]).max() == np.abs(again[2]).max() == 0


@pytest.mark.parametrize(("mesh_shape", "layout"), MESHES[:2])
def test_only_slices_that_may_share_a_buffer_are_copied(mesh_shape, layout):
    """A copy of random numbers on one device would take a table's size of memory."""
    with tf.Graph().as_default() as graph:
        mesh_graph = mtf.Graph()
        mesh = mtf.Mesh(mesh_graph, "mesh")
        mtf.get_variable(
            mesh, "table", mtf.Shape([ROWS, COLUMNS]),
            initializer=tf.random_normal_initializer(),
        )  # fmt: skip
        implementation = mesh_impl(mesh_shape, layout)
        lowering = mtf.Lowering(mesh_graph, {mesh: implementation}, autostack=False)
        for variable in lowering.variables.values():
            variable.own_buffers()
        lowering.copy_masters_to_slices()
        copies = [o for o in graph.get_operations() if o.type == "DeepCopy"]
    assert len(copies) == (0 if mesh_shape == "all:1" else 2)


def test_a_variable_that_is_copied_when_it_is_read_is_updated_too():
    """TensorFlow copies what it reads of a variable once its rows were gathered."""
    training = Training(True, "all:1", "")
    plain = training.run()
    with training._graph.as_default():
        (table,) = training.slices.tensor_list
        gathered = tf.raw_ops.ResourceGather(
            resource=table.handle, indices=[0], dtype=tf.float32
        )
    copied = training.run(prepare=gathered)
    for value, wanted in zip(copied[2], plain[2], strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_the_gradient_is_never_whole():
    """Nothing that the update needs has the shape of the table but the table, its
    moments and what is written of them in place."""
    training = Training(True, "all:1", "")
    seen, left, whole = set(), [training.update], set()
    while left:
        operation = left.pop()
        if operation in seen:
            continue
        seen.add(operation)
        left += [tensor.op for tensor in operation.inputs] + operation.control_inputs
        for tensor in operation.outputs:
            if tensor.shape.rank is not None and tensor.shape.as_list() == [200, 96]:
                whole.add(operation.type)
    # The loss reads it through the last two.
    assert whole == {"ReadVariableOp", "InplaceUpdate", "Identity", "Reshape"}
    made_whole = Training(False, "all:1", "")
    assert "MatMul" in {o.type for o in made_whole._graph.get_operations()}
