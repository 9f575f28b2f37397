"""decoupled parameters."""

import pathlib
import re

import pytest

from tests.command_line import decoupled, mistake


def run(*gin_files, gin_param=()):
    """What the command prints as lists of words, a list a line."""
    given = [f"--gin_file={path}" for path in gin_files]
    return printed(*given, *(f"--gin_param={param}" for param in gin_param))


def printed(*words):
    """The same for any words of the command."""
    done = decoupled("parameters", *words)
    assert done.returncode == 0, done.stderr
    lines = filter(str.strip, done.stdout.splitlines())
    return [re.split(r"\s{2,}", line.strip()) for line in lines]


def test_a_model_of_the_paper():
    shown = run("models/e_out_768.gin")
    assert shown[0] == ["Parameters in the graphs; fine-tuning has 12 of 12 layers"]
    assert shown[1] == ["group", "pre-training (PT)", "fine-tuning (FT)"]
    assert shown[3:] == [
        ["word embeddings", "15,360,000", "15,360,000"],
        ["position embeddings", "65,536", "65,536"],
        ["type embeddings", "256", "256"],
        ["embedding layer norm", "256", "256"],
        ["input projection", "99,072", "99,072"],
        ["encoder layers", "85,054,464", "85,054,464"],
        ["pooler", "-", "590,592"],
        ["MLM transform", "-", "-"],
        ["output embedding", "92,160,000", "-"],
        ["output bias", "120,000", "-"],
        ["all", "192,859,584", "101,170,176"],
        ["counted as in the paper", "192,739,584", "100,579,584"],
        ["in millions", "192M", "100M"],
        ["paper, Tables 3, 4, 5, 6", "192M", "100M"],
        ["models/e_out_768.gin: 'E_in 128, E_out 768' of Tables 3, 4, 5, 6."],
        [
            "The paper counts there: encoder and output table, without pooler, "
            "H -> E_out projection and output bias, rounded down."
        ],
    ]


def test_a_difference_is_marked_and_explained():
    shown = run("models/reinvested_h.gin")
    assert ["in millions", "258M", "166M"] in shown
    assert ["paper, Table 6", "260M", "168M"] in shown
    assert shown[-1][0].startswith("The paper's number differs: both numbers come out")


def test_layers_of_the_paper_in_finetuning():
    shown = run("models/additional_layers_23.gin")
    assert shown[0][0].endswith("fine-tuning has 12 of 23 layers")
    assert ["encoder layers", "163,021,056", "85,054,464"] in shown
    assert ["paper, Table 5", "193M", "100M"] in shown


@pytest.mark.parametrize(
    "model, setting, shown",
    [
        (
            "e_out_768",
            "parameters.keep_layers = 8",
            ["encoder layers", "85,054,464", "56,702,976"],
        ),
        (
            "coupled",
            "ModelConfig.vocab_size = 100000",
            ["word embeddings", "76,800,000", "76,800,000"],
        ),
    ],
)
def test_other_layers_in_finetuning_or_sizes_are_not_the_papers(model, setting, shown):
    found = run(f"models/{model}.gin", gin_param=[setting])
    assert shown in found
    assert found[-1] == ["The paper has no such model."]


def test_rates_and_the_transform_make_no_other_model():
    shown = run(
        "models/coupled.gin",
        gin_param=[
            "ModelConfig.hidden_dropout = 0.1",
            "ModelConfig.mlm_transform = 'dense_activation_norm'",
            "ModelConfig.project_equal_output_widths = True",
        ],
    )
    assert ["MLM transform", "592,128", "-"] in shown
    assert ["paper, Tables 2, 6, 12", "177M", "177M"] in shown


def test_variables_with_values_and_rates_of_their_own_are_listed():
    kernel = "cls/predictions/transform/dense/kernel"
    shown = run(
        "models/coupled.gin",
        gin_param=[
            "ModelConfig.project_equal_output_widths = True",
            "ModelConfig.initial_values = "
            + repr({kernel: "identity", "*/layer_*/*": 2}),
            "OptimizerConfig.rates = {'*word_embeddings': 0.5, 'cls/*': 0}",
        ],
    )
    assert ["bert/embeddings/word_embeddings", "-", "0.0001 (0.5 x)"] in shown
    layers = "bert/encoder/layer_*/attention/self/query/kernel"
    assert ["deviation 0.04", "-"] in [line[1:] for line in shown if line[0] == layers]
    assert [kernel, "identity", "not trained"] in shown


def test_all_models():
    shown = printed("--all")
    rows = {line[0]: line[1:] for line in shown if line[0].startswith("models/")}
    assert rows["models/coupled.gin"] == (
        ["2, 6, 12", "177,730,752", "177M", "177M", "178,201,344", "177M", "177M"]
    )
    assert rows["models/rembert.gin"] == (
        ["7, 16", "993,263,548", "995M", "995M", "575,920,384", "575M", "575M"]
    )
    assert rows["models/rembert_table14.gin"] == (
        ["14", "960,536,336", "962M", "995M", "575,843,584", "575M", "575M", "differs"]
    )
    differing = {name for name, row in rows.items() if row and row[-1] == "differs"}
    assert differing == {
        "models/reinvested_h.gin",
        "models/coupled.gin, vocab_size = 30000",
        "models/rembert_table14.gin",
    }
    # A remark starts with the name of a file, too, and has nothing beside it.
    assert rows_of_paper_map() == {
        name: row[:7] for name, row in rows.items() if row and row[0] != "-"
    }
    remarks = [line[0].partition(":")[0] for line in shown if "differs:" in line[0]]
    assert remarks == [f"{name} differs" for name in rows if name in differing]


def test_table_1():
    shown = printed("--all")
    table = [line for line in shown if line[-1].endswith("%")]
    assert table == [
        ["mBERT", "177,853,440", "91,812,096", "52%", "92M of 178M, 52%"],
        ["XLM-R base", "278,042,112", "192,001,536", "69%", "192M of 270M, 71%"],
        ["XLM-R large", "559,888,384", "256,002,048", "46%", "256M of 550M, 47%"],
        ["BERT base", "109,482,240", "23,440,896", "21%", "23M of 110M, 21%"],
        ["BERT large", "335,141,888", "31,254,528", "9%", "31M of 335M, 9%"],
    ]


def test_a_public_model():
    assert run("models/mbert.gin")[-1][0].startswith(
        "mBERT: the paper's Table 1 has 178M, 92M (52%) of them word embeddings"
    )


def rows_of_paper_map():
    """The table of sizes in the documentation: file -> tables and six numbers."""
    path = pathlib.Path(__file__).parent.parent.parent / "docs" / "paper_map.md"
    text = path.read_text(encoding="utf-8").replace("**", "")
    found = {}
    for line in text.splitlines():
        cells = [cell.strip(" `") for cell in line.strip("|").split("|")]
        if len(cells) == 9 and re.fullmatch(r"[\d,]+", cells[3]):
            file, comma, changes = cells[2].replace("`", "").partition(",")
            found[f"models/{file}.gin{comma}{changes}"] = [cells[0], *cells[3:]]
    return found


def test_all_takes_no_settings():
    message = mistake("parameters", "--all", "--gin_file=models/coupled.gin")
    assert re.search("--all: .* leave out --gin_file", message)


@pytest.mark.parametrize("value", ["13", "-1", "1.5", "'12'"])
def test_layers_that_the_model_has_not(value):
    message = "keep_layers: .*(from 1 to 12, nor 0|is not of type int)"
    setting = f"--gin_param=parameters.keep_layers = {value}"
    assert re.search(message, mistake("parameters", setting))


def test_without_settings_it_is_the_model_of_the_defaults():
    assert run()[-2][0] == "models/coupled.gin: 'coupled' of Tables 2, 6, 12."
