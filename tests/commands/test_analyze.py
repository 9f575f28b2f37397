"""The command `decoupled analyze`, from its arguments to its files."""

import json
import pathlib
import types

import pytest

from decoupled.commands import analyze
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.launch import start
from tests.analyses.tiny_runs import write_run
from tests.command_line import decoupled, mistake
from tests.data.record_folders import make_records


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory, vocabulary):
    """A pre-training run."""
    return write_run(tmp_path_factory.mktemp("runs") / "run", vocabulary)


@pytest.fixture
def run(monkeypatch):
    """Runs an analysis of this process with flags as keywords."""

    def run_with(name, **given):
        flags = types.SimpleNamespace(
            **{"gin_file": [], "gin_param": [], "gin_location_prefix": [], **given}
        )
        monkeypatch.setattr(start, "FLAGS", flags)
        monkeypatch.setattr(analyze, "FLAGS", flags)
        analyze.SUBCOMMANDS[name].main()

    return run_with


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
    result = decoupled(
        *("analyze", "word_similarity"),
        f"--model_dir={model_dir}",
        f"--data_dir={tmp_path}/pairs",
        f"--output_dir={tmp_path}/out",
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert "Spearman x 100" in result.stdout
    # It has no settings, so that there is no config.1.gin.
    items = "word_similarity.items.npz"
    said = written(f"{tmp_path}/out", "word_similarity", items)
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
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return str(path)


def written(folder, name, *others):
    names = {path.name for path in pathlib.Path(folder).iterdir()}
    results = {f"{name}.json", f"{name}.png", f"{name}.svg", *others}
    assert names - {"config.1.gin"} == results | {"command.1"}
    return json.loads(pathlib.Path(folder, f"{name}.json").read_text())


def test_masked_lm(run, model_dir, vocabulary, tmp_path):
    records, out = tmp_path / "records", tmp_path / "out"
    text = [[[6 + n % 40 for n in range(200)]]]
    make_records(
        records,
        {"en": text, "sw": text},
        {"en": text, "sw": text},
        vocabulary=vocabulary,
    )
    given = dict(model_dir=[model_dir], output_dir=str(out), records_dir=str(records))
    settings = [
        "MaskingConfig.sequence_length = 16",
        "MaskingConfig.max_predictions = 3",
        "masked_lm.max_sequences = 5",
    ]
    run("masked_lm", languages=["sw"], gin_param=settings, **given)
    items = files.read_arrays(str(out / "masked_lm.items.npz"))
    result = written(out, "masked_lm", "masked_lm.items.npz")
    assert result["items"] == [["sw", n] for n in (0, 3, 6, 9, 12)]
    assert result["settings"]["masking"]["mask_token_rate"] == 1.0
    assert set(items) == {"0/loss", "0/correct", "0/predictions"}
    [model] = result["models"]
    loss = items["0/loss"].sum() / items["0/predictions"].sum()
    assert model["all"]["loss"] == pytest.approx(loss)


def test_probing_of_a_converted_treebank(run, model_dir, tmp_path, capsys):
    line = "{}\t{}\t_\t{}\t_\t_\t{}\t{}\t_\t_\n"
    sentence = line.format(1, "the", "DET", 2, "det") + line.format(
        2, "page", "NOUN", 0, "root"
    )
    treebank = write(tmp_path / "tree.conllu", f"{sentence}\n" * 4)
    for split in ("train", "dev"):
        path = f"{tmp_path}/edges/pos/{split}.jsonl"
        run("probing_data", task="pos", input=treebank, output=path)
    assert "4 sentences, 8 targets" in capsys.readouterr().out
    given = dict(
        model_dir=[model_dir],
        data_dir=f"{tmp_path}/edges",
        tasks=None,
        output_dir=f"{tmp_path}/out",
    )
    settings = ["probing.train_steps = 5", "probing.eval_every_steps = 5"]
    run("probing", variants=["mix"], gin_param=settings, **given)
    result = written(f"{tmp_path}/out", "probing")
    assert result["settings"]["train_steps"] == 5
    assert result["tasks"]["pos"]["labels"] == 2
    with pytest.raises(UserError, match="--variants: probes of single layers are gone"):
        run("probing", variants=["mix", "layers"], **given)


def test_neighbours(run, model_dir, tmp_path):
    lines = "Select the page\nShow the image\nDelete the password\n"
    for name in ("de-en.de", "de-en.en", "readme"):
        write(tmp_path / name, lines)
    given = dict(model_dir=[model_dir], sentences=None)
    given |= dict(
        output_dir=f"{tmp_path}/out", languages=["de"], data_dir=str(tmp_path)
    )
    settings = [
        "RetrievalConfig.max_sequence_length = 16",
        "RetrievalConfig.batch_size = 2",
    ]
    run("neighbours", gin_param=settings, **given)
    [model] = written(f"{tmp_path}/out", "neighbours")["models"]
    assert [entry["language"] for entry in model["languages"]] == ["de"]
    # Both sides are the same, so that each sentence is its own neighbour.
    assert {layer["mean"] for layer in model["languages"][0]["layers"]} == {100.0}
    with pytest.raises(UserError, match="--languages: no sw-en.sw in "):
        run("neighbours", **{**given, "languages": ["sw"]})
    with pytest.raises(UserError, match="give --data_dir or --sentences, one of them"):
        run("neighbours", **{**given, "data_dir": None})
    with pytest.raises(UserError, match="out: no files XX-en.XX"):
        run("neighbours", **{**given, "data_dir": f"{tmp_path}/out"})
    with pytest.raises(UserError, match="give --data_dir or --sentences, one of them"):
        run("neighbours", **{**given, "sentences": str(tmp_path)})


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("masked_lm", "MaskingConfig.sequence_length"),
        ("neighbours", "RetrievalConfig.max_sequence_length"),
        ("probing", "probing.max_tokens"),
    ],
)
def test_a_length_beyond_the_positions_is_refused(
    run, model_dir, tmp_path, name, setting
):
    for path in ("de-en.de", "de-en.en", "pos/train.jsonl", "pos/dev.jsonl"):
        write(tmp_path / path, "A line.\n")
    given = dict(model_dir=[model_dir], data_dir=str(tmp_path), sentences=None)
    given |= dict(languages=None, tasks=["pos"], variants=["mix"])
    given |= dict(records_dir="", output_dir=f"{tmp_path}/out")
    message = f"{setting}: 25, but run has max_positions = 24"
    with pytest.raises(UserError, match=message):
        run(name, gin_param=[f"{setting} = 25"], **given)


def test_neighbours_between_all_languages(run, model_dir, tmp_path):
    for language in ("ti", "yo"):
        lines = (f"id {number}\tpage {number}\n" for number in range(20))
        write(tmp_path / f"sentences/{language}.tsv", "".join(lines))
    given = dict(model_dir=[model_dir], data_dir=None, languages=None)
    given |= dict(sentences=f"{tmp_path}/sentences", output_dir=f"{tmp_path}/out")
    settings = [
        "RetrievalConfig.max_sequence_length = 16",
        "RetrievalConfig.batch_size = 8",
        "neighbours.max_pairs = 12",
    ]
    run("neighbours", gin_param=settings, **given)
    result = written(f"{tmp_path}/out", "neighbours", "neighbours.items.npz")
    [entry] = result["models"][0]["languages"]
    assert entry["directions"] == [["ti", "yo"], ["yo", "ti"]]
    arrays = files.read_arrays(f"{tmp_path}/out/neighbours.items.npz")
    assert {name: array.shape for name, array in arrays.items()} == {
        "0/hits": (3, 2, len(result["items"]))
    }
    assert len(result["items"]) == 12
