"""Claims judged on planted numbers, each verdict once at least."""

import math

import pytest

from decoupled.reports.claims import judge, pretraining_gain, translation_fall
from decoupled.reports.finished_runs import read_reproduction
from decoupled.reports.paired import NOT_SUPPORTED, SUPPORTED, UNDECIDED
from decoupled.reports.results import PROBING
from tests.reports.fake_reproduction import write_reproduction


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = write_reproduction(tmp_path_factory.mktemp("reproduction") / "runs")
    return read_reproduction(str(folder))


@pytest.fixture(scope="module")
def claims(results):
    return {judged.claim.number: judged for judged in judge(results)}


def test_verdicts(claims):
    assert {number: claim.verdict for number, claim in claims.items()} == {
        1: SUPPORTED,
        2: SUPPORTED,
        3: SUPPORTED,
        4: UNDECIDED,
        5: NOT_SUPPORTED,
        6: SUPPORTED,
        7: SUPPORTED,
    }


def test_differences_are_paired(claims):
    part = claims[3].parts[0]
    assert part.what == "score, e_out_3072 - e_out_768"
    # 3, 3.2 and 2.8: the scores themselves vary by more than a point.
    assert part.found.mean == pytest.approx(3.0)
    width = 4.302652729911275 * 0.2 / math.sqrt(3)
    assert part.found.high == pytest.approx(3.0 + width)
    assert part.found.count == 3


def test_published_differences_follow_from_the_tables(claims):
    papers = {n: [round(p.paper, 1) for p in c.parts] for n, c in claims.items()}
    assert papers == {
        1: [0.4],
        2: [0.1, 2.5, 2.6],
        3: [1.6, 3.6, 5.2],
        4: [2.2, 1.4],
        5: [3.9, 2.2, 1.7],
        6: [19.7, 3.3, 22.0],
        7: [-0.2, 0.5, 16.0, 0.2],
    }


def test_the_paper_supports_its_own_claims(claims):
    for claim in claims.values():
        for part in claim.parts:
            if part.rule == "above 0":
                assert part.paper > 0


def test_one_part_that_fails_decides(claims):
    verdicts = [part.verdict for part in claims[5].parts]
    assert verdicts == [NOT_SUPPORTED, SUPPORTED, NOT_SUPPORTED]


def test_a_part_without_a_rule_judges_nothing(claims):
    part = claims[4].parts[1]
    assert (part.rule, part.verdict) == ("", None) and part.found is not None


def test_sizes_of_fine_tuned_models_are_told(claims, results):
    count = results.rows["e_out_128"].finetuning
    assert f"e_out_128 {count:,}, e_out_768 {count:,}, e_out_3072 {count:,}" in (
        claims[3].note
    )


def test_layers(claims, results):
    # 0, 0.1 and 0.2 of e_out_128; 2, 2.1 and 2.2 of e_out_3072.
    gains = {part.what: part.found.mean for part in claims[7].parts[:2]}
    assert gains == pytest.approx(
        {
            "score, e_out_128: all layers - without the last": 0.1,
            "score, e_out_3072: all layers - without the last": 2.1,
        }
    )
    # The embedding, which is best of all in these numbers, is left out.
    falls = translation_fall(results, "e_out_128")
    assert falls == pytest.approx({0: 30.0, 1: 29.8, 2: 29.6})


def test_probes_are_judged_where_there_are_any(claims, results):
    part = claims[7].parts[-1]
    assert part.what == "F1 of probes, mean of the tasks, e_out_3072 - e_out_128"
    assert part.found.mean == pytest.approx(2.0)
    numbers = [n for n in results.numbers if n.task != PROBING]
    without = judge(results._replace(numbers=numbers))[6]
    assert len(without.parts) == 3


def test_pretraining_gains_over_its_control(results):
    (part,) = pretraining_gain(results)
    # 6, 6.5 and 7.
    assert part.found.mean == pytest.approx(6.5)
    assert part.verdict == SUPPORTED and "after one step" in part.what


def test_without_runs_nothing_is_decided(tmp_path):
    folder = write_reproduction(tmp_path / "runs", ("e_out_128",), (0,))
    claims = judge(read_reproduction(str(folder)))
    assert {judged.verdict for judged in claims} == {UNDECIDED}
