"""What curves and held-out losses say of the training of a run."""

import math

import numpy as np
import pytest

from decoupled.reproduction import claims
from decoupled.reproduction.training import Curves, curves_as_csv, plot_curves, trained
from tests.analyses.tiny_runs import texts_of
from tests.reproduction import invented


def of(tmp_path, **changed):
    return invented.findings(tmp_path, ("coupled", "e_small"))._replace(**changed)


def test_a_run_is_told_by_its_curve_and_its_held_out_loss(tmp_path):
    found = of(tmp_path)
    runs = trained(found)
    assert set(runs) == {"coupled", "e_small"} and list(runs["coupled"]) == [
        0,
        1,
        2,
        3,
        4,
    ]
    first, last = runs["coupled"][0], runs["coupled"][4]
    assert first.steps == invented.STEPS
    # The curves of later seeds fall later.
    assert 200 < first.crossed < last.crossed < 400
    loss = found.measured[claims.LOSS].by_seed("coupled")
    assert first.below == pytest.approx(invented.ENTROPY - loss[0])


def test_the_language_that_is_least_below_decides(tmp_path):
    found = of(tmp_path)
    loss = found.measured[claims.LOSS]
    values = {
        row: {"en": items["en"], "de": items["en"] + 1}
        for row, items in loss.values.items()
    }
    both = {**found.measured, claims.LOSS: loss._replace(values=values)}
    harder = trained(found._replace(measured=both))["coupled"][2]
    assert harder.below == pytest.approx(trained(found)["coupled"][2].below - 1)


def test_without_a_held_out_loss_no_run_is_trained(tmp_path):
    runs = trained(of(tmp_path, measured={}))
    assert all(math.isnan(one.below) for one in runs["e_small"].values())
    assert trained(of(tmp_path, unigram_entropy={})) == {}


def test_languages_count_as_they_are_drawn(tmp_path):
    """The level of a language that is never drawn does not matter."""
    entropies = {"en": invented.ENTROPY, "de": 60.0}
    found = of(tmp_path, unigram_entropy=entropies, shares={"en": 1.0, "de": 0.0})
    assert (
        trained(found)["coupled"][0].crossed
        == trained(of(tmp_path))["coupled"][0].crossed
    )


def test_curves_name_rows_and_the_unigram_level(tmp_path):
    losses = np.array([[6.0, 5.0, 3.0], [6.0, 5.5, 3.2]])
    drawn = Curves(
        {"coupled": [10, 20, 30], "e_small": [10, 20]},
        {"coupled": losses, "e_small": losses[:, :2]},
        5.9,
        {"coupled": 15.0},
    )
    paths = plot_curves(drawn, str(tmp_path / "c"))
    assert [path.rpartition(".")[2] for path in paths] == ["png", "svg"]
    assert {"coupled", "e_small", "unigram entropy", "step"} <= set(
        texts_of(tmp_path / "c.svg")
    )


def test_curves_as_a_table():
    losses = np.array([[6.0, 5.0], [6.0, 5.5]])
    drawn = Curves({"coupled": [10, 20]}, {"coupled": losses}, None, {})
    assert curves_as_csv(drawn).splitlines() == [
        "row,step,loss,least,most",
        "coupled,10,6.0000,6.0000,6.0000",
        "coupled,20,5.2500,5.0000,5.5000",
    ]
