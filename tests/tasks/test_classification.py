"""Classification towards data: files, texts as inputs, answers, scores."""

import numpy as np
import pytest
import scipy.stats

from decoupled.configs import OwnTaskConfig
from decoupled.core.errors import UserError
from decoupled.data.vocabulary import Pairs
from decoupled.tasks.classification import LabelAnswer, pack_texts, truncate
from decoupled.tasks.description import describe_task
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.text_files import LabelledTexts
from decoupled.xtreme.files import LanguageFile, read_predictions

XNLI = task_of(TASKS["xnli"], "", 8)
EXAMPLES = [
    LabelledTexts(("ab", "c"), "neutral"),
    LabelledTexts(("d", "e"), "contradiction"),
    LabelledTexts(("d", "f"), "neutral"),
]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "xnli"
    folder.mkdir()
    (folder / "train-en.tsv").write_text("a\tb\tneutral\n")
    for language in ("sw", "en", "ar", "xx"):
        (folder / f"test-{language}.tsv").write_text("a\tb\n")
    return tmp_path


def test_reads_labelled_training_and_unlabelled_test_files(data):
    xnli = task_of(TASKS["xnli"], str(data), 8)
    assert xnli.read("train", "en") == [(("a", "b"), "neutral")]
    assert xnli.read("test", "sw") == [(("a", "b"), None)]
    (data / "xnli" / "dev-en.tsv").write_text("a\tb\n")
    with pytest.raises(UserError, match=r"dev-en\.tsv:1: column 3: is missing"):
        xnli.read("dev", "en")


def test_features_are_packed_pairs_and_label_ids():
    features = XNLI.features(Letters(), EXAMPLES)
    assert features["input_word_ids"][0].tolist() == [1, 10, 11, 2, 12, 2, 0, 0]
    assert features["input_type_ids"][0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    assert features["input_mask"][0].tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    # The order of ids is that of LABELS.
    assert features["label_ids"].tolist() == [2, 0, 2]
    assert features["example_index"].tolist() == [0, 1, 2]
    assert {array.dtype for array in features.values()} == {np.dtype(np.int32)}
    assert set(XNLI.graph_features) == set(features) - {"example_index"}
    unlabelled = XNLI.features(Letters(), [LabelledTexts(("a", "b"), None)])
    assert unlabelled["label_ids"].tolist() == [0]


def test_answers_are_the_most_probable_labels():
    rows = np.array([[0.1, 0.7, 0.2], [0.5, 0.25, 0.25], [0, 0, 1]], np.float32)
    answers = XNLI.answers(EXAMPLES, {}, {"probabilities": rows})
    assert [a.label for a in answers] == ["entailment", "contradiction", "neutral"]
    assert [a.probability for a in answers] == pytest.approx([0.7, 0.5, 1.0])


def test_scores_are_percentages_of_labelled_examples():
    answers = [LabelAnswer(label, 1.0) for label in ("neutral", "neutral", "neutral")]
    assert XNLI.score("en", EXAMPLES, answers)["accuracy"] == pytest.approx(200 / 3)
    unlabelled = [example._replace(label=None) for example in EXAMPLES]
    assert XNLI.score("en", unlabelled, answers) is None


def test_the_trivial_answer_is_the_majority_of_training():
    task = task_of(TASKS["xnli"], "", 8)
    task.training = EXAMPLES
    assert task.trivial_answers(EXAMPLES[:2]) == [("neutral", 2 / 3)] * 2
    # Of equally frequent labels the first.
    task.training = EXAMPLES[:2]
    assert task.trivial_answers(EXAMPLES[:1])[0].label == "contradiction"


def test_predictions_are_what_the_scoring_command_reads(tmp_path):
    path = str(tmp_path / "test-en.tsv")
    answers = [LabelAnswer("entailment", 0.9), LabelAnswer("neutral", 0.5)]
    XNLI.write(path, EXAMPLES[:2], answers)
    with open(path, encoding="utf-8") as handle:
        assert handle.read() == "entailment\nneutral\n"
    file = LanguageFile(path, "xnli", "en")
    labels = [example.label for example in EXAMPLES[:2]]
    assert read_predictions(file, labels, "labels") == ["entailment", "neutral"]


def test_a_row_must_hold_a_pair():
    with pytest.raises(UserError, match="max_sequence_length: 4 leaves no room"):
        task_of(TASKS["pawsx"], "", 4)


def test_the_task_of_a_corpus_takes_labels_and_languages_from_the_folder(tmp_path):
    folder = tmp_path / "catalogs"
    folder.mkdir()
    (folder / "labels.txt").write_text("admin\ncore\n")
    (folder / "dev-sw.tsv").write_text("neno\tcore\n")
    (folder / "dev-ast.tsv").write_text("pallabra\tadmin\n")
    task = task_of(TASKS["catalogs"], str(tmp_path), 8)
    assert task.labels == ["admin", "core"]
    assert task.languages("dev") == ["ast", "sw"]
    assert task.read("dev", "sw") == [(("neno",), "core")]
    path = str(tmp_path / "dev-sw.tsv")
    task.write(path, [], [LabelAnswer("core", 0.25)])
    with open(path, encoding="utf-8") as handle:
        assert handle.read() == "core\t0.250000\n"
    with pytest.raises(UserError, match="train-en.tsv: missing.*build_corpus"):
        task.read("train", "en")


class Letters:
    """A vocabulary of letters: a is 10, b is 11, ..."""

    pad_id, cls_id, sep_id = 0, 1, 2
    pairs = Pairs(separators=1, second_type=1)

    def encode_batch(self, texts):
        return [[10 + ord(letter) - ord("a") for letter in text] for text in texts]


def test_one_text():
    packed = pack_texts(Letters(), [("ab",), ("",)], 6)
    np.testing.assert_array_equal(
        packed["input_word_ids"], [[1, 10, 11, 2, 0, 0], [1, 2, 0, 0, 0, 0]]
    )
    np.testing.assert_array_equal(
        packed["input_mask"], [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]]
    )
    assert not packed["input_type_ids"].any()
    assert {array.dtype for array in packed.values()} == {np.dtype(np.int32)}


def test_long_texts_are_cut_at_their_end():
    one = pack_texts(Letters(), [("abcdef",)], 5)
    assert one["input_word_ids"].tolist() == [[1, 10, 11, 12, 2]]
    pair = pack_texts(Letters(), [("abcdef", "gh")], 8)
    assert pair["input_word_ids"].tolist() == [[1, 10, 11, 12, 2, 16, 17, 2]]


@pytest.mark.parametrize(
    "lengths, budget, kept",
    [
        ((3, 3), 6, (3, 3)),
        ((5, 3), 7, (4, 3)),
        ((3, 5), 7, (3, 4)),
        ((5, 3), 5, (3, 2)),
        ((9, 1), 4, (3, 1)),
        ((4, 4), 3, (2, 1)),
        ((7,), 3, (3,)),
    ],
)
def test_the_longer_is_cut_first_and_of_equals_the_second(lengths, budget, kept):
    segments = [list(range(length)) for length in lengths]
    cut = truncate(segments, budget)
    assert tuple(map(len, cut)) == kept
    assert all(s[: len(c)] == c for s, c in zip(segments, cut, strict=True))


SIMILARITY = describe_task(
    OwnTaskConfig(
        name="similarity",
        kind="regression",
        files="{split}-{language}.tsv",
        texts=("a", "b"),
        label="score",
        metric="pearson",
    )
)
NUMBERS = task_of(SIMILARITY, "", 8)
NUMBERED = [
    LabelledTexts(("ab", "c"), "2.5"),
    LabelledTexts(("b", "c"), "-1"),
    LabelledTexts(("c", "c"), "4e0"),
    LabelledTexts(("d", "c"), "0"),
]


def test_features_of_a_regression_have_the_numbers():
    features = NUMBERS.features(Letters(), NUMBERED)
    assert features["targets"].tolist() == [2.5, -1.0, 4.0, 0.0]
    assert features["targets"].dtype == np.float32
    assert features["example_index"].tolist() == [0, 1, 2, 3]
    unlabelled = NUMBERS.features(Letters(), [LabelledTexts(("a",), None)])
    assert unlabelled["targets"].tolist() == [0.0]


def test_scores_are_correlations_in_percent_and_the_mean_error():
    answers = [2.0, 0.0, 3.0, 1.0]
    found = NUMBERS.score("en", NUMBERED, answers)
    targets = [2.5, -1.0, 4.0, 0.0]
    assert found == {
        "pearson": pytest.approx(100 * scipy.stats.pearsonr(targets, answers)[0]),
        "spearman": pytest.approx(100 * scipy.stats.spearmanr(targets, answers)[0]),
        "mean_absolute_error": pytest.approx((0.5 + 1 + 1 + 1) / 4),
    }
    assert set(found) == set(NUMBERS.metrics)
    # Equal answers are correlated with nothing.
    assert NUMBERS.score("en", NUMBERED, [1.0] * 4)["pearson"] == 0.0
    assert (
        NUMBERS.score("en", [*NUMBERED, LabelledTexts(("a",), None)], [1.0] * 5) is None
    )
    assert NUMBERS.score("en", NUMBERED[:1], [1.0]) is None


def test_the_trivial_number_is_the_mean_of_training():
    task = task_of(SIMILARITY, "", 8)
    task.training = NUMBERED
    assert task.trivial_answers(NUMBERED[:2]) == [1.375, 1.375]


def test_numbers_are_written_a_line_each(tmp_path):
    path = tmp_path / "test-en.tsv"
    NUMBERS.write(str(path), NUMBERED[:3], [0.5, -1.25, 1.2345678e-7])
    assert path.read_text() == "0.5\n-1.25\n1.2345678e-07\n"
