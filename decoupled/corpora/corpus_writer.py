"""Writes a corpus folder: first its text, in files of bounded size, then its manifest.

A folder without a manifest is not a corpus. So a build that was killed does not leave a
corpus that looks complete.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora.corpus import (
    BUILDING,
    FORMAT,
    MANIFEST,
    SPLITS,
    Corpus,
    Document,
    difference,
)

MAX_FILE_BYTES = 64 << 20
# This folder has the notes on finished parts while a corpus is being built.
WORK = "work"
# This file in the work folder holds the inputs that the build was begun with.
_INPUTS = "inputs.json"
_CONTENTS = ("text", "tasks", "parallel", WORK)


def write_corpus(
    folder: str,
    source: str,
    inputs: Mapping[str, Any],
    languages: Iterable[tuple[str, Iterable[tuple[str, Document]]]],
    dropped: Mapping[str, int],
    contents: Mapping[str, str],
    tasks: Mapping[str, Any],
) -> Corpus:
    """Writes a corpus folder. After an error, nothing of it is left.

    Args:
      source: a description for people.
      inputs: what the corpus is built from, for `find_corpus`.
      languages: language -> its documents, each with its split. Streamed.
      dropped: reason -> count. contents: name below `folder` -> content.
      tasks: name -> what the manifest says about it.
    """
    with all_or_nothing(folder):
        splits = {split: {} for split in SPLITS}
        for language, documents in languages:
            counts_by_split = write_documents(folder, language, documents)
            for split, counts in counts_by_split.items():
                splits[split][language] = counts
        if not splits["train"]:
            raise UserError(f"{source}: no text for training is left; nothing written")
        write_further_files(folder, contents)
        write_manifest(folder, source, inputs, splits, dropped, tasks)
    return Corpus(folder)


@contextlib.contextmanager
def all_or_nothing(folder: str) -> Iterator[None]:
    """Clears the folder before the block, and after it if it fails."""
    clear(folder)
    try:
        yield
    except BaseException:
        clear(folder)
        raise


def lines(items: Iterable[str]) -> str:
    """The content of a file with an item a line."""
    return "".join(f"{item}\n" for item in items)


def write_further_files(folder: str, contents: Mapping[str, str]) -> None:
    """Writes the files of tasks/ and parallel/: name below `folder` -> content."""
    for name, content in contents.items():
        gfile.makedirs(os.path.join(folder, os.path.dirname(name)))
        files.write_text(os.path.join(folder, name), content)


def write_manifest(
    folder: str,
    source: str,
    inputs: Mapping[str, Any],
    splits: Mapping[str, Mapping[str, Any]],
    dropped: Mapping[str, int],
    tasks: Mapping[str, Any],
    **further_fields: Mapping[str, Any],
) -> None:
    """Writes the manifest, after everything else; arguments as in `write_corpus`.

    Args:
      splits: split -> language -> counts of `TextShards`.
      further_fields: languages (language -> its input files, and what was dropped from
        them), pairs (split -> language -> pairs with English).
    """
    manifest = {
        "format": FORMAT,
        "source": source,
        "inputs": dict(inputs),
        "splits": {split: dict(sorted(splits[split].items())) for split in SPLITS},
        "tasks": dict(tasks),
        "dropped": dict(dropped),
        **further_fields,
    }
    files.write_json(os.path.join(folder, MANIFEST), manifest)


@contextlib.contextmanager
def building(folder: str, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Marks the folder as unfinished while the block writes a corpus into it.

    Prints a message if an earlier build was begun with other inputs. After a UserError,
    the folder is kept for the next build if units have written text.

    Raises:
      UserError: the folder cannot be made or written to.
    """
    folder_existed = gfile.isdir(folder)
    files.make_folder(folder)
    marker = os.path.join(folder, BUILDING)
    files.write_text(marker, "A corpus is being built here; not complete.\n")
    work_dir = os.path.join(folder, WORK)
    gfile.makedirs(work_dir)
    _note_inputs(work_dir, inputs)
    try:
        yield
    except UserError:
        if not gfile.glob(f"{folder}/", "text/*/*/*"):
            clear(folder)
            gfile.remove(marker)
            if not folder_existed:
                gfile.rmtree(folder)
        raise
    clean_up(folder)


def is_unfinished(folder: str) -> bool:
    """True where a build began and did not end."""
    return files.exists(os.path.join(folder, BUILDING))


def clear(folder: str) -> None:
    """Removes everything that a corpus may hold, except its manifest."""
    files.remove_temporaries(folder)
    for name in _CONTENTS:
        path = os.path.join(folder, name)
        if gfile.isdir(path):
            gfile.rmtree(path)


def _note_inputs(work_dir, inputs):
    path = os.path.join(work_dir, _INPUTS)
    old_inputs = files.read_json(path) if files.exists(path) else inputs
    if change := difference(old_inputs, inputs):
        console.say(
            f"{work_dir}: begun with other inputs ({change}); what depends on them "
            "is done anew"
        )
    files.write_json(path, dict(inputs))


def clean_up(folder: str) -> None:
    """Removes what a complete corpus does not need: notes, unused text, temporaries.

    Text built from files lies in one folder per unit; text of catalogs does not.
    """
    names = [
        entry["name"]
        for languages in Corpus(folder).manifest["splits"].values()
        for counts in languages.values()
        for entry in counts["files"]
    ]
    used_paths = {*names, *map(os.path.dirname, names)}
    for split in SPLITS:
        for path in gfile.glob(f"{folder}/text/{split}/", "*/*"):
            if os.path.relpath(path, folder) in used_paths:
                continue
            if gfile.isdir(path):
                gfile.rmtree(path)
            else:
                gfile.remove(path)
    if gfile.isdir(os.path.join(folder, WORK)):
        gfile.rmtree(os.path.join(folder, WORK))
    files.remove_temporaries(folder)
    gfile.remove(os.path.join(folder, BUILDING))


def write_documents(
    folder: str, place: str, documents: Iterable[tuple[str, Document]]
) -> dict[str, dict[str, Any]]:
    """Writes documents, each with its split, to text/SPLIT/`place`.

    Older text there is removed first. After a failure nothing is left, which also frees
    a full disk. `place` is a language, or a folder in it.

    Returns:
      split -> files and counts, for splits that have text.
    """
    _clear_text(folder, place)
    writers = {split: TextShards(folder, f"text/{split}/{place}") for split in SPLITS}
    try:
        for split, document in documents:
            writers[split].write(document)
        counts_by_split = {split: writer.finish() for split, writer in writers.items()}
    except BaseException:
        for writer in writers.values():
            writer.abandon()
        _clear_text(folder, place)
        raise
    return {split: counts for split, counts in counts_by_split.items() if counts}


def _clear_text(folder, place):
    for split in SPLITS:
        path = os.path.join(folder, "text", split, place)
        if gfile.isdir(path):
            gfile.rmtree(path)


class TextShards:
    """Writes documents into files of about `MAX_FILE_BYTES`.

    The file names contain the number of files, which is known only at the end. So the
    files have temporary names at first.
    """

    def __init__(self, root: str, folder: str):
        self._root, self._folder = root, folder
        self._temporaries: list[str] = []
        self._entries: list[dict[str, Any]] = []
        self._handle = None
        self._documents = self._sentences = self._characters = 0

    def write(self, document: Document) -> None:
        if self._handle is None:
            self._open()
        # An empty line between documents, none after the last of a file.
        separator = "\n" if self._size else ""
        content = (separator + "\n".join(document) + "\n").encode("utf-8")
        self._handle.write(content)
        self._digest.update(content)
        self._size += len(content)
        self._documents += 1
        self._sentences += len(document)
        self._characters += sum(map(len, document))
        if self._size >= MAX_FILE_BYTES:
            self._close()

    def finish(self) -> dict[str, Any]:
        """Gives the files their names; returns files and counts, {} if none."""
        if self._handle is not None:
            self._close()
        if not self._entries:
            return {}
        names = []
        for index, temporary in enumerate(self._temporaries):
            shard = files.shard_name("text", index, len(self._temporaries), ".txt")
            names.append(f"{self._folder}/{shard}")
            gfile.rename(temporary, os.path.join(self._root, names[-1]))
        return {
            "files": [
                {"name": name, **entry}
                for name, entry in zip(names, self._entries, strict=True)
            ],
            "documents": self._documents,
            "sentences": self._sentences,
            "characters": self._characters,
            "bytes": sum(entry["bytes"] for entry in self._entries),
        }

    def abandon(self) -> None:
        """Closes the open file."""
        if self._handle is not None:
            # What is still in its buffer may not fit on the disk.
            with contextlib.suppress(gfile.OpError):
                self._handle.close()

    def _open(self):
        folder = os.path.join(self._root, self._folder)
        gfile.makedirs(folder)
        self._temporaries.append(files.temporary_name(os.path.join(folder, "text")))
        self._handle = gfile.GFile(self._temporaries[-1], "wb")
        self._digest, self._size = hashlib.sha256(), 0

    def _close(self):
        self._handle.close()
        self._handle = None
        self._entries.append({"sha256": self._digest.hexdigest(), "bytes": self._size})
