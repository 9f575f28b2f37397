"""Where the files of the tasks lie, and what is said where one does not."""

import pytest

from decoupled.core.errors import UserError
from decoupled.tasks.question_files import question_file, question_languages

MLQA = "mlqa/MLQA_V1/{split}/{split}-context-{name}-question-{name}.json"
TYDIQA = "tydiqa/tydiqa-goldp-v1.1-{split}/tydiqa.goldp.{name}.{split}.json"


@pytest.fixture
def folder(tmp_path):
    names = [
        "squad/train-v1.1.json",
        "squad/dev-v1.1.json",
        "xquad/xquad.zh.json",
        "xquad/xquad.en.json",
        "xquad/xquad.ja.json",
        *(MLQA.format(split=s, name=n) for s in ("dev", "test") for n in ("en", "hi")),
        "mlqa/MLQA_V1/test/test-context-en-question-hi.json",
        TYDIQA.format(split="train", name="en"),
        TYDIQA.format(split="train", name="ko"),
        TYDIQA.format(split="dev", name="en"),
        TYDIQA.format(split="dev", name="te"),
        TYDIQA.format(split="dev", name="ja"),
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    "task, split, languages",
    [
        ("xquad", "train", ["en"]),
        ("xquad", "dev", ["en"]),
        # Japanese is no language of XTREME's XQuAD.
        ("xquad", "test", ["en", "zh", "ja"]),
        ("mlqa", "train", ["en"]),
        ("mlqa", "dev", ["en", "hi"]),
        ("mlqa", "test", ["en", "hi"]),
        ("tydiqa", "train", ["en"]),
        ("tydiqa", "dev", ["en"]),
        ("tydiqa", "test", ["en", "te", "ja"]),
    ],
)
def test_languages(folder, task, split, languages):
    assert question_languages(task, str(folder), split) == languages


@pytest.mark.parametrize(
    "task, split, language, path",
    [
        ("xquad", "train", "en", "squad/train-v1.1.json"),
        ("xquad", "dev", "en", "squad/dev-v1.1.json"),
        ("xquad", "test", "zh", "xquad/xquad.zh.json"),
        ("mlqa", "train", "en", "squad/train-v1.1.json"),
        ("mlqa", "dev", "hi", MLQA.format(split="dev", name="hi")),
        ("mlqa", "test", "en", MLQA.format(split="test", name="en")),
        ("tydiqa", "train", "en", TYDIQA.format(split="train", name="en")),
        ("tydiqa", "dev", "en", TYDIQA.format(split="dev", name="en")),
        ("tydiqa", "test", "te", TYDIQA.format(split="dev", name="te")),
    ],
)
def test_paths(folder, task, split, language, path):
    assert question_file(task, str(folder), split, language) == str(folder / path)


def test_mlqa_without_its_dev_set_takes_squads(folder):
    (folder / MLQA.format(split="dev", name="en")).unlink()
    found = question_file("mlqa", str(folder), "dev", "en")
    assert found == str(folder / "squad/dev-v1.1.json")


@pytest.mark.parametrize("split", ["train", "dev"])
def test_the_other_spelling_of_tydiqa(folder, split):
    path = folder / TYDIQA.format(split=split, name="en")
    other = path.rename(path.with_name(f"tydiqa.en.{split}.json"))
    assert question_file("tydiqa", str(folder), split, "en") == str(other)


def test_tydiqa_as_it_is_published(folder):
    """XTREME's script renames these files; the score command takes both names."""
    path = folder / TYDIQA.format(split="dev", name="te")
    other = path.rename(path.with_name("tydiqa-goldp-dev-telugu.json"))
    assert question_languages("tydiqa", str(folder), "test") == ["en", "te", "ja"]
    assert question_file("tydiqa", str(folder), "test", "te") == str(other)


@pytest.mark.parametrize(
    "task, split, language, message",
    [
        ("xquad", "test", "th", "xquad/xquad.th.json: missing, the test file of task "
         "xquad in language 'th'; XTREME's scripts/download_data.sh fetches"),
        ("mlqa", "dev", "zh", "dev-context-zh-question-zh.json: missing, the dev file"),
        ("tydiqa", "test", "sw", "tydiqa.goldp.sw.dev.json: missing, the test file"),
        ("xquad", "train", "de", "no place for the train file of task xquad in "
         "language 'de'; XTREME has this split in English only"),
        ("tydiqa", "dev", "te", "XTREME has this split in English only"),
        ("mlqa", "test", "th", "test-context-th-question-th.json: missing, the test f"),
    ],
)  # fmt: skip
def test_a_missing_file(folder, task, split, language, message):
    with pytest.raises(UserError, match=message) as caught:
        question_file(task, str(folder), split, language)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_training_data_names_squad(tmp_path):
    with pytest.raises(UserError, match="squad/train-v1.1.json: missing.*SQuAD 1.1"):
        question_file("mlqa", str(tmp_path), "train", "en")
