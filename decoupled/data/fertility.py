"""The fertility of a vocabulary in each language: tokens per word, unknown tokens.

Languages that write without spaces have no words to count. The plot needs matplotlib
(the [plots] extra). Each language has a row with its tokens per word and, beside it,
the share of unknown tokens (of single bytes, if the vocabulary has byte fallback).
Languages that write without spaces are in separate columns, with tokens per character.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from decoupled.core import plots
from decoupled.data.vocabulary import Vocabulary
from decoupled.data.words import UNSPACED

_ENCODED_AT_ONCE = 1000
_ROWS = 35
_ROW_INCHES, _BLOCK_INCHES, _MARGIN_INCHES = 0.19, 4.6, 1.3
_LABELS = {
    "tokens_per_word": ("tokens per word", "o", plots.BLUE),
    "tokens_per_character": ("tokens per character", "s", plots.GREEN),
    "unknown_rate": ("unknown tokens, %", "D", plots.ORANGE),
    "byte_rate": ("single bytes, %", "D", plots.ORANGE),
}


class Fertility(NamedTuple):
    """How a vocabulary tokenises the text of a language.

    sentences, tokens: how many there are.
    tokens_per_word: words are separated by spaces; None if most characters belong to
      scripts without spaces.
    tokens_per_character: spaces count as characters.
    unknown_rate: share of the tokens that are <unk>.
    byte_rate: share of the tokens that are single bytes; None if the vocabulary has no
      such pieces.
    """

    sentences: int
    tokens: int
    tokens_per_word: float | None
    tokens_per_character: float
    unknown_rate: float
    byte_rate: float | None


def measure_fertility(vocabulary: Vocabulary, sentences: Iterable[str]) -> Fertility:
    """Encodes some sentences of one language and counts."""
    sentences = iter(sentences)
    byte_ids = set(vocabulary.byte_ids)
    count = words = characters = unspaced = tokens = unknown = single = 0
    while batch := list(itertools.islice(sentences, _ENCODED_AT_ONCE)):
        count += len(batch)
        words += sum(len(sentence.split()) for sentence in batch)
        characters += sum(map(len, batch))
        unspaced += sum(len(UNSPACED.findall(sentence)) for sentence in batch)
        for ids in vocabulary.encode_batch(batch):
            tokens += len(ids)
            unknown += ids.count(vocabulary.unk_id)
            single += sum(piece in byte_ids for piece in ids) if byte_ids else 0
    spaced = 2 * unspaced <= characters
    return Fertility(
        sentences=count,
        tokens=tokens,
        tokens_per_word=round(tokens / max(words, 1), 4) if spaced else None,
        tokens_per_character=round(tokens / max(characters, 1), 4),
        unknown_rate=round(unknown / max(tokens, 1), 6),
        byte_rate=round(single / max(tokens, 1), 6) if byte_ids else None,
    )


class _PlotBlock(NamedTuple):
    """A column of languages of one kind.

    key: of the measure on the left. rows: (language, its measures).
    """

    key: str
    rows: list[tuple[str, Mapping[str, Any]]]


def plot_fertility(
    languages: Mapping[str, Mapping[str, Any]], title: str, stem: str
) -> list[str]:
    """Draws the picture; returns the paths `stem`.png and `stem`.svg.

    Raises:
      ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    blocks = _blocks(languages)
    rate = (
        "byte_rate" if "byte_rate" in next(iter(languages.values())) else "unknown_rate"
    )
    tallest = max(len(block.rows) for block in blocks)
    size = (
        _BLOCK_INCHES * len(blocks),
        _MARGIN_INCHES + _ROW_INCHES * max(tallest, 4),
    )
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, 2 * len(blocks), width_ratios=[2, 1] * len(blocks))
    for index, block in enumerate(blocks):
        left, right = axes[2 * index : 2 * index + 2]
        _draw(left, block, block.key, tallest, _highest(languages, block.key))
        _draw(right, block, rate, tallest, _highest(languages, rate))
        right.set_yticks([])
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    return plots.save(figure, stem)


def _blocks(languages) -> list[_PlotBlock]:
    """Languages with words, most tokens first, in even columns; then the others."""
    blocks = []
    for key, spaced in (("tokens_per_word", True), ("tokens_per_character", False)):
        rows = [
            (name, measured)
            for name, measured in languages.items()
            if (measured["tokens_per_word"] is not None) == spaced
        ]
        rows.sort(key=lambda row: (-row[1][key], row[0]))
        columns = -(-len(rows) // _ROWS)
        height = -(-len(rows) // columns) if columns else 1
        blocks += [
            _PlotBlock(key, rows[first : first + height])
            for first in range(0, len(rows), height)
        ]
    return blocks


def _values(rows, key) -> list[float]:
    scale = 100 if key.endswith("rate") else 1
    return [scale * measured[key] for _, measured in rows]


def _highest(languages, key) -> float:
    words = key == "tokens_per_word"
    rows = [
        (name, measured)
        for name, measured in languages.items()
        if key.endswith("rate") or (measured["tokens_per_word"] is not None) == words
    ]
    return max(_values(rows, key))


def _draw(axes, block: _PlotBlock, key: str, tallest: int, highest: float) -> None:
    """A dot per language at its value, on a line from 0."""
    label, marker, colour = _LABELS[key]
    values, places = _values(block.rows, key), range(len(block.rows))
    axes.hlines(places, 0, values, color=plots.GREY, linewidth=1)
    axes.plot(
        values,
        places,
        marker,
        color=colour,
        markersize=4.5,
        linestyle="none",
        clip_on=False,
    )
    axes.set_yticks(places, [name for name, _ in block.rows], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label, fontsize=9)
    axes.set_xlim(0, 1.05 * highest if highest else 1)
    # Blocks of fewer rows keep the distance between rows, the first one on top.
    axes.set_ylim(max(tallest, 4) - 0.4, -0.6)
    plots.tidy(axes, grid="x")
    axes.spines["left"].set_visible(False)
