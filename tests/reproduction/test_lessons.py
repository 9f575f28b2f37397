"""Sentences on what was learned follow from verdicts and numbers."""

import pytest

from decoupled.reproduction import claims, verdicts
from decoupled.reproduction.lessons import lessons
from decoupled.reproduction.statistics import Estimate
from decoupled.reproduction.verdicts import Checked, Judged, Part, Trained

GAIN = Estimate(2.0, 0.1, 8.0, 5, 100)
NO_GAIN = Estimate(0.1, 0.1, 8.0, 5, 100)


def part(contrast, value=0.5):
    return Part(
        contrast, contrast.measure, "points", "", "", Estimate(value, 0.2, 8.0, 5, 100),
        (value - 0.4, value + 0.4), smallest=0.8, smallest_corrected=1.1,
    )  # fmt: skip


def judged(number, verdict):
    claim = claims.CLAIMS[number - 1]
    parts = [part(one) for one in claim.parts]
    return Judged(claim, verdict, 0.1, 0.2, parts, [], [])


class Nothing:
    """Findings without analyses."""

    results = {}


def said(judged=(), checks=(), training=None, findings=Nothing):
    return list(lessons(judged, checks, training or {}, findings))


@pytest.mark.parametrize("number", range(1, 8))
def test_what_decides_a_claim_is_said_with_its_numbers(number):
    decided = [verdicts.SUPPORTED, verdicts.CONTRADICTED]
    if all(one.rule == claims.ABOVE for one in claims.CLAIMS[number - 1].parts):
        decided.append(verdicts.NO_EFFECT)
    found = [said([judged(number, verdict)]) for verdict in decided]
    # A sentence for each verdict, and each another one.
    assert all(len(sentences) == 1 for sentences in found)
    assert len({sentences[0] for sentences in found}) == len(decided)
    for [sentence] in found:
        assert "+0.50 points (+0.10 to +0.90)" in sentence
        assert sentence.endswith(f"(claim {number}).")


def test_an_undecided_claim_tells_what_could_have_been_seen():
    [sentence] = said([judged(5, verdicts.UNDECIDED)])
    assert sentence.startswith("Claim 5 is undecided: S, reinv_l - coupled: +0.50")
    effect = "An effect of 1.1 points on S would have been seen with 80% power"
    assert sentence.count(effect) == 2
    [sentence] = said([judged(1, verdicts.UNDECIDED)])
    margin = "Had there been no difference, a margin of 1.1 points on S would have been"
    assert margin in sentence


@pytest.mark.parametrize(
    "verdict, sentence",
    [
        (verdicts.NOT_TESTABLE, "Not testable here, which says nothing of the paper"),
        (verdicts.VOID, "Void, because a row did not train"),
        (verdicts.NOT_RUN, "Not run at this size"),
        (verdicts.TOO_FEW, "Not judged, for want of seeds"),
    ],
)
def test_claims_without_a_decision_are_named(verdict, sentence):
    assert said([judged(3, verdict)]) == [f"{sentence}: claim 3."]
    two = [judged(3, verdict), judged(6, verdict)]
    assert said(two) == [f"{sentence}: claims 3, 6."]


def test_a_measure_shows_pretraining_where_all_rows_do():
    checks = [
        Checked("probes", "coupled", GAIN, GAIN),
        Checked("probes", "e_small", GAIN, NO_GAIN),
        Checked("retrieval", "coupled", GAIN, None),
    ]
    assert said(checks=checks) == [
        "Pre-training is clearly visible in retrieval.",
        "In probes it is not, so that these decide nothing.",
    ]


def test_rows_leave_the_plateau_at_different_times():
    training = {
        "coupled": {0: Trained(3.0, 100, 1000), 1: Trained(3.0, 200, 1000)},
        "e_small": {0: Trained(3.0, 500, 1000)},
        "stuck": {0: Trained(0.0, None, 1000)},
    }
    [sentence] = said(training=training)
    assert "coupled first, at step 150, e_small last, at step 500" in sentence


@pytest.mark.parametrize(
    "measure, value, how",
    [
        (claims.SCORE, 1.0, "brings more in S: +1.00 points (+0.60 to +1.40)"),
        (claims.SCORE, -1.0, "brings less in S"),
        (claims.SCORE, 0.1, "brings not clearly more or less in S"),
        # A loss is better where it is lower.
        (claims.LOSS, -1.0, "brings more in masked_lm_loss"),
    ],
)
def test_a_nonlinear_head(measure, value, how):
    contrast = next(
        one
        for one in claims.CLAIMS[2].secondary
        if one.measure == measure and len(one.weights) == 4
    )
    one = judged(3, verdicts.SUPPORTED)._replace(secondary=[part(contrast, value)])
    found = said([one])
    assert len(found) == 2 and how in found[1]


def test_ranks_of_logits():
    class Found:
        results = {
            "geometry": {
                0: {
                    "models": [
                        {
                            "folder": f"runs/models/{row}/seed_0",
                            "gradient": {"share": 0.1, "random_share": 0.1},
                            "logits": {
                                "rank": 96, "bound": 97, "effective_rank": rank
                            },
                        }
                        for row, rank in (("in_small", 40.0), ("e_large", 45.5))
                    ]
                }
            }
        }  # fmt: skip

    [sentence] = said(findings=Found)
    assert "effective rank is 40.0 in in_small, 45.5 in e_large;" in sentence
