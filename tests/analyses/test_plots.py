"""What all plots share."""

import pathlib
import sys

import pytest

from decoupled.analyses import plots

pytest.importorskip("matplotlib", reason="needs the [demo] extra")


def test_series_differ_in_more_than_colour():
    looks = [plots.look(index) for index in range(28)]
    told_apart = {(look["marker"], look["linestyle"]) for look in looks}
    assert len(told_apart) == 28
    assert {look["color"] for look in looks} == set(plots.COLOURS)


def draw(stem):
    figure, [[axes]] = plots.grid(1, 1, 3.0, 2.0)
    for index in range(3):
        axes.plot([1, 2, index], label=f"series {index}", **plots.look(index))
    plots.tidy(axes)
    plots.title_and_legend(figure, axes, "A title")
    return plots.save(figure, stem)


def test_the_same_numbers_give_the_same_bytes(tmp_path):
    first, second = draw(str(tmp_path / "a")), draw(str(tmp_path / "b"))
    assert first == [f"{tmp_path}/a.png", f"{tmp_path}/a.svg"]
    for one, other in zip(first, second, strict=True):
        assert pathlib.Path(one).read_bytes() == pathlib.Path(other).read_bytes()
    assert len(list(tmp_path.iterdir())) == 4


def test_without_matplotlib_there_is_no_plot(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None)
    assert plots.draw(lambda result, stem: sys.exit(1), {}, str(tmp_path)) == []
    assert "no plot: matplotlib is not installed" in capsys.readouterr().out
