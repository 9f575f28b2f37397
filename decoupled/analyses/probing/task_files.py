"""Probing tasks in the JSON-lines format of the edge-probing suite (jiant).

A line has a sentence, whose words are separated by spaces, and labels of spans of
words. The ends of spans are exclusive:

  {"text": "The cat sleeps", "targets": [{"span1": [0, 2], "label": "NP"}]}

Tasks of two spans also have `span2`. `label` may be a list of any length. Other entries
are ignored.
"""

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from decoupled.core import console, files, gfile
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


def find_tasks(folder: str, names: Sequence[str] | None) -> dict[str, dict[str, str]]:
    """Task -> split -> its file, FOLDER/TASK/SPLIT.jsonl; "test" may be missing."""
    if not gfile.isdir(folder):
        raise UserError(f"{folder}: no such folder; it holds a folder for each task")
    tasks = sorted(
        name.rstrip("/")
        for name in gfile.listdir(folder)
        if gfile.isdir(os.path.join(folder, name))
    )
    if not tasks:
        raise UserError(f"{folder}: has no folders; it holds one for each task")
    for name in names or ():
        if name not in tasks:
            raise UserError(f"--tasks: no {name!r} in {folder}; {', '.join(tasks)} are")
    return {name: _find_task(os.path.join(folder, name)) for name in names or tasks}


def read_examples(path: str) -> list[Example]:
    """Reads a file; sentences without targets are left out."""
    examples, kinds = [], set()
    reader = LabelReader()
    for number, line in enumerate(files.split_lines(files.read_text(path)), start=1):
        if not line.strip(BLANKS):
            continue
        example = _parse(line, f"{path}:{number}", reader)
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


def _find_task(folder):
    paths = {}
    for split, spellings in SPLITS.items():
        for stem in spellings:
            for ending in _ENDINGS:
                path = os.path.join(folder, stem + ending)
                if files.exists(path):
                    paths.setdefault(split, path)
        if split not in paths and split != "test":
            raise UserError(
                f"{folder}: no {split}.jsonl; a task has train, dev and perhaps test"
            )
    return paths


def _parse(line, where, reader) -> Example:
    entry = files.parse_json_line(line, where)
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
        raise UserError(f'{where}: has no "text"')
    if not isinstance(entry.get("targets"), list):
        raise UserError(f'{where}: has no list of "targets"')
    # As the suite does, whose spans count these words.
    words = entry["text"].split()
    targets = [_target(t, len(words), where, reader) for t in entry["targets"]]
    return Example(words, targets)


def _target(entry: Any, words: int, where: str, reader: LabelReader) -> Target:
    if not isinstance(entry, dict):
        raise UserError(f"{where}: {quoted(entry)} is no target")
    if "span1" not in entry or "label" not in entry:
        raise UserError(f'{where}: a target has no "span1" or no "label"')
    second = entry.get("span2")
    labels = entry["label"]
    labels = labels if isinstance(labels, list) else [labels]
    if not all(type(label) in (str, int) for label in labels):
        text = quoted(entry["label"])
        raise UserError(f"{where}: {text} is no label and no list of labels")
    return Target(
        _span(entry["span1"], words, where),
        None if second is None else _span(second, words, where),
        tuple(dict.fromkeys(reader.read(str(label), where) for label in labels)),
    )


def _span(value, words, where) -> Span:
    is_pair = isinstance(value, list) and [type(place) for place in value] == [int, int]
    if not is_pair or not 0 <= value[0] < value[1] <= words:
        raise UserError(
            f"{where}: {quoted(value)} is no span [first, end) of the {words} words"
        )
    return value[0], value[1]


def _as_json(target):
    second = {} if target.span2 is None else {"span2": list(target.span2)}
    labels = target.labels[0] if len(target.labels) == 1 else list(target.labels)
    return {"span1": list(target.span1), **second, "label": labels}


_COLUMNS = 10
_WHOLE = re.compile("[0-9]{1,9}")
_SPLIT_OF_NAME = re.compile(r"(?:^|[-_.])(train|dev|test)\.conllu$")


class _Word(NamedTuple):
    """A line of CoNLL-U: its number, form, tag, head (0: the root) and relation."""

    number: int
    form: str
    tag: str
    head: int
    relation: str


def parts_of_speech(path: str) -> list[Example]:
    """The universal part of speech of each word; words without one have no target."""
    return [
        Example(
            [word.form for word in words],
            [
                Target((word.number - 1, word.number), None, (word.tag,))
                for word in words
                if word.tag != "_"
            ],
        )
        for words in _read_treebank(path)
    ]


def dependencies(path: str) -> list[Example]:
    """The relation of each word to its head; the root has no head and no target."""

    def target(word):
        span, head = (word.number - 1, word.number), (word.head - 1, word.head)
        return Target(span, head, (word.relation,))

    return [
        Example([w.form for w in words], [target(w) for w in words if w.head])
        for words in _read_treebank(path)
    ]


CONVERTERS: dict[str, Callable[[str], list[Example]]] = {
    "pos": parts_of_speech,
    "dependencies": dependencies,
}


def convert(task: str, source: str, target: str) -> None:
    """Writes a file for probing from CoNLL-U, and prints a summary."""
    examples = CONVERTERS[task](source)
    files.make_folder(os.path.dirname(target) or ".")
    write_examples(target, examples)
    targets = sum(len(example.targets) for example in examples)
    console.say(f"{target}: {len(examples):,} sentences, {targets:,} targets")


def make_treebank_tasks(paths: Sequence[str], folder: str) -> list[str]:
    """Makes the tasks `pos` and `dependencies` from a language's CoNLL-U files.

    The split of a file is the `train`, `dev` or `test` at the end of its name before
    .conllu, as in Universal Dependencies. Files of a split are joined. The test split
    always consists of the test files. If training or development files are missing, the
    other ones give both splits: a hash of its words puts about one sentence in five
    into development.

    Returns:
      The paths written, pos/SPLIT.jsonl and dependencies/SPLIT.jsonl in the folder.
    """
    by_split: dict[str, list[str]] = {split: [] for split in SPLITS}
    for path in paths:
        match = _SPLIT_OF_NAME.search(os.path.basename(path))
        if not match:
            raise UserError(
                f"{path}: its name says no split; it must end in train.conllu, "
                "dev.conllu or test.conllu"
            )
        by_split[match[1]].append(path)
    if not by_split["test"] or not by_split["train"] + by_split["dev"]:
        raise UserError(
            f"{', '.join(paths) or 'no treebank'}: probes need a file *test.conllu and "
            "one *train.conllu or *dev.conllu"
        )
    contents = {}
    for task, read in CONVERTERS.items():
        splits = {
            split: [example for path in split_paths for example in read(path)]
            for split, split_paths in by_split.items()
        }
        if not splits["train"] or not splits["dev"]:
            sentences = splits["train"] + splits["dev"]
            splits["train"] = [e for e in sentences if not _is_development(e)]
            splits["dev"] = [e for e in sentences if _is_development(e)]
        for split, examples in splits.items():
            if not any(example.targets for example in examples):
                raise UserError(f"{', '.join(paths)}: no {split} sentence for {task}")
            contents[os.path.join(folder, task, f"{split}.jsonl")] = examples
    for path, examples in contents.items():
        files.make_folder(os.path.dirname(path))
        write_examples(path, examples)
    return list(contents)


def _is_development(example: Example) -> bool:
    return int(files.fingerprint(" ".join(example.words)), 16) % 5 == 0


def _read_treebank(path) -> Iterator[list[_Word]]:
    """Yields the words of each sentence."""
    lines = enumerate(files.split_lines(files.read_text(path)), start=1)
    has_words = False
    for has_text, group in itertools.groupby(lines, _has_text):
        sentence, words = list(group) if has_text else [], []
        for number, line in sentence:
            if line.startswith("#"):
                continue
            cells = line.split("\t")
            if len(cells) != _COLUMNS:
                raise UserError(
                    f"{path}:{number}: {len(cells)} columns, CoNLL-U has {_COLUMNS}"
                )
            # 3-4 is a contraction of the words that follow; 5.1 is an omitted word.
            if _WHOLE.fullmatch(cells[0]):
                words.append(_word(cells, f"{path}:{number}"))
        if words:
            _check_words(words, f"{path}:{sentence[0][0]}")
            has_words = True
            yield words
    if not has_words:
        raise UserError(f"{path}: holds no sentences")


def _has_text(numbered_line: tuple[int, str]) -> bool:
    return bool(numbered_line[1].strip(BLANKS))


def _word(cells, where) -> _Word:
    if not _WHOLE.fullmatch(cells[6]) and cells[6] != "_":
        raise UserError(f"{where}: head {quoted(cells[6])} is no number")
    # White space within a word would split it in two, also a no-break space.
    form = "".join(cells[1].split()) or "_"
    head = 0 if cells[6] == "_" else int(cells[6])
    return _Word(int(cells[0]), form, cells[3], head, cells[7])


def _check_words(words, where):
    if [word.number for word in words] != list(range(1, len(words) + 1)):
        raise UserError(f"{where}: this sentence does not number its words 1, 2, ...")
    for word in words:
        if word.head > len(words):
            raise UserError(
                f"{where}: word {word.number} of this sentence has head {word.head}, "
                f"which is none of its {len(words)} words"
            )
