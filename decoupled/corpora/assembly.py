"""Files of text -> the corpus folder: clean each part, leave out equal documents, list.

Begun again after a kill or a mistake in one input, it goes on with what is missing; the
text does not depend on how many processes made it. The manifest comes last.
"""

import collections
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from decoupled.core import console, files, gfile
from decoupled.core.errors import UserError
from decoupled.corpora import corpus
from decoupled.corpora.corpus import SPLITS, WORK, Corpus
from decoupled.corpora.documents import TextJob, TextUnit, digests_path, make_units
from decoupled.corpora.duplicates import (
    UniqueJob,
    find_duplicates,
    find_held_out,
    has_document,
    unique_unit,
)
from decoupled.corpora.runners import Runner, run_units

DUPLICATE = "duplicate document"
REPEATED_FILE = "repeated file"
# In the work folder: what the build was begun with.
_INPUTS = "inputs.json"
# Below this many bytes of input, other processes would start for longer than they work.
_SMALL_BYTES = 4 << 20
# Writing a unit anew takes a copy of its text.
_SMALL_TEXT_BYTES = 256 << 20


class Source(NamedTuple):
    """An input file."""

    path: str
    sha256: str
    size: int


class _Part(NamedTuple):
    """A unit and what became of it: its counts by split, and what was dropped."""

    unit: TextUnit
    splits: dict[str, Any]
    dropped: collections.Counter


def build_text(
    job: TextJob,
    sources: Mapping[str, Sequence[Source]],
    inputs: Mapping[str, Any],
    runner: Runner,
) -> Corpus:
    """Builds the corpus in `job.corpus_dir`.

    Args:
      job: folder and settings. sources: language -> files, in the order of the text.
      inputs: what the manifest says that it was built from.
      runner: where the work is done.

    Raises:
      UserError: an input is bad (all others are done, and kept for the next try), a
        language has no text, or the folder cannot be written.
    """
    folder = job.corpus_dir
    existed = gfile.isdir(folder)
    corpus.mark_unfinished(folder)
    gfile.makedirs(job.work_dir)
    _note_inputs(job.work_dir, inputs)
    try:
        repeated = collections.Counter()
        units = _units(job, sources, repeated)
        results = run_units(job, units, runner, "reading text", _SMALL_BYTES)
        parts = [
            _Part(unit, result["splits"], collections.Counter(result["dropped"]))
            for unit, result in zip(units, results, strict=True)
        ]
        parts = _written_anew(job, parts, runner)
        _check_text(sources, parts)
        _write_manifest(folder, sources, inputs, parts, repeated)
    except UserError:
        _forget_without_text(folder, existed)
        raise
    clean_up(folder)
    return Corpus(folder)


def clean_up(folder: str) -> None:
    """Removes what a complete corpus does not need: notes, and text left out of it.

    Text of files lies in a folder for each unit, text of catalogs does not.
    """
    names = [
        entry["name"]
        for languages in Corpus(folder).manifest["splits"].values()
        for counts in languages.values()
        for entry in counts["files"]
    ]
    listed = {*names, *map(os.path.dirname, names)}
    for split in SPLITS:
        for path in gfile.glob(os.path.join(folder, "text", split, "*", "*")):
            if os.path.relpath(path, folder) in listed:
                continue
            if gfile.isdir(path):
                gfile.rmtree(path)
            else:
                gfile.remove(path)
    if gfile.isdir(os.path.join(folder, WORK)):
        gfile.rmtree(os.path.join(folder, WORK))
    corpus.mark_finished(folder)


def _note_inputs(work_dir: str, inputs: Mapping[str, Any]) -> None:
    """Says so where the build that was begun here had other inputs."""
    path = os.path.join(work_dir, _INPUTS)
    begun = files.read_json(path) if files.exists(path) else inputs
    if different := corpus.difference(begun, inputs):
        console.say(
            f"{work_dir}: begun with other inputs ({different}); what depends on them "
            "is done anew"
        )
    files.write_json(path, dict(inputs))


def _units(job, sources, repeated: collections.Counter) -> list[TextUnit]:
    """The units of all files; files with equal contents are read once."""
    units = []
    for language, found in sources.items():
        seen = set()
        for source in found:
            if source.sha256 in seen:
                repeated[language] += 1
                console.say(f"{source.path}: a copy of another file of {language}")
                continue
            seen.add(source.sha256)
            units += make_units(language, *source, job.settings)
    return units


def _written_anew(job, parts: list[_Part], runner) -> list[_Part]:
    """The parts, written anew those with duplicates or with a document to hold out."""
    anew = {}
    for language in console.track(_languages(parts), "looking for equal documents"):
        own = [part for part in parts if part.unit.language == language]
        paths = [digests_path(job.corpus_dir, part.unit) for part in own]
        found = [np.zeros(0, np.int64)] * len(own)
        if job.settings.drop_duplicates:
            found = find_duplicates(paths)
        held_out = None
        if job.settings.eval_share and not any("eval" in part.splits for part in own):
            held_out = find_held_out(paths)
        for part, path, duplicates in zip(own, paths, found, strict=True):
            if duplicates.size:
                part.dropped[DUPLICATE] += int(duplicates.size)
            holds_out = held_out is not None and has_document(path, held_out)
            if duplicates.size or holds_out:
                anew[part.unit.name] = unique_unit(
                    job, part.unit, part.splits, duplicates, held_out
                )
    if not anew:
        return parts
    results = run_units(
        UniqueJob(job),
        list(anew.values()),
        runner,
        "leaving out and holding out documents",
        _SMALL_TEXT_BYTES,
    )
    splits = {
        name: result["splits"] for name, result in zip(anew, results, strict=True)
    }
    return [
        part._replace(splits=splits.get(part.unit.name, part.splits)) for part in parts
    ]


def _languages(parts: list[_Part]) -> list[str]:
    return sorted({part.unit.language for part in parts})


def _check_text(sources, parts: list[_Part]) -> None:
    with_text = {part.unit.language for part in parts if part.splits}
    for language, found in sources.items():
        if language not in with_text:
            paths = ", ".join(source.path for source in found)
            raise UserError(f"--input={language}=: no text in {paths}")
    if not any("train" in part.splits for part in parts):
        raise UserError("--input: no text for training is left; nothing written")


def _write_manifest(folder, sources, inputs, parts, repeated) -> None:
    splits = {split: {} for split in SPLITS}
    languages = {}
    dropped = collections.Counter()
    for language, found in sources.items():
        own = [part for part in parts if part.unit.language == language]
        left_out = collections.Counter(
            {REPEATED_FILE: repeated[language]} if repeated[language] else {}
        )
        for part in own:
            left_out.update(part.dropped)
        dropped.update(left_out)
        languages[language] = {
            "inputs": [
                {**source._asdict(), "path": os.path.basename(source.path)}
                for source in found
            ],
            "dropped": dict(sorted(left_out.items())),
        }
        for split in SPLITS:
            counts = [part.splits[split] for part in own if split in part.splits]
            if counts:
                splits[split][language] = _sum(counts)
    corpus.write_manifest(
        folder,
        source="text files",
        inputs=inputs,
        splits=splits,
        dropped=dict(sorted(dropped.items())),
        tasks={},
        languages=languages,
    )


def _sum(counts: list[dict[str, Any]]) -> dict[str, Any]:
    """The files of several parts, one after the other, and their counts together."""
    return {
        name: sum((part[name] for part in counts), [] if name == "files" else 0)
        for name in counts[0]
    }


def _forget_without_text(folder: str, existed: bool) -> None:
    """Takes the build back where no unit has left text."""
    if gfile.glob(os.path.join(folder, "text", "*", "*", "*")):
        return
    corpus.clear(folder)
    corpus.mark_finished(folder)
    if not existed:
        gfile.rmtree(folder)
