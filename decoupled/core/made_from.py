"""What results were computed from, so that they are reused only for the same inputs.

A file of results has the entry MADE_FROM:

  "made_from": {"checkpoint": SHA-256, "files": {NAME: SHA-256}, "settings": {...}}

Files are compared by their contents. A file that was edited may still have its size
and its time of the last change.
"""

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

from decoupled.core import console, files, gfile

MADE_FROM = "made_from"
# What fine-tuning and retrieval measured.
RESULTS = "results.json"
# A folder is known by one of these, which has checksums of everything else in it.
_MANIFEST, _INDEXES = "manifest.json", ("*.index", "best/*.index")
_OTHER_CHECKPOINT = "the checkpoint is another one"
_SHOWN_CHARACTERS, _SHOWN_CHANGES = 200, 5


def hash_files(
    paths: Iterable[str], folder: str = "", seen: dict[str, str] | None = None
) -> dict[str, str]:
    """Name below `folder` -> SHA-256, of files and of all files of folders. A path that
    is not below it is its own name.

    Of a folder with a manifest, only that is read; of a folder with checkpoints, only
    their indexes. Both have checksums of the other files.

    Args:
      seen: path -> SHA-256 of files that are not read again; it is extended.
    """
    seen = {} if seen is None else seen
    hashes = {}
    for path in dict.fromkeys(one for given in paths for one in _files_of(given)):
        if path not in seen:
            seen[path] = files.file_fingerprint(path)
        is_below = folder and path.startswith(folder)
        name = path.removeprefix(folder).lstrip("/") if is_below else path
        hashes[name] = seen[path]
    return hashes


def _files_of(path):
    if not gfile.isdir(path):
        return [path] if files.exists(path) else []
    manifest = os.path.join(path, _MANIFEST)
    if files.exists(manifest):
        return [manifest]
    if files.exists(os.path.join(path, files.CHECKPOINT_LIST)):
        return [p for one in _INDEXES for p in gfile.glob(f"{path}/", one)]
    return sorted(
        os.path.join(parent, name)
        for parent, _, names in gfile.walk(path)
        for name in names
    )


def read_results(path: str, wanted: dict[str, Any]) -> dict[str, Any] | None:
    """The results in a JSON file if they were computed from `wanted`, else None.

    If there are results of something else, a line says what has changed. Another
    checkpoint alone, as after more training, is not said.
    """
    if not files.exists(path):
        return None
    results = files.read_json(path)
    results = results if isinstance(results, dict) else {}
    changed = changes(results.get(MADE_FROM), wanted)
    if changed and changed != [_OTHER_CHECKPOINT]:
        console.say(f"{path}: evaluated again: {in_words(changed)}")
    return None if changed else results


def changes(saved: Any, wanted: dict[str, Any]) -> list[str]:
    """How `wanted` differs from an entry MADE_FROM, a sentence each."""
    if not isinstance(saved, dict) or not isinstance(saved.get("files"), dict):
        return ["it does not say from which files it was computed"]
    # JSON has no tuples: the file has lists in their place.
    wanted, changed = files.parse_json(json.dumps(wanted)), []
    if saved.get("checkpoint") != wanted.get("checkpoint"):
        changed.append(_OTHER_CHECKPOINT)
    before, now = saved["files"], wanted["files"]
    for name in sorted(before.keys() | now.keys()):
        if name not in now:
            changed.append(f"{name} is gone")
        elif name not in before:
            changed.append(f"{name} is new")
        elif before[name] != now[name]:
            changed.append(f"{name} has changed")
    settings = differences("", saved.get("settings"), wanted.get("settings"))
    return changed + [f"{name} was {old}, is {new}" for name, old, new in settings]


def in_words(changed: list[str]) -> str:
    """The first of several changes, and the number of the others."""
    more = len(changed) - _SHOWN_CHANGES
    words = ", ".join(changed[:_SHOWN_CHANGES])
    return f"{words} and {more} more changes" if more > 0 else words


def differences(name: str, saved: Any, wanted: Any) -> Iterator[tuple[str, str, str]]:
    """Yields ("a.b", value in `saved`, value in `wanted`) for leaves that differ."""
    if not (isinstance(saved, dict) and isinstance(wanted, dict)):
        if saved != wanted:
            yield name, shown(saved), shown(wanted)
        return
    for key in sorted(saved.keys() | wanted.keys()):
        inner = f"{name}.{key}" if name else key
        yield from differences(inner, saved.get(key), wanted.get(key))


def shown(value: Any) -> str:
    """A value in a message; a long one is cut."""
    text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}..."
