"""Nearest neighbours between several languages, recomputed pair by pair."""

import itertools

import numpy as np
import pytest

from decoupled.analyses import multi_parallel, neighbours
from decoupled.core.errors import UserError
from decoupled.metrics.neighbours import mean_interval, wilson_interval
from tests.analyses.sentences import (
    ENGLISH,
    OTHERS,
    open_model,
    retrieval,
    write_trained_model,
)

PAPER = retrieval(pool_special_tokens=False, centre=True, scoring="euclidean")
TEXTS = {
    "en": ENGLISH,
    "ti": [*ENGLISH[:4], *OTHERS],
    "yo": [*OTHERS[:3], *ENGLISH[3:]],
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
def result(model, folder):
    shared = multi_parallel.read_shared(folder, None, 0)
    return multi_parallel.measure([model], shared, 0, PAPER)


def test_sentences_of_all_languages_are_compared(result):
    assert result["split"] == "test"
    assert result["items"] == [f"v{number}" for number in range(10)]
    assert [tuple(way) for way in result["directions"]] == list(
        itertools.permutations(TEXTS, 2)
    )


def test_accuracy_is_that_of_two_files(result, model, tmp_path):
    """As the other mode, which reads and encodes two languages."""
    for language, own in TEXTS.items():
        (tmp_path / language).write_text("\n".join(own) + "\n", encoding="utf-8")
    hits = result["arrays"]["0/hits"]
    assert (hits.dtype, hits.shape) == (np.uint8, (3, 6, 10))
    layers = result["models"][0]["layers"]
    for pair in itertools.combinations(TEXTS, 2):
        files = neighbours.ParallelFiles("", *(str(tmp_path / own) for own in pair))
        rows = neighbours.layer_accuracies(open_model(model), files, 0, PAPER)
        forward, backward = (
            result["directions"].index(list(way)) for way in (pair, pair[::-1])
        )
        for layer, row in enumerate(rows):
            ways = layers[layer]["directions"]
            assert ways[forward]["accuracy"] == pytest.approx(row.forward)
            assert ways[backward]["accuracy"] == pytest.approx(row.backward)
            assert ways[forward]["interval"] == pytest.approx(row.forward_interval)
            assert 100 * hits[layer, backward].mean() == pytest.approx(row.backward)


def test_means_and_intervals_are_those_of_the_hits(result):
    for layer, hits in zip(
        result["models"][0]["layers"], result["arrays"]["0/hits"], strict=True
    ):
        assert layer["mean"] == pytest.approx(100 * hits.mean())
        assert layer["interval"] == pytest.approx(mean_interval(100 * hits.mean(0)))
        low, high = wilson_interval(int(hits[2].sum()), 10)
        assert layer["directions"][2]["interval"] == pytest.approx(
            (100 * low, 100 * high)
        )


def test_each_sentence_is_encoded_once(model, folder, monkeypatch):
    seen = []
    encode = neighbours.encode_texts

    def counted(encoder, texts, *rest):
        seen.extend(texts)
        return encode(encoder, texts, *rest)

    monkeypatch.setattr(neighbours, "encode_texts", counted)
    shared = multi_parallel.read_shared(folder, None, 0)
    multi_parallel.layer_hits(open_model(model), shared, PAPER)
    assert sorted(seen) == sorted({text for own in TEXTS.values() for text in own})


def test_an_equal_sentence_elsewhere_is_right(model, tmp_path):
    lines = [("a", ENGLISH[0]), ("b", ENGLISH[1]), ("c", ENGLISH[0])]
    folder = write_sentences(tmp_path / "own", {"ti": lines, "yo": lines})
    shared = multi_parallel.read_shared(folder, None, 0)
    assert shared.split == "own"
    hits = multi_parallel.layer_hits(open_model(model), shared, retrieval())
    assert hits.all()


def test_fewer_sentences_are_chosen_by_their_ids(tmp_path):
    """From the whole text, and the same whatever else stands there."""
    rows = [(f"{number:03d}", f"Text {number}.") for number in range(300)]
    folder = write_sentences(tmp_path, {"ti": rows, "yo": rows})
    shared = multi_parallel.read_shared(folder, None, 50)
    assert len(shared.ids) == 50
    assert shared.ids == sorted(shared.ids)
    thirds = [sum(name[0] == digit for name in shared.ids) for digit in "012"]
    assert min(thirds) >= 8
    kept = [row for row in rows if row[0] in shared.ids[:30] or row[0] > "150"]
    folder = write_sentences(tmp_path, {"yo": kept})
    again = multi_parallel.read_shared(folder, ["yo", "ti"], 50)
    assert set(shared.ids[:30]) <= set(again.ids)
    assert again.texts["ti"] == again.texts["yo"]


def test_the_best_layer_is_chosen_from_the_first_on():
    def layers(*means):
        return {"layers": [{"layer": n, "mean": mean} for n, mean in enumerate(means)]}

    result = {"models": [layers(9, 1, 3, 2), layers(0, 5, 5), layers(7, 4)]}
    assert multi_parallel.best_layer(result) == [2, 1, 1]


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
            r"yo.tsv:2: the id 'a' stands twice",
        ),
        ({"yo": [("a", "A.\tB.")], "ti": []}, None, r"yo.tsv:1: not id, tab, text"),
    ],
)
def test_folders_that_hold_no_such_sentences(tmp_path, rows, languages, message):
    folder = write_sentences(tmp_path, rows)
    with pytest.raises(UserError, match=message):
        multi_parallel.read_shared(folder, languages, 0)


def test_table_and_plots(result, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    multi_parallel.show(result)
    shown = " ".join(capsys.readouterr().out.split())
    assert "among 10 sentences, test" in shown
    layer = result["models"][0]["layers"][1]
    assert f"{layer['mean']:.1f} ({layer['interval'][0]:.1f}" in shown
    assert "ti to en" in shown
    paths = multi_parallel.plot(result, str(tmp_path / "plot"))
    svg = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert paths == [str(tmp_path / "plot.png"), str(tmp_path / "plot.svg")]
    title = "Nearest-neighbour translation, mean of 6 directions; bands: 95%"
    assert f">{title}<" in svg
