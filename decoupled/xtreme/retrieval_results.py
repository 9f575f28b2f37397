"""A folder of results of Tatoeba and BUCC; a run adds one language after another.

    results.json    settings; the metrics of each language and the fingerprint of its
                    files ("data"); means
    predictions/TASK/test-LANGUAGE.tsv
                    for `decoupled score` and XTREME's own script

Languages that XTREME does not list for the task are marked and excluded from means.
"""

import os
from typing import Any

from decoupled.core import console, files
from decoupled.core.errors import UserError
from decoupled.xtreme import official
from decoupled.xtreme.parallel_sentences import Bucc, Pair, Tatoeba

_MEAN = "mean"
# Columns that are not in percent.
_OTHER_UNITS = ("threshold", "pairs", "examples")


def _cell(column, value):
    if value is None or column in _OTHER_UNITS:
        return value
    return f"{value:.2f}"


def tatoeba_results(pair: Tatoeba, places: list[int]) -> dict[str, float]:
    """Metrics in percent; accuracy only if the translations are known.

    `places` has for each source the index of the candidate that was found.
    """
    results = {}
    if pair.gold is not None:
        labels, answers = ([*map(str, side)] for side in (pair.gold, places))
        results = official.score_language("tatoeba", pair.language, labels, answers)
    count = len(pair.sources)
    return {**results, "random_accuracy": 100 / count, "examples": count}


def bucc_results(test: Bucc, pairs: list[Pair]) -> dict[str, float]:
    """Metrics of the pairs that were found, in percent; none without gold pairs."""
    if not test.gold:
        return {}
    results = official.score_language("bucc2018", test.language, test.gold, pairs)
    # The expected score of as many random pairs as there are gold pairs.
    possible = len(test.source.ids) * len(test.english.ids)
    return {**results, "random_f1": 100 * len(test.gold) / possible}


class RetrievalResults:
    """The folder of a run; a run that was stopped resumes with the missing languages.

    `description` of the run, as JSON, has at least "task", "global_step" and
    "settings". `content` is that of results.json, whose path is `path`.
    """

    def __init__(self, folder: str, description: dict[str, Any]):
        self._folder = files.make_folder(folder)
        self.path = os.path.join(folder, "results.json")
        self.content = {**description, "languages": {}}
        if files.exists(self.path):
            saved = files.read_json(self.path)
            self._check(saved, description)
            self.content["languages"] = saved["languages"]

    def _check(self, saved, description):
        if not isinstance(saved, dict) or not isinstance(saved.get("languages"), dict):
            raise UserError(f"{self.path}: not results of retrieval; delete it")
        differing = [
            "the checkpoint has changed"
            if key == "checkpoint_fingerprint"
            else f"{key} is {saved.get(key)!r}, not {value!r}"
            for key, value in description.items()
            if saved.get(key) != value
        ]
        if differing:
            raise UserError(
                f"{self.path}: of another run: {'; '.join(differing)}; use another "
                "--output_dir"
            )

    def has(self, language: str, fingerprint: str) -> bool:
        """Whether a language is done, with the data of this fingerprint."""
        entry = self.content["languages"].get(language, {})
        return entry.get("data") == fingerprint and files.exists(
            self._predictions(language)
        )

    @property
    def languages(self) -> list[str]:
        """The languages that have results, perhaps of other files."""
        return list(self.content["languages"])

    def add(
        self,
        language: str,
        fingerprint: str,
        lines: list[str],
        results: dict[str, float],
    ) -> None:
        """Writes a language's predictions, one per line, then its results."""
        path = self._predictions(language)
        files.make_folder(os.path.dirname(path))
        files.write_text(path, "".join(f"{line}\n" for line in lines))
        done = {
            **self.content["languages"],
            language: {**results, "data": fingerprint},
        }
        self.content["languages"] = {name: done[name] for name in sorted(done)}
        files.write_json(self.path, self.content)

    def finish(self) -> None:
        """Writes the means; prints the table."""
        rows = {
            name: {key: value for key, value in entry.items() if key != "data"}
            for name, entry in self.content["languages"].items()
        }
        columns = list(dict.fromkeys(key for row in rows.values() for key in row))
        task = self.content["task"]
        averaged = {
            name: row for name, row in rows.items() if official.is_official(task, name)
        }
        outside = [name for name in rows if name not in averaged]
        means = {}
        for column in columns:
            if values := [row[column] for row in averaged.values() if column in row]:
                means[column] = sum(values) / len(values)
        self.content[_MEAN], self.content["outside_xtreme"] = means, outside
        files.write_json(self.path, self.content)
        ordered = {**averaged, _MEAN: means, **{name: rows[name] for name in outside}}
        table = [[name, *map(row.get, columns)] for name, row in ordered.items()]
        cells = [
            [name + " (outside XTREME)" * (name in outside), *map(_cell, columns, row)]
            for name, *row in table
        ]
        self._show(columns, cells)

    def _show(self, columns, table):
        settings = self.content["settings"]
        console.table(
            f"{self.content['task']} at step {self.content['global_step']}: layer "
            f"{settings['layer']}, {settings['scoring']}; in percent",
            ["language", *(column.replace("_", " ") for column in columns)],
            table,
        )
        folder = os.path.join(self._folder, "predictions")
        if not set(official.TASKS[self.content["task"]].headline) <= set(columns):
            console.say("the data do not tell what is right: no score")
        console.say(f"wrote {self.path} and {folder}")

    def _predictions(self, language):
        return os.path.join(
            self._folder,
            "predictions",
            official.prediction_file(self.content["task"], language),
        )
