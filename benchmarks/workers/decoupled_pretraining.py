"""Worker: training steps of this project, with the graph and session of training."""

import protocol
import synthetic

from decoupled.configs import (
    MaskingConfig,
    MeshConfig,
    ModelConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainingConfig,
)
from decoupled.core.compat import tf
from decoupled.tasks.mlm import MaskedLM
from decoupled.training.graph import Network, TrainingGraph, build_step
from decoupled.training.mesh import session_config


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds a batch's sizes (see `synthetic`), the fields of configurations,
    "model" and "optimizer", and "dtype"."""
    config = graph_config(case)
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.from_tensors(synthetic.masked_lm_batch(case))
        features = tf.data.make_one_shot_iterator(dataset.repeat()).get_next()
        lowered = build_step(config, features)
        with tf.control_dependencies([lowered.update]):
            train = tf.assign_add(tf.train.get_or_create_global_step(), 1)
        copy = lowered.lowering.copy_masters_to_slices()
        session = tf.Session(config=session_config(config.network.mesh))
        session.run(tf.global_variables_initializer())
        session.run(copy)

    def step():
        loss, _ = session.run([lowered.loss, train])
        return float(loss)

    return step, {
        "parameters": sum(v.size for v in config.network.variables.values()),
        "versions": protocol.versions("decoupled", "tensorflow", "mesh-tensorflow"),
    }


def graph_config(case: dict) -> TrainingGraph:
    """The graph of a case, on one processor."""
    masking = MaskingConfig(case["sequence_length"], case["predictions"])
    mesh = MeshConfig(activation_dtype=case["dtype"], stack_mib=0)
    return TrainingGraph(
        Network(MaskedLM(masking), ModelConfig(**case["model"]), mesh),
        optimizer=OptimizerConfig(**case["optimizer"]),
        schedule=ScheduleConfig(100_000, 0, "constant"),
        training=TrainingConfig(seed=1),
    )


if __name__ == "__main__":
    protocol.serve(build)
