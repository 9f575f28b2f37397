"""The edge-probing format: what is read, what is refused, and what is written."""

import json

import pytest

from decoupled.analyses.probing.task_files import (
    Example,
    Target,
    find_tasks,
    read_examples,
    write_examples,
)
from decoupled.core.errors import UserError

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


def test_labels_may_be_numbers(tmp_path):
    [example] = read_examples(write(tmp_path / "a.json", COREFERENCE))
    assert example.targets[0].labels == ("1",)


def test_sentences_without_targets_are_left_out(tmp_path):
    empty = {"text": "Nothing here", "targets": []}
    assert len(read_examples(write(tmp_path / "a.json", empty, "", ENTITIES))) == 1
    with pytest.raises(UserError, match="a.json: holds no targets"):
        read_examples(write(tmp_path / "a.json", empty))


def test_a_separator_of_lines_within_a_text(tmp_path):
    line = '{"text": "a\u2028b", "targets": [{"span1": [0, 1], "label": "x"}]}'
    [example] = read_examples(write(tmp_path / "a.json", line))
    assert example.words == ["a", "b"]


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
    pos, rel = find_tasks(str(tmp_path), None)
    assert pos.paths == {
        "train": f"{tmp_path}/pos/train.jsonl",
        "dev": f"{tmp_path}/pos/dev.jsonl",
    }
    assert rel.paths["dev"] == f"{tmp_path}/rel/val.json"
    assert rel.paths["test"] == f"{tmp_path}/rel/test.json"
    assert [task.name for task in find_tasks(str(tmp_path), ["rel"])] == ["rel"]
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
