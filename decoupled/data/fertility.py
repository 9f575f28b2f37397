"""The fertility of a vocabulary in each language: tokens per word, unknown tokens.

In the plot, each language has a row with its tokens per word and, beside it, the share
of unknown tokens (of single bytes, if the vocabulary has byte fallback). Languages that
write without spaces are in separate columns, with tokens per character.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from decoupled.core import plots
from decoupled.data.vocabulary import Vocabulary
from decoupled.data.words import UNSPACED

_ENCODED_AT_ONCE = 1000
_ROWS = 35
_ROW_INCHES, _INCHES = 0.19, 2.2
# A language and its measures.
_Row = tuple[str, Mapping[str, Any]]
_LABELS = {
    "tokens_per_word": ("tokens per word", "o", plots.BLUE),
    "tokens_per_character": ("tokens per character", "s", plots.GREEN),
    "unknown_rate": ("unknown tokens, %", "D", plots.ORANGE),
    "byte_rate": ("single bytes, %", "D", plots.ORANGE),
}


class Fertility(NamedTuple):
    """How a vocabulary tokenises the text of a language.

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


def plot_fertility(
    languages: Mapping[str, Mapping[str, Any]], title: str, stem: str
) -> list[str]:
    """Draws the picture; returns the paths `stem`.png and `stem`.svg."""
    blocks = _blocks(languages)
    rate = (
        "byte_rate" if "byte_rate" in next(iter(languages.values())) else "unknown_rate"
    )
    tallest = max(4, *(len(rows) for _, rows in blocks))
    figure, [axes] = plots.grid(
        1,
        2 * len(blocks),
        _INCHES,
        0.5 + _ROW_INCHES * tallest,
        width_ratios=[2, 1] * len(blocks),
    )
    for index, (key, rows) in enumerate(blocks):
        for side, name in zip(axes[2 * index :], (key, rate), strict=False):
            of_all = [r for k, block in blocks if name in (k, rate) for r in block]
            _draw(side, rows, name, max(_values(of_all, name)))
            # Blocks of fewer rows keep the distance between rows, the first on top.
            side.set_ylim(tallest - 0.4, -0.6)
        side.set_yticks([])
    plots.title_and_legend(figure, axes[0], title)
    return plots.save(figure, stem)


def _blocks(languages) -> list[tuple[str, list[_Row]]]:
    """Columns of languages: those with words, most tokens first, then the others. Each
    has the key of the measure on its left."""
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
        blocks += [(key, rows[i : i + height]) for i in range(0, len(rows), height)]
    return blocks


def _values(rows: list[_Row], key: str) -> list[float]:
    scale = 100 if key.endswith("rate") else 1
    return [scale * measured[key] for _, measured in rows]


def _draw(axes, rows: list[_Row], key: str, highest: float) -> None:
    label, marker, colour = _LABELS[key]
    values, places = _values(rows, key), range(len(rows))
    axes.hlines(places, 0, values, color=plots.GREY, linewidth=1)
    style = {"color": colour, "markersize": 4.5, "linestyle": "none"}
    axes.plot(values, places, marker, clip_on=False, **style)
    axes.set_yticks(places, [name for name, _ in rows], fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(label, fontsize=9)
    axes.set_xlim(0, 1.05 * highest if highest else 1)
    plots.tidy(axes, grid="x")
    axes.spines["left"].set_visible(False)
