"""Every verdict on planted measures, and what comes before it."""

import re

import numpy as np
import pytest
from scipy import stats

from decoupled.reproduction import claims, verdicts
from decoupled.reproduction.measured import (
    LOGITS,
    NATS,
    POINTS,
    RANKS,
    Measured,
    logits,
)
from decoupled.reproduction.statistics import estimate, holm
from decoupled.reproduction.verdicts import (
    CONTRADICTED,
    NO_EFFECT,
    NOT_RUN,
    NOT_TESTABLE,
    SUPPORTED,
    TOO_FEW,
    UNDECIDED,
    VOID,
    Trained,
    check,
    judge,
    untrained,
    with_score,
)

SEEDS = 5
ROWS = tuple(claims.PAPER_ROWS)
CONTROLS = ("control:coupled", "control:e_small")
TRAINED = Trained(2.0, 1000, 4000)
TRAINING = {row: dict.fromkeys(range(SEEDS), TRAINED) for row in ROWS}

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
        "word_translation_output": measured("output words", WORDS, RANKS),
        "last_layer": measured("last layer", FALLS, LOGITS, 0.1),
    }
    found |= changed
    return {key: one for key, one in found.items() if one is not None}


def verdicts_of(found, training=TRAINING):
    return {one.claim.number: one.verdict for one in judge(found, training)}


@pytest.fixture(scope="module")
def supported():
    return {one.claim.number: one for one in judge(measures(), TRAINING)}


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
    assert part.found == expected and part.interval == expected.interval()
    assert (part.name, part.unit, part.paper) == ("S", POINTS, pytest.approx(1.6))
    assert (part.found.seeds, part.found.items) == (5, 150)
    assert part.resampled[0] < part.found.value < part.resampled[1]
    assert part.p_value == three.p_value == expected.p_differs()
    assert part.smallest == expected.smallest_effect()
    assert part.smallest_corrected == expected.smallest_effect(0.05 / 7)
    assert part.margin == 1.0 and (part.state, part.reason) == ("", "")
    assert "on the paper's side" in three.sentences[0]


def test_p_values_are_corrected_over_all_claims(supported):
    found = {number: one.p_value for number, one in supported.items()}
    expected = holm(found)
    assert {n: one.corrected for n, one in supported.items()} == expected
    assert min(expected.values()) == pytest.approx(7 * min(found.values()))


def test_a_claim_of_two_parts_takes_the_larger_p(supported):
    for number in (5, 6):
        both = [part.p_value for part in supported[number].parts]
        assert len(set(both)) == 2 and supported[number].p_value == max(both)


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
    found = {one.claim.number: one for one in judge(score(reinv_h=30.2), TRAINING)}
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
    judged = {one.claim.number: one for one in judge(found, TRAINING)}
    low, high = judged[1].parts[0].interval
    assert -1 < low < high < 1 and judged[1].corrected > 0.05
    assert [judged[n].verdict for n in (1, 2, 3)] == [UNDECIDED, UNDECIDED, NO_EFFECT]


def test_too_wide_an_interval_is_undecided_with_the_smallest_effect():
    wide = {
        key: measured(key, SCORES | {"e_large": 28.5}, spread=8.0)
        for key in claims.SCORE_PARTS
    }
    found = {one.claim.number: one for one in judge(measures(**wide), TRAINING)}
    assert found[1].verdict == found[3].verdict == UNDECIDED
    part = found[3].parts[0]
    size = f"An effect of {part.smallest_corrected:.2g} points on S would have been"
    assert size in " ".join(found[3].sentences)
    margin = found[1].parts[0]
    assert margin.smallest == margin.found.smallest_margin()
    assert "a margin of" in " ".join(found[1].sentences)


def test_equivalence_and_non_inferiority_have_p_values_of_their_margins(supported):
    one, two = supported[1].parts[0], supported[2].parts[0]
    t = (1 - abs(one.found.value)) / one.found.error
    assert one.p_value == pytest.approx(stats.t.sf(t, one.found.freedom))
    t = (two.found.value + 1) / two.found.error
    assert two.p_value == pytest.approx(2 * stats.t.sf(t, two.found.freedom))


def test_better_than_not_worse_is_told():
    found = judge(score(in_small=30.0, e_large=33.0), TRAINING)[1]
    assert found.verdict == SUPPORTED
    assert "more than the claim" in " ".join(found.sentences)


def test_rows_that_were_not_run():
    first = ("in_small", "e_small", "e_large")
    keep = (*first, "control:e_small")
    found = {
        key: one._replace(values={r: v for r, v in one.values.items() if r in keep})
        for key, one in measures().items()
    }
    training = {row: TRAINING[row] for row in first}
    judged = {one.claim.number: one for one in judge(found, training)}
    assert {n: one.verdict for n, one in judged.items()} == {
        **dict.fromkeys((1, 2, 4, 5), NOT_RUN),
        **dict.fromkeys((3, 6, 7), SUPPORTED),
    }
    assert judged[1].p_value is None and judged[1].parts[0].found is None
    assert "decoupled, coupled" in judged[1].sentences[0]
    # Holm's method corrects for the three that were run.
    assert max(one.corrected for one in judged.values() if one.corrected) == max(
        holm({n: judged[n].p_value for n in (3, 6, 7)}).values()
    )
    part = judged[3].parts[0]
    assert part.smallest_corrected == part.found.smallest_effect(0.05 / 3)


def test_fewer_than_five_seeds_have_an_estimate_and_no_verdict():
    few = {
        key: one._replace(
            seeds=one.seeds[:4],
            values={r: {"all": by["all"][:4]} for r, by in one.values.items()},
        )
        for key, one in measures().items()
    }
    for one in judge(few, TRAINING):
        assert one.verdict == TOO_FEW and one.corrected is None
        assert one.parts[0].found.seeds == 4 and one.parts[0].p_value is None
        assert "4 seeds" in one.sentences[0]


@pytest.mark.parametrize(
    "run,reason",
    [
        (None, "no curve"),
        (Trained(1.4, 1000, 4000), "ends 1.40 nats below the unigram entropy"),
        (Trained(float("nan"), 1000, 4000), "ends nan nats"),
        (Trained(2.0, None, 4000), "never leaves the plateau"),
        (Trained(2.0, 2401, 4000), "at step 2,401, not within 60% of its 4,000 steps"),
    ],
)
def test_a_seed_that_did_not_train_makes_contrasts_void(run, reason):
    runs = {seed: one for seed, one in TRAINING["add_layers"].items() if seed != 3}
    training = TRAINING | {"add_layers": runs | ({3: run} if run else {})}
    found = {one.claim.number: one for one in judge(measures(), training)}
    assert found[4].verdict == VOID and found[3].verdict == SUPPORTED
    assert reason in found[4].sentences[0] and "seed 3" in found[4].sentences[0]
    assert found[4].parts[0].found is None and found[4].corrected is None
    # It stays one of the seven that Holm's method corrects for.
    p_values = {n: 1.0 if n == 4 else one.p_value for n, one in found.items()}
    expected = holm(p_values) | {4: None}
    assert {n: one.corrected for n, one in found.items()} == expected


def test_the_bounds_of_training_belong_to_it():
    training = {"coupled": {0: Trained(1.5, 2400, 4000)}}
    assert untrained("coupled", training, [0]) == ""


def test_values_of_a_row_that_did_not_train_are_not_looked_at():
    found = score()
    for key in claims.SCORE_PARTS:
        found[key].values["add_layers"]["all"][2] = np.nan
    training = TRAINING | {
        "add_layers": TRAINING["add_layers"] | {2: Trained(float("nan"), None, 4000)}
    }
    assert verdicts_of(found, training)[4] == VOID


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
    found = {one.claim.number: one for one in judge(measures(probes=probes), TRAINING)}
    # Claims on the score need all of its measures; 6 and 7 do not need probes.
    assert {n: one.verdict for n, one in found.items()} == {
        **dict.fromkeys((1, 2, 3, 4, 5), NOT_TESTABLE),
        **dict.fromkeys((6, 7), SUPPORTED),
    }
    pattern = f"^probes does not show what pre-training brings: {reason}"
    assert re.search(pattern, found[3].sentences[0])
    assert found[3].parts[0].found is not None and found[3].corrected is None


def test_the_score_is_the_mean_of_the_parts_whose_data_are_at_hand():
    """Where there is no treebank, what was measured decides."""
    taken = measures(udpos=None, probes=None)
    assert set(with_score(taken)["S"].values["coupled"]) == {"retrieval: all"}
    assert judge(taken, TRAINING)[2].verdict == SUPPORTED
    failed = measured("retrieval", SCORES | {"control:coupled": 30.0})
    assert judge(taken | {"retrieval": failed}, TRAINING)[2].verdict == NOT_TESTABLE


def test_void_comes_before_not_testable_in_a_claim_of_two_parts():
    probes = measured("probes", SCORES | {"control:coupled": 30.0})
    training = TRAINING | {"reinv_h": dict.fromkeys(range(5), Trained(0, None, 4000))}
    five = judge(measures(probes=probes), training)[4]
    assert [part.state for part in five.parts] == [NOT_TESTABLE, VOID]
    assert five.verdict == VOID and len(five.sentences) == 3


def test_claim_7_needs_retrieval_to_show_pretraining():
    retrieval = measured("retrieval", SCORES | {"control:e_small": 30.0})
    found = verdicts_of(measures(retrieval=retrieval))
    assert found[7] == NOT_TESTABLE and found[6] == SUPPORTED


def test_measures_that_were_not_taken():
    lacking = dict.fromkeys(("word_translation_output", *claims.SCORE_PARTS))
    found = {one.claim.number: one for one in judge(measures(**lacking), TRAINING)}
    assert found[3].verdict == found[6].verdict == NOT_TESTABLE
    score = "Not measured: retrieval, udpos, probes."
    assert found[3].sentences[0] == score
    assert found[6].sentences[0] == "Not measured: word_translation_output."
    lacking = measures()["retrieval"]
    values = {r: v for r, v in lacking.values.items() if r not in CONTROLS}
    found = measures(retrieval=lacking._replace(values=values))
    (three,) = [one for one in judge(found, TRAINING) if one.claim.number == 3]
    assert three.verdict == NOT_TESTABLE
    assert three.sentences[0] == "retrieval has no control for coupled."


def test_a_loss_beats_its_control_where_it_is_lower():
    loss = measures()["masked_lm_loss"]
    coupled, small = check(loss, TRAINING)
    assert coupled.passed() and small.passed()
    assert coupled.gain.value == pytest.approx(2.5, abs=0.1)
    assert coupled.over_baseline.value == pytest.approx(2.0, abs=0.1)
    assert not check(loss._replace(baseline=5.5), TRAINING)[1].passed()


def test_rows_that_did_not_train_cannot_check_a_measure():
    training = TRAINING | {"e_small": dict.fromkeys(range(5), Trained(0, None, 4000))}
    retrieval = measured("retrieval", SCORES | {"e_small": 5.0})
    assert [one.row for one in check(retrieval, training)] == ["coupled"]
    found = verdicts_of(measures(retrieval=retrieval), training)
    assert found[3] == SUPPORTED and found[6] == found[7] == VOID
    training |= {"coupled": training["e_small"]}
    found = verdicts_of(measures(retrieval=retrieval), training)
    assert found[3] == NOT_TESTABLE


def test_one_seed_can_be_checked_for_nothing():
    one = measured("retrieval", SCORES, seeds=1)
    assert check(one, TRAINING) == []
    found = {key: measured(key, SCORES, seeds=1) for key in claims.SCORE_PARTS}
    (first, *_) = judge(found, TRAINING)
    assert first.verdict == TOO_FEW and first.parts[0].found is None


def test_secondary_contrasts_are_shown_and_not_corrected(supported):
    three = supported[3]
    names = {(part.name, part.contrast.rows()) for part in three.secondary}
    assert ("masked-LM loss", "e_large - in_small") in names
    # Not measured: books, SIB-200, and rows with another head.
    assert {name for name, _ in names} == {
        "S", "UD-POS", "masked-LM accuracy", "masked-LM loss", "probes", "retrieval"
    }  # fmt: skip
    (loss,) = [one for one in three.secondary if one.unit == NATS][:1]
    assert loss.p_value == loss.found.p_differs() and loss.margin == 0.05


def test_values_without_variation_are_undecided():
    values = {row: np.full((5, 40), value) for row, value in FALLS.items()}
    by_row = {row: {"all": one} for row, one in values.items()}
    same = measures()["last_layer"]._replace(values=by_row)
    found = judge(measures(last_layer=same), TRAINING)[6]
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
        "not testable", "void", "not run at this size", "too few seeds",
    }  # fmt: skip
