"""WEAT by hand, by enumeration, and against scipy's permutation test."""

import json

import numpy as np
import pytest
from scipy import stats

from decoupled.analyses import weat
from decoupled.analyses.models import open_models
from decoupled.analyses.weat import associate, associations
from decoupled.configs.analyses import WeatSettings
from decoupled.core.errors import UserError
from tests.analyses.tiny_runs import texts_of

SETTINGS = WeatSettings(permutations=1000, seed=0)


def test_associations_by_hand():
    a, b = np.array([[2.0, 0.0], [0.0, 5.0]]), np.array([[0.0, 3.0]])
    words = np.array([[1.0, 0.0], [0.0, -4.0], [3.0, 4.0], [0.0, 0.0]])
    # mean cosine with A minus cosine with B: (1 + 0) / 2 - 0, (0 - 1) / 2 + 1,
    # (0.6 + 0.8) / 2 - 0.8, and 0 for a vector of zeros.
    found = associations(words, a, b)
    assert found == pytest.approx([0.5, 0.5, -0.1, 0])


def test_effect_size_and_p_value_by_hand():
    found = associate(np.array([3.0, 2.0]), np.array([1.0, 0.0]), SETTINGS)
    assert found.difference == 2
    # The sample deviation of 3, 2, 1, 0 is sqrt(5 / 3).
    assert found.effect_size == pytest.approx(2 / np.sqrt(5 / 3))
    # Of the six divisions only this one has as large a difference.
    assert (found.p_value, found.permutations, found.exact) == (1 / 6, 6, True)


def test_sets_of_other_sizes():
    found = associate(np.array([1.0]), np.array([0.0, 0.5, 1.0]), SETTINGS)
    assert found.difference == pytest.approx(0.5)
    # Two of the four words would do as well alone.
    assert (found.p_value, found.permutations) == (0.5, 4)


def test_no_difference_at_all():
    found = associate(np.ones(3), np.ones(3), SETTINGS)
    assert (found.difference, found.effect_size, found.p_value) == (0, None, 1)


def test_the_reverse_has_the_reverse_sign():
    one, other = np.random.default_rng(0).normal(size=[2, 5])
    forth, back = associate(one, other, SETTINGS), associate(other, one, SETTINGS)
    assert forth.effect_size == pytest.approx(-back.effect_size)
    assert forth.p_value + back.p_value == pytest.approx(1 + 1 / 252)


@pytest.mark.parametrize("seed", range(3))
def test_all_divisions_against_scipy(seed):
    generator = np.random.default_rng(seed)
    x, y = generator.normal(0.3, 1, 5), generator.normal(0, 1, 6)
    expected = stats.permutation_test(
        (x, y),
        lambda one, other, axis: one.mean(axis) - other.mean(axis),
        vectorized=True,
        alternative="greater",
        n_resamples=np.inf,
    )
    found = associate(x, y, SETTINGS)
    assert found.difference == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.permutations == 462


def test_drawn_divisions_come_near_to_all_of_them():
    x, y = np.random.default_rng(5).normal([[0.4], [0]], 1, [2, 8])
    exact = associate(x, y, WeatSettings(permutations=20000, seed=0))
    drawn = associate(x, y, WeatSettings(permutations=10000, seed=0))
    assert (exact.exact, exact.permutations) == (True, 12870)
    assert (drawn.exact, drawn.permutations) == (False, 10001)
    # Three standard errors.
    assert drawn.p_value == pytest.approx(exact.p_value, abs=3 * 0.5 / 100)
    assert associate(x, y, WeatSettings(10000, 0)) == drawn
    # Never 0, however clear the difference is.
    clear = associate(x + 50, y, WeatSettings(100, 0))
    assert clear.p_value == 1 / 101


@pytest.mark.parametrize(
    "values", [dict(permutations=0), dict(seed=-1), dict(seed=0.5)]
)
def test_settings_that_cannot_work(values):
    [name] = values
    with pytest.raises(UserError, match=f"weat.{name}: "):
        WeatSettings(**{"permutations": 10, "seed": 0, **values})


def write_sets(folder, **words):
    default = {
        "targets_x": "page image",
        "targets_y": "user blue",
        "attributes_a": "Select Show",
        "attributes_b": "hidden last Ω",
    }
    paths = {}
    for name, text in (default | words).items():
        path = folder / f"{name}.txt"
        path.write_text("\n".join(text.split()))
        paths[name] = str(path)
    return paths


def test_models_side_by_side(pretrained_dir, coupled_dir, tmp_path, capsys):
    sets = weat.read_sets(write_sets(tmp_path))
    models = open_models([pretrained_dir, coupled_dir])
    result = weat.measure(models, sets, SETTINGS)
    json.dumps(result, allow_nan=False)
    tests = [(m["name"], t["embedding"]) for m in result["models"] for t in m["tests"]]
    assert tests == [
        ("pretrained", "input"),
        ("pretrained", "output"),
        ("coupled", "input"),
    ]
    first = result["models"][0]["tests"][0]
    assert first["used"] == dict(
        targets_x=2, targets_y=2, attributes_a=2, attributes_b=2
    )
    assert first["permutations"] == 6
    weat.show(result)
    assert "effect size" in capsys.readouterr().out
    _, svg = weat.plot(result, str(tmp_path / "plot"))
    assert {"pretrained", "coupled", "output embedding"} <= set(texts_of(svg))


def test_a_word_in_both_targets(tmp_path):
    paths = write_sets(tmp_path, targets_y="page user")
    with pytest.raises(UserError, match="targets_x.txt: 'page' is in .*targets_y.txt"):
        weat.read_sets(paths)


def test_words_that_the_vocabulary_lacks(pretrained_dir, tmp_path):
    sets = weat.read_sets(write_sets(tmp_path, attributes_a="Ξ Ψ"))
    with pytest.raises(UserError, match="--attributes_a: .* knows none of 2 words"):
        weat.measure(open_models([pretrained_dir]), sets, SETTINGS)
