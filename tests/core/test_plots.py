"""What all plots share."""

import pathlib
import sys
import uuid
from xml.etree import ElementTree

import pytest

from decoupled.core import files, gfile, plots

pytest.importorskip("matplotlib", reason="needs the [plots] extra")
_TEXT = "{http://www.w3.org/2000/svg}text"


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


def test_a_plot_may_be_on_a_remote_file_system():
    """`ram://` is one of TensorFlow's, as `gs://` is."""
    png, svg = draw(f"ram://{uuid.uuid4().hex}")
    assert gfile.GFile(png, "rb").read().startswith(b"\x89PNG")
    assert files.read_text(svg).rstrip().endswith("</svg>")


def test_names_appear_in_plots_as_they_are(tmp_path, recwarn):
    name, shown = "$x^{ \x1b[1m हिन्दी", r"$x^{ \x1b[1m हिन्दी"
    figure, [[left, right]] = plots.grid(1, 2, 3.0, 2.0)
    left.plot([1, 2], [1, 1000], label=name)
    left.set_yscale("log")
    left.set(title=name, xlabel=name)
    left.annotate(name, (1, 1))
    right.bar([0], [1])
    right.set_xticks([0], [name])
    plots.title_and_legend(figure, left, name)
    _, svg = plots.save(figure, str(tmp_path / "a"))
    texts = [element.text.strip() for element in ElementTree.parse(svg).iter(_TEXT)]
    assert texts.count(shown) == 6
    assert {"1", "10", "100", "1000"} <= set(texts)
    assert not any(r"\mathdefault" in text for text in texts)
    assert not recwarn.list


def test_categories_appear_as_they_are(tmp_path):
    figure, [[axes]] = plots.grid(1, 1, 3.0, 2.0)
    axes.plot(["$a^{", "b"], [1, 2])
    _, svg = plots.save(figure, str(tmp_path / "a"))
    texts = [element.text for element in ElementTree.parse(svg).iter(_TEXT)]
    assert texts.count("$a^{") == 1


@pytest.mark.parametrize("places", [[2], [1, 2], range(13), range(0, 3000, 500)])
def test_whole_numbers_stand_at_the_axis_of_layers(places):
    figure, [[axes]] = plots.grid(1, 1, 3.0, 2.0)
    axes.plot(places, places)
    plots.whole_numbers(axes)
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    shown = [place for place in axes.get_xticks() if low <= place <= high]
    assert shown and all(place == round(place) for place in shown)
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert not any("." in label for label in labels)


@pytest.mark.parametrize(
    "seeds, words",
    [
        ([], "one seed"),
        ([1, 0, 1], "one seed"),
        ([3, 3], "bars: standard deviation over 3 seeds"),
        ([3, 1, 0, 2], "bars: standard deviation over 1 to 3 seeds"),
    ],
)
def test_titles_say_what_bars_are(seeds, words):
    assert plots.over_seeds(seeds) == words


def test_without_matplotlib_there_is_no_plot(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not plots.can_draw()
    assert capsys.readouterr().out.startswith(
        "no plots: matplotlib is not installed (needed for plots); run pip install "
    )
