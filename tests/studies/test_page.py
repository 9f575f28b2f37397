"""A page block by block: what stands where, and what lies beside it."""

import pytest

from decoupled.core import files, plots
from decoupled.studies import page as page_module
from decoupled.studies.page import Page, mean


def draw(picture, stem):
    """Writes a picture that is a text."""
    for kind in plots.FORMATS:
        files.write_text(f"{stem}.{kind}", picture)
    return [f"{stem}.{kind}" for kind in plots.FORMATS]


def test_blocks_stand_apart(tmp_path):
    page = Page(str(tmp_path / "r.md"))
    page.heading("Title", level=1)
    page.text("One.")
    page.text("Two.")
    page.items(["a", "b"])
    page.table(["model", "score"], [["coupled", 1]])
    page.write()
    assert (tmp_path / "r.md").read_text() == (
        "# Title\n\nOne.\n\nTwo.\n\n- a\n- b\n\n"
        "| model | score |\n| --- | ---: |\n| coupled | 1 |\n"
    )


@pytest.mark.parametrize(
    "beside, formats, link, kept",
    [
        ("", plots.FORMATS, "![p.png](p.png)\n", {"p.png", "p.svg"}),
        ("r", ("png",), "![p](r/p.png)\n", {"p.png"}),
    ],
)
def test_a_picture_lies_beside_the_page(
    tmp_path, monkeypatch, beside, formats, link, kept
):
    monkeypatch.setattr(page_module, "draw", draw)
    page = Page(str(tmp_path / "r.md"), beside, formats)
    page.picture("p", "drawn")
    page.write()
    assert (tmp_path / "r.md").read_text() == link
    drawn = {p.name for p in (tmp_path / beside).iterdir()} - {"r.md"}
    assert drawn == kept
    assert (tmp_path / beside / "p.png").read_text() == "drawn"


def test_means_over_seeds():
    assert mean({}) == "-"
    assert mean({3: 50.0}) == "50.0"
    assert mean({0: 40.0, 1: 42.0}, {0: 55.0, 1: 55.0}) == "41.0/55.0 ± 1.4/0.0"
    assert mean({0: 3.251, 1: 3.249}, digits=2) == "3.25 ± 0.00"
