"""Parameter counts: by hand for a tiny model, by the paper for its own."""

import os

import pytest

from decoupled.configs import ModelConfig, OptimizerConfig
from decoupled.launch import gin_files
from decoupled.model import parameters
from decoupled.model.parameters import finetuning_counts, pretraining_counts
from tests.helpers import tiny_model

# Of two layers: V 48, E_in 8, E_out 24, H 16, feed-forward 32, 20 positions.
# A layer: 4 * (16 * 16 + 16) attention, 2 * 32 layer norms, 16 * 32 + 32, 32 * 16 + 16.
LAYER = 1088 + 64 + 544 + 528
ENCODER = {
    "word embeddings": 384,
    "position embeddings": 160,
    "type embeddings": 16,
    "embedding layer norm": 16,
    "input projection": 8 * 16 + 16,
    "encoder layers": 2 * LAYER,
}


def test_a_layer_with_a_rate_of_its_own_is_named():
    model, name = tiny_model(num_layers=2), "bert/encoder/layer_{}/output/dense/bias"
    rates = {"*/layer_0/output/dense/bias": 0.5, "*/layer_?/output/dense/kernel": 0.0}
    rows = parameters.special_variables(model, OptimizerConfig(rates=rates))
    assert sorted(rows, key=str) == [
        ["bert/encoder/layer_*/output/dense/kernel", None, "not trained"],
        [name.format(0), None, "0.0001 (0.5 x)"],
    ]


@pytest.mark.parametrize(
    "counts, pooler, transform, output, bias",
    [
        (pretraining_counts, 0, 16 * 24 + 24 + 2 * 24, 48 * 24, 48),
        (finetuning_counts, 16 * 16 + 16, 0, 0, 0),
    ],
)
def test_groups_by_hand(counts, pooler, transform, output, bias):
    assert counts(tiny_model(num_layers=2)) == {
        **ENCODER,
        "pooler": pooler,
        "MLM transform": transform,
        "output embedding": output,
        "output bias": bias,
    }


# What counting as the paper does gives instead, where it is something else.
COUNTED_OTHERWISE = {
    "reinvested_h": (258, 166),
    "coupled, vocab_size = 30000": (108, 108),
    "rembert_table14": (962, 575),
}
ROWS = {
    row.label.removeprefix("models/").replace(".gin", ""): row
    for row in parameters.ROWS
}


def shipped(name, settings=()):
    file = f"models/{name.partition(',')[0]}.gin"
    return gin_files.configure(ModelConfig, [file], settings)


def test_every_row_has_its_file():
    folder = os.path.join(gin_files.packaged_folder(), "models")
    names = {name.removesuffix(".gin") for name in os.listdir(folder)}
    others = {n for n in names if n.startswith(("demo", "mini"))} | {"mbert", "xlm_r"}
    assert names - others == {name for name in ROWS if "," not in name}


@pytest.mark.parametrize("name", ROWS)
def test_counts_of_the_paper(name):
    row, model = ROWS[name], shipped(name, ROWS[name].settings)
    totals = row.convention.totals(
        pretraining_counts(model), finetuning_counts(model, row.keep_layers)
    )
    computed = tuple(row.convention.millions(total) for total in totals)
    printed = (row.pretraining, row.finetuning)
    assert computed == COUNTED_OTHERWISE.get(name, printed)
    assert bool(row.remark) == (name in COUNTED_OTHERWISE)


def test_rembert_to_the_parameter():
    # Hugging Face's RemBertForMaskedLM with the pooler, and RemBertModel without it.
    model = shipped("rembert")
    totals = parameters.RELEASED.totals(
        pretraining_counts(model), finetuning_counts(model)
    )
    assert totals == (994_591_804, 574_592_128)
