"""Changes of the embeddings of a trained model: the same weights in another form.

Some change nothing that the model computes (untie, fold, insert a projection). The
others say how much they change (tie, factorise). The optimizer's slots are kept where
they still belong to their variable, so that pre-training can go on.
"""

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from decoupled.configs import ModelConfig
from decoupled.core.errors import UserError
from decoupled.core.files import check_target
from decoupled.core.release import tf
from decoupled.exports.interop.conversion import (
    Contents,
    kept_data,
    write_converted_folder,
)
from decoupled.model import variables as names
from decoupled.runs.run_folder import ModelDir
from decoupled.runs.saved_run import INPUT, OUTPUT, Model, open_model
from decoupled.training.checkpoint_files import aligned_empty

# The command whose run can go on with other embeddings.
_RESUMABLE_COMMAND = "pretrain"
_ROWS = 8192
_TABLES = (names.WORD_EMBEDDINGS, names.POSITION_EMBEDDINGS, names.TYPE_EMBEDDINGS)


class Change(NamedTuple):
    """A model in its new form.

    model: its sizes. values: what is new or has changed, by name. slots: name of a new
    variable -> the variable whose slots it gets; the others of `values` get zeros.
    reset_names: of variables whose slots become zeros, though they keep their values.
    about: for conversion.json. notes: the same in words.
    """

    model: ModelConfig
    values: Mapping[str, Callable[[], np.ndarray]] = {}
    slots: Mapping[str, str] = {}
    reset_names: tuple[str, ...] = ()
    about: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()


def change_embeddings(
    model_dir: str,
    checkpoint: str | None,
    new_model_dir: str,
    make_change: Callable[[Model], Change],
) -> dict[str, Any]:
    """Writes the model in another form; returns the content of conversion.json.

    Of pre-training, the slots are kept, and config.json is that of the run with other
    sizes, so that it can go on. Any other model becomes a conversion without slots.
    """
    check_target(new_model_dir)
    model = open_model(model_dir, checkpoint, verify=False)
    change = make_change(model)
    weights = model.weights
    old_shapes = names.shapes(model.config, names.ALL_HEADS)
    new_shapes = names.shapes(change.model, names.ALL_HEADS)
    kept_names = [n for n in weights if n in new_shapes or n not in old_shapes]
    shapes = {name: weights.shapes[name] for name in kept_names}
    shapes |= {name: new_shapes[name] for name in change.values}
    slots, notes = _slots(model, change, kept_names)
    description, rate_notes = None, []
    if model.description.command == _RESUMABLE_COMMAND:
        description, rate_notes = _without_lost_rates(model.description, shapes)
    task = model.description.task

    def value_of(name: str) -> np.ndarray | tf.Tensor:
        if name in change.values:
            return change.values[name]()
        if name not in slots:
            return weights.read_tensor(name)
        source, shape = slots[name]
        return weights.read_tensor(source) if source else np.zeros(shape, np.float32)

    return write_converted_folder(
        new_model_dir,
        Contents(
            source=weights.path,
            kind="model with other embeddings",
            model=change.model,
            vocabulary=model.vocabulary,
            task=task,
            shapes=shapes,
            value_of=value_of,
            step=weights.global_step or 0,
            about={
                **change.about,
                "encoder_only": names.OUTPUT_BIAS not in shapes and task is None,
                "notes": [*change.notes, *notes, *rate_notes],
                "optimizer_slots": len(slots),
            },
            data=kept_data(model),
            slots=list(slots),
            run=model.folder,
            description=description,
        ),
    )


def _without_lost_rates(
    description: ModelDir, shapes: Mapping[str, names.Shape]
) -> tuple[ModelDir, list[str]]:
    """A description without the rates of variables that are gone, and notes on them."""
    rates = description.data.get("rates") or {}
    kept_rates = {name: rates[name] for name in rates if fnmatch.filter(shapes, name)}
    data = {n: value for n, value in description.data.items() if n != "rates"}
    notes = [
        f"OptimizerConfig.rates: leave {pattern!r} out, which no variable has any more"
        for pattern in rates
        if pattern not in kept_rates
    ]
    data |= {"rates": kept_rates} if kept_rates else {}
    return description._replace(data=data), notes


def _slots(
    model: Model, change: Change, kept_names: list[str]
) -> tuple[dict[str, tuple[str | None, names.Shape]], list[str]]:
    """Name of a slot -> the slot that it copies, or None for zeros, and its shape; and
    notes on the slots."""
    if not _has_slots(model):
        return {}, []
    stored_shapes = model.weights.shapes
    # A variable that was frozen has no slots to copy.
    copied_names = {
        name
        for name, source in change.slots.items()
        if not stored_shapes.keys().isdisjoint(names.slots(source))
    }
    zero_names = {*change.values, *change.reset_names} - copied_names
    shapes, result = names.shapes(change.model, names.ALL_HEADS), {}
    for name in dict.fromkeys([*kept_names, *change.values]):
        source = change.slots.get(name, name)
        if name in zero_names:
            result |= {s: (None, shapes[name]) for s in names.slots(name)}
            continue
        for slot, old in zip(names.slots(name), names.slots(source), strict=True):
            if old in stored_shapes:
                result[slot] = (old, stored_shapes[old])
    if not zero_names:
        return result, []
    return result, [f"slots are zero: {', '.join(sorted(zero_names))}"]


def _has_slots(model: Model) -> bool:
    """Whether a run can go on with slots of its optimizer."""
    can_go_on = model.description.command == _RESUMABLE_COMMAND
    return can_go_on and any(map(names.is_moment, model.weights.shapes))


def untie(model: Model) -> Change:
    """The output embedding becomes a copy of the input embedding; exact."""
    _check_head(model)
    if not model.config.coupled:
        raise UserError(f"{model.folder}: its embeddings are already untied")
    words = names.WORD_EMBEDDINGS
    return Change(
        _resized(model.config, coupled=False),
        {names.OUTPUT_EMBEDDING: lambda: model.weights.read_tensor(words)},
        slots={names.OUTPUT_EMBEDDING: words},
    )


def tie(model: Model, kept_kind: str) -> Change:
    """One of the two tables becomes both; `kept_kind` is INPUT or OUTPUT."""
    _check_head(model)
    config = model.config
    if config.coupled:
        raise UserError(f"{model.folder}: its embeddings are already tied")
    if config.input_embedding_size != config.output_embedding_size:
        raise UserError(
            f"{model.folder}: its tables have widths {config.input_embedding_size} and "
            f"{config.output_embedding_size}; only equal widths can be tied"
        )
    tables = {kind: model.embedding(kind) for kind in (INPUT, OUTPUT)}
    kept_table = tables.pop(kept_kind)
    ((lost_kind, lost_table),) = tables.items()
    squares = [
        (_squares(a - b), _squares(b))
        for a, b in zip(row_blocks(kept_table), row_blocks(lost_table), strict=True)
    ]
    error = math.sqrt(np.divide(*np.sum(squares, axis=0)))
    return Change(
        _resized(config, coupled=True),
        {names.WORD_EMBEDDINGS: lambda: kept_table},
        about={"kept": kept_kind, "relative_frobenius": error},
        notes=(
            f"both are the {kept_kind} embedding; the {lost_kind} embedding differs "
            f"from it by {error:.4g} of its norm",
        ),
    )


def fold(model: Model) -> Change:
    """All matrices behind the encoder become one [V, H]; exact."""
    _check_head(model)
    config, weights = model.config, model.weights
    if config.coupled:
        raise UserError(f"{model.folder}: its embeddings are tied; untie them first")
    _check_linear(model)
    if not config.projects_output:
        raise UserError(f"{model.folder}: its output embedding is already one [V, H]")
    # Of the hidden vector h, each piece's score is row @ (matrix @ h + shift) + bias.
    matrix = weights[f"{names.TRANSFORM}/kernel"].T.astype(np.float64)
    shift = weights[f"{names.TRANSFORM}/bias"].astype(np.float64)
    table = names.OUTPUT_EMBEDDING

    def bias() -> np.ndarray:
        parts = [block @ shift for block in row_blocks(weights[table])]
        return weights[names.OUTPUT_BIAS] + np.concatenate(parts).astype(np.float32)

    return Change(
        _resized(
            config,
            output_embedding_size=config.hidden_size,
            project_equal_output_widths=False,
        ),
        {
            table: lambda: _times(weights[table], matrix),
            names.OUTPUT_BIAS: bias,
        },
        # The bias is shifted by a constant, which does not change its gradient.
        slots={names.OUTPUT_BIAS: names.OUTPUT_BIAS},
    )


def insert_projection(model: Model) -> Change:
    """A projection before the output embedding, the identity; exact."""
    _check_head(model)
    _check_linear(model)
    config = model.config
    if config.projects_output:
        raise UserError(
            f"{model.folder}: a projection from H = {config.hidden_size} to E_out = "
            f"{config.output_embedding_size} is there already"
        )
    width, kernel = config.hidden_size, f"{names.TRANSFORM}/kernel"
    return Change(
        _resized(config, project_equal_output_widths=True),
        {
            kernel: lambda: np.eye(width, dtype=np.float32),
            f"{names.TRANSFORM}/bias": lambda: np.zeros(width, np.float32),
        },
    )


def reset_slots(model: Model) -> Change:
    """The same model. The slots of its output embedding and of the layer before that
    become zero, as `fold` makes them: its control."""
    _check_head(model)
    if not _has_slots(model):
        raise UserError(
            f"{model.weights.path}: has no slots of an optimizer with which "
            "pre-training goes on; give a checkpoint that pretrain wrote"
        )
    layer = [n for n in model.weights if n.startswith(f"{names.TRANSFORM}/")]
    matrix = names.output_matrix(model.config).name
    return Change(model.config, reset_names=(*layer, matrix))


def factorise(model: Model, width: int) -> Change:
    """Word, position and type embeddings of a smaller width, and a projection.

    What the encoder gets of a token is the layer norm of a sum of three rows. The norm
    subtracts the mean of a row's elements, so that the rows may have theirs subtracted;
    and it divides by their root mean square, so that rows of the same root mean square
    have equal parts of epsilon. The sums of all words, positions and types are
    projected on their first width - 1 principal directions, those of the singular value
    decomposition of all sums without subtracting their mean. These fill the vectors of
    the new width whose elements sum to 0. The new projection turns them back, and has
    the old scale, shift and projection in it.
    """
    config, weights = model.config, model.weights
    old_width, hidden = config.input_embedding_size, config.hidden_size
    if config.coupled and names.OUTPUT_BIAS in weights:
        raise UserError(f"{model.folder}: its embeddings are tied; untie them first")
    if width >= min(old_width, hidden):
        raise UserError(
            f"--input_embedding_size: {width} is not below the model's "
            f"input_embedding_size = {old_width} and hidden_size = {hidden}"
        )
    weights.check(config, names.NO_HEAD)
    means = [weights[name].mean(0, dtype=np.float64) for name in _TABLES]
    # Positions and types have mean 0 in the sums, and words have their means.
    shifts = dict(
        zip(_TABLES, (means[1] + means[2], -means[1], -means[2]), strict=True)
    )

    def blocks(name: str) -> Iterator[np.ndarray]:
        for block in row_blocks(weights[name]):
            block = block + shifts[name]
            yield block - block.mean(1, keepdims=True)

    moments = {
        name: sum(block.T @ block for block in blocks(name)) / weights.shapes[name][0]
        for name in _TABLES
    }
    values, directions = np.linalg.eigh(sum(moments.values()))
    directions = directions[:, ::-1][:, : width - 1]
    errors = {
        group: _relative_error(moment, directions)
        for group, moment in (
            ("sums", sum(moments.values())),
            *((name.rpartition("/")[2], moments[name]) for name in _TABLES),
        )
    }
    share = 1 - errors["sums"] ** 2
    # The first column of Q is parallel to (1, 1, ...), and all others sum to 0.
    ones_first = np.eye(width)
    ones_first[:, 0] = 1
    basis = directions @ np.linalg.qr(ones_first)[0][:, 1:].T
    scale = math.sqrt(width / old_width)
    kernel = basis.T / scale * weights[f"{names.EMBEDDING_NORM}/gamma"]
    bias = weights[f"{names.EMBEDDING_NORM}/beta"].astype(np.float64)
    if config.projects_input:
        old_kernel = weights[f"{names.PROJECTION}/kernel"]
        kernel, bias = kernel @ old_kernel, bias @ old_kernel
        bias = bias + weights[f"{names.PROJECTION}/bias"]

    def table(name: str) -> np.ndarray:
        result, start = aligned_empty((weights.shapes[name][0], width)), 0
        for block in blocks(name):
            result[start : start + len(block)] = block @ basis * scale
            start += len(block)
        return result

    return Change(
        _resized(config, input_embedding_size=width, coupled=False),
        {
            **{name: lambda name=name: table(name) for name in _TABLES},
            f"{names.EMBEDDING_NORM}/gamma": lambda: np.ones(width, np.float32),
            f"{names.EMBEDDING_NORM}/beta": lambda: np.zeros(width, np.float32),
            f"{names.PROJECTION}/kernel": lambda: kernel.astype(np.float32),
            f"{names.PROJECTION}/bias": lambda: bias.astype(np.float32),
        },
        about={"relative_frobenius": errors, "share_of_spectrum": share},
        notes=(
            f"{width - 1} of {len(values) - 1} directions have {share:.2%} of the "
            "squared singular values",
            "relative Frobenius error: "
            + ", ".join(f"{group} {error:.4g}" for group, error in errors.items()),
        ),
    )


def _resized(config: ModelConfig, **sizes: Any) -> ModelConfig:
    # Patterns of initial values could name variables that are gone.
    return dataclasses.replace(config, initial_values={}, **sizes)


def _relative_error(moment: np.ndarray, directions: np.ndarray) -> float:
    """The relative Frobenius error of rows that are projected on some directions, from
    the mean of the outer products of the rows."""
    kept_part, total = np.trace(directions.T @ moment @ directions), np.trace(moment)
    return math.sqrt(max(0.0, 1 - kept_part / total)) if total else 0.0


def _check_head(model: Model) -> None:
    if names.OUTPUT_BIAS not in model.weights:
        raise UserError(
            f"{model.weights.path}: has no masked-LM head with an output embedding; "
            "take the pre-trained model"
        )
    model.weights.check(model.config, names.MASKED_LM)


def _check_linear(model: Model) -> None:
    if model.config.mlm_transform != "projection":
        raise UserError(
            f"{model.folder}: its masked-LM head has an activation and a layer norm "
            "(mlm_transform); only a linear head is the product of its matrices"
        )


def row_blocks(table: np.ndarray) -> Iterator[np.ndarray]:
    """The table some rows at a time, each copied to float64."""
    for start in range(0, len(table), _ROWS):
        yield table[start : start + _ROWS].astype(np.float64)


def _times(table: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    result, start = aligned_empty((len(table), matrix.shape[1])), 0
    for block in row_blocks(table):
        result[start : start + len(block)] = block @ matrix
        start += len(block)
    return result


def _squares(block: np.ndarray) -> float:
    return float(np.square(block).sum())
