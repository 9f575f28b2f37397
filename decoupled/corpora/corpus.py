"""The corpus folder: text by split and language, described by a manifest.

    text/{train,eval}/{language}/text-00000-of-0000N.txt
        UTF-8, one sentence a line, an empty line between documents
    manifest.json
        files with their SHA-256 and size, counts per language, what it was built from
    tasks/, parallel/
        further files, for sources that have them (catalogs, parallel text)

Text built from files (`decoupled.corpora.from_files`) lies one folder deeper: each part
of an input has its own folder. The manifest is written last: a folder without a
manifest is not a corpus.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from decoupled.core import files, gfile
from decoupled.core.errors import UserError
from decoupled.core.locks import LOCK
from decoupled.core.made_from import differences
from decoupled.corpora import locales

FORMAT = "decoupled-corpus-1"
MANIFEST = "manifest.json"
SPLITS = ("train", "eval")
# A message names at most this many languages.
_NAMED_LANGUAGES = 10
# The manifest holds these counts for each language.
COUNTED = ("documents", "sentences", "characters", "bytes")
# This file marks a folder without a manifest as that of an unfinished build. Such a
# folder may be cleared.
BUILDING = "building.txt"

Document = list[str]


def hash_bits(text: str) -> int:
    """64 bits of the SHA-256 of a text."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def split_at(place: float, test_share: float, dev_share: float) -> str:
    """ "train", "dev" or "test", for a place in [0, 1)."""
    if place < test_share:
        return "test"
    return "dev" if place < test_share + dev_share else "train"


class Corpus:
    """A complete corpus folder.

    Attributes:
      folder, manifest; fingerprint: SHA-256 of the manifest, hence of all text.
    """

    def __init__(self, folder: str):
        path = os.path.join(folder, MANIFEST)
        build = f"build it with decoupled build_corpus --output_dir={folder}"
        if not files.exists(path):
            raise UserError(
                f"{folder}: no corpus here ({MANIFEST} is missing); {build}"
            )
        content = files.read_bytes(path)
        self.folder = folder
        self.fingerprint = files.fingerprint(content)
        self.manifest = files.read_json(path)
        if not isinstance(self.manifest, dict) or self.manifest.get("format") != FORMAT:
            raise UserError(f"{path}: not the manifest of a corpus ({FORMAT}); {build}")
        try:
            _check_manifest(folder, path, self.manifest)
        except (KeyError, TypeError, AttributeError) as error:
            reason = f"{type(error).__name__}: {files.reason(error)}"
            raise UserError(f"{path}: damaged ({reason}); {_again(folder)}") from error
        if not self.languages("train"):
            raise UserError(f"{folder}: the corpus is empty; {build}")

    def languages(self, split: str) -> list[str]:
        """The languages of a split, sorted."""
        return sorted(self.manifest["splits"].get(split, {}))

    def counts(self, split: str, unit: str = "sentences") -> dict[str, int]:
        """Language -> number of "sentences", "documents", "characters" or "bytes"."""
        languages = self.manifest["splits"].get(split, {})
        return {language: languages[language][unit] for language in sorted(languages)}

    def documents(self, split: str, language: str) -> Iterator[Document]:
        """Yields the documents of a language; see `read_documents`."""
        entries = self.manifest["splits"][split][language]["files"]
        return read_documents(self.folder, entries)

    def sentences(self, split: str, language: str) -> Iterator[str]:
        """Yields the sentences of one language in the order of the text."""
        for document in self.documents(split, language):
            yield from document


def _check_manifest(folder: str, path: str, manifest: dict[str, Any]) -> None:
    for name in ("inputs", "dropped", "tasks"):
        if not isinstance(manifest.get(name, {}), dict):
            raise TypeError(f"{name} are no object")
    for split, languages in manifest["splits"].items():
        if split not in SPLITS:
            raise KeyError(f"no split {split!r}")
        for language, counts in languages.items():
            locales.check_language(language, path)
            check_counts(folder, counts)


def check_counts(folder: str, counts: dict[str, Any]) -> None:
    """Checks the entry of a language in a split: its counts and its files.

    Raises:
      KeyError, TypeError, AttributeError: it has another form.
      UserError: a file is missing, has another size, or lies outside the folder.
    """
    for unit in COUNTED:
        if not isinstance(counts[unit], int):
            raise TypeError(f"{counts[unit]!r} {unit}")
    if not isinstance(counts["files"], list):
        raise TypeError("files are no list")
    for entry in counts["files"]:
        if not isinstance(entry["sha256"], str):
            raise TypeError(f"{entry['sha256']!r} as a SHA-256")
        path = files.path_below(folder, entry["name"], os.path.join(folder, MANIFEST))
        try:
            size = gfile.size(path)
        except gfile.OpError as error:
            raise UserError(
                f"{path}: cannot read ({files.reason(error)}), though {MANIFEST} lists "
                f"it; {_again(folder)}"
            ) from error
        if size != entry["bytes"]:
            raise UserError(
                f"{path}: {size} bytes, {entry['bytes']} in {MANIFEST}; "
                f"{_again(folder)}"
            )


def _again(folder: str) -> str:
    """What helps: a build refuses or reuses a folder with a manifest."""
    return f"restore it, or remove {folder} and build the corpus again"


def read_documents(
    folder: str, entries: Iterable[dict[str, Any]]
) -> Iterator[Document]:
    """Yields the documents of text files, each as its sentences, in their order.

    Raises:
      UserError: a file cannot be read; at its end, it differs from its entry of the
        manifest.
    """
    for entry in entries:
        document = []
        for line in _lines(folder, entry):
            if line:
                document.append(line)
            elif document:
                yield document
                document = []
        if document:
            yield document


def _lines(folder: str, entry: dict[str, Any]) -> Iterator[str]:
    path = files.path_below(folder, entry["name"], os.path.join(folder, MANIFEST))
    digest = hashlib.sha256()
    try:
        with gfile.GFile(path, "rb") as handle:
            for line in handle:
                digest.update(line)
                yield line.decode("utf-8", errors="replace").rstrip("\n")
    except gfile.OpError as error:
        raise UserError(f"{path}: cannot read ({files.reason(error)})") from error
    if digest.hexdigest() != entry["sha256"]:
        raise UserError(
            f"{path}: changed since {MANIFEST} was written; {_again(folder)}"
        )


def find_corpus(folder: str, inputs: Mapping[str, Any]) -> Corpus | None:
    """The complete corpus in `folder` that was built from `inputs`, or None."""
    if files.exists(os.path.join(folder, MANIFEST)):
        corpus = Corpus(folder)
        # Older manifests do not record which versions of the libraries made the text.
        old_inputs = {"libraries": inputs.get("libraries")}
        old_inputs |= corpus.manifest.get("inputs", {})
        if change := difference(old_inputs, inputs):
            raise UserError(
                f"{folder}: holds a corpus of other inputs ({change}); choose "
                "another --output_dir or remove the folder"
            )
        return corpus
    if not gfile.isdir(folder):
        return None
    names = {name.rstrip("/") for name in gfile.listdir(folder)} - {LOCK}
    # A build that was killed while it wrote its first file left only a part of it.
    names = {name for name in names if not _is_partial_marker(name)}
    if names and BUILDING not in names:
        raise UserError(
            f"{folder}: neither empty nor a corpus (holds {sorted(names)[0]}); choose "
            "another --output_dir"
        )
    return None


def _is_partial_marker(name):
    return name.startswith(BUILDING) and files.is_temporary(name)


def difference(old: Any, new: Any) -> str:
    """The first difference of two nested dicts, e.g. "a.b: 1 != 2"; "" if none."""
    changes = differences("", old, new)
    return next((f"{name}: {value} != {other}" for name, value, other in changes), "")


def no_held_out_warning(
    corpus: Corpus, train: Iterable[str], held_out: Iterable[str]
) -> str:
    """A warning that names the languages of `train` that are not in `held_out`, and
    says what helps with the source of `corpus`; "" where there are none.
    """
    languages = sorted(set(train) - set(held_out))
    if not languages:
        return ""
    advice = "more documents, or a larger share to hold out, would give some"
    if corpus.manifest.get("inputs", {}).get("source") == "text":
        advice = (
            "two different documents give some, unless build_corpus.eval_share is 0; "
            "an empty line separates them in plain text: if each line is a document, "
            "put one after each with sed G FILE > NEW_FILE"
        )
    return (
        f"warning: no held-out text in {_short_list(languages)}; pretrain cannot "
        f"evaluate there ({advice})"
    )


def large_held_out_note(corpus: Corpus, eval_share: float) -> str:
    """A line on languages of which far more than `eval_share` is held out, as happens
    with few documents of unequal size; "" where there are none."""
    train, held_out = (corpus.counts(split, "characters") for split in SPLITS)
    shares = {x: held_out[x] / (held_out[x] + train.get(x, 0)) for x in held_out}
    min_share = max(5 * eval_share, 0.05)
    large_shares = [f"{s:.0%} of {x}" for x, s in shares.items() if s > min_share]
    if not large_shares:
        return ""
    return (
        f"held out: {_short_list(large_shares)}, though build_corpus.eval_share is "
        f"{eval_share}; more and smaller documents give a share near it"
    )


def _short_list(items: list[str]) -> str:
    more = len(items) - _NAMED_LANGUAGES
    first_items = ", ".join(items[:_NAMED_LANGUAGES])
    return f"{first_items} and {more} more" if more > 0 else first_items
