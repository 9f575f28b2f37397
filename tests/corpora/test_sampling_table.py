"""The table that a run begins with: readable for one language and for a hundred."""

import pytest

from decoupled.configs import SamplingConfig
from decoupled.corpora.sampling import language_shares
from decoupled.corpora.sampling_table import as_json, language_rows, print_rows

COUNTS = {"en": 900, "no": 0, "sw": 10, "tr": 90}


def rows(config, counts=COUNTS, total=1000):
    shares = language_shares(counts, config, counts, total, "sentences")
    return language_rows(counts, shares, config, counts, total)


def test_rows_largest_first():
    found = rows(SamplingConfig(0.0, {"en": 0.3}, None, {"sw": 20}))
    # sw is at 20 epochs of 10 sentences, .2 of 1000 draws; tr and en share the rest as
    # .35 to .3.
    assert [tuple(row)[:2] for row in found] == [
        ("en", 900),
        ("tr", 90),
        ("sw", 10),
        ("no", 0),
    ]
    assert [row.share for row in found] == pytest.approx([0.9, 0.09, 0.01, 0])
    drawn = [0.8 * 0.3 / 0.65, 0.8 * 0.35 / 0.65, 0.2, 0]
    assert [row.drawn for row in found] == pytest.approx(drawn)
    epochs = [1000 * drawn[0] / 900, 1000 * drawn[1] / 90, 20, 0]
    assert [row.epochs for row in found] == pytest.approx(epochs)
    assert [row.by for row in found] == ["weight", "alpha", "maximum", "-"]


def test_json_has_every_language():
    found = as_json(rows(SamplingConfig(1.0, None, None, None)))
    assert list(found) == ["en", "tr", "sw", "no"]
    assert found["tr"] == {
        "sentences": 90,
        "share": 0.09,
        "drawn": 0.09,
        "epochs": 1.0,
        "by": "alpha",
    }


def test_few_languages_are_all_shown(capsys):
    print_rows("languages", rows(SamplingConfig(1.0, None, None, None)))
    printed = capsys.readouterr().out
    assert printed.startswith("languages")
    lines = [line.split() for line in printed.splitlines()]
    assert ["tr", "90", "9%", "9%", "1", "alpha"] in lines


def test_many_languages_are_summarised(capsys):
    counts = {f"l{index:03d}": 10 * (104 - index) for index in range(104)}
    config = SamplingConfig(0.5, None, None, None)
    print_rows("languages", rows(config, counts, sum(counts.values())))
    printed = capsys.readouterr().out
    shown = [line.split()[0] for line in printed.splitlines() if line.startswith("  l")]
    largest, smallest = range(8), range(100, 104)
    expected = [f"l{index:03d}" for index in (*largest, *smallest)]
    assert [name for name in shown if name != "language"] == expected
    (summary,) = [line for line in printed.splitlines() if "92 more" in line]
    assert f"{sum(10 * (104 - i) for i in range(8, 100)):,}" in summary
    assert " to " in summary and summary.rstrip().endswith("alpha")
