"""`decoupled predict` writes the prediction files of `finetune`, on real data."""

import json

import numpy as np
import pytest

from decoupled.commands.finetune import run_finetuning
from decoupled.configs import (
    FinetuningConfig,
    MeshConfig,
    QuestionAnsweringConfig,
    VocabularyConfig,
)
from decoupled.configs.finetuning import FinetuneConfig
from decoupled.data.vocabulary_training import train_vocabulary
from decoupled.exports.serving.saved_model import export
from tests.command_line import decoupled
from tests.exports.models import (
    model_and_task,
    model_config,
    pretrained_weights,
    write_model_dir,
)
from tests.helpers import adamw, tiny_training

pytestmark = pytest.mark.slow

LENGTH = 64
LANGUAGES = ("en", "hi", "zh", "de")
WORDS = ("Müller", "cafe\u0301", "\u200b", "👩\u200d👧", "☃☃☃", "\xa0", "½", "a" * 300)
# The file of de: contexts without text, long ones, unknown characters.
CONTEXTS = (
    "",
    " \u200b ",
    "Müller ½ ﬁn cafe\u0301 👩\u200d👧 ☃☃☃ 𐍈 ends.",
    "It was built in 1889. Gustave Eiffel's company built it! " * 60,
    "☃" * 500,
)
# Windows are so short that most contexts need several.
SETTINGS = QuestionAnsweringConfig(
    max_question_length=14, doc_stride=20, max_answer_length="auto", n_best=7
)


def head(source, target, sentences):
    """The first sentences of a file of tagged words."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(source, encoding="utf-8") as file:
        blocks = file.read().split("\n\n")
    target.write_text("\n\n".join(blocks[:sentences]) + "\n\n", encoding="utf-8")


def first_paragraphs(source, target, articles):
    """A file of questions with the first two paragraphs of the first articles."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(source, encoding="utf-8") as file:
        content = json.load(file)
    content["data"] = content["data"][:articles]
    for article in content["data"]:
        article["paragraphs"] = article["paragraphs"][:2]
    target.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data_dir):
    """A little of the data, and a model of random weights with a vocabulary of it."""
    folder = tmp_path_factory.mktemp("text_tasks")
    real, data = f"{data_dir}/xtreme", folder / "data"
    for split, count in (("train", 80), ("test", 120)):
        name = f"udpos/{split}-en.tsv"
        head(f"{real}/{name}", data / name, count)
    with open(data / "udpos/test-en.tsv", "a", encoding="utf-8") as file:
        file.write("".join(f"{word}\tX\n" for word in WORDS) + "\n")
    hard = [
        {"id": f"{number}-{question}", "question": question}
        for number in range(len(CONTEXTS))
        for question in ("When was it built?", "Wer \u200b ☃?", "")
    ]
    paragraphs = [
        {"context": context, "qas": hard[3 * number : 3 * number + 3]}
        for number, context in enumerate(CONTEXTS)
    ]
    document = {"data": [{"paragraphs": paragraphs}]}
    path = data / "xquad/xquad.de.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    name = "squad/train-v1.1.json"
    first_paragraphs(f"{real}/{name}", data / name, 8)
    texts = []
    for language in ("en", "hi", "zh"):
        name = f"xquad/xquad.{language}.json"
        first_paragraphs(f"{real}/{name}", data / name, 12)
        for article in json.loads((data / name).read_text())["data"]:
            for paragraph in article["paragraphs"]:
                texts.append(paragraph["context"])
                texts += [question["question"] for question in paragraph["qas"]]
    config = VocabularyConfig(1500, 0.99, False, 10**6, 10**9, 16)
    vocabulary = train_vocabulary(texts, str(folder / "pieces.model"), config)
    sizes = model_config(
        vocab_size=vocabulary.size,
        max_positions=LENGTH + 10,
        input_embedding_size=16,
        hidden_size=32,
        head_size=16,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    weights = pretrained_weights(sizes)
    write_model_dir(folder / "pretrained", vocabulary, sizes, weights)
    return folder


def tune(folder, task):
    """Fine-tunes, predicts and exports; returns the run's folder."""
    config = FinetuneConfig(
        FinetuningConfig(8.0, LENGTH, 0.0),
        MeshConfig(),
        adamw(learning_rate=1e-3),
        tiny_training(),
        SETTINGS,
    )
    places = (str(folder / name) for name in ("data", "pretrained", task))
    arguments = (config, task, *places)
    run_finetuning(*arguments, "train")
    run_finetuning(*arguments, "predict")
    export(
        *model_and_task(str(folder / task)),
        str(folder / task / "export"),
        sequence_length=LENGTH,
        mlm=False,
        overwrite=False,
    )
    return folder / task


@pytest.fixture(scope="module")
def tagger(folder):
    return tune(folder, "udpos")


@pytest.fixture(scope="module")
def reader(folder):
    return tune(folder, "xquad")


def predict(run, path, output):
    """The content of the file that the command writes."""
    done = decoupled(
        "predict", f"--export_dir={run / 'export'}", f"--input={path}",
        f"--output={output}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return output.read_text(encoding="utf-8")


def test_a_tagger_gives_the_tags_of_the_predictions(folder, tagger, tmp_path):
    path = folder / "data/udpos/test-en.tsv"
    result = predict(tagger, path, tmp_path / "tags.tsv")
    expected = (tagger / "predictions/udpos/test-en.tsv").read_text(encoding="utf-8")
    assert result == expected
    # The training has an effect.
    assert len(set(result.split())) > 3
    rows = map(json.loads, predict(tagger, path, tmp_path / "tags.jsonl").splitlines())
    rows = list(rows)
    assert [tag for row in rows for tag in row["tags"]] == result.split()
    assert rows[-1]["words"] == list(WORDS)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_reader_gives_the_answers_of_the_predictions(
    folder, reader, tmp_path, language
):
    path = folder / f"data/xquad/xquad.{language}.json"
    result = json.loads(predict(reader, path, tmp_path / "answers.json"))
    predictions = reader / f"predictions/xquad/test-{language}.json"
    assert result == json.loads(predictions.read_text(encoding="utf-8"))
    lines = predict(reader, path, tmp_path / "answers.jsonl").splitlines()
    # NaN and Infinity are no JSON.
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert {row["id"]: row["answer"] for row in rows} == result
    contexts = {
        question["id"]: paragraph["context"]
        for article in json.loads(path.read_text(encoding="utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    for row in rows:
        context = contexts[row["id"]]
        assert context[row["start"] :].startswith(row["answer"])
        assert bool(row["answer"]) == bool(context.strip(" \u200b"))
    # The model is surer of some answers than of others.
    assert np.ptp([row["score"] for row in rows]) > 1
