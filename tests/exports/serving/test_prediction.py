"""`decoupled predict` and its function: strings to answers, by the task's own code."""

import csv
import dataclasses
import functools
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from decoupled.core.errors import UserError
from decoupled.core.release import tf
from decoupled.exports.serving import prediction
from decoupled.exports.serving.encoder import FEATURES, Classifier, Encoder
from decoupled.exports.serving.prediction import open_predictor
from decoupled.exports.serving.saved_model import export
from decoupled.tasks.classification import pack_texts
from decoupled.tasks.presets import TASKS, task_of
from decoupled.tasks.qa_answers import scored_answers
from decoupled.tasks.qa_features import question_features
from decoupled.tasks.qa_files import Question
from decoupled.tasks.tagging import tagging_features, word_tags
from decoupled.tasks.tagging_files import TaggedSentence
from tests.command_line import decoupled, mistake
from tests.exports.models import (
    finetuned_weights,
    model_and_task,
    model_config,
    saving_only,
    write_model_dir,
)
from tests.tasks.question_samples import SETTINGS, TEXTS, documents, make_vocabulary
from tests.tasks.tagged_words import DIFFICULT, TEXT, small_vocabulary

# Loading a model takes half a second.
opened_once = functools.cache(open_predictor)
LENGTH = 40
LABELS = ["A", "B", "C", "D", "E"]
CONTEXTS = [
    "",
    "  \u200b ",
    "One word.",
    "Müller ½ ﬁn cafe\u0301 👩\u200d👩\u200d👧 𐍈 ☃",
    *(texts[0] for texts in TEXTS.values()),
    "The river Elbe rises in the Giant Mountains; then it goes on. " * 20,
]


@pytest.fixture(autouse=True)
def commands_open_once(monkeypatch):
    monkeypatch.setattr(prediction, "open_predictor", opened_once)


def make_export(folder, vocabulary, kind, labels, data, outputs, answers=None):
    """An export of random weights of a fine-tuning run; returns weights and folder."""
    config = model_config(
        vocab_size=vocabulary.size, num_layers=1, max_positions=LENGTH
    )
    weights = finetuned_weights(config, outputs)
    if kind in ("tagging", "question answering"):
        weights = {name: v for name, v in weights.items() if "pooler" not in name}
    # More than the bias decides.
    weights["output_weights"] *= 10
    run = folder / "run"
    task = {"name": "ours", "kind": kind, "labels": labels}
    features = {"max_sequence_length": LENGTH, **data}
    write_model_dir(run, vocabulary, config, weights, task, {"features": features})
    if answers:
        (run / "answers.json").write_text(json.dumps(answers))
    # What `predict` reads, beside the vocabulary.
    with saving_only("tagger", "span_model", "classifier", "regressor"):
        export(
            *model_and_task(str(run)), str(folder / "export"), sequence_length=LENGTH,
            mlm=False, overwrite=False,
        )  # fmt: skip
    assets = folder / "export/preprocessor/assets"
    assets.mkdir()
    shutil.copy(vocabulary.path, assets / "sentencepiece.model")
    return Encoder(config, weights), Classifier(weights), folder / "export"


def token_logits(encoder, head, features):
    inputs = {name: tf.constant(features[name]) for name in FEATURES}
    return head(encoder(inputs)["sequence_output"]).numpy()


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    return make_vocabulary(tmp_path_factory.mktemp("pieces") / "pieces.model")


@pytest.fixture(scope="module")
def tagger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagger")
    pieces = small_vocabulary(folder / "pieces.model")
    return pieces, *make_export(folder, pieces, "tagging", LABELS, {"texts": [1]}, 5)


@pytest.fixture(scope="module")
def reader(pieces, tmp_path_factory):
    settings = {"max_question_length": 16, "doc_stride": 16}
    return make_export(
        tmp_path_factory.mktemp("reader"), pieces, "question answering", [],
        settings, 2, {"max_answer_length": 40, "n_best": 5},
    )  # fmt: skip


@pytest.fixture(scope="module")
def pairs(pieces, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    columns = {"texts": ["first", "second"]}
    return make_export(folder, pieces, "classification", LABELS, columns, 5)


@pytest.fixture(scope="module")
def numbers(pieces, tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    return make_export(folder, pieces, "regression", [], {"texts": ["text"]}, 1)


def test_every_word_has_the_tag_of_fine_tuning(tagger, tmp_path):
    vocabulary, encoder, head, folder = tagger
    # More than a row each, words without pieces, and empty ones.
    lists = [list(DIFFICULT), *(line.split() for line in TEXT), ["the", "cat"] * 60]
    sentences = [TaggedSentence(words, None) for words in lists]
    features = tagging_features(vocabulary, sentences, LABELS, LENGTH)
    best = token_logits(encoder, head, features).argmax(-1)
    expected = word_tags(sentences, features["word_starts"], best, LABELS)
    model = opened_once(str(folder))
    rows = model.predict(lists)
    assert [row["words"] for row in rows] == lists
    assert [row["tags"] for row in rows] == expected
    assert len({tag for tags in expected for tag in tags}) > 1
    assert model.predict([]) == []
    # The same from a file, whose tags are ignored.
    written = [[w for w in words if w.strip() and "\u2028" not in w] for words in lists]
    lines = "\n\n".join("\n".join(f"{w}\tZ" for w in words) for words in written)
    (tmp_path / "words.tsv").write_text(lines, encoding="utf-8")
    paths = (f"--export_dir={folder}", f"--input={tmp_path / 'words.tsv'}")
    done = decoupled("predict", *paths, f"--output={tmp_path / 'tags.tsv'}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("tags.tsv: 11 predictions\n")
    rows = (tmp_path / "tags.tsv").read_text().split("\n\n")
    tags = [row["tags"] for row in model.predict(written)]
    assert [row.split("\n") for row in rows if row] == tags


def test_the_words_of_a_treebank_are_not_the_numbers_of_its_words(tagger, tmp_path):
    *_, folder = tagger
    path = tmp_path / "a.conllu"
    path.write_text("# text = नमस्ते दुनिया\n1\tनमस्ते\t_\tX\n2\tदुनिया\t_\tX\n")
    # The model was trained on files whose first column has the words.
    [sentence] = opened_once(str(folder)).read(str(path))
    assert sentence.words == ["नमस्ते", "दुनिया"]


def test_the_words_of_a_table_are_not_its_tags(tagger, tmp_path):
    (tmp_path / "a.tsv").write_text("the\tDET\ncat\tNOUN\n")
    # A model that was trained on a treebank.
    model = dataclasses.replace(opened_once(str(tagger[-1])), columns=(2,))
    with pytest.raises(UserError, match=r"a\.tsv with the words, as --texts=1"):
        model.read(str(tmp_path / "a.tsv"))
    [sentence] = model.read(str(tmp_path / "a.tsv"), (1,))
    assert sentence.words == ["the", "cat"]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", "the cat\nit sat\n", "a.txt:1: column 2: 'cat' is no tag; write a"),
        ("a.txt", "the A\ncat sat\n", "a.txt:2: column 2: 'sat' is no tag; write a"),
        ("a.txt", "the x y\ncat x y\n", "a.txt:1: column 2: 'x' is no tag; write a wo"),
    ],
)
def test_what_is_no_word_and_tag_is_refused(tagger, tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    model = opened_once(str(tagger[-1]))
    with pytest.raises(UserError, match=message):
        model.read(str(tmp_path / name))
    # Columns that are named say that the others are something else.
    [sentence] = model.read(str(tmp_path / name), (1,))
    assert sentence.words[0] == "the"


def test_a_sentence_a_line_is_refused_also_where_columns_are_named(tagger, tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("the cat sat\n\nI sat up\n")
    with pytest.raises(UserError, match="a.txt: each sentence has one line, with 3 co"):
        opened_once(str(tagger[-1])).read(str(path), (1,))


def test_rows_are_those_of_training_whatever_columns_are_read(pairs, tmp_path):
    path = tmp_path / "a.tsv"
    table = 'label\tfirst\tsecond\nA\t"b\tx\nB\tc"\td\nC\te\tf\n'
    expected = [('"b', "x"), ('c"', "d"), ("e", "f")]
    model = dataclasses.replace(opened_once(str(pairs[-1])), label_column="label")
    path.write_text(table)
    for columns in ((), ("first", "second")):
        assert [e.texts for e in model.read(str(path), columns)] == expected
    # XTREME's form, whose columns have no names.
    description = dataclasses.replace(TASKS["xnli"], labels=("A", "B", "C"))
    task = task_of(description, "", LENGTH, None)
    model = dataclasses.replace(model, task=task, label_column=None, columns=())
    path.write_text('"b\tx\tA\nc"\td\tB\ne\tf\tC\n')
    for columns in ((), (1, 2)):
        assert [e.texts for e in model.read(str(path), columns)] == expected


def of_task(export, name, labels=("LABEL_0", "LABEL_1")):
    """The model of an export with the name of a task, but other labels."""
    description = dataclasses.replace(TASKS[name], labels=tuple(labels))
    task = task_of(description, "", LENGTH, None)
    return dataclasses.replace(opened_once(str(export)), task=task, columns=())


def test_labels_of_a_file_need_not_be_those_of_the_model(pairs, tagger, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\tneutral\nc\td\tentailment\n")
    examples = of_task(pairs[-1], "xnli").read(str(path))
    assert [example.texts for example in examples] == [("a", "b"), ("c", "d")]
    # The last column may be a second text.
    with pytest.raises(UserError, match="a.tsv:1: .*unknown label 'neutral'"):
        of_task(pairs[-1], "catalogs").read(str(path))
    path.write_text("Kim\tB-PER\nsat\tO\n")
    [sentence] = of_task(tagger[-1], "panx").read(str(path))
    assert sentence.words == ["Kim", "sat"]
    path.write_text("Kim\tB-PER\tx\nsat\tO\tx\n")
    message = r"a\.tsv:1: 3 columns, .* tag; name the column of the words, as --texts=1"
    with pytest.raises(UserError, match=message):
        of_task(tagger[-1], "panx").read(str(path))
    [sentence] = of_task(tagger[-1], "panx").read(str(path), (1,))
    assert sentence.words == ["Kim", "sat"]
    path.write_text("Kim LABEL_1\nsat LABEL_0\n")
    with pytest.raises(UserError, match="blanks, not tabs, are between the words"):
        of_task(tagger[-1], "panx").read(str(path))


def test_labels_of_a_file_do_not_reach_the_model(pairs, tagger, reader, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("The\tDT\ncat\tNN\n\nIt\tPRP\n")
    model = of_task(tagger[-1], "udpos", LABELS)
    sentences = [TaggedSentence(["The", "cat"], None), TaggedSentence(["It"], None)]
    assert model.answers(model.read(str(path))) == model.answers(sentences)
    path.write_text("word\tupos\nThe\tA\n")
    for columns in ((), (1,)):
        with pytest.raises(UserError, match=":1: column 2: 'upos' looks like a header"):
            model.read(str(path), columns)
    path.write_text("a\tb\tLABEL_1\n")
    assert of_task(pairs[-1], "catalogs").read(str(path)) == [(("a", "b"), None)]
    path = tmp_path / "asked.json"
    path.write_text(json.dumps(documents("de")), encoding="utf-8")
    assert not any(q.answers for q in opened_once(str(reader[-1])).read(str(path)))


def test_the_column_of_the_labels_in_training_may_have_a_text(pairs, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("7\ta\tb\n8\tc\td\n")
    model = dataclasses.replace(opened_once(str(pairs[-1])), label_column=3)
    read = model.read(str(path), (2, 3))
    assert [example.texts for example in read] == [("a", "b"), ("c", "d")]


def test_a_label_that_is_called_as_a_header_is_none(pairs, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("a\tb\tTarget\nc\td\tA\n")
    description = dataclasses.replace(TASKS["xnli"], labels=("A", "Target"))
    task = task_of(description, "", LENGTH, None)
    model = dataclasses.replace(
        opened_once(str(pairs[-1])), task=task, columns=(1, 2), label_column=3
    )
    assert len(model.read(str(path), (1, 2))) == 2


def test_the_tag_may_be_in_a_later_column(tagger, tmp_path):
    model = dataclasses.replace(opened_once(str(tagger[-1])), label_column=4)
    path = tmp_path / "a.txt"
    path.write_text("the cat sat\nI sat up\n")
    with pytest.raises(UserError, match="a.txt:1: column 3: 'sat' is no tag; write a"):
        model.read(str(path))
    for content in ("the\ncat\n", "the x y A\ncat x y O\n"):
        path.write_text(content.replace("O", "B"))
        assert model.read(str(path))[0].words == ["the", "cat"]
    path.write_text("word x y UPOS\nthe x y A\n")
    for columns in ((), (1,)):
        with pytest.raises(UserError, match=":1: column 4: 'UPOS' looks like a header"):
            model.read(str(path), columns)


def test_cells_with_line_ends_are_counted(pairs, tmp_path, capsys):
    path = tmp_path / "a.tsv"
    path.write_text('first\tsecond\na\t"b\nc"\n')
    opened_once(str(pairs[-1])).read(str(path))
    assert "a.tsv: 1 cells in quotes have line ends in them" in capsys.readouterr().out


def test_a_header_is_no_example_where_columns_are_numbers(pairs, numbers, tmp_path):
    for (*_, folder), label, value in ((pairs, "Label", "A"), (numbers, "score", "1")):
        model = opened_once(str(folder))
        columns = tuple(range(1, 1 + len(model.columns)))
        model = dataclasses.replace(
            model, columns=columns, label_column=len(columns) + 1
        )
        rows = [[*"ab"[: len(columns)], value] for _ in range(2)]
        lines = ["\t".join(row) for row in ([*"xy"[: len(columns)], label], *rows)]
        path = tmp_path / "a.tsv"
        path.write_text("\n".join(lines))
        with pytest.raises(UserError, match=f":1: .*'{label}' looks like a header"):
            model.read(str(path))
        path.write_text("\n".join(lines[1:]))
        assert len(model.read(str(path))) == 2


def test_a_header_without_a_label_is_no_example(pairs, tagger, tmp_path):
    path = tmp_path / "a.tsv"
    for model, header, row, columns in (
        (of_task(pairs[-1], "xnli"), "premise\thypothesis\n", "a\tb\n", (1, 2)),
        (of_task(tagger[-1], "udpos"), "word\n", "The\ncat\n", (1,)),
        (of_task(tagger[-1], "udpos"), "token\tlemma\n", "The\tthe\n", (1,)),
    ):
        for given in ((), columns):
            path.write_text(header + row)
            with pytest.raises(UserError, match="tsv:1.* looks like a header; remove"):
                model.read(str(path), given)
            path.write_text(row)
            assert len(model.read(str(path), given)) == 1
    path.write_text("Word\tLABEL_1\n")
    for given in ((), (1,)):
        assert model.read(str(path), given) == [(["Word"], None)]


def test_a_pipe_is_refused_at_once(numbers, tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(UserError, match="a.txt: a pipe or a device"):
        opened_once(str(numbers[-1])).read(str(tmp_path / "a.txt"))


def test_answers_are_those_of_the_evaluation_and_scores_are_finite(reader, tmp_path):
    encoder, head, folder = reader
    asked = [text for texts in TEXTS.values() for text, _ in texts[1:]]
    inputs = [(question, context) for context in CONTEXTS for question in asked[:4]]
    questions = [Question(str(n), *pair, ()) for n, pair in enumerate(inputs, start=1)]
    model = opened_once(str(folder))
    vocabulary = model.vocabulary
    features = question_features(vocabulary, questions, LENGTH, SETTINGS)
    starts, ends = np.moveaxis(token_logits(encoder, head, features), -1, 0)
    scored = scored_answers(questions, features, starts, ends, SETTINGS)
    expected = [answer.text for answer in scored]
    answers = model.predict(inputs)
    assert [row["answer"] for row in answers] == expected
    for (_, context), row in zip(inputs, answers, strict=True):
        end = row["start"] + len(row["answer"])
        assert context[row["start"] : end] == row["answer"]
        assert np.isfinite(row["score"])
    # Without text, the score is that of [CLS], which means that there is no answer.
    assert answers[0]["answer"] == answers[4]["answer"] == ""
    assert answers[0]["score"] == pytest.approx(starts[0, 0] + ends[0, 0], abs=1e-4)
    assert len({row["answer"] for row in answers}) > 10

    document = documents("de")
    # Answers are not used, and one may be missing.
    document["data"][0]["paragraphs"][0]["qas"][0]["answers"] = []
    (tmp_path / "asked.json").write_text(json.dumps(document), encoding="utf-8")
    paths = (f"--export_dir={folder}", f"--input={tmp_path / 'asked.json'}")
    for name in ("answers.json", "answers.jsonl"):
        done = decoupled("predict", *paths, f"--output={tmp_path / name}")
        assert done.returncode == 0, done.stderr
    by_id = json.loads((tmp_path / "answers.json").read_text())
    context, *asked = TEXTS["de"]
    again = model.predict([(question, context) for question, _ in asked])
    assert by_id == {f"de-{n}": row["answer"] for n, row in enumerate(again)}
    lines = (tmp_path / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) | {"id": 0} for line in lines] == [
        row | {"id": 0} for row in again
    ]


def test_pairs_are_packed_as_in_training(pairs, pieces, tmp_path):
    encoder, head, folder = pairs
    texts = [
        ("The Elbe", "is 1,094 km long."),
        ("It rises. " * 30, "Short 👍"),
        ("Short", "In the Giant Mountains. " * 30),
        ("Wo entspringt sie? " * 9, "Im Riesengebirge, in Böhmen. " * 9),
    ]
    features = pack_texts(pieces, texts, LENGTH)
    inputs = {name: tf.constant(features[name]) for name in FEATURES}
    logits = head(encoder(inputs)["pooled_output"])
    shares = tf.nn.softmax(logits).numpy()
    answers = opened_once(str(folder)).predict(texts)
    assert [row["label"] for row in answers] == [LABELS[i] for i in shares.argmax(-1)]
    np.testing.assert_allclose(
        [row["probability"] for row in answers], shares.max(-1), atol=1e-5
    )
    rows = [{"second": b, "label": "unknown", "first": a} for a, b in texts]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    paths = (f"--export_dir={folder}", f"--input={path}")
    done = decoupled("predict", *paths, f"--output={tmp_path / 'labels.tsv'}")
    assert done.returncode == 0, done.stderr
    written = (tmp_path / "labels.tsv").read_text()
    assert written == "".join(
        f"{row['label']}\t{row['probability']:.6f}\n" for row in answers
    )
    # A table reads as in training: quotes of csv.writer, line ends in cells.
    quoted = [('He said "yes".\nAnd', "no"), ("a\tb", '"Elbe"')]
    path = tmp_path / "rows.tsv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, "excel-tab", lineterminator="\n")
        writer.writerow(["first", "second", "label"])
        writer.writerows([*pair, "unknown"] for pair in quoted)
    model = opened_once(str(folder))
    read = model.read(str(path))
    assert [example.texts for example in read] == quoted
    # Labels are not read, also where some rows have none.
    (tmp_path / "some.jsonl").write_text(
        '{"first": "a", "second": "b"}\n{"first": "c", "second": "d", "label": "x"}\n'
    )
    read = model.read(str(tmp_path / "some.jsonl"))
    assert [example.texts for example in read] == [("a", "b"), ("c", "d")]
    # Other columns, without a header, give the same.
    path = tmp_path / "rows.csv"
    path.write_text("".join(f'7,"{a}","{b}"\n' for a, b in texts), encoding="utf-8")
    paths = (f"--export_dir={folder}", f"--input={path}", "--texts=2,3")
    done = decoupled("predict", *paths, f"--output={tmp_path / 'again.tsv'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "again.tsv").read_text() == written


def test_numbers_of_lines_of_text(numbers, tmp_path):
    *_, folder = numbers
    path = tmp_path / "lines.txt"
    path.write_text("\ufeffThe Elbe\u2028is long.\r\nEs entspringt.\n".encode("utf-8")
                    .decode("utf-8"), encoding="utf-8", newline="")  # fmt: skip
    output = tmp_path / "numbers.tsv"
    done = decoupled(
        "predict", f"--export_dir={folder}", f"--input={path}", f"--output={output}"
    )
    assert done.returncode == 0, done.stderr
    texts = ["The Elbe\u2028is long.", "Es entspringt."]
    values = [row["value"] for row in opened_once(str(folder)).predict(texts)]
    assert output.read_text() == "".join(f"{value:.9g}\n" for value in values)
    assert values[0] != values[1]


def test_earlier_exports_are_opened(reader, tmp_path):
    """They hold text_qa, and their export.json says nothing of the task."""
    *_, folder = reader
    old = pathlib.Path(shutil.copytree(folder, tmp_path / "old"))
    (old / "text_qa").mkdir()
    described = json.loads((old / "export.json").read_text())
    del described["task"]
    (old / "export.json").write_text(json.dumps(described))
    asked = [("Wo entspringt sie?", TEXTS["de"][0])]
    new = opened_once(str(folder)).predict(asked)
    assert open_predictor(str(old)).predict(asked) == new
    line = mistake(
        "predict", f"--export_dir={old}/text_qa", "--input=a.json",
        f"--output={tmp_path}/b",
    )  # fmt: skip
    assert "text_qa has no export.json; give the folder that decoupled export" in line


@pytest.mark.parametrize(
    "kind, name, content, more, message",
    [
        ("pairs", "a.txt", "One text.\n", [], "a.txt, example 1: the number of texts"),
        ("pairs", "a.xml", "", [], "--input: {folder}/a.xml does not end in one of"),
        ("pairs", "a.csv", "x,y\n1,2\n", [], "the header has no column 'first'; it is"),
        ("pairs", "a.csv", "x,y\n1,2\n", ["--texts=x"], "a.csv, example 1: the number"),
        ("pairs", "a.csv", "x\n1\n", ["--texts=x,y,z"], "OwnTaskConfig.texts"),
        ("numbers", "a.txt", "One.\n\nTwo.\n", [], "a.txt:2: is empty"),
        ("numbers", "a.txt", "", [], "a.txt: holds no text"),
        ("numbers", "a.txt", "1\tA", ["--texts=2"], "a text a line and no columns"),
        ("numbers", "a.tsv", "1\tA", ["--texts=0"], "--texts: columns count from 1"),
        ("numbers", "none.txt", None, [], "none.txt: "),
        ("numbers", "a.jsonl", "{}", [], "a.jsonl:1: column 'text': is missing"),
        ("reader", "a.txt", "What?\n", [], "does not end in one of .json"),
        ("reader", "a.json", "{}", [], "a.json: not in SQuAD"),
        ("reader", "a.json", "{}", ["--texts=1"], "--texts: questions come in SQuAD"),
    ],
)
def test_mistakes_are_one_line(request, tmp_path, kind, name, content, more, message):
    *_, folder = request.getfixturevalue(kind)
    path, output = tmp_path / name, tmp_path / "output.tsv"
    if content is not None:
        path.write_text(content)
    paths = (f"--export_dir={folder}", f"--input={path}", f"--output={output}")
    opened_once(str(folder))
    line = mistake("predict", *paths, *more)
    assert message.format(folder=tmp_path) in line
    assert not output.exists()


@pytest.mark.parametrize(
    "kind, inputs, message",
    [
        ("numbers", "a text", "inputs: is one text; give a list of texts"),
        ("numbers", {"text": ["a"]}, "inputs: is a table or a set; give a list"),
        ("numbers", {"a", "b"}, "inputs: is a table or a set; give a list"),
        ("numbers", [3], "input 1: is no text, and no list of texts"),
        ("tagger", ["a text"], "input 1: is not a list of one or more words"),
        ("tagger", [["a"], []], "input 2: is not a list of one or more words"),
        ("reader", ["a text"], "input 1: is not a pair of question and context"),
        ("pairs", [("a", "b"), "c"], "input 2: the number of texts is 1, but this"),
        ("pairs", [("a", 3)], "input 1: is no text, and no list of texts"),
    ],
)
def test_inputs_of_another_form_are_named(request, kind, inputs, message):
    *_, folder = request.getfixturevalue(kind)
    with pytest.raises(UserError, match=message):
        opened_once(str(folder)).predict(inputs)


def test_models_of_vectors_and_damaged_folders_are_refused(
    encoder_export, numbers, tmp_path
):
    *_, folder = numbers
    with pytest.raises(UserError, match="is of the kind 'encoder' and gives vectors"):
        open_predictor(str(encoder_export))
    copy = pathlib.Path(shutil.copytree(folder, tmp_path / "copy"))
    described = json.loads((copy / "export.json").read_text())
    for name, value, message in [
        ("format", "x", "was not written by decoupled export"),
        ("vocabulary", {"fingerprint": "x"}, "is not the vocabulary of the model"),
        ("sequence_length", None, "damaged"),
        ("sequence_length", 10**9, "damaged .sequence_length is more than"),
        *(
            ("sequence_length", length, "export.json: damaged .*; export again")
            for length in (16.5, float("nan"), True, 0, -3)
        ),
        ("model", {**described["model"], "max_positions": 1e9}, "json: damaged"),
        ("task", {"texts": "12"}, "damaged"),
        ("task", {"name": "a/b"}, "export.json: damaged .*'a/b'"),
    ]:
        (copy / "export.json").write_text(json.dumps(described | {name: value}))
        with pytest.raises(UserError, match=message):
            open_predictor(str(copy))


def test_a_model_that_export_json_does_not_describe_is_refused(
    pairs, numbers, tmp_path
):
    copy = pathlib.Path(shutil.copytree(pairs[-1], tmp_path / "copy"))
    path = copy / "export.json"
    described = json.loads(path.read_text())
    path.write_text(json.dumps(described | {"labels": [1, 2, 3]}))
    with pytest.raises(UserError, match="export.json: damaged .*are not all texts"):
        open_predictor(str(copy))
    path.write_text(json.dumps(described | {"labels": LABELS[::-1]}))
    with pytest.raises(UserError, match="export.json: has other labels than .*A, B"):
        open_predictor(str(copy))
    # As a copy that was interrupted leaves it.
    path.write_text(json.dumps(described))
    shutil.rmtree(copy / "classifier")
    shutil.copytree(numbers[-1] / "regressor", copy / "classifier")
    with pytest.raises(
        UserError, match="classifier: is not the model of .*export.json"
    ):
        open_predictor(str(copy))


def test_weights_that_end_too_soon_are_refused(numbers, tmp_path):
    copy = pathlib.Path(shutil.copytree(numbers[-1], tmp_path / "copy"))
    path = copy / "regressor/variables/variables.data-00000-of-00001"
    path.write_bytes(path.read_bytes()[:-900])
    with pytest.raises(UserError, match="regressor: cannot load"):
        open_predictor(str(copy))


def test_an_output_that_would_replace_what_is_read_is_refused(numbers, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/a.txt").write_text("a\n")
    export_dir = f"--export_dir={numbers[-1]}"
    for source, output, message in (
        ("real/a.txt", tmp_path / "link/a.txt", "--output: is the file of --input"),
        ("real/a.txt", numbers[-1] / "export.json", "--output: lies in --export_dir"),
        ("none.txt", tmp_path / "new/a.tsv", "none.txt"),
    ):
        said = mistake(
            *("predict", export_dir, f"--input={tmp_path}/{source}"),
            f"--output={output}",
        )
        assert message in said
    assert (tmp_path / "real/a.txt").read_text() == "a\n"
    assert not (tmp_path / "new").exists()


def test_numbers_that_are_not_finite_are_refused(numbers):
    model = opened_once(str(numbers[-1]))
    variable = model.model.variables[0]
    before = variable.numpy()
    variable.assign(np.nan * before)
    with pytest.raises(UserError, match="the model gives NaN or infinity"):
        model.predict(["a text"])
    variable.assign(before)
