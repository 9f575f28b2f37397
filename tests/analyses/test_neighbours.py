"""Nearest-neighbour translation by layer, recomputed with scipy."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy.spatial import distance

from decoupled.analyses import neighbours, output
from decoupled.analyses.models import add_vectors
from decoupled.configs.analyses import NeighbourSettings
from decoupled.core.errors import UserError
from decoupled.metrics.neighbours import mean_interval, wilson_interval
from tests.analyses.sentences import (
    ENGLISH,
    OTHER_LANGUAGES,
    open_model,
    retrieval,
    write_trained_model,
)
from tests.analyses.tiny_runs import show

PAPER = retrieval(pool_special_tokens=False, centre=True, scoring="euclidean")
SETTINGS = NeighbourSettings(PAPER, max_pairs=0)


def test_a_layer_has_no_effect_where_all_are_measured():
    one = dataclasses.replace(PAPER, layer=3)
    with pytest.raises(UserError, match="RetrievalConfig.layer: 3 has no effect"):
        NeighbourSettings(one)


TEXTS = {
    "en": ENGLISH,
    "ti": [*ENGLISH[:4], *OTHER_LANGUAGES],
    "yo": [*OTHER_LANGUAGES[:3], *ENGLISH[3:]],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_trained_model(tmp_path_factory.mktemp("trained"))


def write_sentences(folder, texts):
    folder.mkdir(parents=True, exist_ok=True)
    for language, own in texts.items():
        lines = (f"{name}\t{text}\n" for name, text in own)
        (folder / f"{language}.tsv").write_text("".join(lines), encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Ten sentences of three languages; each file has another order and one more."""
    rows = {
        language: [(f"v{number}", text) for number, text in enumerate(own)]
        for language, own in TEXTS.items()
    }
    for place, (language, own) in enumerate(rows.items()):
        own.insert(place, (f"{language} alone", "Nobody else has it."))
    rows["yo"].reverse()
    return write_sentences(tmp_path_factory.mktemp("corpus") / "test/sentences", rows)


@pytest.fixture(scope="module")
def encoded():
    """The sentences that are encoded for `result`."""
    return []


@pytest.fixture(scope="module")
def result(model, folder, encoded):
    add = neighbours.add_vectors

    def counted(vectors, encoder, texts, *rest):
        encoded.extend(texts)
        add(vectors, encoder, texts, *rest)

    shared = neighbours.read_shared(folder, None, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "add_vectors", counted)
        return neighbours.measure([open_model(model)], [shared], SETTINGS)


def test_sentences_of_all_languages_are_compared(result):
    (entry,) = result["models"][0]["languages"]
    assert (entry["language"], entry["pairs"]) == ("test", 10)
    assert result["items"] == [f"v{number}" for number in range(10)]
    assert [tuple(way) for way in entry["directions"]] == list(
        itertools.permutations(TEXTS, 2)
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two files with the same sentences in two languages."""
    folder = tmp_path_factory.mktemp("files")
    for language in ("en", "ti"):
        text = "\n".join(TEXTS[language]) + "\n"
        (folder / f"ti-en.{language}").write_text(text, encoding="utf-8")
    return str(folder)


@pytest.fixture(scope="module")
def of_files(model, files):
    """The result for two files, whose language is named twice."""
    texts = neighbours.read_files(files, ["ti", "ti"], 0)
    return neighbours.measure([open_model(model)], texts, SETTINGS)


def test_accuracy_is_that_of_the_nearest_after_the_translation_vector(
    model, result, of_files
):
    vectors = np.zeros([3, 20, 8])
    both = [*TEXTS["en"], *TEXTS["ti"]]
    add_vectors(vectors, open_model(model), both, range(3), PAPER)
    (entry,) = of_files["models"][0]["languages"]
    (of_three,) = result["models"][0]["languages"]
    assert (entry["language"], entry["pairs"]) == ("ti", 10)
    assert entry["directions"] == [["en", "ti"], ["ti", "en"]]
    for number, layer in enumerate(entry["layers"]):
        assert layer["layer"] == number
        source, target = np.split(vectors[number], 2)
        moved = source + (target - source).mean(axis=0)
        distances = distance.cdist(moved, target)
        forward, backward = layer["directions"]
        places = np.arange(10)
        for way, axis in ((forward, 1), (backward, 0)):
            expected = 100 * np.mean(distances.argmin(axis=axis) == places)
            assert way["accuracy"] == pytest.approx(expected)
            assert way["interval"][0] < expected <= way["interval"][1]
        # The same two languages among all three.
        shared = of_three["layers"][number]["directions"]
        ways = [of_three["directions"].index(list(way)) for way in entry["directions"]]
        assert [shared[way] for way in ways] == [forward, backward]


@pytest.mark.parametrize("right", [0, 1, 6])
@pytest.mark.parametrize("sentences", range(1, 9))
def test_sentences_that_are_all_alike_are_no_certainty(right, sentences):
    """Even if the mean of equal numbers differs from them in the last bit."""
    hits = np.zeros([6, sentences], np.uint8)
    hits[:right] = 1
    low, high = neighbours._summary(0, hits)["interval"]
    expected = wilson_interval(right * sentences / 6, sentences)
    assert (low / 100, high / 100) == pytest.approx(expected)
    assert high - low > 30


def test_means_and_intervals_are_those_of_the_hits(result):
    (entry,) = result["models"][0]["languages"]
    for layer, hits in zip(entry["layers"], result["arrays"]["0/hits"], strict=True):
        assert layer["mean"] == pytest.approx(100 * hits.mean())
        expected = np.clip(mean_interval(100 * hits.mean(0)), 0, 100)
        assert layer["interval"] == pytest.approx(tuple(expected))
        low, high = wilson_interval(int(hits[2].sum()), 10)
        assert layer["directions"][2]["interval"] == pytest.approx(
            (100 * low, 100 * high)
        )


def test_each_sentence_is_encoded_once(result, encoded):
    assert sorted(encoded) == sorted({text for own in TEXTS.values() for text in own})


def test_an_equal_sentence_elsewhere_is_right(model, tmp_path):
    lines = [("a", ENGLISH[0]), ("b", ENGLISH[1]), ("c", ENGLISH[0])]
    folder = write_sentences(tmp_path / "own", {"ti": lines, "yo": lines})
    shared = neighbours.read_shared(folder, None, 0)
    assert shared.about["language"] == "own"
    hits = neighbours.layer_hits(open_model(model), shared.texts, retrieval())
    assert hits.all()


def test_fewer_sentences_are_chosen_by_their_ids(tmp_path):
    """From the whole text, and the same whatever else stands there."""
    rows = [(f"{number:03d}", f"Text {number}.") for number in range(300)]
    folder = write_sentences(tmp_path, {"ti": rows, "yo": rows})
    shared = neighbours.read_shared(folder, None, 50)
    assert len(shared.ids) == 50
    assert shared.ids == sorted(shared.ids)
    thirds = [sum(name[0] == digit for name in shared.ids) for digit in "012"]
    assert min(thirds) >= 8
    kept = [row for row in rows if row[0] in shared.ids[:30] or row[0] > "150"]
    folder = write_sentences(tmp_path, {"yo": kept})
    again = neighbours.read_shared(folder, ["yo", "ti"], 50)
    assert set(shared.ids[:30]) <= set(again.ids)
    assert again.texts["ti"] == again.texts["yo"]


@pytest.mark.parametrize(
    "rows, languages, message",
    [
        ({"yo": [("a", "A.")]}, None, "1 languages; sentences are compared between"),
        ({}, None, "0 languages"),
        ({"yo": [("a", "A.")]}, ["sw"], r"--languages: no sw.tsv in .*; it has yo"),
        (
            {"yo": [("a", "A.")], "ti": [("b", "A.")]},
            None,
            "no id is in all of ti, yo; choose --languages",
        ),
        (
            {"yo": [("a", "A."), ("a", "B.")], "ti": []},
            None,
            r"yo.tsv:2: the id 'a' is repeated",
        ),
    ],
)
def test_folders_that_hold_no_such_sentences(tmp_path, rows, languages, message):
    folder = write_sentences(tmp_path, rows)
    with pytest.raises(UserError, match=message):
        neighbours.read_shared(folder, languages, 0)


def test_tables_and_plots(result, of_files, tmp_path, capsys):
    shown, drawn = show(neighbours, result, tmp_path / "shared", capsys)
    layer = result["models"][0]["languages"][0]["layers"][1]
    assert f"{layer['mean']:.1f} ({layer['interval'][0]:.1f}" in shown
    assert "ti to en" in shown and "mean, test" in shown
    assert "Nearest-neighbour translation, mean of all directions" in " ".join(drawn)
    both = {**of_files, "models": [*of_files["models"], *of_files["models"]]}
    both["models"][1] = {**both["models"][0], "name": "B"}
    shown, drawn = show(neighbours, both, tmp_path / "files", capsys)
    assert "en to ti" in shown
    assert {"ti", "accuracy, %", "layer (0: input embedding)", "B"} <= set(drawn)


@pytest.mark.usefixtures("empty_pictures")
def test_nothing_of_an_earlier_analysis_stays(result, tmp_path, monkeypatch):
    def write(result):
        output.write(str(tmp_path), result, lambda result: [], neighbours.picture)

    def left():
        return sorted(path.name for path in tmp_path.iterdir())

    write(result)
    first = left()
    assert first == [f"neighbours.{n}" for n in ("items.npz", "json", "png", "svg")]
    with pytest.raises(UserError, match="a number is NaN"):
        write(result | {"accuracy": math.nan})
    assert left() == first
    monkeypatch.setattr(output.plots, "can_draw", lambda: False)
    write({name: value for name, value in result.items() if name != "arrays"})
    assert left() == ["neighbours.json"]


@pytest.mark.usefixtures("empty_pictures")
def test_a_kill_leaves_no_files_of_two_analyses(result, tmp_path, monkeypatch):
    def write():
        output.write(str(tmp_path), result, lambda result: [], neighbours.picture)

    def kill(*_):
        raise KeyboardInterrupt

    write()
    monkeypatch.setattr(output.files, "write_arrays", kill)
    with pytest.raises(KeyboardInterrupt):
        write()
    assert not [*tmp_path.iterdir()]
