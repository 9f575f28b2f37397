"""Regression: its features, scores and answers; tests of commands train it."""

import numpy as np
import pytest
import scipy.stats

from decoupled.configs import OwnTaskConfig
from decoupled.core.errors import UserError
from decoupled.tasks.description import described
from decoupled.tasks.presets import task_of
from decoupled.tasks.text_files import LabelledTexts
from tests.tasks.test_classification import Letters

CONFIG = OwnTaskConfig(
    name="similarity",
    kind="regression",
    files="{split}-{language}.tsv",
    splits=("train", "dev", "test"),
    split_column=None,
    training_languages=("en",),
    texts=("a", "b"),
    label="score",
    labels=(),
    metric="pearson",
)
TASK = task_of(described(CONFIG), "", 8)
EXAMPLES = [
    LabelledTexts(("ab", "c"), "2.5"),
    LabelledTexts(("b", "c"), "-1"),
    LabelledTexts(("c", "c"), "4e0"),
    LabelledTexts(("d", "c"), "0"),
]


def test_features_have_the_numbers():
    features = TASK.features(Letters(), EXAMPLES)
    assert features["targets"].tolist() == [2.5, -1.0, 4.0, 0.0]
    assert features["targets"].dtype == np.float32
    assert features["example_index"].tolist() == [0, 1, 2, 3]
    unlabelled = TASK.features(Letters(), [LabelledTexts(("a",), None)])
    assert unlabelled["targets"].tolist() == [0.0]


def test_scores_are_correlations_in_percent_and_the_mean_error():
    answers = [2.0, 0.0, 3.0, 1.0]
    found = TASK.score("en", EXAMPLES, answers)
    targets = [2.5, -1.0, 4.0, 0.0]
    assert found == {
        "pearson": pytest.approx(100 * scipy.stats.pearsonr(targets, answers)[0]),
        "spearman": pytest.approx(100 * scipy.stats.spearmanr(targets, answers)[0]),
        "mean_absolute_error": pytest.approx((0.5 + 1 + 1 + 1) / 4),
    }
    assert set(found) == set(TASK.metrics)
    # Equal answers are correlated with nothing.
    assert TASK.score("en", EXAMPLES, [1.0] * 4)["pearson"] == 0.0
    assert TASK.score("en", [*EXAMPLES, LabelledTexts(("a",), None)], [1.0] * 5) is None
    assert TASK.score("en", EXAMPLES[:1], [1.0]) is None


def test_the_trivial_answer_is_the_mean_of_training():
    task = task_of(described(CONFIG), "", 8)
    task.training = EXAMPLES
    assert task.trivial_answers(EXAMPLES[:2]) == [1.375, 1.375]


def test_answers_are_written_a_line_each(tmp_path):
    path = tmp_path / "test-en.tsv"
    TASK.write(str(path), EXAMPLES[:3], [0.5, -1.25, 1.2345678e-7])
    assert path.read_text() == "0.5\n-1.25\n1.2345678e-07\n"


def test_there_are_no_labels_to_smooth():
    with pytest.raises(UserError, match="label_smoothing: 0.1, but similarity is"):
        TASK.network(0.1, 0.1)


def test_a_row_must_hold_a_pair():
    with pytest.raises(UserError, match="max_sequence_length: 4 leaves no room"):
        task_of(described(CONFIG), "", 4)
