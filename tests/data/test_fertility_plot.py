"""The picture: rows of languages, and the same files from the same numbers."""

import re

import pytest

from decoupled.data.fertility_plot import plot_fertility

pytest.importorskip("matplotlib", reason="needs the [plots] extra")


def measured(words=1.5, unknown=0.01, **more):
    values = {"tokens_per_word": words, "tokens_per_character": 0.4}
    return {**values, "unknown_rate": unknown, **more}


def texts(path):
    with open(path, encoding="utf-8") as file:
        return re.findall(r"<text [^>]*>([^<]+)</text>", file.read())


@pytest.mark.parametrize("count", [1, 12, 104])
def test_every_language_has_a_row(tmp_path, count):
    names = [f"language-{index}" for index in range(count)]
    languages = {name: measured(1 + index) for index, name in enumerate(names)}
    png, svg = plot_fertility(languages, "8,000 pieces", str(tmp_path / "plot"))
    assert (png, svg) == (f"{tmp_path}/plot.png", f"{tmp_path}/plot.svg")
    with open(png, "rb") as file:
        assert file.read(4) == b"\x89PNG"
    shown = [text for text in texts(svg) if text.startswith("language-")]
    # Most tokens first.
    assert shown == names[::-1]
    assert "8,000 pieces" in texts(svg)


def test_languages_without_words_stand_apart(tmp_path):
    languages = {"en": measured(), "ja": measured(None), "th": measured(None)}
    _, svg = plot_fertility(languages, "pieces", str(tmp_path / "plot"))
    labels = [text for text in texts(svg) if text.startswith("tokens per")]
    assert labels == ["tokens per word", "tokens per character"]
    _, svg = plot_fertility({"ja": measured(None)}, "pieces", str(tmp_path / "other"))
    assert "tokens per word" not in texts(svg)


def test_byte_fallback_shows_bytes_in_place_of_unknown(tmp_path):
    languages = {"en": measured(unknown=0.0, byte_rate=0.02)}
    _, svg = plot_fertility(languages, "pieces", str(tmp_path / "plot"))
    assert "single bytes, %" in texts(svg)
    assert "unknown tokens, %" not in texts(svg)


def test_the_same_numbers_give_the_same_files(tmp_path):
    languages = {"en": measured(), "ja": measured(None)}
    first, second = (
        plot_fertility(languages, "pieces", str(tmp_path / name)) for name in "ab"
    )
    for one, other in zip(first, second, strict=True):
        with open(one, "rb") as a, open(other, "rb") as b:
            assert a.read() == b.read()
    assert len(list(tmp_path.iterdir())) == 4
