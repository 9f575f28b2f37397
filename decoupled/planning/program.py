"""The program of a training step on one core of a TPU slice, without a TPU.

All cores run the same program, so one is built, with the slices of the variables on one
core. Loop, infeed and outfeed are left out: it maps features and variables to the loss,
the norm of the gradient and the new variables. A plan adds up its costs, and
`decoupled.planning.hlo` translates it for compilers.
"""

import contextlib
import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from decoupled.configs import MaskingConfig, MeshConfig
from decoupled.core.compat import device_assignment, gen_xla_ops, mtf, tf, topology
from decoupled.ops.meshes.simd import SimdMeshImpl
from decoupled.planning.hardware import Slice
from decoupled.training.graph import Lowered, TrainingGraph, build_step
from decoupled.training.mesh import Placement, shape_and_layout
from decoupled.training.tpu import check_mesh_size, logical_to_physical, stack_bytes

# Chips of one host: 2 x 2.
_HOST = (2, 2, 1)


def slice_topology(tpu: Slice) -> topology.Topology:
    """Coordinates of all cores, host by host."""
    shape = (*tpu.chips, 1)[:3]
    steps = zip(shape, _HOST, strict=True)
    hosts = itertools.product(*(range(0, size, step) for size, step in steps))
    coordinates = [
        [
            [x + dx, y + dy, z + dz, core]
            for dx, dy, dz, core in np.ndindex(*_HOST, tpu.generation.cores)
        ]
        for x, y, z in hosts
    ]
    return topology.Topology(
        mesh_shape=[*shape, tpu.generation.cores],
        device_coordinates=np.array(coordinates),
    )


def assign_cores(tpu: Slice) -> device_assignment.DeviceAssignment:
    """One core for every replica, as TPUEstimator assigns them."""
    return device_assignment.device_assignment(
        slice_topology(tpu), computation_shape=[1, 1, 1, 1], num_replicas=tpu.cores
    )


def feature_specs(masking: MaskingConfig, batch_size: int) -> dict[str, tf.TensorSpec]:
    """The features of a pre-training step, [batch, ...], as hosts send them."""
    names = {
        "input_word_ids": (tf.int32, masking.sequence_length),
        **dict.fromkeys(
            ("masked_lm_positions", "masked_lm_ids"),
            (tf.int32, masking.max_predictions),
        ),
        "masked_lm_weights": (tf.float32, masking.max_predictions),
    }
    return {
        name: tf.TensorSpec([batch_size, width], dtype)
        for name, (dtype, width) in names.items()
    }


class OneCoreMesh(SimdMeshImpl):
    """The whole mesh, but only with the slices of core 0.

    The program knows its core by XLA's replica number.
    """

    class Stack(SimdMeshImpl.Stack):
        """Slices without copies, because nothing runs."""

        copies = False

    def replicas(self) -> list[int]:
        """Core 0."""
        return [0]

    def slice_device(self, replica):
        """Anywhere."""
        return ""

    @property
    def pnum_tensor(self):
        """The number of the core in the mesh."""
        if self._pnum_tensor is None:
            with mtf.utils.outside_all_rewrites():
                places = tf.constant([self.p2l(core) for core in range(self.size)])
                # A session, which may run a single core, has no replica number.
                core = gen_xla_ops.xla_replica_id() if self.size > 1 else 0
                self._pnum_tensor = tf.gather(places, core)
        return self._pnum_tensor

    def group_of_core(self, replicas: list[int]) -> list[tuple[int, ...]]:
        """Coordinates, [x, y, z, core], of the cores of a group."""
        coordinates = self.device_assignment.coordinates
        return [tuple(coordinates(replica, 0)) for replica in replicas]


class Argument(NamedTuple):
    """An argument of the program: name of a feature or variable, shape, dtype."""

    name: str
    shape: list[int]
    dtype: str


class Program:
    """The program of a core. A session can run that of a single core.

    Attributes:
      graph: TensorFlow's. lowered: the mesh graph and its lowering. mesh: of the slice.
      inputs: name of a feature -> placeholder.
      results: loss and norm of the gradient, after the update.
    """

    def __init__(
        self,
        graph: tf.Graph,
        lowered: Lowered,
        mesh: OneCoreMesh,
        inputs: dict[str, tf.Tensor],
        results: list[tf.Tensor],
    ):
        self.graph, self.lowered, self.mesh = graph, lowered, mesh
        self.inputs, self.results = inputs, results

    @functools.cached_property
    def needed(self) -> tf.GraphDef:
        """The definition of all that the results need."""
        names = [tensor.op.name for tensor in self.results]
        return tf.graph_util.extract_sub_graph(self.graph.as_graph_def(), names)

    @functools.cached_property
    def variables(self) -> list[tf.Operation]:
        """The operations of the variables' handles."""
        names = (node.name for node in self.needed.node if node.op == "VarHandleOp")
        return list(map(self.graph.get_operation_by_name, names))

    def described(self) -> list[Argument]:
        """The variables as arguments of the program."""
        return [
            Argument(
                variable.name,
                [int(dimension.size) for dimension in variable.get_attr("shape").dim],
                variable.get_attr("dtype").name,
            )
            for variable in self.variables
        ]


def build_program(
    training: TrainingGraph,
    features: dict[str, tf.TensorSpec],
    tpu: Slice | None = None,
) -> Program:
    """Builds the step of a core, of the slice or, without one, a single core.

    The mesh has as many processors as the slice has cores, or one.

    Raises:
      UserError: mesh, model, batch and slice do not fit each other.
    """
    with tf.Graph().as_default() as graph, _collectives_of_xla():
        step = tf.train.get_or_create_global_step()
        inputs = {n: tf.placeholder(s.dtype, s.shape, n) for n, s in features.items()}
        mesh = one_core_mesh(training.network.mesh, tpu)
        with tf.variable_scope("", custom_getter=_without_values):
            lowered = build_step(training, inputs, Placement(mesh, None))
        with tf.control_dependencies([lowered.update]):
            counted = tf.assign_add(step, 1)
        with tf.control_dependencies([counted]):
            results = [
                tf.identity(lowered.loss),
                tf.identity(lowered.scalars["gradient_norm"]),
            ]
    return Program(graph, lowered, mesh, inputs, results)


def one_core_mesh(config: MeshConfig, tpu: Slice | None) -> OneCoreMesh:
    """The mesh of a slice, or of a single core."""
    shape, layout = shape_and_layout(config)
    if tpu is None:
        check_mesh_size(config, 1, "one core")
        return OneCoreMesh(shape, layout, None, [0], stack_bytes(config))
    check_mesh_size(config, tpu.cores, tpu.name)
    cores = assign_cores(tpu)
    order = logical_to_physical(shape, cores)
    return OneCoreMesh(shape, layout, cores, order, stack_bytes(config))


@contextlib.contextmanager
def _collectives_of_xla() -> Iterator[None]:
    """The sums over cores as XLA's own operation. TensorFlow leaves the translation of
    a TPU's operation to the runtime of TPUs."""

    def all_reduce(x: tf.Tensor, groups: list[list[int]], name: str | None = None):
        del name
        if len(groups[0]) == 1:
            return x
        return gen_xla_ops.xla_all_reduce(
            input=x, group_assignment=groups, reduce_op="Add", mode="CrossReplica"
        )

    operations = mtf.simd_mesh_impl.tpu_ops
    of_a_tpu, operations.cross_replica_sum = operations.cross_replica_sum, all_reduce
    try:
        yield
    finally:
        operations.cross_replica_sum = of_a_tpu


def _without_values(getter, name, shape, dtype, **settings):
    # The saved copy of a mesh variable gets neither memory nor initial values.
    del getter, settings
    with mtf.utils.outside_all_rewrites():
        return tf.placeholder(dtype, shape, name)
