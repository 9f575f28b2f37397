"""Question answering tasks from files to submission files, and a model that learns."""

import dataclasses
import json
import os
import types

import numpy as np
import pytest

from decoupled.configs import MeshConfig, QuestionAnsweringConfig, VocabularyConfig
from decoupled.core.errors import UserError
from decoupled.data.array_input_fn import training_input_fn
from decoupled.data.vocabulary import Pairs
from decoupled.data.vocabulary_training import train_vocabulary
from decoupled.runs.batch_shape import plan_batches
from decoupled.runs.evaluation import answer_languages
from decoupled.runs.task_data import TaskData
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.qa import sliding_window_answer, usual_length
from decoupled.training.bookkeeping import StopOnSignal
from decoupled.training.graph import Network, TrainingGraph
from decoupled.training.loop import Run, train
from decoupled.xtreme.scoring import score
from tests.helpers import adamw, schedule, tiny_model, tiny_training
from tests.tasks.question_samples import (
    SETTINGS,
    TEXTS,
    documents,
    make_vocabulary,
    question,
    write_document,
)

# Where a task's files lie, for the languages of `TEXTS` that it has.
FILES = {
    "xquad": ("squad/train-v1.1.json", "xquad/xquad.{}.json", "en de ar hi zh th"),
    "mlqa": (
        "squad/train-v1.1.json",
        "mlqa/MLQA_V1/test/test-context-{0}-question-{0}.json",
        "en de ar hi zh",
    ),
    "tydiqa": (
        "tydiqa/tydiqa-goldp-v1.1-train/tydiqa.goldp.en.train.json",
        "tydiqa/tydiqa-goldp-v1.1-dev/tydiqa.goldp.{}.dev.json",
        "en ar ko",
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qa")
    for train_file, test_file, languages in FILES.values():
        write_document(folder / train_file, documents("en"))
        for language in languages.split():
            write_document(folder / test_file.format(language), documents(language))
    return folder


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    return make_vocabulary(tmp_path_factory.mktemp("pieces") / "sentencepiece.model")


def make_task(name, folder="", length=64, **changes):
    config = dataclasses.replace(SETTINGS, **changes)
    return task_of(TASKS[name], str(folder), length, config)


def gold_logits(features):
    """What a model without any error would give."""
    places = np.arange(features["input_mask"].shape[1])
    return {
        f"{end}_logits": np.where(
            places == features[f"{end}_positions"][:, np.newaxis], 5.0, 0.0
        )
        for end in ("start", "end")
    }


@pytest.mark.parametrize("name", FILES)
def test_perfect_logits_give_a_perfect_score(folder, vocabulary, tmp_path, name):
    """In all scripts, through answers, submission files and `decoupled score`."""
    task = make_task(name, folder)
    languages = task.languages("test")
    assert set(languages) == set(FILES[name][2].split()) and languages[0] == "en"
    for language in languages:
        examples = task.read("test", language)
        features = task.features(vocabulary, examples)
        answers = task.answers(examples, features, gold_logits(features))
        assert answers == [answer for _, answer in TEXTS[language][1:]]
        assert task.score(language, examples, answers) == {
            "exact_match": 100.0,
            "f1": 100.0,
        }
        path = tmp_path / name / f"test-{language}.{task.prediction_suffix}"
        path.parent.mkdir(exist_ok=True)
        task.write(str(path), examples, answers)
        written = dict(zip([q.identifier for q in examples], answers, strict=True))
        assert json.loads(path.read_text()) == written
        # For people to read.
        assert answers[1] in path.read_text(encoding="utf-8")
    scored = score(str(tmp_path), str(folder), [name], languages)
    assert scored[name]["exact_match"] == dict.fromkeys(languages, 100.0)


def test_answers_are_scored_as_officially(folder):
    task = make_task("mlqa", folder)
    examples = task.read("test", "en")
    answers = ["the 1,094 km", "in Giant Mountains of nowhere"]
    found = task.score("en", examples, answers)
    # in, giant, mountains of three; five words in the answer.
    assert found == pytest.approx({"exact_match": 50.0, "f1": 100 * (1 + 0.75) / 2})


def test_settings_are_those_that_change_features():
    task = make_task("xquad")
    assert task.settings() == {
        "max_sequence_length": 64,
        "max_question_length": 16,
        "doc_stride": 16,
        "version": 2,
    }
    assert make_task("xquad", n_best=3).settings() == task.settings()
    assert json.loads(json.dumps(task.settings())) == task.settings()
    # These change answers only.
    assert make_task("xquad", n_best=3).answer_settings() == {
        "max_answer_length": SETTINGS.max_answer_length,
        "max_characters": None,
        "n_best": 3,
    }
    task = make_task("xquad", max_answer_length="auto")
    task.training = [question("The Elbe is 1,094 km long.", "1,094 km")]
    assert task.answer_settings()["max_characters"] == 12


def test_a_stride_that_would_skip_text_is_refused():
    message = "doc_stride: 46 would skip text.* 64 has 45 pieces of context"
    with pytest.raises(UserError, match=message):
        make_task("xquad", doc_stride=46)
    task = make_task("xquad", doc_stride=45)
    # Pairs of XLM-R have a separator more.
    task.check_vocabulary(types.SimpleNamespace(pairs=Pairs(1, 1)))
    with pytest.raises(UserError, match="64 has 44 pieces of context"):
        task.check_vocabulary(types.SimpleNamespace(pairs=Pairs(2, 0)))


def test_only_tests_may_lack_answers(tmp_path):
    stripped = documents("en", with_answers=False)
    for name in ("squad/train-v1.1.json", "squad/dev-v1.1.json", "xquad/xquad.en.json"):
        write_document(tmp_path / name, stripped)
    task = make_task("xquad", tmp_path)
    for split in ("train", "dev"):
        with pytest.raises(UserError, match="v1.1.json .*no question has an answer"):
            task.read(split, "en")
    examples = task.read("test", "en")
    assert task.score("en", examples, ["", ""]) is None


def test_one_dev_question_without_an_answer_is_named(tmp_path):
    document = documents("en")
    questions = document["data"][0]["paragraphs"][0]["qas"]
    questions[1]["answers"] = []
    write_document(tmp_path / "squad/dev-v1.1.json", document)
    with pytest.raises(
        UserError, match="dev-v1.1.json .*question 'en-1' has no answer"
    ):
        make_task("xquad", tmp_path).read("dev", "en")
    # A test whose score would leave the language out.
    write_document(tmp_path / "xquad/xquad.en.json", document)
    with pytest.raises(UserError, match="xquad.en.json .*question 'en-1' has no answe"):
        make_task("xquad", tmp_path).read("test", "en")
    questions[0]["answers"] = []
    write_document(tmp_path / "xquad/xquad.en.json", document)
    assert len(make_task("xquad", tmp_path).read("test", "en")) == len(questions)


def test_ids_of_training_questions_may_repeat(tmp_path):
    """XTREME's script cuts those of TyDi QA down to 0, 1 and the like."""
    document = documents("en")
    for fields in document["data"][0]["paragraphs"][0]["qas"]:
        fields["id"] = "0"
    train, test, _ = FILES["tydiqa"]
    write_document(tmp_path / train, document)
    write_document(tmp_path / test.format("en"), document)
    task = make_task("tydiqa", tmp_path)
    assert len(task.read("train", "en")) == 2
    # Those of predictions tell the questions apart.
    with pytest.raises(UserError, match="two questions with the id '0'"):
        task.read("test", "en")


def test_a_dev_file_without_answers_that_is_the_test_file_is_no_dev_file(tmp_path):
    """XTREME's script takes the answers out of TyDi QA's dev files, the test files."""
    train, test, _ = FILES["tydiqa"]
    write_document(tmp_path / train, documents("en"))
    stripped = documents("en", with_answers=False)
    write_document(tmp_path / test.format("en"), stripped)
    task = make_task("tydiqa", tmp_path)
    assert task.languages("dev") == []
    assert task.languages("test") == ["en"]
    examples = task.read("test", "en")
    assert task.score("en", examples, ["", ""]) is None
    write_document(tmp_path / test.format("en"), documents("en"))
    assert make_task("tydiqa", tmp_path).languages("dev") == ["en"]


def test_repairs_are_reported_once(folder, tmp_path, capsys):
    document = documents("en")
    first = document["data"][0]["paragraphs"][0]["qas"][0]
    first["answers"][0]["answer_start"] += 1
    write_document(tmp_path / "xquad/xquad.en.json", document)
    task = make_task("xquad", tmp_path)
    for _ in range(3):
        task.read("test", "en")
    assert capsys.readouterr().out.count("not at its answer_start") == 1


def asked(*answers):
    """Questions with one answer each, all of it the context."""
    return [question(answer, answer) for answer in answers]


def test_the_limit_of_answers_follows_the_training_answers(vocabulary):
    task = make_task("xquad", max_answer_length="auto")
    task.training = asked("abcd", "ab cd ef gh ")
    assert task.answer_limit.startswith("16 characters, 1.5 times the longest one")
    examples = asked("a" * 16, "a" * 17, "a", f"  {'a' * 16} ")
    assert task.share_beyond_limit(vocabulary, examples) == 1 / 4
    several = examples[1]._replace(answers=(*examples[1].answers, *examples[2].answers))
    assert task.share_beyond_limit(vocabulary, [several]) == 0
    unlabelled = [examples[0]._replace(answers=())]
    assert task.share_beyond_limit(vocabulary, unlabelled) is None
    assert task.share_beyond_limit(vocabulary, unlabelled + examples) == 1 / 4


def test_a_limit_in_pieces_depends_on_the_vocabulary(folder, vocabulary):
    examples = make_task("xquad", folder).read("test", "zh")
    lengths = [len(vocabulary.encode(q.answers[0].text)) for q in examples]
    low, high = sorted(lengths)
    assert low < high
    for most, share in ((high, 0), (high - 1, 1 / 2), (low - 1, 1)):
        task = make_task("xquad", folder, max_answer_length=most)
        task.training = examples
        limit = f"{most} pieces (QuestionAnsweringConfig.max_answer_length)"
        assert task.answer_limit == limit
        assert task.share_beyond_limit(vocabulary, examples) == share


def test_trivial_answers(folder):
    task = make_task("xquad", folder)
    answers = task.trivial_answers(task.training)
    # Answers have three words (1, 094, km) or four.
    assert [len(answer.split()) for answer in answers] == [4, 4]


QUESTIONS = 64


@pytest.fixture
def few_questions(data_dir, tmp_path):
    """The first questions of XQuAD English, for training and for tests."""
    with open(os.path.join(data_dir, "xtreme/xquad/xquad.en.json")) as handle:
        document = json.load(handle)
    paragraphs = [p for article in document["data"] for p in article["paragraphs"]]
    kept, missing = [], QUESTIONS
    for paragraph in paragraphs:
        kept.append({**paragraph, "qas": paragraph["qas"][:missing]})
        missing -= len(kept[-1]["qas"])
        if not missing:
            break
    document = {"data": [{"paragraphs": kept}]}
    write_document(tmp_path / "data/squad/train-v1.1.json", document)
    write_document(tmp_path / "data/xquad/xquad.en.json", document)
    pieces = VocabularyConfig(4000, 1.0, False, 10**6, 10**9, 16)
    vocabulary = train_vocabulary(
        (text for p in paragraphs for text in [p["context"], p["qas"][0]["question"]]),
        str(tmp_path / "sentencepiece.model"),
        pieces,
    )
    return str(tmp_path / "data"), vocabulary


@pytest.mark.slow
def test_a_tiny_model_learns_questions_by_heart(few_questions, tmp_path):
    """Features, windows, loss, decoding, submission and scoring as one."""
    data, vocabulary = few_questions
    settings = QuestionAnsweringConfig(32, 80, max_answer_length=30, n_best=20)
    task = task_of(TASKS["xquad"], data, 128, settings)
    examples = task.read("train", "en")
    features = task.features(vocabulary, examples)
    arrays = {name: features[name] for name in task.graph_features}
    assert len(examples) == QUESTIONS < len(features["example_index"])
    model = tiny_model(
        vocab_size=vocabulary.size, input_embedding_size=64, output_embedding_size=64,
        hidden_size=64, num_layers=1, head_size=16, intermediate_size=128,
        max_positions=128, initializer_range=0.05,
    )  # fmt: skip
    mesh = MeshConfig()
    network = Network(task.network(0.0), model, mesh)
    graph = TrainingGraph(
        network, adamw(learning_rate=5e-3), schedule(train_steps=150, warmup_steps=15),
        tiny_training(batch_size=32, save_checkpoints_steps=150, log_steps=50),
    )  # fmt: skip
    run = Run(str(tmp_path / "run"), None, print, StopOnSignal())
    packing = plan_batches(graph, features["input_mask"].sum(1), run)
    packed = network._replace(task=network.task.packed(packing.examples))
    train(
        graph._replace(network=packed),
        run,
        lambda step: training_input_fn(arrays, 32, graph.training.seed, step, packing),
    )
    files = TaskData(task, vocabulary, str(tmp_path / "features"))
    [answered] = answer_languages(network, run, 32, files, [("test", "en")])
    answers = answered.answers
    os.makedirs(tmp_path / "predictions/xquad")
    task.write(str(tmp_path / "predictions/xquad/test-en.json"), examples, answers)
    scored = score(str(tmp_path / "predictions"), data, ["xquad"], ["en"])
    assert scored["xquad"]["exact_match"]["en"] > 90
    assert (
        scored["xquad"]["exact_match"]["en"]
        == (task.score("en", examples, answers)["exact_match"])
    )


def ask(context, text):
    return question(context, context[:1], text)


def test_usual_length_is_the_median_in_words():
    lengths = ["a b c", "a", "a b"]
    asked = [question(answer, answer) for answer in lengths]
    assert usual_length(asked) == 2
    # A character is a word where a script has no spaces.
    assert usual_length([question("巨人山脉", "巨人山脉")]) == 4
    assert usual_length([]) == 1


def test_the_words_beside_those_of_the_question():
    filler = " ".join(["filler"] * 30)
    asked = ask(f"{filler}. The river Elbe rises in mountains. {filler}", "the Elbe?")
    # The first place within ten words of both: eight fillers, The, river.
    assert sliding_window_answer(asked, 2) == "filler filler"
    asked = ask("Elbe rises in mountains", "What rises in Elbe?")
    assert sliding_window_answer(asked, 1) == "mountains"


def test_short_contexts():
    assert sliding_window_answer(ask("Elbe", "Where?"), 3) == "Elbe"
    assert sliding_window_answer(ask("...", "Where?"), 3) == ""
    assert sliding_window_answer(ask("Elbe river", "Elbe river?"), 2) == "Elbe river"
