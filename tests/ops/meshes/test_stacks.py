"""Which slices share a variable of a core, and what is written to them."""

import numpy as np
import pytest

from decoupled.core.compat import mtf, tf
from decoupled.ops.meshes.simd import slices_of, stacks_of
from tests.helpers import SESSION_CONFIG
from tests.ops.simd_on_cpu import WithoutProgram, eight_cores

ROWS, COLUMNS = mtf.Dimension("rows", 8), mtf.Dimension("columns", 6)
# Of a slice of [8, 6] split over columns by 2.
SLICE_BYTES = 4 * 8 * 3
LAYOUT = "columns:model"


def variable(mesh, name, dims=(ROWS, COLUMNS), trainable=True, slices=tf.float32):
    dtype = mtf.VariableDType(tf.float32, slices, tf.float32)
    return mtf.get_variable(
        mesh,
        name,
        mtf.Shape(dims),
        dtype=dtype,
        initializer=tf.zeros_initializer(),
        trainable=trainable,
    ).operation


def names_of(make, most=2**20, layout=LAYOUT):
    """The names of the stacks that the variables of `make(mesh)` make."""
    with tf.Graph().as_default():
        mesh = mtf.Mesh(mtf.Graph(), "mesh")
        make(mesh)
        result = stacks_of(mesh.graph.all_variables, eight_cores(layout), most)
        return [[v.name for v in members] for members in result]


def test_equal_slices_share_a_stack_and_their_slots_follow():
    def make(mesh):
        for name in "ab":
            variable(mesh, name)
        variable(mesh, "wide", [ROWS])
        for name in ("a", "b", "wide"):
            for slot in ("m", "v"):
                dims = [ROWS] if name == "wide" else [ROWS, COLUMNS]
                variable(mesh, f"{name}/{slot}", dims, trainable=False)

    assert names_of(make) == [
        ["a", "b"], ["wide"], ["a/m", "b/m"], ["a/v", "b/v"], ["wide/m"], ["wide/v"],
    ]  # fmt: skip


def test_what_differs_in_more_than_its_name_is_apart():
    def make(mesh):
        variable(mesh, "weight")
        variable(mesh, "narrow", slices=tf.bfloat16)
        variable(mesh, "frozen", trainable=False)
        # As large on a core, but split along another dimension.
        variable(mesh, "other", [mtf.Dimension("a", 8), mtf.Dimension("b", 3)])
        variable(mesh, "again")

    result = names_of(make)
    assert result == [["weight", "again"], ["narrow"], ["frozen"], ["other"]]


def test_a_stack_is_cut_where_its_gradient_would_be_too_large():
    def make(mesh):
        for number in range(7):
            variable(mesh, f"w{number}")
        for number in range(7):
            variable(mesh, f"w{number}/m", trainable=False)

    sizes = [len(members) for members in names_of(make, 3 * SLICE_BYTES)]
    assert sizes == [2, 2, 3] * 2
    assert {len(m) for m in names_of(make, 2 * SLICE_BYTES - 1)} == {1}
    assert {len(m) for m in names_of(make, 0)} == {1}


@pytest.mark.parametrize(
    "layout, count, slices",
    [
        (f"rows:data;{LAYOUT}", 3, tf.float32),
        (f"rows:data;{LAYOUT}", 3, tf.bfloat16),
        # Variables without a stack; the last is whole on every core.
        (f"rows:data;{LAYOUT}", 1, tf.float32),
        ("rows:data", 1, tf.float32),
        ("", 1, tf.float32),
    ],
)
def test_each_core_gets_its_part_of_every_member_and_gives_it_back(
    layout, count, slices
):
    tables = [
        np.arange(48, dtype=np.float32).reshape(8, 6) + 50 * i for i in range(count)
    ]
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        members = [
            variable(mesh, f"w{number}", slices=slices) for number in range(count)
        ]
        mesh_impl: WithoutProgram = eight_cores(layout, [3, 1, 0, 2, 7, 5, 4, 6])
        lowering = mtf.Lowering(graph, {mesh: mesh_impl}, autostack=False)
        handles = slices_of(lowering, members).one_slice.handles
        parts = [
            tf.cast(tf.raw_ops.ReadVariableOp(resource=h, dtype=slices), tf.float32)
            for h in handles
        ]
        masters = tf.global_variables()
        config = tf.ConfigProto(allow_soft_placement=True)
        config.MergeFrom(SESSION_CONFIG)
        with tf.Session(config=config) as session:
            for master, table in zip(masters, tables, strict=True):
                session.run(master.assign(table))
            session.run(lowering.copy_masters_to_slices())
            result = session.run(parts)
            session.run([m.assign(tf.zeros_like(m)) for m in masters])
            session.run(lowering.copy_slices_to_masters())
            again = session.run(masters)
    assert len(result) == 8
    for core, part in enumerate(result):
        row, column = divmod(mesh_impl.p2l(core), 2)
        rows = np.s_[2 * row : 2 * row + 2] if "rows" in layout else np.s_[:]
        columns = np.s_[3 * column : 3 * column + 3] if LAYOUT in layout else np.s_[:]
        own = [table[rows, columns] for table in tables]
        np.testing.assert_array_equal(part, own if count > 1 else own[0])
    np.testing.assert_array_equal(again, tables)


def test_members_in_another_order_are_no_stack():
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        members = [variable(mesh, name) for name in ("w0", "w1")]
        lowering = mtf.Lowering(graph, {mesh: eight_cores("")}, autostack=False)
        with pytest.raises(ValueError, match="no stack has these members: w1, w0"):
            slices_of(lowering, members[::-1])
