"""Measures of all models: averages, pseudo-values, and what is refused."""

import math

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.reproduction.measured import (
    NATS,
    POINTS,
    Measured,
    average,
    checked,
    logits,
    ratios,
)


def measured(values, name="tags", baseline=None, unit=POINTS, seeds=(0, 1)):
    return Measured(name, unit, seeds, values, baseline, 1)


def test_the_value_of_a_model_is_the_mean_of_the_means_of_its_components():
    one = measured(
        {"a": {"en": np.array([[1.0, 3], [5, 5]]), "de": np.array([[4.0], [6]])}}
    )
    assert one.by_seed("a").tolist() == [3.0, 5.5]


def test_an_average_gives_each_measure_the_same_weight():
    tags = measured(
        {
            "a": {"en": np.full((2, 4), 10.0), "de": np.full((2, 6), 20.0)},
            "b": {"en": np.zeros((2, 4)), "de": np.zeros((2, 6))},
        },
        baseline=4.0,
    )
    verses = measured(
        {"a": {"all pairs": np.array([[5.0, 7, 9], [6, 6, 6], [1, 2, 3]])}},
        name="retrieval",
        baseline=0.0,
        seeds=(1, 0, 7),
    )
    found = average("S", [tags, verses])
    # Row b and seed 7 are not in both; seed 0 is the second one of retrieval.
    assert found.seeds == (0, 1) and list(found.values) == ["a"]
    assert found.by_seed("a") == pytest.approx([(15 + 6) / 2, (15 + 7) / 2])
    assert found.baseline == pytest.approx(2.0)
    shapes = {name: one.shape for name, one in found.values["a"].items()}
    assert shapes == {
        "tags: en": (2, 4),
        "tags: de": (2, 6),
        "retrieval: all pairs": (2, 3),
    }


def test_an_average_has_a_baseline_only_if_all_have_one():
    one = measured({"a": {"en": np.zeros((2, 1))}}, baseline=1.0)
    other = measured({"a": {"en": np.zeros((2, 1))}}, name="other")
    assert average("S", [one, other]).baseline is None


def test_measures_of_two_units_are_not_averaged():
    one = measured({"a": {"en": np.zeros((2, 1))}})
    other = measured({"a": {"en": np.zeros((2, 1))}}, unit=NATS)
    with pytest.raises(ValueError, match="one unit"):
        average("S", [one, other])


def test_ratios_are_those_of_sums():
    correct = np.array([[1, 2, 0], [3, 2, 0]])
    found = ratios(correct, np.array([3, 2, 0]))
    assert found.mean(axis=1) == pytest.approx([3 / 5, 1.0])
    # 0.6 + (1 - 0.6 * 3) / (5 / 3), and a sentence without a token changes nothing.
    assert found[0] == pytest.approx([0.12, 1.08, 0.6])
    by_seed = np.array([[3, 2, 0], [4, 2, 1]])
    assert ratios(correct, by_seed).mean(axis=1) == pytest.approx([3 / 5, 5 / 7])


def test_the_spread_of_ratios_is_that_of_a_resampled_ratio():
    generator = np.random.default_rng(3)
    counts = generator.integers(5, 40, size=300)
    correct = generator.binomial(counts, generator.uniform(0.4, 0.9, size=300))
    drawn = generator.integers(300, size=(4000, 300))
    resampled = correct[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    found = ratios(correct[None], counts)[0]
    assert found.std() / math.sqrt(300) == pytest.approx(resampled.std(), rel=0.05)


def test_logits_of_shares():
    found = logits(np.array([[1, 0, 0, 0], [1, 1, 1, 0]]))
    assert found.mean(axis=1) == pytest.approx([math.log(1 / 3), math.log(3)])
    assert found[0, 0] == pytest.approx(math.log(1 / 3) + 0.75 / (0.25 * 0.75))


def test_logits_of_0_and_1_are_those_of_half_an_item():
    found = logits(np.array([[0.0] * 10, [1.0] * 10]))
    expected = math.log(0.95 / 0.05)
    assert found == pytest.approx(np.array([[-expected] * 10, [expected] * 10]))


def test_values_are_checked():
    good = np.ones((2, 3))
    bad = good.copy()
    bad[1, 0] = np.nan
    one = measured(
        {
            "a": {"en": good},
            "lost seed": {"en": good[:1]},
            "other items": {"en": good[:, :2]},
            "nan": {"en": bad},
            "empty": {},
        }
    )
    assert list(checked(one, ["a"])) == ["a"]
    for row, reason in {
        "lost seed": "there are 2 seeds",
        "other items": "not those of the other rows",
        "nan": "seed 1, en: a value is not a finite number",
        "empty": "there are 2 seeds",
        "b": "was not measured",
    }.items():
        with pytest.raises(UserError, match=f"tags, row {row}.*{reason}"):
            checked(one, ["a", row])
