"""Worker: training steps of this project, with the graph and session of training."""

import numpy as np
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
from decoupled.core.compat import mtf, tf
from decoupled.tasks.mlm import MaskedLM
from decoupled.training.graph import Lowered, Network, TrainingGraph, build_step
from decoupled.training.mesh import session_config

OUTPUT_EMBEDDING = "cls/predictions/output_embedding"


def build(case: dict) -> tuple[protocol.Step, dict]:
    """A case holds a batch's sizes (see `synthetic`) and the fields of configurations:
    "model", "mesh" and "optimizer"."""
    step, lowered = training_step(graph_config(case), synthetic.masked_lm_batch(case))
    return step, {
        "parameters": parameters(lowered),
        "slices": slice_bytes(lowered.lowering, OUTPUT_EMBEDDING),
        "versions": protocol.versions("decoupled", "tensorflow", "mesh-tensorflow"),
    }


def training_step(
    config: TrainingGraph, batch: dict[str, np.ndarray]
) -> tuple[protocol.Step, Lowered]:
    """A step of training on the same batch always, in a session that is ready."""
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.from_tensors(batch).repeat()
        features = tf.data.make_one_shot_iterator(dataset).get_next()
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

    return step, lowered


def graph_config(case: dict) -> TrainingGraph:
    """The graph of a case."""
    masking = MaskingConfig(
        sequence_length=case["sequence_length"],
        max_predictions=case["predictions"],
        masking_rate=0.15,
        mask_token_rate=0.8,
        random_token_rate=0.1,
    )
    model, mesh = ModelConfig(**case["model"]), MeshConfig(**case["mesh"])
    task = MaskedLM(masking)
    return TrainingGraph(
        Network(task, model, mesh),
        optimizer=OptimizerConfig(**case["optimizer"]),
        schedule=ScheduleConfig(100_000, 0, "constant"),
        training=TrainingConfig(seed=1),
    )


def parameters(lowered: Lowered) -> int:
    """How many numbers are trained."""
    variables = lowered.lowering.graph.trainable_variables
    return sum(variable.shape.size for variable in variables)


def slice_bytes(lowering: mtf.Lowering, name: str) -> dict[str, list[int]]:
    """Bytes per device of a variable and its optimizer slots, from lowered slices."""
    return {
        variable.name: [
            int(np.prod(part.shape.as_list())) * part.dtype.size
            for part in laid_out.laid_out_tensor.tensor_list
        ]
        for variable, laid_out in lowering.variables.items()
        if f"{variable.name}/".startswith(f"{name}/")
    }


if __name__ == "__main__":
    protocol.serve(build)
