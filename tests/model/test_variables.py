"""The declared variables are those that graphs, optimizers and checkpoints have."""

import ast
import dataclasses
import itertools
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import decoupled
from decoupled.core.compat import tf
from decoupled.core.errors import UserError
from decoupled.exports.interop.conversion import initial_value
from decoupled.model.variables import (
    IDENTITY,
    MASKED_LM,
    NO_HEAD,
    ONES,
    SPANS,
    TRUNCATED_NORMAL,
    ZEROS,
    Head,
    Role,
    declare,
    foreign,
    is_moment,
    is_slot,
    shapes,
    slots,
)
from decoupled.ops.row_partitions import saved_variables
from decoupled.tasks.classification import Classification
from decoupled.tasks.mlm import MaskedLM
from decoupled.tasks.qa import ExtractiveQA
from decoupled.tasks.tagging import Tagging
from decoupled.training.graph import Network, build_predictions, build_step
from tests.helpers import MASKING, adamw, masked_lm_features, tiny_model
from tests.model.graphs import initial_weights, masked_lm_loss
from tests.training.runs import ONE_DEVICE, graph_config

LENGTH = MASKING.sequence_length
LABELS = ["a", "b", "c"]
MODELS = {
    "decoupled": {"num_layers": 2},
    "coupled": {"coupled": True, "output_embedding_size": 8},
    "plain projection": {"mlm_transform": "projection"},
    "no projections": {
        "mlm_transform": "projection",
        "input_embedding_size": 16,
        "output_embedding_size": 16,
    },
    "projected at equal widths": {
        "input_embedding_size": 16,
        "project_equal_widths": True,
        "mlm_transform": "projection",
        "output_embedding_size": 16,
        "project_equal_output_widths": True,
    },
}
TASKS = {
    "masked LM": (MaskedLM(MASKING), MASKED_LM),
    "classification": (
        Classification("c", LABELS, LENGTH, 0.0),
        Head(pooler=True, labels=3),
    ),
    "tagging": (Tagging("t", LABELS, LENGTH, 0.0), Head(labels=3)),
    "questions": (ExtractiveQA("q", LENGTH, 0.0), SPANS),
}


def features():
    """Of all tasks; each is given its own."""
    made = masked_lm_features()
    zeros = np.zeros(len(made["input_mask"]), np.int32)
    positions = {"start_positions": zeros, "end_positions": zeros}
    words = {"word_starts": made["input_mask"]}
    tokens = {n: made[n] for n in ("input_word_ids", "input_mask", "input_type_ids")}
    return {
        "masked LM": made,
        "classification": {**tokens, "label_ids": zeros},
        "tagging": {**tokens, **words, "label_ids": made["input_type_ids"]},
        "questions": {**tokens, **positions},
    }


def constants(task):
    return {name: tf.constant(x) for name, x in features()[task].items()}


# Every model with its masked-LM head; the heads of tasks on the smallest.
@pytest.mark.parametrize(
    "model, task",
    [
        *itertools.product(MODELS, ["masked LM"]),
        *itertools.product(
            ["no projections"], ["classification", "tagging", "questions"]
        ),
    ],
)
def test_a_graph_has_the_weights_that_are_declared(model, task):
    config = tiny_model(**MODELS[model])
    network = Network(TASKS[task][0], config, ONE_DEVICE)
    with tf.Graph().as_default():
        _, lowering = build_predictions(network, constants(task))
    trainable = lowering.graph.trainable_variables
    weights = {v.name: tuple(map(tuple, v.shape.dims)) for v in trainable}
    declared = declare(config, TASKS[task][1])
    assert weights == {name: v.dims for name, v in declared.items()}
    assert TASKS[task][0].head == TASKS[task][1]


def test_all_else_in_a_checkpoint_is_a_slot_or_the_step():
    with tf.Graph().as_default():
        build_step(graph_config(optimizer=adamw()), constants("masked LM"))
        saved = set(saved_variables())
    weights = set(declare(tiny_model(), MASKED_LM))
    others = saved - weights - {"global_step"}
    assert others == {slot for weight in weights for slot in slots(weight)}
    assert all(map(is_slot, others)) and all(map(is_moment, others))
    assert not any(map(is_slot, weights | {"global_step"}))


@pytest.mark.parametrize(
    ("name", "role", "initializer"),
    [
        ("bert/embeddings/word_embeddings", "input embedding", TRUNCATED_NORMAL),
        ("bert/embeddings/position_embeddings", "input embedding", TRUNCATED_NORMAL),
        ("bert/embeddings/LayerNorm/gamma", "input embedding", ONES),
        (
            "bert/encoder/embedding_hidden_mapping_in/bias",
            "input embedding",
            ZEROS,
        ),
        (
            "bert/encoder/layer_0/attention/self/query/kernel",
            "encoder",
            TRUNCATED_NORMAL,
        ),
        ("bert/encoder/layer_0/attention/self/query/bias", "encoder", ZEROS),
        ("bert/encoder/layer_1/output/LayerNorm/beta", "encoder", ZEROS),
        ("bert/pooler/dense/kernel", "pooler", TRUNCATED_NORMAL),
        ("cls/predictions/transform/LayerNorm/gamma", "masked-LM head", ONES),
        ("cls/predictions/output_bias", "masked-LM head", ZEROS),
        ("cls/predictions/output_embedding", "output embedding", TRUNCATED_NORMAL),
        ("output_weights", "task head", TRUNCATED_NORMAL),
        ("output_bias", "task head", ZEROS),
    ],
)
def test_roles_initializers_and_decay(name, role, initializer):
    """Biases and layer norms are not decayed."""
    head = Head(pooler=True, labels=3)._replace(masked_lm=True)
    variable = declare(tiny_model(num_layers=2), head)[name]
    assert (variable.role, variable.initializer) == (Role(role), initializer)
    assert variable.is_decayed == (initializer == TRUNCATED_NORMAL)


def test_names_of_an_encoder_that_a_model_does_not_have():
    names = ["bert/encoder/layer_1/output/dense/bias", "bert/adapter", "other/adapter"]
    wider = shapes(tiny_model(num_layers=1), Head(pooler=True, labels=3))
    assert foreign(tiny_model(num_layers=1), [*names, *wider]) == sorted(names[:2])
    assert foreign(tiny_model(num_layers=2), names) == ["bert/adapter"]


def test_no_tensorflow_is_needed():
    code = (
        "import decoupled.model.variables, sys; assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_names_are_spelled_out_in_one_file():
    """A variable that is renamed there is renamed everywhere."""
    package = pathlib.Path(decoupled.__file__).parent
    own = package / "model" / "variables.py"
    parts = ("/embeddings/", "bert/encoder", "bert/pooler", "cls/predictions", "adam_m")
    result = []
    for path in set(package.rglob("*.py")) - {own}:
        code = path.read_text(encoding="utf-8")
        if not any(part in code for part in parts):
            continue
        for node in ast.walk(ast.parse(code)):
            text = node.value if isinstance(node, ast.Constant) else None
            # Docstrings are sentences.
            if isinstance(text, str) and not any(c.isspace() for c in text):
                result += [f"{path}: {text}" for part in parts if part in text]
    assert result == []


VALUES = {"*/query/kernel": 2, "cls/predictions/transform/dense/kernel": "identity"}
SQUARE = tiny_model(
    num_layers=2, output_embedding_size=16, initial_values=VALUES
)  # fmt: skip


def test_matrices_have_initial_values_of_their_own():
    """Drawn for training, and where a conversion fills in what a file lacks."""
    plain = dataclasses.replace(SQUARE, initial_values={})
    first, multiplied = (
        initial_weights(model, masked_lm_loss) for model in (plain, SQUARE)
    )
    kernel = "cls/predictions/transform/dense/kernel"
    for name, variable in declare(SQUARE, MASKED_LM).items():
        expected = first[name] * (2 if name.endswith("query/kernel") else 1)
        if name == kernel:
            expected = np.eye(16)
        np.testing.assert_array_equal(multiplied[name], expected, err_msg=name)
        assert variable.is_decayed == (
            variable.initializer in (TRUNCATED_NORMAL, IDENTITY)
        )
        if name.endswith("query/kernel"):
            converted = initial_value(variable, SQUARE)
            assert converted.std() == pytest.approx(multiplied[name].std(), rel=0.2)
    np.testing.assert_array_equal(
        initial_value(declare(SQUARE, MASKED_LM)[kernel], SQUARE), np.eye(16)
    )


def test_models_with_equal_initial_values_are_one():
    turned = dict(reversed(VALUES.items()))
    other = dataclasses.replace(SQUARE, initial_values=turned)
    assert other == SQUARE and hash(other) == hash(SQUARE)
    assert dataclasses.replace(SQUARE, initial_values={}) != SQUARE
    # Fine-tuning has the values of a checkpoint, and may have fewer layers.
    assert SQUARE.with_layers(1) == tiny_model(num_layers=1, output_embedding_size=16)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"*/layer_2/*": 2.0}, "matches none of bert/embeddings/word_embeddings, .*"),
        # Biases are zeros.
        (
            {"*/query/bias": 2.0},
            "matches none of .*layer_\\*/attention/self/query/kernel",
        ),
        (
            {"*word_embeddings": "identity"},
            r"word_embeddings is \[48, 8\]; only a square",
        ),
        (
            {"*/dense/*": 2.0, "*/output/*": 1},
            "both match bert/encoder/layer_0/attention",
        ),
    ],
)
def test_initial_values_that_fit_no_matrix_are_refused(values, message):
    with pytest.raises(UserError, match=f"ModelConfig.initial_values: .*{message}"):
        declare(dataclasses.replace(SQUARE, initial_values=values), NO_HEAD)


@pytest.mark.parametrize("value", [-1.0, float("nan"), "eye", None, True])
def test_initial_values_are_numbers_or_the_identity(value):
    with pytest.raises(UserError, match="is not the pattern .* or 'identity'"):
        tiny_model(initial_values={"*": value})
