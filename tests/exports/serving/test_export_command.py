"""`decoupled export` from the command line."""

import types

import pytest

from decoupled.configs import QuestionAnsweringConfig
from decoupled.exports.served_task import ServedTask
from decoupled.exports.serving.saved_model import (
    say_assumed,
    say_length,
    say_vectors,
    say_written,
)
from tests.command_line import decoupled, mistake
from tests.exports.models import model_config, saving_only


def test_writes_an_export_and_says_how_to_load_it(finetuned_dir, tmp_path):
    target = tmp_path / "out"
    # Where there is nothing to replace, --overwrite fills an empty folder too.
    target.mkdir()
    folders = (f"--model_dir={finetuned_dir}", f"--export_dir={target}")
    with saving_only():
        result = decoupled("export", *folders, "--overwrite")
    assert result.returncode == 0, result.stderr[-3000:]
    assert sorted(path.name for path in target.iterdir()) == [
        "classifier",
        "export.json",
        "preprocessor",
        "text_classifier",
    ]
    assert "texts are packed to 24 pieces; the model's folder does not" in result.stdout
    assert '"sequence_length": 24' in (target / "export.json").read_text()
    assert "model.ckpt-7" in result.stdout
    assert f"tf.saved_model.load('{target}/text_classifier')" in result.stdout
    assert result.stderr == ""
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    "length, trained, said",
    [
        (32, 32, "texts are packed to 32 pieces; the model was trained at 32"),
        (16, 32, "texts are packed to 16 pieces; the model was trained at 32"),
        (
            128,
            32,
            "but the model was trained at 32: no step trained positions 32 to 127",
        ),
        (128, None, "the model's folder does not say how long its inputs were"),
    ],
)
def test_says_how_the_length_compares_to_that_of_training(
    capsys, length, trained, said
):
    say_length(length, trained)
    assert said in capsys.readouterr().out


def test_the_help_has_the_lengths_that_are_taken():
    shown = " ".join(decoupled("export", "--help").stdout.split())
    config = model_config(max_positions=512)
    for answers, words in (
        (None, "unknown: {}, as on TF Hub"),
        (QuestionAnsweringConfig(), "or {} for question answering"),
    ):
        length = ServedTask(answers=answers).default_length(config)
        assert words.format(length) in shown
    assert "For --sentence_vectors: RetrievalConfig.max_sequence_length." in shown


@pytest.mark.parametrize("columns", [[], [2]])
@pytest.mark.parametrize(
    "kind, texts, call",
    [
        ("encoder", [1, 2], "model(['A sentence.', 'Ein Satz.'])['pooled_output']"),
        ("classifier", [1], "model(['A sentence.', 'Ein Satz.'])['label']"),
        (
            "regressor",
            [2],
            "model(['A sentence.', 'Ein Satz.'], "
            "second_sentences=['Another sentence.', 'Noch ein Satz.'])['value']",
        ),
        (
            "tagger",
            [1, 2],
            "From words to tags:\n"
            "  decoupled predict --export_dir=out --input=words.tsv ",
        ),
        (
            "span_model",
            [1, 2],
            "From questions to answers:\n"
            "  decoupled predict --export_dir=out --input=questions.json ",
        ),
    ],
)
def test_shows_how_each_kind_of_model_is_called(capsys, kind, texts, call, columns):
    names = ["preprocessor", kind]
    names += [] if kind in ("tagger", "span_model") else [f"text_{kind}"]
    description = {
        "kind": kind,
        "task": {"texts": texts, "columns": columns},
        "checkpoint": {"name": "model.ckpt-7", "global_step": 7},
        "bytes": dict.fromkeys(names, 10),
    }
    say_written("out", description)
    printed = capsys.readouterr().out
    assert call in printed
    # A tagger of a treebank would take column 2 of a table for words.
    assert ("--texts=1" in printed) == (kind == "tagger" and columns == [2])
    assert (f"tf.saved_model.load('out/text_{kind}')" in printed) == (len(names) == 3)


def test_says_what_the_vectors_are(capsys):
    encoder = {"kind": "encoder", "model": {"num_layers": 12}}
    say_vectors(encoder, has_pooler=False)
    printed = capsys.readouterr().out
    assert "pooled_output is the vector of [CLS] in layer 12, because the " in printed
    assert "--sentence_vectors --gin_param='RetrievalConfig.layer = 8'" in printed
    say_vectors(encoder, has_pooler=True)
    say_vectors({"kind": "tagger", "model": {"num_layers": 12}}, has_pooler=False)
    assert capsys.readouterr().out == ""
    chosen = {"layer": 6, "pool_special_tokens": False}
    encoder["model"]["num_layers"] = 6
    say_vectors(encoder | {"sentence_vectors": chosen}, has_pooler=False)
    assert (
        "sentence_vector is the mean over the tokens of layer 6 of 6, without [CLS] "
        "and [SEP] (--gin_param='RetrievalConfig.layer = 4' takes layer 4; a layer "
    ) in capsys.readouterr().out
    chosen["pool_special_tokens"] = True
    say_vectors(encoder | {"sentence_vectors": chosen}, has_pooler=False)
    assert "of layer 6 of 6, with [CLS] and [SEP] (--" in capsys.readouterr().out
    # There is no advice to take the layer that is taken, or the last one.
    encoder["model"]["num_layers"] = 2
    for layer, advice in (1, ""), (2, " (--gin_param='RetrievalConfig.layer = 1' "):
        chosen["layer"] = layer
        say_vectors(encoder | {"sentence_vectors": chosen}, has_pooler=False)
        line = capsys.readouterr().out.rstrip()
        assert f"of layer {layer} of 2, with [CLS] and [SEP]{advice}" in line
        assert ("RetrievalConfig" in line) == bool(advice)


def test_says_which_settings_of_a_reader_are_assumed(capsys):
    settings = QuestionAnsweringConfig(64, 128, 30, 20)
    trained = types.SimpleNamespace(
        answers=settings, assumed_settings=["doc_stride", "n_best"]
    )
    say_assumed(trained)
    assert capsys.readouterr().out == (
        "the model's folder does not say how its answers are chosen; usual settings "
        "were taken: doc_stride = 128, n_best = 20\n"
    )
    trained.assumed_settings = []
    say_assumed(trained)
    assert capsys.readouterr().out == ""


def test_a_mistake_is_one_line_and_exit_code_2(finetuned_dir, tmp_path):
    folders = (f"--model_dir={finetuned_dir}", f"--export_dir={tmp_path}/out")
    assert mistake("export", *folders, "--mlm") == (
        f"decoupled export: error: {finetuned_dir}/model.ckpt-7: holds no MLM head "
        "(fine-tuning drops it); export without --mlm, or a pre-training checkpoint"
    )
    assert list(tmp_path.iterdir()) == []
