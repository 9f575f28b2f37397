"""Every verdict on planted measures, and what comes before it."""

import re

import numpy as np
import pytest
from scipy import stats

from decoupled.reproduction import claims, verdicts
from decoupled.reproduction.statistics import (
    LOGITS,
    NATS,
    POINTS,
    RANKS,
    Measured,
    estimate,
    holm,
    logits,
)
from decoupled.reproduction.verdicts import (
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
    gather,
    judge,
    untrained,
    with_score,
)

ROWS = tuple(claims.PAPER_ROWS)
CONTROLS = ("control:coupled", "control:e_small")
TRAINED = dict.fromkeys(ROWS, "")
BAD = "Row x did not train."

# Every claim is supported by these: the paper's order, in points.
SCORES = {
    "coupled": 30.0,
    "decoupled": 30.0,
    "out_small": 28.0,
    "in_small": 28.0,
    "e_small": 24.0,
    "e_large": 31.0,
    "add_layers": 25.0,
    "reinv_l": 34.0,
    "reinv_h": 33.0,
    "control:coupled": 5.0,
    "control:e_small": 5.0,
}
WORDS = SCORES | {"e_large": 15.0}
FALLS = {"e_small": -1.0, "e_large": -0.3}


def measured(name, values, unit=POINTS, spread=1.0, baseline=None, better=1, seeds=5):
    """Rows with exactly these means, and noise of seeds, items and both around them."""
    generator = np.random.default_rng(sum(map(ord, name)))
    by_row = {}
    for row, mean in values.items():
        noise = (
            0.1 * generator.standard_normal((seeds, 1))
            + 0.5 * generator.standard_normal((1, 50))
            + generator.standard_normal((seeds, 50))
        )
        by_row[row] = {"all": mean + spread * (noise - noise.mean())}
    return Measured(name, unit, tuple(range(seeds)), by_row, baseline, better)


def measures(**changed):
    """Of all claims; `changed` ones in their place, None without."""
    found = {
        "retrieval": measured("retrieval", SCORES),
        "udpos": measured("UD-POS", SCORES, baseline=20.0),
        "probes": measured("probes", SCORES, baseline=20.0),
        "masked_lm_accuracy": measured("masked-LM accuracy", SCORES),
        "masked_lm_loss": measured(
            "masked-LM loss",
            {row: 8 - value / 10 for row, value in SCORES.items()},
            NATS,
            0.1,
            baseline=7.0,
            better=-1,
        ),
        "word_similarity": measured("word similarity", WORDS),
        "word_translation_output": measured("output words", WORDS, RANKS),
        "last_layer": measured("last layer", FALLS, LOGITS, 0.1),
    }
    found |= changed
    return {key: one for key, one in found.items() if one is not None}


def judge_all(found, trained=TRAINED):
    return judge(gather(found, trained))


def verdicts_of(found, trained=TRAINED):
    return {one.claim.number: one.verdict for one in judge_all(found, trained)}


@pytest.fixture(scope="module")
def supported():
    return {one.claim.number: one for one in judge_all(measures(), TRAINED)}


def score(**rows):
    """The three measures of the score with other means of some rows."""
    changed = {
        "retrieval": measured("retrieval", SCORES | rows),
        "udpos": measured("UD-POS", SCORES | rows, baseline=20.0),
        "probes": measured("probes", SCORES | rows, baseline=20.0),
    }
    return measures(**changed)


def test_all_claims_can_be_supported(supported):
    assert [one.verdict for one in supported.values()] == [SUPPORTED] * 7


def test_a_judged_claim_has_all_its_numbers(supported):
    three = supported[3]
    (part,) = three.parts
    weights = {"e_large": 1, "in_small": -1}
    expected = estimate(with_score(measures())["S"], weights)
    assert part.estimate == expected
    assert (part.name, part.unit, part.paper) == ("S", POINTS, pytest.approx(1.6))
    assert (part.estimate.seeds, part.estimate.items) == (5, 150)
    assert part.resampled[0] < part.estimate.value < part.resampled[1]
    assert part.p_value == expected.p_differs()
    assert part.smallest == expected.smallest_effect()
    assert part.smallest_corrected == expected.smallest_effect(0.05 / 7)
    assert part.margin == 1.0 and (part.state, part.reason) == ("", "")
    assert "on the paper's side" in three.sentences[0]


def largest(judged):
    """Number -> the largest p of its parts; 1 where nothing is tested."""
    return {
        number: max((1.0 if p.p_value is None else p.p_value) for p in one.parts)
        for number, one in judged.items()
    }


def test_p_values_are_corrected_over_all_claims(supported):
    found = largest(supported)
    expected = holm(found)
    assert {n: one.corrected for n, one in supported.items()} == expected
    assert min(expected.values()) == pytest.approx(7 * min(found.values()))


def test_a_claim_of_two_parts_takes_the_larger_p(supported):
    assert supported[5].corrected == holm(largest(supported))[5]
    for number in (5, 6):
        both = [part.p_value for part in supported[number].parts]
        assert len(set(both)) == 2


@pytest.mark.parametrize(
    "number,rows",
    [
        (1, {"decoupled": 33.0}),
        (1, {"decoupled": 27.0}),
        (2, {"in_small": 25.0}),
        (3, {"e_large": 26.0}),
        (4, {"add_layers": 31.0}),
        (5, {"reinv_l": 27.0, "reinv_h": 27.0}),
        (5, {"reinv_h": 27.0}),
    ],
)
def test_a_difference_against_the_paper_contradicts(number, rows):
    assert verdicts_of(score(**rows))[number] == CONTRADICTED


def test_a_part_that_decides_nothing_leaves_a_claim_undecided():
    found = {one.claim.number: one for one in judge_all(score(reinv_h=30.2), TRAINED)}
    assert found[5].verdict == UNDECIDED
    lines = " ".join(found[5].sentences)
    assert "The larger p of the parts is" in lines and "80% power" in lines


def test_a_small_interval_around_0_is_no_effect():
    assert verdicts_of(score(e_large=28.1))[3] == NO_EFFECT
    # The margin of logits is 0.1.
    for second, verdict in ((-0.3, NO_EFFECT), (-0.25, UNDECIDED), (-0.35, UNDECIDED)):
        falls = {"e_small": -0.3, "e_large": second}
        one = measured("last layer", falls, LOGITS, 0.2)
        assert verdicts_of(measures(last_layer=one))[7] == verdict


def test_a_rule_with_a_margin_takes_holms_correction():
    """The interval within the margin would be the same claim without it."""
    equal = dict.fromkeys(SCORES, 30.0) | dict.fromkeys(CONTROLS, 5.0)
    found = {key: measured(key, equal, spread=4.4) for key in claims.SCORE_PARTS}
    judged = {one.claim.number: one for one in judge_all(found, TRAINED)}
    low, high = judged[1].parts[0].estimate.interval()
    assert -1 < low < high < 1 and judged[1].corrected > 0.05
    assert [judged[n].verdict for n in (1, 2, 3)] == [UNDECIDED, UNDECIDED, NO_EFFECT]


def test_too_wide_an_interval_is_undecided_with_the_smallest_effect():
    wide = {
        key: measured(key, SCORES | {"e_large": 28.5}, spread=8.0)
        for key in claims.SCORE_PARTS
    }
    found = {one.claim.number: one for one in judge_all(measures(**wide), TRAINED)}
    assert found[1].verdict == found[3].verdict == UNDECIDED
    part = found[3].parts[0]
    size = f"An effect of {part.smallest_corrected:.2g} points on S would have been"
    assert size in " ".join(found[3].sentences)
    margin = found[1].parts[0]
    assert margin.smallest == margin.estimate.smallest_margin()
    assert "a margin of" in " ".join(found[1].sentences)


def test_equivalence_and_non_inferiority_have_p_values_of_their_margins(supported):
    one, two = supported[1].parts[0], supported[2].parts[0]
    t = (1 - abs(one.estimate.value)) / one.estimate.error
    assert one.p_value == pytest.approx(stats.t.sf(t, one.estimate.freedom))
    t = (two.estimate.value + 1) / two.estimate.error
    assert two.p_value == pytest.approx(2 * stats.t.sf(t, two.estimate.freedom))


def test_better_than_not_worse_is_told():
    found = judge_all(score(in_small=30.0, e_large=33.0), TRAINED)[1]
    assert found.verdict == SUPPORTED
    assert "more than the claim" in " ".join(found.sentences)


def test_rows_that_were_not_run():
    first = ("in_small", "e_small", "e_large")
    keep = (*first, "control:e_small")
    found = {
        key: one._replace(values={r: v for r, v in one.values.items() if r in keep})
        for key, one in measures().items()
    }
    training = dict.fromkeys(first, "")
    judged = {one.claim.number: one for one in judge_all(found, training)}
    assert {n: one.verdict for n, one in judged.items()} == {
        **dict.fromkeys((1, 2, 4, 5), NOT_RUN),
        **dict.fromkeys((3, 6, 7), SUPPORTED),
    }
    assert judged[1].corrected is None and judged[1].parts[0].estimate is None
    assert "decoupled, coupled" in judged[1].sentences[0]
    # Holm's method corrects for the three that were run.
    assert max(one.corrected for one in judged.values() if one.corrected) == max(
        holm(largest({n: judged[n] for n in (3, 6, 7)})).values()
    )
    part = judged[3].parts[0]
    assert part.smallest_corrected == part.estimate.smallest_effect(0.05 / 3)


def test_fewer_than_five_seeds_have_an_estimate_and_no_verdict():
    few = {
        key: one._replace(
            seeds=one.seeds[:4],
            values={r: {"all": by["all"][:4]} for r, by in one.values.items()},
        )
        for key, one in measures().items()
    }
    for one in judge_all(few, TRAINED):
        assert one.verdict == TOO_FEW and one.corrected is None
        assert one.parts[0].estimate.seeds == 4 and one.parts[0].p_value is None
        assert "4 seeds" in one.sentences[0]


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
    runs = {0: TrainedRun(2.0, 1000), 3: run}
    told = untrained("add_layers", runs, 4000)
    assert reason in told and "Row add_layers, seed 3" in told


def test_the_bounds_of_training_belong_to_it():
    assert untrained("coupled", {0: TrainedRun(1.5, 2400)}, 4000) == ""
    assert "no curve" in untrained("coupled", {}, 4000)


def test_a_row_that_did_not_train_makes_contrasts_void():
    trained = TRAINED | {"add_layers": BAD}
    found = {one.claim.number: one for one in judge_all(measures(), trained)}
    assert found[4].verdict == VOID and found[3].verdict == SUPPORTED
    assert found[4].sentences[0] == BAD
    assert found[4].parts[0].estimate is None
    # It stays one of the seven that Holm's method corrects for.
    expected = holm(largest(found)) | {4: None}
    assert {n: one.corrected for n, one in found.items()} == expected


@pytest.mark.parametrize(
    "values,baseline,reason",
    [
        (SCORES | {"control:e_small": 24.0}, None, "e_small is .* over its control"),
        (SCORES | {"control:coupled": 30.0}, None, "coupled is .* over its control"),
        (SCORES, 24.5, "e_small is .* over its control and .* over the baseline"),
    ],
)
def test_a_measure_that_does_not_show_pretraining_decides_nothing(
    values, baseline, reason
):
    probes = measured("probes", values, baseline=baseline)
    found = {one.claim.number: one for one in judge_all(measures(probes=probes))}
    # Claims on the score need all of its measures; 6 and 7 do not need probes.
    assert {n: one.verdict for n, one in found.items()} == {
        **dict.fromkeys((1, 2, 3, 4, 5), NOT_TESTABLE),
        **dict.fromkeys((6, 7), SUPPORTED),
    }
    pattern = f"^probes does not show what pre-training brings: {reason}"
    assert re.search(pattern, found[3].sentences[0])
    assert found[3].parts[0].estimate is not None and found[3].corrected is None


def test_the_score_is_the_mean_of_the_parts_whose_data_are_at_hand():
    """Where there is no treebank, what was measured decides."""
    taken = measures(udpos=None, probes=None)
    assert set(with_score(taken)["S"].values["coupled"]) == {"retrieval: all"}
    assert judge_all(taken, TRAINED)[2].verdict == SUPPORTED
    failed = measured("retrieval", SCORES | {"control:coupled": 30.0})
    assert judge_all(taken | {"retrieval": failed}, TRAINED)[2].verdict == NOT_TESTABLE


def test_void_comes_before_not_testable_in_a_claim_of_two_parts():
    probes = measured("probes", SCORES | {"control:coupled": 30.0})
    five = judge_all(measures(probes=probes), TRAINED | {"reinv_h": BAD})[4]
    assert [part.state for part in five.parts] == [NOT_TESTABLE, VOID]
    assert five.verdict == VOID and len(five.sentences) == 3


def test_claim_7_needs_retrieval_to_show_pretraining():
    retrieval = measured("retrieval", SCORES | {"control:e_small": 30.0})
    found = verdicts_of(measures(retrieval=retrieval))
    assert found[7] == NOT_TESTABLE and found[6] == SUPPORTED


def test_measures_that_were_not_taken():
    lacking = dict.fromkeys(("last_layer", *claims.SCORE_PARTS))
    found = {one.claim.number: one for one in judge_all(measures(**lacking))}
    assert found[3].verdict == found[7].verdict == NOT_MEASURED
    assert found[3].sentences[0] == "Not measured: retrieval, udpos, probes."
    assert found[7].missing() == [] and found[7].corrected is None
    lacking = measures()["retrieval"]
    values = {r: v for r, v in lacking.values.items() if r not in CONTROLS}
    found = measures(retrieval=lacking._replace(values=values))
    (three,) = [one for one in judge_all(found) if one.claim.number == 3]
    assert three.verdict == NOT_TESTABLE
    assert three.sentences[0] == "retrieval has no control for coupled."


def test_a_claim_is_judged_by_the_part_that_was_measured():
    """Translation of words does not stand for what people say of them."""
    for words in (WORDS, SCORES | {"e_large": 40.0}):
        one = measured("output words", words, RANKS)
        lacking = measures(word_similarity=None, word_translation_output=one)
        found = {one.claim.number: one for one in judge_all(lacking)}
        six = found[6]
        assert six.verdict == SUPPORTED and six.missing() == ["word similarity"]
        assert six.sentences[0] == "Not measured: word similarity."
        p_values = largest(found) | {6: six.parts[1].p_value}
        assert six.corrected == holm(p_values)[6] < 0.05
        assert "output words" in {part.name for part in six.secondary}
    falling = measured("masked-LM accuracy", SCORES | {"e_large": 20.0})
    lacking = measures(word_similarity=None, masked_lm_accuracy=falling)
    assert verdicts_of(lacking)[6] == CONTRADICTED


def test_a_loss_beats_its_control_where_it_is_lower():
    loss = measures()["masked_lm_loss"]
    coupled, small = check(loss, TRAINED)
    assert coupled.passed() and small.passed()
    assert coupled.gain.value == pytest.approx(2.5, abs=0.1)
    assert coupled.over_baseline.value == pytest.approx(2.0, abs=0.1)
    assert not check(loss._replace(baseline=5.5), TRAINED)[1].passed()


def test_rows_that_did_not_train_cannot_check_a_measure():
    training = TRAINED | {"e_small": BAD}
    retrieval = measured("retrieval", SCORES | {"e_small": 5.0})
    assert [one.row for one in check(retrieval, training)] == ["coupled"]
    found = verdicts_of(measures(retrieval=retrieval), training)
    assert found[3] == SUPPORTED and found[6] == found[7] == VOID
    training |= {"coupled": BAD}
    found = verdicts_of(measures(retrieval=retrieval), training)
    assert found[3] == NOT_TESTABLE


def test_one_seed_can_be_checked_for_nothing():
    one = measured("retrieval", SCORES, seeds=1)
    assert check(one, TRAINED) == []
    found = {key: measured(key, SCORES, seeds=1) for key in claims.SCORE_PARTS}
    (first, *_) = judge_all(found, TRAINED)
    assert first.verdict == TOO_FEW and first.parts[0].estimate is None


def test_secondary_contrasts_are_shown_and_not_corrected(supported):
    three = supported[3]
    names = {(part.name, part.contrast.rows()) for part in three.secondary}
    assert ("masked-LM loss", "e_large - in_small") in names
    # Not measured: books, SIB-200, and rows with another head.
    assert {name for name, _ in names} == {
        "S", "UD-POS", "masked-LM accuracy", "masked-LM loss", "probes", "retrieval"
    }  # fmt: skip
    (loss,) = [one for one in three.secondary if one.unit == NATS][:1]
    assert loss.p_value == loss.estimate.p_differs() and loss.margin == 0.05


def test_values_without_variation_are_undecided():
    values = {row: np.full((5, 40), value) for row, value in FALLS.items()}
    by_row = {row: {"all": one} for row, one in values.items()}
    same = measures()["last_layer"]._replace(values=by_row)
    found = judge_all(measures(last_layer=same), TRAINED)[6]
    assert found.verdict == UNDECIDED
    assert "exactly the same for all seeds" in " ".join(found.sentences)


def test_claim_7_is_judged_by_logits():
    """A fall of the same share of the odds is the same fall, whatever the peak."""
    generator = np.random.default_rng(11)
    values = {}
    for row, peak in {"e_small": 0.2, "e_large": 0.6}.items():
        odds = peak / (1 - peak) / 3
        shares = (peak, odds / (1 + odds))
        hits = [generator.random((5, 2000)) < share for share in shares]
        values[row] = {"all": logits(hits[1]) - logits(hits[0])}
    one = Measured("last layer", LOGITS, tuple(range(5)), values, None, 1)
    found = estimate(one, {"e_large": 1, "e_small": -1})
    assert abs(found.value) < 3 * found.error < 0.3
    assert found.error == pytest.approx(0.06, rel=0.5)


def test_the_words_of_verdicts():
    assert {
        getattr(verdicts, name)
        for name in dir(verdicts)
        if name.isupper() and isinstance(getattr(verdicts, name), str)
        and name not in ("ABOVE", "WITHIN", "NOT_BELOW", "SCORE", "CONTROL")
    } == {
        "supported", "contradicted", "no effect above the margin", "undecided",
        "not testable", "not measured", "void", "not run at this size",
        "too few seeds",
    }  # fmt: skip
