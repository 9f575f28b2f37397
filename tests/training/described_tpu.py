"""The real TPUEstimator on TPU slices that are only described.

Everything that happens before a session is made happens here as on a TPU: TPUEstimator
builds infeed, training loop, outfeed and host calls, every hook begins, and the graph
is finalized. What a session would do with the graph is not shown.
"""

import collections
import contextlib
import os
import shutil
import sys
from typing import NamedTuple
from unittest import mock

import numpy as np
from tensorflow.python.tpu import topology, tpu_feed, tpu_system_metadata
from tensorflow.python.tpu import tpu as tpu_rewriting
from tensorflow.python.tpu.ops import tpu_ops
from tensorflow.python.training import monitored_session

from decoupled.configs.hardware import Hardware, TpuAddress
from decoupled.core import compat
from decoupled.core.compat import mtf, tf
from decoupled.planning.hardware import parse_topology
from decoupled.training import loop
from decoupled.training import tpu as tpu_training
from tests.ops.simd_on_cpu import OneCore, slice_topology
from tests.training.runs import run_spec, with_training

# Private, and to be imported after `compat` alone.
tpu_context = sys.modules[compat.estimator.tpu.TPUEstimator.__module__].tpu_context
# Nothing answers at this address, and nothing asks there before a session is made.
ADDRESS = Hardware(tpu=TpuAddress("grpc://10.0.0.1:8470"))


class _Stop(Exception):
    """Ends a run whose hooks have begun and whose graph is complete."""


class BuiltGraph(NamedTuple):
    """What TPUEstimator built.

    graph: the host's, with the program inside. hooks: of the session, which have begun.
    """

    graph: tf.Graph
    hooks: list

    def operations(self, *types):
        """The operations of some types, outside of functions."""
        return [op for op in self.graph.get_operations() if op.type in types]

    def slices(self):
        """The cores' parts of all variables."""
        return [op for op in self.operations("VarHandleOp") if "_slice_" in op.name]

    def program(self):
        """The operations that run on the cores."""
        return [
            op
            for op in self.graph.get_operations()
            if "_tpu_replicate" in op.node_def.attr
        ]

    def program_types(self):
        """How often each type of operation is in the program."""
        return collections.Counter(op.type for op in self.program())


def metadata(slice_type, hosts):
    """What a slice says of itself when TPUEstimator asks."""
    tpu = parse_topology(slice_type)
    return tpu_system_metadata.TPUSystemMetadata(
        num_cores=tpu.cores,
        num_hosts=hosts,
        num_of_cores_per_host=tpu.cores // hosts,
        topology=slice_topology(tpu),
        devices=(),
    )


def describe(system):
    """A patch under which every TPUEstimator finds the slice of `metadata`."""
    return mock.patch.object(
        tpu_context._InternalTPUContext, "_get_tpu_system_metadata", lambda self: system
    )


def build(mode, graph, input_fn, folder, slice_type="v2-8", hosts=1, **training):
    """Builds what `train` or `predict` would run.

    Args:
      mode: the name of a function of `decoupled.training.loop`.
      graph: TrainingGraph. input_fn: an input_fn with batches of the right size.
      folder: of the run. slice_type, hosts: of the slice.
      training: changes of `tiny_training`.

    Returns:
      BuiltGraph.
    """
    init_checkpoint = training.pop("init_checkpoint", None)
    if mode == "predict":
        shutil.copytree(os.path.dirname(init_checkpoint), folder, dirs_exist_ok=True)
    spec = run_spec(folder)
    graph = with_training(graph, iterations_per_loop=5, **training)
    batch_size = graph.training.eval_batch_size
    spec = spec._replace(hardware=ADDRESS, init_checkpoint=init_checkpoint)
    calls = {
        "train": lambda: loop.train(graph, spec, lambda step: input_fn),
        "predict": lambda: list(
            loop.predict(graph.network, spec, batch_size, input_fn)
        ),
    }
    graphs = []

    def session(creator):
        creator._scaffold.finalize()
        graphs.append(tf.get_default_graph())
        raise _Stop

    hooks = []
    begin = monitored_session._MonitoredSession.__init__

    def with_hooks(self, creator, session_hooks, *arguments, **options):
        hooks.extend(session_hooks or [])
        begin(self, creator, session_hooks, *arguments, **options)

    with (
        describe(metadata(slice_type, hosts)),
        mock.patch.object(
            monitored_session.ChiefSessionCreator, "create_session", session
        ),
        mock.patch.object(monitored_session._MonitoredSession, "__init__", with_hooks),
    ):
        try:
            calls[mode]()
        except _Stop:
            return BuiltGraph(graphs[0], hooks)
    raise AssertionError(f"{mode} has made no session")


class _CoreOfThisHost(OneCore):
    """The mesh of a slice with one core, which is this host's CPU."""

    def __init__(self, shape, layout, assignment, logical_to_physical, stack_bytes):
        del assignment, logical_to_physical
        super().__init__(shape, layout, stack_bytes)


class _Queue:
    """An infeed or an outfeed: a queue of tuples between host and program."""

    def __init__(self):
        self._queue = None

    def put(self, tensors):
        with mtf.utils.outside_all_rewrites():
            self._queue = tf.queue.FIFOQueue(
                8, [t.dtype for t in tensors], [t.shape for t in tensors]
            )
        return self._queue.enqueue(tensors)

    def get(self):
        values = self._queue.dequeue()
        return values if isinstance(values, list) else [values]


@contextlib.contextmanager
def one_core():
    """TPUEstimator's own loop on this host, as if its CPU were a slice of one core.

    Infeed and outfeed are queues, and the program is the loop that TPUEstimator has
    built, not compiled. All else is what runs on a TPU: threads, hooks, host calls.

    Yields:
      ADDRESS of the slice, for `Run.tpu`.
    """
    infeed, outfeed = _Queue(), _Queue()

    def enqueue(queue, inputs, **placement):
        del placement
        queue.set_configuration_from_sharded_input_tensors(inputs)
        return [infeed.put(inputs[0])]

    def run_on_host(program, inputs, **sharding):
        del sharding
        outputs = program(*(values[0] for values in inputs))
        return tf.no_op(), tf.nest.flatten(outputs)

    patches = [
        (tpu_training, "SimdMeshImpl", _CoreOfThisHost),
        (tpu_feed.InfeedQueue, "generate_enqueue_ops", enqueue),
        (tpu_feed.InfeedQueue, "generate_dequeue_op", lambda *_, **__: infeed.get()),
        (tpu_ops, "outfeed_enqueue_tuple", outfeed.put),
        (tpu_ops, "outfeed_dequeue_tuple", lambda **_: outfeed.get()),
        (tpu_rewriting, "split_compile_and_shard", run_on_host),
    ]
    system = tpu_system_metadata.TPUSystemMetadata(
        num_cores=1,
        num_hosts=1,
        num_of_cores_per_host=1,
        topology=topology.Topology(
            mesh_shape=[1, 1, 1, 1],
            device_coordinates=np.zeros([1, 1, 4], np.int32),
        ),
        devices=(),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(describe(system))
        for owner, name, stand_in in patches:
            stack.enter_context(mock.patch.object(owner, name, stand_in))
        yield Hardware(tpu=TpuAddress("local"))
