"""Scores by layers kept, from folders as fine-tuning writes them."""

import dataclasses
import json

import pytest

from decoupled.analyses import layer_drop
from decoupled.core.errors import UserError
from tests.analyses.tiny_runs import show
from tests.exports.models import model_config


def write_folder(folder, results, task="xnli", command="finetune", data=None, **sizes):
    """config.json and results.json."""
    folder.mkdir(parents=True)
    described = {
        "format": "decoupled-model-1",
        "command": command,
        "model": dataclasses.asdict(model_config(**sizes)),
        "vocabulary": {"fingerprint": "0" * 64, "vocab_size": 48},
        "task": {"name": task, "labels": ["no", "yes"]},
        "data": data or {},
    }
    (folder / "config.json").write_text(json.dumps(described))
    if results is not None:
        (folder / "results.json").write_text(json.dumps(results))
    return str(folder)


def of_xnli(english, swahili, **more):
    def row(value):
        return {"accuracy": value, "trivial_accuracy": 33.3, "examples": 10}

    return {
        "task": "xnli",
        "global_step": 9,
        "checkpoint": "model.ckpt-9",
        "learning_rate": 1e-5,
        "seed": 0,
        # Burmese is outside XTREME's XNLI: in no mean.
        "dev": {"en": row(english), "sw": row(swahili), "my": row(1)},
        "test": {"en": row(english - 1)},
        **more,
    }


@pytest.fixture
def folders(tmp_path):
    """Two widths of output embeddings with 2 and 1 layers kept, one with two runs."""
    kept = [
        (8, 2, of_xnli(70, 60)),
        (8, 1, of_xnli(70, 62)),
        (8, 1, of_xnli(72, 64)),
        (16, 2, of_xnli(74, 66)),
        (16, 1, of_xnli(68, 60)),
    ]
    return [
        write_folder(
            tmp_path / f"{number}", results, output_embedding_size=width, num_layers=n
        )
        for number, (width, n, results) in enumerate(kept)
    ]


def test_models_that_differ_anywhere_are_no_seeds_of_each_other(folders, tmp_path):
    other = write_folder(
        tmp_path / "other",
        of_xnli(90, 80),
        **{"output_embedding_size": 8, "num_layers": 2, "intermediate_size": 48},
    )
    points = layer_drop.measure([folders[0], other])["tasks"]["xnli"]["points"]
    assert [(point["model"], point["mean"]) for point in points] == [
        ("intermediate_size 12", 65),
        ("intermediate_size 48", 85),
    ]


def test_runs_that_were_trained_otherwise_are_no_seeds(tmp_path):
    def write(name, layers=1, **data):
        seed = {"seed": len(name), "init_checkpoint": name}
        return write_folder(
            tmp_path / name, of_xnli(70, 60), data={**seed, **data}, num_layers=layers
        )

    deep, shallow = ({"pretrained_layers": layers} for layers in (2, 1))
    runs = [write("whole", 2, **deep), write("cut", **deep), write("small", **shallow)]
    points = layer_drop.measure(runs)["tasks"]["xnli"]["points"]
    assert sorted((p["model"], p["layers"], p["dropped"]) for p in points) == [
        ("pretrained_layers 1", 1, 0),
        ("pretrained_layers 2", 1, 1),
        ("pretrained_layers 2", 2, 0),
    ]
    # Earlier versions recorded neither.
    assert (
        len(layer_drop.measure([*runs, write("old")])["tasks"]["xnli"]["points"]) == 2
    )
    features = {"max_sequence_length": 9}
    earlier = write("earlier", optimizer={"name": "adamw"}, features=features)
    later = write("later", features={**features, "version": 2})
    assert layer_drop.measure([earlier, later])
    # Another optimizer than that of today, which no run records.
    gone = write("of before", optimizer={"name": "adafactor", "beta1": 0.0})
    now = write("of now", optimizer={"beta1": 0.0})
    with pytest.raises(UserError, match="optimizer.name 'adamw', and .* 'adafactor'"):
        layer_drop.measure([gone, now])
    frozen = write("frozen", **deep, freeze_input_embedding=True)
    plain = write("plain", **deep, freeze_input_embedding=False)
    with pytest.raises(
        UserError, match="plain: .* freeze_input_embedding False, and .*"
    ):
        layer_drop.measure([frozen, plain])


def test_points_by_hand(folders):
    result = layer_drop.measure(folders)
    found = result["tasks"]["xnli"]
    assert found["languages"] == ["en", "sw"]
    points = [
        (p["model"], p["layers"], p["dropped"], p["mean"], p["std"])
        for p in found["points"]
    ]
    # The deviation of 66 and 68 is the root of 2.
    assert sorted(points, key=str) == [
        ("E_out 16", 1, 1, 64, None),
        ("E_out 16", 2, 0, 70, None),
        ("E_out 8", 1, 1, 67, pytest.approx(2**0.5)),
        ("E_out 8", 2, 0, 65, None),
    ]


def test_another_split(folders):
    [*_, point] = layer_drop.measure(folders, "test")["tasks"]["xnli"]["points"]
    assert point["scores"] == [69]


def write_seeds(folder, seeds, together, **more):
    """A folder with runs of seeds 0 and 1, and one with another rate."""
    rate, other = 1e-5, 2e-5
    runs = [
        {
            "learning_rate": r,
            "seed": s,
            "checkpoint": f"learning_rate_{r:g}/seed_{s}/{c}",
        }
        for r, s, c in (
            (rate, 0, "best/model.ckpt-9"),
            (other, 0, "model.ckpt-9"),
            (rate, 1, "model.ckpt-9"),
        )
    ]
    path = write_folder(folder, {**together, "runs": runs}, **more)
    for seed, results in enumerate(seeds):
        write_folder(folder / f"learning_rate_{rate:g}/seed_{seed}", results, **more)
    return path


def test_seeds_below_a_folder_are_read_one_by_one(tmp_path):
    seeds = of_xnli(70, 60), of_xnli(72, 64)
    path = write_seeds(tmp_path / "run", seeds, of_xnli(71, 62))
    assert layer_drop.read_run(path, "dev").scores == [65, 68]


def test_seeds_of_a_task_of_ones_own_are_scored_by_its_metric(tmp_path, capsys):
    def results(score, **more):
        rows = {"en": {"accuracy": 90.0, "macro_f1": score, "examples": 10}}
        return {"task": "own", "learning_rate": 1e-5, "dev": rows, **more}

    headline = ["macro_f1"]
    seeds, together = [results(47.0), results(51.0)], results(49.0, headline=headline)
    about = {"task": "own", "data": {"headline": headline}}
    path = write_seeds(tmp_path / "run", seeds, together, **about)
    seed = f"{path}/learning_rate_1e-05/seed_1"
    assert layer_drop.read_run(path, "dev").scores == [47, 51]
    assert layer_drop.read_run(seed, "dev").scores == [51]
    result = layer_drop.measure([path])
    assert (
        "own dev, macro_f1, mean"
        in show(layer_drop, result, tmp_path / "out", capsys)[0]
    )
    with pytest.raises(UserError, match="seed_1/results.json: is of the same run as"):
        layer_drop.measure([path, seed])
    other = write_folder(tmp_path / "other", results(49.0), task="own")
    with pytest.raises(UserError, match="other: has scores of accuracy, and .*macro"):
        layer_drop.measure([path, other])


def test_a_copy_is_no_other_seed(tmp_path):
    results = of_xnli(70, 60, made_from={"checkpoint": "12ab"})
    paths = [write_folder(tmp_path / name, results) for name in ("run", "copy")]
    with pytest.raises(UserError, match="copy/results.json: is of the same run as .*r"):
        layer_drop.measure(paths)


def test_another_learning_rate_is_no_other_seed(tmp_path):
    def write(name, seed=0, **more):
        results = of_xnli(70, 60, seed=seed, made_from={"checkpoint": name})
        data = {"learning_rate": len(name), "init_checkpoint_sha256": "12ab"}
        return write_folder(tmp_path / name, results, data=data, **more)

    low, others = write("low"), [write("seed_1", seed=1), write("cut", num_layers=1)]
    assert layer_drop.measure([low, *others])
    with pytest.raises(UserError, match="high/results.json: .* or of the same seed"):
        layer_drop.measure([low, *others, write("high")])


def test_seeds_outside_the_folder_are_refused(tmp_path):
    runs = [
        {"learning_rate": 1e-5, "seed": seed, "checkpoint": f"../{seed}/model.ckpt-9"}
        for seed in (0, 1)
    ]
    path = write_folder(tmp_path / "run", of_xnli(71, 62, runs=runs))
    with pytest.raises(UserError, match=r"'\.\./0/results\.json' is not the name"):
        layer_drop.read_run(path, "dev")


def test_questions_are_scored_by_two_metrics(tmp_path):
    rows = {"en": {"exact_match": 40.0, "f1": 60.0, "examples": 5}}
    results = {"task": "xquad", "learning_rate": 1e-5, "dev": rows, "test": {}}
    path = write_folder(tmp_path / "run", results, task="xquad")
    assert layer_drop.read_run(path, "dev").scores == [50]
    message = "has no exact_match, f1 of test; give --split=dev"
    with pytest.raises(UserError, match=message):
        layer_drop.read_run(path, "test")
    path = write_folder(tmp_path / "none", {**results, "dev": {}}, task="xquad")
    message = "has no exact_match, f1 of dev; evaluate files with labels: .* --mode=ev"
    with pytest.raises(UserError, match=message):
        layer_drop.read_run(path, "dev")


def test_what_is_shown(folders, tmp_path, capsys):
    result = layer_drop.measure(folders)
    shown, drawn = show(layer_drop, result, tmp_path / "out", capsys)
    assert "67.00 ± 1.41" in shown
    assert shown.index("E_out 8") < shown.index("E_out 16")
    assert {"E_out 8", "E_out 16", "xnli", "layers kept"} <= set(drawn)
    # One model has two runs. The title takes two lines.
    bars = (
        "Fine-tuned without the last layers; bars: standard deviation over 1 to 2 seeds"
    )
    assert bars in " ".join(drawn)


def test_folders_that_cannot_be_used(folders, tmp_path):
    with pytest.raises(UserError, match="/: is given twice"):
        layer_drop.measure([folders[0], f"{folders[0]}/"])
    path = write_folder(tmp_path / "unfinished", None)
    with pytest.raises(UserError, match="unfinished: no results.json"):
        layer_drop.measure([path])
    path = write_folder(tmp_path / "pretrained", of_xnli(1, 1), command="pretrain")
    with pytest.raises(UserError, match="pretrained: is not a folder of fine-tuning"):
        layer_drop.measure([path])
    results = of_xnli(1, 1)
    del results["dev"]["sw"]
    path = write_folder(tmp_path / "english", results)
    with pytest.raises(UserError, match="english: has scores of en, and .* of en, sw"):
        layer_drop.measure([folders[0], path])
