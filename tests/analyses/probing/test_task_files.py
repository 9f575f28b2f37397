"""The edge-probing format: what is read, what is refused, and what is written."""

import json
import os

import pytest

from decoupled.analyses.probing.task_files import (
    Example,
    Target,
    dependencies,
    find_tasks,
    make_treebank_tasks,
    parts_of_speech,
    read_examples,
    write_examples,
)
from decoupled.core.errors import UserError

# A contraction (3-4), a word that is not written (5.1) and a word with a space.
TREEBANK = """\
# sent_id = 1
# text = Va al mar 10 000
1\tVa\tir\tVERB\t_\t_\t0\troot\t_\t_
2-3\tal\t_\t_\t_\t_\t_\t_\t_\t_
2\ta\ta\tADP\t_\t_\t4\tcase\t_\t_
3\tel\tel\tDET\t_\t_\t4\tdet\t_\t_
4\tmar\tmar\tNOUN\t_\t_\t1\tobl\t_\t_
4.1\tva\tir\tVERB\t_\t_\t_\t_\t1:conj\t_
5\t10 000\t10 000\tNUM\t_\t_\t4\tnummod\t_\t_

1\tSí\tsí\tINTJ\t_\t_\t0\troot\t_\t_
"""


@pytest.fixture
def treebank(tmp_path):
    path = tmp_path / "es.conllu"
    path.write_text(TREEBANK, encoding="utf-8")
    return str(path)


def test_parts_of_speech(treebank):
    words = ["Va", "a", "el", "mar", "10000"]
    tags = ["VERB", "ADP", "DET", "NOUN", "NUM"]
    assert parts_of_speech(treebank) == [
        Example(
            words, [Target((i, i + 1), None, (tag,)) for i, tag in enumerate(tags)]
        ),
        Example(["Sí"], [Target((0, 1), None, ("INTJ",))]),
    ]


def test_dependencies_point_from_word_to_head_and_roots_nowhere(treebank):
    first, second = dependencies(treebank)
    assert first.targets == [
        Target((1, 2), (3, 4), ("case",)),
        Target((2, 3), (3, 4), ("det",)),
        Target((3, 4), (0, 1), ("obl",)),
        Target((4, 5), (3, 4), ("nummod",)),
    ]
    assert second.targets == []


@pytest.mark.parametrize(
    "text, reason",
    [
        ("1\tVa\tir\n", "bad.conllu:1: 3 columns, CoNLL-U has 10"),
        (TREEBANK.replace("\t4\tdet", "\tx\tdet"), "conllu:6: head 'x' is no number"),
        # Python's isdigit and int disagree about the first, and int refuses the second.
        (TREEBANK.replace("\t4\tdet", "\t²\tdet"), "conllu:6: head '²' is no number"),
        (TREEBANK.replace("\t4\tdet", f"\t{'9' * 5000}\tdet"), "6: head .* no number"),
        (TREEBANK.replace("\t4\tdet", "\t9\tdet"), "conllu:1: word 3 .* has head 9"),
        (TREEBANK.replace("\n3\t", "\n7\t"), "conllu:1: this sentence does not number"),
        ("\n\n", "bad.conllu: holds no sentences"),
    ],
)
def test_a_malformed_treebank_is_named(tmp_path, text, reason):
    path = tmp_path / "bad.conllu"
    path.write_text(text)
    with pytest.raises(UserError, match=reason):
        dependencies(str(path))


def test_a_real_treebank(data_dir):
    path = os.path.join(data_dir, "ud", "en_ewt-ud-dev.conllu")
    tags, relations = parts_of_speech(path), dependencies(path)
    assert len(tags) == len(relations) == 2001
    assert sum(len(example.targets) for example in tags) == 25147
    # One root in each sentence.
    assert sum(len(example.targets) for example in relations) == 25147 - 2001


def write_treebanks(folder, *names):
    """Twenty sentences a file, whose only words with a head name file and sentence."""
    for name in names:
        lines = [
            f"1\t{name}\t_\tX\t_\t_\t2\tdep\t_\t_\n"
            f"2\t{number}\t_\tNUM\t_\t_\t0\troot\t_\t_\n"
            for number in range(20)
        ]
        (folder / f"{name}.conllu").write_text("\n".join(lines))
    return [str(folder / f"{name}.conllu") for name in names]


def made(folder, *names):
    """The sentences of each split, which both tasks share."""
    make_treebank_tasks(write_treebanks(folder, *names), str(folder / "edges"))
    splits = {}
    for split in ("train", "dev", "test"):
        pos, relations = (
            [
                e.words
                for e in read_examples(str(folder / f"edges/{task}/{split}.jsonl"))
            ]
            for task in ("pos", "dependencies")
        )
        assert pos == relations
        splits[split] = pos
    return splits


def test_treebanks_with_three_splits_keep_them_and_those_of_a_split_are_joined(
    tmp_path,
):
    names = ("sw_a-ud-train", "sw_b-ud-train", "sw_a-ud-dev", "sw_a-ud-test")
    result = made(tmp_path, *names)
    assert [len(result[split]) for split in ("train", "dev", "test")] == [40, 20, 20]
    assert {words[0] for words in result["train"]} == set(names[:2])


@pytest.mark.parametrize("there", ["train", "dev"])
def test_what_is_not_test_gives_training_and_development(tmp_path, there):
    result = made(tmp_path, f"sw-ud-{there}", "sw-ud-test")
    train, dev = (set(map(tuple, result[split])) for split in ("train", "dev"))
    assert len(train) + len(dev) == 20 and not train & dev
    assert 1 <= len(dev) <= 8
    assert {words[0] for words in result["test"]} == {"sw-ud-test"}
    again = tmp_path / "again"
    again.mkdir()
    assert made(again, f"sw-ud-{there}", "sw-ud-test") == result


@pytest.mark.parametrize(
    "names, message",
    [
        (["sw-ud-dev"], "probes need a file .test.conllu and one"),
        (["sw-ud-test"], "probes need a file .test.conllu and one"),
        (["sw-ud-dev", "sw-ud-latest"], "sw-ud-latest.conllu: its name says no split"),
        ([], "no treebank: probes need"),
    ],
)
def test_treebanks_that_cannot_be_used(tmp_path, names, message):
    with pytest.raises(UserError, match=message):
        make_treebank_tasks(write_treebanks(tmp_path, *names), str(tmp_path / "edges"))
    assert not (tmp_path / "edges").exists()


# As data sets of the suite have them, with entries that are of no use here.
ENTITIES = {
    "text": "Ms. Haag plays Elianti .",
    "targets": [
        {"span1": [0, 2], "label": "PERSON", "info": {"height": 2}},
        {"span1": [3, 4], "label": "WORK"},
    ],
    "info": {"document_id": "wsj", "sentence_id": 4},
}
PROTO_ROLES = {
    "text": "He ate it",
    "targets": [
        {"span1": [1, 2], "span2": [0, 1], "label": ["awareness", "volition"]},
        {"span1": [1, 2], "span2": [2, 3], "label": []},
    ],
}
COREFERENCE = {
    "text": "Ann saw herself",
    "targets": [{"span1": [0, 1], "span2": [2, 3], "label": 1}],
}


def write(path, *entries):
    lines = [e if isinstance(e, str) else json.dumps(e) for e in entries]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_one_span(tmp_path):
    assert read_examples(write(tmp_path / "a.json", ENTITIES)) == [
        Example(
            ["Ms.", "Haag", "plays", "Elianti", "."],
            [Target((0, 2), None, ("PERSON",)), Target((3, 4), None, ("WORK",))],
        )
    ]


def test_two_spans_and_several_labels_or_none(tmp_path):
    [example] = read_examples(write(tmp_path / "a.json", PROTO_ROLES))
    assert example.targets == [
        Target((1, 2), (0, 1), ("awareness", "volition")),
        Target((1, 2), (2, 3), ()),
    ]


def test_sentences_without_targets_are_left_out(tmp_path):
    empty = {"text": "Nothing here", "targets": []}
    assert len(read_examples(write(tmp_path / "a.json", empty, "", ENTITIES))) == 1
    with pytest.raises(UserError, match="a.json: holds no targets"):
        read_examples(write(tmp_path / "a.json", empty))


@pytest.mark.parametrize(
    "line, reason",
    [
        ("{", "not JSON at column"),
        pytest.param("[" * 100_000, "not JSON at column", id="deep"),
        ("[]", 'has no "text"'),
        ({"targets": []}, 'has no "text"'),
        ({"text": "a"}, 'has no list of "targets"'),
        ({"text": "a", "targets": [1]}, "1 is no target"),
        ({"text": "a", "targets": [{"span1": [0, 1]}]}, 'no "span1" or no "label"'),
        ({"text": "a", "targets": [{"label": "x"}]}, 'no "span1" or no "label"'),
        ({"text": "a", "targets": [{"span1": [0, 2], "label": "x"}]}, "of the 1 words"),
        ({"text": "a", "targets": [{"span1": [0, 0], "label": "x"}]}, "is no span"),
        ({"text": "a", "targets": [{"span1": [-1, 1], "label": "x"}]}, "is no span"),
        ({"text": "a", "targets": [{"span1": [0], "label": "x"}]}, "is no span"),
        ({"text": "a", "targets": [{"span1": "01", "label": "x"}]}, "is no span"),
        ({"text": "a", "targets": [{"span1": [0, 1], "label": None}]}, "is no label"),
        (COREFERENCE, "some targets have span2 and others have none"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, reason):
    with pytest.raises(UserError, match=f"a.json:2: .*{reason}"):
        read_examples(write(tmp_path / "a.json", ENTITIES, line))


def test_what_is_written_is_read_again(tmp_path):
    entries = (PROTO_ROLES, COREFERENCE)
    examples = read_examples(write(tmp_path / "a.json", *entries))
    write_examples(str(tmp_path / "b.jsonl"), examples)
    assert read_examples(str(tmp_path / "b.jsonl")) == examples
    lines = (tmp_path / "b.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == PROTO_ROLES


def test_tasks_are_folders(tmp_path):
    for name in ("pos/train.jsonl", "pos/dev.jsonl", "rel/train.json", "rel/val.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, ENTITIES)
    write(tmp_path / "rel" / "test.json", ENTITIES)
    paths = {
        "pos": {"train": "train.jsonl", "dev": "dev.jsonl"},
        "rel": {"train": "train.json", "dev": "val.json", "test": "test.json"},
    }
    assert find_tasks(str(tmp_path), None) == {
        task: {split: f"{tmp_path}/{task}/{name}" for split, name in of_task.items()}
        for task, of_task in paths.items()
    }
    assert list(find_tasks(str(tmp_path), ["rel"])) == ["rel"]
    with pytest.raises(UserError, match="--tasks: no 'ner' in .*; pos, rel are"):
        find_tasks(str(tmp_path), ["ner"])
    (tmp_path / "rel" / "val.json").unlink()
    with pytest.raises(UserError, match="rel: no dev.jsonl"):
        find_tasks(str(tmp_path), None)


def test_no_tasks(tmp_path):
    with pytest.raises(UserError, match="nowhere: no such folder"):
        find_tasks(str(tmp_path / "nowhere"), None)
    with pytest.raises(UserError, match="has no folders"):
        find_tasks(str(tmp_path), None)


def test_lines_labels_and_a_byte_order_mark(tmp_path):
    text = "10 x\u2028y"
    target = {"span1": [2, 3], "label": "NUM "}
    path = tmp_path / "a.jsonl"
    line = json.dumps({"text": text, "targets": [target]}, ensure_ascii=False)
    for ends in ("\n", "\r\n", "\r"):
        path.write_text(f"\ufeff{line}{ends}{line}", encoding="utf-8", newline="")
        assert read_examples(str(path)) == [
            Example(["10", "x", "y"], [Target((2, 3), None, ("NUM",))])
        ] * 2  # fmt: skip


def test_labels_of_targets_are_checked(tmp_path):
    def targets(*labels):
        return {
            "text": "a b",
            "targets": [{"span1": [0, 1], "label": label} for label in labels],
        }

    path = write(tmp_path / "a.json", targets("caf\u00e9"), targets("cafe\u0301"))
    with pytest.raises(UserError, match="a.json:2: labels .* look the same"):
        read_examples(path)
    with pytest.raises(UserError, match="a.json:1: label .* control character U"):
        read_examples(write(tmp_path / "a.json", targets("a\nb")))
