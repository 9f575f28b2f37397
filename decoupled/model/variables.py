"""Every variable of a model, declared once; no TensorFlow is needed to import this.

Only this module defines a variable's name, named dimensions, initializer and role. The
mesh graph, the optimizer, the rules of checkpoints, the exports, the converters, the
table of parameters and the plan read them from `declare`. The names are BERT's
(google-research/bert, modeling.py), which the released RemBERT uses as well.
"""

import enum
import fnmatch
import functools
import itertools
import math
import re
import types
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from decoupled.configs import ModelConfig
from decoupled.configs.model import IDENTITY
from decoupled.core.errors import UserError

T = TypeVar("T")

WORD_EMBEDDINGS = "bert/embeddings/word_embeddings"
POSITION_EMBEDDINGS = "bert/embeddings/position_embeddings"
TYPE_EMBEDDINGS = "bert/embeddings/token_type_embeddings"
EMBEDDING_NORM = "bert/embeddings/LayerNorm"
PROJECTION = "bert/encoder/embedding_hidden_mapping_in"
POOLER = "bert/pooler/dense"
TRANSFORM = "cls/predictions/transform/dense"
TRANSFORM_NORM = "cls/predictions/transform/LayerNorm"
OUTPUT_EMBEDDING = "cls/predictions/output_embedding"
OUTPUT_BIAS = "cls/predictions/output_bias"
TASK_WEIGHTS = "output_weights"
TASK_BIAS = "output_bias"
GLOBAL_STEP = "global_step"

# Initializers, beside IDENTITY. The values of a matrix are drawn with
# `ModelConfig.initializer_range`.
TRUNCATED_NORMAL, ZEROS, ONES = "truncated normal", "zeros", "ones"

# Dimension of a variable -> the field of ModelConfig that is its size. The columns of
# the attention kernels are heads times head size.
SIZES = {
    "vocab": "vocab_size",
    "input_embedding": "input_embedding_size",
    "output_embedding": "output_embedding_size",
    "hidden": "hidden_size",
    "heads": "num_heads",
    "head_size": "head_size",
    "heads_and_size": "hidden_size",
    "intermediate": "intermediate_size",
    "positions": "max_positions",
    "token_types": "type_vocab_size",
    "pooled": "hidden_size",
}
# Layout rules split the attention kernels of a checkpoint, which are two-dimensional as
# in BERT, by the rule for heads.
_MESH_NAMES = {"heads_and_size": "heads"}


class Role(enum.Enum):
    """What a variable is for; it decides which runs restore the variable."""

    INPUT_EMBEDDING = "input embedding"
    ENCODER = "encoder"
    POOLER = "pooler"
    MLM_HEAD = "masked-LM head"
    OUTPUT_EMBEDDING = "output embedding"
    TASK_HEAD = "task head"


# Groups of the table of parameters -> role.
GROUPS = {
    "word embeddings": Role.INPUT_EMBEDDING,
    "position embeddings": Role.INPUT_EMBEDDING,
    "type embeddings": Role.INPUT_EMBEDDING,
    "embedding layer norm": Role.INPUT_EMBEDDING,
    "input projection": Role.INPUT_EMBEDDING,
    "encoder layers": Role.ENCODER,
    "pooler": Role.POOLER,
    "MLM transform": Role.MLM_HEAD,
    "output embedding": Role.OUTPUT_EMBEDDING,
    "output bias": Role.MLM_HEAD,
    "task layer": Role.TASK_HEAD,
}

Shape = tuple[int, ...]


class Dim(NamedTuple):
    """A dimension as layout rules call it, and its size."""

    name: str
    size: int


class Variable(NamedTuple):
    """A matrix or vector of the model.

    initializer: `TRUNCATED_NORMAL`, `IDENTITY`, `ZEROS` or `ONES`. group: one of
      `GROUPS`.
    row_partitioned: whether training may keep the rows of a large matrix in several
      variables (`decoupled.training.partitioned_tables`); its gradient must be a
      product.
    scale: by which the values of `TRUNCATED_NORMAL` are multiplied.
    """

    name: str
    dims: tuple[Dim, ...]
    initializer: str
    group: str
    row_partitioned: bool = False
    scale: float = 1.0

    @property
    def shape(self) -> Shape:
        return tuple(dim.size for dim in self.dims)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def role(self) -> Role:
        return GROUPS[self.group]

    @property
    def is_decayed(self) -> bool:
        """Whether weight decay applies: not to biases and layer norms, as in BERT."""
        return self.initializer in (TRUNCATED_NORMAL, IDENTITY)


class Head(NamedTuple):
    """What sits on the encoder.

    masked_lm: the output embedding and what is before it. pooler: the tanh layer on
    [CLS]. labels: rows of a task's last layer, which reads the pooled vector where
    there is a pooler and else every token's; 0 without a task.
    """

    masked_lm: bool = False
    pooler: bool = False
    labels: int = 0


NO_HEAD = Head()
MASKED_LM = Head(masked_lm=True)
# Every variable that a model can have.
ALL_HEADS = Head(masked_lm=True, pooler=True, labels=1)
# A score for the first token of an answer and one for the last.
SPANS = Head(labels=2)


@functools.lru_cache(maxsize=128)
def declare(config: ModelConfig, head: Head) -> Mapping[str, Variable]:
    """All variables of a model and its head, by name."""
    variables = {v.name: v for v in _variables(config, head)}
    if config.initial_values:
        matrices = [v.name for v in _variables(config, ALL_HEADS) if v.is_decayed]
        values = by_pattern(
            "ModelConfig.initial_values", config.initial_values, matrices
        )
        for name in variables.keys() & values.keys():
            variables[name] = _with_values(variables[name], values[name])
    return types.MappingProxyType(variables)


def _with_values(variable: Variable, value: float | str) -> Variable:
    if value != IDENTITY:
        return variable._replace(scale=float(value))
    rows, columns = variable.shape
    if rows != columns:
        raise UserError(
            f"ModelConfig.initial_values: {variable.name} is [{rows}, {columns}]; only "
            f"a square matrix can be the {IDENTITY}"
        )
    return variable._replace(initializer=IDENTITY)


def by_pattern(
    setting: str, patterns: Mapping[str, T], names: Iterable[str]
) -> dict[str, T]:
    """name -> the value of the pattern, like a shell's, that it matches."""
    names, values, pattern_of = list(names), {}, {}
    for pattern, value in patterns.items():
        matches = fnmatch.filter(names, pattern)
        if not matches:
            raise UserError(
                f"{setting}: {pattern!r} matches none of {', '.join(summary(names))}"
            )
        for name in matches:
            if name in pattern_of:
                raise UserError(
                    f"{setting}: {pattern_of[name]!r} and {pattern!r} both match {name}"
                )
            pattern_of[name], values[name] = pattern, value
    return values


def summary(names: Iterable[str]) -> list[str]:
    """Names in their order, with one name for the same variable of all layers."""
    return list(dict.fromkeys(re.sub(r"/layer_\d+/", "/layer_*/", n) for n in names))


def _variables(config, head) -> Iterator[Variable]:
    parts = [_input_embedding(config), _layers(config)]
    if head.pooler:
        parts.append(_dense(config, "pooler", POOLER, "hidden", "pooled"))
    if head.masked_lm:
        output_table = [] if config.coupled else [output_matrix(config)]
        bias = Variable(
            OUTPUT_BIAS, (dimension(config, "vocab"),), ZEROS, "output bias"
        )
        parts += [_transform(config), output_table, [bias]]
    if head.labels:
        parts.append(_task_layer(config, head))
    return itertools.chain.from_iterable(parts)


def shapes(config: ModelConfig, head: Head) -> dict[str, Shape]:
    """Name -> shape of `declare`."""
    return {name: v.shape for name, v in declare(config, head).items()}


def foreign(config: ModelConfig, names: Iterable[str]) -> list[str]:
    """The names of encoder variables that this model does not have, sorted."""
    encoder = declare(config, Head(pooler=True))
    return sorted(n for n in names if n.startswith("bert/") and n not in encoder)


def layer_name(index: int) -> str:
    """The prefix of the names of a layer's variables, without a slash at the end."""
    return f"bert/encoder/layer_{index}"


def dimension(config: ModelConfig, name: str) -> Dim:
    """The dimension of a key of `SIZES`."""
    return Dim(_MESH_NAMES.get(name, name), getattr(config, SIZES[name]))


def output_matrix(config: ModelConfig) -> Variable:
    """The output embedding, in which its variants differ: [vocab, E_out].

    In a coupled model it is the table of word embeddings.
    """
    if config.coupled:
        return next(v for v in _input_embedding(config) if v.name == WORD_EMBEDDINGS)
    group, columns = "output embedding", "output_embedding"
    table = _matrix(config, group, OUTPUT_EMBEDDING, "vocab", columns)
    return table._replace(row_partitioned=True)


def initial_seed(name: str, seed: int) -> list[int]:
    """The two seeds of a kernel's values: a pure function of name and run."""
    return [seed, zlib.crc32(name.encode("utf-8")) & 0x7FFFFFFF]


# The name of a slot of the optimizer is the variable's name and one of these suffixes.
_MOMENTS = ("/adam_m", "/adam_v")
# Of Adafactor, which earlier versions had (mesh_tensorflow/optimize.py).
_EARLIER_SLOTS = ("_slot_m", "_slot_v", "_slot_vr", "_slot_vc")


def slots(name: str) -> list[str]:
    """The names of the optimizer's slots for a variable, its two moments."""
    return [name + suffix for suffix in _MOMENTS]


def is_moment(name: str) -> bool:
    """Whether a name in a checkpoint is that of a slot of the optimizer."""
    return name.endswith(_MOMENTS)


def is_slot(name: str) -> bool:
    """Whether it is that of a slot, also of the optimizer of an earlier version."""
    return is_moment(name) or name.endswith(_EARLIER_SLOTS)


def _input_embedding(config):
    width = dimension(config, "input_embedding")
    for group, name, rows in (
        ("word embeddings", WORD_EMBEDDINGS, "vocab"),
        ("position embeddings", POSITION_EMBEDDINGS, "positions"),
        ("type embeddings", TYPE_EMBEDDINGS, "token_types"),
    ):
        yield _matrix(config, group, name, rows, "input_embedding")
    yield from _layer_norm("embedding layer norm", EMBEDDING_NORM, width)
    if config.projects_input:
        group = "input projection"
        yield from _dense(config, group, PROJECTION, "input_embedding", "hidden")


def _layers(config) -> Iterator[Variable]:
    group, hidden = "encoder layers", dimension(config, "hidden")
    for layer in map(layer_name, range(config.num_layers)):
        attention, columns = f"{layer}/attention", "heads_and_size"
        for part in ("query", "key", "value"):
            name = f"{attention}/self/{part}"
            yield from _dense(config, group, name, "hidden", columns)
        yield from _dense(config, group, f"{attention}/output/dense", columns, "hidden")
        yield from _layer_norm(group, f"{attention}/output/LayerNorm", hidden)
        width = "intermediate"
        yield from _dense(config, group, f"{layer}/{width}/dense", "hidden", width)
        yield from _dense(config, group, f"{layer}/output/dense", width, "hidden")
        yield from _layer_norm(group, f"{layer}/output/LayerNorm", hidden)


def _transform(config):
    """H -> E_out, as BERT has it or as paper footnote 3 has it.

    The footnote does not say what equal widths have; here they have no projection
    unless `ModelConfig.project_equal_output_widths` is set.
    """
    group, width = "MLM transform", "output_embedding"
    if config.projects_output:
        yield from _dense(config, group, TRANSFORM, "hidden", width)
    if config.mlm_transform == "dense_activation_norm":
        yield from _layer_norm(group, TRANSFORM_NORM, dimension(config, width))


def _task_layer(config, head):
    labels = Dim("labels", head.labels)
    input_dim = dimension(config, "pooled" if head.pooler else "hidden")
    yield Variable(TASK_WEIGHTS, (labels, input_dim), TRUNCATED_NORMAL, "task layer")
    yield Variable(TASK_BIAS, (labels,), ZEROS, "task layer")


def _matrix(config, group, name, rows, columns):
    dims = (dimension(config, rows), dimension(config, columns))
    return Variable(name, dims, TRUNCATED_NORMAL, group)


def _dense(config, group, name, inputs, outputs):
    yield _matrix(config, group, f"{name}/kernel", inputs, outputs)
    yield Variable(f"{name}/bias", (dimension(config, outputs),), ZEROS, group)


def _layer_norm(group, name, width):
    yield Variable(f"{name}/gamma", (width,), ONES, group)
    yield Variable(f"{name}/beta", (width,), ZEROS, group)
