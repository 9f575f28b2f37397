"""Tasks in users' files: descriptions, files of all forms, mistakes in them, scores."""

import ast
import csv
import dataclasses
import io
import json
import os
import re
import time

import pytest

from decoupled.configs import FinetuningConfig, QuestionAnsweringConfig
from decoupled.configs.finetuning import OwnTaskConfig
from decoupled.core import files
from decoupled.core.errors import UserError
from decoupled.core.tab_separated import read_rows
from decoupled.corpora import text_lines
from decoupled.tasks import description
from decoupled.tasks.classification import LabelAnswer
from decoupled.tasks.presets import OWN, TASKS, make_task, task_of
from tests.tasks.own_tasks import REVIEWS

TEXTS = OwnTaskConfig(**REVIEWS)
TAGS = dataclasses.replace(
    TEXTS, kind="tagging", files="{split}-{language}.conll", texts=(1,), label=2
)
SPANS = dataclasses.replace(
    TEXTS,
    kind="question answering",
    files="{split}-{language}.json",
    texts=(),
    label=None,
    metric="f1",
)
QUESTIONS = QuestionAnsweringConfig(16, 32, 30, 20)
TRAINING = "label\ttext\ngood\tI liked it.\nbad\tI did not.\n"
LINES = '{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n'


def described(config=TEXTS, **changes):
    return dataclasses.replace(config, **changes)


def write(folder, **contents):
    """Files by their names with _ for -, and . before the last word."""
    for name, content in contents.items():
        stem, _, ending = name.rpartition("_")
        path = folder / f"{stem.replace('_', '-')}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return str(folder)


def make(config, folder):
    return task_of(description.describe_task(config), folder, 64, QUESTIONS)


def read(config, folder, split="train", language="en"):
    return make(config, str(folder)).read(split, language)


def test_a_table_with_a_header(tmp_path):
    folder = write(tmp_path, train_en_tsv=TRAINING, test_de_tsv="text\nSchön!\n")
    task = make(TEXTS, folder)
    assert (task.name, task.kind) == ("reviews", "classification")
    assert task.labels == ["bad", "good"]
    assert task.read("train", "en") == [
        (("I liked it.",), "good"),
        (("I did not.",), "bad"),
    ]
    # Test files may lack labels.
    assert task.read("test", "de") == [(("Schön!",), None)]
    assert task.languages("test") == ["de"]


def test_pairs_in_a_table_without_a_header(tmp_path):
    folder = write(tmp_path, train_en_tsv="a\tb\tyes\nc\td\tno\n")
    config = described(texts=(1, 2), label=3)
    assert read(config, folder) == [(("a", "b"), "yes"), (("c", "d"), "no")]


def test_a_row_of_other_width_is_refused_without_a_header_too(tmp_path):
    """A text with a tab in it would become a text and a label."""
    config = described(texts=(1,), label=2)
    folder = write(tmp_path, train_en_tsv="a\tyes\nb\tno\nsome\ttext\tyes\n")
    with pytest.raises(UserError, match=":3: 3 columns; the first row has 2"):
        make(config, folder)
    # Empty cells at the end may be left out.
    write(tmp_path, train_en_tsv="a\tyes\t\nb\tno\t\t\nc\tno\td\ne\tyes\n")
    assert [row.texts for row in read(config, folder)] == [
        ("a",),
        ("b",),
        ("c",),
        ("e",),
    ]


def test_empty_labels_of_tests_are_none_in_all_forms(tmp_path):
    # Blank lines at the end of a table are no rows.
    table = "label\ttext\n\ta\n \tb\n\tc\n\n\n"
    rows = [
        {"text": text, "label": label}
        for text, label in zip("abc", ("", " ", None), strict=True)
    ]
    for form, training, test in (
        ("tsv", TRAINING, table),
        ("csv", TRAINING.replace("\t", ","), table.replace("\t", ",")),
        ("jsonl", LINES, "\n".join(map(json.dumps, rows))),
    ):
        files = {f"train_en_{form}": training, f"test_en_{form}": test}
        config = described(files=f"{{split}}-{{language}}.{form}")
        examples = read(config, write(tmp_path, **files), "test")
        assert examples == [((text,), None) for text in "abc"]
    folder = write(tmp_path, train_en_conll="a\tX\nb\tY\n", test_en_conll="a\t\nb\t\n")
    [sentence] = read(TAGS, folder, "test")
    assert sentence == (["a", "b"], None)
    write(tmp_path, test_en_conll="a\t\nb\tX\n")
    with pytest.raises(UserError, match="is missing, or not everywhere"):
        read(TAGS, folder, "test")


def test_a_table_of_csv_may_quote_commas_and_line_ends(tmp_path):
    content = '\ufefflabel,text\nbad,"No, ""never"".\nNot I."\ngood,Yes.\n'
    folder = write(tmp_path, train_en_csv=content)
    examples = read(described(files="{split}-{language}.csv"), folder)
    assert examples[0] == (('No, "never".\nNot I.',), "bad")


def test_json_lines(tmp_path):
    rows = [{"text": "a", "label": 1}, {"text": "b", "label": 0}, {}]
    content = "\n".join(map(json.dumps, rows[:2])) + "\n\n"
    folder = write(tmp_path, train_en_jsonl=content)
    config = described(files="{split}-{language}.jsonl")
    assert read(config, folder) == [(("a",), "1"), (("b",), "0")]


def test_a_file_that_holds_all_splits(tmp_path):
    rows = [
        {"partition": split, "utt": f"{split} {number}", "intent": f"i{number}"}
        for split in ("train", "validation")
        for number in range(2)
    ]
    folder = write(tmp_path, en_US_jsonl="\n".join(map(json.dumps, rows)))
    config = described(
        files="{language}.jsonl",
        splits=("train", "validation", "test"),
        split_column="partition",
        training_languages=("en-US",),
        texts=("utt",),
        label="intent",
    )
    task = make(config, folder)
    assert task.read("dev", "en-US") == [
        (("validation 0",), "i0"),
        (("validation 1",), "i1"),
    ]
    with pytest.raises(UserError, match=r"en-US\.jsonl: missing; .* its test file"):
        task.read("test", "en-US")
    # A language may have rows of the test alone.
    row = {"partition": "test", "utt": "jaribio", "intent": "i1"}
    write(tmp_path, sw_KE_jsonl=json.dumps(row))
    task = make(config, folder)
    assert task.languages("dev") == ["en-US"]
    assert task.languages("test") == ["sw-KE"]
    assert task.read("test", "sw-KE") == [(("jaribio",), "i1")]


def test_a_cell_of_csv_may_be_long(tmp_path):
    text = "word " * 40_000
    content = f"label,text\ngood,{text}\nbad,{text}\n"
    folder = write(tmp_path, train_en_csv=content)
    config = described(files="{split}-{language}.csv")
    assert read(config, folder)[0] == ((text,), "good")


def test_several_training_languages_are_read_together(tmp_path):
    german = TRAINING.replace("bad", "schlecht")
    folder = write(tmp_path, train_en_tsv=TRAINING, train_de_tsv=german)
    task = make(described(training_languages=("de", "en")), folder)
    assert task.labels == ["bad", "good", "schlecht"]
    assert [e.label for e in task.read("train", "de")] == [
        "good", "schlecht", "good", "bad",
    ]  # fmt: skip
    assert [os.path.basename(path) for path in task.paths("train", "de")] == [
        "train-de.tsv", "train-en.tsv",
    ]  # fmt: skip
    assert task.languages("train") == ["de", "en"]


def test_languages_may_be_folders(tmp_path):
    for language in ("eng_Latn", "deu_Latn"):
        (tmp_path / "data" / language).mkdir(parents=True)
        (tmp_path / "data" / language / "test.tsv").write_text("x")
    (tmp_path / "data" / "README").write_text("x")
    config = described(files="data/{language}/{split}.tsv")
    found = description.describe_task(config).find_files(str(tmp_path), "test")
    assert list(found) == ["deu_Latn", "eng_Latn"]
    assert found["deu_Latn"] == str(tmp_path / "data/deu_Latn/test.tsv")


def test_an_asterisk_in_a_path_stands_for_itself(tmp_path):
    config = described(files="{split}-*-{language}.tsv")
    (tmp_path / "test-a-en.tsv").touch()
    assert description.describe_task(config).find_files(str(tmp_path), "test") == {}
    (tmp_path / "test-*-en.tsv").touch()
    found = description.describe_task(config).find_files(str(tmp_path), "test")
    assert found == {"en": str(tmp_path / "test-*-en.tsv")}


def test_a_task_of_one_language_needs_no_language_in_its_files(tmp_path):
    folder = write(tmp_path, train_tsv=TRAINING)
    assert make(described(files="{split}.tsv"), folder).languages("dev") == []
    assert len(read(described(files="{split}.tsv"), folder)) == 2


def test_tags_of_words(tmp_path):
    content = "-DOCSTART- O\n\nAnna B-PER\nsees O\n\nRome B-LOC\n"
    folder = write(tmp_path, train_en_conll=content)
    task = make(described(TAGS, metric="entity_f1"), folder)
    assert task.labels == ["B-LOC", "B-PER", "O"]
    sentences = task.read("train", "en")
    assert [s.words for s in sentences] == [["Anna", "sees"], ["Rome"]]
    answers = [["B-PER", "O"], ["O"]]
    scores = task.score("en", sentences, answers)
    assert scores["accuracy"] == pytest.approx(200 / 3)
    assert scores["precision"] == 100 and scores["recall"] == 50
    assert task.headline == ("entity_f1",)


def test_columns_of_universal_dependencies(data_dir):
    config = described(
        TAGS,
        files="ud/{language}_ewt-ud-{split}.conllu",
        texts=(2,),
        label=4,
        splits=("dev", "dev2", "test"),
    )
    task = make(config, data_dir)
    sentences = task.read("test", "en")
    # The treebank's own counts: github.com/UniversalDependencies/UD_English-EWT.
    assert len(sentences) == 2077
    assert sum(len(sentence.words) for sentence in sentences) == 25_094
    assert "NOUN" in task.labels and len(task.labels) >= 16


def test_questions_in_the_form_of_squad(tmp_path):
    question = {"id": "1", "question": "Who?", "answers": [
        {"text": "Anna", "answer_start": 0}]}  # fmt: skip
    paragraph = {"context": "Anna sees Rome.", "qas": [question]}
    content = json.dumps({"data": [{"paragraphs": [paragraph]}]})
    folder = write(tmp_path, train_en_json=content)
    task = make(SPANS, folder)
    examples = task.read("train", "en")
    assert task.score("en", examples, ["anna"]) == {"exact_match": 100.0, "f1": 100.0}
    assert (task.headline, task.prediction_suffix) == (("f1",), "json")


def test_scores_are_those_of_scikit_learn(tmp_path):
    metrics = pytest.importorskip("sklearn.metrics")
    folder = write(tmp_path, train_en_tsv=TRAINING + "so so\tx\n")
    task = make(described(metric="macro_f1"), folder)
    labels = "good bad good good bad".split()
    found = ["good", "good", "so so", "good", "bad"]
    examples = [((f"text {n}",), label) for n, label in enumerate(labels)]
    examples = [type(task.read("train", "en")[0])(*e) for e in examples]
    scores = task.score("en", examples, [LabelAnswer(label, 1.0) for label in found])
    expected = metrics.f1_score(labels, found, average="macro")
    assert scores["macro_f1"] == pytest.approx(100 * expected)
    assert scores["accuracy"] == pytest.approx(60)


@pytest.mark.parametrize(
    "content, message",
    [
        ("", r"train-en\.tsv:1: the header has no column 'text'; it is"),
        ("text\n", r"train-en\.tsv: holds no example of train"),
        ("text\na\n", r"train-en\.tsv:2: column 'label': is missing; only tests may"),
        ("text\tlabel\na\tb\tc\n", r"train-en\.tsv:2: 3 columns; the header has 2"),
        ("text\tlabel\tlabel\n", r"tsv:1: the header has 2 columns 'label', not one"),
        ("text\tlabel\na\tx\n \ty\n", r"train-en\.tsv:3: column 'text': is empty"),
        ("text\tlabel\na\tx\nb\tx\n", r"has the label 'x' alone; two or more"),
        ("text\tlabel\na\t\n", r"tsv:2: column 'label': is missing; only tests may"),
        ("text\tlabel\na\tx\n\nb\ty\n", r"tsv:3: 1 columns; the header has 2"),
        ('{"text": "a"', r"train-en\.jsonl:1: not JSON at column 13"),
        (
            '{"text": "a", "text": "b"}',
            r"jsonl:1: has two values under the name 'text'",
        ),
        ("[1]", r"train-en\.jsonl:1: not a JSON object"),
        ('{"text": ["a"], "label": "x"}', r"jsonl:1: column 'text': list, not a text"),
        ('{"label": "x"}', r"jsonl:1: column 'text': is missing"),
        ('{"text": NaN, "label": "x"}', r"jsonl:1: column 'text': nan is no text and"),
        ('{"text": "a", "label": 1e999}', r"jsonl:1: column 'label': inf is no text"),
        (
            '{"text": "a", "label": "x"}\n{"text": "b"}',
            r"jsonl:2: column 'label': is missing",
        ),
    ],
)
def test_mistakes_in_a_table_or_json_lines(tmp_path, content, message):
    form = "jsonl" if content[:1] in ("{", "[") else "tsv"
    folder = write(tmp_path, **{f"train_en_{form}": content})
    with pytest.raises(UserError, match=message) as caught:
        make(described(files=f"{{split}}-{{language}}.{form}"), folder)
    assert "\n" not in str(caught.value)


def test_no_blank_row_vanishes_from_a_test_file(tmp_path):
    test = "text\nfirst\n\nthird\n"
    folder = write(tmp_path, train_en_tsv=TRAINING, test_de_tsv=test)
    with pytest.raises(UserError, match=r"test-de\.tsv:3: column 'text': is empty"):
        make(TEXTS, folder).read("test", "de")


def test_mixed_encodings_and_unclosed_quotes_are_refused(tmp_path):
    folder = write(tmp_path, train_en_tsv=TRAINING, train_en_csv='label,text\nx,"a\n')
    (tmp_path / "train-en.tsv").write_bytes(TRAINING.encode() + b"bad\t\xe4\n")
    with pytest.raises(UserError, match=r"train-en\.tsv.*UTF-8"):
        make(TEXTS, folder)
    with pytest.raises(UserError, match=r"train-en\.csv:\d: not CSV"):
        make(described(files="{split}-{language}.csv"), folder)


def test_a_label_that_only_a_test_file_has_is_refused(tmp_path):
    test = "label\ttext\nbad\ta\nugly\tb\n"
    folder = write(tmp_path, train_en_tsv=TRAINING, test_de_tsv=test)
    task = make(TEXTS, folder)
    message = r"test-de\.tsv:3: column 'label': unknown label 'ugly'; those of the tr"
    with pytest.raises(UserError, match=message):
        task.read("test", "de")


def test_a_label_that_the_description_lacks_is_reported(tmp_path):
    folder = write(tmp_path, train_en_tsv=TRAINING)
    task = make(described(labels=("good", "fair")), folder)
    with pytest.raises(UserError, match="unknown label 'bad'; the task's labels: "):
        task.read("train", "en")


def test_training_questions_without_an_answer_are_counted(tmp_path, capsys):
    answered = {"id": "1", "question": "Who?", "answers": [
        {"text": "Ada", "answer_start": 0}
    ]}  # fmt: skip
    questions = [answered, {"id": "2", "question": "When?", "answers": []}]
    paragraph = {"context": "Ada wrote it.", "qas": questions}
    content = json.dumps({"data": [{"paragraphs": [paragraph]}]})
    folder = write(tmp_path, train_en_json=content)
    task = make(SPANS, folder)
    for _ in range(2):
        assert [q.identifier for q in task.read("train", "en")] == ["1"]
    problem = "train-en.json: 1 questions have no answer and are left out"
    assert capsys.readouterr().out.count(problem) == 1


def test_a_training_language_without_a_file_is_named(tmp_path):
    folder = write(tmp_path, train_en_tsv=TRAINING)
    with pytest.raises(UserError, match=r"train-sw\.tsv: missing; reviews needs its"):
        make(described(training_languages=("en", "sw")), folder)


def test_entities_need_tags_of_entities(tmp_path):
    folder = write(tmp_path, train_en_conll="Anna NOUN\nsees VERB\n")
    make(TAGS, folder)
    message = r"conll:1: .*entity_f1 .*needs tags O, B-TYPE and I-TYPE; 'NOUN'"
    with pytest.raises(UserError, match=message):
        make(described(TAGS, metric="entity_f1"), folder)
    with pytest.raises(UserError, match="OwnTaskConfig.labels: .*'S-PER' is none of"):
        described(TAGS, metric="entity_f1", labels=("O", "S-PER"))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"kind": "ranking"}, "kind: 'ranking' is unknown; one of classification"),
        ({"metric": "f1"}, "metric: 'f1' is unknown; one of accuracy, macro_f1"),
        ({"name": "a/b"}, "name: 'a/b' cannot be the name of a folder"),
        ({"files": "{split}.parquet"}, "files: .* does not end in one of .tsv, .csv"),
        ({"files": "all.tsv"}, 'needs "{split}" in it, or OwnTaskConfig.split_column'),
        ({"files": "../{split}.tsv"}, "is not a path below --data_dir"),
        ({"files": "~/{split}.tsv"}, "is not a path below --data_dir"),
        ({"splits": ("a", "b")}, "splits: .* are not the three names of training"),
        ({"splits": tuple("abcd")}, "splits: .* are not the three names of training"),
        ({"splits": ("a", "b", "a")}, "splits: .* are not one or more different names"),
        ({"splits": (["a"], "b", "c")}, "splits: .* are not one or more"),
        ({"training_languages": ()}, "training_languages: .* are not one or more"),
        ({"texts": ()}, "texts: .* are not 1 or 2 columns"),
        ({"texts": (1,)}, "are not all names, or all numbers from 1"),
        ({"label": None}, "are not all names"),
        ({"texts": (1,), "label": 0}, "are not all names|count from 1"),
        ({"texts": ("a",), "label": "a"}, r"name a column twice: \['a', 'a'\]"),
        ({"texts": ("a", "a")}, "texts, label, split_column: name a column twice"),
        ({"labels": ("x",)}, "labels: .* are not two or more labels"),
        ({"labels": (0, 1)}, r"\(0, 1\) are not all texts; write \('0', '1'\)"),
        (
            {"kind": "regression", "metric": "pearson", "labels": ("1", "2")},
            "OwnTaskConfig.labels: .* has numbers",
        ),
        (
            {"kind": "question answering", "metric": "f1", "split_column": "split",
             "files": "{language}.json"},
            "split_column: a file holds one split",
        ),
    ],
)  # fmt: skip
def test_mistakes_in_a_description(changes, message):
    with pytest.raises(UserError, match=message):
        described(**changes)


def test_the_name_of_another_task_is_refused(tmp_path):
    settings = FinetuningConfig()
    with pytest.raises(UserError, match="--task=own: needs a description"):
        make_task(OWN, str(tmp_path), settings, None)
    with pytest.raises(UserError, match="name: 'xnli' is another task"):
        make_task(OWN, str(tmp_path), settings, None, described(name="xnli"))
    with pytest.raises(UserError, match="OwnTaskConfig: is for --task=own, and has no"):
        make_task("xnli", str(tmp_path), settings, None, described())


def test_real_topics_in_all_languages(data_dir):
    task = task_of(TASKS["sib200"], data_dir, 64)
    assert len(task.labels) == 7
    languages = task.languages("test")
    assert languages[0] == "en" and len(languages) >= 12
    read = [task.read("test", name) for name in languages]
    # The sentences are parallel.
    assert {tuple(example.label for example in examples) for examples in read} == {
        tuple(example.label for example in read[0])
    }
    assert len(read[0]) == 204


def test_the_template_of_texts_is_the_task_sib200():
    with open("gin/tasks/own_texts.gin", encoding="utf-8") as handle:
        bindings = dict(re.findall(r"OwnTaskConfig\.(\w+) = (.+)", handle.read()))
    config = {name: ast.literal_eval(value) for name, value in bindings.items()}
    topics = description.describe_task(OwnTaskConfig(**config | {"name": "sib200"}))
    assert topics == TASKS["sib200"]


NUMBERS = dataclasses.replace(
    TEXTS, kind="regression", texts=("a", "b"), label="score", metric="pearson"
)


def test_numbers_of_pairs(tmp_path):
    table = "score\ta\tb\n 2.5 \tx\ty\n-1e-1\tz\tz\n.5\tx\tz\n"
    folder = write(tmp_path, train_en_tsv=table)
    task = make(NUMBERS, folder)
    assert (task.name, task.kind, task.labels) == ("reviews", "regression", ())
    assert task.headline == ("pearson",)
    examples = task.read("train", "en")
    assert examples == [
        (("x", "y"), "2.5"), (("z", "z"), "-1e-1"), (("x", "z"), ".5"),
    ]  # fmt: skip
    write(tmp_path, train_en_tsv="score\ta\tb\n1.5\u00a0\tx\ty\n")
    with pytest.raises(UserError, match=r"'1\.5\\xa0' is not a number of float32"):
        read(NUMBERS, folder)
    rows = [{"a": "x", "b": "y", "score": number} for number in (0.25, 3)]
    write(tmp_path, train_en_jsonl="\n".join(map(json.dumps, rows)))
    config = described(NUMBERS, files="{split}-{language}.jsonl")
    assert [example.label for example in read(config, folder)] == ["0.25", "3"]


@pytest.mark.parametrize(
    "cell",
    ["much", "nan", "inf", "1,5", "true", "1e39", "1_000", "\uff11\uff12", "0x1p3"],
)
def test_what_is_no_number_is_refused(tmp_path, cell):
    folder = write(tmp_path, train_en_tsv=f"score\ta\tb\n1\tx\ty\n{cell}\tz\tz\n")
    message = rf"train-en\.tsv:3: column 'score': '{cell}' is not a number of float32"
    with pytest.raises(UserError, match=message):
        read(NUMBERS, folder)


def test_equal_numbers_choose_no_checkpoint(tmp_path):
    table = "score\ta\tb\n{}\tx\ty\n{}\tz\tz\n"
    folder = write(
        tmp_path,
        train_en_tsv=table.format(1, 1), dev_en_tsv=table.format("1.0", "1"),
        test_en_tsv=table.format(1, 1), dev_de_tsv=table.format(1, 2),
    )  # fmt: skip
    with pytest.raises(UserError, match=r"dev-en\.tsv: every number is 1\.0, and "):
        read(NUMBERS, folder, "dev")
    for split, language in (("train", "en"), ("test", "en"), ("dev", "de")):
        assert len(read(NUMBERS, folder, split, language)) == 2


@pytest.mark.parametrize(
    "changes", [{"label": "other"}, {"texts": ("b", "a")}, {"splits": ("a", "b", "c")}]
)
@pytest.mark.parametrize("config", [NUMBERS, TEXTS])
def test_features_are_made_anew_where_other_columns_are_read(tmp_path, config, changes):
    """They are kept by these settings."""
    folder = write(tmp_path, train_en_tsv="score\ttext\tlabel\n1\tx\ta\n2\ty\tb\n")
    config = described(config, labels=() if config is NUMBERS else ("a", "b"))
    one, other = (
        make(c, folder).settings() for c in (config, described(config, **changes))
    )
    assert one != other
    assert one == make(config, folder).settings() == json.loads(json.dumps(one))


def test_quoted_cells_of_a_table_are_read_as_json_lines_are(tmp_path):
    """Cells as csv.writer and pandas write them, one with line ends."""
    said = 'He said "yes".', '"No"', "two\nlines", "a\ttab", '5" pipe'
    rows = [{"text": text, "label": f"l{n % 2}"} for n, text in enumerate(said)]
    table = io.StringIO(newline="")
    writer = csv.writer(table, delimiter="\t", lineterminator="\n")
    writer.writerows([("text", "label"), *(row.values() for row in rows)])
    lines = "\n".join(map(json.dumps, rows))
    folder = write(tmp_path, train_en_tsv=table.getvalue(), train_en_jsonl=lines)
    examples = read(TEXTS, folder)
    assert [example.texts[0] for example in examples] == list(said)
    assert examples == read(described(files="{split}-{language}.jsonl"), folder)


def test_labels_are_the_same_with_blanks_around_them(tmp_path):
    table = "text\tlabel\na\tgood \nb\tbad\nc\t good\nd\tbad  \n"
    folder = write(tmp_path, train_en_tsv=table, test_en_tsv="text\t label\na\tbad \n")
    task = make(TEXTS, folder)
    assert task.labels == ["bad", "good"]
    assert [e.label for e in task.read("train", "en")] == [
        "good", "bad", "good", "bad",
    ]  # fmt: skip
    assert task.read("test", "en") == [(("a",), "bad")]
    # In settings too.
    assert make(described(labels=("good ", "bad")), folder).labels == ["good", "bad"]
    rows = [{"text": "a", "label": " x"}, {"text": "b", "label": "y\t"}]
    write(tmp_path, train_en_jsonl="\n".join(map(json.dumps, rows)))
    config = described(files="{split}-{language}.jsonl")
    assert make(config, folder).labels == ["x", "y"]


def test_tags_are_the_same_with_blanks_around_them(tmp_path):
    folder = write(tmp_path, train_en_conll="Ann\tB-PER \nlives\t O\nAda\tB-PER\n")
    task = make(described(TAGS, metric="entity_f1"), folder)
    assert task.labels == ["B-PER", "O"]
    assert task.read("train", "en")[0].tags == ["B-PER", "O", "B-PER"]


def test_names_of_splits_are_the_same_with_blanks_around_them(tmp_path):
    table = "part\ttext\tlabel\ntrain \ta\tx\ntrain\tb\ty\ntest \tc\tx\n"
    folder = write(tmp_path, all_en_tsv=table)
    config = described(files="all-{language}.tsv", split_column="part")
    task = make(config, folder)
    assert len(task.read("train", "en")) == 2
    assert task.languages("test") == ["en"]


@pytest.mark.parametrize("other", ["cafe\u0301", "caf\u00e9\u200b", "caf\u00e9\u00a0"])
def test_labels_that_look_the_same_are_refused_with_their_lines(tmp_path, other):
    table = f"text\tlabel\na\tcaf\u00e9\nb\tbar\nc\t{other}\n"
    folder = write(tmp_path, train_en_tsv=table)
    message = r"en\.tsv:4: column 'label': labels .* look the same .*: .*en\.tsv:2"
    with pytest.raises(UserError, match=message):
        make(TEXTS, folder)
    # In another training file, in a test file, in the settings, as tags.
    write(tmp_path, train_en_tsv=table.replace(other, "bar"))
    write(tmp_path, train_de_tsv=f"text\tlabel\nc\t{other}\n")
    with pytest.raises(UserError, match=r"train-de\.tsv:2: .* look the same"):
        make(described(training_languages=("en", "de")), folder)
    write(tmp_path, test_en_tsv=f"text\tlabel\nc\t{other}\n")
    with pytest.raises(UserError, match=r"test-en\.tsv:2: .* look the same"):
        make(TEXTS, folder).read("test", "en")
    with pytest.raises(UserError, match="OwnTaskConfig.labels: .* look the same"):
        described(labels=("caf\u00e9", other))
    write(tmp_path, train_en_conll=f"a\tcaf\u00e9\nb\t{other.strip()}x\nc\t{other}\n")
    with pytest.raises(UserError, match=r"train-en\.conll:3: .* (same|blank in it)"):
        make(TAGS, folder)


@pytest.mark.parametrize("label", ["a\nb", "a\u2028"])
def test_control_characters_in_labels_are_refused(tmp_path, label):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": label}]
    folder = write(tmp_path, train_en_jsonl="\n".join(map(json.dumps, rows)))
    config = described(files="{split}-{language}.jsonl")
    message = r"train-en\.jsonl:2: column 'label': label .* control character U\+00"
    with pytest.raises(UserError, match=message.replace("00", "(00|2028)")) as caught:
        make(config, folder)
    assert str(caught.value).isprintable()
    with pytest.raises(UserError, match="OwnTaskConfig.labels: .* control character"):
        described(labels=("x", label + "y"))


def test_predictions_have_a_line_a_row_and_come_back(tmp_path):
    labels = ['5" pipe', '"quoted"', '"', "a, b", "\u00a0x"]
    rows = [json.dumps({"text": "a", "label": label}) for label in labels]
    folder = write(tmp_path, train_en_jsonl="\n".join(rows))
    task = make(described(files="{split}-{language}.jsonl"), folder)
    assert task.labels == sorted(labels)
    path = str(tmp_path / "test-en.tsv")
    task.write(path, [], [LabelAnswer(label, 0.5) for label in labels])
    text = (tmp_path / "test-en.tsv").read_text(encoding="utf-8")
    assert text.split("\n")[0] == '"5"" pipe"\t0.500000'
    assert text.count("\n") == len(labels)
    assert [row.cells[0] for row in read_rows(text)] == labels


def test_only_line_ends_end_lines(tmp_path):
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei"
    for ends in ("\n", "\r\n", "\r"):
        table = ends.join(["label\ttext", f"x\t{text}", f"y\t{text}", ""])
        (tmp_path / "train-en.tsv").write_text(table, encoding="utf-8", newline="")
        assert read(TEXTS, tmp_path) == [((text,), "x"), ((text,), "y")]
        words = ends.join([f"{text} X", "\u3000 Y", "b Y", "", "\u00a0 X"])
        (tmp_path / "train-en.conll").write_text(words, encoding="utf-8", newline="")
        first, second = read(TAGS, tmp_path)
        assert first.words == [text, "\u3000", "b"] and second.words == ["\u00a0"]


@pytest.mark.parametrize("form", ["tsv", "csv", "jsonl", "conll", "json"])
def test_byte_order_marks_are_skipped(tmp_path, form):
    question = {"id": "1", "question": "Who?", "answers": [
        {"text": "Anna", "answer_start": 0}]}  # fmt: skip
    paragraph = {"context": "Anna sees Rome.", "qas": [question]}
    contents = {
        "tsv": TRAINING,
        "csv": TRAINING.replace("\t", ","),
        "jsonl": LINES,
        "conll": "Anna X\nsees Y\n",
        "json": json.dumps({"data": [{"paragraphs": [paragraph]}]}),
    }
    config = {"conll": TAGS, "json": SPANS}.get(form, TEXTS)
    config = described(config, files=f"{{split}}-{{language}}.{form}")
    path = tmp_path / f"train-en.{form}"
    path.write_text(contents[form], encoding="utf-8")
    plain = read(config, tmp_path)
    path.write_text(contents[form], encoding="utf-8-sig")
    assert read(config, tmp_path) == plain


def words_of(content, tmp_path, form="txt"):
    folder = write(tmp_path, **{f"train_en_{form}": content})
    task = make(described(TAGS, files=f"{{split}}-{{language}}.{form}"), folder)
    return [(s.words, s.tags) for s in task.read("train", "en")]


def test_a_word_may_have_a_blank_where_tabs_separate(tmp_path):
    expected = [(["Hà Nội", "đẹp"], ["B-LOC", "O"])]
    for form in ("txt", "tsv", "conllu"):
        assert words_of("Hà Nội\tB-LOC\nđẹp\tO\n", tmp_path, form) == expected
    # A file of words alone has no tab; its name says that a line is one cell.
    (tmp_path / "words.tsv").write_text("Hà Nội\n\nđẹp\n", encoding="utf-8")
    config = described(TAGS, files="{split}-{language}.tsv")
    task = make(config, write(tmp_path, train_en_tsv="Hà Nội\tB-LOC\nđẹp\tO\n"))
    sentences = task.read_file(str(tmp_path / "words.tsv"), "vi", "test")
    assert [sentence.words for sentence in sentences] == [["Hà Nội"], ["đẹp"]]


def test_joined_files_have_byte_order_marks_inside(tmp_path):
    joined = "1\tdas\tDET\n\n\ufeff# text = zum Haus\n1-2\tzum\t_\n1\tzu\tADP\n"
    folder = write(tmp_path, train_en_conllu=joined)
    config = described(TAGS, files="{split}-{language}.conllu", texts=(2,), label=3)
    sentences = make(config, folder).read("train", "en")
    assert [sentence.words for sentence in sentences] == [["das"], ["zu"]]


def test_one_number_in_two_forms_is_one_mistake(tmp_path):
    """pandas writes 0.0 where another row of the column lacks its number."""
    english = '{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n'
    german = '{"text": "a", "label": 0.0}\n{"text": "b", "label": 1.0}\n'
    folder = write(tmp_path, train_en_jsonl=english, train_de_jsonl=german)
    pattern = "{split}-{language}.jsonl"
    message = r"train-de\.jsonl:1: .*labels 0.0 and 0 are one number.*train-en\.jsonl:1"
    with pytest.raises(UserError, match=message):
        make(described(files=pattern, training_languages=("en", "de")), folder)
    config = described(files=pattern, training_languages=("de",))
    assert make(config, folder).labels == ["0.0", "1.0"]
    # 1.1 and 1.10 are two sections of a text.
    sections = '{"text": "a", "label": "1.1"}\n{"text": "b", "label": "1.10"}\n'
    write(tmp_path, train_en_jsonl=sections)
    assert make(described(files=pattern), folder).labels == ["1.1", "1.10"]


def test_rows_of_other_splits_are_counted_and_other_cases_refused(tmp_path, capsys):
    table = "part\ttext\tlabel\ntrain\ta\tx\ntrain\tb\ty\nvalid\tc\tx\n"
    folder = write(tmp_path, all_en_tsv=table)
    config = described(files="all-{language}.tsv", split_column="part")
    assert len(make(config, folder).read("train", "en")) == 2
    problem = (
        "all-en.tsv: OwnTaskConfig.splits does not name 'valid'; rows left out: 1\n"
    )
    assert problem in capsys.readouterr().out
    write(tmp_path, all_en_tsv=table + "Train\td\tx\n")
    with pytest.raises(UserError, match="all-en.tsv:5: .*'Train' is not 'train'"):
        make(config, folder)


def test_a_header_is_no_example_where_columns_are_numbers(tmp_path):
    table = "text\tlabel\nI liked it.\tgood\nI did not.\tbad\n"
    folder = write(tmp_path, train_en_tsv=table)
    config = described(texts=(1,), label=2)
    with pytest.raises(UserError, match="train-en.tsv:1: column 2: 'label' looks like"):
        make(config, folder)
    write(tmp_path, train_en_tsv=table.partition("\n")[2])
    assert make(config, folder).labels == ["bad", "good"]


def test_a_header_without_a_label_is_no_example_where_columns_are_numbers(tmp_path):
    config = described(texts=(1, 2), label=3)
    train, header = "a\tb\tyes\nc\td\tno\n", "premise\tHypothesis\n"
    folder = write(tmp_path, train_en_tsv=train, test_en_tsv=f"{header}e\tf\n")
    task = make(config, folder)
    message = (
        r"test-en\.tsv:1: column 1: 'premise' looks like a header; remove .* line$"
    )
    with pytest.raises(UserError, match=message):
        task.read("test", "en")
    # A label tells that the row is an example.
    write(tmp_path, test_en_tsv="Question\tText\tyes\n")
    assert task.read("test", "en") == [(("Question", "Text"), "yes")]
    write(tmp_path, train_en_tsv="premise\thypothesis\tgold\n" + train)
    with pytest.raises(
        UserError, match=r"train-en\.tsv:1: .* line, or list the labels"
    ):
        make(config, folder)
    write(tmp_path, train_en_conll="The\tX\ncat\tY\n", test_en_conll="Word\nThe\n")
    with pytest.raises(
        UserError, match="test-en.conll:1: .*'Word' looks like a header"
    ):
        read(TAGS, folder, "test")


@pytest.mark.parametrize("kind", ["tsv", "csv"])
def test_a_header_that_is_repeated_is_no_example(tmp_path, kind):
    table = TRAINING if kind == "tsv" else TRAINING.replace("\t", ",")
    folder = write(tmp_path, **{f"train_en_{kind}": f"{table}\ufeff{table}"})
    config = described(files=f"{{split}}-{{language}}.{kind}")
    with pytest.raises(UserError, match=f"train-en.{kind}:4: repeats the header; rem"):
        make(config, folder)


def test_the_labels_of_training_say_which_lines_are_rows(tmp_path):
    """Of a file whose labels are between two quotes without partners."""
    folder = write(tmp_path, train_en_tsv=TRAINING + "bye\tI left.\n")
    test = 'text\tlabel\n"Hello\tgood\nbye\tbye\nsee you"\tbad\nfine\tbye\n'
    write(tmp_path, test_en_tsv=test)
    assert read(TEXTS, folder, "test") == [
        (('"Hello',), "good"),
        (("bye",), "bye"),
        (('see you"',), "bad"),
        (("fine",), "bye"),
    ]


def test_a_pipe_is_no_file_of_a_task(tmp_path):
    folder = write(tmp_path, test_en_tsv="text\nx\n")
    os.mkfifo(tmp_path / "train-en.tsv")
    with pytest.raises(UserError, match="train-en.tsv: a pipe or a device"):
        make(TEXTS, folder)


def test_users_choose_the_codes_of_their_languages(tmp_path):
    table = "text\tlabel\na\tx\nb\ty\n"
    names = ("train_en", "test_sr@latin", "test_de", "test_b", "test_v2")
    folder = write(tmp_path, **{f"{name}_tsv": table for name in names})
    assert make(TEXTS, folder).languages("test") == ["de", "sr@latin"]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(
    "text", ["Это слово и ещё одно.", "यह एक वाक्य है।", "This is one.", "これは 1 文。"]
)
def test_utf_16_without_a_mark_is_named(tmp_path, encoding, text):
    content = "".join(f"{word}\n" for word in text.split() * 40)
    path = tmp_path / "test-ru.conll"
    path.write_bytes(content.encode(encoding))
    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    with pytest.raises(UserError, match=f"test-ru.conll: not UTF-8.*; it is {name}"):
        files.read_text(str(path))
    with pytest.raises(UserError, match=f"iconv -f {name}"):
        list(text_lines.read_lines(str(path)))


def test_comments_above_sentences_of_words(tmp_path):
    """MultiCoNER's, with a tab or a blank, and those of Universal Dependencies."""
    sentence = "ann\tB-PER\nsings\tO\n\n"
    expected = [(["ann", "sings"], ["B-PER", "O"])] * 2
    for comment in (
        "# id 12ab-34\tdomain=train\n", "# id 12ab-34 domain=train\n",
        "# sent_id = 3\n# text = ann sings\n", "# newdoc\n", "-DOCSTART- O\n",
        "-DOCSTART- -X- O O\n\n", "# text =\n",
    ):  # fmt: skip
        assert words_of((comment + sentence) * 2, tmp_path) == expected
        assert (
            words_of((comment + sentence.replace("\t", " ")) * 2, tmp_path) == expected
        )


def test_words_that_begin_with_a_hash_are_words(tmp_path):
    content = "#love\tO\n#\tSYM\n# id\tO\n\n#\tO\n"
    assert words_of(content, tmp_path) == [
        (["#love", "#", "# id"], ["O", "SYM", "O"]), (["#"], ["O"]),
    ]  # fmt: skip
    assert words_of("# O\n#love X\n", tmp_path) == [(["#", "#love"], ["O", "X"])]


def test_the_start_of_a_document_ends_a_sentence(tmp_path):
    content = "a X\n-DOCSTART- -X- O\nb Y\n"
    assert words_of(content, tmp_path) == [(["a"], ["X"]), (["b"], ["Y"])]


def test_blank_lines_of_blanks(tmp_path):
    content = "a X  \r\n  \t \r\nb Y\r\n\r\n\r\nc X"
    assert words_of(content, tmp_path) == [
        (["a"], ["X"]), (["b"], ["Y"]), (["c"], ["X"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "content, message",
    [
        ("\n\n", r"txt: holds no word"),
        ("Anna B-PER\nsees\n", r"txt:2: column 2: is missing, or not everywhere"),
        ("Bob B-PER\n O\n", r"txt:2: column 2: is missing"),
        ("Bob B-PER\nDoctors'I-ORG\n", r"txt:2: column 2: is missing"),
        ("Bob\tB-PER\n\tO\n", r"txt:2: column 1: is empty"),
        ("Ông\tO\nHà Nội\n", r"txt:2: column 2: is missing"),
        ("Bob O x\n O x\n", r"txt:2: 2 columns; the first line has 3"),
        ("Bob O\n10 000 O\n", r"txt:2: 3 columns; the first line has 2"),
        ("a\tO\tx\nb\tO\n", r"txt:2: 2 columns; the first line of the sentence has 3"),
        ("It is good .\n\nHe left .\n", r"txt:3: 3 columns; the first line has 4"),
        ("It is good .\n", r"txt: each sentence has one line, with 4 columns; write a"),
        ("Bob\tO\n10 000\tB LOC\n", r"txt:2: column 2: the tag 'B LOC' has a blank"),
        ("Bob\tO\nx\tB\u00a0LOC\n", r"txt:2: column 2: the tag .* has a blank in it"),
        ("Bob O\n\u00a0\nx O\n", r"txt:2: column 2: is missing"),
    ],
)
def test_mistakes_in_lines_of_words(tmp_path, content, message):
    with pytest.raises(UserError, match=message):
        words_of(content, tmp_path)


def test_quotes_in_lines_of_words(tmp_path):
    """A word may be a quote; csv.writer would have quoted all of them."""
    raw = '"\tX\nyes\tY\n"\tX\n\n"\tX\n'
    expected = [(['"', "yes", '"'], ["X", "Y", "X"]), (['"'], ["X"])]
    assert words_of(raw, tmp_path, "tsv") == expected
    assert words_of(raw, tmp_path) == expected
    written = raw.replace('"', '""""')
    assert words_of(written, tmp_path, "tsv") == expected
    assert words_of(written, tmp_path)[1] == (['""""'], ["X"])
    everywhere = '""""\t"X"\n"yes"\t"Y"\n""""\t"X"\n\n""""\t"X"\n'
    assert words_of(everywhere, tmp_path, "tsv") == expected


@pytest.mark.parametrize("cell", ["1" * 60_000 + "x", "1" * 60_000 + "e", "." * 60_000])
def test_a_long_cell_is_no_number_at_once(tmp_path, cell):
    folder = write(tmp_path, train_en_tsv=f"score\ta\tb\n{cell}\tx\ty\n")
    begin = time.process_time()
    with pytest.raises(UserError, match="is not a number of float32") as caught:
        read(NUMBERS, folder)
    assert time.process_time() - begin < 1
    assert len(str(caught.value)) < len(str(tmp_path)) + 250


def test_training_takes_the_first_answer_that_is_in_the_context(tmp_path, capsys):
    answers = [
        {"text": "Grace", "answer_start": 0}, {"text": "Ada", "answer_start": 4},
    ]  # fmt: skip
    questions = [
        {"id": "1", "question": "Who?", "answers": answers},
        {"id": "2", "question": "Who?", "answers": answers[:1]},
        {"id": "3", "question": "Who?", "answers": answers[::-1]},
    ]
    paragraph = {"context": "Now Ada wrote it.", "qas": questions}
    content = json.dumps({"data": [{"paragraphs": [paragraph]}]})
    folder = write(tmp_path, train_en_json=content, test_en_json=content)
    task = make(SPANS, folder)
    assert [q.identifier for q in task.read("test", "en")] == ["1", "2", "3"]
    examples = task.read("train", "en")
    assert [q.identifier for q in examples] == ["1", "3"]
    assert {q.trained_answer for q in examples} == {("Ada", 4, 7)}
    message = capsys.readouterr().out
    assert (
        "3 questions with an answer that is not in the context, as 1, 2, 3" in message
    )
    assert "1 questions have no answer in the context and are left out" in message


def test_cells_with_line_ends_are_counted_once(tmp_path, capsys):
    """A file of one column cannot tell them from two quotes without partners."""
    test = 'text\n"one\ntwo"\nthree\n'
    folder = write(tmp_path, train_en_tsv=TRAINING, test_en_tsv=test)
    task = make(TEXTS, folder)
    for _ in range(2):
        assert [e.texts for e in task.read("test", "en")] == [
            ("one\ntwo",), ("three",),
        ]  # fmt: skip
    problem = "test-en.tsv: 1 cells in quotes have line ends in them"
    assert capsys.readouterr().out.count(problem) == 1
