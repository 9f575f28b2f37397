"""Nearest-neighbour translation per layer, recomputed with scipy."""

import numpy as np
import pytest

from decoupled.analyses import neighbours
from decoupled.analyses.sentence_vectors import encode_texts
from decoupled.core.errors import UserError
from tests.analyses.sentences import (
    ENGLISH,
    OTHERS,
    open_model,
    retrieval,
    write_trained_model,
)

# The paper's way (appendix A.9).
PAPER = dict(pool_special_tokens=False, centre=True, scoring="euclidean")
# Half of the sentences are their own translations.
TRANSLATIONS = [*ENGLISH[:5], *OTHERS[:5]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_trained_model(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def parallel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parallel")
    for name, lines in (("xx", TRANSLATIONS), ("en", ENGLISH)):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return neighbours.ParallelFiles("xx", str(folder / "xx"), str(folder / "en"))


@pytest.fixture(scope="module")
def result(model, parallel):
    return neighbours.measure([model], [parallel], 0, retrieval(**PAPER))


def test_mistakes_are_found_before_the_first_model_encodes(
    model, parallel, monkeypatch, tmp_path
):
    def encode(*_):
        raise AssertionError("encoded")

    monkeypatch.setattr(neighbours, "vectors_by_layer", encode)
    settings = (0, retrieval(**PAPER))
    with pytest.raises(UserError, match="no config.json"):
        neighbours.measure([model, str(tmp_path)], [parallel], *settings)
    missing = parallel._replace(target=str(tmp_path / "none"))
    with pytest.raises(UserError, match="none"):
        neighbours.measure([model], [parallel, missing], *settings)


def test_accuracy_is_that_of_the_nearest_after_the_translation_vector(
    model, parallel, result
):
    distance = pytest.importorskip("scipy.spatial.distance")
    encoder, vectors = open_model(model), np.zeros([3, 20, 8])
    for places, pooled in encode_texts(
        encoder, [*TRANSLATIONS, *ENGLISH], range(3), retrieval(**PAPER)
    ):
        vectors[:, places] = list(pooled.values())
    (entry,) = result["models"][0]["languages"]
    assert [layer["layer"] for layer in entry["layers"]] == [0, 1, 2]
    for layer in entry["layers"]:
        source, target = np.split(vectors[layer["layer"]], 2)
        moved = source + (target - source).mean(axis=0)
        distances = distance.cdist(moved, target)
        places = np.arange(len(ENGLISH))
        forward = 100 * np.mean(distances.argmin(axis=1) == places)
        backward = 100 * np.mean(distances.argmin(axis=0) == places)
        assert layer["forward"] == pytest.approx(forward)
        assert layer["backward"] == pytest.approx(backward)
        assert layer["forward_interval"][0] < forward <= layer["forward_interval"][1]


def test_sentences_that_are_their_own_translations_are_found(model, parallel):
    rows = neighbours.layer_accuracies(open_model(model), parallel, 5, retrieval())
    assert [(row.pairs, row.forward, row.backward) for row in rows] == [
        (5, 100, 100)
    ] * 3


def test_an_equal_sentence_elsewhere_is_right(model, tmp_path):
    for name in ("a", "b"):
        lines = [ENGLISH[0], ENGLISH[1], ENGLISH[0]]
        (tmp_path / name).write_text("\n".join(lines), encoding="utf-8")
    files = neighbours.ParallelFiles("xx", str(tmp_path / "a"), str(tmp_path / "b"))
    rows = neighbours.layer_accuracies(open_model(model), files, 0, retrieval())
    assert {row.forward for row in rows} == {100}


def test_table_and_plots(model, parallel, result, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    neighbours.show(result)
    shown = capsys.readouterr().out
    layer = result["models"][0]["languages"][0]["layers"][0]
    assert f"{layer['forward']:.1f} (" in shown
    assert "among 10 pairs" in " ".join(shown.split())
    both = {
        **result,
        "models": [*result["models"], {**result["models"][0], "name": "B"}],
    }
    paths = neighbours.plot(both, str(tmp_path / "two"))
    assert paths == [str(tmp_path / "two.png"), str(tmp_path / "two.svg")]
    svg = (tmp_path / "two.svg").read_text(encoding="utf-8")
    for text in (
        "xx: source to target",
        "accuracy, %",
        "layer (0: input embedding)",
        "Nearest-neighbour translation; bands: 95% confidence intervals",
        "B",
    ):
        assert f">{text}<" in svg


def test_files_that_do_not_belong_together(model, parallel, tmp_path):
    (tmp_path / "short").write_text("One line.\n")
    files = parallel._replace(target=str(tmp_path / "short"))
    with pytest.raises(UserError, match="short .language xx.: 1 lines"):
        neighbours.layer_accuracies(open_model(model), files, 0, retrieval())
