"""Parameters per group, counted in the mesh graph that is really built.

Nothing is lowered and no memory is allocated: a variable of a graph is its shape.
"""

import dataclasses

from decoupled.configs import ModelConfig
from decoupled.core.compat import mtf, tf
from decoupled.core.errors import UserError
from decoupled.model.dims import make_dims
from decoupled.model.embeddings import (
    OUTPUT_BIAS,
    OUTPUT_EMBEDDING,
    PROJECTION,
    WORD_EMBEDDINGS,
)
from decoupled.model.encoder import encode
from decoupled.model.heads import (
    POOLER,
    TRANSFORM,
    cls_positions,
    masked_lm_logits,
    sequence_logits,
)
from decoupled.model.layers import Builder

# Group: what the names of its variables start with.
GROUPS = {
    "word embeddings": WORD_EMBEDDINGS,
    "position embeddings": "bert/embeddings/position_embeddings",
    "type embeddings": "bert/embeddings/token_type_embeddings",
    "embedding layer norm": "bert/embeddings/LayerNorm/",
    "input projection": PROJECTION,
    "encoder layers": "bert/encoder/layer_",
    "pooler": POOLER,
    "MLM transform": TRANSFORM,
    "output embedding": OUTPUT_EMBEDDING,
    "output bias": OUTPUT_BIAS,
}
_TASK_HEAD = ("output_weights", "output_bias")
# Weights depend on no sequence length: the graphs are built for the shortest.
_LENGTH = 2


def pretraining_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters of the masked-LM graph (the paper's PT) per group of `GROUPS`."""

    def build_model(build, features):
        masked_lm_logits(build, encode(build, features).output)

    return _count(config, build_model)


def finetuning_counts(config: ModelConfig, keep_layers: int = 0) -> dict[str, int]:
    """Parameters of a classifier's graph (the paper's FT) per group of `GROUPS`.

    The pooler is counted, the task's own last layer is not.

    Args:
      config: of pre-training.
      keep_layers: the first so many layers are used; 0 keeps all.

    Raises:
      UserError: `keep_layers` is negative or more than the model has.
    """
    if type(keep_layers) is not int or not 0 <= keep_layers <= config.num_layers:
        raise UserError(
            f"keep_layers: {keep_layers!r} is not a number of layers from 1 to "
            f"{config.num_layers}, nor 0, which keeps all"
        )
    kept = dataclasses.replace(config, num_layers=keep_layers or config.num_layers)

    def build_model(build, features):
        cls = encode(build, features, cls_positions(build)).output
        sequence_logits(build, cls, num_labels=2, dropout=0.0)

    return _count(kept, build_model)


def count_groups(graph: mtf.Graph) -> dict[str, int]:
    """Parameters per group of `GROUPS`, all of them, without a task's last layer.

    Raises:
      ValueError: a variable that belongs to no group.
    """
    counts = dict.fromkeys(GROUPS, 0)
    for variable in graph.all_variables:
        if variable.name not in _TASK_HEAD:
            counts[_group(variable.name)] += variable.shape.size
    return counts


def _group(name):
    for group, prefix in GROUPS.items():
        if name.startswith(prefix):
            return group
    raise ValueError(f"variable {name} belongs to no group of parameters")


def _count(config, build_model):
    with tf.Graph().as_default(), tf.variable_scope("", custom_getter=_stand_in):
        graph = mtf.Graph()
        build = Builder(
            config=config,
            dims=make_dims(config, batch_size=1, sequence_length=_LENGTH),
            mesh=mtf.Mesh(graph, "mesh"),
            activation_dtype=tf.float32,
            initializer_seed=0,
        )
        shape = mtf.Shape([build.dims.batch, build.dims.sequence])
        tokens = mtf.zeros(build.mesh, shape, dtype=tf.int32)
        names = ("input_word_ids", "input_mask", "input_type_ids")
        build_model(build, dict.fromkeys(names, tokens))
        return count_groups(graph)


def _stand_in(getter, name, shape, dtype, **settings):
    # For the saved copy behind a mesh variable, whose operations for initial values and
    # assignment take most of the time of building a graph.
    del getter, settings
    return tf.placeholder(dtype, shape, name)
