"""Embeddings in another form: equal logits, or the error that is said."""

import dataclasses
import json
import os

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.exports.interop import surgery
from decoupled.exports.interop.surgery import change_embeddings
from decoupled.model.variables import (
    MASKED_LM,
    OUTPUT_BIAS,
    OUTPUT_EMBEDDING,
    POSITION_EMBEDDINGS,
    TRANSFORM,
    TYPE_EMBEDDINGS,
    WORD_EMBEDDINGS,
)
from decoupled.runs.saved_run import open_model
from decoupled.training.checkpoints import check_resumable
from tests.exports.models import (
    finetuned_weights,
    model_config,
    pretrained_weights,
    random_batch,
    write_model_dir,
)
from tests.exports.reference import Reference

TABLES = (WORD_EMBEDDINGS, POSITION_EMBEDDINGS, TYPE_EMBEDDINGS)
LINEAR = model_config(mlm_transform="projection")
AT_H = dataclasses.replace(LINEAR, output_embedding_size=8)
COUPLED = model_config(coupled=True, output_embedding_size=6)
COUPLED_AT_H = dataclasses.replace(AT_H, coupled=True, input_embedding_size=8)
KERNEL = f"{TRANSFORM}/kernel"


@pytest.fixture
def write(vocabulary, tmp_path):
    """Writes a run, with the slots of AdamW unless others are given; its folder."""

    def write_run(
        config, weights=None, slots=("/adam_m", "/adam_v"), task=None, data=None
    ):
        weights = weights or pretrained_weights(config)
        generator = np.random.default_rng(1)
        moments = {
            f"{name}{slot}": generator.random(value.shape).astype(np.float32)
            for name, value in weights.items()
            for slot in slots
        }
        arrays = {**weights, **moments}
        return write_model_dir(tmp_path / "run", vocabulary, config, arrays, task, data)

    return write_run


def logits(folder):
    """Of a batch, by the network of the tests."""
    model = open_model(folder)
    model.weights.check(model.config, MASKED_LM)
    batch = random_batch(model.config, 3, 9)
    reference = Reference(model.config, dict(model.weights))
    positions = np.array([[0, 4, 8]] * 3)
    return reference.masked_lm(reference.encode(batch)[-1], positions)


def changed(folder, tmp_path, change, *arguments):
    """The model after a change, and conversion.json."""
    function = getattr(surgery, change)
    target = str(tmp_path / "new")
    report = change_embeddings(
        folder, None, target, lambda model: function(model, *arguments)
    )
    assert json.loads((tmp_path / "new" / "conversion.json").read_text()) == {
        "format": "decoupled-conversion-1",
        **json.loads(json.dumps(report)),
    }
    return open_model(target), report


# Besides those whose slots are looked at below.
EXACT = {
    "untie at H, with initial values": (
        "untie", dataclasses.replace(COUPLED_AT_H, initial_values={"*": 2})
    ),
    "fold, narrower": ("fold", dataclasses.replace(LINEAR, output_embedding_size=5)),
    "fold, square": (
        "fold",
        dataclasses.replace(
            AT_H, project_equal_output_widths=True, initial_values={KERNEL: "identity"}
        ),
    ),
    "insert, coupled": ("insert_projection", COUPLED_AT_H),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_the_logits_stay(name, write, tmp_path):
    change, config = EXACT[name]
    folder = write(config)
    check_function(change, config, folder, *changed(folder, tmp_path, change))


def check_function(change, config, folder, model, report):
    """The model computes what that of the folder does."""
    np.testing.assert_allclose(logits(model.folder), logits(folder), atol=1e-5)
    assert model.config != config and model.weights.global_step == 7
    assert not model.config.initial_values
    assert report["parameters"] == sum(map(np.size, dict(model.weights).values()))
    if change == "untie":
        assert model.embeddings == ["input", "output"]
    if change == "fold":
        assert model.weights[OUTPUT_EMBEDDING].shape == (48, 8)
        assert not model.config.projects_output
    if change == "insert_projection":
        assert KERNEL in model.weights and model.config.projects_output
    # What is not changed is copied to the bit.
    before = open_model(folder).weights
    for name in {*before} & {*model.weights} - {OUTPUT_EMBEDDING, OUTPUT_BIAS}:
        np.testing.assert_array_equal(model.weights[name], before[name])


def test_untied_tables_are_tied_again_without_loss(write, tmp_path, capsys):
    folder = write(COUPLED)
    untied, _ = changed(folder, tmp_path, "untie")
    tied, report = changed(untied.folder, tmp_path / "again", "tie", "input")
    assert tied.config == COUPLED and report["relative_frobenius"] == 0
    assert {*tied.weights} == {*open_model(folder).weights}
    np.testing.assert_array_equal(logits(tied.folder), logits(folder))


@pytest.mark.parametrize("keep", ["input", "output"])
def test_tying_says_how_much_the_other_table_differs(keep, write, tmp_path, capsys):
    config = dataclasses.replace(COUPLED, coupled=False)
    folder = write(config)
    before = open_model(folder)
    model, report = changed(folder, tmp_path, "tie", keep)
    other = {"input": "output", "output": "input"}[keep]
    kept, lost = before.embedding(keep), before.embedding(other)
    np.testing.assert_array_equal(model.weights[WORD_EMBEDDINGS], kept)
    error = np.linalg.norm(kept - lost) / np.linalg.norm(lost)
    assert report["relative_frobenius"] == pytest.approx(error, rel=1e-5)
    assert f"the {other} embedding differs from it by {error:.4g}" in (
        capsys.readouterr().out
    )


def low_rank(config, directions):
    """Weights whose input rows lie in a space of so many directions, but for their
    means, which the layer norm subtracts."""
    weights, generator = pretrained_weights(config), np.random.default_rng(3)
    basis = generator.normal(size=[directions, config.input_embedding_size])
    for name in TABLES:
        rows = weights[name].shape[0]
        value = generator.normal(size=[rows, directions]) @ basis
        weights[name] = (value + generator.normal(size=[rows, 1])).astype(np.float32)
    return weights


AT_E = {
    "projected": model_config(layer_norm_epsilon=1e-12),
    "E_in = H": model_config(input_embedding_size=8, layer_norm_epsilon=1e-2),
    "projected at E_in = H": model_config(
        input_embedding_size=8, project_equal_widths=True, layer_norm_epsilon=1e-2
    ),
}


@pytest.mark.parametrize("name", AT_E)
def test_a_table_of_low_rank_is_factorised_without_loss(name, write, tmp_path):
    config = AT_E[name]
    folder = write(config, low_rank(config, 3))
    model, report = changed(folder, tmp_path, "factorise", 4)
    assert model.config.input_embedding_size == 4 and model.config.projects_input
    assert report["share_of_spectrum"] == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(logits(model.folder), logits(folder), atol=3e-5)
    # With a direction less it is another function.
    coarse, report = changed(folder, tmp_path / "coarse", "factorise", 3)
    assert report["share_of_spectrum"] < 0.99
    assert np.abs(logits(coarse.folder) - logits(folder)).max() > 0.01


def test_the_error_of_a_factorisation_is_that_of_numpy(write, tmp_path, capsys):
    folder = write(LINEAR)
    before = open_model(folder).weights
    words, positions, types = (before[name].astype(np.float64) for name in TABLES)
    sums = words[:, None, None] + positions[None, :, None] + types[None, None]
    sums = sums.reshape(-1, 6)
    sums -= sums.mean(1, keepdims=True)
    singular = np.linalg.svd(sums, compute_uv=False)

    _, report = changed(folder, tmp_path, "factorise", 4)

    share = (singular[:3] ** 2).sum() / (singular**2).sum()
    assert report["share_of_spectrum"] == pytest.approx(share, rel=1e-6)
    error = report["relative_frobenius"]
    assert error["sums"] == pytest.approx(np.sqrt(1 - share), rel=1e-6)
    _, _, directions = np.linalg.svd(sums)
    rows = words + positions.mean(0) + types.mean(0)
    rows -= rows.mean(1, keepdims=True)
    left = rows - rows @ directions[:3].T @ directions[:3]
    expected = np.linalg.norm(left) / np.linalg.norm(rows)
    assert error["word_embeddings"] == pytest.approx(expected, rel=1e-6)
    assert f"3 of 5 directions have {share:.2%}" in capsys.readouterr().out


# Change, model, slots that are copies, and variables whose slots are zero.
PROJECTION = (KERNEL, f"{TRANSFORM}/bias")
SLOTS = {
    "untie": (("untie",), COUPLED, {OUTPUT_EMBEDDING: WORD_EMBEDDINGS}, ()),
    "tie": (
        ("tie", "output"),
        dataclasses.replace(COUPLED, coupled=False), {}, (WORD_EMBEDDINGS,),
    ),
    "fold": (("fold",), LINEAR, {}, (OUTPUT_EMBEDDING,)),
    "insert": (("insert_projection",), AT_H, {}, PROJECTION),
    "reset": (("reset_slots",), LINEAR, {}, (*PROJECTION, OUTPUT_EMBEDDING)),
    "reset, coupled": (("reset_slots",), COUPLED_AT_H, {}, (WORD_EMBEDDINGS,)),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOTS)
def test_slots_are_kept_copied_or_zero(name, write, tmp_path, capsys):
    (change, *arguments), config, copies, zeros = SLOTS[name]
    folder = write(config)
    model, report = changed(folder, tmp_path, change, *arguments)
    if change in ("untie", "fold", "insert_projection"):
        check_function(change, config, folder, model, report)
    before, after = open_model(folder).weights, model.weights
    expected = {f"{n}{slot}" for n in after for slot in ("/adam_m", "/adam_v")}
    assert {*after.shapes} - {*after, "global_step"} == expected
    assert report["optimizer_slots"] == len(expected)
    for slot in expected:
        name, kind = slot[:-7], slot[-7:]
        value = np.asarray(after.read_tensor(slot))
        if name in zeros:
            assert value.shape == after[name].shape and not value.any()
        else:
            source = copies.get(name, name) + kind
            np.testing.assert_array_equal(value, before.read_tensor(source))
    printed = " ".join(capsys.readouterr().out.split())
    assert (f"slots are zero: {', '.join(sorted(zeros))}" in printed) == bool(zeros)
    if change == "reset_slots":
        assert model.config == config
        for name in before:
            np.testing.assert_array_equal(after[name], before[name])


def test_slots_of_an_optimizer_that_is_gone_are_left_out(write, tmp_path):
    folder = write(COUPLED_AT_H, slots=("_slot_v",))
    untied, report = changed(folder, tmp_path, "untie")
    assert report["optimizer_slots"] == 0
    assert {*untied.weights.shapes} == {*untied.weights, "global_step"}
    with pytest.raises(UserError, match="has no slots of an optimizer, so .*--init_ch"):
        check_resumable(untied.weights.path, ["kernel/adam_v"])
    with pytest.raises(UserError, match="has no slots of an optimizer with which"):
        changed(folder, tmp_path / "b", "reset_slots")


def test_the_copy_of_a_table_that_was_frozen_has_slots(write, tmp_path):
    """So that it can be trained from there on."""
    folder = write(COUPLED, slots=())
    weights = pretrained_weights(COUPLED)
    moments = {
        f"{n}{slot}": value
        for n, value in weights.items() if n != WORD_EMBEDDINGS
        for slot in ("/adam_m", "/adam_v")
    }  # fmt: skip
    folder = write(COUPLED, weights | moments, slots=())
    model, _ = changed(folder, tmp_path, "untie")
    assert not np.asarray(model.weights.read_tensor(f"{OUTPUT_EMBEDDING}/adam_v")).any()
    assert f"{WORD_EMBEDDINGS}/adam_v" not in model.weights.shapes


def test_a_fine_tuned_model_can_be_factorised(write, tmp_path):
    """Its coupled model has no masked-LM head. The result is a conversion: nothing can
    go on with its slots."""
    task = {"name": "topics", "kind": "classification", "labels": ["a", "b"]}
    config = dataclasses.replace(COUPLED, layer_norm_epsilon=1e-12)
    weights = finetuned_weights(config, 2)
    weights |= {name: low_rank(config, 2)[name] for name in TABLES}
    features = {"texts": ["a"], "max_sequence_length": 9}
    data = {"classifier_dropout": 0.2, "features": features}
    folder = write(config, weights, task=task, data={**data, "seed": 0})
    source = open_model(folder).weights.path
    model, report = changed(folder, tmp_path, "factorise", 3)
    assert model.description.task == task and not model.config.coupled
    assert model.description.command == "convert"
    assert model.description.data == {"source": source, **data}
    assert report["optimizer_slots"] == 0
    assert {*model.weights.shapes} == {*model.weights, "global_step"}
    batch = random_batch(config, 2, 7)
    before, after = (
        Reference(opened.config, dict(opened.weights)).encode(batch)[-1]
        for opened in (open_model(folder), model)
    )
    np.testing.assert_allclose(after, before, atol=1e-5)


MISTAKES = {
    "no head to untie": (COUPLED, "untie", (), "has no masked-LM head with an output"),
    "untied": (LINEAR, "untie", (), "its embeddings are already untied"),
    "tied": (COUPLED, "tie", ("input",), "its embeddings are already tied"),
    "two widths": (LINEAR, "tie", ("input",), "widths 6 and 10; only equal widths"),
    "tied fold": (COUPLED_AT_H, "fold", (), "are tied; untie them first"),
    "nonlinear": (model_config(), "fold", (), "an activation and a layer norm"),
    "folded": (AT_H, "fold", (), "is already one [V, H]"),
    "projected": (LINEAR, "insert_projection", (), "to E_out = 10 is there already"),
    "nonlinear projection": (
        model_config(), "insert_projection", (), "an activation and a layer norm"
    ),
    "wide": (LINEAR, "factorise", (6,), "6 is not below the model's input_embedding"),
    "tied factorise": (COUPLED, "factorise", (3,), "are tied; untie them first"),
    "no slots": (LINEAR, "reset_slots", (), "has no slots of an optimizer"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_write_nothing(name, write, tmp_path):
    config, change, arguments, message = MISTAKES[name]
    weights = pretrained_weights(config)
    if name == "no head to untie":
        weights = finetuned_weights(config, 2)
    folder = write(config, weights, slots=())
    with pytest.raises(UserError) as error:
        changed(folder, tmp_path, change, *arguments)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not os.path.exists(tmp_path / "new")


def test_sizes_that_are_not_those_of_the_checkpoint_are_refused(write, tmp_path):
    config = dataclasses.replace(LINEAR, output_embedding_size=9)
    for change, arguments in (("fold", ()), ("factorise", (3,))):
        folder = write(config, pretrained_weights(LINEAR))
        if change == "factorise":
            folder = write(dataclasses.replace(LINEAR, num_layers=1),
                           pretrained_weights(LINEAR))  # fmt: skip
        with pytest.raises(UserError, match=r"config.json (has|describes)"):
            changed(folder, tmp_path, change, *arguments)
        assert not os.path.exists(tmp_path / "new")
