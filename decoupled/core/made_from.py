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
# The file with the scores of fine-tuning or retrieval.
RESULTS = "results.json"
_MANIFEST, _INDEXES = "manifest.json", ("*.index", "best/*.index")
_OTHER_CHECKPOINT = "the checkpoint is another one"
# Settings that earlier versions did not record; such results agree with any value.
_UNRECORDED = ("MeshConfig.slice_dtype",)
_SHOWN_CHARACTERS, _SHOWN_CHANGES = 200, 5


def hash_files(
    paths: Iterable[str], folder: str = "", seen: dict[str, str] | None = None
) -> dict[str, str]:
    """Name below `folder` -> SHA-256, of files and of all files of folders.

    A path that is not below it is its own name. `seen` has the hashes of files that are
    not read again; it is extended.
    """
    seen = {} if seen is None else seen
    hashes = {}
    for path in dict.fromkeys(file for where in paths for file in _files_of(where)):
        if path not in seen:
            seen[path] = files.file_fingerprint(path)
        is_below = folder and path.startswith(folder)
        name = path.removeprefix(folder).lstrip("/") if is_below else path
        hashes[name] = seen[path]
    return hashes


def _files_of(path):
    if not gfile.isdir(path):
        return [path] if files.exists(path) else []
    # Both have checksums of everything else in the folder.
    manifest = os.path.join(path, _MANIFEST)
    if files.exists(manifest):
        return [manifest]
    if files.exists(os.path.join(path, files.CHECKPOINT_LIST)):
        return [index for name in _INDEXES for index in gfile.glob(f"{path}/", name)]
    return sorted(
        os.path.join(parent, name)
        for parent, _, names in gfile.walk(path)
        for name in names
    )


def read_results(path: str, current_entry: dict[str, Any]) -> dict[str, Any] | None:
    """The results in a JSON file if they were computed from the same inputs.

    `current_entry` is the entry MADE_FROM of the present inputs. If they differ, a line
    says what has changed, unless it is only the checkpoint, as after more training.
    """
    if not files.exists(path):
        return None
    results = files.read_json(path)
    results = results if isinstance(results, dict) else {}
    sentences = changes(results.get(MADE_FROM), current_entry)
    if sentences and sentences != [_OTHER_CHECKPOINT]:
        console.say(f"{path}: evaluated again: {in_words(sentences)}")
    return None if sentences else results


def changes(old_entry: Any, new_entry: dict[str, Any]) -> list[str]:
    """What has changed since an entry MADE_FROM, a sentence each."""
    if not isinstance(old_entry, dict) or not isinstance(old_entry.get("files"), dict):
        return ["it does not say from which files it was computed"]
    # JSON has no tuples: the file has lists in their place.
    new_entry, sentences = files.parse_json(json.dumps(new_entry)), []
    if old_entry.get("checkpoint") != new_entry.get("checkpoint"):
        sentences.append(_OTHER_CHECKPOINT)
    old, new = old_entry["files"], new_entry["files"]
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            sentences.append(f"{name} is gone")
        elif name not in old:
            # Earlier versions did not record these files beside others.
            if name.removesuffix(files.INDEX) not in old:
                sentences.append(f"{name} is new")
        elif old[name] != new[name]:
            sentences.append(f"{name} has changed")
    settings = changed_settings(old_entry.get("settings"), new_entry.get("settings"))
    return sentences + [f"{name} was {old}, is {new}" for name, old, new in settings]


def changed_settings(old: Any, new: Any) -> list[tuple[str, str, str]]:
    """The `differences` of two entries "settings", except those that earlier versions
    did not record."""
    if isinstance(old, dict) and isinstance(new, dict):
        old = {name: new[name] for name in _UNRECORDED if name in new} | old
    return list(differences("", old, new))


def in_words(sentences: list[str]) -> str:
    """The first of several changes, and the number of the others."""
    hidden_count = len(sentences) - _SHOWN_CHANGES
    words = ", ".join(sentences[:_SHOWN_CHANGES])
    return f"{words} and {hidden_count} more changes" if hidden_count > 0 else words


def differences(name: str, old: Any, new: Any) -> Iterator[tuple[str, str, str]]:
    """Yields ("a.b", old value, new value) for leaves that differ."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        if old != new:
            yield name, _shown(old), _shown(new)
        return
    for key in sorted(old.keys() | new.keys()):
        inner = f"{name}.{key}" if name else key
        yield from differences(inner, old.get(key), new.get(key))


def _shown(value: Any) -> str:
    """A value in a message; a long one is cut."""
    text = repr(value)
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}..."
