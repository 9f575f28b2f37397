"""Twenty steps of training with our operations against twenty with the stock ones.

Equal losses and gradients do not show an update that races with the reading of a
variable; weights and slots after some steps do. One table is read as input and as
output embedding, like that of a coupled model.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from decoupled.configs import MeshConfig
from decoupled.core.compat import mtf, tf
from decoupled.ops.adam import AdamUpdate, step_scalars
from decoupled.ops.bias import gelu_tanh
from decoupled.ops.cross_entropy import softmax_cross_entropy
from decoupled.ops.gather import embedding_lookup, gather_positions, one_hot_lookup
from decoupled.ops.gradients import global_norm
from decoupled.ops.normalization import layer_norm
from decoupled.training.mesh import session_config
from tests.helpers import mesh_impl
from tests.ops.test_against_stock import BATCH, PREDICTIONS, SEQUENCE, integers

# Wide enough for an update to overtake a product that reads the same variable.
VOCAB, HIDDEN = mtf.Dimension("vocab", 1920), mtf.Dimension("hidden", 64)
STEPS, RATE, CLIP, EPSILON = 20, 0.02, 1.5, 1e-3
# All sums of powers of 2: 1 - beta is exact in float32.
DECAY, BETA1, BETA2 = 0.125, 0.875, 0.96875
# So late a step that nothing is left of the bias correction, which the stock has not.
LATE = 1e6


class Operations(NamedTuple):
    """lookup(table, ids), pick(x, positions), activation(x), norm(x, gamma, beta),
    losses(logits, targets), size(gradients) and update(gradient, variable, scale)."""

    lookup: Callable
    pick: Callable
    activation: Callable
    norm: Callable
    losses: Callable
    size: Callable
    update: Callable


def stock_norm(x, gamma, beta):
    return mtf.layers.layer_norm(x, HIDDEN, EPSILON) * gamma + beta


def stock_size(gradients):
    return mtf.sqrt(mtf.add_n([mtf.reduce_sum(mtf.square(g)) for g in gradients]))


def stock_update(gradient, variable, scale):
    optimizer = mtf.optimize.AdamWeightDecayOptimizer(
        RATE, DECAY, BETA1, BETA2, EPSILON
    )
    return optimizer.apply_grad(gradient * scale, variable)


def our_update(gradient, variable, scale):
    slots = [
        mtf.get_variable(
            gradient.mesh,
            f"{variable.name}/{slot}",
            variable.shape,
            initializer=tf.zeros_initializer(),
            trainable=False,
        ).operation
        for slot in ("adam_m", "adam_v")
    ]
    rate, step = (
        mtf.constant(gradient.mesh, value, dtype=tf.float32) for value in (RATE, LATE)
    )
    settings = dict(weight_decay=DECAY, beta1=BETA1, beta2=BETA2, epsilon=EPSILON)
    numbers = step_scalars(rate, step, **settings)
    return [AdamUpdate(variable, *slots, gradient, scale, numbers, True)]


STOCK = Operations(
    lambda table, ids: mtf.gather(table, ids, VOCAB),
    lambda x, positions: mtf.gather(
        x, positions, SEQUENCE, output_shape=[BATCH, PREDICTIONS, HIDDEN]
    ),
    mtf.gelu,
    stock_norm,
    lambda x, ids: mtf.layers.softmax_cross_entropy_with_logits(x, ids, VOCAB),
    stock_size,
    stock_update,
)
OURS = Operations(
    lambda table, ids: embedding_lookup(table, ids, VOCAB),
    lambda x, positions: gather_positions(x, positions, SEQUENCE),
    lambda x: gelu_tanh(x, mtf.zeros(x.mesh, mtf.Shape([HIDDEN]), x.dtype)),
    lambda x, gamma, beta: layer_norm(x, gamma, beta, EPSILON),
    lambda x, ids: softmax_cross_entropy(x, ids, VOCAB)[0],
    global_norm,
    our_update,
)
OURS_ONE_HOT = OURS._replace(
    lookup=lambda table, ids: one_hot_lookup(table, ids, VOCAB)
)


def variables(mesh):
    """table, gamma, beta."""
    table = np.random.default_rng(0).normal(size=(VOCAB.size, HIDDEN.size)) / 8
    return [
        mtf.get_variable(mesh, name, mtf.Shape(dims), initializer=initializer)
        for name, dims, initializer in (
            ("table", [VOCAB, HIDDEN], tf.constant_initializer(table)),
            ("gamma", [HIDDEN], tf.ones_initializer()),
            ("beta", [HIDDEN], tf.zeros_initializer()),
        )
    ]


def features(step):
    """One of four batches: tokens, positions of some, targets there."""
    step %= 4
    tokens, predictions = [BATCH, SEQUENCE], [BATCH, PREDICTIONS]
    return {
        "ids": integers(3 * step, VOCAB, *tokens),
        "positions": integers(3 * step + 1, SEQUENCE, *predictions),
        "targets": integers(3 * step + 2, VOCAB, *predictions),
    }


class Training:
    """The graph of a step."""

    def __init__(self, operations, mesh_shape="all:1", layout_rules=""):
        self._graph = tf.Graph()
        with self._graph.as_default():
            graph = mtf.Graph()
            mesh = mtf.Mesh(graph, "mesh")
            self._inputs = {
                name: tf.placeholder(tf.int32, value.shape, name)
                for name, (value, _) in features(0).items()
            }
            loss, norm, updates = self._build(operations, mesh)
            lowering = mtf.Lowering(
                graph, {mesh: mesh_impl(mesh_shape, layout_rules)}, autostack=False
            )
            self._fetched = [lowering.export_to_tf_tensor(x) for x in (loss, norm)]
            self._fetched += [lowering.lowered_operation(update) for update in updates]
            self._to_slices = lowering.copy_masters_to_slices()
            self._to_masters = lowering.copy_slices_to_masters()
            self._initialize = tf.global_variables_initializer()
            self._saved = {v.op.name: v for v in tf.global_variables()}
        config = MeshConfig(
            mesh_shape, layout_rules, "float32", "gather", "float32", 128
        )
        self._session = session_config(config)

    def _build(self, operations, mesh):
        imported = {
            name: mtf.import_tf_tensor(mesh, self._inputs[name], mtf.Shape(dims))
            for name, (_, dims) in features(0).items()
        }
        table, gamma, beta = variables(mesh)
        x = operations.lookup(table, imported["ids"])
        x = operations.norm(operations.activation(x), gamma, beta)
        x = operations.pick(x, imported["positions"])
        logits = mtf.einsum([x, table], output_shape=[BATCH, PREDICTIONS, VOCAB])
        loss = mtf.reduce_mean(operations.losses(logits, imported["targets"]))
        gradients = mtf.gradients([loss], [table, gamma, beta])
        norm = operations.size(gradients)
        limit = mtf.constant(mesh, CLIP, dtype=tf.float32)
        scale = limit / mtf.maximum(norm, limit)
        updates = [
            update
            for gradient, tensor in zip(gradients, (table, gamma, beta), strict=True)
            for update in operations.update(gradient, tensor.operation, scale)
        ]
        return loss, norm, updates

    def run(self):
        """(losses, norms, name -> value of every variable after the last step)."""
        with tf.Session(graph=self._graph, config=self._session) as session:
            session.run(self._initialize)
            session.run(self._to_slices)
            results = []
            for step in range(STEPS):
                feed = {
                    self._inputs[name]: value
                    for name, (value, _) in features(step).items()
                }
                results.append(session.run(self._fetched, feed)[:2])
            session.run(self._to_masters)
            values = session.run(self._saved)
        losses, norms = np.array(results).T
        # The stock layer norm has weights of its own, which are not trained.
        return losses, norms, {n: v for n, v in values.items() if "layer_norm" not in n}


@pytest.fixture(scope="module")
def stock():
    return Training(STOCK).run()


def test_the_stock_operations_learn_and_clip(stock):
    """Or equality with them would say little."""
    losses, norms, values = stock
    assert losses[-1] < losses[0] - 3
    assert norms.min() < CLIP < norms.max()
    assert sorted(values) == [
        name + slot
        for name in ("beta", "gamma", "table")
        for slot in ("", "/adam_m", "/adam_v")
    ]


@pytest.mark.parametrize(
    "lookup, mesh_shape, layout_rules",
    [
        ("gather", "all:1", ""),
        ("one_hot", "all:1", ""),
        ("one_hot", "m:2", "vocab:m"),
        ("gather", "m:2", "hidden:m"),
        pytest.param("one_hot", "m:2", "hidden:m", marks=pytest.mark.slow),
        pytest.param("gather", "d:2;m:2", "batch:d;vocab:m", marks=pytest.mark.slow),
        # Batches are split in the same way.
        ("gather", "d:2;m:2", "sequence:d;vocab:m"),
    ],
)
def test_weights_and_slots_after_20_steps(stock, lookup, mesh_shape, layout_rules):
    operations = {"gather": OURS, "one_hot": OURS_ONE_HOT}[lookup]
    training = Training(operations, mesh_shape, layout_rules)
    first, second = training.run(), training.run()
    for value, again, wanted in zip(first[:2], second[:2], stock[:2], strict=True):
        np.testing.assert_array_equal(value, again)
        np.testing.assert_allclose(value, wanted, rtol=1e-5)
    assert sorted(first[2]) == sorted(stock[2])
    for name, wanted in stock[2].items():
        np.testing.assert_array_equal(first[2][name], second[2][name], err_msg=name)
        np.testing.assert_allclose(
            first[2][name], wanted, rtol=0, atol=1e-5, err_msg=name
        )
