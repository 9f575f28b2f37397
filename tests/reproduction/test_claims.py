"""What the claims compare, and what the paper has for the same contrasts."""

import math

import pytest

from decoupled.reproduction.claims import (
    ABOVE,
    CHECKED_BY,
    CLAIMS,
    NOT_BELOW,
    SCORE,
    SCORE_PARTS,
    WITHIN,
    Contrast,
)

PARTS = {
    claim.number: [(part.measure, part.rows(), part.rule) for part in claim.parts]
    for claim in CLAIMS
}


def test_contrasts_and_rules():
    assert PARTS == {
        1: [("S", "decoupled - coupled", WITHIN)],
        2: [("S", "in_small - out_small", NOT_BELOW)],
        3: [("S", "e_large - in_small", ABOVE)],
        4: [("S", "in_small - add_layers", ABOVE)],
        5: [("S", "reinv_l - coupled", ABOVE), ("S", "reinv_h - coupled", ABOVE)],
        6: [
            ("word_similarity", "e_small - e_large", ABOVE),
            ("masked_lm_accuracy", "e_large - e_small", ABOVE),
        ],
        7: [("last_layer", "e_large - e_small", ABOVE)],
    }
    assert SCORE_PARTS == CHECKED_BY[SCORE] == ("retrieval", "udpos", "probes")


def test_the_papers_numbers():
    papers = {
        claim.number: [part.paper() and round(part.paper(), 2) for part in claim.parts]
        for claim in CLAIMS
    }
    assert papers == {
        1: [0.4],
        2: [0.1],
        3: [1.6],
        4: [2.2],
        5: [3.9, 2.2],
        # Table 8, the mean of five sets of words.
        6: [19.72, 3.3],
        7: [0.64],
    }


def test_the_paper_supports_its_own_claims():
    for claim in CLAIMS:
        for part in claim.parts:
            assert part.paper() is None or part.paper() > 0


def test_last_layers_of_the_papers_figure():
    points = Contrast("last_layer_points", {"e_small": 1}).paper()
    lower = [33, 36, 54, 61, 65, 72, 74, 74, 69, 64, 60]
    assert points == pytest.approx(44 - sum(lower) / 11)
    logits = [math.log(one / (100 - one)) for one in (44, *lower)]
    expected = logits[0] - sum(logits[1:]) / 11
    assert Contrast("last_layer", {"e_small": 1}).paper() == pytest.approx(expected)
    # With the last layer and without it: 71.1 - 70.6, 68.3 - 68.5.
    dropped = Contrast("layer_drop", {"e_large": 1, "e_small": -1}).paper()
    assert dropped == pytest.approx(0.5 + 0.2)


def test_what_the_paper_does_not_have():
    assert Contrast(SCORE, {"e_large_head": 1, "in_small_head": -1}).paper() is None
    assert Contrast("masked_lm_loss", {"e_large": 1, "e_small": -1}).paper() is None


def test_the_nonlinear_head_is_an_interaction():
    secondary = {one.rows() for one in CLAIMS[2].secondary if one.measure == SCORE}
    assert "e_large_head - in_small_head" in secondary
    assert "e_large_head - in_small_head - e_large + in_small" in secondary


def test_secondary_contrasts_have_no_rule_and_stand_once():
    for claim in CLAIMS:
        assert {one.rule for one in claim.secondary} == {""}
        names = [(one.measure, one.rows()) for one in (*claim.parts, *claim.secondary)]
        assert len(names) == len(set(names))
