"""Where the processors of a mesh are on a slice."""

from decoupled.core.compat import mtf
from decoupled.planning.hardware import parse_topology
from decoupled.training.tpu import logical_to_physical
from tests.ops.simd_on_cpu import assign_cores


def test_tpu_estimator_s_replicas_are_where_programs_of_xla_have_theirs():
    """A plan holds for both. The last axis begins with the cores of a chip."""
    for name, shape in (("v3-32", "data:16;model:2"), ("v4-16", "data:2;model:4")):
        tpu, assignment = parse_topology(name), assign_cores(parse_topology(name))
        order = logical_to_physical(mtf.convert_to_shape(shape), assignment)
        places = [tuple(assignment.coordinates(replica, 0)) for replica in order]
        assert places == tpu.places(mtf.convert_to_shape(shape).to_integer_list)
    first, second = parse_topology("v3-32").places((16, 2))[:2]
    assert first[:3] == second[:3]
