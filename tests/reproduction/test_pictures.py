"""Pictures of the reproduction have what was measured, also where there are gaps."""

import numpy as np
import pytest

from decoupled.reproduction import pictures
from tests.analyses.tiny_runs import texts_of


def test_curves_name_rows_and_the_unigram_level(tmp_path):
    losses = np.array([[6.0, 5.0, 3.0], [6.0, 5.5, 3.2]])
    drawn = pictures.Curves(
        {"coupled": [10, 20, 30], "e_small": [10, 20]},
        {"coupled": losses, "e_small": losses[:, :2]},
        5.9,
        {"coupled": 15.0},
    )
    paths = pictures.plot_curves(drawn, str(tmp_path / "c"))
    assert [path.rpartition(".")[2] for path in paths] == ["png", "svg"]
    assert {"coupled", "e_small", "unigram entropy", "step"} <= set(
        texts_of(tmp_path / "c.svg")
    )


def test_contrasts_are_drawn_in_margins(tmp_path, monkeypatch):
    bars = [
        pictures.Bar("3: S", 2.0, 1.0, 3.0, 1.0),
        pictures.Bar("7: last layer", 0.2, 0.1, 0.3, 0.1),
    ]
    drawn = []
    monkeypatch.setattr(pictures.plots, "save", lambda figure, _: drawn.append(figure))
    pictures.plot_contrasts(bars, str(tmp_path / "f"))
    axes = drawn[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "3: S",
        "7: last layer",
    ]
    for container in axes.containers:
        line, _, [bar] = container.lines
        assert line.get_xdata() == pytest.approx([2.0])
        assert bar.get_segments()[0][:, 0] == pytest.approx([1.0, 3.0])


def test_a_row_with_fewer_layers_ends_earlier(tmp_path):
    rows = {
        "deep": np.array([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]),
        "shallow": np.array([[1.0, 2.0, np.nan]]),
    }
    drawn = pictures.Lines("Retrieval", "layer", "%", ["0", "1", "2"], rows)
    pictures.plot_lines(drawn, str(tmp_path / "l"))
    found = texts_of(tmp_path / "l.svg")
    assert {"deep", "shallow", "0", "1", "2", "layer"} <= set(found)
