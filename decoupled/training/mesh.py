"""Mesh shape and layout rules: checked, then turned into a mesh implementation.

Mesh-TensorFlow ignores layout rules with unknown names, and then splits nothing. Here
all names and sizes are checked before a graph is built.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from decoupled.configs import MeshConfig
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.model.dims import NAMES, SETTINGS, Dims
from decoupled.ops.meshes.placement import PlacementMeshImpl

# Lengths are multiples of this on CPUs and GPUs; a finer choice would save little.
_LENGTH_STEP = 8
# A TPU pads the last dimension of a tensor to a multiple of this.
_TPU_LENGTH_STEP = 128


class Placement(NamedTuple):
    """Where a graph runs. `variable_placer` chooses devices for the variables that are
    saved, or is None."""

    implementation: mtf.MeshImpl
    variable_placer: mtf.utils.BalancedVariablePlacer | None


def parse_mesh_shape(text: str) -> dict[str, int]:
    """ "data:2;vocab:4" (or with commas) as {"data": 2, "vocab": 4}."""
    axes = {}
    for name, size in _pairs(text, "MeshConfig.mesh_shape"):
        if not size.isdecimal() or int(size) < 1:
            raise UserError(
                f"MeshConfig.mesh_shape: axis {name!r} needs a size of 1 or more, "
                f"not {size!r} (e.g. data:2;vocab:4)"
            )
        if name in axes:
            raise UserError(f"MeshConfig.mesh_shape: axis {name!r} is repeated")
        axes[name] = int(size)
    if not axes:
        raise UserError("MeshConfig.mesh_shape: is empty; write all:1 for one device")
    return axes


def parse_layout(text: str, axes: dict[str, int]) -> dict[str, str]:
    """ "batch:data;vocab:vocab" as {dimension: mesh axis}."""
    rules = {}
    for dimension, axis in _pairs(text, "MeshConfig.layout_rules"):
        rule = f"MeshConfig.layout_rules: rule {dimension}:{axis}"
        if dimension not in NAMES:
            raise UserError(
                f"{rule}: no dimension {dimension!r}; one of {', '.join(sorted(NAMES))}"
            )
        if axis not in axes:
            raise UserError(
                f"{rule}: no mesh axis {axis!r}; mesh_shape has {', '.join(axes)}"
            )
        if dimension in rules:
            raise UserError(f"{rule}: dimension {dimension!r} has a rule already")
        rules[dimension] = axis
    return rules


def axes_and_rules(config: MeshConfig) -> tuple[dict[str, int], dict[str, str]]:
    """Mesh axis -> size, and dimension -> mesh axis."""
    axes = parse_mesh_shape(config.mesh_shape)
    return axes, parse_layout(config.layout_rules, axes)


def _pairs(text, setting):
    pieces = [p.strip() for p in text.replace(",", ";").split(";") if p.strip()]
    for piece in pieces:
        name, colon, value = (part.strip() for part in piece.partition(":"))
        if not (name and colon and value):
            raise UserError(f"{setting}: {piece!r} is not of the form name:value")
        yield name, value


def check_mesh_size(config: MeshConfig, cores: int, machine: str) -> None:
    """Checks that every core has its place in the mesh."""
    size = mesh_size(config)
    if size != cores:
        raise UserError(
            f"MeshConfig.mesh_shape: {config.mesh_shape} has {size} processors, "
            f"{machine} has {cores} cores; make them equal (e.g. data:{cores})"
        )


def check_mesh(
    config: MeshConfig,
    dims: Dims,
    task_dims: Iterable[mtf.Dimension] = (),
    settings: Mapping[str, str] | None = None,
) -> None:
    """Checks names and divisibility against the sizes of a graph, and that each axis of
    several processors has a rule.

    `task_dims` are further dimensions of the task. `settings`: name of a dimension ->
    the setting of its size, where it is not that of `decoupled.model.dims.SETTINGS`.
    """
    axes, rules = axes_and_rules(config)
    size_settings = {**SETTINGS, **(settings or {})}
    for dimension in [*vars(dims).values(), *task_dims]:
        axis = rules.get(dimension.name)
        if axis is not None and dimension.size % axes[axis]:
            raise UserError(
                f"MeshConfig.layout_rules: rule {dimension.name}:{axis}: dimension "
                f"{dimension.name!r} of size {dimension.size} does not divide into "
                f"{axes[axis]} parts; change mesh_shape or "
                f"{size_settings[dimension.name]}"
            )
    _check_axes(axes, rules, rules)


def _check_axes(axes, rules, dimensions):
    used_axes = {rules[name] for name in dimensions if name in rules}
    for axis, size in axes.items():
        if size > 1 and axis not in used_axes:
            rules_of_axis = [f"{n}:{a}" for n, a in rules.items() if a == axis]
            subject = (
                f"{'; '.join(rules_of_axis)} splits no tensor of this model"
                if rules_of_axis
                else ""
            )
            raise UserError(
                f"MeshConfig.layout_rules: {subject or 'no rule splits anything'} over "
                f"mesh axis {axis!r}, so that its {size} processors would all do the "
                f"same work; add a rule, e.g. batch:{axis}, or set the axis to 1 in "
                "mesh_shape"
            )


def check_tensors(config: MeshConfig, graph: mtf.Graph) -> None:
    """Checks what the layout does to the tensors of a graph.

    No tensor has two dimensions on one mesh axis, and every axis splits some tensor.
    Also calls `check_layout` of operations with further conditions.
    """
    axes, rules = axes_and_rules(config)
    implementation = mtf.MeshImpl(*shape_and_layout(config))
    dimensions = set()
    for operation in graph.operations:
        if hasattr(operation, "check_layout"):
            operation.check_layout(implementation)
        for tensor in operation.outputs:
            dimensions.update(tensor.shape.dimension_names)
            seen = {}
            for name in tensor.shape.dimension_names:
                axis = rules.get(name)
                if axis in seen:
                    raise UserError(
                        f"MeshConfig.layout_rules: rules {seen[axis]}:{axis} and "
                        f"{name}:{axis} split one tensor "
                        f"[{', '.join(tensor.shape.dimension_names)}] twice over the "
                        "same mesh axis; give one of them another axis"
                    )
                if axis is not None:
                    seen[axis] = name
    _check_axes(axes, rules, dimensions)


def devices(config: MeshConfig) -> list[str]:
    """The devices of the mesh, virtual CPUs.

    Without a named device the saved variable itself is the slice, and weights have no
    second copy.
    """
    size = mesh_size(config)
    return [""] if size == 1 else [f"cpu:{index}" for index in range(size)]


def mesh_size(config: MeshConfig) -> int:
    """Number of devices of the mesh."""
    return math.prod(parse_mesh_shape(config.mesh_shape).values())


def length_step(config: MeshConfig, on_tpu: bool = False) -> int:
    """The number whose multiples are lengths of sequences that the mesh can split."""
    step = _TPU_LENGTH_STEP if on_tpu else _LENGTH_STEP
    return math.lcm(step, *_axis_sizes(config, "sequence", "memory"))


def rows_multiple(config: MeshConfig, accumulation: int) -> int:
    """The number whose multiples are rows of a batch that the mesh can split, in so
    many microbatches."""
    return math.prod(_axis_sizes(config, "batch")) * accumulation


def split_rows(config: MeshConfig, rows: int) -> int:
    """`rows` of a batch, or the next larger number that the mesh can split."""
    multiple = rows_multiple(config, accumulation=1)
    return -(-rows // multiple) * multiple


def _axis_sizes(config, *dimensions):
    axes, rules = axes_and_rules(config)
    return [axes[rules[name]] for name in dimensions if name in rules]


def session_config(config: MeshConfig) -> tf.ConfigProto:
    """The settings of a session that runs the mesh's graph.

    It has a virtual CPU device for each processor of the mesh, and computes sums in the
    same order in every run.
    """
    settings = tf.ConfigProto(
        device_count={"CPU": mesh_size(config), "GPU": 0}, allow_soft_placement=True
    )
    # TensorFlow's rewriting of whole graphs regroups the sums of a reduction over four
    # devices differently in each run, so that two runs differ in their last bits.
    # Steps are as fast without it, and the first one comes several times sooner.
    settings.graph_options.rewrite_options.disable_meta_optimizer = True
    return settings


def shape_and_layout(config: MeshConfig) -> tuple[mtf.Shape, mtf.LayoutRules]:
    """Mesh shape and layout rules as Mesh-TensorFlow takes them."""
    axes, rules = axes_and_rules(config)
    shape = mtf.Shape([mtf.Dimension(name, size) for name, size in axes.items()])
    return shape, mtf.convert_to_layout_rules(list(rules.items()))


def make_mesh_impl(config: MeshConfig) -> PlacementMeshImpl:
    """The mesh over this host's devices."""
    return PlacementMeshImpl(*shape_and_layout(config), devices(config))
