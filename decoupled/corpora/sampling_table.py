"""What sampling does to each language, as rows, a table and JSON."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from decoupled.configs import SamplingConfig
from decoupled.core import console
from decoupled.corpora.sampling import drawn_by

# A table of more languages than this shows the largest and the smallest of them.
_LARGEST, _SMALLEST = 8, 4


class LanguageRow(NamedTuple):
    """One language of a run or a sample.

    sentences: that there are. share: of all sentences. drawn: share of what is drawn.
    epochs: how often its text is seen on average.
    by: what decides `drawn`: "alpha", "weight", "minimum" or "maximum" (of epochs), or
      "-" where nothing is drawn.
    """

    language: str
    sentences: int
    share: float
    drawn: float
    epochs: float
    by: str


def language_rows(
    sentences: Mapping[str, int],
    shares: Mapping[str, float],
    sampling: SamplingConfig,
    epoch: Mapping[str, int],
    total: int,
) -> list[LanguageRow]:
    """A row per language, most sentences first; arguments as of `language_shares`."""
    decided = drawn_by(shares, sampling, epoch, total)
    everything = sum(sentences.values())
    rows = [
        LanguageRow(
            language=name,
            sentences=count,
            share=count / everything,
            drawn=shares[name],
            epochs=shares[name] * total / epoch[name] if shares[name] else 0.0,
            by=decided[name] if shares[name] else "-",
        )
        for name, count in sentences.items()
    ]
    return sorted(rows, key=lambda row: (-row.sentences, row.language))


def print_rows(title: str, rows: list[LanguageRow]) -> None:
    """Prints the table; of many languages, the largest, the smallest and a summary."""
    shown = [list(row) for row in rows]
    if len(rows) > _LARGEST + _SMALLEST:
        middle = rows[_LARGEST:-_SMALLEST]
        shown[_LARGEST:-_SMALLEST] = [_summary(middle)]
    for row in shown:
        row[2:4] = [_percent(share) for share in row[2:4]]
    columns = ["language", "sentences", "share", "drawn", "epochs", "by"]
    console.table(title, columns, shown)


def as_json(rows: list[LanguageRow]) -> dict[str, dict[str, Any]]:
    """Language -> its row."""
    return {
        row.language: {
            "sentences": row.sentences,
            "share": round(row.share, 9),
            "drawn": round(row.drawn, 9),
            "epochs": round(row.epochs, 6),
            "by": row.by,
        }
        for row in rows
    }


def _summary(rows: list[LanguageRow]) -> list[Any]:
    """Sums of several languages, and the range of their epochs."""
    epochs = [row.epochs for row in rows]
    return [
        f"{len(rows)} more",
        sum(row.sentences for row in rows),
        sum(row.share for row in rows),
        sum(row.drawn for row in rows),
        f"{min(epochs):.4g} to {max(epochs):.4g}",
        ", ".join(sorted({row.by for row in rows})),
    ]


def _percent(share: float) -> str:
    """Three digits: 12.3%, 0.0456%."""
    return f"{100 * share:.3g}%"
