"""Files -> a corpus folder: clean each part, drop duplicates, write the manifest.

A build that was killed, or that failed at one input, resumes with the missing parts.
The text does not depend on the number of processes. The manifest is written last.
"""

import collections
import concurrent.futures
import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from decoupled.configs.corpora import CorpusSettings
from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.corpora import corpus_writer, text_units
from decoupled.corpora.corpus import SPLITS
from decoupled.corpora.duplicates import (
    UniqueJob,
    find_duplicates,
    find_moved_document,
    has_document,
    unique_unit,
)
from decoupled.corpora.input_files import (
    FILES_AT_ONCE,
    InputFile,
    describe_files,
    find_inputs,
)
from decoupled.corpora.runners import Runner, run_units
from decoupled.corpora.sources import (
    NO_LANGUAGE,
    OTHER_LANGUAGE,
    source_of,
)
from decoupled.corpora.text_units import TextJob, TextUnit, digests_path, make_units

DUPLICATE = "duplicate document"
REPEATED_FILE = "repeated file"
# Below this many bytes of input, starting other processes takes longer than the work.
_SMALL_BYTES = 4 << 20
# The same for writing units again, which only copies their text.
_SMALL_TEXT_BYTES = 256 << 20


# Language -> its files, in the order of the text.
_Files = Mapping[str, Sequence[InputFile]]


@dataclasses.dataclass
class _Part:
    """A unit and its result: its counts by split, and what was dropped."""

    unit: TextUnit
    splits: dict[str, Any]
    dropped: collections.Counter


# Language -> the parts of its files, in the order of the text.
_Parts = Mapping[str, list[_Part]]


class FilesBuild:
    """Builds a corpus from the files of --input."""

    def __init__(self, inputs: list[str], settings: CorpusSettings, runner: Runner):
        """Finds the files and reads them once, for their SHA-256.

        Raises:
          UserError: an input is wrong, cannot be read, or needs a missing package.
        """
        paths = find_inputs(inputs)
        self._paths = [path for each in paths.values() for path in each]
        self._settings, self._runner = settings, runner
        with concurrent.futures.ThreadPoolExecutor(FILES_AT_ONCE) as pool:
            # The result is remembered: later calls read nothing.
            list(pool.map(source_of, self._paths))
        if settings.language_column is not None:
            _check_columns(paths)
        text_units.check_installed(self._paths, settings)
        self._files = describe_files(paths)

    def inputs(self) -> dict[str, Any]:
        """All that the text depends on, for the manifest."""
        return {
            "source": "text",
            "rules": text_units.cleaning_rules(self._paths, self._settings),
            "libraries": text_units.libraries(self._paths, self._settings),
            "settings": self._settings.text_settings(),
            "languages": {
                language: {
                    "files": len(inputs),
                    "sha256": files.fingerprint(
                        "\n".join(file.sha256 for file in inputs)
                    ),
                }
                for language, inputs in self._files.items()
            },
        }

    def write(self, folder: str, inputs: Mapping[str, Any]) -> None:
        """Writes the corpus; `corpus_writer.building` surrounds it.

        Raises:
          UserError: an input is bad (all others are finished and kept for the next
            build), a language has no text, or the folder cannot be written.
        """
        job = TextJob(folder, self._settings)
        copies = collections.Counter()
        units = _units(job, self._files, copies)
        results = run_units(job, units, self._runner, "reading text", _SMALL_BYTES)
        parts = {language: [] for language in self._files}
        for unit, result in zip(units, results, strict=True):
            dropped = collections.Counter(result["dropped"])
            parts[unit.language].append(_Part(unit, result["splits"], dropped))
        _rewrite_parts(job, parts, self._runner)
        _check_text(self._files, parts, self._settings)
        _write_manifest(folder, self._files, inputs, parts, copies)


def _check_columns(paths: Mapping[str, Sequence[str]]) -> None:
    """Refuses files in several languages without a column that names them."""
    setting = "build_corpus.language_column"
    languages: dict[str, list[str]] = {}
    for language, language_paths in paths.items():
        for path in language_paths:
            languages.setdefault(path, []).append(language)
    plain_paths = [path for path in languages if not source_of(path).has_columns]
    if len(plain_paths) == len(languages):
        raise UserError(f"{setting}: no --input is a table or JSON lines; leave it out")
    for path in plain_paths:
        if len(languages[path]) > 1:
            raise UserError(
                f"{path}: is given for {' and '.join(languages[path])}, but has no "
                f"columns ({setting})"
            )


def _units(job, input_files: _Files, copies: collections.Counter) -> list[TextUnit]:
    """The units of all files; files with equal contents are read once."""
    units = []
    for language, inputs in input_files.items():
        seen = set()
        for file in inputs:
            if file.sha256 in seen:
                copies[language] += 1
                console.say(f"{file.path}: a copy of another file of {language}")
                continue
            seen.add(file.sha256)
            units += make_units(language, *file, job.settings)
    return units


def _rewrite_parts(job, parts: _Parts, runner) -> None:
    """Writes the parts with duplicates or a document to move again."""
    rewrites = []
    for group in console.track(parts.values(), "looking for equal documents"):
        paths = [digests_path(job.corpus_dir, part.unit) for part in group]
        duplicates = [np.zeros(0, np.int64)] * len(group)
        if job.settings.drop_duplicates:
            duplicates = find_duplicates(paths)
        # Documents are split at random, so that a small language may lack a split.
        moved_digest = None
        if job.settings.eval_share:
            splits = {split for part in group for split in part.splits}
            moved_digest = find_moved_document(paths, splits)
        for part, path, indices in zip(group, paths, duplicates, strict=True):
            if indices.size:
                part.dropped[DUPLICATE] += int(indices.size)
            has_moved = moved_digest is not None and has_document(path, moved_digest)
            if indices.size or has_moved:
                unit = unique_unit(job, part.unit, part.splits, indices, moved_digest)
                rewrites.append((part, unit))
    if not rewrites:
        return
    results = run_units(
        UniqueJob(job.corpus_dir, job.settings),
        [unit for _, unit in rewrites],
        runner,
        "leaving out and moving documents",
        _SMALL_TEXT_BYTES,
    )
    for (part, _), result in zip(rewrites, results, strict=True):
        part.splits = result["splits"]


def _check_text(input_files: _Files, parts: _Parts, settings: CorpusSettings) -> None:
    for language, language_parts in parts.items():
        if any(part.splits for part in language_parts):
            continue
        paths = ", ".join(file.path for file in input_files[language])
        message = f"--input={language}=: no text in {paths}"
        # Without the reasons that left out nothing.
        reasons = set().union(*(+part.dropped for part in language_parts))
        if not reasons.isdisjoint((OTHER_LANGUAGE, NO_LANGUAGE)):
            message += (
                f" with {settings.language_value(language)!r} in column "
                f"{settings.language_column!r}, which has others there "
                "(build_corpus.language_values)"
            )
        elif reasons:
            message += f"; left out: {', '.join(sorted(reasons))}"
        raise UserError(message)


def _write_manifest(folder, input_files: _Files, inputs, parts: _Parts, copies) -> None:
    splits = {split: {} for split in SPLITS}
    languages = {}
    dropped = collections.Counter()
    for language, language_files in input_files.items():
        language_dropped = collections.Counter(
            {REPEATED_FILE: copies[language]} if copies[language] else {}
        )
        for part in parts[language]:
            language_dropped.update(part.dropped)
        dropped.update(language_dropped)
        languages[language] = {
            "inputs": [
                {**file._asdict(), "path": os.path.basename(file.path)}
                for file in language_files
            ],
            "dropped": dict(sorted(language_dropped.items())),
        }
        for split in SPLITS:
            counts = [p.splits[split] for p in parts[language] if split in p.splits]
            if counts:
                splits[split][language] = _sum(counts)
    corpus_writer.write_manifest(
        folder,
        source="text files",
        inputs=inputs,
        splits=splits,
        dropped=dict(sorted(dropped.items())),
        tasks={},
        languages=languages,
    )


def _sum(counts: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: sum((part[name] for part in counts), [] if name == "files" else 0)
        for name in counts[0]
    }
