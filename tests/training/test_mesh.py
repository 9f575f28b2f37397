"""Layout rules that Mesh-TensorFlow would ignore are refused in one line.

Those that do not fit the tensors of a graph are in test_graph.py.
"""

import pytest

from decoupled.configs import MeshConfig
from decoupled.model.dims import NAMES, SETTINGS, make_dims
from decoupled.training import mesh as meshes
from tests.helpers import tiny_model
from tests.refusals import refusal


def config(shape, rules=""):
    return MeshConfig(shape, rules)


def check(shape, rules):
    dims = make_dims(tiny_model(), batch_size=8, sequence_length=12)
    meshes.check_mesh(config(shape, rules), dims)


@pytest.mark.parametrize("text", ["d:2;m:4", "d:2,m:4", " d : 2 ; m : 4 ;"])
def test_axes_are_read_in_order(text):
    axes = meshes.parse_mesh_shape(text)

    assert list(axes.items()) == [("d", 2), ("m", 4)]
    assert meshes.mesh_size(config(text)) == 8


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty; write all:1 for one device"),
        (" ; ", "is empty; write all:1 for one device"),
        ("d", "'d' is not of the form name:value"),
        ("d:", "'d:' is not of the form name:value"),
        (":2", "':2' is not of the form name:value"),
        ("d:2;m=2", "'m=2' is not of the form name:value"),
        ("d:0", "axis 'd' needs a size of 1 or more, not '0'"),
        ("d:-2", "axis 'd' needs a size of 1 or more, not '-2'"),
        ("d:two", "axis 'd' needs a size of 1 or more, not 'two'"),
        ("d:\u00b2", "axis 'd' needs a size of 1 or more, not '\u00b2'"),
        ("d:2:2", "axis 'd' needs a size of 1 or more, not '2:2'"),
        ("d:2;d:2", "axis 'd' is repeated"),
    ],
)
def test_a_shape_that_is_none_is_refused(text, problem):
    message = refusal(meshes.parse_mesh_shape, text)

    assert message.startswith("MeshConfig.mesh_shape: ")
    assert problem in message


def test_rules_map_dimensions_to_axes():
    rules = meshes.parse_layout("batch:d; vocab:m, heads:m", {"d": 2, "m": 2})

    assert rules == {"batch": "d", "vocab": "m", "heads": "m"}
    assert meshes.parse_layout("", {"all": 1}) == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("vocabulary:m", "rule vocabulary:m: no dimension 'vocabulary'; one of batch,"),
        ("Vocab:m", "rule Vocab:m: no dimension 'Vocab'"),
        ("vocab:model", "rule vocab:model: no mesh axis 'model'; mesh_shape has d, m"),
        ("vocab:m;vocab:d", "rule vocab:d: dimension 'vocab' has a rule already"),
        ("vocab", "'vocab' is not of the form name:value"),
        ("batch:d;:m", "':m' is not of the form name:value"),
    ],
)
def test_a_rule_with_an_unknown_name_is_refused(text, problem):
    message = refusal(meshes.parse_layout, text, {"d": 2, "m": 2})

    assert message.startswith("MeshConfig.layout_rules: ")
    assert problem in message


@pytest.mark.parametrize(
    ("shape", "rules", "axis", "size"),
    [
        ("all:8", "", "all", 8),
        ("d:4;m:2", "batch:d", "m", 2),
        ("d:1;m:8", "batch:d", "m", 8),
    ],
)
def test_an_axis_without_a_rule_is_refused(shape, rules, axis, size):
    assert refusal(check, shape, rules) == (
        f"MeshConfig.layout_rules: no rule splits anything over mesh axis {axis!r}, so "
        f"that its {size} processors would all do the same work; add a rule, e.g. "
        f"batch:{axis}, or set the axis to 1 in mesh_shape"
    )


@pytest.mark.parametrize(
    ("shape", "rules", "name", "size", "parts", "setting"),
    [
        ("d:3", "batch:d", "batch", 8, 3, "TrainingConfig.batch_size"),
        ("d:2;m:5", "batch:d;vocab:m", "vocab", 48, 5, "ModelConfig.vocab_size"),
        ("m:3", "hidden:m", "hidden", 16, 3, "ModelConfig.hidden_size"),
        # Heads are split whole: 16 columns of a kernel would divide, 4 heads do not.
        ("m:8", "heads:m", "heads", 4, 8, "ModelConfig.num_heads"),
        (
            "m:3",
            "intermediate:m",
            "intermediate",
            32,
            3,
            "ModelConfig.intermediate_size",
        ),
        ("m:3", "positions:m", "positions", 20, 3, "ModelConfig.max_positions"),
        ("m:4", "token_types:m", "token_types", 2, 4, "ModelConfig.type_vocab_size"),
    ],
)
def test_a_dimension_that_does_not_divide_is_named_with_its_setting(
    shape, rules, name, size, parts, setting
):
    message = refusal(check, shape, rules)

    axis = rules.rpartition(":")[2]
    assert message == (
        f"MeshConfig.layout_rules: rule {name}:{axis}: dimension {name!r} of size "
        f"{size} does not divide into {parts} parts; change mesh_shape or {setting}"
    )


def test_every_dimension_has_the_setting_that_changes_it():
    assert set(SETTINGS) == set(NAMES)


def test_one_processor_has_no_device_name_and_several_have_one_each():
    assert meshes.devices(config("all:1")) == [""]
    assert meshes.devices(config("d:1;m:1")) == [""]
    expected = ["cpu:0", "cpu:1", "cpu:2", "cpu:3"]
    assert meshes.devices(config("d:2;m:2")) == expected


def test_a_session_has_a_cpu_per_processor_and_rewrites_no_graph():
    session = meshes.session_config(config("d:2;m:2"))

    assert session.device_count == {"CPU": 4, "GPU": 0}
    assert session.graph_options.rewrite_options.disable_meta_optimizer
