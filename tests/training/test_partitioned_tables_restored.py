"""Row-partitioned variables are restored from whole ones, each read once."""

import numpy as np
import pytest

from decoupled.core.compat import tf
from decoupled.ops.row_partitions import (
    RowPartitionedVariable,
    row_partitioning_getter,
    saved_variables,
)
from decoupled.training.partitioned_tables import PartitionedSaverBuilder, start_from
from tests.helpers import starting_from

TABLE = np.arange(60, dtype=np.float32).reshape(20, 3)
VALUES = {"bias": TABLE[0], "slot": -TABLE, "table": TABLE}


def make_variables(partitioned, zero=False):
    """Name -> variable; the tables partitioned, or whole."""
    getter = row_partitioning_getter(lambda name: partitioned and name != "bias")
    with tf.variable_scope("", use_resource=True, custom_getter=getter):
        for name, value in VALUES.items():
            start = starting_from(np.zeros_like(value) if zero else value)
            tf.get_variable(name, value.shape, initializer=start)
    return saved_variables()


@pytest.fixture(scope="module", autouse=True)
def small_partitions():
    """Twelve, whose names are not sorted as they are: of two rows, then of one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("decoupled.ops.row_partitions._PARTITION_ELEMENTS", 5)
        yield


@pytest.fixture(
    scope="module", params=[True, False], ids=["from partitions", "from whole"]
)
def prefix(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    with tf.Graph().as_default(), tf.Session() as session:
        make_variables(request.param)
        session.run(tf.global_variables_initializer())
        return tf.train.Saver().save(session, str(folder / "model.ckpt"))


def assert_restored(session, variables):
    for name, value in VALUES.items():
        found = session.run(tf.identity(variables[name]))
        np.testing.assert_array_equal(found, value, err_msg=name)


def reads(graph):
    """What is read, and which part of it: "" for all."""
    constants = [
        [tf.make_ndarray(x.op.get_attr("value")).tolist() for x in op.inputs[1:]]
        for op in graph.get_operations()
        if op.type == "RestoreV2"
    ]
    return sorted(
        (name.decode(), part.decode())
        for names, parts in constants
        for name, part in zip(names, parts, strict=True)
    )


@pytest.mark.parametrize(
    "partitioned, sharded",
    [(True, False), (True, True), (False, True)],
    ids=["to partitions", "to partitions, sharded", "to whole, sharded"],
)
def test_a_saver_restores_all_variables(prefix, partitioned, sharded):
    with tf.Graph().as_default() as graph, tf.Session() as session:
        variables = make_variables(partitioned, zero=True)
        assert isinstance(variables["slot"], RowPartitionedVariable) == partitioned
        saver = tf.train.Saver(builder=PartitionedSaverBuilder(), sharded=sharded)
        saver.restore(session, prefix)
        assert_restored(session, variables)
        assert reads(graph) == [(name, "") for name in VALUES]


def test_it_saves_what_it_restores_and_what_a_checkpoint_lacks_is_an_error(tmp_path):
    with tf.Graph().as_default(), tf.Session() as session:
        variables = make_variables(True)
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver(builder=PartitionedSaverBuilder())
        prefix = saver.save(session, str(tmp_path / "model.ckpt"))
        session.run(
            [part.assign_add(tf.ones_like(part)) for part in tf.global_variables()]
        )
        saver.restore(session, prefix)
        assert_restored(session, variables)
    with tf.Graph().as_default(), tf.Session() as session:
        make_variables(True)
        getter = row_partitioning_getter(lambda name: True)
        with tf.variable_scope("", use_resource=True, custom_getter=getter):
            tf.get_variable("other", [20, 3])
        saver = tf.train.Saver(builder=PartitionedSaverBuilder())
        with pytest.raises(tf.errors.NotFoundError, match="other"):
            saver.restore(session, prefix)


@pytest.mark.parametrize("partitioned", [True, False], ids=["partitions", "whole"])
def test_variables_start_from_a_checkpoint(prefix, partitioned):
    with tf.Graph().as_default() as graph, tf.Session() as session:
        variables = make_variables(partitioned, zero=True)
        start_from(prefix, variables)
        session.run(tf.global_variables_initializer())
        assert_restored(session, variables)
        assert reads(graph) == [(name, "") for name in VALUES]
