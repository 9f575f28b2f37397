"""Probing tasks in the JSON-lines format of the edge-probing suite (jiant).

A line has a sentence, whose words are separated by spaces, and labels of spans of
words. The ends of spans are exclusive:

  {"text": "The cat sleeps", "targets": [{"span1": [0, 2], "label": "NP"}]}

Tasks of two spans also have `span2`. `label` may be a list of any length. Other entries
are ignored.
"""

import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from decoupled.core import files, gfile
from decoupled.core.errors import UserError, quoted
from decoupled.core.labels import BLANKS, LabelReader

# The names that the suite's data sets use.
SPLITS = {
    "train": ("train",),
    "dev": ("dev", "development", "val"),
    "test": ("test",),
}
_ENDINGS = (".jsonl", ".json")

Span = tuple[int, int]


class Target(NamedTuple):
    """Spans of words, [first, end), and their labels; span2 is None in some tasks."""

    span1: Span
    span2: Span | None
    labels: tuple[str, ...]


class Example(NamedTuple):
    """A sentence and its labelled spans."""

    words: list[str]
    targets: list[Target]


class ProbingTask(NamedTuple):
    """A task's files by split; "test" may be missing."""

    name: str
    paths: dict[str, str]


def find_tasks(folder: str, wanted: Sequence[str] | None) -> list[ProbingTask]:
    """The tasks below a folder: FOLDER/TASK/train.jsonl, dev.jsonl, test.jsonl.

    Args:
      wanted: the names of tasks; None for all folders there.

    Raises:
      UserError: a task, or its training or development file, is missing.
    """
    if not gfile.isdir(folder):
        raise UserError(f"{folder}: no such folder; it holds a folder for each task")
    there = sorted(
        name.rstrip("/")
        for name in gfile.listdir(folder)
        if gfile.isdir(os.path.join(folder, name))
    )
    if not there:
        raise UserError(f"{folder}: has no folders; it holds one for each task")
    for name in wanted or ():
        if name not in there:
            raise UserError(f"--tasks: no {name!r} in {folder}; {', '.join(there)} are")
    return [_find_task(folder, name) for name in wanted or there]


def read_examples(path: str) -> list[Example]:
    """Reads a file; sentences without targets are left out.

    Raises:
      UserError: the file is missing, a line is malformed or a span outside its text,
        some targets have two spans and others one, or there are no targets.
    """
    examples, kinds = [], set()
    known = LabelReader()
    for number, line in enumerate(files.split_lines(files.read_text(path)), start=1):
        if not line.strip(BLANKS):
            continue
        example = _parse(line, f"{path}:{number}", known)
        kinds |= {target.span2 is None for target in example.targets}
        if len(kinds) > 1:
            raise UserError(
                f"{path}:{number}: some targets have span2 and others have none"
            )
        if example.targets:
            examples.append(example)
    if not examples:
        raise UserError(f"{path}: holds no targets")
    return examples


def write_examples(path: str, examples: Sequence[Example]) -> None:
    """Writes a file that `read_examples` and the suite read."""
    with files.atomic_write(path) as handle:
        for words, targets in examples:
            entry = {"text": " ".join(words), "targets": list(map(_as_json, targets))}
            handle.write(json.dumps(entry, ensure_ascii=False) + "\n")


def _find_task(folder, name):
    paths = {}
    for split, spellings in SPLITS.items():
        for stem in spellings:
            for ending in _ENDINGS:
                path = os.path.join(folder, name, stem + ending)
                if files.exists(path):
                    paths.setdefault(split, path)
        if split not in paths and split != "test":
            raise UserError(
                f"{os.path.join(folder, name)}: no {split}.jsonl; a task has train, "
                "dev and perhaps test"
            )
    return ProbingTask(name, paths)


def _parse(line, where, known) -> Example:
    entry = files.parse_json_line(line, where)
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
        raise UserError(f'{where}: has no "text"')
    if not isinstance(entry.get("targets"), list):
        raise UserError(f'{where}: has no list of "targets"')
    # As the suite does, whose spans count these words.
    words = entry["text"].split()
    targets = [_target(t, len(words), where, known) for t in entry["targets"]]
    return Example(words, targets)


def _target(entry: Any, words: int, where: str, known: LabelReader) -> Target:
    if not isinstance(entry, dict):
        raise UserError(f"{where}: {quoted(entry)} is no target")
    if "span1" not in entry or "label" not in entry:
        raise UserError(f'{where}: a target has no "span1" or no "label"')
    second = entry.get("span2")
    labels = entry["label"]
    labels = labels if isinstance(labels, list) else [labels]
    if not all(type(label) in (str, int) for label in labels):
        shown = quoted(entry["label"])
        raise UserError(f"{where}: {shown} is no label and no list of labels")
    return Target(
        _span(entry["span1"], words, where),
        None if second is None else _span(second, words, where),
        tuple(dict.fromkeys(known.read(str(label), where) for label in labels)),
    )


def _span(value, words, where) -> Span:
    whole = isinstance(value, list) and [type(place) for place in value] == [int, int]
    if not whole or not 0 <= value[0] < value[1] <= words:
        raise UserError(
            f"{where}: {quoted(value)} is no span [first, end) of the {words} words"
        )
    return value[0], value[1]


def _as_json(target):
    second = {} if target.span2 is None else {"span2": list(target.span2)}
    labels = target.labels[0] if len(target.labels) == 1 else list(target.labels)
    return {"span1": list(target.span1), **second, "label": labels}
