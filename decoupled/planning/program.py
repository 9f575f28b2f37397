"""The program of a pre-training step for a TPU slice, without a TPU.

A plan adds up its costs, and `decoupled.planning.hlo` compiles it.
"""

from decoupled.configs import MaskingConfig
from decoupled.core.compat import tf
from decoupled.planning.hardware import Slice
from decoupled.training.graph import TrainingGraph
from decoupled.training.tpu import check_mesh_size
from decoupled.training.xla.programs import Program, training_program


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


def build_program(
    training: TrainingGraph,
    features: dict[str, tf.TensorSpec],
    tpu: Slice | None = None,
) -> Program:
    """Builds the step of a core, of the slice or, without one, a single core.

    Raises:
      UserError: mesh, model, batch and slice do not fit each other.
    """
    cores, where = (tpu.cores, tpu.name) if tpu else (1, "one core")
    check_mesh_size(training.network.mesh, cores, where)
    return training_program(training, features)
