"""What is read from the folders of sweeps and of a reproduction."""

import statistics

import pytest

from decoupled.core.errors import UserError
from decoupled.reports.finished_runs import read_reproduction
from decoupled.reports.results import SIMILARITY, SPECTRUM
from tests.reports.fake_reproduction import SCORES, write_reproduction


@pytest.fixture
def folder(tmp_path):
    return write_reproduction(tmp_path / "runs", ("e_out_128", "coupled"), (0, 2))


def test_scores(folder):
    results = read_reproduction(str(folder))
    assert results.tasks == ["catalogs"]
    assert results.averages("e_out_128") == {0: 50.0, 2: 51.0}
    assert results.masked_lm("e_out_128") == pytest.approx({0: 11.0, 2: 11.2})
    assert results.trivial == 40.0
    # 2 models and 2 scores, 2 with fewer layers, a control, 4 analyses; 2 seeds.
    assert results.seconds == 2 * (4 + 2 + 2 + 4) * 10


def test_a_model_that_is_not_there_has_no_numbers(folder):
    results = read_reproduction(str(folder))
    assert results.averages("decoupled") == results.masked_lm("decoupled") == {}
    assert results.similarity("decoupled", "input") == {}


def test_scores_by_layers_kept(folder):
    results = read_reproduction(str(folder))
    # All layers come from the sweep; the coupled model was not tried with fewer.
    assert results.dropped("coupled") == {}
    assert results.dropped("e_out_128") == {
        1: {0: 50.0, 2: pytest.approx(50.6)},
        2: {0: 50.0, 2: pytest.approx(50.8)},
        3: {0: SCORES["e_out_128"][0], 2: SCORES["e_out_128"][2]},
    }


def test_controls(folder):
    results = read_reproduction(str(folder))
    assert results.controls() == ["e_out_128"]
    assert results.control("e_out_128") == {0: 44.0, 2: 44.0}


def test_translation_is_the_mean_of_languages(folder):
    results = read_reproduction(str(folder))
    first = {n: by[0] for n, by in results.translation("e_out_128").items()}
    assert first == {0: 85.0, 1: 35.0, 2: 45.0, 3: 15.0}
    assert results.pairs == {"de": 150, "sw": 150}


def test_similarity_is_of_dot_products(folder):
    results = read_reproduction(str(folder))
    found = results.values("coupled", SIMILARITY, "men, input embedding")
    assert found == pytest.approx({0: 40.0, 2: 42.0})
    assert results.values("coupled", SIMILARITY, "men, output embedding") == {}
    assert results.coverage == {"men": (150, 200), "verb143": (150, 200)}
    expected = statistics.fmean([40 - 8 / 2.56] * 2)
    found = results.similarity("e_out_128", "output")
    assert found == pytest.approx({0: expected, 2: expected + 2})


def test_ranks(folder):
    results = read_reproduction(str(folder))
    metric = "effective rank, output embedding"
    assert results.values("e_out_128", SPECTRUM, metric) == {0: 5.0, 2: 7.0}
    assert results.values("coupled", SPECTRUM, metric) == {}


def test_what_is_not_complete_leaves_a_gap(folder):
    (folder / "tasks/catalogs/e_out_128/seed_0/job.json").unlink()
    (folder / "layer_drop/catalogs/e_out_128/keep_1/seed_2/job.json").unlink()
    for name in ("neighbours", "word_similarity", "spectrum"):
        (folder / f"analyses/{name}/seed_2/job.json").unlink()
    results = read_reproduction(str(folder))
    assert results.averages("e_out_128") == {2: 51.0}
    kept = results.dropped("e_out_128")
    assert [list(kept[layers]) for layers in (1, 2, 3)] == [[0], [0, 2], [2]]
    assert list(results.translation("e_out_128")[1]) == [0]
    assert list(results.similarity("coupled", "input")) == [0]
    metric = "effective rank, input embedding"
    assert results.values("coupled", SPECTRUM, metric) == {0: 5.0}


def test_a_folder_of_something_else(tmp_path):
    with pytest.raises(UserError, match="no sweep.json"):
        read_reproduction(str(tmp_path))
