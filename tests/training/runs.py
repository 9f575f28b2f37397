"""Short runs of tiny models: bare steps of a graph, and whole training runs."""

import contextlib
import dataclasses
import functools
import os
from typing import NamedTuple

import numpy as np

from decoupled.configs import MeshConfig
from decoupled.core.compat import mtf, tf
from decoupled.model.variables import MASKED_LM, NO_HEAD, shapes
from decoupled.ops.gradients import as_factored
from decoupled.ops.row_partitions import saved_variables
from decoupled.tasks.classification import Classification, Regression
from decoupled.tasks.mlm import MaskedLM
from decoupled.tasks.tagging import Tagging
from decoupled.training import graph as graphs
from decoupled.training.bookkeeping import StopOnSignal
from decoupled.training.checkpoints import latest_complete
from decoupled.training.events import event_writer, scalar_summary
from decoupled.training.graph import Network, TrainingGraph, build_step
from decoupled.training.loop import Run, train
from decoupled.training.mesh import session_config
from tests.helpers import (
    MASKING,
    adamw,
    constant_input_fn,
    masked_lm_features,
    schedule,
    tiny_model,
    tiny_training,
)

ONE_DEVICE = MeshConfig()
MODEL_AXIS = MeshConfig("m:2", "vocab:m;heads:m;intermediate:m")
DATA_AXIS = MeshConfig("d:2", "batch:d")
BOTH_AXES = MeshConfig("d:2;m:2", "batch:d;vocab:m;heads:m;intermediate:m")
# A `tiny_model` of few variables: each takes some ten operations of a graph.
SMALL = {
    "input_embedding_size": 16,
    "output_embedding_size": 16,
    "mlm_transform": "projection",
}
# All of `tiny_model` but the head. Frozen, it makes graphs of about half the size.
BODY = tuple(shapes(tiny_model(), NO_HEAD))
# All but its two tables, to which gradients flow through all of the model.
BUT_TABLES = tuple(
    name
    for name in shapes(tiny_model(), MASKED_LM)
    if not name.endswith(("word_embeddings", "output_embedding"))
)


def graph_config(**changes):
    """A masked-LM graph of `tiny_model` for 20 steps; keywords change single fields,
    also those of `tiny_training`."""
    network = Network(
        changes.pop("task", MaskedLM(MASKING)),
        changes.pop("model", tiny_model()),
        changes.pop("mesh", ONE_DEVICE),
    )
    fields = dict(optimizer=adamw(), schedule=schedule())
    for name in [name for name in changes if name in TrainingGraph._fields]:
        fields[name] = changes.pop(name)
    return TrainingGraph(network, training=tiny_training(**changes), **fields)


def with_training(config, **changes):
    """The graph with other batches or bookkeeping."""
    return config._replace(training=dataclasses.replace(config.training, **changes))


class Evaluation(NamedTuple):
    """A graph of one batch without dropout; see `Forward` and `LoweredStep`."""

    loss: tf.Tensor
    sums: dict
    predictions: dict
    lowering: mtf.Lowering


def build_evaluation(network, features, placement=None):
    """Builds and lowers what predicts a batch, with its loss and sums."""
    features = network.task.prepare(features)
    building = graphs._begin_graph(network, None, placement)
    dims = building.checked_dims(*features["input_word_ids"].shape.as_list())
    imported = building.import_features(features, dims)
    forward = network.task.forward(building.builder(dims), imported)
    predictions = {k: mtf.anonymize(v) for k, v in forward.predictions.items()}
    lowering = building.lower()
    export = lowering.export_to_tf_tensor
    return Evaluation(
        export(forward.loss),
        {name: export(value) for name, value in forward.sums.items()},
        {name: export(value) for name, value in predictions.items()},
        lowering,
    )


def built_step(config):
    """The graph of an optimizer step on one batch, for tests that inspect it."""
    features = masked_lm_features(config.training.batch_size)
    with tf.Graph().as_default():
        return build_step(config, {n: tf.constant(x) for n, x in features.items()})


class Steps:
    """The graph of an optimizer step, to run without Estimator and checkpoints.

    Args:
      config: of the graph.
      feature_sets: list of feature dicts; step s gets number s modulo their count.
    """

    def __init__(self, config, feature_sets=None):
        feature_sets = feature_sets or [masked_lm_features(seed=s) for s in range(3)]
        self._session = session_config(config.network.mesh)
        self._graph = tf.Graph()
        with self._graph.as_default():
            step = tf.train.get_or_create_global_step()
            features = {
                name: tf.constant(np.stack([f[name] for f in feature_sets]))[
                    step % len(feature_sets)
                ]
                for name in feature_sets[0]
            }
            lowered = build_step(config, features)
            self.lowering = lowered.lowering
            self._initialize = tf.global_variables_initializer()
            self._variables = {
                name: tf.convert_to_tensor(v) for name, v in saved_variables().items()
            }
            self._to_slices = self.lowering.copy_masters_to_slices()
            self._to_masters = self.lowering.copy_slices_to_masters()
            with tf.control_dependencies([lowered.update]):
                count = tf.assign_add(step, 1)
            self._fetches = (count, lowered.loss, lowered.scalars["gradient_norm"])

    def initial(self):
        """name -> array of every variable before the first step, slots included."""
        with tf.Session(graph=self._graph, config=self._session) as session:
            session.run(self._initialize)
            return session.run(self._variables)

    @contextlib.contextmanager
    def session_after(self, steps):
        """A session after some steps from initial weights, and the steps' results."""
        with tf.Session(graph=self._graph, config=self._session) as session:
            session.run(self._initialize)
            session.run(self._to_slices)
            yield session, [session.run(self._fetches) for _ in range(steps)]

    def run(self, steps):
        """Steps from initial weights.

        Returns:
          variables: name -> array after the last step, slots included.
          losses: float32 [steps]. norms: of the gradient, float32 [steps].
        """
        with self.session_after(steps) as (session, results):
            session.run(self._to_masters)
            variables = session.run(self._variables)
        _, losses, norms = zip(*results, strict=True)
        return variables, np.array(losses), np.array(norms)


def run_steps(config, steps, feature_sets=None):
    """Builds the graph and runs it once; see `Steps`."""
    return Steps(config, feature_sets).run(steps)


def tile_everything(monkeypatch):
    """Makes later code update and cast matrices a few rows at a time, where it can, and
    compile kernels, which it does not do for tiny tensors else."""
    patches = {
        "training.optimizer.as_factored": functools.partial(as_factored, smallest=1),
        "ops.gradients._NORM_SHARE": 1e9,
        "ops.row_partitions._PARTITION_ELEMENTS": 200,
        "ops.weight_product._TILE": 1,
        "ops.kernels._LARGE": 1,
    }
    for name, value in patches.items():
        monkeypatch.setattr(f"decoupled.{name}", value)


def run_spec(folder):
    """A run in `folder`; what it says is collected in `spec.say.__self__`."""
    return Run(str(folder), None, [].append, StopOnSignal())


class SignalAtStep(StopOnSignal):
    """Sends a signal to this process while the `step`-th step of a session runs."""

    def __init__(self, number, step):
        super().__init__()
        self._number, self._steps_left = number, step

    def after_steps(self):
        self._steps_left -= 1
        if not self._steps_left:
            os.kill(os.getpid(), self._number)
        return super().after_steps()


def said(spec):
    """The lines that the run of a `run_spec` has printed."""
    return spec.say.__self__


def step_features(step):
    """The batch of one step: different ones, the same on every call."""
    return masked_lm_features(seed=step)


def head_features(task, rows=8):
    """Features of one batch of a fine-tuning task."""
    batch = masked_lm_features(rows)
    features = {name: batch[name] for name in batch if name.startswith("input_")}
    numbers = np.zeros([rows], np.int32)
    if isinstance(task, Tagging):
        ones = np.ones([rows, task.sequence_length], np.int32)
        return {**features, "word_starts": ones, "label_ids": ones}
    if isinstance(task, Regression):
        return {**features, "targets": np.zeros([rows], np.float32)}
    if isinstance(task, Classification):
        return {**features, "label_ids": numbers}
    return {**features, "start_positions": numbers, "end_positions": numbers}


def stepping_input_fn(start, features_of=step_features):
    """Batches from step `start` on, without end; see `step_features`."""
    sample = step_features(0)
    signature = {
        name: tf.TensorSpec(value.shape, value.dtype) for name, value in sample.items()
    }

    def batches():
        step = start
        while True:
            yield features_of(step)
            step += 1

    def input_fn(params=None):
        del params
        return tf.data.Dataset.from_generator(batches, output_signature=signature)

    return input_fn


def constant_batches(features):
    """step -> input_fn, the same batch for every step."""
    return lambda step: constant_input_fn(features)


def train_run(config, spec, input_fn_from=stepping_input_fn, **options):
    """Trains to the end of the schedule; returns `checkpoint_values`."""
    train(config, spec, input_fn_from, **options)
    return checkpoint_values(spec.model_dir)


def write_events(folder, start, losses, second=None, **scalars):
    """An event file as a run that starts from step `start` writes it.

    Args:
      losses: step -> loss. second: in the file's name, the moment of the start.
      scalars: others, the same at each step.
    """
    writer = event_writer(str(folder), start)
    for step, loss in losses.items():
        writer.add_summary(scalar_summary({"loss": loss, **scalars}), step)
    writer.close()
    [path] = [p for p in folder.glob("events.out.*") if f".{start:012d}" in p.name]
    if second is not None:
        path = path.rename(folder / f"events.out.tfevents.{second}.host.{start:012d}")
    return path


def checkpoint_values(folder, prefix=None):
    """name -> array of a checkpoint, by default the newest of the folder."""
    reader = tf.train.load_checkpoint(prefix or latest_complete(str(folder)))
    return {
        name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()
    }


def checkpoint_names(folder):
    """The steps whose checkpoints lie in a folder, ascending."""
    return sorted(
        int(name[len("model.ckpt-") : -len(".index")])
        for name in os.listdir(folder)
        if name.endswith(".index")
    )


def assert_equal_values(first, second):
    """Two dicts of arrays are the same, bit by bit."""
    assert sorted(first) == sorted(second)
    differences = [
        name for name in first if not np.array_equal(first[name], second[name])
    ]
    assert not differences


def largest_difference(first, second):
    """(absolute difference, name) of the variable that differs most."""
    assert sorted(first) == sorted(second)
    return max(
        (float(np.abs(first[name] - second[name]).max()), name) for name in first
    )
