"""One rule for all of the paper's models."""

import dataclasses

import pytest

from decoupled.configs import ModelConfig, ScaleConfig
from decoupled.core.errors import UserError
from decoupled.launch import gin_files
from decoupled.model.parameters import ROWS
from decoupled.studies.jobs import model_bindings, scaled_layers, scaled_model

MINI = ScaleConfig(width_divisor=8, head_size_divisor=4, depth_divisor=4)


def shipped(name, settings=()):
    return gin_files.configure(ModelConfig, [name], settings)


def test_the_largest_output_embedding_in_small():
    mini = scaled_model(shipped("models/e_out_3072.gin"), MINI, 5000)
    assert mini.vocab_size == 5000
    assert (mini.input_embedding_size, mini.output_embedding_size) == (16, 384)
    assert (mini.hidden_size, mini.intermediate_size) == (96, 384)
    assert (mini.num_heads, mini.head_size, mini.num_layers) == (6, 16, 3)
    # Standard deviations grow as the square root of what the widths shrink by.
    assert mini.initializer_range == pytest.approx(0.02 * 8**0.5)
    assert not mini.coupled and mini.max_positions == 512


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_every_model_of_the_paper_can_be_scaled(row):
    paper = shipped(row.gin_file, row.settings)
    mini = scaled_model(paper, MINI, 5000)
    assert mini.hidden_size * 8 == paper.hidden_size
    assert mini.num_heads * mini.head_size == mini.hidden_size
    assert mini.coupled == paper.coupled


def test_a_divisor_of_one_changes_the_vocabulary_only():
    paper = shipped("models/rembert.gin")
    same = scaled_model(paper, ScaleConfig(1, 1, 1), 250300)
    assert dataclasses.asdict(same) == dataclasses.asdict(paper)


@pytest.mark.parametrize("layers,mini", [(12, 3), (23, 6), (15, 4), (24, 6), (1, 1)])
def test_layers_are_rounded_to_the_nearest(layers, mini):
    assert scaled_layers(layers, MINI) == mini


def test_a_width_that_cannot_be_divided_is_named():
    paper = shipped("models/e_out_128.gin")
    with pytest.raises(UserError, match="input_embedding_size = 128 .* by 3"):
        scaled_model(paper, ScaleConfig(3, 1, 1), 10)


def test_bindings_make_the_same_model():
    mini = scaled_model(shipped("models/coupled.gin"), MINI, 77)
    files = ["models/coupled.gin"]
    assert gin_files.configure(ModelConfig, files, model_bindings(mini)) == mini
