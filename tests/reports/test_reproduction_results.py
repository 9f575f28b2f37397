"""What is read from the folders of a reproduction."""

import statistics

import pytest

from decoupled.core.errors import UserError
from decoupled.reports.reproduction_results import read_evidence
from tests.reports.fake_reproduction import SCORES, write_reproduction


@pytest.fixture
def folder(tmp_path):
    return write_reproduction(tmp_path / "runs", ("e_out_128", "coupled"), (0, 2))


def test_scores(folder):
    evidence = read_evidence(str(folder))
    assert evidence.tasks == ["catalogs"]
    assert evidence.averages("e_out_128") == {0: 50.0, 2: 51.0}
    assert evidence.masked_lm("e_out_128") == pytest.approx({0: 11.0, 2: 11.2})
    assert evidence.trivial == 40.0
    # 2 models and 2 scores, 2 with fewer layers, a control, 4 analyses; 2 seeds.
    assert evidence.seconds == 2 * (4 + 2 + 2 + 4) * 10


def test_a_model_that_is_not_there_has_no_numbers(folder):
    evidence = read_evidence(str(folder))
    assert evidence.averages("decoupled") == evidence.masked_lm("decoupled") == {}
    assert evidence.mean_similarity("decoupled", "input") == {}


def test_scores_by_layers_kept(folder):
    evidence = read_evidence(str(folder))
    # All layers come from the sweep; the coupled model was not tried with fewer.
    assert evidence.dropped == {
        "e_out_128": {
            1: {0: 50.0, 2: pytest.approx(50.6)},
            2: {0: 50.0, 2: pytest.approx(50.8)},
            3: {0: SCORES["e_out_128"][0], 2: SCORES["e_out_128"][2]},
        }
    }


def test_controls(folder):
    assert read_evidence(str(folder)).controls == {"e_out_128": {0: 44.0, 2: 44.0}}


def test_translation_is_the_mean_of_languages(folder):
    evidence = read_evidence(str(folder))
    assert evidence.translation["e_out_128"][0] == [85.0, 35.0, 45.0, 15.0]
    assert evidence.languages == {"de": 150, "sw": 150}


def test_similarity_is_of_dot_products(folder):
    evidence = read_evidence(str(folder))
    found = evidence.similarity["men", "input"]["coupled"]
    assert found == pytest.approx({0: 40.0, 2: 42.0})
    assert "coupled" not in evidence.similarity["men", "output"]
    assert evidence.coverage == {"men": (150, 200), "verb143": (150, 200)}
    expected = statistics.fmean([40 - 8 / 2.56] * 2)
    found = evidence.mean_similarity("e_out_128", "output")
    assert found == pytest.approx({0: expected, 2: expected + 2})


def test_ranks(folder):
    evidence = read_evidence(str(folder))
    assert evidence.ranks["output"] == {"e_out_128": {0: 5.0, 2: 7.0}}


def test_what_is_not_complete_leaves_a_gap(folder):
    (folder / "tasks/catalogs/e_out_128/seed_0/job.json").unlink()
    (folder / "layer_drop/catalogs/e_out_128/keep_1/seed_2/job.json").unlink()
    for name in ("neighbours", "word_similarity", "spectrum"):
        (folder / f"analyses/{name}/seed_2/job.json").unlink()
    evidence = read_evidence(str(folder))
    assert evidence.averages("e_out_128") == {2: 51.0}
    kept = evidence.dropped["e_out_128"]
    assert [list(kept[layers]) for layers in (1, 2, 3)] == [[0], [0, 2], [2]]
    assert list(evidence.translation["e_out_128"]) == [0]
    assert list(evidence.mean_similarity("coupled", "input")) == [0]
    assert evidence.ranks["input"]["coupled"] == {0: 5.0}


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(UserError, match="no sweep.json"):
        read_evidence(str(tmp_path))
