"""Contrasts as text, and what the paper has for the same contrasts."""

import math

import pytest

from decoupled.core.errors import UserError
from decoupled.studies.claims import CLAIMS, Contrast
from tests.studies.invented import first_study

FIRST = first_study()


def test_a_contrast_is_read():
    contrast = Contrast.read("S: a_head - b_head - a + b > -margin")
    assert contrast.measure == "S" and contrast.rule == "> -margin"
    assert contrast.weights == {"a_head": 1, "b_head": -1, "a": -1, "b": 1}
    assert contrast.rows == "a_head - b_head - a + b"
    assert Contrast.read("masked_lm_loss: a - b").rule == ""


@pytest.mark.parametrize("text", ["a - b > 0", "S: a - b > 1", "S: a b", "S: a - - b"])
def test_what_is_no_contrast_is_refused(text):
    with pytest.raises(UserError, match="is no contrast; write MEASURE: ROW - ROW"):
        Contrast.read(text)


def test_the_papers_numbers():
    papers = {
        number: [
            (value := Contrast.read(text).paper(FIRST.papers)) and round(value, 2)
            for text in texts
        ]
        for number, texts in FIRST.claims.items()
    }
    assert papers.keys() == CLAIMS.keys()
    assert papers == {
        "1": [0.4],
        "2": [0.1],
        "3": [1.6],
        "4": [2.2],
        "5": [3.9, 2.2],
        # Table 8, the mean of five sets of words.
        "6": [19.72, 3.3],
        "7": [0.64],
    }


def test_english_rows_have_the_numbers_of_table_13():
    papers = {
        "in_small": "english_e_out_768",
        "add_layers_4": "english_additional_layers_15",
    }
    contrast = Contrast.read("S: in_small - add_layers_4")
    # MNLI: 77.5 and 80.1.
    assert contrast.paper(papers) == pytest.approx(-2.6)


def test_last_layers_of_the_papers_figure():
    points = Contrast("last_layer_points", {"e_small": 1}).paper(FIRST.papers)
    lower = [33, 36, 54, 61, 65, 72, 74, 74, 69, 64, 60]
    assert points == pytest.approx(44 - sum(lower) / 11)
    logits = [math.log(share / (100 - share)) for share in (44, *lower)]
    expected = logits[0] - sum(logits[1:]) / 11
    contrast = Contrast("last_layer", {"e_small": 1})
    assert contrast.paper(FIRST.papers) == pytest.approx(expected)
    # With the last layer and without it: 71.1 - 70.6, 68.3 - 68.5.
    dropped = Contrast("layer_drop", {"e_large": 1, "e_small": -1})
    assert dropped.paper(FIRST.papers) == pytest.approx(0.5 + 0.2)


def test_what_the_paper_does_not_have():
    for text in (
        "S: e_large_head - in_small_head",
        "masked_lm_loss: e_large - e_small",
    ):
        assert Contrast.read(text).paper(FIRST.papers) is None
