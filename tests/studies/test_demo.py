"""The demo: its commands, and the table and plot that it makes of their results."""

import json

import pytest

from decoupled.core import files
from decoupled.studies import demo
from decoupled.training.events import write_scalars
from tests.helpers import tiny_model


@pytest.fixture
def work_dir(tmp_path):
    """What the steps leave behind, written by hand."""
    for index, model in enumerate(demo.MODELS):
        width = (8, 4, 24)[index]
        config = tiny_model(coupled=index == 0, output_embedding_size=width)
        folder = str(tmp_path / model)
        description = {
            "format": "decoupled-model-1",
            "command": "pretrain",
            "model": vars(config),
            "vocabulary": {"fingerprint": "abc", "vocab_size": 48},
            "task": None,
            "data": {},
        }
        files.make_folder(folder)
        files.write_json(f"{folder}/config.json", description)
        accuracy = {"masked_lm_accuracy": 0.25 + index / 10}
        files.write_json(f"{folder}/eval.json", {"all": accuracy})
        for step in (1, 2, 3):
            write_scalars(folder, step, {"masked_lm_accuracy": 0.1 * step})
        tested = {
            "en": {"accuracy": 80.0, "trivial_accuracy": 40.0},
            "de": {"accuracy": 50.0 + 10 * index, "trivial_accuracy": 30.0},
            "fr": {"accuracy": 60.0, "trivial_accuracy": 50.0},
        }
        files.make_folder(f"{folder}_catalogs")
        files.write_json(f"{folder}_catalogs/results.json", {"test": tested})
    layers = [{"mean": 2.0}, {"mean": 5.0}]
    zero = [{"mean": 0.0}] * 2
    languages = [{"layers": layers}, {"layers": zero}]
    measured = [{"languages": languages} for _ in demo.MODELS]
    files.make_folder(str(tmp_path / "neighbours"))
    files.write_json(f"{tmp_path}/neighbours/neighbours.json", {"models": measured})
    seconds = {
        f"{step}_{m}": 12.5 for step in ("pretrain", "finetune") for m in demo.MODELS
    }
    files.write_json(str(tmp_path / "seconds.json"), seconds)
    return tmp_path


def test_table_and_plot(work_dir, capsys):
    demo.report(str(work_dir))
    table = (work_dir / "results.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()]
    cells = {row[0]: row[1:] for row in rows}
    # English, which the task was trained on, is not part of the mean.
    assert cells["accuracy, mean of 2 unseen languages"] == [
        *("55.0%", "60.0%", "65.0%"),
        "40.0%",
    ]
    assert cells["masked-LM accuracy"][:3] == ["25.0%", "35.0%", "45.0%"]
    assert cells["accuracy, de"] == ["50.0%", "60.0%", "70.0%", "30.0%"]
    assert cells["seconds of pre-training"][:2] == ["12.5", "12.5"]
    # Also over the language in which nothing was found.
    assert cells["translations found in layer 1"][0] == "2.5%"
    results = json.loads((work_dir / "results.json").read_text())
    _, small, large = (results[model] for model in demo.MODELS)
    # A wider output table, V * E_out, and a wider MLM head.
    grown = large["pt_parameters"] - small["pt_parameters"]
    assert grown == (48 + 16 + 1 + 2) * (24 - 4)
    assert large["ft_parameters"] == small["ft_parameters"]
    assert (work_dir / "results.png").read_bytes().startswith(b"\x89PNG")
    assert "results.png" in capsys.readouterr().out


@pytest.mark.usefixtures("empty_pictures")
def test_a_run_without_a_whole_event_is_reported(work_dir):
    for path in work_dir.glob("*/events.out.tfevents.*"):
        path.write_bytes(b"")
    demo.report(str(work_dir))
    assert (work_dir / "results.png").exists()
