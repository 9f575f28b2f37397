"""Every place of a split dimension belongs to exactly one part."""

import numpy as np
import pytest
import tensorflow as tf2
from hypothesis import given, settings
from hypothesis import strategies as st

from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.ops.shards import check_separate, own_index, shard_of, zero_unless
from tests.helpers import SESSION_CONFIG, mesh_impl


@settings(max_examples=100, deadline=None)
@given(
    parts=st.integers(1, 5),
    size=st.integers(1, 7),
    ids=st.lists(st.integers(-3, 40), min_size=1, max_size=6),
)
def test_places_belong_to_one_part_and_others_to_none(parts, size, ids):
    total = parts * size
    found = [
        [x.numpy() for x in own_index(tf2.constant(ids), part, size, total)]
        for part in range(parts)
    ]
    for column, place in enumerate(ids):
        owners = [part for part in range(parts) if found[part][1][column]]
        indices = [index[column] for index, _ in found]
        if 0 <= place < total:
            assert owners == [place // size]
            assert indices[owners[0]] == place % size
            assert all(0 <= index < size for index in indices)
        else:
            # A gather from a part refuses it, whichever part it is.
            assert owners == []
            assert set(indices) == {place}


def test_rows_of_other_parts_are_zero_even_where_they_are_not_numbers():
    values = np.array([[[1.0, 2.0], [np.nan, np.inf]]], np.float32)
    own = tf2.constant([[True, False]])
    np.testing.assert_array_equal(zero_unless(own, values), [[[1, 2], [0, 0]]])


def test_sizes_and_coordinates_of_parts():
    rows, columns = mtf.Dimension("rows", 6), mtf.Dimension("columns", 4)
    implementation = mesh_impl("d:2;m:2", "rows:m")
    with tf.Graph().as_default(), tf.Session(config=SESSION_CONFIG) as session:
        axis, size, coordinate = shard_of(implementation, rows)
        assert (axis, size) == (1, 3)
        assert session.run(coordinate.all_slices) == [0, 1, 0, 1]
    assert shard_of(implementation, columns) == (None, 4, 0)


def test_dimensions_on_axes_of_their_own_may_be_split():
    rows, columns = mtf.Dimension("rows", 6), mtf.Dimension("columns", 4)
    check_separate(mesh_impl("d:2;m:2", "rows:d;columns:m"), rows, [columns])
    check_separate(mesh_impl("d:2;m:2", "columns:m"), rows, [columns])
    with pytest.raises(UserError, match="rules rows:m and columns:m"):
        check_separate(mesh_impl("m:2", "rows:m;columns:m"), rows, [columns])
