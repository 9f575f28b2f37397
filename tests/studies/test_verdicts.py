"""Every verdict on planted measures, and what comes before it."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from decoupled.studies.claims import SCORE_PARTS, Contrast
from decoupled.studies.statistics import (
    NATS,
    POINTS,
    average,
    estimate,
    holm,
)
from decoupled.studies.study import gather
from decoupled.studies.verdicts import (
    BY_INTERVAL,
    BY_SEEDS,
    CONTRADICTED,
    NO_EFFECT,
    NOT_MEASURED,
    NOT_RUN,
    NOT_TESTABLE,
    SUPPORTED,
    TOO_FEW,
    UNDECIDED,
    VOID,
    TrainedRun,
    check,
    judge,
    part_of,
    untrained,
)
from tests.studies.invented import FALLS, SCORES, first_study, measured, measures

CONFIG = first_study()
ROWS = tuple(CONFIG.papers)
CONTROLS = ("control:coupled", "control:e_small")
TRAINED = dict.fromkeys(ROWS, "")
BAD = "Row x did not train."


def evidence(taken, trained=TRAINED, secondary=(), **config):
    return gather(taken, trained, dataclasses.replace(CONFIG, **config), secondary)


def judge_all(taken, trained=TRAINED, **config):
    judged = judge(evidence(taken, trained, **config))
    return {claim.claim: claim for claim in judged}


def verdicts_of(taken, trained=TRAINED, **config):
    return {
        number: claim.verdict
        for number, claim in judge_all(taken, trained, **config).items()
    }


@pytest.fixture(scope="module")
def supported():
    return judge_all(measures())


def score(spread=1.0, **rows):
    """The three measures of the score with other means of some rows."""
    names = {"retrieval": None, "udpos": 20.0, "probes": 20.0}
    changed = {
        name: measured(name, SCORES | rows, spread=spread, baseline=baseline)
        for name, baseline in names.items()
    }
    return measures(**changed)


def test_a_judged_claim_has_all_its_numbers(supported):
    assert [claim.verdict for claim in supported.values()] == [SUPPORTED] * 7
    (part,) = supported["3"].parts
    parts = [measures()[name] for name in SCORE_PARTS]
    expected = estimate(average("S", parts), {"e_large": 1, "in_small": -1})
    assert part.estimate == expected
    assert (part.name, part.unit, part.paper) == ("S", POINTS, pytest.approx(1.6))
    assert (part.estimate.seeds, part.estimate.items) == (5, 150)
    assert part.p_value == expected.p_differs(0.0)
    assert part.smallest == expected.smallest_effect(0.05 / 7)
    assert part.margin == 1.0 and (part.state, part.reason) == ("", "")


def largest(judged):
    """Number -> the largest p of its parts; 1 where nothing is tested."""
    return {
        number: max((1.0 if p.p_value is None else p.p_value) for p in claim.parts)
        for number, claim in judged.items()
    }


def test_p_values_are_corrected_over_all_claims_and_parts(supported):
    expected = holm(largest(supported))
    assert {n: claim.corrected_p for n, claim in supported.items()} == expected
    for number in "56":
        assert len({part.p_value for part in supported[number].parts}) == 2


@pytest.mark.parametrize(
    "number,rows",
    [
        ("1", {"decoupled": 33.0}),
        ("1", {"decoupled": 27.0}),
        ("2", {"in_small": 25.0}),
        ("3", {"e_large": 26.0}),
        ("4", {"add_layers": 31.0}),
        ("5", {"reinv_l": 27.0, "reinv_h": 27.0}),
        ("5", {"reinv_h": 27.0}),
    ],
)
def test_a_difference_against_the_paper_contradicts(number, rows):
    assert verdicts_of(score(**rows))[number] == CONTRADICTED


def test_small_and_wide_intervals():
    assert verdicts_of(score(reinv_h=30.03))["5"] == UNDECIDED
    equal = dict.fromkeys(SCORES, 30.0) | dict.fromkeys(CONTROLS, 5.0)
    judged = judge_all(score(4.4, **equal))
    low, high = judged["1"].parts[0].estimate.interval()
    # Within the margin, which a rule without a margin does not test itself.
    assert -1 < low < high < 1 and judged["1"].corrected_p > 0.05
    assert [judged[n].verdict for n in "123"] == [UNDECIDED, UNDECIDED, NO_EFFECT]
    judged = judge_all(score(8.0, e_large=28.5))
    assert judged["1"].verdict == judged["3"].verdict == UNDECIDED
    part = judged["1"].parts[0]
    assert part.smallest == part.estimate.smallest_margin(0.05 / 7)


def test_rules_with_margins_have_p_values_of_their_own(supported):
    equal, not_worse = supported["1"].parts[0], supported["2"].parts[0]
    t = (1 - abs(equal.estimate.value)) / equal.estimate.error
    assert equal.p_value == pytest.approx(stats.t.sf(t, equal.estimate.freedom))
    t = (not_worse.estimate.value + 1) / not_worse.estimate.error
    expected = 2 * stats.t.sf(t, not_worse.estimate.freedom)
    assert not_worse.p_value == pytest.approx(expected)


def test_a_loss_that_has_to_fall():
    """The rule "< 0" is the mirror of "> 0"."""
    key = "masked_lm_loss: e_large - in_small < 0"
    asked = {"Is it lower?": (key,), "Is it higher?": (key.replace("<", ">"),)}
    assert list(verdicts_of(measures(), claims=asked).values()) == [
        SUPPORTED, CONTRADICTED,
    ]  # fmt: skip
    losses = {row: 3.0 for row in SCORES}
    even = measured("loss", losses, NATS, 0.01, 7.0, -1)
    even.values["control:coupled"]["all"] += 3
    even.values["control:e_small"]["all"] += 3
    judged = verdicts_of(measures(masked_lm_loss=even), claims=asked)
    assert set(judged.values()) == {NO_EFFECT}


def test_rows_that_were_not_run():
    first = ("in_small", "e_small", "e_large")
    judged = judge_all(measures(first), dict.fromkeys(first, ""))
    assert {n: claim.verdict for n, claim in judged.items()} == {
        **dict.fromkeys("1245", NOT_RUN), **dict.fromkeys("367", SUPPORTED),
    }  # fmt: skip
    assert judged["1"].corrected_p is None and judged["1"].parts[0].estimate is None
    assert judged["1"].reasons == ["Rows that were not run: decoupled, coupled."]
    # Holm's method corrects for the three that were run.
    expected = holm(largest({n: judged[n] for n in "367"}))
    assert {n: judged[n].corrected_p for n in "367"} == expected
    part = judged["3"].parts[0]
    assert part.smallest == part.estimate.smallest_effect(0.05 / 3)


@pytest.mark.parametrize("seeds", [1, 4])
def test_fewer_than_five_seeds_give_no_verdict(seeds):
    few = {key: measured(key, SCORES, seeds=seeds) for key in SCORE_PARTS}
    claim = judge_all(few)["3"]
    assert claim.verdict == TOO_FEW and claim.corrected_p is None
    assert bool(claim.parts[0].estimate) == (seeds > 1)
    assert f"{seeds} seeds" in claim.reasons[0]


@pytest.mark.parametrize(
    "run,reason",
    [
        (TrainedRun(1.4, 1000), "ends 1.40 nats below the unigram entropy"),
        (TrainedRun(float("nan"), 1000), "ends nan nats"),
        (TrainedRun(2.0, None), "never leaves the plateau"),
        (TrainedRun(2.0, 2401), "at step 2,401, not within 60% of its 4,000 steps"),
    ],
)
def test_a_seed_that_did_not_train_is_named(run, reason):
    text = untrained("add_layers", {0: TrainedRun(2.0, 1000), 3: run}, 4000)
    assert reason in text and "Row add_layers, seed 3" in text
    assert untrained("coupled", {0: TrainedRun(1.5, 2400)}, 4000) == ""
    assert "no curve" in untrained("coupled", {}, 4000)


def test_a_row_that_did_not_train_makes_contrasts_void():
    judged = judge_all(measures(), TRAINED | {"add_layers": BAD})
    assert judged["4"].verdict == VOID and judged["3"].verdict == SUPPORTED
    assert judged["4"].reasons == [BAD] and judged["4"].parts[0].estimate is None
    # It stays one of the seven that Holm's method corrects for.
    expected = holm(largest(judged)) | {"4": None}
    assert {n: claim.corrected_p for n, claim in judged.items()} == expected


@pytest.mark.parametrize(
    "values,baseline,row",
    [
        (SCORES | {"control:e_small": 24.0}, None, "e_small"),
        (SCORES | {"control:coupled": 30.0}, None, "coupled"),
        (SCORES, 24.5, "e_small"),
    ],
)
@pytest.mark.parametrize("control", [BY_SEEDS, BY_INTERVAL])
def test_a_measure_that_does_not_show_pretraining_decides_nothing(
    values, baseline, row, control
):
    probes = measured("probes", values, baseline=baseline)
    judged = judge_all(measures(probes=probes), control=control)
    # Claims on the score need all of its measures; 6 and 7 do not need probes.
    assert {n: claim.verdict for n, claim in judged.items()} == {
        **dict.fromkeys("12345", NOT_TESTABLE), **dict.fromkeys("67", SUPPORTED),
    }  # fmt: skip
    reason = f"probes: {row} is not clearly above its control and baseline."
    assert judged["3"].reasons == [reason]
    assert judged["3"].parts[0].estimate is not None and judged["3"].corrected_p is None


def test_a_collapsed_control_does_not_hide_a_gain():
    """One control of five at 10 instead of 55 widens the interval beyond 0."""
    probes = measured("probes", SCORES | {"e_small": 69, "control:e_small": 55})
    probes.values["control:e_small"]["all"][4] -= 45.0
    few = measures(probes=probes)
    assert verdicts_of(few)["3"] == SUPPORTED
    assert verdicts_of(few, control=BY_INTERVAL)["3"] == NOT_TESTABLE


def test_a_claim_that_needs_a_positive_control():
    needed = {"5": "S: e_large - in_small > 0"}
    assert verdicts_of(measures(), sensitivity=needed)["5"] == SUPPORTED
    judged = judge_all(score(e_large=28.1), sensitivity=needed)
    assert judged["5"].verdict == NOT_TESTABLE and judged["4"].verdict == SUPPORTED
    assert judged["5"].reasons == [
        "S, e_large - in_small: its interval does not lie above 0."
    ]


def test_the_score_is_the_mean_of_the_parts_whose_data_are_at_hand():
    taken = measures(udpos=None, probes=None)
    assert verdicts_of(taken)["3"] == SUPPORTED
    failed = measured("retrieval", SCORES | {"control:coupled": 30.0})
    assert verdicts_of(taken | {"retrieval": failed})["3"] == NOT_TESTABLE


def test_void_comes_before_not_testable_in_a_claim_of_two_parts():
    probes = measured("probes", SCORES | {"control:coupled": 30.0})
    claim = judge_all(measures(probes=probes), TRAINED | {"reinv_h": BAD})["5"]
    assert [part.state for part in claim.parts] == [NOT_TESTABLE, VOID]
    assert claim.verdict == VOID and len(claim.reasons) == 2


def test_claim_7_needs_retrieval_to_show_pretraining():
    retrieval = measured("retrieval", SCORES | {"control:e_small": 30.0})
    verdicts = verdicts_of(measures(retrieval=retrieval))
    assert verdicts["7"] == NOT_TESTABLE and verdicts["6"] == SUPPORTED


def test_measures_that_were_not_taken():
    lacking = dict.fromkeys(("last_layer", *SCORE_PARTS))
    judged = judge_all(measures(**lacking))
    assert judged["3"].verdict == judged["7"].verdict == NOT_MEASURED
    assert judged["7"].missing() == [] and judged["7"].corrected_p is None
    retrieval = measures()["retrieval"]
    values = {r: v for r, v in retrieval.values.items() if r not in CONTROLS}
    taken = measures(retrieval=dataclasses.replace(retrieval, values=values))
    assert verdicts_of(taken)["3"] == NOT_TESTABLE


def test_a_claim_is_judged_by_the_part_that_was_measured():
    judged = judge_all(measures(word_similarity=None))
    assert judged["6"].verdict == SUPPORTED
    assert judged["6"].missing() == ["word similarity"]
    p_values = largest(judged) | {"6": judged["6"].parts[1].p_value}
    assert judged["6"].corrected_p == holm(p_values)["6"] < 0.05
    falling = measured("masked-LM accuracy", SCORES | {"e_large": 20.0})
    lacking = measures(word_similarity=None, masked_lm_accuracy=falling)
    assert verdicts_of(lacking)["6"] == CONTRADICTED


def test_a_loss_beats_its_control_where_it_is_lower():
    loss, rows = measures()["masked_lm_loss"], CONFIG.control_rows
    coupled, small = check(loss, TRAINED, rows)
    assert coupled.passed(BY_SEEDS) and small.passed(BY_INTERVAL)
    assert coupled.gain.value == pytest.approx(2.5, abs=0.1)
    assert coupled.over_baseline.value == pytest.approx(2.0, abs=0.1)
    easy = dataclasses.replace(loss, baseline=5.5)
    assert not check(easy, TRAINED, rows)[1].passed(BY_SEEDS)


def test_rows_that_did_not_train_cannot_check_a_measure():
    training = TRAINED | {"e_small": BAD}
    retrieval = measured("retrieval", SCORES | {"e_small": 5.0})
    verdicts = verdicts_of(measures(retrieval=retrieval), training)
    assert verdicts["3"] == SUPPORTED and verdicts["6"] == verdicts["7"] == VOID
    training |= {"coupled": BAD}
    assert verdicts_of(measures(retrieval=retrieval), training)["3"] == NOT_TESTABLE


def test_a_secondary_contrast_has_numbers_and_no_verdict():
    known = evidence(measures(), secondary=["masked_lm_loss: e_large - in_small"])
    part = part_of(Contrast.read("masked_lm_loss: e_large - in_small"), known)
    assert part.p_value == part.estimate.p_differs(0.0) and part.margin == 0.05


def test_values_without_variation_are_undecided():
    values = {row: {"all": np.full((5, 40), v)} for row, v in FALLS.items()}
    same = dataclasses.replace(measures()["last_layer"], values=values)
    assert verdicts_of(measures(last_layer=same))["7"] == UNDECIDED
