"""What the sections of the page read, and that a section without values is empty."""

import numpy as np
import pytest

from decoupled.reports.results import Number
from decoupled.reproduction import claims
from decoupled.reproduction.sections import SECTIONS, Lines, plot_lines, row_of
from tests.analyses.tiny_runs import texts_of
from tests.reproduction import invented


def read(title, findings):
    return next(s for s in SECTIONS if s.title.startswith(title)).read(findings)


@pytest.fixture
def findings(tmp_path):
    return invented.findings(tmp_path, ("coupled", "e_small", "e_large"))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda one: one.title)
def test_nothing_measured_gives_no_columns(section, findings):
    empty = findings._replace(numbers=[], measured={}, results={})
    assert not any(section.read(empty).values())


def test_rows_of_models_are_told_by_their_folders():
    assert row_of({"folder": "work/runs/models/e_small/seed_3"}) == "e_small"
    control = {"folder": "/work/runs/control/models/e_small/seed_3/"}
    assert row_of(control) == "control:e_small"


def test_controls_are_no_rows_of_sections(findings):
    columns = read("Instead of Table 8", findings)
    assert list(columns) == ["input", "output"]
    assert all(
        set(one) == {"coupled", "e_small", "e_large"} for one in columns.values()
    )


def test_retrieval_of_nothing_has_logits(findings):
    numbers = [
        Number("e_small", "layers", f"layer {layer}", 0, percent)
        for layer, percent in enumerate([0.0, 50.0, 100.0])
    ]
    columns = read("Figure 2 in logits", findings._replace(numbers=numbers))
    values = [column["e_small"][0] for column in columns.values()]
    assert values == pytest.approx([-7.6, 0.0, 7.6], abs=0.01)


def test_kept_layers_come_in_their_order(findings):
    numbers = [
        Number("e_small", claims.LAYER_DROP, f"layers 1 to {kept}", 0, 60.0 + kept)
        for kept in (10, 2, 9)
    ]
    # What the last layer is worth is no score.
    numbers.append(Number("e_small", claims.LAYER_DROP, "f1", 0, 1.5))
    columns = read("Figure 1", findings._replace(numbers=numbers))
    assert list(columns) == ["2", "9", "10", "all"]
    assert set(columns["all"]) == {"e_small"}


def test_word_similarity_has_a_column_for_each_set_and_embedding(findings):
    entry = {"set": "men", "embedding": "output", "score": "dot", "spearman": 0.25}
    unknown = {**entry, "set": "rare_word", "spearman": None}
    cosine = {**entry, "score": "cosine", "spearman": 0.9}
    model = {
        "folder": "runs/models/e_small/seed_1",
        "correlations": [entry, unknown, cosine],
    }
    results = {"word_similarity": {1: {"models": [model]}}}
    columns = read("Table 8", findings._replace(results=results))
    assert columns == {"men, output": {"e_small": {1: 25.0}}}


def test_a_row_with_fewer_layers_ends_earlier(tmp_path):
    rows = {
        "deep": np.array([[1.0, 2.0, 3.0, np.nan], [2.0, 3.0, 4.0, np.nan]]),
        "shallow": np.array([[1.0, 2.0, np.nan, np.nan]]),
    }
    drawn = Lines("Retrieval", "layer", "%", ["0", "1", "2", "top"], rows)
    plot_lines(drawn, str(tmp_path / "l"))
    found = texts_of(tmp_path / "l.svg")
    assert {"deep", "shallow", "0", "1", "2", "layer"} <= set(found)
    # No row that is drawn has this layer.
    assert "top" not in found
