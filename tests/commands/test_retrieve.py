"""The command that finds translations: predictions, results and their score."""

import json
import shutil

import numpy as np
import pytest

from decoupled.analyses.models import layer_vectors
from decoupled.analyses.retrieval import TranslationSearch, add_means
from decoupled.commands import retrieve
from decoupled.core.errors import UserError
from decoupled.launch import gin_files
from decoupled.xtreme.scoring import score
from tests.analyses.sentences import (
    ENGLISH,
    OTHER_LANGUAGES,
    open_model,
    retrieval,
    write_trained_model,
)

# Six of ten sentences are their own translations.
SOURCES = {
    "sw": [*ENGLISH[:6], *OTHER_LANGUAGES[:4]],
    "th": [*OTHER_LANGUAGES[2:6], *ENGLISH[4:]],
}


def write_lines(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A download folder with Tatoeba, unsorted, and BUCC."""
    folder = tmp_path_factory.mktemp("download")
    for language, sources in SOURCES.items():
        write_lines(folder / f"tatoeba/{language}-en.{language}", sources)
        write_lines(folder / f"tatoeba/{language}-en.en", ENGLISH)
    write_bucc(folder / "bucc2018", "zh")
    return folder


def write_bucc(folder, language):
    """The first sentences of both sides are translations: the same sentence."""
    for split, shared in (("dev", ENGLISH[:3]), ("test", ENGLISH[3:7])):
        for side, rest in ((language, OTHER_LANGUAGES), ("en", ENGLISH[7:])):
            rows = [f"{side}-{i}\t{text}" for i, text in enumerate([*shared, *rest])]
            write_lines(folder / f"{language}-en.{split}.{side}", rows)
        gold = [f"{language}-{i}\ten-{i}" for i in range(len(shared))]
        write_lines(folder / f"{language}-en.{split}.gold", gold)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_trained_model(tmp_path_factory.mktemp("trained"))


def run(model, data, output, task="tatoeba", languages=None, **settings):
    config = retrieval(**settings)
    folders = str(data), model, str(output)
    return TranslationSearch(config, task, *folders, languages).run()


@pytest.fixture(scope="module")
def tatoeba(model, data, tmp_path_factory):
    """The folder of a run, and what it returned."""
    folder = tmp_path_factory.mktemp("tatoeba")
    return folder, run(model, data, folder, layer=1)


def predictions(folder, name):
    return (folder / "predictions" / name).read_text(encoding="utf-8").splitlines()


def test_predictions_are_places_on_the_sorted_english_side(model, tatoeba):
    distance = pytest.importorskip("scipy.spatial.distance")
    folder, _ = tatoeba
    encoder, config = open_model(model), retrieval(layer=1)
    texts = [*sorted(ENGLISH), *SOURCES["sw"], *SOURCES["th"]]
    vectors = layer_vectors(encoder, texts, config)
    candidates, *sides = np.split(vectors, 3)
    for language, side in zip(SOURCES, sides, strict=True):
        nearest = distance.cdist(side, candidates, "cosine").argmin(axis=1)
        found = predictions(folder, f"tatoeba/test-{language}.tsv")
        assert found == [str(place) for place in nearest]


def test_results_stand_beside_those_of_random_pairs(tatoeba):
    folder, returned = tatoeba
    results = json.loads((folder / "results.json").read_text())
    assert results == returned
    assert results["settings"]["layer"] == 1
    assert results["global_step"] == 7
    swahili = results["languages"]["sw"]
    assert swahili["accuracy"] >= 60
    assert swahili["random_accuracy"] == 10
    assert results["mean"]["accuracy"] == pytest.approx(
        np.mean([entry["accuracy"] for entry in results["languages"].values()])
    )


def test_percent_have_two_decimals_and_other_units_stay():
    german = {"f1": 100.0, "random_f1": 0.01234, "threshold": 1.03456, "pairs": 1234}
    languages = {"de": {**german, "data": ""}, "fr": {**german, "f1": 8.3333}}
    columns, rows = add_means({"task": "bucc2018", "languages": languages})
    assert columns == list(german)
    assert ["de", "100.00", "0.01", 1.03456, 1234] in rows
    assert ["fr", "8.33", "0.01", 1.03456, 1234] in rows


def test_scores_are_those_of_the_score_command(tatoeba, data):
    folder, results = tatoeba
    scores = score(str(folder / "predictions"), str(data), ["tatoeba"], list(SOURCES))
    found = {name: entry["accuracy"] for name, entry in results["languages"].items()}
    assert scores["tatoeba"]["accuracy"] == found
    assert scores["tatoeba"]["avg_accuracy"] == results["mean"]["accuracy"]


def test_xtreme_hides_the_alignment_and_gets_the_same_predictions(
    model, tatoeba, tmp_path, capsys
):
    write_lines(tmp_path / "data/tatoeba/sw-en.sw", SOURCES["sw"])
    write_lines(tmp_path / "data/tatoeba/sw-en.en", sorted(ENGLISH))
    results = run(model, tmp_path / "data", tmp_path / "out", layer=1)
    assert results["languages"]["sw"].keys() == {"random_accuracy", "examples", "data"}
    name = "tatoeba/test-sw.tsv"
    assert predictions(tmp_path / "out", name) == predictions(tatoeba[0], name)
    shown = capsys.readouterr().out
    assert "do not tell what is right" in shown
    assert "tatoeba: no files of ar, he, vi" in shown and "ko, th, zh, kk" in shown
    assert "; XTREME's score of the task needs all of them" in shown


def test_a_language_outside_xtreme_is_marked_and_in_no_mean(
    model, data, tatoeba, tmp_path, capsys
):
    for side in ("sw", "en"):
        text = (data / f"tatoeba/sw-en.{side}").read_text()
        name = "mt" if side == "sw" else side
        write_lines(tmp_path / f"data/tatoeba_parallel/mt-en.{name}", text.splitlines())
        write_lines(tmp_path / f"data/tatoeba_parallel/sw-en.{side}", text.splitlines())
    results = run(model, tmp_path / "data", tmp_path / "out", layer=1)
    assert results["languages"]["mt"] == results["languages"]["sw"]
    swahili = tatoeba[1]["languages"]["sw"]["accuracy"]
    assert results["mean"]["accuracy"] == swahili
    assert results["outside_xtreme"] == ["mt"]
    assert "mt (outside XTREME)" in capsys.readouterr().out
    # The score command reads labels of this folder, too, and marks the same language.
    scores = score(
        str(tmp_path / "out/predictions"), str(tmp_path / "data"), None, ["sw", "mt"]
    )
    assert scores["tatoeba"]["accuracy"] == {"sw": swahili}
    assert scores["outside_xtreme"]["tatoeba"]["accuracy"] == {"mt": swahili}


def test_a_language_without_a_score_is_in_no_mean(
    model, data, tatoeba, tmp_path, capsys
):
    """With one pair, the English side is sorted and does not tell what is right."""
    shutil.copytree(data / "tatoeba", tmp_path / "data/tatoeba")
    for side, text in (("sw", "Habari"), ("en", "News")):
        (tmp_path / f"data/tatoeba/sw-en.{side}").write_text(f"{text}\n")
    results = run(model, tmp_path / "data", tmp_path / "out", layer=1)
    thai = tatoeba[1]["languages"]["th"]
    assert results["mean"] == {k: v for k, v in thai.items() if k != "data"}
    assert results["without_score"] == ["sw"]
    assert "sw (no score, in no mean)" in capsys.readouterr().out


def test_no_language_is_refused(model, data, tmp_path):
    with pytest.raises(UserError, match="--languages: names none"):
        run(model, data, tmp_path / "out", languages=[])


def test_a_run_goes_on_with_what_is_missing(model, data, tatoeba, tmp_path, capsys):
    whole = tatoeba[1]
    first = run(model, data, tmp_path, layer=1, languages=["th"])
    assert list(first["languages"]) == ["th"]
    place = tmp_path / "predictions/tatoeba/test-th.tsv"
    place.write_text("kept\n")
    assert run(model, data, tmp_path, layer=1) == whole
    assert place.read_text() == "kept\n"
    assert "has 1 of 2 languages, reused" in capsys.readouterr().out


def test_results_of_other_files_are_not_mixed_with_those_of_now(
    model, data, tatoeba, tmp_path
):
    shutil.copytree(tatoeba[0], tmp_path / "out")
    shutil.copytree(data / "tatoeba", tmp_path / "data/tatoeba")
    for change in (str.swapcase, None):
        for side in ("sw", "en"):
            path = tmp_path / f"data/tatoeba/sw-en.{side}"
            path.write_text(change(path.read_text())) if change else path.unlink()
        with pytest.raises(
            UserError, match="has results of sw, whose files in .*/data"
        ):
            run(model, tmp_path / "data", tmp_path / "out", layer=1, languages=["th"])
    assert json.loads((tmp_path / "out/results.json").read_text()) == tatoeba[1]


def test_a_folder_of_other_settings_is_refused(model, data, tatoeba):
    with pytest.raises(UserError, match=r"another run: settings\.layer is 1, not 2;"):
        run(model, data, tatoeba[0], layer=2)


@pytest.mark.parametrize("entry, name", [("model", "num_heads"), ("vocabulary", "")])
def test_weights_that_compute_something_else_are_another_run(
    model, data, tatoeba, tmp_path, entry, name
):
    """As after a correction of what the weights were converted with."""
    folder = shutil.copytree(tatoeba[0], tmp_path / "out")
    path = folder / "results.json"
    content = json.loads(path.read_text())
    if name:
        content[entry][name] += 1
    else:
        content[entry] = "another"
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=f"of another run: {entry}.*{name} is "):
        run(model, data, folder, layer=1)
    # Earlier versions recorded a setting that is gone, or neither.
    if name:
        content[entry][name] -= 1
        path.write_text(json.dumps(content))
        run(model, data, folder, layer=1)
        content[entry]["output_embedding_rank"] = 0
        path.write_text(json.dumps(content))
        run(model, data, folder, layer=1)
    del content["model"], content["vocabulary"]
    path.write_text(json.dumps(content))
    assert set(run(model, data, folder, layer=1)["languages"]) == {"sw", "th"}


def test_bucc_from_files_to_score(model, data, tmp_path):
    results = run(model, data, tmp_path, "bucc2018", layer=0)
    chinese = results["languages"]["zh"]
    assert chinese["dev_f1"] == chinese["f1"] == 100
    assert chinese["pairs"] == 4
    # 4 of the 10 times 7 pairs.
    assert chinese["random_f1"] == pytest.approx(100 * 4 / 70)
    found = predictions(tmp_path, "bucc2018/test-zh.tsv")
    assert sorted(found) == [f"zh-{i}\ten-{i}" for i in range(4)]
    scores = score(str(tmp_path / "predictions"), str(data), None, ["zh"])
    for metric in ("f1", "precision", "recall"):
        assert scores["bucc2018"][metric]["zh"] == chinese[metric]


def test_languages_and_files_that_are_not_there(model, data, tmp_path):
    with pytest.raises(UserError, match="no 'xx' in .*tatoeba; it has sw, th"):
        run(model, data, tmp_path, languages=["sw", "xx"])
    write_bucc(tmp_path / "bucc2018", "ru")
    (tmp_path / "bucc2018/ru-en.dev.gold").unlink()
    with pytest.raises(UserError, match="ru-en.dev.gold: missing; bucc2018 needs"):
        run(model, tmp_path, tmp_path / "out", "bucc2018")


def test_all_mistakes_are_reported_at_once(model, tmp_path):
    write_lines(tmp_path / "tatoeba/sw-en.sw", SOURCES["sw"])
    write_lines(tmp_path / "tatoeba/sw-en.en", ENGLISH[:4])
    write_lines(tmp_path / "tatoeba/th-en.th", SOURCES["th"])
    with pytest.raises(UserError) as caught:
        run(
            model, tmp_path, tmp_path / "out", languages=["sw", "th", "xx", "yy"],
            layer=9, max_sequence_length=1000,
        )  # fmt: skip
    message = str(caught.value)
    for problem in (
        "5 mistakes: (1) RetrievalConfig.max_sequence_length: 1000",
        "(2) RetrievalConfig.layer: 9",
        "(3) --languages: no 'xx', 'yy' in ",
        "(4) " + str(tmp_path / "tatoeba/sw-en.en"),
        "(5) " + str(tmp_path / "tatoeba/th-en.en") + ": missing",
    ):
        assert problem in message
    assert "\n" not in message
    with pytest.raises(
        UserError, match=r"^2 mistakes: \(1\) .*config.json.*no folder t"
    ):
        run(str(tmp_path), tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_bad_test_file_ends_the_run_before_the_first_sentence(model, tmp_path):
    write_bucc(tmp_path / "bucc2018", "ru")
    write_bucc(tmp_path / "bucc2018", "zh")
    write_lines(tmp_path / "bucc2018/zh-en.test.en", ["no tab"])
    with pytest.raises(UserError, match="zh-en.test.en:1 .*not id, tab, sentence"):
        run(model, tmp_path, tmp_path / "out", "bucc2018")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "task, scoring", [("tatoeba", "cosine"), ("bucc2018", "ratio_margin")]
)
def test_each_task_has_its_scoring(task, scoring):
    root, tasks = retrieve.RetrieveConfig, retrieve.TASKS
    files = ["tasks/retrieval.gin"]
    config = gin_files.configure(root, files, [], task=task, tasks=tasks)
    assert config.retrieval.scoring == scoring
