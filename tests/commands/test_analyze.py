"""The command `decoupled analyze`, from its arguments to its files."""

import json
import os
import pathlib

import pytest

from decoupled.commands import analyze
from decoupled.core import files
from tests.analyses.tiny_runs import write_run
from tests.command_line import decoupled, mistake
from tests.data.record_folders import make_records


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory, vocabulary):
    """A pre-training run."""
    return write_run(tmp_path_factory.mktemp("runs") / "run", vocabulary)


def words(name, *params, **flags):
    """`decoupled analyze NAME` with settings and flags."""
    settings = [f"--gin_param={param}" for param in params]
    return ["analyze", name, *settings, *(f"--{n}={x}" for n, x in flags.items())]


def run(*given, **flags):
    """What the command of `words` prints."""
    done = decoupled(*words(*given, **flags))
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_help_names_every_analysis():
    shown = decoupled("analyze", "--help").stdout
    for name in analyze.SUBCOMMANDS:
        assert f"\n  {name} " in shown


def test_an_analysis_has_help_of_its_own():
    shown = decoupled("analyze", "word_similarity", "--help").stdout
    assert shown.startswith("Do embeddings order pairs of words as people do?")
    assert "--[no]whole_words" in shown
    assert "--targets_x" not in shown


def test_from_the_command_line_to_files(model_dir, tmp_path):
    write(tmp_path / "pairs/own.tsv", "page\timage\t1\nthe\tpage\t2\n")
    given = dict(model_dir=model_dir, data_dir=tmp_path / "pairs")
    shown = run("word_similarity", **given, output_dir=tmp_path / "out")
    assert "Spearman x 100" in shown
    items = "word_similarity.items.npz"
    said = written(f"{tmp_path}/out", "word_similarity", items)
    # It has no settings, and those in the help of others are not its own.
    assert not (tmp_path / "out" / "config.1.gin").exists()
    command = (tmp_path / "out" / "command.1").read_text().splitlines()[1]
    assert command.startswith("decoupled analyze word_similarity --model_dir=")
    assert said["models"][0]["folder"] == model_dir


def test_a_mistake_is_one_line_and_exit_code_2():
    assert mistake("analyze", "tables", "--model_dir=x") == (
        "decoupled analyze: error: unknown subcommand 'tables'; Known: "
        f"{', '.join(analyze.SUBCOMMANDS)}"
    )


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("drift", "layer_drop"),
        ("minimal_pairs", "masked_lm"),
        ("geometry", "masked_lm"),
        ("spectrum", "masked_lm"),
        ("weat", "word_similarity"),
    ],
)
def test_an_analysis_that_is_gone_is_refused_by_name(name, instead):
    said = mistake("analyze", name, "--model_dir=x", "--output_dir=y")
    start = f"decoupled analyze: error: {name} is gone (CHANGELOG.md); {instead} "
    assert said.startswith(start)
    assert name not in analyze.SUBCOMMANDS and instead in analyze.SUBCOMMANDS


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def written(folder, name, *others):
    names = {path.name for path in pathlib.Path(folder).iterdir()}
    results = {f"{name}.json", f"{name}.png", f"{name}.svg", *others}
    assert names - {"config.1.gin"} == results | {"command.1"}
    return json.loads(pathlib.Path(folder, f"{name}.json").read_text())


def test_masked_lm(model_dir, vocabulary, tmp_path):
    records, out = tmp_path / "records", tmp_path / "out"
    text = {name: [[[6 + n % 40 for n in range(200)]]] for name in ("en", "sw")}
    make_records(records, text, text, vocabulary=vocabulary)
    run(
        "masked_lm",
        "MaskingConfig.sequence_length = 16",
        "MaskingConfig.max_predictions = 3",
        "masked_lm.max_sequences = 5",
        model_dir=model_dir,
        records_dir=records,
        languages="sw",
        output_dir=out,
    )
    items = files.read_arrays(str(out / "masked_lm.items.npz"))
    result = written(out, "masked_lm", "masked_lm.items.npz")
    assert result["items"] == [["sw", n] for n in (0, 3, 6, 9, 12)]
    assert result["settings"]["masking"]["mask_token_rate"] == 1.0
    assert set(items) == {"0/loss", "0/correct", "0/predictions"}
    [model] = result["models"]
    loss = items["0/loss"].sum() / items["0/predictions"].sum()
    assert model["all"]["loss"] == pytest.approx(loss)


def test_probing_of_a_converted_treebank(model_dir, tmp_path):
    line = "{}\t{}\t_\t{}\t_\t_\t{}\t{}\t_\t_\n"
    sentence = line.format(1, "the", "DET", 2, "det") + line.format(
        2, "page", "NOUN", 0, "root"
    )
    treebank = write(tmp_path / "tree.conllu", f"{sentence}\n" * 4)
    for split in ("train", "dev"):
        path = f"{tmp_path}/edges/pos/{split}.jsonl"
        shown = run("probing_data", task="pos", input=treebank, output=path)
    assert "4 sentences, 8 targets" in shown
    given = dict(data_dir=f"{tmp_path}/edges", output_dir=f"{tmp_path}/out")
    settings = ["probing.train_steps = 5", "probing.eval_every_steps = 5"]
    run("probing", *settings, model_dir=model_dir, **given)
    result = written(f"{tmp_path}/out", "probing")
    assert result["settings"]["train_steps"] == 5
    assert result["tasks"]["pos"]["labels"] == 2
    more = words("probing", model_dir=model_dir, variants="mix,layers", **given)
    assert "--variants: probes of single layers are gone" in mistake(*more)


def test_a_treebank_and_what_is_no_file_are_not_replaced(tmp_path):
    line = "1\tthe\tthe\tDET\t_\t_\t0\troot\t_\t_\n\n"
    treebank = write(tmp_path / "tree.conllu", line)
    (tmp_path / "link").symlink_to(treebank)
    os.mkfifo(tmp_path / "pipe")
    for name, problem in (
        ("tree.conllu", "--output: is the file of --input; name another"),
        ("link", "--output: is the file of --input; name another"),
        ("pipe", f"--output: {tmp_path}/pipe is no regular file; name one"),
    ):
        given = dict(task="pos", input=treebank, output=tmp_path / name)
        assert problem in mistake(*words("probing_data", **given))
    assert pathlib.Path(treebank).read_text() == line
    assert (tmp_path / "pipe").is_fifo()


def test_neighbours(model_dir, tmp_path):
    lines = "Select the page\nShow the image\nDelete the password\n"
    for name in ("de-en.de", "de-en.en", "readme"):
        write(tmp_path / name, lines)
    given = dict(model_dir=model_dir, output_dir=tmp_path / "out")
    settings = [
        "RetrievalConfig.max_sequence_length = 16",
        "RetrievalConfig.batch_size = 2",
    ]
    run("neighbours", *settings, languages="de", data_dir=tmp_path, **given)
    [model] = written(tmp_path / "out", "neighbours")["models"]
    assert [entry["language"] for entry in model["languages"]] == ["de"]
    # Both sides are the same, so that each sentence is its own neighbour.
    assert {layer["mean"] for layer in model["languages"][0]["layers"]} == {100.0}
    for flags, message in (
        ({"data_dir": tmp_path, "languages": "sw"}, "--languages: no sw-en.sw in "),
        ({}, "give --data_dir or --sentences, one of them"),
        ({"data_dir": tmp_path / "out"}, "out: no files XX-en.XX"),
        (
            {"data_dir": tmp_path, "sentences": tmp_path},
            "give --data_dir or --sentences, one of them",
        ),
    ):
        assert message in mistake(*words("neighbours", **given, **flags))


@pytest.mark.parametrize(
    ("name", "setting", "data"),
    [
        ("masked_lm", "MaskingConfig.sequence_length", "records_dir"),
        ("neighbours", "RetrievalConfig.max_sequence_length", "data_dir"),
        ("probing", "probing.max_tokens", "data_dir"),
    ],
)
def test_a_length_beyond_the_positions_is_refused(
    model_dir, tmp_path, name, setting, data
):
    for path in ("de-en.de", "de-en.en", "pos/train.jsonl", "pos/dev.jsonl"):
        write(tmp_path / "data" / path, "A line.\n")
    given = {"model_dir": model_dir, data: tmp_path / "data"}
    message = mistake(*words(name, f"{setting} = 25", **given, output_dir=tmp_path))
    assert f"{setting}: 25, but run has max_positions = 24" in message


def test_neighbours_between_all_languages(model_dir, tmp_path):
    for language in ("ti", "yo"):
        lines = (f"id {number}\tpage {number}\n" for number in range(20))
        write(tmp_path / f"sentences/{language}.tsv", "".join(lines))
    run(
        "neighbours",
        "RetrievalConfig.max_sequence_length = 16",
        "RetrievalConfig.batch_size = 8",
        "neighbours.max_pairs = 12",
        model_dir=model_dir,
        sentences=tmp_path / "sentences",
        output_dir=tmp_path / "out",
    )
    result = written(f"{tmp_path}/out", "neighbours", "neighbours.items.npz")
    [entry] = result["models"][0]["languages"]
    assert entry["directions"] == [["ti", "yo"], ["yo", "ti"]]
    arrays = files.read_arrays(f"{tmp_path}/out/neighbours.items.npz")
    assert {name: array.shape for name, array in arrays.items()} == {
        "0/hits": (3, 2, len(result["items"]))
    }
    assert len(result["items"]) == 12
