"""Writes documents into numbered text files of bounded size."""

import hashlib
import os
from typing import Any

from decoupled.core import files, gfile

Document = list[str]


class TextShards:
    """Writes documents into files of about `max_bytes`; leaves `counts` when closed.

    The number of files is part of their names and known only at the end, so they are
    written under temporary names first.
    """

    def __init__(self, root: str, folder: str, max_bytes: int):
        self._root, self._folder, self._max_bytes = root, folder, max_bytes
        self._temporaries: list[str] = []
        self._entries: list[dict[str, Any]] = []
        self._handle = None
        self._documents = self._sentences = self._characters = 0
        self.counts: dict[str, Any] = {}

    def __enter__(self):
        return self

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
        if self._size >= self._max_bytes:
            self._close_file()

    def __exit__(self, kind, error, traceback):
        if self._handle is not None:
            self._close_file()
        if kind is not None or not self._entries:
            return
        for index, temporary in enumerate(self._temporaries):
            shard = files.shard_name("text", index, len(self._temporaries), ".txt")
            name = f"{self._folder}/{shard}"
            gfile.rename(temporary, os.path.join(self._root, name))
            self._entries[index] = {"name": name, **self._entries[index]}
        self.counts = {
            "files": self._entries,
            "documents": self._documents,
            "sentences": self._sentences,
            "characters": self._characters,
            "bytes": sum(entry["bytes"] for entry in self._entries),
        }

    def _open(self) -> None:
        folder = os.path.join(self._root, self._folder)
        gfile.makedirs(folder)
        self._temporaries.append(files.temporary_name(os.path.join(folder, "text")))
        self._handle = gfile.GFile(self._temporaries[-1], "wb")
        self._digest, self._size = hashlib.sha256(), 0

    def _close_file(self) -> None:
        self._handle.close()
        self._handle = None
        self._entries.append({"sha256": self._digest.hexdigest(), "bytes": self._size})
